"""The verb bench: measure against goals and peers, in one run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.output import new_output, write_json
from instep.core.errors import BadInput, UnknownName
from instep.core.reading import read_json_table

Row = dict[str, Any]
CASES = "cases.json"
"""Where long benchmarks keep what they have measured so far."""
LIBRARIES = ("numpy", "scipy", "numba", "mujoco", "rapier3d", "torch")
"""Libraries whose versions a kept result names, where they are installed."""
_MARKS: dict[bool | None, str] = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}


def bench(
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = "",
    /,
    *,
    quick: bool = False,
    list: bool = False,
    out: Path | None = None,
) -> int:
    """Measure against goals and peers in one run; exit 1 if a row misses its goal.

    In a checkout a full run is also kept as benchmarks/results/NAME.json, from which the results page is rendered.

    Args:
        name: which benchmark; --list names them all.
        quick: the same goals with fewer cases, at most 10 minutes on two cores; not kept.
        list: name the benchmarks and stop.
        out: folder to write; a new one under runs/ where not given.

    """
    found = benchmarks()
    if list or not name:
        for known, path in found.items():
            Console().print(f"[bold]{known}[/]  {_first_line(path)}")
        return 0
    name = name.replace("-", "_")
    if name not in found:
        raise UnknownName("benchmark", name, found)
    output = new_output("bench", out)
    try:
        rows = [plain_row(row) for row in _load(found[name]).run(output.folder, quick=quick)]
    except BaseException:
        if (output.folder / CASES).is_file():
            output.kept = f"what was measured so far is in {output.folder}; the same command with --out goes on there"
        raise
    Console().print(_table(name, rows))
    write_json(
        output.folder / "result.json",
        {**read_json_table(output.write({})), "benchmark": name, "quick": quick, "rows": rows},
    )
    if not quick and (folder := results_folder()) is not None:
        keep_results(folder / f"{name}.json", rows, benchmark=name, command=f"instep bench {name}")
    missed = [row for row in rows if row["ok"] is False]
    Console().print(f"{len(missed)} of {sum(row['goal'] is not None for row in rows)} goals missed.")
    print(output.folder)
    return 1 if missed else 0


def plain_row(row: Row) -> Row:
    """The row in Python's own types; numbers that are not finite are None."""
    numbers = {key: _finite(row.get(key)) for key in ("value", "low", "high", "goal")}
    return {**row, **numbers, "ok": None if row.get("ok") is None else bool(row["ok"])}


def benchmarks() -> dict[str, Path]:
    """The benchmarks of this checkout, or those that came with the package."""
    here = Path(__file__).resolve()
    for folder in (here.parents[4] / "benchmarks", here.parents[1] / "benchmarks"):
        if folder.is_dir():
            return {p.stem: p for p in sorted(folder.glob("*.py")) if "\ndef run(" in p.read_text(encoding="utf-8")}
    return {}


def results_folder() -> Path | None:
    """benchmarks/results of a checkout, where full runs are kept; None in an installed package."""
    folder = Path(__file__).resolve().parents[4] / "benchmarks" / "results"
    return folder if folder.is_dir() else None


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
    fresh = [{**plain_row(row), "run": "new"} for row in rows]
    given = {row["name"]: row for row in fresh}
    stay = [] if whole else [given.pop(row["name"], row) for row in before.get("rows", ())]
    merged = [*stay, *(row for row in fresh if row["name"] in given)] if stay else fresh
    runs = {run["id"]: run for run in [*before.get("runs", ()), {"id": "new", **made}]}
    numbers = {old: str(k + 1) for k, old in enumerate(run for run in runs if run in {row["run"] for row in merged})}
    content = {
        "benchmark": benchmark,
        **({"about": before["about"]} if "about" in before else {}),
        "runs": [{**runs[old], "id": number} for old, number in numbers.items()],
    }
    lines = ",\n".join("  " + json.dumps({**row, "run": numbers[row["run"]]}, ensure_ascii=False) for row in merged)
    text = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
    path.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def provenance(folder: Path) -> dict[str, Any]:
    """When, with which code, where and with which libraries something is measured."""
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    machine = f"{platform.machine()}, {os.cpu_count()} cores{_processor()}"
    return {
        "date": datetime.now(UTC).date().isoformat(), "commit": _commit(folder), "machine": machine,
        "versions": versions,
    }  # fmt: skip


def _commit(folder: Path) -> str:
    """The commit of the checkout, with a mark where sources differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    asked = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", ":/src", ":/benchmarks/*.py"])
    words = [subprocess.run([git, *ask], cwd=folder, capture_output=True, text=True).stdout for ask in asked]  # noqa: S603
    return (words[0].strip() or "unknown") + (" with changes" if words[1].strip() else "")


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f" ({named})" if named else ""


def _load(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))  # a benchmark may have helpers beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be loaded as a benchmark.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _first_line(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.split('"""')[1].strip().splitlines()[0] if '"""' in text else ""


def _table(name: str, rows: Sequence[Row]) -> Table:
    table = Table("what", "value", "95 % interval", "unit", "goal", "", title=f"bench {name}")
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        interval = "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}"
        table.add_row(row["name"], _number(row["value"]), interval, row["unit"], goal, _MARKS[row["ok"]])
    return table


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _number(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
