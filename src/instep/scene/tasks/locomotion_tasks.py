"""The task of a robot on legs: walk forward at a speed, and stay upright while it is pushed.

The task of a wheeled robot: drive through gates in order.
"""

from __future__ import annotations

import numpy as np

from instep.core import counter_rng
from instep.core.world import Array, Channel, State, array_dataclass, vector
from instep.scene.folder import Scene
from instep.scene.legs import MIN_HEIGHT, MIN_UPRIGHT, legs_of
from instep.scene.model import free_bodies

from .task import NO_GOAL, WithoutGoal

WALK_SPEED = {2: 0.25}
"""Speed to walk at by the number of legs [m/s]."""
USUAL_SPEED = 0.6
"""The same with another number of legs [m/s]."""
SHARES = (0.25, 0.5, 1.0)
"""Shares of the time limit after which a robot that is still upright reaches the next event."""


@array_dataclass
class Walk(WithoutGoal):
    """Walk forward at a speed until the time is over; a fall ends the episode.

    Robots of the task are pushed: on level ground without pushes a gait that is off by a little falls seldom, and
    nothing is left to gain. The pushes are applied by whoever simulates the robot, from `push` and `push_every`.
    """

    name: str
    at_q: int
    """Index in q of the pose of the base."""
    at_v: int
    """Index in v of its velocity."""
    stands: float
    """Height of the base when it stands [m]."""
    speed: float = USUAL_SPEED
    """Speed to walk at [m/s]."""
    ramp: float = 1.0
    """Time in which the robot takes up its stance, and then again its speed [s]."""
    push: float = 0.6
    """Change of velocity by a push in a random direction [m/s]."""
    push_every: float = 1.5
    """Time between pushes [s]."""
    text: str = "Walk forward."
    seconds: float = 6.0
    dwell: float = 0.0
    events: tuple[str, ...] = ("a quarter", "half the time", "to the end")
    failures: tuple[str, ...] = ("fell",)
    goal_channel: Channel = NO_GOAL
    error_unit: str = "m/s"

    @classmethod
    def of(cls, scene: Scene, name: str) -> Walk:
        """The task of a scene made by `instep scene new ROBOT DIR --legs`."""
        model, legs = scene.model, legs_of(scene)
        joint = model.body(legs.base).jntadr[0]
        at_q, at_v = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
        stands = float(scene.start(0)[0][at_q + 2])
        return cls(name, at_q, at_v, stands, WALK_SPEED.get(legs.count, USUAL_SPEED))

    def conditions(self, state: State, goal: Array) -> Array:
        """Whether so much of the time is over."""
        # The last step of an episode is a little before its end.
        over = np.asarray(state.t)[..., None] >= np.array(SHARES) * self.seconds - 0.05
        return over & ~self.failed(state, goal)

    def failed(self, state: State, goal: Array) -> Array:
        """Whether the robot is tilted or low."""
        q = state.q[..., self.at_q : self.at_q + 7]
        upright = 1 - 2 * (q[..., 4] ** 2 + q[..., 5] ** 2)
        return ((upright < MIN_UPRIGHT) | (q[..., 2] < MIN_HEIGHT * self.stands))[..., None]

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """1 at the wanted velocity, 0 where it is off by the whole speed."""
        return np.clip(1 - self.error(state, goal, reached) / self.speed, 0, 1)

    def error(self, state: State, goal: Array, reached: Array) -> Array:
        """Distance of the horizontal velocity from the wanted one, half of it sideways [m/s]."""
        wanted = self.speed * np.clip((np.asarray(state.t) - self.ramp) / self.ramp, 0.0, 1.0)
        v = state.v[..., self.at_v : self.at_v + 2]
        return np.abs(v[..., 0] - wanted) + 0.5 * np.abs(v[..., 1])


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
