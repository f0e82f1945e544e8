"""Convex parts of a mesh for collisions: as few as keep the volume near that of the mesh, and hollows open.

The part whose hull adds most is cut by the plane that leaves the least hulls, until all parts together are near enough
to the solid; then parts whose common hull adds little are joined again. Cuts are not closed: a piece is the rest of its
surface, and points of its inside that stand for volume. Where a plane cuts, inner points near it are moved onto it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass

from .triangle_mesh import TriangleMesh, hull_mesh, simplified
from .visual_hull import height_above

MAX_VOLUME_RATIO = 1.2
"""Volume of the parts over that of the mesh at which cutting ends."""
MAX_CONCAVITY = 0.05
"""Distance of the hull of a part from the solid above which it is cut, as a share of the diagonal of the mesh."""
_PART_VERTICES = 64
"""Most vertices of a part."""
_INSIDE = 20_000
"""Points of the inside for the volume, about."""
_PLACES = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
"""Quantiles of the points of a part for planes."""
_TOUCHING = 2.5
"""Largest distance of joined parts, as a multiple of the distance of inner points."""
_FLAT = 1e-9
"""Thickness of the bounding box of points, relative to its length, below which they have no hull."""


@array_dataclass
class ConvexDecomposition:
    """Convex meshes that together approximate a mesh."""

    meshes: tuple[TriangleMesh, ...]
    volume_ratio: float
    """Sum of their volumes over the volume of the mesh."""
    concavity_m: float
    """Largest distance of the hull of a part from the solid, about [m]."""


@array_dataclass
class _Piece:
    """A part of a solid."""

    triangles: Array  # Of its surface [n, 3, 3] [m]
    inside: Array  # Points of its inside, one for each cell of the grid [n, 3] [m]
    core: Array  # Those deeper inside the solid than the pitch of the grid [n, 3] [m]
    skin: Array  # Points spread over its surface [n, 3] [m]
    cuts: Array  # Points on the planes that bound it [n, 3] [m]
    hull: float  # Volume of its convex hull [m^3]
    excess: float  # Volume of the hull outside the solid [m^3]
    concavity: float  # Distance of the hull from the solid, about [m]

    def points(self) -> Array:
        """Points whose hull is that of the piece [n, 3]."""
        return np.concatenate([self.triangles.reshape(-1, 3), self.cuts])


@array_dataclass
class _Solid:
    """The solid that pieces are compared with."""

    pitch: float  # Distance of the points of the inside [m]
    tree: Any  # A k-d tree of all points of the inside and of the surface

    def piece(self, triangles: Array, cuts: Array, inside: Array, core: Array, skin: Array) -> _Piece:
        points = np.concatenate([triangles.reshape(-1, 3), cuts])
        hull, concavity = hull_volume(points), 0.0
        if hull > 0:
            some, _ = hull_mesh(points).sampled(60, np.random.default_rng((0, 0xC0C)))
            concavity = max(float(np.max(self.tree.query(some)[0])) - self.pitch, 0.0)
        return _Piece(triangles, inside, core, skin, cuts, hull, hull - len(inside) * self.pitch**3, concavity)

    def cut(self, piece: _Piece, normal: Array, level: float) -> list[_Piece]:
        """The pieces behind and in front of the plane n . x = level."""
        out: list[_Piece] = []
        for (triangles, cuts), sign in zip(_halves(piece, normal, level, self.pitch), (-1.0, 1.0), strict=True):
            own = [some[sign * (some @ normal - level) > 0] for some in (piece.inside, piece.core, piece.skin)]
            out.append(self.piece(triangles, cuts, *own))
        return out

    def union(self, a: _Piece, b: _Piece) -> _Piece:
        """Two pieces as one."""
        pairs = ((a.triangles, b.triangles), (a.cuts, b.cuts), (a.inside, b.inside), (a.core, b.core), (a.skin, b.skin))
        return self.piece(*(np.concatenate(pair) for pair in pairs))


def convex_parts(mesh: TriangleMesh, *, seed: int = 0) -> ConvexDecomposition:
    """Decompose a closed mesh into convex parts."""
    from scipy.spatial import cKDTree

    small = simplified(mesh, 1500)  # faces of the mesh that is decomposed
    skin, _ = small.sampled(_INSIDE // 2, np.random.default_rng((seed, 0xCD)))
    pitch = float(np.cbrt(max(small.volume, 1e-15) / _INSIDE))
    inside = inner_points(small, pitch)
    if hull_volume(small.vertices) <= 0 or not len(inside):
        raise BadInput("The shape has no convex parts: it encloses no volume.")
    solid, core = _Solid(pitch, cKDTree(np.concatenate([inside, skin]))), inside[cKDTree(skin).query(inside)[0] > pitch]
    parts = [solid.piece(small.corners, np.zeros((0, 3)), inside, core, skin)]
    while len(parts) < 96:
        limited = sum(part.hull for part in parts) <= MAX_VOLUME_RATIO * mesh.volume
        k = int(np.argmax([part.concavity if limited else part.excess for part in parts]))
        if limited and parts[k].concavity <= MAX_CONCAVITY * mesh.diagonal:
            break
        plane = _best_plane(parts[k], pitch)
        if plane is None:
            break
        parts[k : k + 1] = solid.cut(parts[k], *plane)
    parts = _joined(parts, solid, mesh)
    meshes = tuple(_few_vertices(hull_mesh(part.points())) for part in parts if part.hull > 0)
    ratio = sum(part.volume for part in meshes) / mesh.volume
    return ConvexDecomposition(meshes, ratio, max(part.concavity for part in parts))


def with_flat_base(parts: Sequence[TriangleMesh], plane: Array) -> tuple[TriangleMesh, ...]:
    """Parts of an object on a table (nx, ny, nz, d), with their lowest vertices moved onto the table.

    A hull is uncertain by about that much, and an object wobbles on three points of a round base.
    """
    points = np.concatenate([part.vertices for part in parts])
    # Height above the table below which vertices of parts are moved onto it, as a share of the diagonal.
    reach = 0.006 * _diagonal(points)
    if abs(float(height_above(points, plane).min())) > reach:
        return tuple(parts)
    up = plane[:3] / np.linalg.norm(plane[:3]) * (1 if plane[2] > 0 else -1)

    def lowered(part: TriangleMesh) -> TriangleMesh:
        height = height_above(part.vertices, plane)
        low = height < reach
        return hull_mesh(part.vertices - np.where(low, height, 0.0)[:, None] * up) if low.any() else part

    return tuple(lowered(part) for part in parts)


def _best_plane(piece: _Piece, pitch: float) -> tuple[Array, float] | None:
    """Normal and level of the plane that leaves the least hulls; None if no plane divides the piece."""
    best: tuple[float, Array, float, float] | None = None
    points = np.concatenate([piece.inside, piece.skin])
    if not len(points):
        return None
    own = 2 * _diagonal(piece.points())

    def tried(normal: Array, places: Array) -> None:
        nonlocal best
        for place, level in zip(places, np.quantile(points @ normal, places), strict=True):
            halves = [np.concatenate([t.reshape(-1, 3), c]) for t, c in _halves(piece, normal, float(level), pitch)]
            hulls = [hull_volume(half) for half in halves]
            if min(hulls) <= 0:
                continue
            # Weight of the size of the halves against the volume of their hulls: with 0 a ring is cut into flat rings.
            cost = sum(hulls) / piece.hull + 0.5 * sum(map(_diagonal, halves)) / own
            if best is None or cost < best[0]:
                best = (cost, normal, float(place), float(level))

    # Main axes of the piece, those between them, and the axes of the world.
    apart = points - points.mean(axis=0)
    axes = np.linalg.svd(apart.T @ apart)[0].T
    between = [(axes[i] + sign * axes[j]) / np.sqrt(2) for i, j in ((0, 1), (0, 2), (1, 2)) for sign in (1, -1)]
    for normal in (*axes, *between, *np.eye(3)):
        tried(normal, _PLACES)
    if best is None:
        return None
    # Quantiles around the best one for a second search.
    tried(best[1], np.clip(best[2] + np.array((-0.05, 0.05)), 0.05, 0.95))
    return best[1], best[3]


def _joined(parts: Sequence[_Piece], solid: _Solid, mesh: TriangleMesh) -> list[_Piece]:
    """The parts, with those joined whose common hulls add least."""
    costs: dict[tuple[int, int], tuple[float, _Piece]] = {}
    by_name = dict(enumerate(parts))
    while True:
        total = sum(part.hull for part in by_name.values())
        for i, one in by_name.items():
            for j, other in by_name.items():
                if i >= j or (i, j) in costs:
                    continue
                a, b = one.points(), other.points()
                gap = np.maximum(a.min(axis=0) - b.max(axis=0), b.min(axis=0) - a.max(axis=0))
                if (gap <= _TOUCHING * solid.pitch).all():
                    whole = solid.union(one, other)
                    costs[i, j] = (whole.hull - one.hull - other.hull, whole)
        # Largest volume that joining two parts may add, as a share of that of the mesh.
        allowed = [
            (added, pair) for pair, (added, one) in costs.items()
            if added < 0.004 * mesh.volume and one.concavity <= MAX_CONCAVITY * mesh.diagonal
            and (total + added <= MAX_VOLUME_RATIO * mesh.volume or added <= 1e-9 * mesh.volume)
        ]  # fmt: skip
        if not allowed:
            return list(by_name.values())
        _, pair = min(allowed)
        by_name[max(by_name) + 1] = costs[pair][1]
        by_name = {name: part for name, part in by_name.items() if name not in pair}
        costs = {key: value for key, value in costs.items() if not set(key) & set(pair)}


def _few_vertices(mesh: TriangleMesh) -> TriangleMesh:
    """A convex mesh of the vertices that reach farthest in even directions, at most as many as a part may have."""
    if len(mesh.vertices) <= _PART_VERTICES:
        return mesh
    k = np.arange(_PART_VERTICES) + 0.5
    tilt, turn = np.arccos(1 - 2 * k / _PART_VERTICES), np.pi * (1 + np.sqrt(5)) * k
    ways = np.stack([np.cos(turn) * np.sin(tilt), np.sin(turn) * np.sin(tilt), np.cos(tilt)], axis=1)
    centred = mesh.vertices - mesh.vertices.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)  # the shape as if it were a ball
    reach = (left * (sizes > 1e-9 * sizes[0])) @ ways.T
    return hull_mesh(mesh.vertices[np.unique(reach.argmax(axis=0))])


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


def _halves(piece: _Piece, normal: Array, level: float, pitch: float) -> list[tuple[Array, Array]]:
    """Triangles, and points on cuts, of the pieces behind and in front of the plane n . x = level.

    Inner points near the plane are moved onto it.
    """
    away = piece.triangles @ normal - level
    low, high = away.min(axis=1), away.max(axis=1)
    crossed = (low < 0) & (high > 0)
    back, ahead = _crossed(piece.triangles[crossed], away[crossed])
    beside = piece.core @ normal - level
    near = np.abs(beside) < 0.5 * pitch
    shared, front = piece.core[near] - beside[near, None] * normal, piece.cuts @ normal > level
    return [
        (np.concatenate([piece.triangles[high <= 0], back]), np.concatenate([piece.cuts[~front], shared])),
        (
            np.concatenate([piece.triangles[(low >= 0) & (high > 0)], ahead]),
            np.concatenate([piece.cuts[front], shared]),
        ),
    ]


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


def _diagonal(points: Array) -> float:
    """The diagonal of the box around points [m]."""
    return float(np.linalg.norm(np.ptp(points, axis=0)))
