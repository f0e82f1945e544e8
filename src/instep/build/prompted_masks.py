"""Masks of one object in all views by its prompt: by a network, a graph cut, files, or as what is on the table.

A network that takes clicks and boxes offers several masks in each view; they are chosen by agreement between views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array

from .graph_cut import colour_shares, soften
from .mask_agreement import Agreement, ViewCandidates, choose_masks
from .object_masks import (
    MIN_PIXELS,
    check_marks,
    cuts_by_marks,
    hidden_parts,
    known_pixels,
    mask_by_prompt,
    mask_from_file,
)
from .posed_views import PosedView
from .prompt_segmenter import CandidateMask, ImageMarks, PromptSegmenter, marks_in
from .prompts import ObjectPrompt
from .silhouettes import ObjectMask, overlap
from .stage_store import PartReport
from .table_masks import masks_on_table

_MIN_SCORE_SHARE = 0.02
"""Smallest score of a candidate that is considered, as a share of the best one."""
_MIN_PART_OVERLAP = 0.5
"""Least overlap of a mask with the part of the object that it was asked for."""


@array_dataclass
class ChosenMasks:
    """The masks of an object in the views that show it, and how they were found."""

    masks: tuple[ObjectMask, ...]
    info: Mapping[str, Any]


def prompted_masks(
    views: Sequence[PosedView],
    prompt: ObjectPrompt,
    plane: Array,
    segmenter: PromptSegmenter | None,
    report: PartReport,
) -> ChosenMasks:
    """The masks of an object in the views that show it; clicks and boxes by a graph cut where there is no segmenter."""
    if prompt.table:
        found = masks_on_table(views, plane, report)
        turned = {} if found.turntable is None else {"turntable": found.turntable.info()}
        masks = tuple(mask for mask in found.masks if mask.inside.any())
        return ChosenMasks(masks, {"segmenter": "what differs from the table", **turned})
    if segmenter is None or prompt.masks is not None:
        how = "graph cut" if prompt.masks is None else "files"
        return ChosenMasks(tuple(_each(views, prompt, report)), {"segmenter": how})
    found = _by_network(views, prompt, plane, segmenter, report)
    shown = {mask.camera.name for mask in found.masks}
    rest = [view for view in views if view.name not in shown] if prompt.colour is not None else []
    return ChosenMasks((*found.masks, *_each(rest, prompt, report)), {**segmenter.provenance, **found.info})


def _each(views: Sequence[PosedView], prompt: ObjectPrompt, report: PartReport) -> list[ObjectMask]:
    """The masks of an object, view by view."""
    masks: list[ObjectMask] = []
    for k, view in enumerate(views):
        report(k / len(views), f"{prompt.name} in {view.name}")
        mask = mask_from_file(view, prompt.masks) if prompt.masks else mask_by_prompt(view, prompt)
        if mask is not None:
            masks.append(mask)
    return masks


def _by_network(
    views: Sequence[PosedView], prompt: ObjectPrompt, plane: Array, segmenter: PromptSegmenter, report: PartReport
) -> ChosenMasks:
    """The masks of an object in the views where clicks or boxes mark it."""
    marked = [(view, marks) for view in views if (marks := marks_in(prompt, view.name))]
    for view, _ in marked:
        check_marks(view, prompt)
    found: list[ViewCandidates] = []
    for k, (view, marks) in enumerate(marked):
        report(0.9 * k / len(marked), f"{prompt.name} in {view.name}")
        found.append(view_candidates(view, prompt.name, marks, segmenter))
    report(0.9, f"{prompt.name}: choosing masks that agree")
    agreed = choose_masks(found, plane)
    masks: list[ObjectMask] = []
    for (view, _), mask in zip(marked, agreed.masks, strict=True):
        masks.append(ObjectMask(view.camera, soften(view.image, mask), known_pixels(view, mask)))
    return ChosenMasks(tuple(masks), _info(found, agreed))


def view_candidates(view: PosedView, name: str, marks: ImageMarks, segmenter: PromptSegmenter) -> ViewCandidates:
    """The candidates of a view, with the parts of the object that something hides the way to."""
    found = _usable(segmenter.candidates(view.image, marks), marks)
    if not found:
        raise BadInput(
            f"The segmenter found nothing at the prompt of {name!r} in the image of camera {view.name!r}; click on the "
            "middle of it, or give a box."
        )
    best = max(found, key=lambda one: one.score).inside
    known, beyond = known_pixels(view, best), np.zeros_like(best)
    for part in hidden_parts(view, best, known):
        seen = _usable(segmenter.candidates(view.image, ImageMarks((_middle(part),))), ImageMarks())
        likest = max((one.inside for one in seen), key=lambda mask: overlap(mask, part), default=best)
        if overlap(likest, part) > _MIN_PART_OVERLAP:
            beyond |= likest
    return _with_cuts(view, marks, found, known, beyond)


def _with_cuts(
    view: PosedView, marks: ImageMarks, found: Sequence[CandidateMask], known: Array, beyond: Array
) -> ViewCandidates:
    """The masks of the network and what graph cuts find, with and without the parts beyond what hides the object."""
    cuts = cuts_by_marks(view, marks.clicks, marks.others, marks.box)
    masks, scores = [one.inside for one in found], [one.score for one in found]
    partial = [False] * len(masks)
    if beyond.any():
        masks, scores = [*(mask | beyond for mask in masks), *masks], 2 * scores
        partial += [True] * len(found)
    masks += cuts
    return ViewCandidates(
        view.camera,
        np.array(masks),
        known | beyond,
        np.array(scores + [0.0] * len(cuts)),
        np.array([colour_shares(view.image, mask) for mask in masks]),
        by_cut=np.arange(len(masks)) >= len(scores),
        partial=np.array(partial + [False, True][: len(cuts)]),
    )


def _usable(found: Sequence[CandidateMask], marks: ImageMarks) -> list[CandidateMask]:
    """The candidates that are of some size and hold the clicks, without those that the segmenter thinks nothing of."""
    best = max((one.score for one in found), default=0.0)
    out: list[CandidateMask] = []
    for one in found:
        inside = one.inside
        if inside.sum() < MIN_PIXELS or one.score < _MIN_SCORE_SHARE * best:
            continue
        if all(inside[int(y), int(x)] for x, y in marks.clicks):
            out.append(one)
    return out


def _middle(part: Array) -> tuple[float, float]:
    """The pixel (x, y) deepest inside a part of an image."""
    from scipy.ndimage import distance_transform_edt

    depth = np.asarray(distance_transform_edt(np.pad(part, 1)))[1:-1, 1:-1]
    row, column = np.unravel_index(int(depth.argmax()), depth.shape)
    return float(column) + 0.5, float(row) + 0.5


def _info(found: Sequence[ViewCandidates], agreed: Agreement) -> dict[str, Any]:
    views = {
        one.camera.name: {
            "candidates": len(one.masks),
            "chosen": number,
            "score": float(one.scores[number]),
            "best_score": float(one.scores.max()),
            "by": "graph cut" if one.by_cut[number] else "network",
            "joined_behind": bool(one.partial.any() and not one.partial[number]),
        }
        for one, number in zip(found, agreed.chosen, strict=True)
    }
    several = len(found) > 1
    return {"agreement": agreed.agreement if several else None, "views": views}
