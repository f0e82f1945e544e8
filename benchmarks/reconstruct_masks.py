"""Masks on real frames by one click per view: overlap with the pixels of the block's hue, with and without SAM 2.

The block is the only thing of its hue on the table. Frames are spread over the recording; methods were developed on the
even ones, and the odd ones are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, binary_opening, distance_transform_edt, label

from harness import Row, median, row, with_progress
from instep.core.world import Array
from instep.reconstruct.capture.posed_views import PosedView, views_of
from instep.reconstruct.masks.prompted_masks import mask_by_prompt
from instep.reconstruct.masks.prompts import FILES, ObjectPrompt, PromptNetwork, default_weights_folder, open_segmenter
from instep.splat.capture import load_capture

TIMES = np.linspace(0.05, 9.2, 14)[1::2]
"""Moments of the recording [s]."""
HUE_DEG, HUE_RANGE_DEG = 10.0, 18.0
"""Hue of the block and its range [deg]."""
MIN_PIXELS = 30
"""Fewest pixels of a part of the block, and of the block in a view that counts."""
NEAR_PX = 60.0
"""Distance from the largest part within which others belong to the block [pixels]."""


def mask_rows(folder: Path, quick: bool = False) -> list[Row]:
    """Overlaps of masks by one click per view with the hue masks of real frames."""
    weights = default_weights_folder()
    network = open_segmenter(weights) if all(file.state(weights) == "whole" for file in FILES) else None
    capture, times = load_capture(folder), TIMES[:2] if quick else TIMES
    cut, answered = list[float](), list[float]()
    for time in with_progress("masks of real frames", len(times), times):
        for view in views_of(capture, float(time)):
            truth = hue_mask(view.image)
            if truth.sum() >= MIN_PIXELS:
                cut.append(_overlap(view, truth, None))
                if network is not None:
                    answered.append(_overlap(view, truth, network))
    rows = _rows("masks by one click per view, without weights", cut, 0.85)
    return rows + (_rows("masks by one click per view, SAM 2", answered, None) if network is not None else [])


def hue_mask(image: Array) -> Array:
    """The pixels of the block [height, width]: of its hue, and at least half as colourful as it is, compared with what
    is around it, so that colours that the video spreads over its edge do not count."""
    high, low = image.max(axis=-1), image.min(axis=-1)
    span = np.maximum(high - low, 1e-6)
    red, green, blue = np.moveaxis(image, -1, 0)
    hue = np.where(high == red, (green - blue) / span, np.where(high == green, (blue - red) / span + 2, 4.0))
    alike = np.abs(60 * hue - HUE_DEG) < HUE_RANGE_DEG
    first = _parts(binary_opening(alike & (span > 0.55 * high) & (high > 0.35)))
    inner = binary_erosion(first, iterations=2)
    around = binary_dilation(first, iterations=6) & ~binary_dilation(first, iterations=3)
    if inner.sum() < 10:
        return first
    half = 0.5 * (np.median(span[inner]) + np.median(span[around]))
    return _parts(binary_opening(alike & (span > half)))


def _parts(mask: Array) -> Array:
    """The largest part of a mask, and others near it that are not tiny."""
    parts, count = label(mask, np.ones((3, 3)))
    if not count:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    away = distance_transform_edt(parts != sizes.argmax())
    kept = [k for k in range(1, count + 1) if sizes[k] >= MIN_PIXELS and away[parts == k].min() < NEAR_PX]
    return np.isin(parts, kept)


def _overlap(view: PosedView, truth: Array, network: PromptNetwork | None) -> float:
    """Overlap of the mask by a click on the pixel deepest inside the block."""
    y, x = np.unravel_index(int(distance_transform_edt(truth).argmax()), truth.shape)
    prompt = ObjectPrompt("tee", clicks={view.name: ((float(x) + 0.5, float(y) + 0.5),)})
    mask = mask_by_prompt(view, prompt, network)
    found = np.zeros(truth.shape, bool) if mask is None else mask.alpha > 0.5
    return float((found & truth).sum() / max((found | truth).sum(), 1))


def _rows(name: str, overlaps: Sequence[float], goal: float | None) -> list[Row]:
    print(f"{name}: {', '.join(f'{value:.3f}' for value in overlaps)}")
    return [
        row(f"{name}: median overlap, {len(overlaps)} views", median(overlaps), at_least=goal),
        row(f"{name}: worst overlap", min(overlaps)),
    ]
