"""Projection of Gaussians to ellipses on the image plane and their view-dependent colours, compiled.

The same formulas as in `reference.project` and `gaussians`; also the camera frames and lens limits in NumPy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import transform
from instep.core.world import Array
from instep.scene.camera import Camera, distort
from instep.splat.gaussians import C0, C1, C2, C3
from instep.splat.image import Region

from .simd import BLUR, INLINE, KERNEL, LOG2_E, NEAR_PLANE_M, TILE, F, I

if TYPE_CHECKING:
    from .tiles import PackedGaussians

RECORD = 12
"""Numbers per rendered Gaussian: u, v, A, B, C, log2 opacity, red, green, blue, depth, half width, half height.

Coverage is 2^(A dx^2 + B dx dy + C dy^2 + log2 opacity), in pixels from the region's corner."""


class CameraView(NamedTuple):
    """A camera as the kernels take it."""

    frames: Array
    """Rows of camera_from_body [bodies, 12]."""
    parameters: Array
    """Those of `view_parameters` [17]."""


class ProjectedEllipses(NamedTuple):
    """Gaussians on the image plane."""

    records: Array
    """What is rendered of each one [n, RECORD]."""
    boxes: Array
    """The box of tiles that each one touches [n], a byte each for its four sides; -1: it cannot be seen."""


def view_parameters(camera: Camera, region: Region) -> Array:
    """What the kernels need of a camera: focal, centre, region size, shape limits, lens reach, lens coefficients."""
    left, top, right, bottom = region
    lens = (*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    centre = (camera.centre[0] - left, camera.centre[1] - top)
    bent = float(any(lens))
    size = (right - left, bottom - top)
    return np.array(
        [*camera.focal, *centre, *size, *projection_limits(camera), lens_max_radius2(camera), bent, *lens], np.float32
    )


@njit(**INLINE)
def lens_at(x: Any, y: Any, view: Any) -> Any:
    """Where the lens puts an ideal point, and the derivative (xx, xy, yy) there."""
    if view[11] == F(0.0):
        return x, y, F(1.0), F(0.0), F(1.0)
    k1, k2, p1, p2, k3 = view[12], view[13], view[14], view[15], view[16]
    r2 = x * x + y * y
    radial = F(1.0) + r2 * (k1 + r2 * (k2 + r2 * k3))
    grow = F(2.0) * (k1 + r2 * (F(2.0) * k2 + r2 * F(3.0) * k3))
    xx = radial + grow * x * x + F(2.0) * p1 * y + F(6.0) * p2 * x
    xy = grow * x * y + F(2.0) * p1 * x + F(2.0) * p2 * y
    yy = radial + grow * y * y + F(6.0) * p1 * y + F(2.0) * p2 * x
    bent_x = x * radial + F(2.0) * p1 * x * y + p2 * (r2 + F(2.0) * x * x)
    bent_y = y * radial + p1 * (r2 + F(2.0) * y * y) + F(2.0) * p2 * x * y
    return bent_x, bent_y, xx, xy, yy


@njit(**INLINE)
def projection_jacobian(x: Any, y: Any, z: Any, view: Any) -> Any:
    """The derivative (2 x 3) of the projection at a point in the camera's frame, its direction kept near the view."""
    nx = min(max(x / z, view[6]), view[7])
    ny = min(max(y / z, view[8]), view[9])
    _, _, xx, xy, yy = lens_at(nx, ny, view)
    fx, fy = view[0] / z, view[1] / z
    return fx * xx, fx * xy, -fx * (xx * nx + xy * ny), fy * xy, fy * yy, -fy * (xy * nx + yy * ny)


@njit(**INLINE)
def body_jacobian(jacobian: Any, R: Any, b: Any) -> Any:
    """The same derivative by directions of the body: gradient (2 x 3) times camera_from_body."""
    j00, j01, j02, j10, j11, j12 = jacobian
    return (
        j00 * R[b, 0] + j01 * R[b, 4] + j02 * R[b, 8],
        j00 * R[b, 1] + j01 * R[b, 5] + j02 * R[b, 9],
        j00 * R[b, 2] + j01 * R[b, 6] + j02 * R[b, 10],
        j10 * R[b, 0] + j11 * R[b, 4] + j12 * R[b, 8],
        j10 * R[b, 1] + j11 * R[b, 5] + j12 * R[b, 9],
        j10 * R[b, 2] + j11 * R[b, 6] + j12 * R[b, 10],
    )


@njit(**INLINE)
def covariance_times(S: Any, i: Any, a: Any) -> Any:
    """The covariance S (xx, xy, xz, yy, yz, zz) of one Gaussian times a vector of three."""
    return (
        S[i, 0] * a[0] + S[i, 1] * a[1] + S[i, 2] * a[2],
        S[i, 1] * a[0] + S[i, 3] * a[1] + S[i, 4] * a[2],
        S[i, 2] * a[0] + S[i, 4] * a[1] + S[i, 5] * a[2],
    )


@njit(**INLINE)
def image_covariance(axes: Any, S: Any, i: Any) -> Any:
    """The covariance (xx, xy, yy) [px^2] of a body-frame covariance S (xx, xy, xz, yy, yz, zz) seen along the axes."""
    a0, a1, a2, b0, b1, b2 = axes
    p0, p1, p2 = covariance_times(S, i, (a0, a1, a2))
    q0, q1, q2 = covariance_times(S, i, (b0, b1, b2))
    xx = a0 * p0 + a1 * p1 + a2 * p2 + BLUR
    xy = b0 * p0 + b1 * p1 + b2 * p2
    yy = b0 * q0 + b1 * q1 + b2 * q2 + BLUR
    return xx, xy, yy


@njit(**INLINE)
def camera_position(means: Any, i: Any, R: Any, b: Any) -> Any:
    """The centre of a Gaussian of body b in the camera's frame."""
    m0, m1, m2 = means[i, 0], means[i, 1], means[i, 2]
    return (
        R[b, 0] * m0 + R[b, 1] * m1 + R[b, 2] * m2 + R[b, 3],
        R[b, 4] * m0 + R[b, 5] * m1 + R[b, 6] * m2 + R[b, 7],
        R[b, 8] * m0 + R[b, 9] * m1 + R[b, 10] * m2 + R[b, 11],
    )


@njit(**INLINE)
def tile_box(centre: Any, half: Any, size: Any, changes: Any) -> Any:
    """First and last column, first and last row of the tiles whose pixel centres an ellipse's box holds, a byte each.

    Truncation of numbers above 0 stands for floor, which would be a call into the C library.
    """
    left = int(max(F(0.0), centre[0] - half[0])) // TILE
    right = int(min(centre[0] + half[0], size[0] - F(1.0))) // TILE
    top = int(max(F(0.0), centre[1] - half[1])) // TILE
    bottom = int(min(centre[1] + half[1], size[1] - F(1.0))) // TILE
    changes[top, left] += 1
    changes[top, right + 1] -= 1
    changes[bottom + 1, left] -= 1
    changes[bottom + 1, right + 1] += 1
    return left | (right << 8) | (top << 16) | (bottom << 24)


@njit(**KERNEL)
def project(
    rows: tuple[int, int], gaussians: PackedGaussians, camera: CameraView, projected: ProjectedEllipses, changes: Any
) -> None:
    """Records of the Gaussians of some rows, and the box of tiles each one touches (-1: it cannot be seen).

    `changes` [rows + 1, columns + 1] receive how the number of Gaussians changes from tile to tile; their sums along
    both axes are the numbers themselves.
    """
    means, covariances, strengths = gaussians.means, gaussians.covariances, gaussians.strengths
    colours, body = gaussians.colours, gaussians.body
    (R, view), (records, boxes) = camera, projected
    changes[:] = 0
    for i in range(rows[0], rows[1]):
        boxes[i] = I(-1)
        b = body[i]
        x, y, z = camera_position(means, i, R, b)
        reach = strengths[i, 1]
        if z <= NEAR_PLANE_M or reach < F(0.0):
            continue
        nx, ny = x / z, y / z
        if nx * nx + ny * ny >= view[10]:
            continue
        bent_x, bent_y, _, _, _ = lens_at(nx, ny, view)
        u = view[0] * bent_x + view[2]
        v = view[1] * bent_y + view[3]
        axes = body_jacobian(projection_jacobian(x, y, z, view), R, b)
        xx, xy, yy = image_covariance(axes, covariances, i)
        half_width, half_height = reach * F(math.sqrt(xx)), reach * F(math.sqrt(yy))
        outside = u + half_width < F(0.5) or u - half_width > view[4] - F(0.5)
        if outside or v + half_height < F(0.5) or v - half_height > view[5] - F(0.5):
            continue
        scale = LOG2_E / (xx * yy - xy * xy)
        records[i, 0], records[i, 1] = u, v
        records[i, 2], records[i, 3], records[i, 4] = F(-0.5) * yy * scale, xy * scale, F(-0.5) * xx * scale
        records[i, 5] = strengths[i, 0]
        records[i, 6], records[i, 7], records[i, 8] = colours[i, 0], colours[i, 1], colours[i, 2]
        records[i, 9], records[i, 10], records[i, 11] = z, half_width, half_height
        boxes[i] = tile_box((u, v), (half_width, half_height), (view[4], view[5]), changes)


_C0, _C1 = F(C0), F(C1)
_A0, _A1, _A2, _A3, _A4 = (F(c) for c in C2)
_B0, _B1, _B2, _B3, _B4, _B5, _B6 = (F(c) for c in C3)


@njit(**INLINE)
def sh_basis(x: Any, y: Any, z: Any, degree: Any, out: Any) -> None:
    """The basis at a unit direction."""
    out[0] = _C0
    if degree >= 1:
        out[1], out[2], out[3] = -_C1 * y, _C1 * z, -_C1 * x
    if degree >= 2:
        xx, yy, zz = x * x, y * y, z * z
        out[4], out[5], out[6] = _A0 * x * y, _A1 * y * z, _A2 * (F(2.0) * zz - xx - yy)
        out[7], out[8] = _A3 * x * z, _A4 * (xx - yy)
        if degree >= 3:
            out[9], out[10] = _B0 * y * (F(3.0) * xx - yy), _B1 * x * y * z
            out[11], out[12] = _B2 * y * (F(4.0) * zz - xx - yy), _B3 * z * (F(2.0) * zz - F(3.0) * (xx + yy))
            out[13], out[14] = _B4 * x * (F(4.0) * zz - xx - yy), _B5 * z * (xx - yy)
            out[15] = _B6 * x * (xx - F(3.0) * yy)


@njit(**KERNEL)
def evaluate_sh(rows: tuple[int, int], gaussians: PackedGaussians, eyes: Any, degree: Any, colours: Any) -> None:
    """Colours of the Gaussians of some rows; `eyes` [bodies, 3] is the camera position in each body's frame.

    Seen in the body's own frame the harmonics need no rotation.
    """
    means, harmonics, body = gaussians.means, gaussians.harmonics, gaussians.body
    basis = np.empty(16, np.float32)
    for i in range(rows[0], rows[1]):
        b = body[i]
        x, y, z = means[i, 0] - eyes[b, 0], means[i, 1] - eyes[b, 1], means[i, 2] - eyes[b, 2]
        scale = F(1.0) / max(F(1e-12), F(math.sqrt(x * x + y * y + z * z)))
        sh_basis(x * scale, y * scale, z * scale, degree, basis)
        for channel in range(3):
            value = F(0.5)
            for k in range((degree + 1) ** 2):
                value += basis[k] * harmonics[i, k, channel]
            colours[i, channel] = max(value, F(0.0))


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
    """world_from_camera (4 x 4): fixed in the world, or on the body it is mounted on."""
    if camera.body in names:
        return world_from_bodies(names, poses)[names.index(camera.body)] @ camera.body_from_camera
    if camera.body != "world":
        raise UnknownName("body", camera.body, names)
    return np.asarray(camera.body_from_camera, float)


def camera_from_bodies(names: tuple[str, ...], camera: Camera, poses: Array | None) -> Array:
    """Transforms [bodies, 4, 4] from body frames to the camera's (x right, y down, z forward)."""
    return np.linalg.inv(world_from_camera(names, camera, poses)) @ world_from_bodies(names, poses)


def projection_limits(camera: Camera) -> tuple[float, float, float, float]:
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


def lens_max_radius2(camera: Camera) -> float:
    """The squared ideal radius up to which the lens polynomial grows; beyond it would fold the image onto itself."""
    if not any(camera.distortion):
        return float("inf")
    k1, k2, _, _, k3 = (*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    r2 = np.linspace(0.0, 25.0, 5001)
    derivative = 1 + r2 * (3 * k1 + r2 * (5 * k2 + r2 * 7 * k3))
    folds = np.flatnonzero(derivative <= 0)
    return float(r2[folds[0]]) if len(folds) else float("inf")


def lens_jacobian(ideal: Array, coefficients: tuple[float, ...]) -> Array:
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
