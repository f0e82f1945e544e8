"""Tasks of arms: push a block onto its outline, hand a cube from one arm to the other, reach and follow a point."""

from __future__ import annotations

from functools import lru_cache

import mujoco
import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput
from instep.core.world import Array, Channel, State, array_dataclass, vector
from instep.scene.folder import Scene
from instep.scene.model import free_bodies, site_poses

from .task import NO_GOAL, WithoutGoal

POINT_SPACING_M = 0.005
"""Spacing of the points by which overlap is counted [m]."""


@array_dataclass
class PushOnto(WithoutGoal):
    """Push a block over a table until it covers its outline."""

    name: str
    body: int
    """Index in q of the pose of the block."""
    target: tuple[float, float, float]
    """Target pose: x [m], y [m], heading [rad]."""
    shape: tuple[tuple[float, float, float, float], ...]
    """The block as rectangles: left, bottom, right, top [m], in its own frame."""
    coverage: float = 0.9
    """Share of the outline that must be covered."""
    text: str = "Push the T block onto its outline."
    seconds: float = 30.0
    dwell: float = 0.1
    events: tuple[str, ...] = ("near", "aligned", "done")
    failures: tuple[str, ...] = ("block lost",)
    goal_channel: Channel = NO_GOAL
    error_unit: str = "m"

    @classmethod
    def of(cls, scene: Scene, name: str) -> PushOnto:
        """The task of a scene with a body `goal` where its first object belongs."""
        goal, model = scene.model.body("goal"), scene.model
        body = free_bodies(model)[scene.objects[0]]
        w, _, _, z = goal.quat
        target = (float(goal.pos[0]), float(goal.pos[1]), float(2 * np.arctan2(z, w)))
        return cls(name, body, target, _rectangles(model, scene.objects[0]))

    def pose(self, state: State) -> Array:
        """x [m], y [m] and heading [rad] of the block [..., 3]."""
        q = state.q[..., self.body : self.body + 7]
        return np.concatenate([q[..., :2], heading(q[..., 3:7])[..., None]], axis=-1)

    def conditions(self, state: State, goal: Array) -> Array:
        """Near: within 3 cm. Aligned: that, and within 0.15 rad. Done: covering enough of the outline."""
        q = state.q
        near = np.hypot(q[..., self.body] - self.target[0], q[..., self.body + 1] - self.target[1]) < 0.03
        conditions = np.zeros((*near.shape, 3), bool)
        conditions[..., 0] = near
        if near.any():  # most blocks are far away most of the time, and counting points takes longer than all the rest
            away = self.pose(state)[near] - np.array(self.target)
            aligned = np.abs(wrapped(away[..., 2])) < 0.15
            done = np.array(aligned)
            done[aligned] = self._covered(away[aligned]) >= self.coverage
            conditions[near, 1], conditions[near, 2] = aligned, done
        return conditions

    def failed(self, state: State, goal: Array) -> Array:
        """Whether the block fell over, or was pushed out of reach."""
        q = state.q[..., self.body : self.body + 7]
        upright = 1 - 2 * (q[..., 4] ** 2 + q[..., 5] ** 2)
        away = np.hypot(q[..., 0] - self.target[0], q[..., 1] - self.target[1])
        return ((upright < 0.9) | (away > 0.35))[..., None]

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """The share of the outline that is covered."""
        return self._covered(self.pose(state) - np.array(self.target))

    def error(self, state: State, goal: Array, reached: Array) -> Array:
        """Distance of the block from its target [m]."""
        return np.hypot(state.q[..., self.body] - self.target[0], state.q[..., self.body + 1] - self.target[1])

    def _covered(self, away: Array) -> Array:
        """Share of the block's points that lie on the outline, for poses relative to it [..., 3]."""
        points = _points(self.shape)
        c, s = np.cos(away[..., 2:]), np.sin(away[..., 2:])
        # The offset is in the world's frame; the outline stands at the target's heading.
        turn = self.target[2]
        dx = np.cos(turn) * away[..., 0:1] + np.sin(turn) * away[..., 1:2]
        dy = -np.sin(turn) * away[..., 0:1] + np.cos(turn) * away[..., 1:2]
        x = c * points[:, 0] - s * points[:, 1] + dx
        y = s * points[:, 0] + c * points[:, 1] + dy
        inside = np.zeros(x.shape, bool)
        for left, bottom, right, top in self.shape:
            inside |= (x >= left) & (x <= right) & (y >= bottom) & (y <= top)
        return inside.mean(axis=-1)


def heading(quat: Array) -> Array:
    """The angle about the vertical [rad] of orientations wxyz."""
    w, x, y, z = np.moveaxis(quat, -1, 0)
    return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def wrapped(angle: Array) -> Array:
    """The same angle between -pi and pi [rad]."""
    turn, over = 2 * np.pi, np.asarray(angle) + np.pi
    if over.size and (np.min(over) < -turn or np.max(over) >= 2 * turn):
        return over % turn - np.pi
    # Bit by bit the same within a turn, and several times as fast: an expert asks for thousands in each step.
    return over + turn * (over < 0) - turn * (over >= turn) - np.pi


def _rectangles(model: mujoco.MjModel, body: str) -> tuple[tuple[float, float, float, float], ...]:
    """The boxes of a body, seen from above."""
    boxes: list[tuple[float, float, float, float]] = []
    for g in range(model.ngeom):
        if model.body(model.geom_bodyid[g]).name == body and model.geom_type[g] == int(mujoco.mjtGeom.mjGEOM_BOX):
            (x, y, _), (a, b, _) = model.geom_pos[g], model.geom_size[g]
            boxes.append((float(x - a), float(y - b), float(x + a), float(y + b)))
    if not boxes:
        raise BadInput(f"Body {body!r} has no boxes, and the overlap with an outline is counted for boxes.")
    return tuple(boxes)


@lru_cache(maxsize=8)
def _points(shape: tuple[tuple[float, float, float, float], ...]) -> Array:
    """Points spread evenly over the block."""
    out: list[Array] = []
    for left, bottom, right, top in shape:
        x = np.arange(left + POINT_SPACING_M / 2, right, POINT_SPACING_M)
        y = np.arange(bottom + POINT_SPACING_M / 2, top, POINT_SPACING_M)
        out.append(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    return np.concatenate(out)


GRASP_DISTANCE_M = 0.03
"""Largest distance from the tip of an arm to an object it holds [m]."""


@array_dataclass
class Handover(WithoutGoal):
    """Pick up the cube with the left arm, hand it to the right arm, put it down on the right, and go home."""

    name: str
    scene: Scene
    cube: int
    """Index in q of the pose of the cube."""
    arms: Array
    """Indices in q of the arms' joints: left, then right [2, joints]."""
    grippers: Array
    """Indices in q of the gripper openings [2]."""
    home: Array
    """The arms' joints at home [2, joints]."""
    table: float
    """Height of the cube's middle when it lies on the table [m]."""
    half: float
    """Half the size of the cube [m]."""
    text: str = "Pick up the cube with one arm and hand it to the other."
    seconds: float = 20.0
    dwell: float = 0.1
    events: tuple[str, ...] = (
        "home", "left grasp", "pick-up", "right align", "right grasp", "left release", "place", "home again",
    )  # fmt: skip
    failures: tuple[str, ...] = ("cube dropped",)
    goal_channel: Channel = NO_GOAL

    @classmethod
    def of(cls, scene: Scene, name: str) -> Handover:
        """The task of a scene with a cube and the joints left_* and right_*."""
        model, rest = scene.model, scene.start(0)[0]
        cube = free_bodies(model)[scene.objects[0]]
        sides = [[n for n in scene.robot if n.startswith(side)] for side in ("left_", "right_")]
        where = np.array([[model.joint(n).qposadr[0] for n in names] for names in sides])
        arms, grippers = where[:, :-1], where[:, -1]
        half = float(model.geom(scene.objects[0]).size[2])
        return cls(name, scene, cube, arms, grippers, rest[arms], float(rest[cube + 2]), half)

    def conditions(self, state: State, goal: Array) -> Array:
        """Conditions of the eight events, on positions and gripper openings."""
        q, cube = state.q, state.q[..., self.cube : self.cube + 3]
        tips = site_poses(self.scene.model, q, self.scene.tips)[..., :3]
        away = np.linalg.norm(tips - cube[..., None, :], axis=-1)
        opening = q[..., self.grippers]
        closed = (away < GRASP_DISTANCE_M) & (np.abs(opening - self.half) < 0.2 * self.half)
        lifted = cube[..., 2] > self.table + 0.05
        lies = np.abs(cube[..., 2] - self.table) < 0.01
        at_home = (np.abs(q[..., self.arms] - self.home) < 0.15).all(axis=(-1, -2))
        free = (opening > 1.25 * self.half) | (away > 2 * GRASP_DISTANCE_M)
        return np.stack(
            [
                at_home,
                closed[..., 0],
                lifted & (away[..., 0] < GRASP_DISTANCE_M),
                lifted & (away[..., 1] < 4 * GRASP_DISTANCE_M),
                lifted & closed[..., 1],
                lifted & free[..., 0] & (away[..., 1] < GRASP_DISTANCE_M),
                lies & free.all(axis=-1) & (cube[..., 1] < -0.1),
                lies & at_home,
            ],
            axis=-1,
        )

    def failed(self, state: State, goal: Array) -> Array:
        """Whether the cube fell off the table."""
        return (state.q[..., self.cube + 2] < self.table - 0.1)[..., None]

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """The share of the events that were reached."""
        return reached.mean(axis=-1)


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
