"""Tasks of an arm without objects: reach a point, follow a moving point."""

from __future__ import annotations

import numpy as np

from instep.core import counter_rng
from instep.core.world import Array, Channel, State, array_dataclass, vector
from instep.scene.folder import Scene
from instep.scene.model import site_poses

GOAL_RANGE = 0.6
"""Share of each joint's range, around its middle, from which goals are sampled; the rest are folded poses."""
MIN_GOAL_HEIGHT_M = 0.03
"""Smallest height of a goal [m]: below is the base of the arm."""
POINT = vector(["target.x", "target.y", "target.z"], "m")
MOVING = vector([*POINT.labels, "target.vx", "target.vy", "target.vz"], ["m"] * 3 + ["m/s"] * 3)


@array_dataclass
class Reach:
    """Bring the tip of an arm to a point and hold it there."""

    name: str
    scene: Scene
    tolerance: float = 0.01
    """How near is near enough [m]."""
    text: str = "Bring the tip to the target and hold it there."
    seconds: float = 6.0
    dwell: float = 0.3
    events: tuple[str, ...] = ("near", "reached")
    failures: tuple[str, ...] = ()
    goal_channel: Channel = POINT
    error_unit: str = "m"

    def sample_goal(self, seed: int) -> Array:
        """A point the arm can reach: where its tip is in some pose."""
        return sampled_tip(self.scene, seed)

    def observed_goal(self, state: State, goal: Array, reached: Array) -> Array:
        """The point."""
        return np.array(goal)

    def conditions(self, state: State, goal: Array) -> Array:
        """Near: within 3 cm. Reached: within the tolerance."""
        away = self._away(state, goal)
        return np.stack([away < 0.03, away < self.tolerance], axis=-1)

    def failed(self, state: State, goal: Array) -> Array:
        """Nothing can go wrong for good."""
        return np.zeros((*state.batch, 0), bool)

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """1 at the point, 0 from 30 cm on."""
        return np.clip(1 - self._away(state, goal) / 0.3, 0, 1)

    def error(self, state: State, goal: Array, reached: Array) -> Array:
        """Distance of the tip from the point [m]."""
        return self._away(state, goal)

    def _away(self, state: State, goal: Array) -> Array:
        return np.linalg.norm(tip(self.scene, state.q) - goal, axis=-1)


@array_dataclass
class Track:
    """Keep the tip of an arm on a point that moves around a loop."""

    name: str
    scene: Scene
    tolerance: float = 0.03
    """How far off is lost [m]."""
    grace: float = 2.0
    """Seconds in which to catch up with the point [s]."""
    period: float = 6.0
    """Time of one round [s]."""
    radius: float = 0.05
    """Size of the loop [m]."""
    text: str = "Keep the tip on the moving target."
    seconds: float = 14.0
    dwell: float = 0.0
    events: tuple[str, ...] = ("caught up", "half a round", "one round", "two rounds")
    failures: tuple[str, ...] = ("lost the target",)
    goal_channel: Channel = MOVING
    error_unit: str = "m"

    def sample_goal(self, seed: int) -> Array:
        """The middle of the loop, the direction in which it leans, and where on it the point starts."""
        lean, phase = counter_rng.uniform(counter_rng.key(seed, "track"), 2)
        middle = np.array([0.24, 0.0, 0.12]) + 0.03 * (counter_rng.uniform(counter_rng.key(seed, "middle"), 3) - 0.5)
        return np.array([*middle, 2 * np.pi * lean, 2 * np.pi * phase])

    def observed_goal(self, state: State, goal: Array, reached: Array) -> Array:
        """Where the point is now, and how it moves."""
        return np.concatenate(self.target(state.t, goal), axis=-1)

    def target(self, t: float | Array, goal: Array) -> tuple[Array, Array]:
        """Place [m] and velocity [m/s] of the point at a time."""
        rate = 2 * np.pi / self.period
        angle, lean = goal[..., 4] + rate * t, goal[..., 3]
        side = np.stack([np.cos(lean), np.zeros_like(lean), np.sin(lean)], axis=-1)
        cross = np.broadcast_to(np.array([0.0, 1.0, 0.0]), side.shape)
        c, s = np.cos(angle)[..., None], np.sin(angle)[..., None]
        return goal[..., :3] + self.radius * (c * cross + s * side), self.radius * rate * (c * side - s * cross)

    def conditions(self, state: State, goal: Array) -> Array:
        """Caught up: near the point. Then so much time on it."""
        near = self._away(state, goal) < self.tolerance
        rounds = np.array([0.0, 0.5, 1.0, 2.0]) * self.period
        # The last step of an episode is a little before its end.
        late = np.asarray(state.t)[..., None] >= np.where(rounds > 0, self.grace + rounds, 0.0) - 0.05
        return near[..., None] & late

    def failed(self, state: State, goal: Array) -> Array:
        """Whether the tip is away from the point after the grace."""
        lost = (self._away(state, goal) > self.tolerance) & (state.t > self.grace)
        return np.asarray(lost)[..., None]

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """1 on the point, 0 from 10 cm on."""
        return np.clip(1 - self._away(state, goal) / 0.1, 0, 1)

    def error(self, state: State, goal: Array, reached: Array) -> Array:
        """Distance of the tip from the point [m]."""
        return self._away(state, goal)

    def _away(self, state: State, goal: Array) -> Array:
        return np.linalg.norm(tip(self.scene, state.q) - self.target(state.t, goal)[0], axis=-1)


def tip(scene: Scene, q: Array) -> Array:
    """Where the first tip of a scene is [..., 3]."""
    return site_poses(scene.model, q, scene.tips[:1])[..., 0, :3]


def sampled_tip(scene: Scene, seed: int) -> Array:
    """Where the tip is in a pose sampled from the middle of the joints' ranges, above the stand."""
    q, _ = scene.start(seed)
    model, key = scene.model, counter_rng.key(seed, "reach")
    ids = [model.joint(name).id for name in scene.robot]
    low, high = model.jnt_range[ids].T
    while True:
        key = counter_rng.next_key(key)
        share = 0.5 + GOAL_RANGE * (counter_rng.uniform(key, len(ids)) - 0.5)
        q[model.jnt_qposadr[ids]] = low + share * (high - low)
        point = tip(scene, q)
        if point[2] > MIN_GOAL_HEIGHT_M and np.hypot(point[0], point[1]) > 0.12:
            return point
