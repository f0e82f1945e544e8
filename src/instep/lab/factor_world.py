"""Parameters that are searched as factors on whole groups: the stiffness of all servos, the mass of all bodies.

The address `factor:actuator.*.kp` is a factor on every parameter of the scene that matches the pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from instep.core.param import Param
from instep.core.world import Array, Settings, State
from instep.scene import address
from instep.scene.folder import AroundSimulator, Scene, SceneSimulator

FACTOR = "factor:"
"""Beginning of the address of a factor; the pattern of what it multiplies follows."""
WALK_FACTORS = {
    "actuator.*.kp": 1.6,
    "actuator.*.kv": 1.6,
    "body.*.mass": 1.4,
    "geom.*.friction": 1.6,
    "joint.*.damping": 2.0,
    "joint.*.frictionloss": 2.0,
    "joint.*.armature": 1.5,
}
"""What a robot that walks is thought to be off by at most, where nothing of it is known."""
WALK_DELAY_S = (0.0, 0.03)
"""Delays of commands of a robot that walks, where nothing is known [s]."""


def walk_ranges(scene: Scene) -> list[Param]:
    """Ranges by hand of what matters to a robot that walks: factors on groups of parameters, and a delay."""
    known = address.addresses(scene.model)
    some = [(pattern, most) for pattern, most in WALK_FACTORS.items() if _positive(scene, pattern, known)]
    factors = [Param(FACTOR + pattern, 1 / most, most, True, "1") for pattern, most in some]
    return [*factors, Param(address.DELAY, *WALK_DELAY_S, False, "s")]


def expanded(scene: Scene, settings: Settings) -> dict[str, float | Array]:
    """Settings with every factor replaced by the parameters that it multiplies."""
    known, out = address.addresses(scene.model), dict[str, float | Array]()
    for name, value in settings.items():
        if not name.startswith(FACTOR):
            out[name] = value
            continue
        for one, own in _positive(scene, name.removeprefix(FACTOR), known).items():
            out[one] = own * np.asarray(value, float) if np.ndim(value) else own * float(value)
    return out


def _positive(scene: Scene, pattern: str, known: Sequence[str]) -> dict[str, float]:
    matching = [name for name in known if fnmatchcase(name, pattern)]
    return {k: v for k, v in (address.read(scene.model, matching) if matching else {}).items() if v > 0}


class FactorWorld(AroundSimulator[SceneSimulator]):
    """A simulator that also takes factors as parameters; a Simulator like any other."""

    def __init__(self, world: SceneSimulator):
        self.world = world

    def step(self, state: State, action: Array) -> State:
        """One control period later."""
        return self.world.step(state, action)

    def tuned(self, settings: Settings) -> FactorWorld:
        """The same with parameters set, factors among them."""
        return FactorWorld(self.world.tuned(expanded(self.scene, settings)))
