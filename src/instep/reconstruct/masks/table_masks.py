"""Segment everything that stands on a table, without a prompt: what does not look like the table behind it.

The views are rectified onto the table, where the median over views shows the table itself: what stands on it is seen
elsewhere by each view. Where most views show an object, those that agree about a colour of the table show the table. A
pixel that differs from the table that its ray meets belongs to something on it. Views then vote: a pixel is of the
object where the space in front of it is inside the silhouettes of nearly all others.

Where the table turned before a fixed camera, what stands still in its images is behind the table, and shadows are where
other views show none.

Split what stands on a table into objects: the joint masks are carved into a coarse hull, and its pieces are objects.

Pieces that no view needs are artefacts of the hull. A piece that does not reach the table belongs to the one nearest to
it. A pixel belongs to the object whose piece is seen there; pixels that two may share are unknown for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.processes import usable_cores
from instep.core.world import Array, array_dataclass
from instep.reconstruct.appearance.mesh_texture import surface_colours
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.shape.triangle_mesh import Grid, TriangleMesh, grid_around, isosurface
from instep.reconstruct.shape.visual_hull import coverage, depth_image, height_above, hull_bounds, hull_views, table_cut
from instep.splat.fitting import focus_point

from .object_mask import ColourMixture, ObjectMask, colour_mixture, min_cut, soften
from .table_map import (
    TABLE_SHADING,
    Background,
    TableMap,
    density_in_any_light,
    is_foreign,
    map_table,
    table_meetings,
    with_contrast,
)
from .turntable import TurnedView, Turntable, find_turntable, seen_before_still, turned_views

MIN_VIEWS = 6
"""Fewest views from which a table is told from what stands on it."""
_NOISE = 0.025
"""Least standard deviation of the colour of the table [0 to 1]: noise, and what interpolating the map costs."""
_ROUNDS = 6
_SETTLED_SHARE = 0.005
"""Share of the object's pixels whose change ends the rounds."""
_TOLERATED_SHARE = 0.1
"""Share of the views that may be wrong about a point of the hull that they vote for."""
_VOTE = 6.0
"""What the vote of the other views weighs, in units of log likelihood."""
_VOTE_REACH_PX = 4
"""How far the vote may reach beside an object [pixels]."""
_NEVER_SEEN = -2.0
"""Least that a colour says where neither the table nor what is behind it was seen, in units of log likelihood."""
_FOOT = -0.1
"""What speaks for an object where its foot may be in the map of the table: too little to cut it off."""
_CLEAR_CELLS = 2.0
"""Height above the table, in cells of the grid of the votes, from which something is known to hide the table."""
_MIN_PIXELS = 40
_CROP_PX = 24
ColourPair = tuple[ColourMixture, ColourMixture]
"""Colours of what stands on the table, and of the table."""


@array_dataclass
class TableMasks:
    """The masks of everything that stands on a table, and the turntable where it is one."""

    masks: list[ObjectMask]
    turntable: Turntable | None


def masks_on_table(
    views: Sequence[PosedView], plane: Array, report: Callable[[float, str], None] | None = None
) -> TableMasks:
    """The masks of everything that stands on a table, one per view."""
    if len(views) < MIN_VIEWS:
        raise BadInput(
            f"What stands on a table is told from it by at least {MIN_VIEWS} views, and there are {len(views)}; click "
            "on the object instead: NAME=click:CAMERA:X,Y."
        )
    meetings = [table_meetings(view.camera, plane) for view in views]
    votes: list[Array | None] = [None] * len(views)
    found: list[Array] = [np.zeros(view.image.shape[:2], bool) for view in views]
    known, hiding, colours, turntable, square = list(found), list(found), None, None, None
    for round_ in range(_ROUNDS):
        shown = [mask if v.hidden is None else mask | v.hidden for v, mask in zip(views, hiding, strict=True)]
        table, before = map_table(views, plane, shown, square), list(found)
        if round_ == 0:
            beside = [_beside(view, table, meets) for view, meets in zip(views, meetings, strict=True)]
            turntable = find_turntable(views, plane, beside, table)
            if turntable is not None:
                square = turntable.square
                table = map_table(views, plane, shown, square)
        turned = turned_views(views, meetings, turntable, shown)
        cut = partial(_cut_balanced, table, colours)
        with ThreadPoolExecutor(usable_cores()) as pool:
            for i, (mask, sure) in enumerate(pool.map(cut, views, table.gains, meetings, votes, turned)):
                if report is not None:
                    report((round_ + i / len(views)) / _ROUNDS, views[i].name)
                found[i], known[i] = mask, sure
        changed = sum(int((a != b).sum()) for a, b in zip(found, before, strict=True))
        if changed <= _SETTLED_SHARE * sum(int(mask.sum()) for mask in found):
            break
        if round_ < _ROUNDS - 1:
            agreed, above = _votes(views, found, known, plane)
            votes, colours = list[Array | None](agreed), _colours(views, found, agreed, table)
            hiding = [mask & high for mask, high in zip(found, above, strict=True)]
    masks = [
        ObjectMask(v.camera, soften(v.image, m), np.ones(m.shape, bool) if v.hidden is None else ~v.hidden)
        for v, m in zip(views, found, strict=True)
    ]
    if sum(mask.inside.sum() > _MIN_PIXELS for mask in masks) < MIN_VIEWS:
        raise BadInput("Nothing that differs from the table was found on it; click on the object instead.")
    return TableMasks(masks, turntable)


def _beside(view: PosedView, table: TableMap, meets: Array) -> Array:
    """How far the pixels of a view are from the table [height, width]; infinite where it is not known."""
    found = table.predicted(meets)
    return np.where(found.sure, np.abs(view.image - found.colour).max(axis=-1), np.inf)


def _colours(
    views: Sequence[PosedView], found: Sequence[Array], votes: Sequence[Array], table: TableMap
) -> ColourPair | None:
    """The colours of what stands on the table, and of the table around it, over all views; None where it is too thin.

    What is not found yet and others vote for is not taken for the table.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    inner, outer = list[Array](), list[Array]()
    for view, mask, vote, gain in zip(views, found, votes, table.gains, strict=True):
        image = view.image * gain
        inner.append(image[np.asarray(binary_erosion(mask, iterations=2), bool)])
        near = np.asarray(binary_dilation(mask, iterations=20), bool)
        outer.append(image[near & ~np.asarray(binary_dilation(mask, iterations=4), bool) & (vote <= 0)])
    around, own = np.concatenate(outer), np.concatenate(inner)
    if len(own) < _MIN_PIXELS:
        return None
    if len(around) < _MIN_PIXELS:
        around = table.colour[np.isfinite(table.spread)]
    return colour_mixture(own, 8), colour_mixture(around, 8)


def _cut_balanced(
    table: TableMap, colours: ColourPair | None, view: PosedView, gain: Array, meets: Array, vote: Array | None,
    turned: TurnedView | None,
) -> tuple[Array, Array]:  # fmt: skip
    """What `_cut` finds in a view whose colours were made comparable with those of the others."""
    bright = gain.astype(np.float32)
    view, turned = replace(view, image=view.image * bright), None if turned is None else turned.in_light(bright)
    return _cut(view, meets, table, vote, colours, turned)


def _cut(
    view: PosedView, meets: Array, table: TableMap, vote: Array | None, colours: ColourPair | None,
    turned: TurnedView | None,
) -> tuple[Array, Array]:  # fmt: skip
    """The pixels of a view that do not look like the table behind them, and where that is known [height, width]."""
    from scipy.ndimage import map_coordinates

    at = np.nan_to_num((meets[..., :2] - table.origin) / table.pitch, nan=-10.0)
    found = table.predicted(meets)
    blocked = np.zeros(found.sure.shape, bool) if vote is None else vote > 0
    sigma = np.hypot(_NOISE, np.minimum(found.sigma, 0.08))
    if table.patterned:
        sigma = with_contrast(found, view.image, blocked, _NOISE).sigma
    sure, where = found.sure, [at[..., 0], at[..., 1]]
    against = replace(found, sigma=sigma).evidence_against(view.image)
    # Where the map has a colour that the table has nowhere else, all views may show the foot of a plain object: that a
    # pixel is like the map says nothing there. Beside the map, only the table's own colours are known to be the table.
    foot = sure & (against < 0) & map_coordinates(table.foreign, where, order=0, cval=False)
    known = ~foot
    known[~sure] &= ~is_foreign(view.image[~sure], table.colours)
    unknown = 0.0 if vote is not None else -1.0
    preference = np.where(sure, np.where(foot, _FOOT, np.clip(against, -8.0, 14.0)), unknown)
    if turned is not None:
        sure = sure & turned.table  # what is beside the turntable was behind it at different times
        predicted = Background(found.colour, sigma, sure)
        preference, known = _on_turntable(view.image, preference, known, predicted, turned.still, vote)
    if view.hidden is not None:
        preference, known = np.where(view.hidden, 0.0, preference), known & ~view.hidden
    if vote is None or colours is None:
        found = _visible(min_cut(preference, view.image), view)
        return found, known | found
    rows, columns = np.nonzero(vote > 0)
    out = np.zeros(vote.shape, bool)
    if len(rows):
        cut = np.s_[
            max(0, rows.min() - _CROP_PX) : rows.max() + _CROP_PX,
            max(0, columns.min() - _CROP_PX) : columns.max() + _CROP_PX,
        ]
        near = view.image[cut]
        looks = np.clip(_foreground(near, sure[cut], colours, table), -6.0, 6.0)
        if turned is not None:
            # What was never seen without something before it may well have the colours of what is behind it.
            beside = ~(turned.still.sure | turned.table)[cut]
            looks = np.where(beside, np.maximum(looks, _NEVER_SEEN), looks)
        wish = np.clip(preference[cut], -4.0, 8.0) + looks
        out[cut] = min_cut(wish + np.where(vote[cut] > 0, 0.5, -1.0) * _VOTE, near)
    out = _visible(out, view)
    return out, known | out


def _on_turntable(
    image: Array, evidence: Array, known: Array, table: Background, still: Background, vote: Array | None
) -> tuple[Array, Array]:
    """The preference for an object, and where it is known, beside what stands still behind a turning table.

    Shadows are not known from objects: other views show the same place in the light.
    """
    from scipy.ndimage import binary_erosion

    evidence, shadow = seen_before_still(image, evidence, -1.0 if vote is None else 0.0, table, still)
    known = (known & table.sure) | still.sure
    if vote is None:
        return evidence, known
    # The vote is of coarse cells, so that beside an object it reaches shadows.
    core = np.asarray(binary_erosion(vote > 0, iterations=_VOTE_REACH_PX), bool)
    return np.where(shadow, np.where(core, 0.0, -0.5 * _VOTE - 1.0), evidence), known & ~shadow


def _foreground(image: Array, sure: Array, colours: ColourPair, table: TableMap) -> Array:
    """How much likelier the colour of each pixel is for what stands on the table than for the table [height, width], in
    units of log likelihood. Where no other view shows the table, only its colours tell a shadow on it from an object.
    """
    around = colours[1].log_likelihood(image)
    anywhere = density_in_any_light(image, table.colours, TABLE_SHADING)
    return colours[0].log_likelihood(image) - np.where(sure, around, np.maximum(around, anywhere))


def _visible(mask: Array, view: PosedView) -> Array:
    return mask if view.hidden is None else mask & ~view.hidden


def _votes(
    views: Sequence[PosedView], found: Sequence[Array], known: Sequence[Array], plane: Array
) -> tuple[list[Array], list[Array]]:
    """The silhouette, in each view, of the hull that nearly all views agree on [height, width], two pixels wider; and
    of the part of it that is clear of the table, and hides it."""
    from scipy.ndimage import binary_dilation

    masks = [ObjectMask(v.camera, m.astype(np.float32), k) for v, m, k in zip(views, found, known, strict=True)]
    shown = [mask for mask in masks if mask.inside.sum() > _MIN_PIXELS]
    if len(shown) < MIN_VIEWS:
        raise BadInput("Nothing that differs from the table was found on it; click on the object instead.")
    focus = focus_point([view.camera for view in views])
    distance = float(np.median([np.linalg.norm(v.camera.body_from_camera[:3, 3] - focus) for v in views]))
    wide = max(0.5 * min(v.camera.width, v.camera.height) / max(v.camera.focal) for v in views)
    reach = distance * wide
    grid = grid_around(np.asarray(focus) - reach, np.asarray(focus) + reach, 2 * reach / 90)
    points = grid.points()
    prepared = replace(hull_views(shown), tolerated=max(1, int(_TOLERATED_SHARE * len(shown))))
    field = table_cut(prepared.field(points), points, plane)
    if not (field > 0).any():
        raise BadInput("The views do not agree about anything on the table; are their poses and the table right?")
    mesh = isosurface(field + 0.5 * grid.pitch, grid)
    votes = [np.asarray(binary_dilation(coverage(mesh, view.camera, 1) > 0.5, iterations=2), float) for view in views]
    raised = np.minimum(field + 0.5 * grid.pitch, height_above(points, plane) - _CLEAR_CELLS * grid.pitch)
    if not (raised > 0).any():
        return votes, [mask.inside for mask in masks]
    clear = isosurface(raised, grid)
    return votes, [coverage(clear, view.camera, 1) > 0.5 for view in views]


_CELLS = 150
"""Cells along the diagonal of the box around everything on the table."""
_NEEDED_SHARE = 0.15
"""Share of its silhouette that a piece must explain alone, in two views at least, to be an object."""
_MIN_PIXELS_2 = 30
"""Fewest pixels that show an object in a view."""
_LIFTED_CELLS = 3
"""Height of the lowest point of a piece from which it does not stand on the table [cells]."""
_JOINED_CELLS = 1
"""Gaps that are closed: one cell may be missing in a thin part [cells]."""
_MARGIN_PX = 2
"""How far an object may reach beyond its piece, and what two share beyond where pieces overlap [pixels]."""
_SAME_SHARE = 0.5
"""Share of a piece's silhouette, in half the views, inside the masks of an object from which it is that object."""
_SAMPLES, _UPPER = 1500, 0.3
"""Points on a piece whose colours are compared, and how much of their normals points up [cosine]."""
_COLOUR_STEP, _COLOUR_SHARE, _PARTED_SHARE = 0.2, 0.15, 0.93
"""Least distance of two colours [0 to 1], least share of either, and share that lies on its side of a plane."""


@array_dataclass
class TableObjects:
    """Objects that stand apart on a table."""

    masks: Mapping[str, tuple[ObjectMask, ...]]
    """Of each object by name, its masks in the views that show it."""
    info: Mapping[str, Any]
    """How many were found, artefacts that were left out, and objects that may be several that touch."""


def split_objects(
    name: str, views: Sequence[PosedView], masks: Sequence[ObjectMask], plane: Array,
    others: Mapping[str, Sequence[ObjectMask]] | None = None,
) -> TableObjects:  # fmt: skip
    """The masks of everything on a table, by object: NAME where there is one, else NAME_1, NAME_2 by volume.

    `others` are objects that were found already, with their masks: they are left out.
    """
    low, high = hull_bounds(masks, plane)
    grid = grid_around(low, high, float(np.linalg.norm(high - low)) / _CELLS)
    points = grid.points()
    joint = replace(hull_views(masks), tolerated=int(_TOLERATED_SHARE * len(masks)))
    field = table_cut(joint.field(points), points, plane)
    pieces, dropped = _needed(_standing(_pieces(field), points, grid, plane), field, grid, masks)
    if not pieces:
        raise BadInput(f"The masks of {name!r} leave nothing above the table; is it where it was said to be?")
    known = [key for piece in pieces if (key := _same(piece, masks, others or {})) is not None]
    pieces = sorted(pieces, key=lambda piece: _same(piece, masks, others or {}) is not None)  # the new ones first
    count = len(pieces) - len(known)
    if not count:
        raise BadInput(f"Nothing stands on the table but {', '.join(known)}; leave out the prompt of {name!r}.")
    names = [name] if count == 1 else [f"{name}_{k + 1}" for k in range(count)]
    found = {name: tuple(masks)} if len(pieces) == 1 else _shared_out(names, [p.mesh for p in pieces], masks)
    touching = [one for one, piece in zip(names, pieces, strict=False) if _two_coloured(piece.mesh, views, found[one])]
    info = {"count": count, "names": names, "artefacts": dropped, "of_other_prompts": known, "may_touch": touching}
    return TableObjects(found, info)


@array_dataclass
class _Piece:
    """A connected piece of the hull."""

    cells: Array
    """Which points of the grid are in it [x, y, z]."""
    mesh: TriangleMesh
    shown: Sequence[Array]
    """Where each view shows it [height, width]."""


def _pieces(field: Array) -> list[Array]:
    """Connected pieces of the hull [x, y, z], largest first; those with a gap of one cell are one."""
    from scipy.ndimage import binary_dilation, label

    inside = field > 0
    near = np.asarray(binary_dilation(inside, iterations=_JOINED_CELLS), bool)
    labelled: Any = label(near, np.ones((3, 3, 3), bool))
    found, count = labelled
    pieces = [inside & (found == k + 1) for k in range(count)]
    return sorted(pieces, key=lambda piece: -int(piece.sum()))


def _standing(pieces: Sequence[Array], points: Array, grid: Grid, plane: Array) -> list[Array]:
    """The pieces that stand on the table; one above it goes to the nearest of them."""
    from scipy.ndimage import distance_transform_edt

    height = height_above(points, plane)
    lifted = [float(height[piece].min()) > _LIFTED_CELLS * grid.pitch for piece in pieces]
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
    found: list[_Piece] = []
    for cells in pieces:
        # Half a cell wider, so that the silhouettes of what is thinner than a cell have no holes.
        mesh = isosurface(np.where(_grown(cells), field, -grid.pitch) + 0.5 * grid.pitch, grid)
        if len(mesh.faces):
            found.append(_Piece(cells, mesh, [depth_image(mesh, mask.camera).mask for mask in masks]))
    kept = list(range(len(found)))
    for k in reversed(range(len(found))):  # the smallest first
        alone: list[float] = []
        for m, mask in enumerate(masks):
            own = mask.inside & found[k].shown[m]
            for i in kept:
                if i != k:
                    own = own & ~found[i].shown[m]
            pixels = int(own.sum())
            alone.append(pixels / max(int(found[k].shown[m].sum()), 1) if pixels >= _MIN_PIXELS_2 else 0.0)
        if sorted(alone)[-2] < _NEEDED_SHARE:
            kept.remove(k)
    return [found[k] for k in kept], len(pieces) - len(kept)


def _same(piece: _Piece, masks: Sequence[ObjectMask], others: Mapping[str, Sequence[ObjectMask]]) -> str | None:
    """The object, of those that were found already, that a piece is in most views; None where it is a new one."""
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


def _grown(cells: Array) -> Array:
    from scipy.ndimage import binary_dilation

    return np.asarray(binary_dilation(cells, np.ones((3, 3, 3), bool)), bool)


def _shared_out(
    names: Sequence[str], meshes: Sequence[TriangleMesh], masks: Sequence[ObjectMask]
) -> dict[str, tuple[ObjectMask, ...]]:
    """The masks of each object: what its piece shows alone; what two may show is unknown."""
    from scipy.ndimage import binary_dilation

    out: dict[str, list[ObjectMask]] = {name: [] for name in names}
    for mask in masks:
        shown = [depth_image(mesh, mask.camera).mask for mesh in meshes]
        wide = [np.asarray(binary_dilation(one, iterations=_MARGIN_PX), bool) if one.any() else one for one in shown]
        count = np.sum(wide, axis=0)
        shared = np.asarray(binary_dilation((count > 1) & (mask.alpha > 0), iterations=_MARGIN_PX), bool)
        for name, own in zip(names, wide, strict=False):  # those of other prompts follow
            alpha = np.where(own, mask.alpha, 0.0).astype(np.float32)
            one = ObjectMask(mask.camera, alpha, mask.known & ~(shared & own))
            if one.inside.sum() >= _MIN_PIXELS_2:
                out[name].append(one)
    return {name: tuple(found) for name, found in out.items()}


def _two_coloured(mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> bool:
    """Whether the top of a piece has two colours, one on each side of an upright plane, as of two that touch."""
    points, face = mesh.sampled(_SAMPLES, np.random.default_rng((0, 0x7C)))
    normals = mesh.normals[face]
    upper = normals[:, 2] > _UPPER
    images = {view.name: view for view in views}
    if upper.sum() < _SAMPLES // 20:
        return False
    own = [images[mask.camera.name] for mask in masks]
    colours = surface_colours(points[upper], normals[upper], mesh, own, masks).colours
    first = _halves(colours)
    share = float(first.mean())
    if not _COLOUR_SHARE < share < 1 - _COLOUR_SHARE:
        return False
    a, b = colours[first], colours[~first]
    spread = np.sqrt(share * a.var(axis=0).sum() + (1 - share) * b.var(axis=0).sum())
    if np.linalg.norm(a.mean(axis=0) - b.mean(axis=0)) < max(_COLOUR_STEP, 3 * spread):
        return False
    places = points[upper][:, :2]
    left, right = places[first], places[~first]
    both, apart = np.cov(left.T) + np.cov(right.T), left.mean(axis=0) - right.mean(axis=0)
    across = np.asarray(np.linalg.solve(both, apart), float)
    ordered = first[np.argsort(places @ across)]
    parted = np.cumsum(~ordered) + (ordered.sum() - np.cumsum(ordered))
    return bool(parted.max() / len(ordered) > _PARTED_SHARE)


def _halves(colours: Array) -> Array:
    """Which colours [n, 3] are in the first of two clusters [n] (k-means from the ends of the widest direction)."""
    centred = colours - colours.mean(axis=0)
    first = centred @ np.linalg.svd(centred, full_matrices=False)[2][0] > 0
    for _ in range(12):
        if first.all() or not first.any():
            break
        a, b = colours[first].mean(axis=0), colours[~first].mean(axis=0)
        first = ((colours - a) ** 2).sum(axis=1) < ((colours - b) ** 2).sum(axis=1)
    return first
