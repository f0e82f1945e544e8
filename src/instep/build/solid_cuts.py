"""Pieces of a solid between planes: their points, their volumes and their hulls, without closing what was cut.

A piece is the part of the surface that is left of it and points of its inside, which are spread evenly over the solid
and stand for volume. Where a plane cuts, points of the inside near it are put on it.
"""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .triangle_mesh import TriangleMesh

_FLAT = 1e-9
"""Thickness of the bounding box of points, relative to its length, below which they have no hull."""


@array_dataclass
class Piece:
    """A part of a solid."""

    triangles: Array
    """What is left of its surface [n, 3, 3] [m]."""
    inside: Array
    """Points of its inside [n, 3] [m]."""
    core: Array
    """Those of them that may be put on a plane near them without leaving the solid [n, 3] [m]."""
    skin: Array
    """Points spread over the surface [n, 3] [m]."""
    cuts: Array
    """Points on the planes that bound it [n, 3] [m]."""
    hull: float
    """Volume of the convex hull [m^3]."""

    def points(self) -> Array:
        """Points whose hull is that of the piece [n, 3]."""
        return np.concatenate([self.triangles.reshape(-1, 3), self.cuts])


def whole_piece(mesh: TriangleMesh, skin: Array, count: int) -> tuple[Piece, float]:
    """A closed mesh as one piece with about `count` points inside; the distance of these points [m]."""
    from scipy.spatial import cKDTree

    pitch = float(np.cbrt(max(mesh.volume, 1e-15) / count))
    inside = inner_points(mesh, pitch)
    core = inside[cKDTree(skin).query(inside)[0] > pitch]
    return _piece(mesh.corners, inside, core, skin, np.zeros((0, 3))), pitch


def inner_points(mesh: TriangleMesh, pitch: float) -> Array:
    """The points of a cubic grid that are inside a closed mesh [n, 3]: between each two crossings of a column."""
    low = mesh.bounds[0] + pitch * np.array([0.5012, 0.4987, 0.5])  # off the edges of meshes with round numbers
    corners = mesh.corners - low
    a, b, c = np.moveaxis(corners[..., :2] / pitch, 1, 0)
    first = np.ceil(np.minimum(np.minimum(a, b), c)).astype(int)
    size = np.maximum(np.floor(np.maximum(np.maximum(a, b), c)).astype(int) - first + 1, 0)
    each = size.prod(axis=1)
    face = np.repeat(np.arange(len(corners)), each)
    k = np.arange(len(face)) - np.repeat(np.cumsum(each) - each, each)
    column = first[face] + np.stack([k // size[face, 1], k % size[face, 1]], axis=1)
    u, v, w = b[face] - a[face], c[face] - a[face], column - a[face]
    double = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    with np.errstate(all="ignore"):  # upright faces cross no column
        s = (w[:, 0] * v[:, 1] - w[:, 1] * v[:, 0]) / double
        t = (u[:, 0] * w[:, 1] - u[:, 1] * w[:, 0]) / double
        hit = (s >= 0) & (t >= 0) & (s + t <= 1)
    face, column, s, t, upward = face[hit], column[hit], s[hit], t[hit], double[hit] > 0
    z = corners[face, 0, 2] * (1 - s - t) + corners[face, 1, 2] * s + corners[face, 2, 2] * t
    order = np.lexsort((z, column[:, 1], column[:, 0]))
    column, z, upward = column[order], z[order] / pitch, upward[order]
    # A column enters through a face that looks down and leaves by the next, which looks up.
    pair = np.flatnonzero(~upward[:-1] & upward[1:] & (column[:-1] == column[1:]).all(axis=1))
    start = np.ceil(z[pair]).astype(int)
    number = np.maximum(np.floor(z[pair + 1]).astype(int) - start + 1, 0)
    level: Array = (
        np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number) + np.repeat(start, number)
    )
    return low + pitch * np.column_stack([np.repeat(column[pair], number, axis=0), level])


def hull_volume(points: Array) -> float:
    """Volume of the convex hull of points [n, 3] [m^3]; 0 of flat ones."""
    from scipy.spatial import ConvexHull

    if len(points) < 4 or np.ptp(points, axis=0).min() < _FLAT * np.ptp(points, axis=0).max():
        return 0.0
    try:
        return float(ConvexHull(points).volume)
    except RuntimeError:  # QhullError: flat
        return 0.0


def cut(piece: Piece, normal: Array, level: float, pitch: float) -> tuple[Piece, Piece]:
    """The pieces behind and in front of the plane n . x = level."""
    away = piece.triangles @ normal - level
    low, high = away.min(axis=1), away.max(axis=1)
    behind, front = piece.triangles[high <= 0], piece.triangles[(low >= 0) & (high > 0)]
    crossed = (low < 0) & (high > 0)
    back, ahead = _crossed(piece.triangles[crossed], away[crossed])
    near = np.abs(piece.core @ normal - level) < 0.5 * pitch
    on_plane = piece.core[near] - (piece.core[near] @ normal - level)[:, None] * normal
    out: list[Piece] = []
    for triangles, sign in ((np.concatenate([behind, back]), -1.0), (np.concatenate([front, ahead]), 1.0)):
        inside, core, skin, cuts = (
            points[sign * (points @ normal - level) > 0]
            for points in (piece.inside, piece.core, piece.skin, piece.cuts)
        )
        out.append(_piece(triangles, inside, core, skin, np.concatenate([cuts, on_plane])))
    return out[0], out[1]


def cut_points(piece: Piece, corners: Array, normal: Array, level: float, pitch: float) -> tuple[Array, Array]:
    """Points whose hulls are those of the pieces that `cut` makes; `corners` are those of the piece, each once [n, 3].

    Nothing else of the pieces is computed, so that many planes may be compared.
    """
    away = piece.triangles @ normal - level
    crossed = (away.min(axis=1) < 0) & (away.max(axis=1) > 0)
    ends, beyond = piece.triangles[crossed], away[crossed]
    rows, first = np.nonzero((beyond > 0) != (np.roll(beyond, -1, axis=1) > 0))
    second = (first + 1) % 3
    share = (beyond[rows, first] / (beyond[rows, first] - beyond[rows, second]))[:, None]
    between = ends[rows, first] + share * (ends[rows, second] - ends[rows, first])
    beside = piece.core @ normal - level
    near = np.abs(beside) < 0.5 * pitch
    shared = _rim(np.concatenate([between, piece.core[near] - beside[near, None] * normal]), normal)
    ahead = corners @ normal > level
    return np.concatenate([corners[~ahead], shared]), np.concatenate([corners[ahead], shared])


def _rim(points: Array, normal: Array) -> Array:
    """The corners of the hull of points on a plane; all of them where they are on a line."""
    from scipy.spatial import ConvexHull

    kept = np.argsort(np.abs(normal))[:2]  # the plane is seen least edge on along its largest axis
    flat = points[:, np.sort(kept)]
    if len(points) < 4 or np.ptp(flat, axis=0).min() < _FLAT * max(float(np.ptp(flat, axis=0).max()), 1e-300):
        return points
    try:
        return points[ConvexHull(flat).vertices]
    except RuntimeError:  # QhullError: on a line
        return points


def union(a: Piece, b: Piece) -> Piece:
    """Two pieces as one."""
    pairs = ((a.triangles, b.triangles), (a.inside, b.inside), (a.core, b.core), (a.skin, b.skin), (a.cuts, b.cuts))
    return _piece(*(np.concatenate(pair) for pair in pairs))


def _piece(triangles: Array, inside: Array, core: Array, skin: Array, cuts: Array) -> Piece:
    hull = hull_volume(np.concatenate([triangles.reshape(-1, 3), cuts]))
    return Piece(triangles, inside, core, skin, cuts, hull)


def _crossed(triangles: Array, away: Array) -> tuple[Array, Array]:
    """The parts behind and in front of a plane of triangles that it crosses [n, 3, 3], as triangles."""
    positive = away > 0
    # The corner that is alone on its side comes first.
    lone = np.argmax(np.where((positive.sum(axis=1) == 1)[:, None], positive, ~positive), axis=1)
    order = (lone[:, None] + np.arange(3)) % 3
    a, b, c = np.moveaxis(np.take_along_axis(triangles, order[..., None], axis=1), 1, 0)
    da, db, dc = np.take_along_axis(away, order, axis=1).T
    p, q = (a + (da / (da - other))[:, None] * (end - a) for other, end in ((db, b), (dc, c)))
    tip, rest = np.stack([a, p, q], axis=1), np.stack([p, b, c, p, c, q], axis=1).reshape(-1, 2, 3, 3)
    up = da > 0
    return (
        np.concatenate([tip[~up], rest[up].reshape(-1, 3, 3)]),
        np.concatenate([tip[up], rest[~up].reshape(-1, 3, 3)]),
    )
