"""Cameras that the robot carries: where they were in the world when they took an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.world import Array
from instep.scene.camera import Camera, moves
from instep.scene.folder import Scene

from .camera_rig import CameraFrame
from .projection import model_of
from .scene_geometry import body_transform


class CameraMounts:
    """The bodies that carry cameras, such as the hand of a robot, whose joints say where a camera was."""

    def __init__(self, scene: Scene, cameras: Sequence[Camera]):
        self._model, self._cameras = model_of(scene), tuple(cameras)

    def __bool__(self) -> bool:
        return not all(camera.in_world for camera in self._cameras)

    @property
    def moving(self) -> tuple[str, ...]:
        """Cameras that move with a joint."""
        return tuple(camera.name for camera in self._cameras if moves(self._model, camera))

    def cameras(self, q: Array) -> tuple[Camera, ...]:
        """All cameras in the world at positions q."""
        return tuple(self._placed(camera, q) for camera in self._cameras)

    def frames(self, frames: Sequence[CameraFrame | None], times: Array, joints: Array) -> list[CameraFrame | None]:
        """Frames whose cameras are where they were at their stamps; `joints` are positions [n, nq] at times [n]."""
        if not self:
            return list(frames)
        out: list[CameraFrame | None] = []
        for frame in frames:
            at = None if frame is None else self._placed(frame.camera, positions_at(frame.stamp, times, joints))
            out.append(None if frame is None or at is None else replace(frame, camera=at))
        return out

    def _placed(self, camera: Camera, q: Array) -> Camera:
        return camera if camera.in_world else camera.carried(body_transform(self._model, camera.body, q))


def positions_at(stamp: float, times: Array, joints: Array) -> Array:
    """Positions [nq] of the robot at a stamp, between the rows [n, nq] before and after it."""
    after = int(np.clip(np.searchsorted(times, stamp), 1, len(times) - 1))
    span = float(times[after] - times[after - 1])
    share = min(max((stamp - float(times[after - 1])) / span, 0.0), 1.0) if span > 0 else 1.0
    return (1 - share) * joints[after - 1] + share * joints[after]
