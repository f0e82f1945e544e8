"""Closing the gap: planted truths recovered, posteriors calibrated, speed against peers, excitation, randomisation.

Each part runs alone too: `python benchmarks/tune.py recovery speed`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep import Scene
from instep.core.stats import Estimate, bootstrap, wilson
from instep.tune.calibrate import Calibration, calibration
from instep.tune.excite import ExciteOptions, chirp, energy, excite, judged
from instep.tune.excite_limits import Allowed, limits_of
from instep.tune.fit import Fit, FitOptions, fit
from instep.tune.identify import identifiability
from instep.tune.infer import Method, infer
from tune_peers import against_sysid, c2st_rows, meshed_arm, raw_rate
from tune_worlds import Bed, arm7, pendulum, pusht, servo

Rows = list[dict[str, Any]]


def run(out: Path, quick: bool = False) -> Rows:
    """All parts in turn; what is done is kept in parts.json."""
    rows: Rows = []
    for name, part in PARTS.items():
        began = time.perf_counter()
        rows += part(quick)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        (out / "parts.json").write_text(json.dumps(rows, indent=1))
    return rows


def recovery(quick: bool) -> Rows:
    """Each knob's truth inside its 90 % interval, the worst knob of each world."""
    draws = 4 if quick else 50
    with tempfile.TemporaryDirectory() as folder:
        return [_recovered(bed, draws) for bed in (pendulum(Path(folder)), arm7(), pusht())]


def _recovered(bed: Bed, draws: int) -> dict[str, Any]:
    inside = np.zeros((draws, len(bed.knobs)), bool)
    for seed in range(draws):
        truth = bed.truth(seed)
        found = fit(bed.sim, bed.record(truth, [3 * seed, 3 * seed + 1]), bed.knobs, bed.options)
        for i, (name, value) in enumerate(truth.items()):
            interval = found.interval(name, 0.9)
            inside[seed, i] = interval.low <= value <= interval.high
    worst = int(np.argmin(inside.sum(axis=0)))
    share = wilson(int(inside[:, worst].sum()), draws)
    name = f"{bed.name}: truths inside 90 % intervals, worst of {len(bed.knobs)} knobs ({bed.knobs[worst].address})"
    return _row(name, share, goal=0.85, ok=share.value >= 0.85)


def calibrated(quick: bool) -> Rows:
    """Coverage of planted truths and uniformity of their ranks, one line per posterior method."""
    rows: Rows = []
    truths: dict[Method, int] = {"laplace": 30, "eki": 20, "svgd": 8, "npe": 0}
    with tempfile.TemporaryDirectory() as folder:
        bed, found = _fitted(Path(folder))
        for method, count in truths.items():
            checked = _ranks(found, method, min(count, 3) if quick else count)
            for level in (0.5, 0.9):
                share = checked.coverage(level)
                good = None if level < 0.9 else share.low <= 0.9 <= share.high
                name = f"{method}: truths inside the {level:.0%} interval ({len(checked.ranks)} truths)"
                rows.append(_row(name, share, goal=0.9 if level == 0.9 else None, ok=good))
            p = min(checked.uniformity.values())
            rows.append(_row(f"{method}: ranks uniform, smallest p of {len(bed.knobs)} knobs", _plain(p)))
    return rows


def _ranks(found: Fit, method: Method, truths: int) -> Calibration:
    if method == "npe":
        belief = infer(found, "npe")
        ranks = getattr(belief, "ranks", None)
        return Calibration(tuple(k.address for k in found.knobs), np.asarray(ranks))
    return calibration(found, lambda fit, number: infer(fit, method, seed=number), truths)


def _fitted(folder: Path) -> tuple[Bed, Fit]:
    bed = pendulum(folder)
    return bed, fit(bed.sim, bed.record(bed.truth(0), [0, 1]), bed.knobs, bed.options)


def quality(quick: bool) -> Rows:
    """How far posteriors at 1,000 simulations are from the exact one, by a classifier: 0.5 cannot be told apart."""
    with tempfile.TemporaryDirectory() as folder:
        bed, found = _fitted(Path(folder))
        return c2st_rows(bed, found, 200 if quick else 1000)


def blind(quick: bool) -> Rows:
    """Planted pairs that no recording can tell apart, and knobs without effect, are named."""
    with tempfile.TemporaryDirectory() as folder:
        light = servo(Path(folder) / "light", weightless=True)
        heavy = pendulum(Path(folder) / "heavy")
        cases = [
            (light, ("joint.hinge.armature", "actuator.hinge.kp", "joint.hinge.damping", "actuator.hinge.kv"), 2),
            (heavy.sim, ("joint.hinge.armature", "body.link.inertia_y"), 1),
            (heavy.sim, ("joint.hinge.damping", "joint.other.damping"), 1),
        ]
        named = 0
        for sim, names, frozen in cases:
            bed = replace(heavy, sim=sim, joints=("hinge",))
            found = fit(sim, bed.record({}, [0, 1]), sim.scene.knobs(*names), FitOptions(window=0.5, starts=1))
            weak = identifiability(found)
            named += (
                len(weak.frozen) == frozen
                and len(weak.weak) == frozen
                and "joint.hinge.damping" not in (weak.frozen if "joint.other.damping" in names else ())
            )
    share = wilson(named, len(cases))
    return [
        _row(
            "planted unidentifiable sets named, as many knobs frozen as are needed",
            share,
            goal=1.0,
            ok=named == len(cases),
        )
    ]


def speed(quick: bool) -> Rows:
    """A fit's wall time over that of its bare simulations, and over mujoco.sysid's to the same tolerance."""
    rows: Rows = []
    bed = arm7()
    episodes = bed.record(bed.truth(0), range(2 if quick else 6))
    options = replace(bed.options, limit=None)
    ratios: list[float] = []
    for _ in range(1 if quick else 2):
        found = fit(bed.sim, episodes, bed.knobs, options)
        span = found.windows.action.shape[1]
        steps = found.worlds * span * bed.sim.substeps
        ratios.append(found.seconds / (steps / raw_rate(bed.sim, 4 * len(found.windows), span)))
    ratio = float(np.median(ratios))
    name = "arm7: wall time of a fit over its simulations alone"
    rows.append(_row(name, Estimate(ratio, min(ratios), max(ratios), len(ratios), "x"), goal=1.3, ok=ratio <= 1.3))
    with tempfile.TemporaryDirectory() as folder:
        for label, meshes in (("plain arm", False), ("arm with meshes", True)):
            rows += against_sysid(
                label, meshed_arm(Path(folder) / label.replace(" ", "_"), meshes), repeats=1 if quick else 3
            )
    return rows


def excitation(quick: bool) -> Rows:
    """The smallest Fisher eigenvalue of a designed motion over that of a chirp of equal energy, arm7, within limits."""
    scene = Scene.load("arm7")
    sim = arm7().sim
    options = ExciteOptions(seconds=4.0, noise=1e-4, tones=3, generations=2 if quick else 6, allowed=Allowed())
    limits = limits_of(scene, options.allowed)
    masses = [f"body.link_{i}.mass" for i in range(2, 8)]
    knobs = scene.knobs(*masses)
    design = excite(sim, limits, knobs, options)
    spent = energy(limits, design.actions)
    # The chirp, too, keeps the limits of speed, acceleration and torque: it goes as high as they let it.
    for top in (4.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5):
        sweep = judged(sim, limits, knobs, chirp(limits, len(design.actions), energy=spent, highest=top), options)
        if max(share for name, share in sweep.used.items() if name != "touching") <= 1.0:
            break
    ratio = design.smallest() / max(sweep.smallest(design.reveals.kept), 1e-12)
    touch = "it touches the table" if sweep.used["touching"] else "it touches nothing"
    name = (
        f"arm7: smallest eigenvalue of {len(design.reveals.kept)} masses over that of a chirp of equal energy "
        f"(to {top:g} Hz; {touch})"
    )
    largest = max(design.used.values())
    return [
        _row(name, _plain(ratio, "x"), goal=10.0, ok=ratio >= 10 and design.within),
        _row("arm7: limits the design uses, largest share", _plain(largest), goal=1.0, ok=design.within),
    ]


def randomised(quick: bool) -> Rows:
    """Success of a policy under posterior draws and under hand ranges, against the machine itself, paired by start."""
    from tune_policy import compared

    with tempfile.TemporaryDirectory() as folder:
        gains, posterior, hand = compared(Path(folder), machines=2 if quick else 6, episodes=40 if quick else 150)
    gain = bootstrap(gains, unit="1")
    return [
        _row("success rate: distance to the machine under the posterior", bootstrap(posterior)),
        _row("success rate: distance to the machine under hand ranges", bootstrap(hand)),
        _row("success rate: hand ranges farther off than the posterior by", gain, goal=0.0, ok=gain.low > 0),
    ]


def _plain(value: float, unit: str = "") -> Estimate:
    return Estimate(float(value), float("nan"), float("nan"), 1, unit)


def _row(name: str, found: Estimate, *, goal: float | None = None, ok: bool | None = None) -> dict[str, Any]:
    low, high = (None, None) if np.isnan(found.low) else (found.low, found.high)
    return {"name": name, "value": found.value, "low": low, "high": high, "unit": found.unit, "goal": goal, "ok": ok}


PARTS: dict[str, Callable[[bool], Rows]] = {
    "recovery": recovery,
    "calibrated": calibrated,
    "quality": quality,
    "blind": blind,
    "speed": speed,
    "excitation": excitation,
    "randomised": randomised,
}

if __name__ == "__main__":
    for asked in [word for word in sys.argv[1:] if word != "--quick"]:
        for row in PARTS[asked]("--quick" in sys.argv):
            print(json.dumps(row))
