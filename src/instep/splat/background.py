"""Static background and foreground masks of the images of a fixed camera."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.splat.raster.simd import KERNEL

_SAME_GREY_LEVELS = 20.0
"""Largest difference of brightness [grey levels of 255] of frames that show the same surface."""
_MEDIAN_BONUS = 0.3
"""Score by which the median is preferred to other candidates."""
_GLOSS_TOLERANCE = 0.15
"""Difference from the reference that is not penalised, for surfaces may be glossy."""
_MIN_SATURATION = 0.4
"""Saturation below which a colour does not identify a body."""
_MIN_FRAMES = 3
"""Fewest unoccluded frames of a known pixel."""
_BLURRED_CELLS = 4.0
"""Least width of a blur, in pixels of a smaller image that it may be done in."""


def static_background(images: Array, ignore: Array | None = None) -> tuple[Array, Array]:
    """The static background [height, width, 3], 0 to 1, and the share of unoccluded frames that show it at each pixel.

    `images` [frames, height, width, 3] uint8; `ignore` [frames, height, width] is where a known body occludes it. The
    background of a pixel is the mean of the frames near its median brightness.
    """
    return _background(images, ignore, np.zeros((0, 0, 3), np.float32))


def background_near(images: Array, reference: Array, ignore: Array | None = None) -> tuple[Array, Array]:
    """As `static_background`, where it may be occluded most of the time.

    Among quantiles of its brightness, a pixel takes one that is frequent and near the reference [height, width, 3]
    rendered from a fit to several cameras: what occludes one camera does not occlude all.
    """
    image, share = _background(images, ignore, np.ascontiguousarray(reference, np.float32))
    far = np.abs(image - reference).max(axis=-1) > 0.35
    return image, np.where(far, np.float32(0.0), share)


def foreground_mask(image: Array, still: Array, known: Array, *, least: int = 40) -> Array:
    """Where an image [height, width, 3] uint8 shows neither the background nor a known body [height, width].

    Seams of one or two pixels, as at the outline of a body that is rendered a little off, do not count.
    """
    from scipy.ndimage import binary_dilation, binary_opening, label

    other = (np.abs(image / 255.0 - still).max(axis=-1) > 0.15) & ~known
    labelled: Any = label(binary_opening(other, np.ones((3, 3))))  # scipy's types do not say that it is a pair
    blobs = labelled[0]
    sizes = np.bincount(blobs.ravel())
    sizes[0] = 0
    return binary_dilation((sizes >= least)[blobs], iterations=3)


def colour_mask(image: Array, colour: Array, alike: float = 0.945) -> Array:
    """Which pixels [height, width] have a vivid colour, however bright; `alike` is the cosine between the two.

    None have a greyish one: hue does not separate it from the lamps' reddish or bluish shine on everything.
    """
    seen = image / 255.0 if image.dtype == np.uint8 else image
    vivid = 1.0 - colour.min() / max(float(colour.max()), 1e-6)
    if vivid < _MIN_SATURATION:
        return np.zeros(seen.shape[:2], bool)
    from scipy.ndimage import binary_opening

    bright, dark = seen.max(axis=-1), seen.min(axis=-1)
    length = np.maximum(np.linalg.norm(seen, axis=-1) * np.linalg.norm(colour), 1e-6)
    found = (seen @ colour / length > alike) & (bright > 0.2) & (bright - dark > 0.8 * vivid * bright)
    return np.asarray(binary_opening(found, np.ones((3, 3))))


def inpaint(image: Array, known: Array) -> Array:
    """A image whose unknown pixels take the mean colour of the known ones around them, the near ones first."""
    out, missing = np.where(known[..., None], image, np.float32(0.0)), ~known
    layers = np.concatenate([out, known[..., None]], axis=-1, dtype=np.float32)
    for width in (1.5, 4.0, 12.0, 36.0, 108.0):
        if not missing.any():
            break
        rows, columns = np.nonzero(missing)
        means = _blurred(layers, width, rows, columns)
        found = means[:, -1] > 0.02
        out[rows[found], columns[found]] = means[found, :-1] / means[found, -1:]
        missing[rows[found], columns[found]] = False
    return out


def _blurred(layers: Array, width: float, rows: Array, columns: Array) -> Array:
    """An image [height, width, layers] at some pixels, blurred by a Gaussian [pixels]; wide ones in fewer pixels."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    factor = max(1, int(width / _BLURRED_CELLS))
    if factor == 1:
        return gaussian_filter(layers, (width, width, 0))[rows, columns]
    height, across = (-(-size // factor) * factor for size in layers.shape[:2])
    padded = np.pad(layers, ((0, height - layers.shape[0]), (0, across - layers.shape[1]), (0, 0)), mode="edge")
    cells = padded.reshape(height // factor, factor, across // factor, factor, -1).mean(axis=(1, 3))
    wide = gaussian_filter(cells, (width / factor, width / factor, 0))
    at = [(rows + 0.5) / factor - 0.5, (columns + 0.5) / factor - 0.5]
    return np.stack([map_coordinates(wide[..., k], at, order=1, mode="nearest") for k in range(wide.shape[2])], axis=1)


def _background(images: Array, ignore: Array | None, guess: Array) -> tuple[Array, Array]:
    images = np.ascontiguousarray(images, np.uint8)
    if len(images) == 0:
        raise BadInput("A still image needs at least one image, and none was given.")
    hidden = np.zeros(images.shape[:3], np.bool_) if ignore is None else np.ascontiguousarray(ignore, np.bool_)
    background = np.zeros(images.shape[1:], np.float32)
    share = np.zeros(images.shape[1:3], np.float32)
    _background_pixels(images, hidden, guess, min(_MIN_FRAMES, len(images)), background, share)
    return background, share


@njit(**KERNEL)
def _background_pixels(images: Any, hidden: Any, guess: Any, enough: Any, background: Any, share: Any) -> None:
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
                    if abs(levels[k] - level) <= _SAME_GREY_LEVELS:
                        count += 1
                        for channel in range(3):
                            mean[channel] += images[free[k], y, x, channel]
                # What is in the middle is taken unless it is unlike the guess: neighbours then choose alike.
                score, apart = count / n, -_MEDIAN_BONUS if quantile == 5 else 0.0
                for channel in range(3):
                    mean[channel] /= 255.0 * count
                worst = 0.0
                for channel in range(3 if len(guess) else 0):
                    worst = max(worst, abs(mean[channel] - guess[y, x, channel]))
                score_here = score - apart - 2.0 * max(0.0, worst - _GLOSS_TOLERANCE)
                if score_here > best:
                    best = score_here
                    background[y, x, 0], background[y, x, 1], background[y, x, 2] = mean[0], mean[1], mean[2]
                    share[y, x] = score if n >= enough else 0.0
