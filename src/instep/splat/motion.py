"""How drawn ellipses move and change shape when their body is shifted or turned, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .backproject import lens_bend
from .projection import axes_at, lens_at, slope_at
from .simd import FAST, INLINE, F

MOTION = 30
"""Numbers per Gaussian: for each of 6 motions the change of u, v, and of the covariance xx, xy, yy."""


@njit(**INLINE)
def slope_changes(x: Any, y: Any, z: Any, view: Any, out: Any) -> None:
    """How the projection's derivative J (2 x 3) changes with the place: out [3, 2, 3], by x, y and z."""
    nx, ny = x / z, y / z
    n, m = min(max(nx, view[6]), view[7]), min(max(ny, view[8]), view[9])
    _, _, xx, xy, yy = lens_at(n, m, view)
    xx_n, xx_m, xy_m, yy_m = lens_bend(n, m, view)
    fx, fy = view[0] / (z * z), view[1] / (z * z)
    free_n, free_m = F(1.0) if n == nx else F(0.0), F(1.0) if m == ny else F(0.0)
    fx_n, fy_n, fx_m, fy_m = fx * free_n, fy * free_n, fx * free_m, fy * free_m
    out[0, 0, 0], out[0, 0, 1], out[0, 0, 2] = fx_n * xx_n, fx_n * xx_m, -fx_n * (xx_n * n + xx_m * m + xx)
    out[0, 1, 0], out[0, 1, 1], out[0, 1, 2] = fy_n * xx_m, fy_n * xy_m, -fy_n * (xx_m * n + xy_m * m + xy)
    out[1, 0, 0], out[1, 0, 1], out[1, 0, 2] = fx_m * xx_m, fx_m * xy_m, -fx_m * (xx_m * n + xy_m * m + xy)
    out[1, 1, 0], out[1, 1, 1], out[1, 1, 2] = fy_m * xy_m, fy_m * yy_m, -fy_m * (xy_m * n + yy_m * m + yy)
    J = slope_at(x, y, z, view)
    for row in range(2):
        for column in range(3):
            by_n, by_m = out[0, row, column], out[1, row, column]
            out[2, row, column] = -J[3 * row + column] / z - nx * by_n - ny * by_m


@njit(**FAST)
def motions(
    rows: Any, track: Any, pivots: Any, means: Any, covariances: Any, body: Any, R: Any, view: Any, boxes: Any, out: Any
) -> None:
    """The motion of every visible Gaussian that is tracked: out [n, 30].

    `track` [bodies] says which pivot a body turns about (-1: it is not tracked), `pivots` [tracked, 3] where those are,
    in the camera's frame. Motions are shifts along and turns about the camera's axes.
    """
    changes = np.empty((3, 2, 3), np.float32)
    for i in range(rows):
        b = body[i]
        if boxes[i] < 0 or track[b] < 0:
            continue
        m0, m1, m2 = means[i, 0], means[i, 1], means[i, 2]
        x = R[b, 0] * m0 + R[b, 1] * m1 + R[b, 2] * m2 + R[b, 3]
        y = R[b, 4] * m0 + R[b, 5] * m1 + R[b, 6] * m2 + R[b, 7]
        z = R[b, 8] * m0 + R[b, 9] * m1 + R[b, 10] * m2 + R[b, 11]
        pivot = track[b]
        rx, ry, rz = x - pivots[pivot, 0], y - pivots[pivot, 1], z - pivots[pivot, 2]
        _, _, xx, xy, yy = lens_at(x / z, y / z, view)
        fx, fy, nx, ny = view[0] / z, view[1] / z, x / z, y / z
        c0, c1, c2 = fx * xx, fx * xy, -fx * (xx * nx + xy * ny)
        d0, d1, d2 = fy * xy, fy * yy, -fy * (xy * nx + yy * ny)
        j00, j01, j02, j10, j11, j12 = slope_at(x, y, z, view)
        Y = camera_shape(covariances, i, axes_at(j00, j01, j02, j10, j11, j12, R, b), R, b)
        slope_changes(x, y, z, view, changes)
        for k in range(6):
            # The velocity of the centre, and the turn of the shape.
            if k < 3:
                vx, vy, vz = F(k == 0), F(k == 1), F(k == 2)
                wx, wy, wz = F(0.0), F(0.0), F(0.0)
            else:
                wx, wy, wz = F(k == 3), F(k == 4), F(k == 5)
                vx, vy, vz = wy * rz - wz * ry, wz * rx - wx * rz, wx * ry - wy * rx
            # The velocity of J's rows: by the place, and J [w] for the turn.
            a0 = changes[0, 0, 0] * vx + changes[1, 0, 0] * vy + changes[2, 0, 0] * vz + j01 * wz - j02 * wy
            a1 = changes[0, 0, 1] * vx + changes[1, 0, 1] * vy + changes[2, 0, 1] * vz + j02 * wx - j00 * wz
            a2 = changes[0, 0, 2] * vx + changes[1, 0, 2] * vy + changes[2, 0, 2] * vz + j00 * wy - j01 * wx
            b0 = changes[0, 1, 0] * vx + changes[1, 1, 0] * vy + changes[2, 1, 0] * vz + j11 * wz - j12 * wy
            b1 = changes[0, 1, 1] * vx + changes[1, 1, 1] * vy + changes[2, 1, 1] * vz + j12 * wx - j10 * wz
            b2 = changes[0, 1, 2] * vx + changes[1, 1, 2] * vy + changes[2, 1, 2] * vz + j10 * wy - j11 * wx
            out[i, 5 * k] = c0 * vx + c1 * vy + c2 * vz
            out[i, 5 * k + 1] = d0 * vx + d1 * vy + d2 * vz
            out[i, 5 * k + 2] = F(2.0) * (a0 * Y[0] + a1 * Y[1] + a2 * Y[2])
            out[i, 5 * k + 3] = a0 * Y[3] + a1 * Y[4] + a2 * Y[5] + b0 * Y[0] + b1 * Y[1] + b2 * Y[2]
            out[i, 5 * k + 4] = F(2.0) * (b0 * Y[3] + b1 * Y[4] + b2 * Y[5])


@njit(**INLINE)
def camera_shape(S: Any, i: Any, axes: Any, R: Any, b: Any) -> Any:
    """The covariance in the camera's frame times both rows of J: R S A^T, first column then second (3 each)."""
    a0, a1, a2, b0, b1, b2 = axes
    p0 = S[i, 0] * a0 + S[i, 1] * a1 + S[i, 2] * a2
    p1 = S[i, 1] * a0 + S[i, 3] * a1 + S[i, 4] * a2
    p2 = S[i, 2] * a0 + S[i, 4] * a1 + S[i, 5] * a2
    q0 = S[i, 0] * b0 + S[i, 1] * b1 + S[i, 2] * b2
    q1 = S[i, 1] * b0 + S[i, 3] * b1 + S[i, 4] * b2
    q2 = S[i, 2] * b0 + S[i, 4] * b1 + S[i, 5] * b2
    return (
        R[b, 0] * p0 + R[b, 1] * p1 + R[b, 2] * p2,
        R[b, 4] * p0 + R[b, 5] * p1 + R[b, 6] * p2,
        R[b, 8] * p0 + R[b, 9] * p1 + R[b, 10] * p2,
        R[b, 0] * q0 + R[b, 1] * q1 + R[b, 2] * q2,
        R[b, 4] * q0 + R[b, 5] * q1 + R[b, 6] * q2,
        R[b, 8] * q0 + R[b, 9] * q1 + R[b, 10] * q2,
    )
