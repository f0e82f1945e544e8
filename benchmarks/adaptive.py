"""Adaptive control of arms with hidden payload, friction and actuator loss: tracking, limits, stability and cost.

Robots are in rapier, their reference models in MuJoCo (see `adaptive_trials`). Errors with and without adaptive control
are compared robot by robot. The law was developed on seeds below 1000 and is judged on others.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_trials import (
    CHANGES,
    Change,
    IdentifiedArm,
    hidden_robot,
    identified_arms,
    random_case,
    run_trial,
    step_costs,
)
from harness import KeptCases, Row, median, row
from instep.core.statistics import Estimate, bootstrap, wilson

FIRST_SEED, CASES, QUICK_CASES = 1000, 20, 2
METHODS = ("none", "mrac")
RANDOM_CASES, QUICK_RANDOM_CASES = 1000, 40
RATE = 500.0
"""Rate at which the share of a core is measured [Hz]."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure tracking on every arm, then stability and cost."""
    kept, rows = KeptCases(out), list[Row]()
    seconds, cases = (4.0, QUICK_CASES) if quick else (8.0, CASES)
    arms = identified_arms()
    seeds = range(FIRST_SEED, FIRST_SEED + cases)
    tasks = {
        f"{arm.name} {change} {seed}": (_case, (arm, change, seed, seconds))
        for arm in arms
        for change in CHANGES
        for seed in seeds
    }
    found = dict(zip(tasks, kept.measured_in_processes("arms with a hidden change", tasks), strict=True))
    for arm in arms:
        for change in CHANGES:
            chosen = [found[f"{arm.name} {change} {seed}"] for seed in seeds]
            rows += _tracking(f"{arm.name}, {change}", {m: [case[m]["error"] for case in chosen] for m in METHODS})
    inside = [case[method]["inside"] for case in found.values() for method in METHODS]
    rows.append(
        row("runs in which every command was inside the limits", wilson(sum(inside), len(inside)), at_least=1.0)
    )
    many = QUICK_RANDOM_CASES if quick else RANDOM_CASES
    tasks = {f"random {seed}": (_random, (seed,)) for seed in range(FIRST_SEED, FIRST_SEED + many)}
    randomly = kept.measured_in_processes("random arms", tasks)
    stable = sum(case["stable"] for case in randomly)
    rows.append(row(f"stable runs of {many} random robots", wilson(stable, many), at_least=1.0))
    rows.append(row(f"share of a core at {RATE:g} Hz, mrac on 7 joints", _core_share(arms[0]), "%", at_most=10.0))
    rows.append(row("robot time", len(inside) * seconds / 60, "min"))
    rows.append(row("computer time", kept.cpu_s() / 60, "min"))
    return rows


def _case(arm: IdentifiedArm, change: Change, seed: int, seconds: float) -> dict[str, Any]:
    robot = hidden_robot(arm, change, seed)
    trials = {method: run_trial(arm, robot, seed, method != "none", seconds) for method in METHODS}
    return {method: asdict(trial) for method, trial in trials.items()}


def _tracking(name: str, errors: dict[str, list[float]]) -> list[Row]:
    """The errors, and by how much adaptive control cuts them, robot by robot."""
    rows = [row(f"{name}: RMS error, {method}", median(found), "mrad") for method, found in errors.items()]
    rows.append(row(f"{name}: cut by mrac against none", _cut(errors["mrac"], errors["none"]), "%", at_least=60.0))
    return rows


def _cut(error: list[float], other: list[float]) -> Estimate:
    """Mean share of an error that is gone, over pairs [%]."""
    return bootstrap(100 * (1 - np.asarray(error) / np.asarray(other)), unit="%")


def _random(seed: int) -> dict[str, Any]:
    """A random arm, its gains, delay and changes beyond what the model knows: does the run stay bounded?"""
    return {"stable": random_case(seed)}


def _core_share(arm: IdentifiedArm) -> Estimate:
    """CPU time of a step of the wrapper without that of the robot, over the period [%]."""
    return median(100 * RATE * np.asarray(step_costs(arm)), "%")
