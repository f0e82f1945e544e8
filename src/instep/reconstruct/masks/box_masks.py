"""Masks of several objects in all views from boxes in some of them.

The boxes of an object bound where it is in space, and so where it can be in every other view. Pixels outside all
regions are background: they show how the table looks, cell by cell and in any light. Inside, a graph cut separates the
background from everything else. The hulls that the views agree on then narrow the regions and say which object is in
front. Pixels that two objects may share are unknown for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, grid_around, isosurface
from instep.reconstruct.shape.visual_hull import depth_image, hull_bounds, hull_views, table_cut
from instep.splat.fitting import Progress

from .object_mask import ColourMixture, ObjectMask, colour_mixture, inside_box, min_cut, soften
from .prompts import ImageMarks, ObjectPrompt
from .table_map import TableMap, density_in_any_light, map_table, table_meetings, with_contrast

MIN_BOXES = 2
"""Fewest views with a box around an object."""
MIN_VIEWS = 6
"""Fewest views for boxes in only some of them."""
_CELLS = 72
"""Cells along the longest side of the grid of a hull."""
_REGION_MARGIN_PX = (8, 5, 4)
"""Reach of a region beyond its hull, in each round [pixels]."""
_TOLERATED_SHARE = 0.2
"""Share of the views that may disagree about a point of a hull."""
_SIGMA = 0.028
"""Least standard deviation of a colour of the table [0 to 1]."""
_SHADE = (0.4, 1.2)
"""Range of factors by which light and shadow change the brightness of the table."""
_SHADOW_PX = 4.0
"""Scale over which light on a patterned table is even [pixels]."""
_ANY_SHARE = 0.1
"""Share of an object's pixels that may have any colour."""
_MOST = 8.0
"""Largest log likelihood ratio by the colour of one pixel."""
_VOTE = 3.0
"""Weight of the hull of the views at a pixel, in units of log likelihood."""
_MIN_PIXELS = 30


def propagated(prompts: Sequence[ObjectPrompt], views: Sequence[PosedView]) -> bool:
    """Whether all prompts are boxes in some of many views."""
    boxed = all(
        marks.box is not None and not (marks.clicks or marks.others) for p in prompts for marks in p.marks.values()
    )
    plain = boxed and all(p.marks and not (p.colour or p.masks or p.table) for p in prompts)
    return plain and len(views) >= MIN_VIEWS and any(len(p.marks) < len(views) for p in prompts)


def masks_by_boxes(
    views: Sequence[PosedView], prompts: Sequence[ObjectPrompt], plane: Array, report: Progress
) -> dict[str, list[ObjectMask]]:
    """The masks of each object in the views that show it."""
    hulls = {prompt.name: _boxed(views, prompt, plane) for prompt in prompts}
    meetings, colours = [table_meetings(view.camera, plane) for view in views], dict[str, ColourMixture]()
    found: dict[str, list[ObjectMask]] = {}
    for round_, margin in enumerate(_REGION_MARGIN_PX):
        seen = [_regions(view, hulls, margin) for view in views]
        blocked = [np.any([*s.inside.values(), ~v.visible], axis=0) for v, s in zip(views, seen, strict=True)]
        table = map_table(views, plane, blocked)
        found = {prompt.name: [] for prompt in prompts}
        for k, view in enumerate(views):
            report((round_ + k / len(views)) / len(_REGION_MARGIN_PX), view.name)
            balanced = view.image * table.gains[k].astype(np.float32)
            behind = _background(balanced, meetings[k], table, blocked[k])
            for name, mask in _cut(view, balanced, behind, seen[k], colours).items():
                found[name].append(mask)
        colours = {name: _object_colours(views, table, masks) for name, masks in found.items()}
        if round_ < len(_REGION_MARGIN_PX) - 1:
            hulls = {name: _agreed(name, masks, hulls[name], plane) for name, masks in found.items()}
    return {name: [m for m in masks if m.inside.sum() >= _MIN_PIXELS] for name, masks in found.items()}


@array_dataclass
class _Regions:
    """Pixels of one view by object [height, width]."""

    inside: Mapping[str, Array]  # Pixels that may show it
    agreed: Mapping[str, Array]  # Pixels that its hull shows
    shared: Mapping[str, Array]  # Pixels that another object may show too


@array_dataclass
class _Behind:
    """What one view would show without the objects."""

    density: Array  # Log density of the colour of each pixel [height, width]
    plain: Array  # Pixels that look like the table behind them in the same light [height, width]


def _boxed(views: Sequence[PosedView], prompt: ObjectPrompt, plane: Array) -> TriangleMesh:
    """The space above the table that all boxes of an object show."""
    if len(prompt.marks) < MIN_BOXES:
        count = f"a box in {len(prompt.marks)} view; draw one in {MIN_BOXES} or more views that show it whole"
        raise BadInput(f"{prompt.name!r} has {count}.")
    masks: list[ObjectMask] = []
    for view in views:
        box = prompt.marks.get(view.name, ImageMarks()).box
        if box is not None:
            inside = inside_box(view.image.shape[:2], box)
            if not inside.any():
                raise BadInput(f"A box is outside the image of camera {view.name!r}.")
            masks.append(ObjectMask(view.camera, inside.astype(np.float32), np.ones(inside.shape, bool)))
    try:
        hull = _hull(masks, plane, 0)
    except BadInput:
        hull = None
    if hull is None:
        words = "have no point above the table in common; draw them around one object, where it is whole."
        raise BadInput(f"The boxes of {prompt.name!r} {words}")
    return hull


def _hull(
    masks: Sequence[ObjectMask], plane: Array, tolerated: int, within: TriangleMesh | None = None
) -> TriangleMesh | None:
    """The hull of masks, inside the box of an earlier one; None if it is empty."""
    if not masks:
        return None
    low, high = hull_bounds(masks, plane) if within is None else within.bounds
    pitch = float((high - low).max()) / _CELLS
    grid = grid_around(low, high, pitch)
    points = grid.points()
    field = table_cut(replace(hull_views(masks), tolerated=tolerated).field(points), points, plane)
    return isosurface(field + 0.5 * pitch, grid) if (field > 0).any() else None


def _agreed(name: str, masks: Sequence[ObjectMask], before: TriangleMesh, plane: Array) -> TriangleMesh:
    """The hull that nearly all views agree on, inside the box of the one before."""
    shown = [mask for mask in masks if mask.inside.sum() >= _MIN_PIXELS]
    hull = _hull(shown, plane, int(_TOLERATED_SHARE * len(shown)), before)
    if hull is None:
        words = "nothing that differs from the table is inside all its boxes; check them, the poses and the table."
        raise BadInput(f"The views do not agree about {name!r}: {words}")
    return hull


def _regions(view: PosedView, hulls: Mapping[str, TriangleMesh], margin: int) -> _Regions:
    from scipy.ndimage import binary_dilation

    shown = {name: depth_image(hull, view.camera).mask for name, hull in hulls.items()}
    wide = {n: np.asarray(binary_dilation(m, iterations=margin), bool) if m.any() else m for n, m in shown.items()}
    count = np.sum(list(wide.values()), axis=0)
    shared = {n: np.asarray(binary_dilation(own & (count > 1)), bool) for n, own in wide.items()}
    return _Regions(wide, shown, shared)


def _background(image: Array, meets: Array, table: TableMap, blocked: Array) -> _Behind:
    """How likely the colour of each pixel is for the background behind the objects."""
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
    # Squared deviation [variances] up to which a pixel looks like the table.
    plain = sure & (((image - predicted) ** 2).sum(axis=-1) < 12.0 * sigma**2)
    likely = np.where(sure, -0.5 * error / sigma**2 - 1.5 * np.log(2 * np.pi * sigma**2), -np.inf)
    # Width of the ring around the regions whose colours are background [pixels].
    near = np.asarray(binary_dilation(blocked, iterations=40), bool) & ~blocked
    # Log likelihood that a colour from elsewhere on the table loses.
    other = density_in_any_light(image, table.colours, _SHADE) - 2.0
    if near.sum() > _MIN_PIXELS:
        other = np.maximum(other, colour_mixture(image[near], 8).log_likelihood(image) - 1.0)
    if not table.patterned:
        return _Behind(np.maximum(likely, other), plain)
    # Where poses or the map are wrong, the map explains few pixels better than other colours do, and counts little.
    ring = near & sure
    share = float(np.clip((likely > other)[ring].mean(), 0.5, 0.99)) if ring.any() else 0.5
    mixed = np.logaddexp(likely + np.log(share), other + np.log(1 - share))
    return _Behind(np.where(sure, mixed, other), plain)


def _cut(
    view: PosedView, image: Array, behind: _Behind, seen: _Regions, colours: Mapping[str, ColourMixture]
) -> dict[str, ObjectMask]:
    """The masks of the objects in one view."""
    out: dict[str, ObjectMask] = {}
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
            preference = np.where(view.visible[cut], np.where(region[cut], preference, -np.inf), 0.0)
            found[cut] = _filled(min_cut(preference, image[cut]), behind.plain[cut])
        out[name] = ObjectMask(view.camera, soften(view.image, found & view.visible), view.visible & ~seen.shared[name])
    return out


def _filled(mask: Array, plain: Array) -> Array:
    """The mask with its holes, except those that show the table."""
    from scipy.ndimage import binary_fill_holes, label

    holes, count = label(np.asarray(binary_fill_holes(mask), bool) & ~mask)  # pyright: ignore[reportGeneralTypeIssues]
    area = np.bincount(holes.ravel(), minlength=count + 1)
    table = np.bincount(holes[plain].ravel(), minlength=count + 1)
    other = table < 0.5 * np.maximum(area, 1)
    other[0] = False
    return mask | other[holes]


def _object_colours(views: Sequence[PosedView], table: TableMap, masks: Sequence[ObjectMask]) -> ColourMixture:
    """The colours of an object over all views."""
    from scipy.ndimage import binary_erosion

    inner = [
        (view.image * gain)[np.asarray(binary_erosion(mask.inside), bool)]
        for view, gain, mask in zip(views, table.gains, masks, strict=True)
    ]
    some = np.concatenate(inner)
    return colour_mixture(some if len(some) else np.full((3, 3), 0.5), 8)
