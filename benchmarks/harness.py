"""The harness of all benchmarks: rows and goals, kept results, cases that survive an interruption, a pool of processes.

A benchmark is a module of this folder with `run(out: Path, quick: bool) -> list[Row]`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from instep.app.cluster import end_with_parent
from instep.app.output import write_json
from instep.core.reading import read_json_table
from instep.core.statistics import Estimate, bootstrap

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""Kept results, from which the results page is rendered."""
CASES = "cases.json"
"""Cases of a long benchmark that are measured already."""
LIBRARIES = ("numpy", "scipy", "numba", "mujoco", "rapier3d", "torch")
"""Libraries whose versions a kept result names."""
T = TypeVar("T")
Row = dict[str, Any]
"""`{name, value, low, high, unit, goal, ok}`; `low`, `high`, `goal` and `ok` are None where there is none."""
Case = dict[str, Any]
Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that can be pickled, and its arguments."""


def row(
    name: str,
    found: Estimate | float,
    unit: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    ok: bool | None = None,
) -> Row:
    """A row from a number or an estimate; the goal bounds the value on one side. `ok` replaces the plain comparison."""
    given = found if isinstance(found, Estimate) else Estimate(float(found), math.nan, math.nan, 1, unit)
    goal = at_most if at_most is not None else at_least
    met = None if goal is None else bool(given.value <= goal if at_most is not None else given.value >= goal)
    interval = (given.low, given.high) if math.isfinite(given.low) else (None, None)
    return {
        "name": name, "value": float(given.value), "low": interval[0], "high": interval[1], "unit": unit or given.unit,
        "goal": goal, "ok": met if ok is None else bool(ok),
    }  # fmt: skip


def percent(rate: Estimate) -> Estimate:
    """A share in percent."""
    return Estimate(100 * rate.value, 100 * rate.low, 100 * rate.high, rate.n, "%")


def median(values: Sequence[float] | np.ndarray, unit: str = "") -> Estimate:
    """The median of repeated measurements with its bootstrap interval."""
    return bootstrap(np.asarray(values, float), lambda draws: np.median(draws, axis=-1), unit=unit)


def mean(values: Sequence[float] | np.ndarray, unit: str = "") -> Estimate:
    """The mean of measurements, one per recording, with its bootstrap interval."""
    return bootstrap(np.asarray(values, float), unit=unit)


def with_progress(what: str, count: int, items: Iterable[T]) -> Iterator[T]:
    """Show how many of the items are done and how long the rest will take, on standard error."""
    return iter(track(items, what, total=count, console=Console(stderr=True)))


def plain_row(row: Row) -> Row:
    """The row in Python's own types; numbers that are not finite are None."""
    numbers = {key: _finite(row.get(key)) for key in ("value", "low", "high", "goal")}
    return {**row, **numbers, "ok": None if row.get("ok") is None else bool(row["ok"])}


def keep_results(
    path: Path, rows: Sequence[Row], *, benchmark: str, command: str, whole: bool = True, note: str = ""
) -> None:
    """Write rows to a result file, with date, commit, machine, versions and command of the run.

    Where the run was not `whole`, rows of other names stay, with the runs they were measured in.
    """
    merge_results(path, rows, benchmark, {**provenance(path.parent), "command": command, "note": note}, whole=whole)


def merge_results(path: Path, rows: Sequence[Row], benchmark: str, made: Mapping[str, Any], *, whole: bool) -> None:
    """Write the rows of a run, which may have been made on another machine, to a result file."""
    before: dict[str, Any] = read_json_table(path) if path.is_file() else {}
    merged = {} if whole else {row["name"]: row for row in before.get("rows", ())}
    merged |= {row["name"]: {**plain_row(row), "run": "new"} for row in rows}
    used = {row["run"] for row in merged.values()}
    runs = [run for run in [*before.get("runs", ()), {"id": "new", **made}] if run["id"] in used]
    numbers = {run["id"]: str(k + 1) for k, run in enumerate(runs)}
    content = {
        "benchmark": benchmark,
        **({"about": before["about"]} if "about" in before else {}),
        "runs": [{**run, "id": numbers[run["id"]]} for run in runs],
    }
    lines = [json.dumps({**row, "run": numbers[row["run"]]}, ensure_ascii=False) for row in merged.values()]
    text = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
    path.write_text(text + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n", encoding="utf-8")


def provenance(folder: Path) -> dict[str, Any]:
    """When, with which code, where and with which libraries something is measured."""
    known = {library: version(library) for library in LIBRARIES if find_spec(library)}
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = next((f" ({line.partition(':')[2].strip()})" for line in lines if line.startswith("model name")), "")
    asked = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", ":/src", ":/benchmarks/*.py"])
    commit, changed = (
        subprocess.run(["git", *ask], cwd=folder, capture_output=True, text=True).stdout.strip() for ask in asked
    )
    return {
        "date": datetime.now(UTC).date().isoformat(), "commit": (commit or "unknown") + " with changes" * bool(changed),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores{named}",
        "versions": {"python": platform.python_version(), **known},
    }  # fmt: skip


class KeptCases:
    """The cases of a benchmark in `cases.json` of a folder, by key, in the order in which they ended.

    A case counts as measured only if the package and the benchmarks are the same to the byte.
    """

    def __init__(self, folder: Path):
        self._path = folder / CASES
        folder.mkdir(parents=True, exist_ok=True)
        found: list[Case] = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else []
        self._cases = {case["key"]: case for case in found if case.get("code") == code_digest()}

    def __contains__(self, key: str) -> bool:
        return key in self._cases

    def measured(self, key: str, measure: Callable[[], Case]) -> Case:
        """The case of that key: as it was measured before, or measured now and written at once."""
        if key not in self._cases:
            self._cases[key] = {**measure(), "key": key, "code": code_digest()}
            write_json(self._path, list(self._cases.values()))
        return self._cases[key]

    def measured_in_processes(self, what: str, tasks: Mapping[str, Task]) -> list[Case]:
        """The cases of these keys, one per core at a time in processes of their own; each is written as it ends.

        A case that is measured now notes the time of the processor that it took as `cpu_s` [s].
        """
        missing = {key: task for key, task in tasks.items() if key not in self}
        if missing:
            with pool() as submit:
                begun = {submit((_timed, task)): key for key, task in missing.items()}
                for done in with_progress(what, len(begun), as_completed(begun)):
                    self.measured(begun[done], done.result)
        return [self._cases[key] for key in tasks]

    def measured_in_turn(self, tasks: Mapping[str, Callable[[], Case]], line: Callable[[Case], str]) -> list[Case]:
        """The cases of these keys, one after the other in this process; a line is printed for each."""
        found: list[Case] = []
        for number, (key, measure) in enumerate(tasks.items(), 1):
            found.append(self.measured(key, measure))
            print(f"{number}/{len(tasks)} {line(found[-1])}", file=sys.stderr, flush=True)
        return found

    def cpu_s(self) -> float:
        """Time of the processor that the cases measured in processes took [s]."""
        return sum(float(case.get("cpu_s", 0.0)) for case in self._cases.values())


def _timed(function: Callable[..., Case], arguments: tuple[Any, ...]) -> Case:
    began = time.process_time()
    return {**function(*arguments), "cpu_s": time.process_time() - began}


def run_instep(words: Sequence[str], folder: Path, limit: float) -> tuple[int | None, str]:
    """Run `instep WORDS` in a folder: its exit code (None if it was ended after the limit [s]), and what it printed."""
    with (folder / "printed.txt").open("w") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "instep.app.cli", *words], stdin=subprocess.DEVNULL, stdout=printed,
            stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    return code, (folder / "printed.txt").read_text(encoding="utf-8", errors="replace")


@cache
def code_digest() -> str:
    """A digest of every Python file of the package and the benchmarks."""
    digest = hashlib.sha256()
    for root in (ROOT / "src", ROOT / "benchmarks"):
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def pool() -> Iterator[Callable[[Task], Future[Any]]]:
    """Submit tasks to processes, one per core."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(os.cpu_count() or 2, get_context("spawn"), end_with_parent) as workers:
        try:
            yield lambda task: workers.submit(task[0], *task[1])
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
