"""Split what stands on a table into objects: the joint masks are carved into a coarse hull, and its pieces are objects.

Pieces that no view needs are artefacts of the hull. A piece that does not reach the table belongs to the one nearest to
it. A pixel belongs to the object whose piece is seen there; pixels that two may share are unknown for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array

from .isosurface import Grid, grid_around, isosurface
from .mesh_raster import depth_image
from .mesh_texture import surface_colours
from .posed_views import PosedView
from .silhouettes import ObjectMask
from .triangle_mesh import TriangleMesh
from .visual_hull import height_above, hull_bounds, hull_views, table_cut

_CELLS = 150
"""Cells along the diagonal of the box around everything on the table."""
_TOLERATED_SHARE = 0.1
"""Share of the views that may be wrong about a point of the hull."""
_NEEDED_SHARE = 0.15
"""Share of its silhouette that a piece must explain alone, in two views at least, to be an object."""
_MIN_PIXELS = 30
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
            alone.append(pixels / max(int(found[k].shown[m].sum()), 1) if pixels >= _MIN_PIXELS else 0.0)
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
            if one.inside.sum() >= _MIN_PIXELS:
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
