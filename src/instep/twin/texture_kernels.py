"""Compiled tracking of texture on the faces of a body, and the silhouette of a triangle mesh.

A point of the texture is a place X on the body with two tangents A = dX/d(u, v), which map steps in the image that it
was learned from to steps on its face. At another pose the patch around it appears warped by W = du'/dX A; only its
translation is searched, from coarse to fine, by inverse compositional alignment of normalised grey levels.

A mesh need not be convex. It is drawn at its pose. A pixel of it that borders on one that shows no mesh is on the
contour, with the point of the surface that it shows and the outward normal n of the silhouette. A pixel at the signed
distance d of its nearest contour pixel is predicted to show the body by c(d) = 1 / (1 + exp(d / s)), as beside a convex
outline, and

    dc/dxi = c (1 - c) / s  n . du/dxi,     u the contour point

so that two sums per contour pixel stand for all columns.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .silhouette_kernels import INLINE, OPTIONS, project_corners

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.


HALF = 5
"""Half of the side of a patch [pixels]."""
SIDE = 2 * HALF + 1
AREA = SIDE * SIDE
INNER = (SIDE - 2) ** 2
"""Pixels of a patch that have a neighbour on every side."""
LEVELS = 3
"""Levels of the pyramid, each half as fine as the one before."""
ITERATIONS = 6
"""Steps of alignment per level."""


@njit(**OPTIONS)
def grey_pyramid(pixels):  # pragma: no cover - compiled
    """Grey levels of pixels [height, width, 3], and the same at half and a quarter of the size."""
    height, width = pixels.shape[:2]
    fine = np.empty((height, width), np.float32)
    for i in range(height):
        for j in range(width):
            fine[i, j] = 0.3 * pixels[i, j, 0] + 0.59 * pixels[i, j, 1] + 0.11 * pixels[i, j, 2]
    half = _halved(fine)
    return fine, half, _halved(half)


@njit(**OPTIONS)
def _halved(image):  # pragma: no cover - compiled
    height, width = image.shape[0] // 2, image.shape[1] // 2
    out = np.empty((height, width), np.float32)
    for i in range(height):
        for j in range(width):
            a, b = 2 * i, 2 * j
            out[i, j] = 0.25 * (image[a, b] + image[a + 1, b] + image[a, b + 1] + image[a + 1, b + 1])
    return out


@njit(**OPTIONS)
def _patch(image, x, y, warp, out):  # pragma: no cover - compiled
    """Sample a patch around a place, warped [2, 2], at mean 0 and variance 1; its deviation, NaN where it leaves.

    Places are in pixels, whose centres are at halves.
    """
    # A little more than is needed: places are rounded otherwise than their bounds, and must not leave the image.
    wide = HALF * (abs(warp[0, 0]) + abs(warp[0, 1])) + 1e-6
    high = HALF * (abs(warp[1, 0]) + abs(warp[1, 1])) + 1e-6
    x, y = x - 0.5, y - 0.5
    # Written so that a place that is not a number is outside.
    if not (x - wide >= 0 and y - high >= 0 and x + wide < image.shape[1] - 1 and y + high < image.shape[0] - 1):
        return np.nan
    total = squared = 0.0
    k = 0
    for i in range(-HALF, HALF + 1):
        for j in range(-HALF, HALF + 1):
            u, v = x + warp[0, 0] * j + warp[0, 1] * i, y + warp[1, 0] * j + warp[1, 1] * i
            column, row = int(u), int(v)
            a, b = np.float32(v - row), np.float32(u - column)
            r, c = np.uint64(row), np.uint64(column)
            top = image[r, c] + b * (image[r, c + np.uint64(1)] - image[r, c])
            r += np.uint64(1)
            low = image[r, c] + b * (image[r, c + np.uint64(1)] - image[r, c])
            value = top + a * (low - top)
            out[k] = value
            total += value
            squared += value * value
            k += 1
    mean = total / AREA
    deviation = math.sqrt(max(squared / AREA - mean * mean, 1e-6))
    over = 1.0 / deviation
    for k in range(AREA):
        out[k] = (out[k] - mean) * over
    return deviation


@njit(**OPTIONS)
def learn_patches(pyramid, points, patches):  # pragma: no cover - compiled
    """Sample the patches [n, LEVELS, AREA] around points [n, 2] of an image; NaN where a level does not hold one."""
    straight = np.eye(2)
    for n in range(points.shape[0]):
        for level in range(LEVELS):
            scale = 2.0**-level
            image = pyramid[0] if level == 0 else pyramid[1] if level == 1 else pyramid[2]
            if np.isnan(_patch(image, points[n, 0] * scale, points[n, 1] * scale, straight, patches[n, level])):
                patches[n, level, 0] = np.nan


@njit(**OPTIONS)
def follow_patches(pyramid, points, warps, patches, limits, found):  # pragma: no cover - compiled
    """Move points [n, 2] to where their patches fit, and write the correlation of each to `found` [n]; 0 for none.

    `limits` holds the least correlation and the largest way from the prediction [pixels].
    """
    now, slopes = np.empty(AREA), np.empty((2, INNER))
    for n in range(points.shape[0]):
        found[n] = 0.0
        x, y = points[n, 0], points[n, 1]
        warp = warps[n]
        if abs(warp[0, 0] * warp[1, 1] - warp[0, 1] * warp[1, 0]) < 0.15:
            continue
        good, alike = True, 0.0
        for level in range(LEVELS - 1, -1, -1):
            template = patches[n, level]
            if np.isnan(template[0]):
                continue
            image = pyramid[0] if level == 0 else pyramid[1] if level == 1 else pyramid[2]
            x, y, alike = _aligned(image, (x, y), warp, template, 2.0**level, (now, slopes))
            if not np.isfinite(alike):
                good = False
                break
        away = math.sqrt((x - points[n, 0]) ** 2 + (y - points[n, 1]) ** 2)
        if good and alike > limits[0] and away < limits[1]:
            points[n, 0], points[n, 1], found[n] = x, y, alike


@njit(**OPTIONS)
def _aligned(image, place, warp, template, scale, room):  # pragma: no cover - compiled
    """Place and correlation after alignment at one level; the correlation is NaN where the patch leaves the image.

    `room` is for a patch [AREA] and the slopes of the template [2, INNER].
    """
    (x, y), (now, slopes) = place, room
    a = b = c = 0.0
    n = 0
    for i in range(1, SIDE - 1):
        for j in range(1, SIDE - 1):
            k = i * SIDE + j
            gx, gy = 0.5 * (template[k + 1] - template[k - 1]), 0.5 * (template[k + SIDE] - template[k - SIDE])
            a, b, c = a + gx * gx, b + gx * gy, c + gy * gy
            slopes[0, n], slopes[1, n] = gx, gy
            n += 1
    det = a * c - b * b
    if det < 1e-6:
        return x, y, np.nan
    alike = 0.0
    for _ in range(ITERATIONS):
        if np.isnan(_patch(image, x / scale, y / scale, warp, now)):
            return x, y, np.nan
        p = q = alike = 0.0
        for k in range(AREA):
            alike += now[k] * template[k]
        n = 0
        for i in range(1, SIDE - 1):
            for k in range(i * SIDE + 1, (i + 1) * SIDE - 1):
                e = now[k] - template[k]
                p += slopes[0, n] * e
                q += slopes[1, n] * e
                n += 1
        u, v = (c * p - b * q) / det, (a * q - b * p) / det
        size = math.sqrt(u * u + v * v)
        if size > 2.0:
            u, v = 2.0 * u / size, 2.0 * v / size
        x -= scale * (warp[0, 0] * u + warp[0, 1] * v)
        y -= scale * (warp[1, 0] * u + warp[1, 1] * v)
        if size < (0.03 if scale == 1 else 0.1):
            break  # finer levels go on from here
    return x, y, alike / AREA


@njit(**OPTIONS)
def render_faces(faces, world_from_body, camera, region, depth, owner):  # pragma: no cover - compiled
    """Draw the triangles of a body into a depth image [height, width] [m]; `owner` takes the number of the nearest.

    `faces` is vertices [n, 3] and triangles [m, 3].
    """
    vertices, triangles = faces
    world_from_camera, _, _, _ = camera
    left, top, right, bottom = region
    points, _ = project_corners(vertices, world_from_body, camera)
    if not np.isfinite(points[0, 0]):
        return
    z = np.empty(vertices.shape[0])
    for i in range(vertices.shape[0]):
        z[i] = 0.0
        for a in range(3):
            p = world_from_body[a, 3] - world_from_camera[a, 3]
            for b in range(3):
                p += world_from_body[a, b] * vertices[i, b]
            z[i] += world_from_camera[a, 2] * p
        z[i] = 1.0 / z[i]
    for t in range(triangles.shape[0]):
        a, b, c = triangles[t, 0], triangles[t, 1], triangles[t, 2]
        ax, ay, bx, by, cx, cy = points[a, 0], points[a, 1], points[b, 0], points[b, 1], points[c, 0], points[c, 1]
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        if abs(area) < 1e-9:
            continue
        first, last = max(int(min(ay, by, cy)), top), min(int(max(ay, by, cy)) + 1, bottom)
        begin, end = max(int(min(ax, bx, cx)), left), min(int(max(ax, bx, cx)) + 1, right)
        over = 1.0 / area
        across_u, across_v = (by - cy) * over, (cy - ay) * over
        for y in range(first, last):
            py = y + 0.5
            u0 = ((bx - 0.5) * (cy - py) - (by - py) * (cx - 0.5)) * over
            v0 = ((cx - 0.5) * (ay - py) - (cy - py) * (ax - 0.5)) * over
            low, high = _span(u0, across_u, float(begin), float(end))
            low, high = _span(v0, across_v, low, high)
            low, high = _span(1.0 - u0 - v0, -across_u - across_v, low, high)
            for x in range(int(low), int(high)):
                u, v = u0 + across_u * x, v0 + across_v * x
                w = 1.0 - u - v
                if u < 0 or v < 0 or w < 0:
                    continue
                near = 1.0 / (u * z[a] + v * z[b] + w * z[c])
                if near < depth[y - top, x - left]:
                    depth[y - top, x - left], owner[y - top, x - left] = near, t


@njit(**INLINE)
def _span(start, slope, low, high):  # pragma: no cover - compiled
    """The part of a range of x in which start + slope x is not negative, rounded outwards to whole numbers."""
    if slope > 0:
        return max(low, math.floor(-start / slope)), high
    if slope < 0:
        return low, min(high, math.ceil(-start / slope) + 1.0)
    return (low, high) if start >= 0 else (low, low)


@njit(**OPTIONS)
def texture_corners(grey, allowed, spacing, least, out):  # pragma: no cover - compiled
    """Write the places of texture corners to `out` [n, 2], strongest first, `spacing` pixels apart; return how many.

    A corner has a smallest eigenvalue of the structure tensor of 7 x 7 pixels above `least`, where `allowed`.
    """
    height, width = grey.shape
    strength = np.zeros((height, width), np.float32)
    products = np.zeros((3, height, width))
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            gx, gy = 0.5 * (grey[i, j + 1] - grey[i, j - 1]), 0.5 * (grey[i + 1, j] - grey[i - 1, j])
            products[0, i, j], products[1, i, j], products[2, i, j] = gx * gx, gx * gy, gy * gy
    # Sums over columns of seven pixels first: a window is then seven sums in place of 49 products.
    columns = np.zeros((3, width))
    for i in range(5, height - 5, 2):
        columns[:] = 0.0
        for a in range(3):
            for y in range(i - 3, i + 4):
                for x in range(width):
                    columns[a, x] += products[a, y, x]
        for j in range(5, width - 5, 2):
            if not allowed[i, j]:
                continue
            a = b = c = 0.0
            for x in range(j - 3, j + 4):
                a, b, c = a + columns[0, x], b + columns[1, x], c + columns[2, x]
            strength[i, j] = 0.5 * (a + c - math.sqrt((a - c) ** 2 + 4 * b * b)) / 49.0
    n = 0
    strong = np.flatnonzero(strength.ravel() > least)
    for at in strong[np.argsort(-strength.ravel()[strong], kind="mergesort")]:
        i, j = at // width, at % width
        if n >= out.shape[0]:
            break
        if strength[i, j] <= 0.0:
            continue  # near to a stronger one
        out[n, 0], out[n, 1] = j + 0.5, i + 0.5
        n += 1
        for y in range(max(i - spacing, 0), min(i + spacing + 1, height)):
            for x in range(max(j - spacing, 0), min(j + spacing + 1, width)):
                strength[y, x] = 0.0
    return n


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
