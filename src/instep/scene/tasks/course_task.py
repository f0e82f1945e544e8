"""The task of a wheeled robot: drive through gates in order."""

from __future__ import annotations

import numpy as np

from instep.core import counter_rng
from instep.core.records import array_dataclass
from instep.core.world import Array, Channel, State, vector
from instep.scene.folder import Scene
from instep.scene.model import free_bodies

GATES = np.array([[0.5, 0.3], [0.7, -0.3], [0.1, -0.6], [-0.6, -0.3], [-0.5, 0.5], [0.1, 0.7]])
"""Nominal positions of the gates, before each is moved at random [m]."""
SHOWN = vector(["gate.x", "gate.y", "after.x", "after.y"], "m")
"""Goal channel: the next gate and the one after it."""


@array_dataclass
class Course:
    """Drive through six gates in order."""

    name: str
    body: int
    """Index in q of the pose of the robot."""
    width: float = 0.06
    """How near the middle of a gate counts [m]."""
    shift: float = 0.1
    """How far a gate is moved at random [m]."""
    text: str = "Drive through the gates in order."
    seconds: float = 25.0
    dwell: float = 0.0
    events: tuple[str, ...] = tuple(f"gate {i + 1}" for i in range(len(GATES)))
    failures: tuple[str, ...] = ("left the course", "tipped over")
    goal_channel: Channel = SHOWN
    error_unit: str = "m"

    @classmethod
    def of(cls, scene: Scene, name: str) -> Course:
        """The course for the first object of a scene, a robot on wheels."""
        return cls(name, free_bodies(scene.model)[scene.objects[0]])

    def sample_goal(self, seed: int) -> Array:
        """The gates, one after the other."""
        moved = self.shift * (2 * counter_rng.uniform(counter_rng.key(seed, "gates"), GATES.size) - 1)
        return GATES.reshape(-1) + moved

    def observed_goal(self, state: State, goal: Array, reached: Array) -> Array:
        """The next gate and the one after it."""
        gates = goal.reshape(*goal.shape[:-1], -1, 2)
        count = np.minimum(reached.sum(axis=-1), len(GATES) - 1)
        after = np.minimum(count + 1, len(GATES) - 1)
        pick = np.stack([count, after], axis=-1)[..., None]
        return np.take_along_axis(gates, pick, axis=-2).reshape(*goal.shape[:-1], 4)

    def conditions(self, state: State, goal: Array) -> Array:
        """Whether the robot is in each gate."""
        gates = goal.reshape(*goal.shape[:-1], -1, 2)
        here = state.q[..., self.body : self.body + 2]
        return np.linalg.norm(gates - here[..., None, :], axis=-1) < self.width

    def failed(self, state: State, goal: Array) -> Array:
        """Whether the robot is far from all gates, or lies on its side."""
        q = state.q[..., self.body : self.body + 7]
        upright = 1 - 2 * (q[..., 4] ** 2 + q[..., 5] ** 2)
        return np.stack([np.hypot(q[..., 0], q[..., 1]) > 1.5, upright < 0.7], axis=-1)

    def error(self, state: State, goal: Array, reached: Array) -> Array:
        """Distance of the robot from the middle of the next gate [m]."""
        gate = self.observed_goal(state, goal, reached)[..., :2]
        return np.linalg.norm(gate - state.q[..., self.body : self.body + 2], axis=-1)

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """The share of the gates that were passed."""
        return reached.mean(axis=-1)
