"""Two causes of a gap planted at once on robot files, shipped arms and arms made at random: are both ranked first?

A case counts where each of the two explains at least a fifth of the gap by its planted values. Diagnosis sees the scene
as given and recordings, as `instep gap DATA SCENE` does. Single cases: `python -m benchmarks.two_causes --split dev`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness import Row, median, row
from instep import Episode, Scene, open_world
from instep.core.errors import BadInput, Diverged
from instep.core.statistics import wilson
from instep.core.world import Array, Simulator
from instep.diagnose.candidates import Candidate, candidate_causes
from instep.diagnose.diagnosis import AttributionOptions, attribute, diagnose_gap
from instep.gap.measure import prepared_for
from tuning.planted_arms import NOISE, Arm, random_arm, record, robot_files, shipped_arms

Split = Literal["dev", "held-out"]
FIRST_SEED: dict[Split, int] = {"dev": 0, "held-out": 1000}
"""Methods are developed on one set of seeds and judged on the other."""
MIN_PLANTED_SHARE = 0.2
"""Each planted cause explains at least this share of the gap."""
RUNS, SECONDS = 4, 6.0
SIZES = (1.0, 0.6, 0.35)
"""Sizes of the motion that are tried until the arm can be replayed."""
ATTEMPTS = 12
"""Pairs of causes that are planted until both explain enough."""
LEFT_OUT = ("time step", "contact friction")
"""Candidates that are not planted: arms are simulated finely enough, and nothing touches."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """An arm with two causes planted, and recordings of it."""

    name: str
    scene: Scene
    runs: Sequence[Episode]
    shares: Mapping[str, float]
    """Each planted cause and the share of the gap that it explains."""


def rows(quick: bool = False) -> list[Row]:
    """How often both causes of the held-out seeds are ranked first, and how long that takes."""
    found = measured("held-out", range(6 if quick else 40))
    hits = wilson(sum(hit for hit, _ in found), len(found))
    took = [seconds for _, seconds in found]
    return [
        row("two planted causes ranked first and second", hits, at_least=0.8),
        row("time of a diagnosis with two causes", median(took, "s"), at_most=60.0),
    ]


def measured(split: Split, numbers: Sequence[int], only: str = "") -> list[tuple[bool, float]]:
    """Whether both planted causes came first in each case, and how long it took [s]."""
    found: list[tuple[bool, float]] = []
    # Arms with sixteen joints take minutes, and two arms say no more than one.
    named = [arm for arm in robot_files() + shipped_arms() if "bimanual" not in arm.name]
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            seed = FIRST_SEED[split] + number
            # Every other arm is made at random, with servos and with motors in turn.
            made = seed + number // 2 % 2
            arm = named[number // 2 % len(named)] if number % 2 and named else random_arm(made, Path(folder))
            if only not in arm.name:
                continue
            try:
                case = planted_case(arm, seed)
            except BadInput as error:
                print(f"skipped {arm.name}, seed {seed}: {error}", file=sys.stderr, flush=True)
                continue
            found.append(diagnosed(case))
    return found


def diagnosed(case: Case) -> tuple[bool, float]:
    """Whether the two planted causes come first, and how long the diagnosis took [s]."""
    began = time.perf_counter()
    found = diagnose_gap(case.scene, case.runs)
    took = time.perf_counter() - began
    ranked = sorted(found.causes, key=lambda name: -found.causes[name].value)
    hit = set(ranked[:2]) == set(case.shares)
    planted = ", ".join(f"{name} {share:.0%}" for name, share in case.shares.items())
    named = ", ".join(f"{name} {found.causes[name].value:.0%}" for name in ranked)
    words = [f"{'both' if hit else 'MISSED'} {case.name}: planted {planted}; found {named}.", *found.ties]
    print(*words, f"{took:.0f} s", file=sys.stderr, flush=True)
    return hit, took


def planted_case(arm: Arm, seed: int) -> Case:
    """Plant two causes of which each explains enough of the gap; raises `BadInput` where none were found."""
    scene, rng = Scene.load(arm.scene), np.random.default_rng((seed, 0x2CA))
    sim, candidates = candidate_causes(scene, open_world(scene))
    known = {c.cause: c for c in candidates if c.cause not in LEFT_OUT}
    pairs = list(combinations(sorted(known), 2))
    for _ in range(ATTEMPTS):
        pair = pairs[int(rng.integers(len(pairs)))]
        used = used_torque(scene, seed)
        truth = {cause: planted_settings(known[cause], rng, used) for cause in pair}
        for size in SIZES:
            try:
                runs = recorded(
                    scene, sim.tuned({k: v for part in truth.values() for k, v in part.items()}), seed, size
                )
            except Diverged:
                continue
            ready = prepared_for(sim, scene, runs).episodes
            found = attribute(sim, ready, truth, options=AttributionOptions(every=0.5))
            if not np.isfinite(found.before) or found.after > 0.3 * found.before:
                continue
            shares = {name: share.value for name, share in found.shares.items()}
            if min(shares.values()) >= MIN_PLANTED_SHARE:
                return Case(f"{arm.name}, seed {seed}", scene, runs, shares)
            break
    raise BadInput("no two causes of this arm explain a fifth of the gap each")


def planted_settings(one: Candidate, rng: np.random.Generator, used: Mapping[str, float]) -> dict[str, Any]:
    """Settings of a cause, every joint with its own value."""
    each, size = rng.uniform(0.5, 1.5, len(one.coordinates)), rng.uniform(0.3, 1.0)
    x: Array
    if one.cause == "joint damping":
        x = float(rng.choice([-0.6, 1.2])) * size * each
    elif one.cause == "gains":
        x = float(rng.choice([-0.6, 0.5])) * size * each
    elif one.cause == "payload":
        x = np.array([rng.uniform(0.2, 0.7), 0.0] if rng.uniform() < 0.5 else [0.0, rng.uniform(0.1, 0.5)])
    elif one.cause == "latency":
        x = np.array([rng.uniform(0.012, 0.06)])
    elif one.cause == "actuator limits":
        needed = np.array([used.get(joint, 1.0) for joint in one.coordinates])
        x = -np.log(np.clip(needed * 0.55 * each**0.5, 0.02, 1.0))
    else:
        x = {"dry friction": 0.04, "backlash": 0.06}[one.cause] * size * each
    return dict(one.at(np.clip(x, one.low, one.high)))


def used_torque(scene: Scene, seed: int) -> dict[str, float]:
    """Share of each servo's torque limit that a motion needs, where a joint has one."""
    model = scene.model
    try:
        q, actions = record(scene, open_world(scene), [100 * seed], 0.6, seconds=3.0)
    except Diverged:
        return {}
    v = np.gradient(q[0], scene.dt, axis=0)
    found: dict[str, float] = {}
    for a in range(model.nu):
        if model.actuator_trntype[a]:
            continue
        joint, gain, bias = int(model.actuator_trnid[a, 0]), model.actuator_gainprm[a, 0], model.actuator_biasprm[a]
        at, dof = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
        force = gain * actions[0][:, a] + bias[1] * q[0][:, at] + bias[2] * v[:, dof]
        limited = model.actuator_forcelimited[a]
        limit = np.abs(model.actuator_forcerange[a]).max() if limited else 0.3 * abs(gain)
        found[model.joint(joint).name] = float(np.quantile(np.abs(force), 0.95) / limit)
    return found


def recorded(scene: Scene, real: Simulator, seed: int, size: float) -> list[Episode]:
    """Noisy positions and commands of runs, as a user has them."""
    q, actions = record(scene, real, [100 * seed + k for k in range(RUNS)], size, seconds=SECONDS)
    rng, measured_q = np.random.default_rng((seed, 0x402)), scene.spec.observation["observation.state"]
    noise = np.array([NOISE[unit] for unit in measured_q.units])
    own = replace(scene.spec, q=measured_q, v=scene.spec.observation["observation.velocity"], observation={})
    t = np.arange(q.shape[1]) * scene.dt
    seen = q[..., scene.reader.robot_q]
    seen = seen + noise * rng.standard_normal(seen.shape)
    return [Episode(own, {"timestamp": t, "q": x, "action": u}) for x, u in zip(seen, actions, strict=True)]


def main() -> None:
    """Diagnose some cases and print each."""
    parser = argparse.ArgumentParser(description="Two causes planted at once")
    parser.add_argument("--split", choices=list(FIRST_SEED), default="dev")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--only", default="", help="part of the name of an arm")
    args = parser.parse_args()
    found = measured(args.split, range(args.first, args.first + args.cases), args.only)
    print(f"both ranked first in {sum(hit for hit, _ in found)} of {len(found)}")


if __name__ == "__main__":
    main()
