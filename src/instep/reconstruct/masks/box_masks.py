"""Masks of several objects in all views from boxes in some of them.

The boxes of an object bound where it is in space, and so where it can be in every other view. What no box reaches is
background: it shows how the table looks, cell by cell and in any light. Inside, a graph cut tells the background from
everything else; the hulls that the views then agree on narrow the regions, and say which object is in front. Pixels
that two objects may share are unknown for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, grid_around, isosurface
from instep.reconstruct.shape.visual_hull import depth_image, hull_bounds, hull_views, table_cut

from .object_mask import ColourMixture, ObjectMask, colour_mixture, min_cut, soften
from .prompts import Box, ObjectPrompt
from .table_map import TableMap, density_in_any_light, explained_share, map_table, table_meetings, with_contrast

MIN_BOXES = 2
"""Fewest views with a box around an object that bound where it is."""
MIN_VIEWS = 6
"""Fewest views that boxes are carried over to others from."""
_ROUNDS = 3
_CELLS = 72
"""Cells along the longest side of the grid of a hull."""
_REGION_MARGIN_PX = (8, 5, 4)
"""How far a region reaches beyond the hull that it comes from, round by round [pixels]."""
_TOLERATED_SHARE = 0.2
"""Share of the views that may be wrong about a point of a hull that narrows regions."""
_LIKE_TABLE = 12.0
"""Squared deviation [variances] up to which a pixel looks like the table."""
_RING_PX = 40
"""Pixels around a region that show what is behind it."""
_SIGMA = 0.028
"""Least standard deviation of a colour of the table [0 to 1]."""
_SHADE = (0.4, 1.2)
"""Range of factors by which light and shadow change the brightness of the table."""
_ANYWHERE_PRICE = 2.0
"""What counts against a colour that the table has elsewhere or in another light, in units of log likelihood."""
_SHADOW_PX = 4.0
"""Over how much of a patterned table light is taken to be even [pixels]."""
_ANY_SHARE = 0.1
"""Share of an object's pixels whose colour may be any."""
_MOST = 8.0
"""Most that the colour of a pixel says, in units of log likelihood."""
_VOTE = 3.0
"""What it weighs that nearly all views have an object at a pixel, in units of log likelihood."""
_MIN_PIXELS = 30
_SHARED_PX = 1
"""Pixels around what two objects share that are unknown too."""


def propagated(prompts: Sequence[ObjectPrompt], views: Sequence[PosedView]) -> bool:
    """Whether prompts are boxes in some of many views, which are carried over to the others."""
    plain = all(p.boxes and not (p.clicks or p.others or p.colour or p.masks or p.table) for p in prompts)
    return plain and len(views) >= MIN_VIEWS and any(len(p.boxes) < len(views) for p in prompts)


def masks_by_boxes(
    views: Sequence[PosedView], prompts: Sequence[ObjectPrompt], plane: Array,
    report: Callable[[float, str], None],
) -> dict[str, list[ObjectMask]]:  # fmt: skip
    """The masks of each object in the views that show it."""
    hulls = {prompt.name: _boxed(views, prompt, plane) for prompt in prompts}
    meetings, colours = [table_meetings(view.camera, plane) for view in views], dict[str, ColourMixture]()
    found: dict[str, list[ObjectMask]] = {}
    for round_ in range(_ROUNDS):
        seen = [_regions(view, hulls, _REGION_MARGIN_PX[round_]) for view in views]
        blocked = [_any(s.inside.values()) | _hidden(v) for v, s in zip(views, seen, strict=True)]
        table = map_table(views, plane, blocked)
        found = {prompt.name: [] for prompt in prompts}
        for k, view in enumerate(views):
            report((round_ + k / len(views)) / _ROUNDS, view.name)
            balanced = view.image * table.gains[k].astype(np.float32)
            behind = _background(balanced, meetings[k], table, blocked[k])
            for name, mask in _cut(view, balanced, behind, seen[k], colours).items():
                found[name].append(mask)
        colours = {name: _object_colours(views, table, masks) for name, masks in found.items()}
        if round_ < _ROUNDS - 1:
            hulls = {name: _agreed(name, masks, hulls[name], plane) for name, masks in found.items()}
    return {name: [m for m in masks if m.inside.sum() >= _MIN_PIXELS] for name, masks in found.items()}


@array_dataclass
class _Seen:
    """Where objects can be in one view."""

    inside: Mapping[str, Array]
    """Of each object, the pixels that may show it [height, width]."""
    agreed: Mapping[str, Array]
    """Of each object, the pixels that its hull shows [height, width]."""
    shared: Mapping[str, Array]
    """Of each object, the pixels that another one may show too [height, width]."""


@array_dataclass
class _Behind:
    """What one view would show without the objects."""

    density: Array
    """Log density of the colour of each pixel [height, width]."""
    plain: Array
    """Where a pixel looks like the table behind it, not even in another light [height, width]."""


def _boxed(views: Sequence[PosedView], prompt: ObjectPrompt, plane: Array) -> TriangleMesh:
    """The space above the table that all boxes of an object show."""
    if len(prompt.boxes) < MIN_BOXES:
        raise BadInput(
            f"{prompt.name!r} has a box in {len(prompt.boxes)} view, which does not bound where it is; draw one in "
            f"{MIN_BOXES} or more views that show it whole."
        )
    masks = [_box_mask(view, prompt.boxes[view.name]) for view in views if view.name in prompt.boxes]
    try:
        return _hull(masks, plane, 0)
    except BadInput:
        raise BadInput(
            f"The boxes of {prompt.name!r} have no point above the table in common; are they around one object, which "
            "each of these views shows whole?"
        ) from None


def _box_mask(view: PosedView, box: Box) -> ObjectMask:
    rows, columns = np.indices(view.image.shape[:2])
    left, top, right, bottom = box
    inside = np.asarray((columns >= left) & (columns < right) & (rows >= top) & (rows < bottom), bool)
    if not inside.any():
        raise BadInput(f"A box is outside the image of camera {view.name!r}.")
    return ObjectMask(view.camera, inside.astype(np.float32), np.ones(inside.shape, bool))


def _hull(
    masks: Sequence[ObjectMask], plane: Array, tolerated: int, within: TriangleMesh | None = None
) -> TriangleMesh:
    if not masks:
        raise BadInput("The views show nothing.")
    low, high = hull_bounds(masks, plane) if within is None else within.bounds
    pitch = float((high - low).max()) / _CELLS
    grid = grid_around(low, high, pitch)
    points = grid.points()
    field = table_cut(replace(hull_views(masks), tolerated=tolerated).field(points), points, plane)
    if not (field > 0).any():
        raise BadInput("The views do not agree.")
    return isosurface(field + 0.5 * pitch, grid)


def _agreed(name: str, masks: Sequence[ObjectMask], before: TriangleMesh, plane: Array) -> TriangleMesh:
    """The hull that nearly all views agree on, inside what it was before."""
    shown = [mask for mask in masks if mask.inside.sum() >= _MIN_PIXELS]
    try:
        return _hull(shown, plane, int(_TOLERATED_SHARE * len(shown)), before)
    except BadInput:
        raise BadInput(
            f"The views do not agree about {name!r}: nothing that differs from the table is inside its boxes in all of "
            "them; are the boxes, the camera poses and the table right?"
        ) from None


def _regions(view: PosedView, hulls: Mapping[str, TriangleMesh], margin: int) -> _Seen:
    from scipy.ndimage import binary_dilation

    shown = {name: depth_image(hull, view.camera).mask for name, hull in hulls.items()}
    wide = {n: np.asarray(binary_dilation(m, iterations=margin), bool) if m.any() else m for n, m in shown.items()}
    shared = {n: _any(other for k, other in wide.items() if k != n) & wide[n] for n in wide}
    return _Seen(
        wide, shown, {n: np.asarray(binary_dilation(m, iterations=_SHARED_PX), bool) for n, m in shared.items()}
    )


def _hidden(view: PosedView) -> Array:
    return np.zeros(view.image.shape[:2], bool) if view.hidden is None else view.hidden


def _any(masks: Iterable[Array]) -> Array:
    return np.any(list(masks), axis=0)


def _background(image: Array, meets: Array, table: TableMap, blocked: Array) -> _Behind:
    """How likely the colour of each pixel is for what is behind the objects."""
    from scipy.ndimage import binary_dilation, gaussian_filter

    found = table.predicted(meets)
    sure, predicted = found.sure, found.colour
    sigma = np.hypot(_SIGMA, np.minimum(found.sigma, 0.05))
    alike, level = (image * predicted).sum(axis=-1), (predicted**2).sum(axis=-1)
    if table.patterned:  # a shadow is smooth: in a light of its own, any pixel would fit a grey pattern
        sigma = with_contrast(found, image, blocked, _SIGMA).sigma
        alike, level = gaussian_filter(alike, _SHADOW_PX), gaussian_filter(level, _SHADOW_PX)
    light = np.clip(alike / np.maximum(level, 1e-6), *_SHADE)
    error = ((image - light[..., None] * predicted) ** 2).sum(axis=-1)
    plain = sure & (((image - predicted) ** 2).sum(axis=-1) < _LIKE_TABLE * sigma**2)
    likely = np.where(sure, -0.5 * error / sigma**2 - 1.5 * np.log(2 * np.pi * sigma**2), -np.inf)
    near = np.asarray(binary_dilation(blocked, iterations=_RING_PX), bool) & ~blocked
    # Log density of the colour of each pixel as one that the table has anywhere, in any light, or that is near.
    out = density_in_any_light(image, table.colours, _SHADE) - _ANYWHERE_PRICE
    if near.sum() > _MIN_PIXELS:
        out = np.maximum(out, colour_mixture(image[near], 8).log_likelihood(image) - 1.0)
    other = out
    if not table.patterned:
        return _Behind(np.maximum(likely, other), plain)
    share = explained_share(likely, other, near & sure)
    mixed = np.logaddexp(likely + np.log(share), other + np.log(1 - share))
    return _Behind(np.where(sure, mixed, other), plain)


def _cut(
    view: PosedView, image: Array, behind: _Behind, seen: _Seen, colours: Mapping[str, ColourMixture]
) -> dict[str, ObjectMask]:
    """The masks of objects in one view."""
    out: dict[str, ObjectMask] = {}
    hidden = _hidden(view)
    for name, region in seen.inside.items():
        found = np.zeros(behind.plain.shape, bool)
        if region.any():
            rows, columns = np.nonzero(region)
            cut = np.s_[max(0, rows.min() - 3) : rows.max() + 4, max(0, columns.min() - 3) : columns.max() + 4]
            front, voted = np.zeros(region[cut].shape), np.zeros(region[cut].shape)
            if name in colours:
                voted = np.where(seen.agreed[name][cut], _VOTE, 0.0)
                likely = colours[name].log_likelihood(image[cut]) + np.log(1 - _ANY_SHARE)
                front = np.logaddexp(likely, np.log(_ANY_SHARE))
            preference = np.clip(front - behind.density[cut], -_MOST, _MOST) + voted
            preference = np.where(hidden[cut], 0.0, np.where(region[cut], preference, -np.inf))
            found[cut] = _filled(min_cut(preference, image[cut]), behind.plain[cut])
        known = ~hidden & ~seen.shared[name]
        out[name] = ObjectMask(view.camera, soften(view.image, found & ~hidden), known)
    return out


def _filled(mask: Array, plain: Array) -> Array:
    """The mask with its holes, but for those that show the table: a grey inside of a cup is no hole."""
    from scipy.ndimage import binary_fill_holes, label

    labelled: Any = label(np.asarray(binary_fill_holes(mask), bool) & ~mask)
    holes, count = labelled
    area = np.bincount(holes.ravel(), minlength=count + 1)
    table = np.bincount(holes[plain].ravel(), minlength=count + 1)
    other = table < 0.5 * np.maximum(area, 1)
    other[0] = False
    return mask | other[holes]


def _object_colours(views: Sequence[PosedView], table: TableMap, masks: Sequence[ObjectMask]) -> ColourMixture:
    """The colours of an object over all views."""
    from scipy.ndimage import binary_erosion

    inner: list[Array] = []
    for view, gain, mask in zip(views, table.gains, masks, strict=True):
        inner.append((view.image * gain)[np.asarray(binary_erosion(mask.inside, iterations=1), bool)])
    some = np.concatenate(inner)
    return colour_mixture(some if len(some) else np.full((3, 3), 0.5), 8)
