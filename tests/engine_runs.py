"""Short runs of a simulator, for tests that compare engines."""

from __future__ import annotations

import numpy as np

from instep import State, stack
from instep.core.world import Array


def run(sim, state: State, seconds: float, action=()) -> tuple[Array, State]:
    """Positions of each step, and the last state."""
    rows = []
    for _ in range(round(seconds / sim.spec.dt)):
        state = sim.step(state, np.asarray(action, float))
        rows.append(state.q)
    return np.array(rows), state


def pushed(world, friction, steps: int) -> Array:
    """Positions in `pusht` after a push of the block along x; friction is one number, or an array of one per world."""
    sim = world("pusht").tuned({"geom.*.friction": friction})
    state = sim.reset(0)
    v = state.v.copy()
    v[2] = 0.5
    state = sim.place(state.q, v)
    state = stack([state] * len(friction)) if np.ndim(friction) else state
    for _ in range(steps):
        state = sim.step(state, np.broadcast_to(sim.scene.rest_action(), (*state.batch, sim.model.nu)))
    return state.q
