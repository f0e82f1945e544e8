"""Compiled normal equations of the silhouette of a triangle mesh, which need not be convex.

The mesh is drawn at its pose. A pixel of it that borders on one that shows no mesh is on the contour, with the point of
the surface that it shows and the outward normal n of the silhouette. A pixel at the signed distance d of its nearest
contour pixel is predicted to show the body by c(d) = 1 / (1 + exp(d / s)), as beside a convex outline, and

    dc/dxi = c (1 - c) / s  n . du/dxi,     u the contour point

so that two sums per contour pixel stand for all columns.
"""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .silhouette_kernels import OPTIONS
from .texture_kernels import render_faces

SMOOTHING = 3
"""Pixels around one on the contour from which its normal is taken."""
HALF_PIXEL = 0.5
"""Distance from the centre of a pixel of the contour to the contour itself [pixels]."""


@njit(**OPTIONS)
def mesh_contour(faces, world_from_body, camera, region, reach):  # pragma: no cover - compiled
    """Draw a mesh into a region; signed distances, numbers of nearest contour pixels [height, width], and the contour.

    Distances are exact up to `reach` pixels from the contour and beyond it by sign alone. The contour is [n, 5]: place,
    outward normal, distance from the camera's plane [m].
    """
    left, top, right, bottom = region
    height, width = bottom - top, right - left
    depth, owner = np.full((height, width), np.inf), np.full((height, width), -1)
    render_faces(faces, world_from_body, camera, region, depth, owner)
    contour = _contour(owner, depth)
    far = np.full((height, width), 1e9, np.float32)
    nearest = np.full((height, width), -1, np.int32)
    for n in range(contour.shape[0]):
        x, y = int(contour[n, 0]), int(contour[n, 1])
        for i in range(max(y - reach, 0), min(y + reach + 1, height)):
            for j in range(max(x - reach, 0), min(x + reach + 1, width)):
                squared = (i - y) ** 2 + (j - x) ** 2
                if squared < far[i, j]:
                    far[i, j], nearest[i, j] = squared, n
    for i in range(height):
        for j in range(width):
            d = math.sqrt(far[i, j]) if nearest[i, j] >= 0 else reach + 1.0
            far[i, j] = d - HALF_PIXEL if owner[i, j] < 0 else -d - HALF_PIXEL
    return far, nearest, contour


@njit(**OPTIONS)
def _contour(owner, depth):  # pragma: no cover - compiled
    """Pixels of the mesh that border on others [n, 5]: place in the region, outward normal, distance [m]."""
    height, width = owner.shape
    found = np.empty((4 * (height + width) * 4, 5))
    n = 0
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            if owner[i, j] < 0 or n >= found.shape[0]:
                continue
            if owner[i - 1, j] >= 0 and owner[i + 1, j] >= 0 and owner[i, j - 1] >= 0 and owner[i, j + 1] >= 0:
                continue
            nx = ny = 0.0
            for a in range(max(i - SMOOTHING, 0), min(i + SMOOTHING + 1, height)):
                for b in range(max(j - SMOOTHING, 0), min(j + SMOOTHING + 1, width)):
                    if owner[a, b] < 0:
                        nx += b - j
                        ny += a - i
                    else:
                        nx -= b - j
                        ny -= a - i
            length = math.sqrt(nx * nx + ny * ny)
            if length > 1e-6:
                found[n, 0], found[n, 1], found[n, 2], found[n, 3] = j, i, nx / length, ny / length
                found[n, 4] = depth[i, j]
                n += 1
    return found[:n]


@njit(**OPTIONS)
def mesh_equations(drawn, motion, camera, pixels, edge):  # pragma: no cover - compiled
    """J^T W J [k, k], J^T W r [k] of a drawn mesh and the tally [8] of `outline_equations`.

    `drawn` is what `mesh_contour` returned for the region of the pixels; `motion` is (transform, basis).
    """
    (far, nearest, contour), (world_from_body, basis) = drawn, motion
    mask, weight, region = pixels
    soft, robust = edge
    k = basis.shape[1]
    H, g, tally = np.zeros((k, k)), np.zeros(k), np.zeros(8)
    sums = np.zeros((contour.shape[0], 2))
    for i in range(far.shape[0]):
        for j in range(far.shape[1]):
            d, w, m = far[i, j], float(weight[i, j]), float(mask[i, j])
            inside, shown = (1.0 if d < 0 else 0.0), (1.0 if m > 0.5 else 0.0)
            tally[4] += inside
            if w <= 0:
                continue
            tally[2] += inside * shown * w
            tally[3] += max(inside, shown) * w
            tally[5] += inside * w
            tally[6] += shown * w
            z = d / soft
            steep = abs(z) <= 6.0 and nearest[i, j] >= 0
            c = 1.0 / (1.0 + math.exp(z)) if steep else inside
            r = c - m
            if abs(r) > robust:
                w *= robust / abs(r)
            tally[0] += w * r * r
            tally[1] += w
            if steep:
                gradient = c * (1.0 - c) / soft
                sums[nearest[i, j], 0] += w * gradient * gradient
                sums[nearest[i, j], 1] += w * gradient * r
    tally[7] = tally[4]
    row = np.empty(k)
    for n in range(contour.shape[0]):
        if sums[n, 0] > 0:
            _contour_row(contour[n], region, world_from_body, camera, basis, row)
            for p in range(k):
                g[p] += sums[n, 1] * row[p]
                for q in range(k):
                    H[p, q] += sums[n, 0] * row[p] * row[q]
    return H, g, tally


@njit(**OPTIONS)
def _contour_row(place, region, world_from_body, camera, basis, row):  # pragma: no cover - compiled
    """n . du/dxi along the columns of a basis, of one contour pixel; of the lens, its distortion is neglected."""
    world_from_camera, lens, _, _ = camera
    x = (place[0] + region[0] + 0.5 - lens[2]) / lens[0]
    y = (place[1] + region[1] + 0.5 - lens[3]) / lens[1]
    z, nx, ny = place[4], place[2], place[3]
    arm, gradient = np.empty(3), np.empty(3)
    for a in range(3):
        p = world_from_camera[a, 3]
        p += z * (world_from_camera[a, 0] * x + world_from_camera[a, 1] * y + world_from_camera[a, 2])
        arm[a] = p - world_from_body[a, 3]
        gradient[a] = nx * lens[0] / z * (world_from_camera[a, 0] - x * world_from_camera[a, 2])
        gradient[a] += ny * lens[1] / z * (world_from_camera[a, 1] - y * world_from_camera[a, 2])
    turn0 = arm[1] * gradient[2] - arm[2] * gradient[1]
    turn1 = arm[2] * gradient[0] - arm[0] * gradient[2]
    turn2 = arm[0] * gradient[1] - arm[1] * gradient[0]
    for q in range(row.shape[0]):
        row[q] = gradient[0] * basis[0, q] + gradient[1] * basis[1, q] + gradient[2] * basis[2, q]
        row[q] += turn0 * basis[3, q] + turn1 * basis[4, q] + turn2 * basis[5, q]
