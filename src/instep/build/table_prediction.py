"""What a view would show of a table without anything on it, and how far its pixels may be from that.

Poses and the map of a table are off by a fraction of a pixel. On a plain table that changes nothing; on a pattern it
changes a pixel by as much as the pattern changes over that fraction, so the tolerance follows the contrast around it.
"""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

_OFFSETS = (-1 / 3, 0.0, 1 / 3)
"""Where in a pixel, along each side, a map with a pattern is sampled [pixels]: far away a pixel shows several cells."""
_PLAIN = 0.02
"""Change of a colour from pixel to pixel up to which a part of the table is plain [0 to 1]."""
_MIN_PIXELS = 200
_MAX_BLUR = 1.5
"""Most of the contrast around a pixel that its colour may be off by."""


@array_dataclass
class Background:
    """What one view would show if there were no object: a table, or what is behind it."""

    colour: Array
    """[height, width, 3], 0 to 1."""
    sigma: Array
    """Standard deviation of a channel [height, width]."""
    sure: Array
    """Where it is known [height, width]."""

    def evidence_against(self, image: Array) -> Array:
        """How much likelier each pixel is for anything else (log) [height, width]; 0 where nothing is known."""
        apart = ((image - self.colour) ** 2).sum(axis=-1)
        against = 0.5 * apart / self.sigma**2 - 3 * np.log(1 / (self.sigma * np.sqrt(2 * np.pi)))
        return np.where(self.sure, against, 0.0)


def sampled(colour: Array, spread: Array, at: Array, *, patterned: bool) -> Background:
    """A map (colours [a, b, 3], deviations [a, b]: infinite where unknown) at the cells of pixels [h, w, 2]."""
    from scipy.ndimage import map_coordinates

    where, mapped = [at[..., 0], at[..., 1]], np.isfinite(spread).astype(float)
    sure = map_coordinates(mapped, where, order=1, cval=0.0) > 0.99
    sigma = map_coordinates(np.where(mapped > 0, spread, 0.0), where, order=1, cval=0.0)
    steps = np.gradient(at, axis=(0, 1)) if patterned else [np.zeros_like(at)] * 2
    offsets = [(y, x) for y in _OFFSETS for x in _OFFSETS] if patterned else [(0.0, 0.0)]
    behind = np.zeros((*at.shape[:2], 3))
    for y, x in offsets:
        point = at + y * steps[0] + x * steps[1]
        for k in range(3):
            behind[..., k] += map_coordinates(colour[..., k], [point[..., 0], point[..., 1]], order=1, cval=0.0)
    return Background(behind / len(offsets), sigma, sure)


def with_contrast(found: Background, image: Array, blocked: Array, noise: float) -> Background:
    """The prediction with deviations that follow its contrast as they do where nothing blocks the table."""
    contrast = np.zeros(blocked.shape)
    for k in range(3):
        contrast = np.maximum(contrast, np.hypot(*np.gradient(found.colour[..., k])))
    error = ((image - found.colour) ** 2).mean(axis=-1)
    textured = found.sure & ~blocked & (contrast > _PLAIN)
    if textured.sum() < _MIN_PIXELS:
        return Background(found.colour, np.hypot(noise, np.minimum(found.sigma, 0.05)), found.sure)
    # The median of a squared normal deviation is 0.45 of its variance; of the mean of three like ones, 0.79.
    excess = np.maximum(error[textured] / 0.79 - noise**2, 0.0) / contrast[textured] ** 2
    blur = min(float(np.sqrt(np.median(excess))), _MAX_BLUR)
    return Background(found.colour, np.hypot(noise, blur * contrast), found.sure)


def explained_share(likely: Array, other: Array, near: Array) -> float:
    """The share of some pixels that a prediction explains better than anything else does (log densities), 0.5 to 0.99.

    Where poses or the map are wrong it explains little, and then says little.
    """
    count = int(near.sum())
    return float(np.clip(((likely > other) & near).sum() / count, 0.5, 0.99)) if count else 0.5
