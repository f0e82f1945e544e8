"""Faults of camera images, found before an image corrects anything.

Each image is sampled on a coarse grid, with the right neighbour of each sample. The grid shows the view, which a fixed
camera keeps but for what moves in it; neighbours differ by the grain of the image, which noise raises at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from instep.core.world import Array

GRID = (24, 32)
"""Rows and columns of samples of an image."""
DARK, BRIGHT = 6.0, 249.0
"""Mean grey level below which an image is dark, and above which it is white."""
FLAT = 2.0
"""Standard deviation of grey levels below which an image shows nothing."""
LARGEST_GRAIN, GRAIN_FACTOR = 12.0, 2.5
"""Grain of an image, in grey levels and as a factor of the camera's usual one, above both of which it is noise."""
UNRELATED = 0.4
"""Correlation of neighbouring samples below which an image with so much grain is noise, whatever is usual."""
OTHER_VIEW = 0.35
"""Correlation with the camera's usual view below which an image shows another one."""
CHANGED_LEVELS, CHANGED_SHARE = 25.0, 0.28
"""Change of a sample that counts [grey levels], and share of such samples from which the view may be another one.

A body that moves before a plain wall is all that correlates, and changes less: of real recordings of an arm and a body
at most 0.21 of the samples change, and at least 0.35 where cameras are swapped."""
SWAPPED = 0.05
"""How much more an image may correlate with the view of another camera than with that of its own."""
LEARNING = 0.02
"""Share by which each good image moves what is usual."""


class ImageFault(IntEnum):
    """What is wrong with the newest image of a camera."""

    NONE = 0
    UNREADABLE = 1
    """Wrong size or type, or a stamp that is no number."""
    FUTURE = 2
    """Stamped later than now."""
    LATE = 3
    """No new image for a while."""
    FROZEN = 4
    """The same pixels under new stamps."""
    DARK = 5
    """Black, or white all over."""
    FLAT = 6
    """One colour: the lens is covered."""
    NOISE = 7
    """Neighbouring pixels have little to do with each other."""
    SWAPPED = 8
    """It shows what another camera usually shows."""
    OTHER_VIEW = 9
    """It shows what this camera never showed: it was turned, or is another one."""


FAULT_WORDS: Mapping[ImageFault, str] = {
    ImageFault.UNREADABLE: "images of a wrong size, type or stamp",
    ImageFault.FUTURE: "images stamped in the future",
    ImageFault.LATE: "no new images",
    ImageFault.FROZEN: "the same image again and again",
    ImageFault.DARK: "black or white images",
    ImageFault.FLAT: "images of one colour",
    ImageFault.NOISE: "noise",
    ImageFault.SWAPPED: "the view of another camera",
    ImageFault.OTHER_VIEW: "another view than before",
}
"""What a camera shows, as a person would say it."""


def sample_image(pixels: Array) -> Array:
    """Grey levels on the grid, and of their right neighbours [2, rows, columns]."""
    height, width = pixels.shape[:2]
    shown = pixels.reshape(-1, 3).take(_grid(int(height), int(width)), axis=0)
    return shown.sum(axis=-1, dtype=np.float64) / 3


@cache
def _grid(height: int, width: int) -> Array:
    """Places of the samples of an image among its pixels [2, rows, columns]."""
    rows, columns = np.linspace(0, height - 1, GRID[0]).astype(int), np.linspace(0, width - 2, GRID[1]).astype(int)
    first = rows[:, None] * width + columns[None, :]
    return np.stack([first, first + 1])


def unknown_views(cameras: int) -> dict[str, Any]:
    """What is usual of each camera, before anything is known: a part of a correction's memory."""
    return {"view": np.full((cameras, *GRID), np.nan), "grain": np.full(cameras, np.nan)}


def image_fault(
    sample: Array, camera: int, usual: Mapping[str, Array], readable: Sequence[bool], *, fixed: bool = True
) -> ImageFault:
    """What is wrong with an image, of its sample and what is usual; `readable` says which cameras are of one size.

    A camera that is not `fixed` has no usual view.
    """
    grey = sample[0]
    mean, deviation = float(grey.mean()), float(grey.std())
    if mean < DARK or mean > BRIGHT:
        return ImageFault.DARK
    if deviation < FLAT:
        return ImageFault.FLAT
    if _is_noise(sample, float(usual["grain"][camera])):
        return ImageFault.NOISE
    if not fixed or _changed_share(grey, usual["view"][camera]) < CHANGED_SHARE:
        return ImageFault.NONE
    own = _correlation(grey, usual["view"][camera])
    others = [_correlation(grey, usual["view"][c]) for c in range(len(usual["view"])) if c != camera and readable[c]]
    if np.isfinite(own) and max((c for c in others if np.isfinite(c)), default=-1.0) > own + SWAPPED:
        return ImageFault.SWAPPED
    return ImageFault.OTHER_VIEW if own < OTHER_VIEW else ImageFault.NONE


def learn_view(usual: Mapping[str, Array], camera: int, sample: Array) -> None:
    """Move what is usual of a camera towards a good image; the first one is taken as it is."""
    first = not np.isfinite(usual["grain"][camera])
    share = 1.0 if first else LEARNING
    usual["view"][camera] = sample[0] if first else usual["view"][camera] + share * (sample[0] - usual["view"][camera])
    usual["grain"][camera] = grain(sample) if first else (1 - share) * usual["grain"][camera] + share * grain(sample)


def grain(sample: Array) -> float:
    """Standard deviation of what neighbouring pixels do not share [grey levels]; edges of the scene count little."""
    apart = np.abs(sample[1] - sample[0])
    # The mean of a normal deviation is 0.8 of its standard deviation, and two pixels differ by the root of two of it.
    return float(apart.mean() / (0.8 * np.sqrt(2.0)))


def _is_noise(sample: Array, usual: float) -> bool:
    found = grain(sample)
    if found < LARGEST_GRAIN:
        return False
    related = _correlation(sample[0], sample[1])
    return related < UNRELATED or (np.isfinite(usual) and found > GRAIN_FACTOR * usual)


def _changed_share(grey: Array, usual: Array) -> float:
    """Share of samples that changed by more than the light did; 0 where nothing is usual yet."""
    change = grey - usual
    return np.count_nonzero(np.abs(change - np.median(change)) > CHANGED_LEVELS) / change.size


def _correlation(a: Array, b: Array) -> float:
    """Correlation of two grids; NaN where one is unknown."""
    x, y = (a - a.mean()).ravel(), (b - b.mean()).ravel()
    return float(x @ y / np.sqrt(max(float(x @ x) * float(y @ y), 1e-12)))
