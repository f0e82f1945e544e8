"""The task of two arms: one picks up a cube, passes it to the other, and that one puts it down."""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array, Channel, State
from instep.scene.folder import Scene
from instep.scene.model import free_bodies, site_poses

from .task import NO_GOAL, WithoutGoal

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
        "home",
        "left grasp",
        "pick-up",
        "right align",
        "right grasp",
        "left release",
        "place",
        "home again",
    )
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
