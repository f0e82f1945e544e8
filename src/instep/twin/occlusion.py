"""Pixels that the robot hides: its silhouette where the twin believes it to be, so that they do not count.

Whether the robot stands before or behind a body is not asked: behind it little is lost.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from instep.core.world import Array
from instep.scene.folder import Scene

from .pose_solver import Shot
from .projection import Outline, glances, lens_of, model_of, mujoco, outline

GROW = 1.5
"""Pixels around the robot's silhouette that do not count either: blur, and joints that are a little off."""


class Hider:
    """The robot of a scene as something that hides pixels."""

    def __init__(self, scene: Scene):
        self._model = model_of(scene)
        shapes = [(b, shape) for b in _bodies(scene, self._model) if (shape := _shape(self._model, b)) is not None]
        self._bodies: list[int] = [b for b, _ in shapes]
        self._shapes: list[Outline] = [shape for _, shape in shapes]
        self._local = threading.local()

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def hide(self, shot: Shot, q: Array) -> None:
        """Take the weight from the pixels of a shot that the robot at positions q hides."""
        data = self._data()
        data.qpos[:] = q
        mujoco.mj_kinematics(self._model, data)
        eye, lens = shot.camera.body_from_camera, lens_of(shot.camera)
        for b, shape in zip(self._bodies, self._shapes, strict=True):
            place = np.eye(4)
            place[:3, :3], place[:3, 3] = data.xmat[b].reshape(3, 3), data.xpos[b]
            glances.hide(shape.corners, shape.starts, place, eye, lens, shot.weight, shot.region, GROW)

    def _data(self) -> Any:
        if not hasattr(self._local, "data"):
            self._local.data = mujoco.MjData(self._model)
        return self._local.data


def _bodies(scene: Scene, model: Any) -> list[int]:
    """The bodies that the robot's joints move."""
    moved = {int(model.joint(name).bodyid[0]) for name in scene.robot}
    for b in range(1, model.nbody):  # parents come before their children
        if int(model.body_parentid[b]) in moved:
            moved.add(b)
    return sorted(moved)


def _shape(model: Any, b: int) -> Outline | None:
    seen = any(model.geom_bodyid[g] == b and model.geom_rgba[g, 3] > 0 for g in range(model.ngeom))
    return outline(model, str(model.body(b).name)) if seen else None
