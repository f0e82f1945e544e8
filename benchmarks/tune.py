"""Identification: planted true values recovered, posteriors calibrated, speed against peers, excitation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from harness import Row, Task, pool, row
from instep import Scene, open_world
from instep.core.statistics import wilson
from instep.core.world import Array
from instep.tune.excitation import ExcitationDesign, ExciteOptions, chirp, energy, evaluate_motion, excite
from instep.tune.excitation_limits import MotionLimits, driven_joint_limits
from instep.tune.fit.shooting import Fit, ShootingOptions, fit
from instep.tune.fit.uncertainty import assess_fit
from instep.tune.posterior.beliefs import GaussianBelief, infer
from instep.tune.posterior.posterior_checks import RankCalibration
from tuning.known_worlds import Bed, bed, pendulum, servo
from tuning.peers import timed


def recovered(name: str, seed: int) -> list[bool]:
    """Whether each parameter's truth lies inside its 90 % interval, on recordings of their own."""
    with tempfile.TemporaryDirectory() as folder:
        place = bed(name, Path(folder))
        truth = place.truth(seed)
        found = fit(place.sim, place.record(truth, [3 * seed, 3 * seed + 1]), place.params, place.options)
    intervals = {address: found.interval(address, 0.9) for address in truth}
    return [intervals[address].low <= value <= intervals[address].high for address, value in truth.items()]


def ranked(method: str, seed: int, draws: int = 400) -> Array:
    """Where a truth falls within the posterior of its own recordings [1, params]; a network answers for many truths."""
    with tempfile.TemporaryDirectory() as folder:
        place, found = fitted(Path(folder), seed)
        belief = infer(found, method, seed=seed)
    if method == "npe":
        return np.asarray(getattr(belief, "ranks", None))
    rng = np.random.default_rng((seed, 0x4A2))
    points = belief.draw(draws, rng) if isinstance(belief, GaussianBelief) else belief.points
    truth = place.truth(seed)
    x = np.array([float(param.to_unit(truth[param.address])) for param in place.params])
    return (points < x).mean(axis=0)[None]


def fitted(folder: Path, seed: int) -> tuple[Bed, Fit]:
    """The small servo, and a fit of two recordings of it."""
    place = bed("pendulum", folder)
    return place, fit(
        place.sim, place.record(place.truth(seed), [3 * seed, 3 * seed + 1]), place.params, place.options
    )  # fmt: skip


def named() -> tuple[int, int]:
    """Of how many planted sets that no recording identifies separately the right number was named and frozen."""
    with tempfile.TemporaryDirectory() as folder:
        light = servo(Path(folder) / "light", weightless=True)
        heavy = pendulum(Path(folder) / "heavy")
        cases = [
            (light, ("joint.hinge.armature", "actuator.hinge.kp", "joint.hinge.damping", "actuator.hinge.kv"), 2),
            (heavy.sim, ("joint.hinge.armature", "body.link.inertia_y"), 1),
            (heavy.sim, ("joint.hinge.damping", "joint.other.damping"), 1),
        ]
        good = 0
        for sim, names, frozen in cases:
            place = replace(heavy, sim=sim, joints=("hinge",))
            found = fit(sim, place.record({}, [0, 1]), sim.scene.params(*names), ShootingOptions(window=0.5, guesses=1))
            weak = assess_fit(found)
            wrong = "joint.other.damping" in names and "joint.hinge.damping" in weak.unidentifiable
            good += len(weak.unidentifiable) == frozen and len(weak.weak) == frozen and not wrong
    return good, len(cases)


def designed(generations: int) -> tuple[ExcitationDesign, dict[float, ExcitationDesign]]:
    """A motion of arm7 for six masses, and chirps of the same energy up to several frequencies."""
    scene = Scene.load("arm7")
    sim = open_world(scene, threads=max(1, (os.cpu_count() or 2) // 4))
    options = ExciteOptions(seconds=4.0, noise=1e-4, generations=generations, energy_weight=1.0, allowed=MotionLimits())
    limits = driven_joint_limits(scene, options.allowed)
    params = scene.params(*[f"body.link_{i}.mass" for i in range(2, 8)])
    design = excite(sim, limits, params, options)
    spent, steps = energy(limits, design.actions), len(design.actions)
    tops = (4.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5)
    return design, {
        top: evaluate_motion(sim, limits, params, chirp(limits, steps, energy=spent, highest=top), options)
        for top in tops
    }


Rows = list[Row]
BEDS = ("pusht", "arm7", "pendulum")
TRUTHS = {"laplace": 200, "eki": 100, "svgd": 100, "npe": 1}


def run(out: Path, quick: bool = False) -> Rows:
    """What is timed, alone, then all other parts side by side."""
    rows = timed(quick)
    with pool() as submit:
        waiting = [(make_rows, [submit(task) for task in tasks(quick)]) for tasks, make_rows in PARTS]
        for make_rows, futures in waiting:
            rows += make_rows([future.result() for future in futures])
    return rows


def _recovery_tasks(quick: bool) -> list[Task]:
    return [(recovered, (name, seed)) for name in BEDS for seed in range(2 if quick else 50)]


def _recovery_rows(results: list[list[bool]]) -> Rows:
    """Each parameter's truth inside its 90 % interval, the worst parameter of each world."""
    rows: Rows = []
    draws = len(results) // len(BEDS)
    with TemporaryDirectory() as folder:
        for i, name in enumerate(BEDS):
            inside = np.array(results[i * draws : (i + 1) * draws])
            params = bed(name, Path(folder)).params
            worst = int(np.argmin(inside.sum(axis=0)))
            share = wilson(int(inside[:, worst].sum()), draws)
            least = f"worst of {len(params)} parameters ({params[worst].address})"
            rows.append(row(f"{name}: true values inside 90 % intervals, {least}", share, at_least=0.85))
    return rows


def _rank_tasks(quick: bool) -> list[Task]:
    return [(ranked, (method, seed)) for method, n in TRUTHS.items() for seed in range(min(n, 3) if quick else n)]


def _rank_rows(results: list[np.ndarray]) -> Rows:
    """Coverage of truths by posteriors of their own recordings, and uniformity of their ranks, method by method."""
    rows: Rows = []
    quick = len(results) < sum(TRUTHS.values())
    at = 0
    for method, n in TRUTHS.items():
        count = min(n, 3) if quick else n
        ranks = np.concatenate(results[at : at + count])
        at += count
        checked = RankCalibration(("damping", "armature", "kp"), ranks)
        for level in (0.5, 0.9):
            # Parameters of one truth are not independent, so the interval counts truths.
            inside = checked.coverage(level).value
            share = replace(wilson(round(inside * len(ranks)), len(ranks)), value=inside)
            good = None if level < 0.9 else 0.85 <= inside <= 0.95
            name = f"{method}: true values inside the {level:.0%} interval ({len(ranks)} cases)"
            rows.append(row(name, share, at_least=0.9 if level == 0.9 else None, ok=good))
        p = min(checked.uniformity.values())
        rows.append(row(f"{method}: ranks uniform, smallest p of 3 parameters", p))
    return rows


def _named_rows(results: list[tuple[int, int]]) -> Rows:
    good, cases = results[0]
    name = "planted unidentifiable sets reported, with the fewest parameters held"
    return [row(name, wilson(good, cases), at_least=1.0, ok=good == cases)]


def _design_rows(results: list[Any]) -> Rows:
    """The smallest Fisher eigenvalue of a designed motion over that of the best chirp of equal energy within limits."""
    design, chirps = results[0]
    kept = [param.address for param in design.params]
    sound = {top: sweep for top, sweep in chirps.items() if sweep.feasible}
    top = max(sound, key=lambda t: sound[t].smallest(kept)) if sound else float("nan")
    ratio = design.smallest(kept) / max(sound[top].smallest(kept), 1e-12) if sound else float("nan")
    name = (
        f"arm7: smallest eigenvalue of {len(kept)} masses over that of a chirp of equal energy (the best of "
        f"{len(sound)} within limits, to {top:g} Hz)"
    )
    used = max(design.limit_usage.values())
    return [
        row(name, ratio, "x", at_least=10.0, ok=ratio >= 10 and design.feasible),
        row("arm7: limits the design uses, largest share", used, at_most=1.0, ok=design.feasible),
    ]


PARTS: tuple[tuple[Callable[[bool], list[Task]], Callable[[list[Any]], Rows]], ...] = (
    (lambda quick: [(designed, (1 if quick else 2,))], _design_rows),
    (_recovery_tasks, _recovery_rows),
    (_rank_tasks, _rank_rows),
    (lambda quick: [(named, ())], _named_rows),
)
"""Tasks of each part, and what makes their rows. The longest come first, so that no core waits at the end."""
