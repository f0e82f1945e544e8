"""Motors that jump from one limit to the other between physics steps: a simulation that chatters, which no robot does.

A stiff, strongly damped servo at its limit overshoots within one step of the integrator, which then sees the opposite
limit. The motion that follows depends on values to many digits, so that fits end in one of many minima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.replay import aligned
from instep.core.world import Array, Simulator
from instep.physics.mujoco_world import MujocoWorld

from .gates import GatedFit, GateResult

_ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT)
MAX_CHATTER = 1e-3
"""Share of the physics steps in which a motor may jump from one limit to the other."""


def chattering(sim: Simulator, episodes: Sequence[Episode]) -> dict[str, float]:
    """The motors that chatter in a replay of recordings, and in which share of the physics steps; the worst first.

    Empty for engines that do not report the forces of motors; from where a replay diverges on, nothing counts.
    """
    if not isinstance(sim, MujocoWorld):
        return {}
    jumps, steps = np.zeros(sim.model.nu), 0
    for episode in episodes:
        run = aligned(episode, sim)
        begin = sim.place(run.q[:1], run.v[:1], 0.0, run.past[:1])
        force = sim.physics_steps(begin, run.action[:-1, None, : sim.model.nu]).actuator[0]
        steps += len(force)
        jumps += _jumps(sim, force)
    shares = jumps / max(1, steps)
    worst = [int(a) for a in np.argsort(-shares) if shares[a] > MAX_CHATTER]
    return {str(sim.model.actuator(a).name): float(shares[a]) for a in worst}


def with_chatter(result: GatedFit, sim: Simulator, episodes: Sequence[Episode]) -> GatedFit:
    """The result whose solve gate names motors that chatter in recordings, and what to do where it is not passed."""
    shares = chattering(sim, episodes)
    if not shares:
        return result
    some = ", ".join(f"{name} in {share:.1%}" for name, share in list(shares.items())[:3])
    more = f" and {len(shares) - 3} more" if len(shares) > 3 else ""
    words = (
        f" Motors jump from one limit to the other between physics steps ({some}{more} of the steps): there the "
        "simulation chatters, as no robot does, and its motion depends on values to many digits."
    )
    advice = "Record smaller or slower motion, which the motors can follow, or soften the scene's servos (kp, kv)."

    def noted(gate: GateResult) -> GateResult:
        remedy = gate.remedy if gate.passed else f"{advice} {gate.remedy}".strip()
        return replace(gate, message=gate.message + words, remedy=remedy) if gate.name == "solve" else gate

    return replace(result, gates=tuple(noted(gate) for gate in result.gates))


def _jumps(sim: MujocoWorld, force: Array) -> Array:
    """How often each motor is at one limit, its own or that of its joint, after it was at the other [nu]."""
    low, high = _limits(sim.model)
    side = (force >= high).astype(int) - (force <= low).astype(int)
    return (side[1:] * side[:-1] < 0).sum(axis=0)


def _limits(model: mujoco.MjModel) -> tuple[Array, Array]:
    """Least and largest force of each actuator, by its own limit and by that of the joint it drives [nu]."""
    low, high = np.where(model.actuator_forcelimited[:, None], model.actuator_forcerange, (-np.inf, np.inf)).T
    for a in np.flatnonzero(model.actuator_trntype == _ON_JOINT):
        joint, gear = int(model.actuator_trnid[a, 0]), float(model.actuator_gear[a, 0])
        if model.jnt_actfrclimited[joint] and gear != 0:
            own = sorted(model.jnt_actfrcrange[joint] / gear)
            low[a], high[a] = max(low[a], own[0]), min(high[a], own[1])
    return low, high
