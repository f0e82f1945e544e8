"""The task PushT: push the block onto its outline.

The task of two arms: one picks up a cube, passes it to the other, and that one puts it down.
"""

from __future__ import annotations

from functools import lru_cache

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Channel, State, array_dataclass
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
