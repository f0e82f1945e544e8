"""Masks of one object in all views by its prompt: by a network, a graph cut, files, or as what is on the table.

A network that takes clicks and boxes offers several masks in each view; they are chosen by agreement between views.

Segment one object in posed views by clicks, boxes or a colour; what hides it is unknown, not background.

A graph cut between colour mixtures of the object and of what is around it labels each view; the edge is then placed
to a fraction of a pixel. In views of a fixed camera, whatever differs from the static background without being the
object (an arm, a hand) makes its pixels unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import read_file
from instep.core.world import Array, array_dataclass
from instep.data.frames import MAX_IMAGE, open_stills
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.stages import PartReport
from instep.splat.video_background import static_background

from .mask_agreement import Agreement, ViewCandidates, choose_masks
from .object_mask import ObjectMask, colour_mixture, colour_shares, min_cut, overlap, soften
from .prompts import Box, CandidateMask, ImageMarks, ObjectPrompt, Point, PromptSegmenter, marks_in
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


_SEED_PX = 2
"""Radius of the disc around a click that is certainly of the object [pixels]."""
_SEED_COLOUR = 0.10
"""Largest difference from the colour under a click, after shading, of the pixels that the object starts as."""
_SHADING = (0.45, 1.5)
"""Range of factors by which light and shadow change the brightness of the object."""
_VIVID = 0.5
"""Saturation from which a gloss is told from a shade."""
_MAX_GLOSS = 0.35
"""Most of a white gloss on a surface, 0 to 1."""
_OWN_GLOSS = 0.8
"""Share of the least channel of a vivid colour that may be gloss, which others of its pixels do not have."""
_KEPT_VIVID = 0.6
"""Least saturation of a pixel below a gloss, as a share of that of the vivid colour."""
_PURE_SHARE = 0.7
"""Share of an object that looks like its prompt from which on it counts as an object of one colour."""
_ANY_COLOUR = -2.0
"""Log density of what is around an object where it has a colour that nothing else there has."""
_ALIKE = 0.75
"""Least likeness of the colours of an object and of a part of it behind what hides it, 0 to 1."""
_ROUNDS = 4
_BACKGROUND_SHARE = 0.6
"""Share of the frames without the object that show one background at a pixel where it is certain."""
_DIFFERENT = 0.15
"""Difference of a pixel [0 to 1] from the background from which on it shows something else."""
_SHADED_DIFFERENCE = 0.08
"""Largest difference of a pixel [0 to 1] from the background in another light."""
MIN_PIXELS = 30
"""Fewest pixels of a mask."""
_MAX_HIDDEN_PARTS = 3
_BRIDGED_PX = 3
"""Half the gap between pixels that count as connected there [pixels]."""
_HIDDEN_REACH = 4.0
"""Largest distance of such a part from the rest, as a multiple of the root of the area of that."""


def mask_by_prompt(view: PosedView, prompt: ObjectPrompt) -> ObjectMask | None:
    """The mask of an object in a view by its clicks, box and colour; None where the prompt says nothing of the view."""
    clicks, box = prompt.clicks.get(view.name, ()), prompt.boxes.get(view.name)
    check_marks(view, prompt)
    if not clicks and box is None and prompt.colour is None:
        return None
    start = _start(view.image, clicks, box, prompt.colour)
    if start.sum() < MIN_PIXELS:
        if not clicks and box is None:
            return None
        raise BadInput(
            f"Hardly anything around the prompt of {prompt.name!r} in the image of camera {view.name!r} looks like one "
            "object; click on a larger even part of it, or give a box."
        )
    given = _given(start.shape, clicks, prompt.others.get(view.name, ()), box)
    mask = _kept_parts(_cut_out(view.image, start, given), clicks, start)
    if mask.sum() < MIN_PIXELS:
        return None
    known = known_pixels(view, mask)
    mask |= _hidden_parts_cut(view, mask, known, given)
    return ObjectMask(view.camera, soften(view.image, mask), known | mask)


def cuts_by_marks(
    view: PosedView, clicks: tuple[Point, ...], others: tuple[Point, ...], box: Box | None
) -> list[Array]:
    """An object by graph cuts from its marks alone, and without its parts behind what hides it where there are such
    [height, width] each; none where the marks start none."""
    start = _start(view.image, clicks, box, None)
    if start.sum() < MIN_PIXELS:
        return []
    given = _given(start.shape, clicks, others, box)
    mask = _kept_parts(_cut_out(view.image, start, given), clicks, start)
    if mask.sum() < MIN_PIXELS:
        return []
    behind = _hidden_parts_cut(view, mask, known_pixels(view, mask), given) & ~mask
    return [mask | behind, mask] if behind.sum() >= MIN_PIXELS else [mask | behind]


def _hidden_parts_cut(view: PosedView, mask: Array, known: Array, given: Array) -> Array:
    """What graph cuts find of an object with its parts behind what hides them [height, width]; empty without these."""
    beyond = hidden_parts(view, mask, known)
    if not beyond:
        return np.zeros_like(mask)
    seeds = mask | np.any(beyond, axis=0)
    return _kept_parts(_cut_out(view.image, seeds, given) & (given > -np.inf), (), seeds)


def _given(shape: tuple[int, ...], clicks: tuple[Point, ...], others: tuple[Point, ...], box: Box | None) -> Array:
    """What marks say of pixels [height, width]: infinite on the object, minus infinite beside it, else 0."""
    given = np.zeros(shape[:2])
    for points, sign in ((clicks, 1.0), (others, -1.0)):
        for point in points:
            given[_disc(shape, point)] = sign * np.inf
    if box is not None:
        given[~_inside_box(shape, box)] = -np.inf
    return given


def check_marks(view: PosedView, prompt: ObjectPrompt) -> None:
    """Refuse clicks outside the image of a view."""
    for x, y in (*prompt.clicks.get(view.name, ()), *prompt.others.get(view.name, ())):
        if not (0 <= x < view.camera.width and 0 <= y < view.camera.height):
            raise BadInput(
                f"The click ({x:g}, {y:g}) of {prompt.name!r} is outside the image of camera {view.name!r}, which has "
                f"{view.camera.width} x {view.camera.height} pixels."
            )


def mask_from_file(view: PosedView, folder: Path) -> ObjectMask | None:
    """The mask in CAMERA.png of a folder: white the object, black not, mid grey unknown; None where there is none."""
    path = folder / f"{view.name}.png"
    if not path.is_file():
        return None
    level = np.asarray(open_stills(lambda _: read_file(path, MAX_IMAGE), 1)[0], np.float32).mean(axis=-1) / 255
    if level.shape != view.image.shape[:2]:
        raise BadInput(
            f"The mask {path.name} has {level.shape[1]} x {level.shape[0]} pixels; those of its image, "
            f"{view.camera.width} x {view.camera.height}, were expected."
        )
    known = np.abs(level - 0.5) > 0.1
    binary = bool(((level < 0.02) | (level > 0.98) | ~known).all())
    alpha = soften(view.image, level > 0.5) if binary else np.where(known, level, 0.0)
    return ObjectMask(view.camera, alpha.astype(np.float32), known) if (level > 0.9).sum() >= MIN_PIXELS else None


def known_pixels(view: PosedView, mask: Array) -> Array:
    """Where it is known what a view shows [height, width]: all but what occludes the static background.

    Where few frames show the background, as where the object or an arm rests most of the time, a pixel hides something
    if its colour is rather that of what certainly occludes the background than that of the background elsewhere.
    """
    from scipy.ndimage import binary_dilation

    found = background_without(view, mask)
    if found is None:
        return np.ones(mask.shape, bool)
    own = np.asarray(binary_dilation(mask, iterations=3), bool)
    sure = (found.share >= _BACKGROUND_SHARE) & (found.unoccluded >= 0.5) & ~own
    differs = (np.abs(view.image - found.image).max(axis=-1) > _DIFFERENT) & ~_shaded(view.image, found.image)
    hiding, ground = _blobs(differs & sure), sure & ~differs
    if not hiding.any() or ground.sum() < MIN_PIXELS:
        return np.ones(mask.shape, bool)
    hider, plain = colour_mixture(view.image[hiding]), colour_mixture(view.image[ground], 8)
    alike = hider.log_likelihood(view.image) > plain.log_likelihood(view.image)
    hiding = _blobs(hiding | (alike & ~sure & ~mask))
    return ~np.asarray(binary_dilation(hiding, iterations=2), bool) | mask


def hidden_parts(view: PosedView, mask: Array, known: Array) -> list[Array]:
    """Parts of a view with the colours of a mask that lead to it through pixels where something may hide the object.

    Each is [height, width] bool, the largest first. An arm in front of an object leaves such parts of it.
    """
    from scipy.ndimage import binary_dilation, label

    if known.all() or mask.sum() < MIN_PIXELS:
        return []
    own = np.asarray(binary_dilation(mask, iterations=3), bool)
    inner, outer = colour_mixture(view.image[mask]), colour_mixture(view.image[~own], 8)
    alike = _blobs((inner.log_likelihood(view.image) > outer.log_likelihood(view.image)) & ~own)
    labelled: Any = label(np.asarray(binary_dilation(alike | mask | ~known, iterations=_BRIDGED_PX), bool))
    reached = np.isin(labelled[0], _labels(labelled[0], mask))
    parts: Any = label(alike & reached)
    rows, columns = np.nonzero(mask)
    found = [part for k in range(1, parts[1] + 1) if (part := parts[0] == k).sum() >= MIN_PIXELS]
    own_colours = colour_shares(view.image, mask)
    found = [part for part in found if np.sqrt(own_colours * colour_shares(view.image, part)).sum() >= _ALIKE]
    near = [part for part in found if _apart(part, rows, columns) < _HIDDEN_REACH * np.sqrt(len(rows))]
    return sorted(near, key=lambda part: -int(part.sum()))[:_MAX_HIDDEN_PARTS]


@array_dataclass
class StaticBackground:
    """What a fixed camera shows where an object is not."""

    image: Array
    """[height, width, 3], 0 to 1."""
    share: Array
    """Share of the frames without the object at a pixel that show it [height, width]."""
    unoccluded: Array
    """Share of the frames without the object at a pixel [height, width]."""


def background_without(view: PosedView, mask: Array) -> StaticBackground | None:
    """The static background of a fixed camera; None of a camera with a single image.

    It is what frames at other times show where they do not show the colours of the object, wherever that was then.
    """
    from scipy.ndimage import binary_dilation

    if view.frames is None:
        return None
    near = np.asarray(binary_dilation(mask, iterations=int(np.sqrt(mask.sum()))), bool)
    own = np.asarray(binary_dilation(mask, iterations=3), bool)
    inner, outer = colour_mixture(view.image[mask]), colour_mixture(view.image[~own], 8)
    rows, columns = np.nonzero(near)
    cut = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    like = np.zeros(view.frames.shape[:3], bool)
    for k, frame in enumerate(view.frames):
        part = frame[cut] / 255.0
        like[(k, *cut)] = binary_dilation(inner.log_likelihood(part) > outer.log_likelihood(part), iterations=2)
    return StaticBackground(*static_background(view.frames, like), 1 - like.mean(axis=0))


def _apart(part: Array, rows: Array, columns: Array) -> float:
    """Distance of the middle of a part from the nearest of some pixels [pixels]."""
    y, x = (float(np.median(where)) for where in np.nonzero(part))
    return float(np.hypot(rows - y, columns - x).min())


def _blobs(found: Array) -> Array:
    """The connected parts of some pixels that are neither small nor thin [height, width]."""
    from scipy.ndimage import binary_opening, label

    labelled: Any = label(binary_opening(found, np.ones((3, 3))))
    sizes = np.bincount(labelled[0].ravel())
    sizes[0] = 0
    return (sizes >= MIN_PIXELS)[labelled[0]]


def _shaded(image: Array, still: Array) -> Array:
    """Where an image shows the background in a shadow or in another light [height, width]: a multiple of its colour."""
    shade = np.clip((image * still).sum(axis=-1) / np.maximum((still**2).sum(axis=-1), 1e-6), *_SHADING)
    return np.abs(image - shade[..., None] * still).max(axis=-1) < _SHADED_DIFFERENCE


def _start(
    image: Array, clicks: tuple[Point, ...], box: Box | None, colour: tuple[float, float, float] | None
) -> Array:
    """The pixels that the object's colours are first taken from [height, width]."""
    from scipy.ndimage import label

    shape = image.shape[:2]
    if not clicks and colour is None and box is not None:
        left, top, right, bottom = box
        margin_x, margin_y = 0.2 * (right - left), 0.2 * (bottom - top)
        return _inside_box(shape, (left + margin_x, top + margin_y, right - margin_x, bottom - margin_y))
    like = np.zeros(shape, bool)
    if colour is not None:
        like |= _alike(image, np.array(colour), 0.15)
    for point in clicks:
        seed = np.median(image[_disc(shape, point)], axis=0)
        labelled: Any = label(_alike(image, seed, _SEED_COLOUR))
        parts = labelled[0]
        like |= np.isin(parts, _labels(parts, _disc(shape, point)))
    return like if box is None else like & _inside_box(shape, box)


def _alike(image: Array, colour: Array, tolerance: float) -> Array:
    """Which pixels have a colour, whatever the shading; a vivid one also below more or less of a whitish gloss or haze.

    Light reflected by a surface is a multiple of its colour and some of the colour of the lamp, which may be in the
    colour that is given already. What keeps little of its colour below its gloss is another, pale thing.
    """
    white = np.ones(3)
    vivid = 1.0 - float(colour.min()) / max(float(colour.max()), 1e-6)
    basis = np.stack([colour, white], axis=1) if vivid > _VIVID else colour[:, None]
    shares = image @ np.linalg.pinv(basis).T
    least = -_OWN_GLOSS * float(colour.min())
    gloss = np.clip(shares[..., 1:], least, _MAX_GLOSS) @ np.ones((basis.shape[1] - 1, 3))
    shade = np.clip((image - gloss) @ colour / max(float(colour @ colour), 1e-6), *_SHADING)
    near = np.linalg.norm(image - gloss - shade[..., None] * colour, axis=-1) < tolerance * np.maximum(shade, 0.6)
    if vivid <= _VIVID:
        return near
    return near & (image.max(axis=-1) - image.min(axis=-1) > _KEPT_VIVID * vivid * image.max(axis=-1))


def _cut_out(image: Array, start: Array, given: Array) -> Array:
    """The object by repeated graph cuts between the colours inside and outside [height, width]."""
    mask, shape = start, start.shape
    for _ in range(_ROUNDS):
        rows, columns = np.nonzero(mask)
        if len(rows) < MIN_PIXELS:
            return mask
        margin = 12 + int(0.3 * max(np.ptp(rows), np.ptp(columns)))
        cut = np.s_[
            max(0, rows.min() - margin) : min(shape[0], rows.max() + margin + 1),
            max(0, columns.min() - margin) : min(shape[1], columns.max() + margin + 1),
        ]
        # What the prompt alone finds of an object of one colour has no shadow or reflection in it, as a cut may.
        pure = mask & start if (mask & start).sum() > _PURE_SHARE * mask.sum() else mask
        inner, outer = colour_mixture(image[pure]), colour_mixture(image[~mask & (given <= 0)], 8)
        part = image[cut]
        other = np.logaddexp(outer.log_likelihood(part), _ANY_COLOUR)
        preference = np.clip(inner.log_likelihood(part) - other, -20.0, 20.0)
        preference = np.where(np.isinf(given[cut]), given[cut], preference)
        found = np.zeros(shape, bool)
        found[cut] = min_cut(preference, part)
        if (found != mask).sum() < 2:
            return found
        mask = found
    return mask


def _kept_parts(mask: Array, clicks: tuple[Point, ...], start: Array) -> Array:
    """The parts of a mask that were clicked on, or that the start reached; small holes are filled."""
    from scipy.ndimage import binary_fill_holes, label

    labelled: Any = label(mask, np.ones((3, 3)))
    parts, count = labelled
    seeds = np.zeros(mask.shape, bool)
    for point in clicks:
        seeds |= _disc(mask.shape, point)
    own = _labels(parts, seeds if clicks else start & mask)
    sizes = np.bincount(parts.ravel(), minlength=count + 1)
    kept = np.isin(parts, own[sizes[own] >= MIN_PIXELS])
    holes: Any = label(np.asarray(binary_fill_holes(kept), bool) & ~kept)
    areas = np.bincount(holes[0].ravel())
    small = np.flatnonzero(areas < max(4, 0.002 * kept.sum()))
    return kept | np.isin(holes[0], small[small > 0])


def _labels(parts: Array, where: Array) -> Array:
    """The labels of the parts that some pixels belong to."""
    found = np.unique(parts[where])
    return found[found > 0]


def _disc(shape: tuple[int, ...], point: Point) -> Array:
    rows, columns = np.indices(shape[:2])
    return (columns + 0.5 - point[0]) ** 2 + (rows + 0.5 - point[1]) ** 2 <= _SEED_PX**2 + 0.5


def _inside_box(shape: tuple[int, ...], box: Box) -> Array:
    rows, columns = np.indices(shape[:2])
    left, top, right, bottom = box
    return (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)
