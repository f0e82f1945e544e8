"""One row per fault of docs/faults.md, by the tests that inject it for real, and one per goal of those faults."""

from __future__ import annotations

import ast
import io
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep.core.errors import BadInput
from instep.core.world import Array
from instep.robot import Limits, realtime_priority

PROJECT = Path(__file__).resolve().parents[1]
PAGE, TESTS = PROJECT / "docs" / "faults.md", PROJECT / "tests"
GOAL_FAULTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "G7": ("no committed frame lost by kills, truncation, bit flips", (34, 36, 37)),
    "G8": ("no synced frame lost by power loss", (35,)),
    "G9": ("disk full or broken: loop untouched, file readable", (33,)),
    "G11": ("a run is the same to the bit with duplicates and wall-clock jumps", (4, 6)),
    "G13": ("viewers that stall delay nobody", (41,)),
    "G14": ("malformed messages and slow connections", (42,)),
}
"""Goals that tests of faults show."""
GOAL_RESULTS = {
    "G3": ("limits", "violations", "violations of limits by fuzzed actions"),
    "G10": ("hostile", "tracebacks", "tracebacks of bad files"),
    "G12": ("trust", "episode false-alarm rate", "false alarms of the health monitor"),
    "G15": ("soak", "memory", "growth in a soak"),
    "G16": ("safety_core", "", "lines, branches and planted faults of the safety core"),
}
"""Goals that other benchmarks measure: benchmark, a word of the row, what it is."""


class _Outcomes:
    """A plugin of pytest that keeps what came out of each test, and shows at once why one failed."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[str, float]]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            self.found.setdefault(name, []).append((report.outcome, report.duration))
        if report.outcome == "failed":
            print(f"{report.nodeid}: {str(report.longrepr)[-600:]}", file=sys.__stderr__, flush=True)


def marked_tests() -> dict[int, dict[str, Path]]:
    """The tests by the number of the fault that they inject."""
    found: dict[int, dict[str, Path]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for decorator in map(ast.unparse, node.decorator_list):
                    if number := re.fullmatch(r"pytest\.mark\.fault\((\d+)\)", decorator):
                        found.setdefault(int(number[1]), {})[node.name] = path
    return found


def table() -> dict[int, tuple[str, str]]:
    """The faults of the page by number: the fault in words, and the test that shows it."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.read_text("utf-8").splitlines()]
    return {int(cells[0]): (cells[1], cells[5].strip("`")) for cells in rows if cells[0].isdigit() and len(cells) > 5}


def fault_rows(quick: bool) -> tuple[list[Row], dict[int, bool]]:
    """A row per fault, by its tests (in a quick run the one that the page names), and which faults passed."""
    import pytest

    if not TESTS.is_dir():
        return [row("faults 1 to 45: their tests are in a checkout only", math.nan)], {}
    known, named = marked_tests(), table()
    chosen = {
        path: {test for number in named for test, at in known[number].items() if at == path}
        for path in {at for tests in known.values() for at in tests.values()}
    }
    if quick:
        shown = {test for _, test in named.values()}
        chosen = {path: tests & shown for path, tests in chosen.items()}
    outcomes = _Outcomes()
    words = [f"{path}::{test}" for path, tests in chosen.items() for test in sorted(tests)]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = pytest.main(["-p", "no:cacheprovider", "--rootdir", str(PROJECT), *words], [outcomes])
    if code not in (0, 1):
        raise BadInput(f"The tests of faults did not run (pytest ended with {code}): {said.getvalue()[-400:]}")
    rows, passed = list[Row](), dict[int, bool]()
    for number, (fault, _) in named.items():
        ran = [each for test in known[number] for each in outcomes.found.get(test, ())]
        failures = sum(outcome == "failed" for outcome, _ in ran)
        skipped = sum(outcome == "skipped" for outcome, _ in ran)
        worst = max((took for _, took in ran), default=math.nan)
        passed[number] = bool(ran) and failures == 0 and skipped < len(ran)
        text = f"{number}: {fault}: failures of {len(ran)} injections ({skipped} skipped, longest {worst:.1f} s)"
        rows.append(row(text, float(failures), at_most=0, ok=passed[number]))
    return rows, passed


def goal_rows(passed: dict[int, bool], measured: Iterable[Row]) -> list[Row]:
    """A row per goal that tests or other benchmarks show, beside those that are measured here."""
    found = list(measured)
    for goal, (text, faults) in GOAL_FAULTS.items():
        failed = sum(not passed.get(number, False) for number in faults)
        found.append(row(f"{goal}: {text}: faults of {faults} that failed", float(failed), at_most=0))
    for goal, (benchmark, word, text) in GOAL_RESULTS.items():
        kept = PROJECT / "benchmarks" / "results" / f"{benchmark}.json"
        rows = json.loads(kept.read_text("utf-8"))["rows"] if kept.is_file() else []
        named = [each for each in rows if word in each["name"] and each["ok"] is not None]
        missed = float(sum(not each["ok"] for each in named)) if named else math.nan
        text = f"{goal}: {text}: missed goals of {len(named)} kept rows of python -m benchmarks {benchmark}"
        found.append(row(text, missed, at_most=0 if named else None))
    numbers = marked_tests() if TESTS.is_dir() else {}
    lacking = sum(number not in numbers for number in range(1, 46))
    found.append(row("G18: faults without an injected test", float(lacking), at_most=0))
    return sorted(found, key=lambda each: int(re.match(r"G(\d+)", each["name"])[1]))  # type: ignore[index]


def jitter_row(seconds: float) -> Row:
    """G1: a loop at 60 Hz beside four busy processes; wakes that are late by more than 1 ms."""
    late, period = list[float](), 1 / 60
    with ExitStack() as stack, realtime_priority():
        burn(stack, 4)
        deadline = time.monotonic()
        for _ in range(round(seconds / period)):
            deadline += period
            time.sleep(max(deadline - time.monotonic(), 0.0))
            late.append(time.monotonic() - deadline)
    share = 100 * float(np.mean(np.array(late) > 1e-3))
    return row(f"G1: wakes more than 1 ms late beside 4 burners, of {len(late)}", share, "%", at_most=0.05)


def burn(stack: ExitStack, processes: int) -> None:
    """Keep processors busy until the stack is left."""
    for _ in range(processes):
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        stack.callback(child.wait)
        stack.callback(child.kill)


def braking_row(limits: Limits, cases: int, dt: float = 1 / 60) -> Row:
    """G4: joints at random speeds near their limits, asked to go far beyond: how far they leave the range."""
    rng = np.random.default_rng(4)
    low, high, top = (np.broadcast_to(np.asarray(x, float), (3,)) for x in (limits.low, limits.high, limits.velocity))
    command = limits.rest(rng.uniform(0.5 * low, 0.5 * high, (cases, 3)))
    sign, beyond = rng.choice([-1.0, 1.0], (cases, 3)), 0.0
    for _ in range(round(2.5 * float(np.max((high - low) / top)) / dt)):
        command = limits.towards(command, 10.0 * sign, dt)
        beyond = max(beyond, float(np.max(np.maximum(command.q - high, low - command.q))))
    return row(
        f"G4: beyond the range, braking from any speed, worst of {3 * cases}", max(beyond, 0.0), "rad", at_most=1e-9
    )


def late_row(run: Callable[[int], Any], ticks: int, limits: Limits, dt: float) -> Row:
    """G2: a loop whose periods come late at random: violations of speed, acceleration and jerk by its commands."""
    bench, rng, broken = run(11), np.random.default_rng(2), 0
    for _ in range(ticks):
        if rng.random() < 0.1:
            bench.arm.now += int(rng.integers(1, 5)) * round(dt * 1e9)  # nothing was sent meanwhile
        bench.period()
    q: Array = np.stack([q for _, q in bench.arm.sent])
    v, a, j = (np.diff(q, n=n, axis=0) / dt**n for n in (1, 2, 3))
    for values, most in ((v, limits.velocity), (a, limits.acceleration), (j, limits.jerk)):
        broken += int(np.sum(np.abs(values) > np.asarray(most) * (1 + 1e-6) + 1e-6))
    return row(f"G2: violations by commands of {ticks} periods of which a tenth come late", float(broken), at_most=0)


def doctor_row() -> Row:
    """G17: the doctor says what of this machine is unsafe."""
    done = subprocess.run(
        [sys.executable, "-m", "instep.app.cli", "doctor"], capture_output=True, timeout=300, check=False
    )
    return row("G17: instep doctor ends without an error (exit code 0 or 1)", float(done.returncode), at_most=1)
