"""What does not move in the pictures of a camera that stands still."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.world import Array

from .simd import FAST

_ALIKE = 20.0
"""Largest difference of brightness [grey levels of 255] at which a pixel still shows the same thing."""
_MIDDLE = 0.3
"""How much more unlike the guess the middle may be than another candidate."""
_ENOUGH = 3
"""Frames in which a pixel must be free for anything to be known of it."""


def still_picture(images: Array, ignore: Array | None = None) -> tuple[Array, Array]:
    """The unmoving picture [height, width, 3], 0 to 1, and in what share of the free frames each pixel shows it.

    `images` [frames, height, width, 3] uint8; `ignore` [frames, height, width] is where something known is in the way.
    Of the things a pixel shows it is the one in the middle.
    """
    return _choose(images, ignore, np.zeros((0, 0, 3), np.float32))


def likeliest_picture(images: Array, guess: Array, ignore: Array | None = None) -> tuple[Array, Array]:
    """As `still_picture`, where something may be in the way most of the time.

    Of the things a pixel shows, it is one that it shows often and that is like the guess [height, width, 3] that a fit
    to several cameras gives: what is in the way of one of them is not in the way of all.
    """
    picture, share = _choose(images, ignore, np.ascontiguousarray(guess, np.float32))
    far = np.abs(picture - guess).max(axis=-1) > 0.35
    return picture, np.where(far, np.float32(0.0), share)


def moving(image: Array, still: Array, *, least: int = 40) -> Array:
    """Where an image [height, width, 3] uint8 shows something else than the still picture: blobs of some pixels."""
    from scipy.ndimage import binary_dilation, label

    other = np.abs(image / 255.0 - still).max(axis=-1) > 0.15
    labelled: Any = label(other)  # scipy's types do not say that it is a pair
    blobs = labelled[0]
    sizes = np.bincount(blobs.ravel())
    sizes[0] = 0
    return binary_dilation((sizes >= least)[blobs], iterations=3)


def _choose(images: Array, ignore: Array | None, guess: Array) -> tuple[Array, Array]:
    images = np.ascontiguousarray(images, np.uint8)
    if len(images) == 0:
        raise BadInput("A still picture needs at least one image, and none was given.")
    hidden = np.zeros(images.shape[:3], np.bool_) if ignore is None else np.ascontiguousarray(ignore, np.bool_)
    picture = np.zeros(images.shape[1:], np.float32)
    share = np.zeros(images.shape[1:3], np.float32)
    _choose_pixels(images, hidden, guess, min(_ENOUGH, len(images)), picture, share)
    return picture, share


@njit(**FAST)
def _choose_pixels(images: Any, hidden: Any, guess: Any, enough: Any, picture: Any, share: Any) -> None:
    """For each pixel, try some quantiles of its brightness and take the mean of what is like the best of them."""
    frames, height, width = hidden.shape
    levels, order, free = np.empty(frames), np.empty(frames), np.empty(frames, np.int64)
    mean = np.empty(3)
    for y in range(height):
        for x in range(width):
            n = 0
            for f in range(frames):
                if not hidden[f, y, x]:
                    level = (float(images[f, y, x, 0]) + float(images[f, y, x, 1]) + float(images[f, y, x, 2])) / 3.0
                    levels[n], free[n] = level, f
                    j = n
                    while j > 0 and order[j - 1] > level:
                        order[j] = order[j - 1]
                        j -= 1
                    order[j] = level
                    n += 1
            best = -1e9
            for quantile in range(1, 10, 2):
                if n == 0 or (len(guess) == 0 and quantile != 5):
                    continue
                level = order[(quantile * (n - 1)) // 10]
                count = 0
                mean[:] = 0.0
                for k in range(n):
                    if abs(levels[k] - level) <= _ALIKE:
                        count += 1
                        for channel in range(3):
                            mean[channel] += images[free[k], y, x, channel]
                # What is in the middle is taken unless it is unlike the guess: neighbours then choose alike.
                score, apart = count / n, -_MIDDLE if quantile == 5 else 0.0
                for channel in range(3):
                    mean[channel] /= 255.0 * count
                worst = 0.0
                for channel in range(3 if len(guess) else 0):
                    worst = max(worst, abs(mean[channel] - guess[y, x, channel]))
                if score - apart - worst > best:
                    best = score - apart - worst
                    picture[y, x, 0], picture[y, x, 1], picture[y, x, 2] = mean[0], mean[1], mean[2]
                    share[y, x] = score if n >= enough else 0.0
