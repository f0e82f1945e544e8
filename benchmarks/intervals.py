"""Intervals of identified parameters on random problems: how often they hold the truth, and when there must be none.

Each problem is a scene (pendulums and chains, carts, sliders, servo and motor arms, a box, shipped scenes), one to six
planted parameters, a motion (multisine, steps, chirp, free swing, hold still), noise of 0.05 to 2 mrad, and 2 to 6 runs
of 3 to 8 s; `instep.identify` answers with its defaults. A parameter is truly unidentifiable where the best possible
90 % interval (Cramér-Rao) spans two thirds of its range. Single problems: `python -m benchmarks intervals --only 3 7`;
these are of the seeds to develop on, and the benchmark judges by others.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness import Case, KeptCases, Row, Task, median, percent, row
from instep import BadInput, Identification, identify, open_world
from instep.core.progress import Progress
from instep.core.statistics import Estimate, wilson
from instep.tune import FitStatus
from tuning.random_problems import RandomProblem, best_interval_shares, random_problem, window_error

Split = Literal["dev", "held-out"]
FIRST_SEED: dict[Split, int] = {"dev": 0, "held-out": 10_000}
"""Methods are developed on one set of seeds and judged on the other."""
PROBLEMS, QUICK_PROBLEMS = 200, 24
LIMIT, QUICK_LIMIT = 240.0, 40.0
"""Budget of time of one identification on one core [s]."""
LEVEL = 0.9
WEAK = str(FitStatus.NOT_IDENTIFIABLE)
UNIDENTIFIABLE_SHARE, IDENTIFIABLE_SHARE = 0.65, 0.05
"""Width of the best possible interval, over the range, from which on nothing is known, and up to which much is."""


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[Row]:
    """Identify the problems of the held-out seeds; `only` gives numbers of problems of the development seeds."""
    first, count = FIRST_SEED["held-out"], QUICK_PROBLEMS if quick else PROBLEMS
    seeds = [FIRST_SEED["dev"] + int(number) for number in only] or range(first, first + count)
    tasks: dict[str, Task] = {str(seed): (measured_problem, (seed, QUICK_LIMIT if quick else LIMIT)) for seed in seeds}
    found = KeptCases(out).measured_in_processes("problems", tasks)
    print("\n".join(map(_line, found)), file=sys.stderr)
    return summary(found)


def measured_problem(seed: int, limit: float) -> Case:
    """The answer to one problem, beside what could be known at best."""
    with tempfile.TemporaryDirectory() as folder:
        problem = random_problem(seed, Path(folder) / "scene")
        best = best_interval_shares(problem)
        facts: Case = {"name": problem.name, "seed": seed, "automatic": problem.automatic, "promoted": False}
        began = time.perf_counter()
        try:
            sim = open_world(problem.scene, threads=1)
            found = identify(sim, problem.episodes, problem.names, progress=Progress(limit))
        except BadInput as refusal:
            words = str(refusal)
            facts |= {"seconds": time.perf_counter() - began, "refused": words}
            answer = WEAK if "identifi" in words else "refused"
            params = {name: {"status": answer} for name in best}
        else:
            found, _ = found.promoted(Path(folder) / "out")
            facts |= {"seconds": time.perf_counter() - began, "promoted": found.passed, "status": str(found.status)}
            facts["gates"] = {gate.name: gate.state for gate in found.gates}
            facts["given"], facts["found"] = (window_error(problem, s) for s in ({}, found.settings))
            params = _answers(problem, found)
    for name, share in best.items():
        params[name] |= {"best_share": share, "truth": problem.truth[name]}
    return facts | {"params": params}


def _answers(problem: RandomProblem, found: Identification) -> dict[str, Case]:
    """What is said of each parameter: its status, and its 90 % interval where there is one."""
    answers: dict[str, Case] = {}
    status = found.param_status
    for param in problem.params:
        # A parameter that was left out keeps its value, without an interval.
        answer: Case = {"status": str(status.get(param.address, WEAK))}
        if answer["status"] == str(FitStatus.CONVERGED):
            interval = found.fit.interval(param.address, LEVEL)
            answer |= {"value": interval.value, "low": interval.low, "high": interval.high}
            answer["width"] = float(abs(param.to_unit(interval.high) - param.to_unit(interval.low)))
            answer["inside"] = interval.low <= problem.truth[param.address] <= interval.high
        answers[param.address] = answer
    return answers


def summary(found: Sequence[Case]) -> list[Row]:
    """The rows of the table."""
    params = [param for case in found for param in case["params"].values()]
    given = [param for param in params if "inside" in param]
    promoted = [p for case in found if case["promoted"] for p in case["params"].values() if "inside" in p]
    hopeless = [param for param in params if param["best_share"] >= UNIDENTIFIABLE_SHARE]
    clear = [param for param in params if param["best_share"] <= IDENTIFIABLE_SHARE]
    worse = sum(case["promoted"] and case["found"] > case["given"] for case in found)
    return [
        row(f"truth inside the 90 % interval, of {len(given)} parameters", _inside(given), at_least=85),
        row(f"the same of {len(promoted)} parameters that were promoted", _inside(promoted)),
        row(f"truly unidentifiable and called so, of {len(hopeless)}", _called(hopeless, WEAK), at_least=90),
        row(f"truly identifiable and with an interval, of {len(clear)}", _called(clear, str(FitStatus.CONVERGED))),
        row(f"promoted but worse than the scene given, of {len(found)}", worse, "problems", at_most=0),
        row(f"promoted, of {len(found)} problems", percent(wilson(sum(c["promoted"] for c in found), len(found)))),
        row("time of an identification on one core, median", median([case["seconds"] for case in found], "s")),
    ]  # fmt: skip


def _inside(params: Sequence[Case]) -> Estimate | float:
    return percent(wilson(sum(param["inside"] for param in params), len(params))) if params else math.nan


def _called(params: Sequence[Case], status: str) -> Estimate | float:
    return percent(wilson(sum(p["status"] == status for p in params), len(params))) if params else math.nan


def _line(case: Case) -> str:
    words = []
    for name, param in case["params"].items():
        mark = "" if "inside" not in param else " in" if param["inside"] else " MISSED"
        best = param["best_share"]
        if best >= UNIDENTIFIABLE_SHARE and param["status"] != WEAK:
            mark += " NOT CALLED"
        words.append(f"{name} {param['status']}{mark} ({best:.1g})")
    kept = "promoted" if case["promoted"] else "not promoted"
    return f"{case['name']}: {kept} in {case['seconds']:.0f} s: {'; '.join(words)}"
