"""Segment objects on a table: everything without a prompt, split into objects, or objects by boxes in some views.

The views are rectified onto the table; the median over views shows the table itself, since each view sees an object
elsewhere. Where most views show an object, those that agree on a colour of the table show the table. Pixels that differ
from the table that their ray meets belong to an object. Views then vote: a pixel belongs to an object if the space in
front of it is inside the silhouettes of nearly all other views.

The joint masks are carved into a coarse hull, whose pieces are the objects.

Boxes in some of the views give masks of several objects in all of them. They bound where an object is in space, and so
where it can be in every other view. Pixels outside all regions are background: they show how the table looks, cell by
cell and in any light. Inside, a graph cut separates the background from everything else. The hulls that the views agree
on then narrow the regions and say which object is in front. Pixels that two objects may share are unknown for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.processes import usable_cores
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.shape.triangle_mesh import Grid, TriangleMesh, grid_around, isosurface
from instep.reconstruct.shape.visual_hull import coverage, depth_image, height_above, hull_bounds, hull_views, table_cut
from instep.splat.fitting import Progress, focus_point

from .object_mask import ColourMixture, ObjectMask, colour_mixture, inside_box, min_cut, soften
from .prompts import ImageMarks, ObjectPrompt
from .table_map import (
    TABLE_SHADING,
    TableMap,
    density_in_any_light,
    is_foreign,
    map_table,
    table_meetings,
    with_contrast,
)

MIN_VIEWS = 6
"""Fewest views for table segmentation, and for boxes in only some of the views."""
MIN_PIXELS = 30
"""Fewest pixels of a mask."""
_NOISE = 0.025
"""Least standard deviation of the table's colour [0 to 1]: camera noise and interpolation of the map."""
_ROUNDS = 6
_TOLERATED_SHARE = 0.1
"""Share of the views that may disagree about a point of a hull."""
_VOTE = 6.0
"""Weight of the vote of the other views, in units of log likelihood."""
_CROP_PX = 24
_NEEDED_SHARE = 0.15
"""Share of its silhouette that a piece must explain alone, in two views at least, to be an object."""
_MARGIN_PX = 2
"""Reach of an object beyond its piece, and of shared pixels beyond where pieces overlap [pixels]."""
_SAME_SHARE = 0.5
"""Median share of a piece's silhouette inside the masks of an object above which the piece is that object."""
MIN_BOXES = 2
"""Fewest views with a box around an object."""
_CELLS = 72
"""Cells along the longest side of the grid of a hull."""
_REGION_MARGIN_PX = (8, 5, 4)
"""Reach of a region beyond its hull, in each round [pixels]."""
_BOXED_TOLERATED_SHARE = 0.2
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
_BOXED_VOTE = 3.0
"""Weight of the hull of the views at a pixel, in units of log likelihood."""
_ColourPair = tuple[ColourMixture, ColourMixture]
"""Colours of the objects on the table, and of the table."""


def masks_on_table(views: Sequence[PosedView], plane: Array, report: Progress | None = None) -> list[ObjectMask]:
    """The masks of everything on a table, one per view."""
    if len(views) < MIN_VIEWS:
        words = f"at least {MIN_VIEWS} views (got {len(views)}); click instead: NAME=click:CAMERA:X,Y"
        raise BadInput(f"Table segmentation needs {words}.")
    meetings = [table_meetings(view.camera, plane) for view in views]
    votes: list[Array | None] = [None] * len(views)
    found: list[Array] = [np.zeros(view.image.shape[:2], bool) for view in views]
    known, hiding, colours = list(found), list(found), None
    for round_ in range(_ROUNDS):
        shown = [mask | ~v.visible for v, mask in zip(views, hiding, strict=True)]
        table, before = map_table(views, plane, shown), list(found)
        with ThreadPoolExecutor(usable_cores()) as pool:
            cut = partial(_cut, table, colours)
            for i, (mask, sure) in enumerate(pool.map(cut, views, table.gains, meetings, votes)):
                if report is not None:
                    report((round_ + i / len(views)) / _ROUNDS, views[i].name)
                found[i], known[i] = mask, sure
        changed = sum(int((a != b).sum()) for a, b in zip(found, before, strict=True))
        # Share of the object's pixels whose change ends the rounds.
        if changed <= 0.005 * sum(int(mask.sum()) for mask in found):
            break
        if round_ < _ROUNDS - 1:
            agreed, above = _votes(views, found, known, plane)
            votes, colours = list[Array | None](agreed), _colours(views, found, agreed, table)
            hiding = [mask & high for mask, high in zip(found, above, strict=True)]
    masks = [ObjectMask(v.camera, soften(v.image, m), v.visible) for v, m in zip(views, found, strict=True)]
    _check_shown(masks)
    return [mask for mask in masks if mask.inside.any()]


def _check_shown(masks: Sequence[ObjectMask]) -> list[ObjectMask]:
    """The masks that show something; BadInput if they are too few."""
    shown = [mask for mask in masks if mask.inside.sum() > MIN_PIXELS]
    if len(shown) < MIN_VIEWS:
        raise BadInput("Nothing on the table differs from it. Use a click prompt instead: NAME=click:CAMERA:X,Y.")
    return shown


def _colours(
    views: Sequence[PosedView], found: Sequence[Array], votes: Sequence[Array], table: TableMap
) -> _ColourPair | None:
    """The colours of the objects and of the table around them, over all views; None if the objects are too thin.

    Pixels that other views vote for do not count as table.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    inner, outer = list[Array](), list[Array]()
    for view, mask, vote, gain in zip(views, found, votes, table.gains, strict=True):
        image = view.image * gain
        inner.append(image[np.asarray(binary_erosion(mask, iterations=2), bool)])
        near = np.asarray(binary_dilation(mask, iterations=20), bool)
        outer.append(image[near & ~np.asarray(binary_dilation(mask, iterations=4), bool) & (vote <= 0)])
    around, own = np.concatenate(outer), np.concatenate(inner)
    if len(own) < MIN_PIXELS:
        return None
    if len(around) < MIN_PIXELS:
        around = table.colour[np.isfinite(table.spread)]
    return colour_mixture(own, 8), colour_mixture(around, 8)


def _cut(
    table: TableMap, colours: _ColourPair | None, view: PosedView, gain: Array, meets: Array, vote: Array | None
) -> tuple[Array, Array]:
    """The pixels of a view that differ from the table behind them, and where that is known [height, width]."""
    from scipy.ndimage import map_coordinates

    image = view.image * gain.astype(np.float32)
    at = np.nan_to_num((meets[..., :2] - table.origin) / table.pitch, nan=-10.0)
    found = table.predicted(meets)
    blocked = np.zeros(found.sure.shape, bool) if vote is None else vote > 0
    sigma = np.hypot(_NOISE, np.minimum(found.sigma, 0.08))
    if table.patterned:
        sigma = with_contrast(found, image, blocked, _NOISE).sigma
    against = replace(found, sigma=sigma).evidence_against(image)
    # Where the map has a colour that the table has nowhere else, all views may show the foot of a plain object, so a
    # pixel like the map is no evidence. Beside the map, only the table's own colours are known to be the table.
    foot = found.sure & (against < 0) & map_coordinates(table.foreign, [at[..., 0], at[..., 1]], order=0, cval=False)
    known = ~foot
    known[~found.sure] &= ~is_foreign(image[~found.sure], table.colours)
    unknown = 0.0 if vote is not None else -1.0
    # Preference for an object where its foot may be in the map of the table: too little to cut the foot off.
    preference = np.where(found.sure, np.where(foot, (-0.1), np.clip(against, -8.0, 14.0)), unknown)
    preference, known = np.where(view.visible, preference, 0.0), known & view.visible
    if vote is None or colours is None:
        mask = min_cut(preference, image) & view.visible
        return mask, known | mask
    rows, columns = np.nonzero(vote > 0)
    out = np.zeros(vote.shape, bool)
    if len(rows):
        cut = np.s_[
            max(0, rows.min() - _CROP_PX) : rows.max() + _CROP_PX,
            max(0, columns.min() - _CROP_PX) : columns.max() + _CROP_PX,
        ]
        # Where no other view shows the table, only its colours separate a shadow on it from an object.
        around = colours[1].log_likelihood(image[cut])
        anywhere = density_in_any_light(image[cut], table.colours, TABLE_SHADING)
        behind = np.where(found.sure[cut], around, np.maximum(around, anywhere))
        looks = np.clip(colours[0].log_likelihood(image[cut]) - behind, -6.0, 6.0)
        wish = np.clip(preference[cut], -4.0, 8.0) + looks
        out[cut] = min_cut(wish + np.where(vote[cut] > 0, 0.5, -1.0) * _VOTE, image[cut])
    out &= view.visible
    return out, known | out


def _votes(
    views: Sequence[PosedView], found: Sequence[Array], known: Sequence[Array], plane: Array
) -> tuple[list[Array], list[Array]]:
    """The silhouette, in each view, of the hull that nearly all views agree on [height, width], two pixels wider; and
    of the part of it that is clear of the table."""
    from scipy.ndimage import binary_dilation

    masks = [ObjectMask(v.camera, m.astype(np.float32), k) for v, m, k in zip(views, found, known, strict=True)]
    shown = _check_shown(masks)
    focus = focus_point([view.camera for view in views])
    distance = float(np.median([np.linalg.norm(v.camera.body_from_camera[:3, 3] - focus) for v in views]))
    reach = distance * max(0.5 * min(v.camera.width, v.camera.height) / max(v.camera.focal) for v in views)
    grid = grid_around(np.asarray(focus) - reach, np.asarray(focus) + reach, 2 * reach / 90)
    points = grid.points()
    prepared = replace(hull_views(shown), tolerated=max(1, int(_TOLERATED_SHARE * len(shown))))
    field = table_cut(prepared.field(points), points, plane)
    if not (field > 0).any():
        raise BadInput("The views do not agree about anything on the table. Check their poses and the table's height.")
    mesh = isosurface(field + 0.5 * grid.pitch, grid)
    votes = [np.asarray(binary_dilation(coverage(mesh, view.camera, 1) > 0.5, iterations=2), float) for view in views]
    # Height above the table from which the hull surely occludes the table [cells].
    raised = np.minimum(field + 0.5 * grid.pitch, height_above(points, plane) - 2.0 * grid.pitch)
    if not (raised > 0).any():
        return votes, [mask.inside for mask in masks]
    clear = isosurface(raised, grid)
    return votes, [coverage(clear, view.camera, 1) > 0.5 for view in views]


@array_dataclass
class TableObjects:
    """Objects that stand apart on a table."""

    masks: Mapping[str, tuple[ObjectMask, ...]]
    """Of each object, its masks in the views that show it."""
    info: Mapping[str, Any]
    """Number and names of the objects, artefacts that were left out, and objects of other prompts."""


def split_objects(
    name: str, masks: Sequence[ObjectMask], plane: Array, others: Mapping[str, Sequence[ObjectMask]] | None = None
) -> TableObjects:
    """The masks of everything on a table by object: NAME if there is one, else NAME_1, NAME_2 by volume.

    `others` are the masks of objects of other prompts, which are left out. Pieces of the hull that no view needs are
    artefacts. A piece above the table belongs to the nearest one that stands on it. A pixel belongs to the object whose
    piece is seen there; pixels that two may share are unknown for both.
    """
    low, high = hull_bounds(masks, plane)
    # Cells along the diagonal of the box around everything on the table.
    grid = grid_around(low, high, float(np.linalg.norm(high - low)) / 150)
    points = grid.points()
    joint = replace(hull_views(masks), tolerated=int(_TOLERATED_SHARE * len(masks)))
    field = table_cut(joint.field(points), points, plane)
    standing = _standing(_connected(field), height_above(points, plane), grid)
    pieces, dropped = _needed(standing, field, grid, masks)
    if not pieces:
        raise BadInput(f"The masks of {name!r} leave nothing above the table. Check the table's height.")
    owners = [_owner(piece, masks, others or {}) for piece in pieces]
    known = [owner for owner in owners if owner is not None]
    new = [piece for piece, owner in zip(pieces, owners, strict=True) if owner is None]
    if not new:
        raise BadInput(f"Nothing stands on the table but {', '.join(known)}; leave out the prompt of {name!r}.")
    old = [piece for piece, owner in zip(pieces, owners, strict=True) if owner is not None]
    names = [name] if len(new) == 1 else [f"{name}_{k + 1}" for k in range(len(new))]
    info = {"count": len(new), "names": names, "artefacts": dropped, "of_other_prompts": known}
    if len(pieces) == 1:
        return TableObjects({name: tuple(masks)}, info)
    return TableObjects(_shared_out(names, [piece.mesh for piece in (*new, *old)], masks), info)


@array_dataclass
class _Piece:
    """A connected piece of the hull."""

    mesh: TriangleMesh
    shown: Sequence[Array]  # Where each view shows it [height, width]


def _connected(field: Array) -> list[Array]:
    """Connected pieces of the hull [x, y, z], largest first; gaps of one cell are closed."""
    from scipy.ndimage import binary_dilation, label

    inside, cube = field > 0, np.ones((3, 3, 3), bool)
    found, count = label(np.asarray(binary_dilation(inside), bool), cube)  # pyright: ignore[reportGeneralTypeIssues]
    return sorted((inside & (found == k + 1) for k in range(count)), key=lambda piece: -int(piece.sum()))


def _standing(pieces: Sequence[Array], height: Array, grid: Grid) -> list[Array]:
    """The pieces that stand on the table; each piece above it is joined to the nearest of them."""
    from scipy.ndimage import distance_transform_edt

    # Height of the lowest point of a piece from which it does not stand on the table [cells].
    lifted = [float(height[piece].min()) > 3 * grid.pitch for piece in pieces]
    standing = [piece.copy() for piece, above in zip(pieces, lifted, strict=True) if not above]
    if not standing:
        return list(pieces[:1])
    away = [np.asarray(distance_transform_edt(~piece)) for piece in standing] if any(lifted) else []
    for piece, above in zip(pieces, lifted, strict=True):
        if above:
            standing[int(np.argmin([far[piece].min() for far in away]))] |= piece
    return sorted(standing, key=lambda piece: -int(piece.sum()))


def _needed(pieces: Sequence[Array], field: Array, grid: Grid, masks: Sequence[ObjectMask]) -> tuple[list[_Piece], int]:
    """The pieces that two views or more need to explain their masks, and how many were left out."""
    from scipy.ndimage import binary_dilation

    found, cube = list[_Piece](), np.ones((3, 3, 3), bool)
    for cells in pieces:
        # Half a cell wider, so that silhouettes of parts thinner than a cell have no holes.
        wide = np.where(binary_dilation(cells, cube), field, -grid.pitch) + 0.5 * grid.pitch
        mesh = isosurface(wide, grid)
        if len(mesh.faces):
            found.append(_Piece(mesh, [depth_image(mesh, mask.camera).mask for mask in masks]))
    kept = list(range(len(found)))
    for k in reversed(range(len(found))):  # the smallest first
        alone: list[float] = []
        for m, mask in enumerate(masks):
            own = mask.inside & found[k].shown[m]
            for i in kept:
                if i != k:
                    own = own & ~found[i].shown[m]
            pixels = int(own.sum())
            alone.append(pixels / max(int(found[k].shown[m].sum()), 1) if pixels >= MIN_PIXELS else 0.0)
        if sorted(alone)[-2] < _NEEDED_SHARE:
            kept.remove(k)
    return [found[k] for k in kept], len(pieces) - len(kept)


def _owner(piece: _Piece, masks: Sequence[ObjectMask], others: Mapping[str, Sequence[ObjectMask]]) -> str | None:
    """The object of another prompt that a piece belongs to in most views; None for a new object."""
    for name, own in others.items():
        seen = {mask.camera.name: mask for mask in own}
        shares = [
            float((shown & seen[mask.camera.name].inside).sum()) / max(int(shown.sum()), 1)
            for shown, mask in zip(piece.shown, masks, strict=True)
            if mask.camera.name in seen
        ]
        if shares and float(np.median(shares)) > _SAME_SHARE:
            return name
    return None


def _shared_out(
    names: Sequence[str], meshes: Sequence[TriangleMesh], masks: Sequence[ObjectMask]
) -> dict[str, tuple[ObjectMask, ...]]:
    """The masks of each named object: the pixels of its piece; pixels that two pieces may show are unknown."""
    from scipy.ndimage import binary_dilation

    out: dict[str, list[ObjectMask]] = {name: [] for name in names}
    for mask in masks:
        shown = [depth_image(mesh, mask.camera).mask for mesh in meshes]
        wide = [np.asarray(binary_dilation(one, iterations=_MARGIN_PX), bool) if one.any() else one for one in shown]
        count = np.sum(wide, axis=0)
        shared = np.asarray(binary_dilation((count > 1) & (mask.alpha > 0), iterations=_MARGIN_PX), bool)
        for name, own in zip(names, wide, strict=False):  # pieces of other prompts follow
            alpha = np.where(own, mask.alpha, 0.0).astype(np.float32)
            one = ObjectMask(mask.camera, alpha, mask.known & ~(shared & own))
            if one.inside.sum() >= MIN_PIXELS:
                out[name].append(one)
    return {name: tuple(found) for name, found in out.items()}


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
            for name, mask in _cut_regions(view, balanced, behind, seen[k], colours).items():
                found[name].append(mask)
        colours = {name: _object_colours(views, table, masks) for name, masks in found.items()}
        if round_ < len(_REGION_MARGIN_PX) - 1:
            hulls = {name: _agreed(name, masks, hulls[name], plane) for name, masks in found.items()}
    return {name: [m for m in masks if m.inside.sum() >= MIN_PIXELS] for name, masks in found.items()}


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
    shown = [mask for mask in masks if mask.inside.sum() >= MIN_PIXELS]
    hull = _hull(shown, plane, int(_BOXED_TOLERATED_SHARE * len(shown)), before)
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
    if near.sum() > MIN_PIXELS:
        other = np.maximum(other, colour_mixture(image[near], 8).log_likelihood(image) - 1.0)
    if not table.patterned:
        return _Behind(np.maximum(likely, other), plain)
    # Where poses or the map are wrong, the map explains few pixels better than other colours do, and counts little.
    ring = near & sure
    share = float(np.clip((likely > other)[ring].mean(), 0.5, 0.99)) if ring.any() else 0.5
    mixed = np.logaddexp(likely + np.log(share), other + np.log(1 - share))
    return _Behind(np.where(sure, mixed, other), plain)


def _cut_regions(
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
                voted = np.where(seen.agreed[name][cut], _BOXED_VOTE, 0.0)
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
