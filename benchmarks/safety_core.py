"""How well tests hold the safety core: branches that they reach, and small faults planted into it that they notice.

The core is what stands between any command and a motor: limits, the kernels of braking, checks of sensors, the control
loop and the follower. A fault that makes a test fail, hang or not start counts as noticed; those that none notices are
listed in `survived.json`. Branches of compiled kernels are those of the same code run as plain Python, where tests of
many thousands of motions are left out, since they would take an hour.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import KeptCases, Row, percent, pool, row, with_progress
from instep.core.errors import BadInput
from instep.core.statistics import wilson
from mutations import VARIABLE, mutations

ROOT = Path(__file__).resolve().parent.parent
CORE = ("limits", "jerk_kernels", "signal_checks", "control_loop", "follower")
TESTS = ("limits", "sensor_checks", "follower", "control_loop", "loop_requests", "loop_pacing", "response_checks",
         "obstacles")  # fmt: skip
"""Names of the test modules of the core."""
KERNELS, LONG_TESTS = "jerk_kernels", "wild_actions or from_any_motion"
"""The module that is compiled, and tests that take too long where it is not."""
MUTANTS, QUICK_MUTANTS = 200, 12
LIMIT_S = 100.0
"""Time after which tests hang; without a fault they take a quarter of it."""


def run(out: Path, *, quick: bool = False) -> list[Row]:
    """Size of the core, branches reached, and the share of planted faults that tests notice."""
    if not (ROOT / "tests").is_dir():
        raise BadInput("`python -m benchmarks safety_core` runs tests, so it needs a checkout of the repository.")
    kept, chosen = KeptCases(out), _chosen(QUICK_MUTANTS if quick else MUTANTS)
    branches = kept.measured("branches", _branches)
    with pool() as submit:
        begun = {key: submit((_noticed, (module, number))) for key, module, number in chosen if key not in kept}
        keys = with_progress("planted faults", len(chosen), [key for key, _, _ in chosen])
        found = {key: kept.measured(key, lambda key=key: {"noticed": begun[key].result()}) for key in keys}
    survived = [key for key, case in found.items() if not case["noticed"]]
    (out / "survived.json").write_text(json.dumps(survived, indent=1), encoding="utf-8")
    lines = sum(len(_path(name).read_text(encoding="utf-8").splitlines()) for name in CORE)
    noticed = percent(wilson(len(found) - len(survived), len(found)))
    reached = percent(wilson(branches["reached"], branches["branches"]))
    return [
        row(f"lines of the safety core, {len(CORE)} modules", lines, at_most=1500),
        row(f"branches that tests reach, of {branches['branches']}", reached, at_least=100),
        row(f"planted faults that tests notice, of {len(found)} drawn at random", noticed, at_least=85),
    ]


def _path(name: str) -> Path:
    return ROOT / "src" / "instep" / "robot" / f"{name}.py"


def _files(tests: Sequence[str]) -> list[str]:
    return [f"tests/robot/test_{name}.py" for name in tests]


def _chosen(count: int) -> list[tuple[str, str, int]]:
    """Mutations drawn at random from all those of the core: words, module and number of each."""
    every: list[tuple[str, str, int]] = []
    for name in CORE:
        tree = ast.parse(_path(name).read_text(encoding="utf-8"))
        for number, (node, words) in enumerate(mutations(tree)):
            every.append((f"{name}.py:{getattr(node, 'lineno', 0)}, {number}: {words}", name, number))
    rng = np.random.default_rng(16)
    return [every[k] for k in sorted(rng.choice(len(every), min(count, len(every)), replace=False))]


def _noticed(name: str, number: int) -> bool:
    """Whether a test fails, hangs or does not start with one mutation."""
    with tempfile.TemporaryDirectory() as folder:
        # Those that are likely to notice come first: a fault that was noticed needs no further test.
        tests = _files(
            sorted(
                TESTS,
                key=lambda test: (
                    test != name,
                    "loop" in name and "loop" not in test,
                    "checks" in name and "checks" not in test,
                ),
            )
        )
        words = ["-x", "-q", "-p", "mutations", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
        given = {**_environment(), VARIABLE: f"instep.robot.{name}:{number}", "TMPDIR": folder}
        if name == KERNELS:
            given["NUMBA_CACHE_DIR"] = folder  # what was compiled before has no fault
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=given, capture_output=True, timeout=LIMIT_S
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True
    return done.returncode != 0


def _branches() -> dict[str, Any]:
    """How many branches the core has, and how many of them tests reach."""
    with tempfile.TemporaryDirectory() as folder:
        measure, report = [sys.executable, "-m", "coverage"], Path(folder) / "report.json"
        given = {**_environment(), "COVERAGE_FILE": str(Path(folder) / "data")}
        files = ",".join(str(_path(name)) for name in CORE)
        tests = ["pytest", "-q", "-p", "no:cacheprovider", *_files(TESTS)]
        traced = [*measure, "run", "--branch", "--append", f"--include={files}", "-m", *tests]
        _checked(traced, given)
        _checked([*traced, "-k", f"not ({LONG_TESTS})"], {**given, "NUMBA_DISABLE_JIT": "1"})
        _checked([*measure, "json", "-o", str(report)], given)
        told = json.loads(report.read_text(encoding="utf-8"))
    missing = {Path(name).name: each["missing_branches"] for name, each in told["files"].items()}
    totals = told["totals"]
    return {"branches": totals["num_branches"], "reached": totals["covered_branches"], "missing": missing}


def _checked(command: list[str], environment: dict[str, str]) -> None:
    """Run a command that has to succeed."""
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        raise BadInput(f"The tests of the safety core did not pass: {(ran.stdout + ran.stderr)[-600:]}")


def _environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
