"""Search for a body on a joint, such as a drawer, all over the range of the joint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from instep.core.world import Array

from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop
from .contrast_search import FIT_PRIOR, FOUND_CONTRAST
from .global_search import FOUND_OVERLAP
from .pose_solver import compare_silhouette, moved, solve_pose
from .projection import Outline, calibrated, silhouette
from .region import RegionColours
from .tracked_body import JointedBody

POSITIONS = 61
"""Positions of the joint that are compared."""

Hide = Callable[[MaskCrop], None]
"""Sets the weight of those pixels of a crop to zero in which something known is in front of the body."""


def learn_unhidden(
    colours: RegionColours, outline: Outline, world_from_body: Array, shown: tuple[int, CameraFrame], hide: Hide,
    memory: dict[str, Any],
) -> None:  # fmt: skip
    """Learn colours that are not known yet where a camera shows a body that other things hide in part."""
    c, frame = shown
    region = silhouette.body_region(outline.corners, world_from_body, calibrated(frame.camera), MAX_MARGIN_PX)
    left, top, right, bottom = region
    if right - left <= 2 or bottom - top <= 2:
        return
    blank = np.ones((bottom - top, right - left), np.float32)
    crop = MaskCrop(frame.camera, blank, blank.copy(), region, world_from_body)
    hide(crop)
    colours.forget(memory, c)
    colours.learn(frame, c, outline, crop, world_from_body, memory)


def find_on_joint(
    body: JointedBody, outline: Outline, colours: RegionColours, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> Array | None:  # fmt: skip
    """The transform at which images show a body on its joint; None where they show it nowhere.

    By the colours that were learned; before that, where it stands out most from what is around it, and colours are
    learned there. `shown` are frames with the numbers of their cameras.
    """
    poses = body.at(np.linspace(*body.limits, POSITIONS))
    if any(colours.learned(memory, c) for c, _ in shown):
        overlaps = np.array([_overlap(outline, colours, T, shown, hide, memory) for T in poses])
        best, found = poses[int(overlaps.argmax())], overlaps.max() > FOUND_OVERLAP
    else:
        contrast = np.array([_contrast(outline, colours, T, shown, hide, memory) for T in poses])
        best, found = poses[int(contrast.argmax())], contrast.max() >= FOUND_CONTRAST
        for one in shown:
            colours.forget(memory, one[0])
            if found:
                learn_unhidden(colours, outline, best, one, hide, memory)
    if not found:
        return None
    crops = _crops(outline, colours, best, shown, hide, memory)
    if not crops:
        return None
    xi = solve_pose(outline, crops, FIT_PRIOR, body.motion(best), 8).xi
    return body.nearest(moved(best, xi))


def _contrast(
    outline: Outline, colours: RegionColours, T: Array, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> float:  # fmt: skip
    """Mean contrast over the cameras of what they show of a body at a transform; it leaves the colours there."""
    for one in shown:
        learn_unhidden(colours, outline, T, one, hide, memory)
    return sum(colours.contrast(memory, c) for c, _ in shown) / max(len(shown), 1)


def _overlap(
    outline: Outline, colours: RegionColours, T: Array, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> float:  # fmt: skip
    """Mean overlap of silhouettes over the cameras that show a body at a transform, weighted by what they show."""
    fits = [compare_silhouette(outline, crop) for crop in _crops(outline, colours, T, shown, hide, memory)]
    return sum(fit.overlap * fit.visible for fit in fits) / max(sum(fit.visible for fit in fits), 1e-9)


def _crops(
    outline: Outline, colours: RegionColours, T: Array, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> list[MaskCrop]:  # fmt: skip
    out: list[MaskCrop] = []
    for c, frame in shown:
        crop = colours.crop(frame, c, outline, T, MAX_MARGIN_PX, memory)
        if crop is not None:
            hide(crop)
            out.append(crop)
    return out
