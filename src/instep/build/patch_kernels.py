"""PatchMatch stereo on one image: compiled search for the plane of every pixel that other views confirm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from instep.splat.raster.simd import INLINE, KERNEL

REACH, STRIDE = 5, 2
"""Half the width of a patch and the distance of its samples [pixels]."""
SIDE = 2 * REACH // STRIDE + 1
_NEARBY, _SHRINK = 0.1, 0.4
"""Reach of random changes of the depth in the first round, as a share of its range, and its factor in each later."""
_TILT, _TILT_SHRINK = 0.5, 0.6
"""The same of the normal."""
_STEEPEST = -1e-3
"""Normal along the ray above which a plane is seen edge on."""
_SURE = 1.01
"""A correlation that no patch has."""


@njit(**KERNEL)
def search_planes(
    image: Any, inside: Any, near: Any, far: Any, guess: Any, lens: Any, images: Any, poses: Any, lenses: Any,
    contrast: Any, unsteady: Any, rounds: Any, rng: Any, depth: Any, normal: Any, score: Any, textured: Any,
) -> None:  # fmt: skip
    """Find depth and normal of the pixels `inside`, which may hold a first guess, with their correlation.

    `guess` are normals of the hull, `poses` rotation and translation from this camera to each other one [views, 12],
    `lenses` their focal lengths, centre, width and height [views, 6]. `unsteady` is what a difference of brightness
    costs: correlation per its square.
    """
    height, width = image.shape
    patch, pixels = np.empty((3, SIDE * SIDE), np.float32), np.empty((2, SIDE * SIDE), np.float32)
    scores, trial, tilt, count = np.empty(images.shape[0]), np.zeros(3), np.zeros(3), np.zeros(3)
    for turn in range(rounds):
        step = -1 if turn % 2 == 0 else 1
        for i in range(height * width):
            at = i if step < 0 else height * width - 1 - i
            y, x = at // width, at % width
            if not inside[y, x] or not _patch(image, inside, y, x, contrast, lens, patch, count):
                continue
            textured[y, x] = True
            ax, ay = (x + 0.5 - lens[2]) / lens[0], (y + 0.5 - lens[3]) / lens[1]
            span = far[y, x] - near[y, x]
            for attempt in range(6):
                d = 0.0
                if attempt == 0:  # what it has, or the hull
                    if turn > 0:
                        continue
                    d = depth[y, x]
                    trial[:] = normal[y, x]
                    if not d > 0.0:
                        d = near[y, x]
                        trial[:] = guess[y, x]
                elif attempt <= 2:  # the planes of the pixels that were visited before
                    r, c = (y, x + step) if attempt == 1 else (y + step, x)
                    if r < 0 or c < 0 or r >= height or c >= width or score[r, c] <= -1.0:
                        continue
                    trial[:] = normal[r, c]
                    slope = trial[0] * ax + trial[1] * ay + trial[2]
                    if slope > _STEEPEST:
                        continue
                    bx, by = (c + 0.5 - lens[2]) / lens[0], (r + 0.5 - lens[3]) / lens[1]
                    d = depth[r, c] * (trial[0] * bx + trial[1] * by + trial[2]) / slope
                elif attempt == 3:  # anywhere
                    d = near[y, x] + rng.random() * span
                    trial[:] = guess[y, x]
                    if rng.random() < 0.5:
                        for a in range(3):
                            trial[a] = rng.standard_normal()
                else:  # nearby
                    if score[y, x] <= -1.0:
                        continue
                    d = depth[y, x] + _NEARBY * _SHRINK**turn * span * (2.0 * rng.random() - 1.0)
                    for a in range(3):
                        change = _TILT * _TILT_SHRINK**turn * (2.0 * rng.random() - 1.0)
                        trial[a] = normal[y, x, a] + change
                length = np.sqrt(trial[0] ** 2 + trial[1] ** 2 + trial[2] ** 2)
                if length < 1e-9 or d < 0.999 * near[y, x] or d > 1.001 * far[y, x]:
                    continue
                trial /= length if trial[0] * ax + trial[1] * ay + trial[2] < 0 else -length
                value = _correlation(
                    ax, ay, d, trial, lens, images, poses, lenses, patch, count, scores, pixels, tilt, unsteady
                )
                if value > score[y, x]:
                    score[y, x] = value
                    depth[y, x] = d
                    normal[y, x] = trial


@njit(**KERNEL)
def _patch(image: Any, inside: Any, y: Any, x: Any, contrast: Any, lens: Any, patch: Any, count: Any) -> bool:
    """Take the samples of the patch around a pixel that are on the object: brightness less its mean, and how far their
    rays are from that of the pixel; number, mean and deviation. False if it shows nothing."""
    height, width = image.shape
    n, s, ss = 0, 0.0, 0.0
    for dy in range(-REACH, REACH + 1, STRIDE):
        for dx in range(-REACH, REACH + 1, STRIDE):
            r, c = y + dy, x + dx
            if r >= 0 and c >= 0 and r < height and c < width and inside[r, c]:
                value = image[r, c]
                patch[0, n], patch[1, n], patch[2, n] = value, dx / lens[0], dy / lens[1]
                n += 1
                s += value
                ss += value * value
    if 2 * n < SIDE * SIDE:
        return False
    variance = ss / n - (s / n) ** 2
    count[0], count[1], count[2] = n, s / n, np.sqrt(max(variance, 0.0))
    for k in range(n):
        patch[0, k] -= np.float32(count[1])
    return variance > contrast * contrast


@njit(**KERNEL)
def _correlation(
    ax: Any, ay: Any, depth: Any, normal: Any, lens: Any, images: Any, poses: Any, lenses: Any, patch: Any,
    count: Any, scores: Any, pixels: Any, tilt: Any, unsteady: Any,
) -> float:  # fmt: skip
    """Mean correlation of a patch with its image in the better half of the other views, at least two."""
    n, slope = int(count[0]), normal[0] * ax + normal[1] * ay + normal[2]
    if slope + REACH * (abs(normal[0]) / lens[0] + abs(normal[1]) / lens[1]) > _STEEPEST:
        for k in range(n):
            if slope + normal[0] * patch[1, k] + normal[1] * patch[2, k] > _STEEPEST:
                return -1.0
    level = depth * slope
    for a in range(3):
        tilt[a] = normal[a] / level
    for v in range(images.shape[0]):
        scores[v] = -1.0
        if _projected(ax, ay, tilt, v, poses, lenses, patch, n, pixels):
            scores[v] = _likeness(v, images, pixels, patch, n, count, unsteady)
    kept, total = max(2, images.shape[0] // 3), 0.0
    for _ in range(kept):
        best = np.argmax(scores)
        total += scores[best]
        scores[best] = -_SURE
    return total / kept


@njit(**INLINE)
def _projected(
    ax: Any, ay: Any, tilt: Any, v: Any, w: Any, l: Any, patch: Any, n: Any, pixels: Any
) -> bool:  # fmt: skip
    """Where another view sees the samples of a patch on the plane tilt . p = 1; false if it does not see all of them.

    The homography R + t tilt^T takes rays of one view to those of the other: here at the middle of the patch, and its
    changes along the rays.
    """
    gx, gy = w[v, 6] + w[v, 11] * tilt[0], w[v, 7] + w[v, 11] * tilt[1]
    g = gx * ax + gy * ay + w[v, 8] + w[v, 11] * tilt[2]
    ex, ey = w[v, 0] + w[v, 9] * tilt[0], w[v, 1] + w[v, 9] * tilt[1]
    e = ex * ax + ey * ay + w[v, 2] + w[v, 9] * tilt[2]
    fx, fy = w[v, 3] + w[v, 10] * tilt[0], w[v, 4] + w[v, 10] * tilt[1]
    f = fx * ax + fy * ay + w[v, 5] + w[v, 10] * tilt[2]
    cx, cy, one = l[v, 2] - 0.5, l[v, 3] - 0.5, np.float32(1.0)
    ux, uy, u0 = (
        np.float32(l[v, 0] * ex + cx * gx),
        np.float32(l[v, 0] * ey + cx * gy),
        np.float32(l[v, 0] * e + cx * g),
    )
    tx, ty, t0 = (
        np.float32(l[v, 1] * fx + cy * gx),
        np.float32(l[v, 1] * fy + cy * gy),
        np.float32(l[v, 1] * f + cy * g),
    )
    zx, zy, z0 = np.float32(gx), np.float32(gy), np.float32(g)
    far = np.float32(1e9)
    left, right, top, bottom, ahead = far, -far, far, -far, far
    for k in range(n):
        dx, dy = patch[1, k], patch[2, k]
        z = zx * dx + zy * dy + z0
        u, t = (ux * dx + uy * dy + u0) * (one / z), (tx * dx + ty * dy + t0) * (one / z)
        pixels[0, k], pixels[1, k] = u, t
        left, right, top, bottom = min(left, u), max(right, u), min(top, t), max(bottom, t)
        ahead = min(ahead, z)
    return bool(ahead > 1e-6 and left >= 0.0 and top >= 0.0 and right < l[v, 4] - 1 and bottom < l[v, 5] - 1)


@njit(**INLINE)
def _likeness(v: Any, images: Any, pixels: Any, patch: Any, n: Any, count: Any, unsteady: Any) -> float:
    """Correlation of a patch with the brightness of an image at some pixels, less what another brightness costs; -1 if
    those show nothing."""
    one, mean = np.float32(1.0), np.float32(count[1])
    s, ss, sp = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for k in range(n):
        u, t = pixels[0, k], pixels[1, k]
        a, b = np.uint32(np.int32(u)), np.uint32(np.int32(t))  # unsigned: not counted from the end
        p, q = u - np.float32(np.int32(u)), t - np.float32(np.int32(t))
        above = (one - p) * images[v, b, a] + p * images[v, b, a + np.uint32(1)]
        below = (one - p) * images[v, b + np.uint32(1), a] + p * images[v, b + np.uint32(1), a + np.uint32(1)]
        there = (one - q) * above + q * below - mean
        s += there
        ss += there * there
        sp += there * patch[0, k]
    variance = ss / n - (s / n) ** 2
    if variance <= 1e-6:
        return -1.0
    return max(sp / n / (count[2] * np.sqrt(variance)) - unsteady * (s / n) ** 2, -1.0)
