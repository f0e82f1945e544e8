"""Two causes of a gap planted at once on shipped arms and arms made at random: are both ranked first?

A case counts where each of the two explains at least a fifth of the gap by its planted values. Diagnosis sees the scene
as given and recordings, as `instep gap DATA SCENE` does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from harness import Case, KeptCases, Row, Task, median, row
from instep import BadInput, Diverged, Scene, open_world
from instep.core.statistics import wilson
from instep.diagnose.candidates import Candidate, candidate_causes
from instep.diagnose.diagnosis import AttributionOptions, attribute, diagnose_gap
from instep.gap.measure import prepared_for
from tuning.planted_arms import Arm, measured_episode, random_arm, record, robot_files, shipped_arms

FIRST_SEED, CASES, QUICK_CASES = 1000, 40, 2
MIN_PLANTED_SHARE, MAX_REST = 0.2, 0.3
"""Each planted cause explains at least this share of the gap, and both leave at most so much of it."""
RUNS, SECONDS, SIZE = 4, 6.0, 0.6
ATTEMPTS = 12
"""Pairs of causes that are planted until both explain enough."""
LEFT_OUT = ("time step", "contact friction")
"""Candidates that are not planted: arms are simulated finely enough, and nothing touches."""
SIZES = {
    "joint damping": (-0.6, 1.2), "gains": (-0.6, 0.5), "payload": (0.2, 0.7), "latency": (0.012, 0.06),
    "actuator limits": (0.6, 1.5), "dry friction": (0.012, 0.04), "backlash": (0.02, 0.06),
}  # fmt: skip
"""Smallest and largest coordinates of a planted cause; of the first two one end or the other."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """How often both causes of the held-out seeds are ranked first, and how long a diagnosis takes."""
    seeds = range(FIRST_SEED, FIRST_SEED + (QUICK_CASES if quick else CASES))
    tasks: dict[str, Task] = {str(seed): (diagnosed, (seed,)) for seed in seeds}
    found = [case for case in KeptCases(out).measured_in_processes("two causes", tasks) if "skipped" not in case]
    for case in found:
        print(case["words"], file=sys.stderr)
    if not found:
        raise BadInput("No case has two causes that explain enough of the gap each.")
    hits = wilson(sum(case["hit"] for case in found), len(found))
    return [
        row("two planted causes ranked first and second", hits, at_least=0.8),
        row("time of a diagnosis with two causes", median([case["seconds"] for case in found], "s"), at_most=60.0),
    ]


def diagnosed(seed: int) -> Case:
    """Whether the two causes planted by a seed come first, and how long the diagnosis took [s]."""
    with tempfile.TemporaryDirectory() as folder:
        # Arms with sixteen joints take minutes, and two arms say no more than one.
        named = [arm for arm in robot_files() + shipped_arms() if "bimanual" not in arm.name]
        number = seed - FIRST_SEED
        arm = named[number // 2 % len(named)] if number % 2 else random_arm(seed + number // 2 % 2, Path(folder))
        try:
            scene, runs, shares = planted_case(arm, seed)
        except BadInput as error:
            return {"skipped": f"{arm.name}, seed {seed}: {error}"}
        began = time.perf_counter()
        found = diagnose_gap(scene, runs)
        took = time.perf_counter() - began
    ranked = sorted(found.causes, key=lambda name: -found.causes[name].value)
    hit = set(ranked[:2]) == set(shares)
    planted = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    listed = ", ".join(f"{name} {found.causes[name].value:.0%}" for name in ranked)
    words = f"{'both' if hit else 'MISSED'} {arm.name}, seed {seed}: planted {planted}; found {listed}. {took:.0f} s"
    return {"hit": hit, "seconds": took, "words": words}


def planted_case(arm: Arm, seed: int) -> tuple[Scene, list[Any], dict[str, float]]:
    """A scene, recordings with two causes planted, and the share of the gap that each explains."""
    scene, rng = Scene.load(arm.scene), np.random.default_rng((seed, 0x2CA))
    sim, candidates = candidate_causes(scene, open_world(scene))
    known = {c.cause: c for c in candidates if c.cause not in LEFT_OUT}
    pairs = list(combinations(sorted(known), 2))
    for _ in range(ATTEMPTS):
        truth = {cause: planted_settings(known[cause], rng) for cause in pairs[int(rng.integers(len(pairs)))]}
        real, seeds = sim.tuned({k: v for part in truth.values() for k, v in part.items()}), range(RUNS)
        try:
            q, actions = record(scene, real, [100 * seed + k for k in seeds], SIZE, seconds=SECONDS)
        except Diverged:
            continue
        runs = [measured_episode(scene, q[k], actions[k], 100 * seed + k) for k in seeds]
        found = attribute(sim, prepared_for(sim, scene, runs).episodes, truth, options=AttributionOptions(every=0.5))
        shares = {name: share.value for name, share in found.shares.items()}
        if found.after <= MAX_REST * found.before and min(shares.values()) >= MIN_PLANTED_SHARE:
            return scene, runs, shares
    raise BadInput("no two causes of this arm explain a fifth of the gap each")


def planted_settings(one: Candidate, rng: np.random.Generator) -> dict[str, Any]:
    """Settings of a cause, every joint with its own value."""
    low, high = SIZES[one.cause]
    if low < 0:
        x = float(rng.choice([low, high])) * rng.uniform(0.3, 1.0) * rng.uniform(0.5, 1.5, len(one.coordinates))
    else:
        x = rng.uniform(low, high, len(one.coordinates))
    if one.cause == "payload":
        x[int(rng.integers(len(x)))] = 0.0
    return dict(one.at(np.clip(x, one.low, one.high)))
