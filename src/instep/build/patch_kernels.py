"""PatchMatch stereo on one image: compiled search for the plane of every pixel that other views confirm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from instep.splat.raster.simd import KERNEL

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
    contrast: Any, rounds: Any, rng: Any, depth: Any, normal: Any, score: Any, textured: Any,
) -> None:  # fmt: skip
    """Find depth and normal of the pixels `inside`, which may hold a first guess, with their correlation.

    `guess` are normals of the hull, `poses` rotation and translation from this camera to each other one [views, 12],
    `lenses` their focal lengths, centre, width and height [views, 6].
    """
    height, width = image.shape
    patch, scores, trial, count = np.empty(SIDE * SIDE), np.empty(images.shape[0]), np.zeros(3), np.zeros(3)
    for turn in range(rounds):
        step = -1 if turn % 2 == 0 else 1
        for i in range(height * width):
            at = i if step < 0 else height * width - 1 - i
            y, x = at // width, at % width
            if not inside[y, x] or not _patch(image, inside, y, x, contrast, patch, count):
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
                value = _correlation(ax, ay, d, trial, lens, images, poses, lenses, patch, count, scores)
                if value > score[y, x]:
                    score[y, x] = value
                    depth[y, x] = d
                    normal[y, x] = trial


@njit(**KERNEL)
def _patch(image: Any, inside: Any, y: Any, x: Any, contrast: Any, patch: Any, count: Any) -> bool:
    """Take the patch around a pixel, -1 beside the object; number, mean and deviation. False if it shows nothing."""
    height, width = image.shape
    n, s, ss, k = 0, 0.0, 0.0, 0
    for dy in range(-REACH, REACH + 1, STRIDE):
        for dx in range(-REACH, REACH + 1, STRIDE):
            r, c = y + dy, x + dx
            patch[k] = -1.0
            if r >= 0 and c >= 0 and r < height and c < width and inside[r, c]:
                value = image[r, c]
                patch[k] = value
                n += 1
                s += value
                ss += value * value
            k += 1
    if 2 * n < SIDE * SIDE:
        return False
    variance = ss / n - (s / n) ** 2
    count[0], count[1], count[2] = n, s / n, np.sqrt(max(variance, 0.0))
    return variance > contrast * contrast


@njit(**KERNEL)
def _correlation(
    ax: Any, ay: Any, depth: Any, normal: Any, lens: Any, images: Any, poses: Any, lenses: Any, patch: Any,
    count: Any, scores: Any,
) -> float:  # fmt: skip
    """Mean correlation of a patch with its image in the better half of the other views, at least two."""
    level = depth * (normal[0] * ax + normal[1] * ay + normal[2])  # of the plane: n . p = level
    n, mean, spread = count[0], count[1], count[2]
    for v in range(images.shape[0]):
        w, l = poses[v], lenses[v]
        s, ss, sp, k = 0.0, 0.0, 0.0, 0
        good = True
        for dy in range(-REACH, REACH + 1, STRIDE):
            for dx in range(-REACH, REACH + 1, STRIDE):
                value = patch[k]
                k += 1
                if value < 0.0 or not good:
                    continue
                qx, qy = ax + dx / lens[0], ay + dy / lens[1]
                slope = normal[0] * qx + normal[1] * qy + normal[2]
                z = level / slope
                oz = (w[6] * qx + w[7] * qy + w[8]) * z + w[11]
                u = ((w[0] * qx + w[1] * qy + w[2]) * z + w[9]) / oz * l[0] + l[2] - 0.5
                t = ((w[3] * qx + w[4] * qy + w[5]) * z + w[10]) / oz * l[1] + l[3] - 0.5
                if slope > _STEEPEST or oz <= 1e-6 or not (0.0 <= u < l[4] - 1 and 0.0 <= t < l[5] - 1):
                    good = False
                    continue
                a, b = int(u), int(t)
                p, q = u - a, t - b
                there = (1 - q) * ((1 - p) * images[v, b, a] + p * images[v, b, a + 1]) + q * (
                    (1 - p) * images[v, b + 1, a] + p * images[v, b + 1, a + 1]
                )
                s += there
                ss += there * there
                sp += there * value
        variance = ss / n - (s / n) ** 2
        scores[v] = (sp / n - mean * s / n) / (spread * np.sqrt(variance)) if good and variance > 1e-6 else -1.0
    kept, total = max(2, images.shape[0] // 2), 0.0
    for _ in range(kept):
        best = np.argmax(scores)
        total += scores[best]
        scores[best] = -_SURE
    return total / kept
