"""Segment everything on a table without a prompt, and split it into objects.

The views are rectified onto the table; the median over views shows the table itself, since each view sees an object
elsewhere. Where most views show an object, those that agree on a colour of the table show the table. Pixels that differ
from the table that their ray meets belong to an object. Views then vote: a pixel belongs to an object if the space in
front of it is inside the silhouettes of nearly all other views.

The joint masks are carved into a coarse hull, whose pieces are the objects.
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

from .object_mask import ColourMixture, ObjectMask, colour_mixture, min_cut, soften
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
"""Fewest views for table segmentation."""
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
