"""Re-identification while a robot runs: payload, drifting friction, false changes, and recordings of several days.

Robots are in rapier, their models in MuJoCo (see `reidentify_trials`). The filter was developed on seeds below 1000 and
is judged on others; of the recordings nothing was chosen by the error that is reported.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import chi2

from adaptive_trials import IdentifiedArm, identified_arms
from harness import Case, KeptCases, Row, mean, median, percent, row
from instep.core.statistics import Estimate, wilson
from instep.tune.gated_fit import relative_reduction
from machines.common import RECORDINGS
from reidentify_trials import (
    AFTER_S,
    DRIFT_S,
    MACHINES,
    PAYLOAD_KG,
    PICK_S,
    friction_case,
    payload_case,
    quiet_case,
    recorded_case,
)

FIRST_SEED, CASES, QUICK_CASES = 1000, 20, 2
ARMS = ("arm7", "ur5e")
"""Arms whose servos show half a kilogram."""
QUIET_S, QUIET_CASES, QUICK_QUIET_CASES = 60.0, 60, 1
"""Length [s] and number of runs in which nothing changes: an hour in a full run."""
QUICK_RECORDINGS = 6


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure simulated robots first, then recordings."""
    kept = KeptCases(out)
    arms = [arm for arm in identified_arms() if arm.name in ARMS]
    seeds = range(FIRST_SEED, FIRST_SEED + (QUICK_CASES if quick else CASES))
    payloads = {arm.name: _payloads(kept, arm, seeds) for arm in arms}
    rows = [one for name, cases in payloads.items() for one in _payload_rows(name, cases)]
    for arm in arms[:1] if quick else arms:
        rows += _friction_rows(kept, arm, seeds)
    quiet = _quiet(kept, arms, QUICK_QUIET_CASES if quick else QUIET_CASES)
    before = [case for cases in payloads.values() for case in cases]
    false = sum(int(case["false"]) for case in before) + sum(int(case["changes"]) for case in quiet)
    seconds = PICK_S * len(before) + sum(float(case["seconds"]) for case in quiet)
    rows.append(row("false changes per hour", _rate(false, seconds / 3600), "1/h", at_most=1.0))
    rows += _recording_rows(kept, QUICK_RECORDINGS if quick else 0)
    rows.append(row("robot time without changes", seconds / 60, "min"))
    rows.append(row("computer time", kept.cpu_s() / 60, "min"))
    return rows


def _payloads(kept: KeptCases, arm: IdentifiedArm, seeds: range) -> list[Case]:
    tasks = {f"payload {arm.name} {seed}": (payload_case, (arm, seed)) for seed in seeds}
    return kept.measured_in_processes(f"{arm.name}, payloads", tasks)


def _payload_rows(name: str, cases: list[Case]) -> list[Row]:
    errors = [100 * abs(case["found"] / PAYLOAD_KG - 1) for case in cases]
    noticed = [float(case["noticed"]) for case in cases if case["noticed"] is not None]
    label = f"{name}, payload of {PAYLOAD_KG:g} kg"
    near = wilson(sum(error <= 10 for error in errors), len(errors))
    rows = [
        row(f"{label}, error after {AFTER_S:g} s", median(errors), "%", at_most=10.0),
        row(f"{label}, within 10 % after {AFTER_S:g} s", percent(near), "%"),
        row(f"{label}, noticed as a change", percent(wilson(len(noticed), len(cases))), "%"),
    ]
    return [*rows, row(f"{label}, time to notice", median(noticed), "s")] if noticed else rows


def _friction_rows(kept: KeptCases, arm: IdentifiedArm, seeds: range) -> list[Row]:
    rows: list[Row] = []
    for engine, words in (("rapier", "robot in rapier"), ("mujoco", "robot in MuJoCo")):
        tasks = {f"friction {arm.name} {engine} {seed}": (friction_case, (arm, seed, engine)) for seed in seeds}
        cases = kept.measured_in_processes(f"{arm.name}, friction, {words}", tasks)
        label = f"{arm.name}, friction that doubles in {DRIFT_S:g} s, {words}"
        inside = mean([100 * case["inside"] for case in cases])
        rows.append(row(f"{label}, time inside the 95 % interval", inside, "%", at_least=85.0))
        rows.append(row(f"{label}, error", median([100 * case["off"] for case in cases]), "%"))
        rows.append(row(f"{label}, width of the interval", median([100 * case["width"] for case in cases]), "%"))
    return rows


def _quiet(kept: KeptCases, arms: list[IdentifiedArm], count: int) -> list[Case]:
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    tasks = {f"quiet {seed}": (quiet_case, (arms[seed % len(arms)], seed, QUIET_S)) for seed in seeds}
    return kept.measured_in_processes("runs without a change", tasks)


def _recording_rows(kept: KeptCases, limit: int) -> list[Row]:
    """Error of the next seconds: by the running estimate, and by the values in use, which passed the gate."""
    rows: list[Row] = []
    there = {name: m for name, m in MACHINES.items() if any((place / m.folder).is_dir() for place in RECORDINGS)}
    tasks = {f"{name} {limit}": (recorded_case, (machine, limit)) for name, machine in there.items()}
    for (name, machine), case in zip(
        there.items(), kept.measured_in_processes("recorded machines", tasks), strict=True
    ):
        errors = np.array(case["errors"])  # [recordings, (fixed, estimate, in use)]
        estimate, used = (relative_reduction(errors[:, [0, k]], np.ones(len(errors)), 0) for k in (1, 2))
        label = f"{name}, error of the next {machine.horizon:g} s below that of the fixed fit"
        rows.append(row(f"{label}, estimate", percent(estimate), "%", at_least=0.0, ok=estimate.low > 0))
        rows.append(row(f"{label}, values in use", percent(used), "%", at_least=0.0, ok=used.high >= 0))
    return rows


def _rate(count: int, hours: float) -> Estimate:
    """A rate with the exact interval of a Poisson count."""
    low = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    return Estimate(count / hours, low / hours, float(chi2.ppf(0.975, 2 * count + 2)) / 2 / hours, count, "1/h")
