"""Attribution of the gap to causes: one cause planted out of eight, and none planted.

Causes are fitted jointly to training runs, as `instep gap` does; Shapley values are taken on held-out runs.
With nothing planted, no cause may be reported.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep import Episode, Scene, Script, open_world, rollout
from instep.core.statistics import Estimate, wilson
from instep.diagnose.candidates import candidate_causes
from instep.diagnose.cause_selection import identify_causes
from instep.diagnose.diagnosis import AttributionOptions, attribute
from small_models import diagnosed_arm, write_scene

CAUSES = ("joint damping", "dry friction", "gains", "payload", "time step", "latency", "backlash", "actuator limits")
NOISE, ROWS = 2e-4, 160


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Plant, identify, attribute, count."""
    seeds = 8 if quick else 40
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene.load(write_scene(Path(folder), diagnosed_arm(), ("shoulder", "elbow")))
        first = named = 0
        for seed in range(seeds):
            cause = CAUSES[seed % len(CAUSES)]
            found = owners(scene, seed, cause)
            best = max(found, key=lambda name: found[name].value)
            first += best == cause and found[best].value > 0
            named += found[cause].low > 0
        clean = 0
        for seed in range(seeds):
            found = owners(scene, 1000 + seed, None)
            clean += all(e.low <= 0 <= e.high for e in found.values())
    return [
        row("planted cause ranked first", wilson(first, seeds), at_least=0.95),
        row("planted cause's interval above zero", wilson(named, seeds)),
        row("nothing planted, no interval leaves out zero", wilson(clean, seeds), at_least=0.90),
    ]


def owners(scene: Scene, seed: int, cause: str | None) -> dict[str, Estimate]:
    """What each of the eight owns of the gap on held-out runs."""
    rng = np.random.default_rng((seed, 1))
    sim, candidates = candidate_causes(scene, open_world(scene))
    real = sim.tuned(_planted(cause, rng)) if cause else sim
    runs = [_record(real, rng, k) for k in range(10)]
    components = {c.candidate.cause: c.settings for c in identify_causes(sim, runs[:5], candidates).causes}
    nothing = dict.fromkeys(CAUSES, Estimate(0.0, 0.0, 0.0, 5, "1"))
    if not components:
        return nothing
    owned = attribute(sim, runs[5:], components, options=AttributionOptions(horizon=0.25, every=0.4))
    return {**nothing, **owned.causes}


def _planted(cause: str, rng: np.random.Generator) -> dict[str, Any]:
    f = rng.uniform(0.0, 1.0)
    joints = ("shoulder", "elbow")
    return {
        "joint damping": {f"joint.{j}.damping": d * (3 + 5 * f) for j, d in zip(joints, (0.25, 0.12), strict=True)},
        "dry friction": {f"joint.{j}.frictionloss": d * (0.6 + f) for j, d in zip(joints, (1.0, 0.5), strict=True)},
        "gains": {f"actuator.{j}.kp": k * (0.4 + 0.3 * f) for j, k in zip(joints, (30.0, 15.0), strict=True)},
        "payload": {f"body.{b}.mass": m * (1.4 + f) for b, m in zip(("upper", "fore"), (0.5, 0.3), strict=True)},
        "time step": {"option.timestep": 0.01 / (4 + int(6 * f))},
        "latency": {"action.delay": 0.02 + 0.07 * f},
        "backlash": {"action.backlash": (0.04 + 0.08 * f,) * 2},
        "actuator limits": {"action.torque": tuple((0.12 + 0.2 * f) * 0.3 * k for k in (30.0, 15.0))},
    }[cause]


def _record(world: Any, rng: np.random.Generator, seed: int) -> Episode:
    t = np.arange(ROWS) * 0.02
    waves = [(rng.uniform(0.15, 0.35, 2), rng.uniform(1.0, 9.0, 2), rng.uniform(0, 6.3, 2)) for _ in range(3)]
    commanded = sum(a * np.sin(w * t[:, None] + p) for a, w, p in waves)
    run = rollout(world, Script(commanded), steps=ROWS, seed=seed)
    q, v = run.q + rng.normal(0, NOISE, run.q.shape), run.v + rng.normal(0, 0.005, run.v.shape)
    return run.with_columns({"q": q, "v": v})
