"""Adaptive control of arms with hidden payload, friction and actuator loss: tracking, limits, stability and cost.

Robots are in rapier, their reference models in MuJoCo (see `adaptive_trials`). Every law gets the same robots, noise
and motions, and errors are compared robot by robot. Laws were developed on seeds below 1000 and are judged on others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_trials import (
    CHANGES,
    IdentifiedArm,
    Trial,
    hidden_robot,
    identified_arms,
    random_case,
    run_trial,
    step_costs,
)
from instep.core.statistics import Estimate, bootstrap, wilson
from kept_cases import KeptCases
from rows import Row, median, row

FIRST_SEED, CASES, QUICK_CASES = 1000, 20, 2
METHODS = ("none", "integral", "observer", "l1", "residual", "mrac")
RANDOM_CASES, QUICK_RANDOM_CASES = 1000, 40
RATE = 500.0
"""Rate at which the share of a core is measured [Hz]."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure tracking on every arm, then stability and cost."""
    kept, rows, started = KeptCases(out), list[Row](), time.process_time()
    methods = ("none", "integral", "mrac") if quick else METHODS
    seconds, cases = (4.0, QUICK_CASES) if quick else (8.0, CASES)
    inside, robot_minutes = list[bool](), 0.0
    for arm in identified_arms():
        for change in CHANGES:
            errors: dict[str, list[float]] = {method: [] for method in methods}
            for seed in range(FIRST_SEED, FIRST_SEED + cases):
                found = kept.measured(f"{arm.name} {change} {seed}", lambda: _case(arm, change, seed, methods, seconds))  # noqa: B023
                for method in methods:
                    errors[method].append(found[method]["error"])
                    inside.append(found[method]["inside"])
                robot_minutes += len(methods) * seconds / 60
            rows += _tracking(f"{arm.name}, {change}", errors)
    rows.append(
        row("runs in which every command was inside the limits", wilson(sum(inside), len(inside)), at_least=1.0)
    )
    rows += _stability(QUICK_RANDOM_CASES if quick else RANDOM_CASES)
    rows.append(row(f"share of a core at {RATE:g} Hz, mrac on 7 joints", _core_share(), "%", at_most=10.0))
    rows.append(row("robot time", robot_minutes, "min"))
    rows.append(row("computer time", (time.process_time() - started) / 60, "min"))
    return rows


def _case(arm: IdentifiedArm, change: Any, seed: int, methods: tuple[str, ...], seconds: float) -> dict[str, Any]:
    robot = hidden_robot(arm, change, seed)
    found = {method: run_trial(arm, robot, seed, method, seconds) for method in methods}
    return {method: _plain(trial) for method, trial in found.items()}


def _plain(trial: Trial) -> dict[str, Any]:
    return {"error": trial.error, "worst": trial.worst, "inside": trial.inside}


def _tracking(name: str, errors: dict[str, list[float]]) -> list[Row]:
    """The error of each law, and by how much mrac cuts that of others, robot by robot."""
    rows = [row(f"{name}: RMS error, {method}", median(found), "mrad") for method, found in errors.items()]
    for other, least in (("none", 60.0), ("integral", 20.0)):
        rows.append(
            row(f"{name}: cut by mrac against {other}", _cut(errors["mrac"], errors[other]), "%", at_least=least)
        )
    return rows


def _cut(error: list[float], other: list[float]) -> Estimate:
    """Mean share of an error that is gone, over pairs [%]."""
    return bootstrap(100 * (1 - np.asarray(error) / np.asarray(other)), unit="%")


def _stability(cases: int) -> list[Row]:
    """Random arms, gains, delays and changes, beyond what the model knows: does any run grow?"""
    stable = [random_case(FIRST_SEED + seed) for seed in range(cases)]
    return [row(f"stable runs of {cases} random robots", wilson(sum(stable), cases), at_least=1.0)]


def _core_share() -> Estimate:
    """CPU time of a step of the wrapper without that of the robot, over the period [%]."""
    return median(100 * RATE * np.asarray(step_costs(identified_arms()[0])), "%")
