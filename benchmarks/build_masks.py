"""Masks on real frames by one click per view: overlap with the pixels of the block's hue, with and without SAM 2.

The block is the only thing of its hue on the table, so its hue says which pixels show it. Frames are spread over the
recording; methods were developed on the even ones, and the odd ones are reported. Rows with SAM 2 are there where
`instep reconstruct weights` has put its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, binary_opening, distance_transform_edt, label

from harness import Row, median, row, with_progress
from instep.core.world import Array
from instep.reconstruct.capture.posed_views import PosedView, views_of
from instep.reconstruct.masks.object_mask import ObjectMask, soften
from instep.reconstruct.masks.prompted_masks import prompted_masks
from instep.reconstruct.masks.prompts import (
    FILES,
    ObjectPrompt,
    PromptNetwork,
    default_weights_folder,
    marks_in,
    open_segmenter,
)
from instep.splat.capture import Capture, load_capture

TIMES = np.linspace(0.05, 9.2, 14)
"""Moments of the recording [s]."""
REPORTED = TIMES[1::2]
HUE_DEG, HUE_RANGE_DEG = 10.0, 18.0
"""Hue of the block and how far its pixels may be from it [deg]."""
MIN_PIXELS = 30
"""Fewest pixels of a part of the block, and of the block in a view that is counted."""
NEAR_PX = 60.0
"""Distance from the largest part within which others belong to the block [pixels]."""


def mask_rows(folder: Path, quick: bool = False) -> list[Row]:
    """Overlaps of masks by one click per view with the hue masks of real frames."""
    segmenter = _segmenter()
    if segmenter is None:
        print("no weights of SAM 2 (instep reconstruct weights): masks are measured without them only")
    capture = load_capture(folder)
    times = REPORTED[:2] if quick else REPORTED
    cut, chosen, predicted = list[float](), list[float](), list[float]()
    for time in with_progress("masks of real frames", len(times), times):
        marked = _marked(capture, float(time))
        cut += _overlaps(marked, None, capture)
        if segmenter is not None:
            chosen += _overlaps(marked, segmenter, capture)
            predicted += _predicted(marked, segmenter)
    rows = _rows("masks by one click per view, without weights", cut, 0.85, None)
    if segmenter is not None:
        rows += _rows("masks by one click per view, SAM 2, chosen by agreement", chosen, 0.92, 0.8)
        rows += _rows("masks by one click per view, SAM 2, chosen by predicted overlap", predicted, None, None)
    return rows


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


def _segmenter() -> PromptNetwork | None:
    folder = default_weights_folder()
    return open_segmenter(folder) if all(file.state(folder) == "whole" for file in FILES) else None


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


def _marked(capture: Capture, time: float) -> list[tuple[PosedView, Array, tuple[float, float]]]:
    """The views of a moment that show the block, with its hue mask and a click on the pixel deepest inside of it."""
    out: list[tuple[PosedView, Array, tuple[float, float]]] = []
    for view in views_of(capture, time):
        truth = hue_mask(view.image)
        if truth.sum() >= MIN_PIXELS:
            y, x = np.unravel_index(int(distance_transform_edt(truth).argmax()), truth.shape)
            out.append((view, truth, (float(x) + 0.5, float(y) + 0.5)))
    return out


def _overlaps(
    marked: Sequence[tuple[PosedView, Array, tuple[float, float]]], segmenter: PromptNetwork | None, capture: Capture
) -> list[float]:
    prompt = _prompt(marked)
    found = prompted_masks(
        [v for v, _, _ in marked], prompt, capture.plane.normal, segmenter, lambda share, words: None
    )
    masks: dict[str, ObjectMask] = {mask.camera.name: mask for mask in found.masks}
    return [_overlap(masks[view.name].alpha > 0.5, truth) if view.name in masks else 0.0 for view, truth, _ in marked]


def _predicted(marked: Sequence[tuple[PosedView, Array, tuple[float, float]]], segmenter: PromptNetwork) -> list[float]:
    prompt, out = _prompt(marked), list[float]()
    for view, truth, _ in marked:
        best = max(segmenter.candidates(view.image, marks_in(prompt, view.name)), key=lambda one: one.score)
        out.append(_overlap(soften(view.image, best.inside) > 0.5, truth))
    return out


def _prompt(marked: Sequence[tuple[PosedView, Array, tuple[float, float]]]) -> ObjectPrompt:
    return ObjectPrompt("tee", clicks={view.name: (click,) for view, _, click in marked})


def _overlap(a: Array, b: Array) -> float:
    return float((a & b).sum() / max((a | b).sum(), 1))


def _rows(name: str, overlaps: Sequence[float], goal: float | None, worst: float | None) -> list[Row]:
    middle = median(overlaps)
    print(f"{name}: {', '.join(f'{value:.3f}' for value in overlaps)}")
    return [
        row(f"{name}: median overlap, {len(overlaps)} views", middle, at_least=goal),
        row(f"{name}: worst overlap", min(overlaps), at_least=worst),
    ]
