"""A world of your own, and the laws that say whether everything in instep will work with it."""

import numpy as np

from instep import Spec, State
from instep.core.rollout import checked_action
from instep.core.world import vector
from instep.testing import WORLD_LAWS

JOINT = ("cart",)


class Cart:
    """A cart of 1 kg on a rail, pushed by a force."""

    spec = Spec(
        0.02, vector(JOINT, "m"), vector(JOINT, "m/s"), vector(JOINT, "N"), {"observation.state": vector(JOINT, "m")}
    )

    def reset(self, seed: int = 0) -> State:
        return State(0.0, np.random.default_rng(seed).uniform(-1, 1, 1), np.zeros(1))

    def step(self, state: State, action: np.ndarray) -> State:
        force = checked_action(action, self.spec, state.batch)  # refuses wrong sizes and NaN
        v = state.v + force * self.spec.dt
        return State(state.t + self.spec.dt, state.q + v * self.spec.dt, v)

    def observe(self, state: State):
        return {"observation.state": state.q}


for law in WORLD_LAWS:
    law(Cart())
    print("keeps the law:", law.__name__.replace("_", " "))
