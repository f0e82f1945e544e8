"""Tasks that `python -m benchmarks tune` runs in processes of their own: a fit, a posterior, a design."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from instep import Scene, open_world
from instep.core.world import Array
from instep.tune.excitation import ExcitationDesign, ExciteOptions, chirp, energy, evaluate_motion, excite
from instep.tune.excitation_limits import MotionLimits, driven_joint_limits
from instep.tune.fit.shooting import Fit, ShootingOptions, fit
from instep.tune.fit.uncertainty import assess_fit
from instep.tune.posterior.beliefs import GaussianBelief, infer

from .known_worlds import Bed, bed, pendulum, servo


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
