"""Where bodies stand in a camera's frame, and how far the camera's lens can be trusted."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import transform
from instep.core.world import Array
from instep.scene.camera import Camera, distort


def world_from_bodies(names: tuple[str, ...], poses: Array | None) -> Array:
    """Transforms [bodies, 4, 4] of poses xyz + wxyz [bodies, 7]; without poses every body frame is the world's."""
    if poses is None:
        return np.broadcast_to(np.eye(4), (len(names), 4, 4))
    poses = np.asarray(poses, float)
    if poses.shape != (len(names), 7):
        raise BadInput(
            f"Poses of shape {poses.shape} were given for the bodies {', '.join(names)}; "
            f"({len(names)}, 7), each xyz + wxyz, was expected."
        )
    if not np.isfinite(poses).all():
        row = int(np.flatnonzero(~np.isfinite(poses).all(axis=1))[0])
        raise BadInput(
            f"The pose of body {names[row]!r} is not finite; a position and a unit quaternion were expected."
        )
    return transform(poses)


def world_from_camera(names: tuple[str, ...], camera: Camera, poses: Array | None) -> Array:
    """Where a camera stands (4 x 4): fixed in the world, or carried by the body it is mounted on."""
    if camera.body in names:
        return world_from_bodies(names, poses)[names.index(camera.body)] @ camera.body_from_camera
    if camera.body != "world":
        raise UnknownName("body", camera.body, names)
    return np.asarray(camera.body_from_camera, float)


def camera_from_bodies(names: tuple[str, ...], camera: Camera, poses: Array | None) -> Array:
    """Transforms [bodies, 4, 4] from body frames to the camera's (x right, y down, z forward)."""
    return np.linalg.inv(world_from_camera(names, camera, poses)) @ world_from_bodies(names, poses)


def lens_limits(camera: Camera) -> tuple[float, float, float, float]:
    """The ideal coordinates (left, right, top, bottom) beyond which a Gaussian's shape is taken from the border.

    A linear approximation of the projection far outside the image would be absurd. The margin is 0.15 image widths,
    as in gsplat; a lens widens it by what it bends.
    """
    (fx, fy), (cx, cy), w, h = camera.focal, camera.centre, camera.width, camera.height
    border = np.array([[0, 0], [w, 0], [0, h], [w, h], [0, cy], [w, cy], [cx, 0], [cx, h]], float)
    wanted = (border - (cx, cy)) / (fx, fy)
    ideal = wanted.copy()
    for _ in range(20 if any(camera.distortion) else 0):
        ideal += np.clip(wanted - distort(ideal, camera.distortion), -0.2, 0.2)
    ideal = np.clip(ideal, wanted - 1.0, wanted + 1.0)
    margin_x, margin_y = 0.15 * w / fx, 0.15 * h / fy
    (left, top), (right, bottom) = ideal.min(axis=0), ideal.max(axis=0)
    return float(left - margin_x), float(right + margin_x), float(top - margin_y), float(bottom + margin_y)


def lens_reach(camera: Camera) -> float:
    """The squared ideal radius up to which the lens polynomial grows; beyond it would fold the image onto itself."""
    if not any(camera.distortion):
        return float("inf")
    k1, k2, _, _, k3 = (*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    r2 = np.linspace(0.0, 25.0, 5001)
    slope = 1 + r2 * (3 * k1 + r2 * (5 * k2 + r2 * 7 * k3))
    folds = np.flatnonzero(slope <= 0)
    return float(r2[folds[0]]) if len(folds) else float("inf")


def lens_slope(ideal: Array, coefficients: tuple[float, ...]) -> Array:
    """The derivative [..., 2, 2] of `distort` at normalised image points [..., 2]."""
    k1, k2, p1, p2, k3 = (*coefficients, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    x, y = ideal[..., 0], ideal[..., 1]
    r2 = x * x + y * y
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
    grow = 2 * (k1 + r2 * (2 * k2 + r2 * 3 * k3))
    cross = grow * x * y + 2 * p1 * x + 2 * p2 * y
    rows = [
        [radial + grow * x * x + 2 * p1 * y + 6 * p2 * x, cross],
        [cross, radial + grow * y * y + 6 * p1 * y + 2 * p2 * x],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
