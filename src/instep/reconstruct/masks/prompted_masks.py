"""Masks of one object in all views by its prompt: graph cut or network, mask files, or everything on the table.

A graph cut between colour mixtures of the object and of its surroundings labels each view; the edge is then placed to a
fraction of a pixel. In views of a fixed camera, pixels that differ from the static background without being the object
(an arm, a hand) are unknown, not background.
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
from instep.splat.fitting import Progress
from instep.splat.video_background import static_background

from .object_mask import ObjectMask, colour_mixture, inside_box, min_cut, overlap, soften
from .prompts import ImageMarks, ObjectPrompt, Point, PromptNetwork
from .table_masks import masks_on_table

MIN_PIXELS = 30
"""Fewest pixels of a mask."""
_SHADING = (0.45, 1.5)
"""Range of factors by which light and shadow change the brightness of the object."""
_VIVID = 0.5
"""Minimum saturation for the highlight test."""
_ROUNDS = 4
_DIFFERENT, _SHADED_DIFFERENCE = 0.15, 0.08
"""Difference of a pixel [0 to 1] above which it is not the background, and up to which it is the background in another
light."""


@array_dataclass
class ChosenMasks:
    """The masks of an object in the views that show it, and their source."""

    masks: tuple[ObjectMask, ...]
    info: Mapping[str, Any]


def prompted_masks(
    views: Sequence[PosedView], prompt: ObjectPrompt, plane: Array, segmenter: PromptNetwork | None, report: Progress
) -> ChosenMasks:
    """The masks of an object in the views that show it; clicks and boxes by a graph cut if there is no segmenter."""
    if prompt.table:
        return ChosenMasks(tuple(masks_on_table(views, plane, report)), {"segmenter": "table segmentation"})
    masks: list[ObjectMask] = []
    for k, view in enumerate(views):
        report(k / len(views), f"{prompt.name} in {view.name}")
        mask = mask_from_file(view, prompt.masks) if prompt.masks else mask_by_prompt(view, prompt, segmenter)
        if mask is not None:
            masks.append(mask)
    source = {"segmenter": "files" if prompt.masks else "graph cut"}
    return ChosenMasks(tuple(masks), source if segmenter is None or prompt.masks else segmenter.provenance)


def mask_by_prompt(view: PosedView, prompt: ObjectPrompt, segmenter: PromptNetwork | None = None) -> ObjectMask | None:
    """The mask of an object in a view by its clicks, box and colour; None if the prompt does not mark the view."""
    marks, camera = prompt.marks.get(view.name, ImageMarks()), view.camera
    for x, y in (*marks.clicks, *marks.others):
        if not (0 <= x < camera.width and 0 <= y < camera.height):
            size = f"the image of camera {view.name!r}, {camera.width} x {camera.height} pixels"
            raise BadInput(f"The click ({x:g}, {y:g}) of {prompt.name!r} is outside {size}.")
    if not marks and prompt.colour is None:
        return None
    start, given = _start(view.image, marks, prompt.colour), _given(view.image.shape, marks)
    enough = int(start.sum()) >= MIN_PIXELS
    mask = _kept_parts(_cut_out(view.image, start, given), marks.clicks, start) if enough else np.zeros_like(start)
    if segmenter is not None and marks:
        mask = _answer(view, prompt.name, marks, segmenter, mask)
    elif marks and not enough:
        words = "click on a larger even part of the object, or give a box."
        raise BadInput(f"Few pixels at the prompt of {prompt.name!r} in camera {view.name!r} have one colour; {words}")
    if mask.sum() < MIN_PIXELS:
        return None
    known = known_pixels(view, mask)
    if beyond := hidden_parts(view, mask, known):
        seeds = mask | np.any(beyond, axis=0)
        mask = mask | _kept_parts(_cut_out(view.image, seeds, given) & (given > -np.inf), (), seeds)
    return ObjectMask(camera, soften(view.image, mask), known | mask)


def mask_from_file(view: PosedView, folder: Path) -> ObjectMask | None:
    """The mask in CAMERA.png of a folder: white the object, black not, mid grey unknown; None if there is none."""
    path = folder / f"{view.name}.png"
    if not path.is_file():
        return None
    level = np.asarray(open_stills(lambda _: read_file(path, MAX_IMAGE), 1)[0], np.float32).mean(axis=-1) / 255
    if level.shape != view.image.shape[:2]:
        has, wanted = level.shape[::-1], (view.camera.width, view.camera.height)
        raise BadInput(f"The mask {path.name} has {has} pixels; {wanted}, as its image, were expected.")
    known = np.abs(level - 0.5) > 0.1
    binary = bool(((level < 0.02) | (level > 0.98) | ~known).all())
    alpha = soften(view.image, level > 0.5) if binary else np.where(known, level, 0.0)
    return ObjectMask(view.camera, alpha.astype(np.float32), known) if (level > 0.9).sum() >= MIN_PIXELS else None


def known_pixels(view: PosedView, mask: Array) -> Array:
    """False where something may occlude the object [height, width]: pixels that differ from the static background.

    Where few frames show the background, as where the object or an arm rests most of the time, a pixel counts as an
    occluder if its colour is likelier for the certain occluders than for the background elsewhere.
    """
    from scipy.ndimage import binary_dilation

    found = background_without(view, mask)
    if found is None:
        return np.ones(mask.shape, bool)
    own = np.asarray(binary_dilation(mask, iterations=3), bool)
    # Share of the frames that must show one background at a pixel where it is certain.
    sure = (found.share >= 0.6) & (found.unoccluded >= 0.5) & ~own
    shade = (view.image * found.image).sum(axis=-1) / np.maximum((found.image**2).sum(axis=-1), 1e-6)
    lit = np.clip(shade, *_SHADING)[..., None] * found.image
    differs = np.abs(view.image - found.image).max(axis=-1) > _DIFFERENT
    differs &= np.abs(view.image - lit).max(axis=-1) >= _SHADED_DIFFERENCE
    hiding, ground = _blobs(differs & sure), sure & ~differs
    if not hiding.any() or ground.sum() < MIN_PIXELS:
        return np.ones(mask.shape, bool)
    hider, plain = colour_mixture(view.image[hiding]), colour_mixture(view.image[ground], 8)
    alike = hider.log_likelihood(view.image) > plain.log_likelihood(view.image)
    hiding = _blobs(hiding | (alike & ~sure & ~mask))
    return ~np.asarray(binary_dilation(hiding, iterations=2), bool) | mask


def hidden_parts(view: PosedView, mask: Array, known: Array) -> list[Array]:
    """Parts of an object beyond an occluder, each [height, width] bool, the three largest first.

    They have the colours of the mask and are connected to it through unknown pixels.
    """
    from scipy.ndimage import binary_dilation, label

    if known.all() or mask.sum() < MIN_PIXELS:
        return []
    own = np.asarray(binary_dilation(mask, iterations=3), bool)
    inner, outer = colour_mixture(view.image[mask]), colour_mixture(view.image[~own], 8)
    alike = _blobs((inner.log_likelihood(view.image) > outer.log_likelihood(view.image)) & ~own)
    # Half the gap between pixels that count as connected [pixels].
    bridged: Any = label(np.asarray(binary_dilation(alike | mask | ~known, iterations=3), bool))
    reached = np.isin(bridged[0], _labels(bridged[0], mask))
    parts: Any = label(alike & reached)
    rows, columns = np.nonzero(mask)
    hues, found = _hues(view.image, mask), list[Array]()
    for k in range(1, parts[1] + 1):
        part = parts[0] == k
        # Least likeness of the hues of an object and of a part of it behind an occluder, 0 to 1.
        if part.sum() < MIN_PIXELS or np.sqrt(hues * _hues(view.image, part)).sum() < 0.75:
            continue
        y, x = (float(np.median(where)) for where in np.nonzero(part))
        # Largest distance of such a part, as a multiple of the root of the object's area.
        if np.hypot(rows - y, columns - x).min() < 4.0 * np.sqrt(len(rows)):
            found.append(part)
    return sorted(found, key=lambda part: -int(part.sum()))[:3]


@array_dataclass
class StaticBackground:
    """What a fixed camera shows without an object."""

    image: Array
    """[height, width, 3], 0 to 1."""
    share: Array
    """Share of the frames without the object at a pixel that show it [height, width]."""
    unoccluded: Array
    """Share of the frames without the object at a pixel [height, width]."""


def background_without(view: PosedView, mask: Array) -> StaticBackground | None:
    """The static background of a fixed camera; None for a camera with a single image.

    It comes from frames at other times where they do not show the colours of the object.
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


def _answer(view: PosedView, name: str, marks: ImageMarks, segmenter: PromptNetwork, cut: Array) -> Array:
    """The mask of a network that holds the clicks [height, width].

    A network offers a part of an object, all of it, and what is around it. The graph cut tells them apart: the answer
    has the largest product of predicted overlap with the object and overlap with the graph cut.
    """
    found = [
        one
        for one in segmenter.candidates(view.image, marks)
        if one.inside.sum() >= MIN_PIXELS and all(one.inside[int(y), int(x)] for x, y in marks.clicks)
    ]
    if not found:
        words = "click on the middle of the object, or give a box."
        raise BadInput(f"The segmenter found nothing at the prompt of {name!r} in camera {view.name!r}; {words}")
    return max(found, key=lambda one: one.score * (overlap(one.inside, cut) if cut.any() else 1.0)).inside


def _hues(image: Array, mask: Array) -> Array:
    """Shares of the colours under a mask, whatever their brightness, in a smooth histogram [colours]."""
    from scipy.ndimage import gaussian_filter

    own = image[mask]
    ratios = own[:, :2] / np.maximum(own.sum(axis=1, keepdims=True), 1e-6)
    counts = np.histogram2d(*ratios.T, bins=40, range=((0.0, 1.0), (0.0, 1.0)))[0]
    smooth = np.asarray(gaussian_filter(counts, 1.5)).ravel()
    return smooth / max(float(smooth.sum()), 1e-9)


def _blobs(found: Array) -> Array:
    """The connected parts of some pixels that are neither small nor thin [height, width]."""
    from scipy.ndimage import binary_opening, label

    labelled: Any = label(binary_opening(found, np.ones((3, 3))))
    sizes = np.bincount(labelled[0].ravel())
    sizes[0] = 0
    return (sizes >= MIN_PIXELS)[labelled[0]]


def _given(shape: tuple[int, ...], marks: ImageMarks) -> Array:
    """Labels by marks [height, width]: infinite on the object, minus infinite beside it, else 0."""
    given = np.zeros(shape[:2])
    for points, sign in ((marks.clicks, 1.0), (marks.others, -1.0)):
        for point in points:
            given[_disc(shape, point)] = sign * np.inf
    if marks.box is not None:
        given[~inside_box(shape, marks.box)] = -np.inf
    return given


def _start(image: Array, marks: ImageMarks, colour: tuple[float, float, float] | None) -> Array:
    """The first pixels of the object [height, width]."""
    from scipy.ndimage import label

    shape = image.shape[:2]
    if not marks.clicks and colour is None and marks.box is not None:
        left, top, right, bottom = marks.box
        x, y = 0.2 * (right - left), 0.2 * (bottom - top)
        return inside_box(shape, (left + x, top + y, right - x, bottom - y))
    like = np.zeros(shape, bool)
    if colour is not None:
        like |= _alike(image, np.array(colour), 0.15)
    for point in marks.clicks:
        seed = np.median(image[_disc(shape, point)], axis=0)
        # Largest difference from the colour under a click, after shading, of the first pixels of the object.
        labelled: Any = label(_alike(image, seed, 0.10))
        like |= np.isin(labelled[0], _labels(labelled[0], _disc(shape, point)))
    return like if marks.box is None else like & inside_box(shape, marks.box)


def _alike(image: Array, colour: Array, tolerance: float) -> Array:
    """Which pixels have a colour in any shading; a vivid one also below a whitish highlight or haze.

    Light reflected by a surface is a multiple of its colour plus some of the colour of the lamp, which the given colour
    may already hold. A pixel that keeps little saturation below its highlight is another, pale thing.
    """
    vivid = 1.0 - float(colour.min()) / max(float(colour.max()), 1e-6)
    gloss = np.zeros(image.shape)
    if vivid > _VIVID:
        shares = image @ np.linalg.pinv(np.stack([colour, np.ones(3)], axis=1)).T
        # Largest share of white light in a highlight, 0 to 1.
        gloss += np.clip(shares[..., 1:], -0.8 * float(colour.min()), 0.35)
    shade = np.clip((image - gloss) @ colour / max(float(colour @ colour), 1e-6), *_SHADING)
    near = np.linalg.norm(image - gloss - shade[..., None] * colour, axis=-1) < tolerance * np.maximum(shade, 0.6)
    if vivid <= _VIVID:
        return near
    # Least saturation of a pixel below a highlight, as a share of that of the vivid colour.
    return near & (image.max(axis=-1) - image.min(axis=-1) > 0.6 * vivid * image.max(axis=-1))


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
        inner, outer = colour_mixture(image[mask]), colour_mixture(image[~mask & (given <= 0)], 8)
        part = image[cut]
        # A colour that is nowhere outside is likelier of the object, but not by any amount.
        other = np.logaddexp(outer.log_likelihood(part), -2.0)
        preference = np.clip(inner.log_likelihood(part) - other, -20.0, 20.0)
        preference = np.where(np.isinf(given[cut]), given[cut], preference)
        found = np.zeros(shape, bool)
        found[cut] = min_cut(preference, part)
        if (found != mask).sum() < 2:
            return found
        mask = found
    return mask


def _kept_parts(mask: Array, clicks: tuple[Point, ...], start: Array) -> Array:
    """The parts of a mask with clicks, or with start pixels if there are no clicks; small holes are filled."""
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
    """The labels of the parts at some pixels."""
    found = np.unique(parts[where])
    return found[found > 0]


def _disc(shape: tuple[int, ...], point: Point) -> Array:
    rows, columns = np.indices(shape[:2])
    # Radius of the disc around a click that is surely of the object [pixels].
    return (columns + 0.5 - point[0]) ** 2 + (rows + 0.5 - point[1]) ** 2 <= 2**2 + 0.5
