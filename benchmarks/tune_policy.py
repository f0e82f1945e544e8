"""A policy whose success depends on physics: a rod must settle at a height, on machines that hide their parameters."""

from __future__ import annotations

import numpy as np

from instep.core.param import Belief, Box, Param
from instep.core.world import Array, Simulator
from instep.physics.open_world import open_world
from instep.tune.fit import fit
from instep.tune.posterior import laplace
from instep.tune.randomize import MixtureBelief, widened
from tune_worlds import Bed

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
