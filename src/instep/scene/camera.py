"""Cameras: intrinsics, lens distortion, mounting, and the cameras of a MuJoCo model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass

USUAL_ANGLE = 45.0
"""Field of view of a camera for which none is given [deg], along the shorter side of its image."""


@array_dataclass
class Camera:
    """A pinhole camera with an OpenCV lens, fixed to a body. Axes: x right, y down, z forward."""

    name: str
    width: int
    height: int
    focal: tuple[float, float]
    """fx, fy [pixels]."""
    centre: tuple[float, float]
    """cx, cy [pixels]; the centre of the top left pixel is (0.5, 0.5)."""
    body: str = "world"
    """The body it is mounted on."""
    body_from_camera: Array = field(default_factory=lambda: np.eye(4))
    """Its pose on that body, a 4 x 4 transform."""
    distortion: tuple[float, ...] = ()
    """k1, k2, p1, p2, k3 of OpenCV's model; none for a perfect lens."""

    @property
    def in_world(self) -> bool:
        """Whether it is mounted on the world itself, so that `body_from_camera` is its pose in the world."""
        return self.body == "world"

    def carried(self, world_from_body: Array) -> Camera:
        """The camera in the world, with its body at a 4 x 4 transform."""
        return replace(self, body="world", body_from_camera=world_from_body @ self.body_from_camera)

    @property
    def K(self) -> Array:
        """The 3 x 3 intrinsic matrix [pixels]."""
        (fx, fy), (cx, cy) = self.focal, self.centre
        return np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])

    def project(self, camera_from_point: Array) -> Array:
        """Pixels [..., 2] of points [..., 3] in the camera's frame, through the lens."""
        p = np.asarray(camera_from_point, float)
        ideal = p[..., :2] / p[..., 2:]
        return distort(ideal, self.distortion) * np.array(self.focal) + np.array(self.centre)


def distort(ideal: Array, coefficients: tuple[float, ...]) -> Array:
    """Normalised image points [..., 2] after the lens, by OpenCV's polynomial (k1, k2, p1, p2, k3)."""
    if not any(coefficients):
        return ideal
    k1, k2, p1, p2, k3 = (*coefficients, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    x, y = ideal[..., 0], ideal[..., 1]
    r2 = x * x + y * y
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
    return np.stack(
        [
            x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
            y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
        ],
        axis=-1,
    )


def moves(model: Any, camera: Camera) -> bool:
    """Whether a camera is on a body that some joint moves."""
    return bool(model.body_weldid[carrier(model, camera)] != 0)


def carrier(model: Any, camera: Camera) -> int:
    """The number of the body that carries a camera."""
    body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, camera.body)
    if body < 0:
        raise BadInput(
            f"Camera {camera.name!r} is on a body that has no name, so that nothing says where it is; name it."
        )
    return body


def standing(model: Any, cameras: Sequence[Camera]) -> tuple[Camera, ...]:
    """Cameras of which those are placed in the world that are on a body which stands still."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    out: list[Camera] = []
    for camera in cameras:
        world_from_body, body = np.eye(4), carrier(model, camera)
        world_from_body[:3, :3], world_from_body[:3, 3] = data.xmat[body].reshape(3, 3), data.xpos[body]
        out.append(camera if camera.in_world or moves(model, camera) else camera.carried(world_from_body))
    return tuple(out)


def pinhole(name: str, size: tuple[int, int] = (640, 480), angle: float | None = None) -> Camera:
    """A camera without distortion at the world's origin: width and height [pixels], horizontal field of view [deg].

    The field of view along the shorter side is 45 degrees where no angle is given.
    """
    extent, degrees = (min(size), USUAL_ANGLE) if angle is None else (size[0], angle)
    focal = extent / 2 / math.tan(math.radians(degrees) / 2)
    return Camera(name, *size, (focal, focal), (size[0] / 2, size[1] / 2))


def look_at(eye: Array, target: Array, up: Array | Sequence[float] = (0.0, 0.0, 1.0)) -> Array:
    """world_from_camera (4 x 4) of a camera at a point that looks at another, `up` being upwards in its image."""
    ahead = np.asarray(target, float) - eye
    ahead = ahead / np.linalg.norm(ahead)
    right = np.cross(ahead, up)
    if np.linalg.norm(right) < 1e-9:
        right = np.array([1.0, 0.0, 0.0])
    right = right / np.linalg.norm(right)
    world_from_camera = np.eye(4)
    world_from_camera[:3, :3] = np.stack([right, np.cross(ahead, right), ahead], axis=1)
    world_from_camera[:3, 3] = eye
    return world_from_camera


def aimed_place(name: str, at: Array, towards: Array, up: Array) -> Array:
    """body_from_camera (4 x 4) of a camera that looks from one point towards another; `BadInput` where it cannot."""
    ahead = towards - at
    if np.linalg.norm(np.cross(ahead, up)) <= 1e-6 * np.linalg.norm(ahead) * np.linalg.norm(up):
        raise BadInput(f"Camera {name!r} looks nowhere, or along its 'up'; a camera that looks down needs another up.")
    return look_at(at, towards, up)


def camera_names(model: mujoco.MjModel) -> list[str]:
    """The cameras of a model that have a name."""
    return [name for c in range(model.ncam) if (name := model.camera(c).name)]


def camera_of(model: mujoco.MjModel, name: str, given: Mapping[str, Any]) -> Camera:
    """A camera of the model; MuJoCo looks along -z with y up, a Camera along +z with y down."""
    if name not in camera_names(model):
        raise UnknownName("camera", name, camera_names(model))
    camera = model.camera(name)
    width, height = (int(x) for x in model.cam_resolution[camera.id])
    if width <= 1 or height <= 1:
        width, height = int(given.get("width", 320)), int(given.get("height", 240))
    sensor, intrinsic = model.cam_sensorsize[camera.id], model.cam_intrinsic[camera.id]
    if sensor[1] > 0:
        fx, fy = intrinsic[0] / sensor[0] * width, intrinsic[1] / sensor[1] * height
        cx, cy = width / 2 - intrinsic[2] / sensor[0] * width, height / 2 - intrinsic[3] / sensor[1] * height
    else:
        fx = fy = height / 2 / math.tan(math.radians(float(model.cam_fovy[camera.id])) / 2)
        cx, cy = width / 2, height / 2
    body_from_camera = np.eye(4)
    mujoco.mju_quat2Mat(rotation := np.zeros(9), model.cam_quat[camera.id])
    body_from_camera[:3, :3] = rotation.reshape(3, 3) @ np.diag([1.0, -1.0, -1.0])
    body_from_camera[:3, 3] = model.cam_pos[camera.id]
    body = model.body(model.cam_bodyid[camera.id]).name
    lens = tuple(float(k) for k in given.get("distortion", ()))
    return Camera(name, width, height, (float(fx), float(fy)), (float(cx), float(cy)), body, body_from_camera, lens)
