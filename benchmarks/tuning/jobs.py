"""Tasks that `python -m benchmarks tune` runs in processes of their own: a fit, a posterior, a design, a machine."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from instep import Scene, open_world
from instep.core.param import Belief, Box, Param
from instep.core.world import Array, Simulator
from instep.tune.excitation import ExcitationDesign, ExciteOptions, chirp, energy, evaluate_motion, excite
from instep.tune.excitation_limits import MotionLimits, driven_joint_limits
from instep.tune.fit.identifiability import assess_fit
from instep.tune.fit.shooting import Fit, ShootingOptions, fit
from instep.tune.posterior.beliefs import GaussianBelief, MixtureBelief, widened
from instep.tune.posterior.inference import Method, infer, laplace

from .known_worlds import Bed, bed, pendulum, servo
from .peers import c2st_score


def recovered(name: str, seed: int) -> list[bool]:
    """Whether each parameter's truth lies inside its 90 % interval, on recordings of their own."""
    with tempfile.TemporaryDirectory() as folder:
        place = bed(name, Path(folder))
        truth = place.truth(seed)
        found = fit(place.sim, place.record(truth, [3 * seed, 3 * seed + 1]), place.params, place.options)
    intervals = {address: found.interval(address, 0.9) for address in truth}
    return [intervals[address].low <= value <= intervals[address].high for address, value in truth.items()]


def ranked(method: Method, seed: int, draws: int = 400) -> Array:
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


def quality(name: str, sims: int) -> tuple[int, float]:
    """The simulations spent, and how well a classifier separates a posterior from the exact one."""
    with tempfile.TemporaryDirectory() as folder:
        return sims, c2st_score(*fitted(Path(folder), 0), name, sims)


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
            found = fit(sim, place.record({}, [0, 1]), sim.scene.params(*names), ShootingOptions(window=0.5, starts=1))
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


def machine(number: int, episodes: int) -> tuple[float, float]:
    """How far success rates under the posterior and under hand ranges are from a machine in another engine."""
    with tempfile.TemporaryDirectory() as folder:
        return compared(bed("pendulum", Path(folder)), number, episodes)


STEPS, CLOSE = 60, 0.12
"""Control steps of an episode; how near the rod must stay in the last ten of them [rad]."""


def compared(bed: Bed, machine: int, episodes: int) -> tuple[float, float]:
    """How far success rates under the posterior and under hand ranges are from that of a machine.

    The machine is the same scene in another engine, with other params, so the model is wrong in more than its params.
    """
    hand = Box(tuple(Param(k.address, v / 3, v * 3, True) for k, v in zip(bed.params, bed.start.values(), strict=True)))
    truth = bed.truth(1000 + machine)
    real = open_world(bed.sim.scene, "rapier")
    found = fit(bed.sim, bed.record(truth, [2 * machine, 2 * machine + 1], real), bed.params, bed.options)
    # Twice as wide as the posterior, with a small share of the prior for what nobody thought of.
    belief = MixtureBelief(widened(laplace(found), 2.0), hand, 0.05)
    succeeded = rate(real.tuned(truth), bed, episodes)
    near, far = (abs(rate(bed.sim.tuned(_drawn(b, episodes)), bed, episodes) - succeeded) for b in (belief, hand))
    return near, far


def _drawn(belief: Belief, episodes: int) -> dict[str, Array]:
    """One draw per start, the same for all machines, so that beliefs and not luck make the difference."""
    draws = [belief.sample(1, np.random.default_rng((seed, 0xD12A))) for seed in range(episodes)]
    return {name: np.array([float(draw[name][0]) for draw in draws]) for name in draws[0]}


def rate(world: Simulator, bed: Bed, episodes: int) -> float:
    """Share of starts from which a policy that leads its goal by the nominal sag brings the rod to rest there."""
    goals = np.random.default_rng(7).uniform(0.4, 1.4, episodes)
    # The policy knows the nominal weight and stiffness, not the machine's.
    command = goals + 0.4 * 9.81 * 0.15 * np.sin(goals) / bed.start["actuator.hinge.kp"]
    begin = bed.sim.reset(0)
    state = world.place(np.tile(begin.q, (episodes, 1)), np.tile(begin.v, (episodes, 1)))
    missed = np.zeros(episodes, bool)
    for step in range(STEPS):
        state = world.step(state, command[:, None])
        if step >= STEPS - 10:
            missed |= np.abs(state.q[:, 0] - goals) > CLOSE
    return float((~missed).mean())
