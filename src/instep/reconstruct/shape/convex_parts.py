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
MAX_PARTS = 96
BASE_SHARE = 0.006
"""Height above the table below which vertices of parts are moved onto it, as a share of the diagonal."""
_FACES = 1500
"""Faces of the mesh that is decomposed."""
_PART_VERTICES = 64
"""Most vertices of a part."""
_INSIDE = 20_000
"""Points of the inside for the volume, about."""
_PLACES = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
"""Quantiles of the points of a part for planes."""
_FINER = (-0.05, 0.05)
"""Quantiles around the best one for a second search."""
_COMPACT = 0.5
"""Weight of the size of the halves against the volume of their hulls: with 0 a ring is cut into flat rings."""
_HULL_SAMPLES = 60
_JOINED_SHARE = 0.004
"""Largest volume that joining two parts may add, as a share of that of the mesh."""
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
class Piece:
    """A part of a solid."""

    triangles: Array
    """Triangles of its surface [n, 3, 3] [m]."""
    inside: Array
    """Points of its inside [n, 3] [m]."""
    core: Array
    """Inner points that may be moved onto a plane near them without leaving the solid [n, 3] [m]."""
    skin: Array
    """Points spread over the surface [n, 3] [m]."""
    cuts: Array
    """Points on the planes that bound it [n, 3] [m]."""
    hull: float
    """Volume of the convex hull [m^3]."""

    def points(self) -> Array:
        """Points whose hull is that of the piece [n, 3]."""
        return np.concatenate([self.triangles.reshape(-1, 3), self.cuts])


@array_dataclass
class _Part:
    """A piece and the excess of its hull."""

    piece: Piece
    excess: float  # Volume of the hull outside the solid [m^3]
    concavity: float  # Distance of the hull from the solid, about [m]


@array_dataclass
class _Solid:
    """The solid that pieces are compared with."""

    pitch: float  # Distance of the points of the inside [m]
    tree: Any  # A k-d tree of all points of the inside and of the surface

    def part(self, piece: Piece) -> _Part:
        excess, concavity = piece.hull - len(piece.inside) * self.pitch**3, 0.0
        if piece.hull > 0:
            some, _ = hull_mesh(piece.points()).sampled(_HULL_SAMPLES, np.random.default_rng((0, 0xC0C)))
            concavity = max(float(np.max(self.tree.query(some)[0])) - self.pitch, 0.0)
        return _Part(piece, excess, concavity)


def convex_parts(mesh: TriangleMesh, *, seed: int = 0) -> ConvexDecomposition:
    """Decompose a closed mesh into convex parts."""
    from scipy.spatial import cKDTree

    small = simplified(mesh, _FACES)
    surface, _ = small.sampled(_INSIDE // 2, np.random.default_rng((seed, 0xCD)))
    whole, pitch = whole_piece(small, surface, _INSIDE)
    if whole.hull <= 0 or not len(whole.inside):
        raise BadInput("The shape has no convex parts: it encloses no volume.")
    solid = _Solid(pitch, cKDTree(np.concatenate([whole.inside, surface])))
    parts = [solid.part(whole)]
    while len(parts) < MAX_PARTS:
        k = _worst(parts, mesh)
        halves = None if k is None else _best_cut(parts[k].piece, pitch)
        if k is None or halves is None:
            break
        parts[k : k + 1] = [solid.part(half) for half in halves]
    parts = _joined(parts, solid, mesh)
    meshes = tuple(_few_vertices(hull_mesh(part.piece.points())) for part in parts if part.piece.hull > 0)
    ratio = sum(part.volume for part in meshes) / mesh.volume
    return ConvexDecomposition(meshes, ratio, max(part.concavity for part in parts))


def with_flat_base(parts: Sequence[TriangleMesh], plane: Array) -> tuple[TriangleMesh, ...]:
    """Parts of an object on a table (nx, ny, nz, d), with their lowest vertices moved onto the table.

    A hull is uncertain by about that much, and an object wobbles on three points of a round base.
    """
    points = np.concatenate([part.vertices for part in parts])
    reach = BASE_SHARE * _diagonal(points)
    if abs(float(height_above(points, plane).min())) > reach:
        return tuple(parts)
    up = plane[:3] / np.linalg.norm(plane[:3]) * (1 if plane[2] > 0 else -1)

    def lowered(part: TriangleMesh) -> TriangleMesh:
        height = height_above(part.vertices, plane)
        low = height < reach
        return hull_mesh(part.vertices - np.where(low, height, 0.0)[:, None] * up) if low.any() else part

    return tuple(lowered(part) for part in parts)


def _worst(parts: Sequence[_Part], mesh: TriangleMesh) -> int | None:
    """The part to cut next; None if all are near enough to the mesh."""
    total = sum(part.piece.hull for part in parts)
    if total > MAX_VOLUME_RATIO * mesh.volume:
        return int(np.argmax([part.excess for part in parts]))
    k = int(np.argmax([part.concavity for part in parts]))
    return k if parts[k].concavity > MAX_CONCAVITY * mesh.diagonal else None


def _best_cut(piece: Piece, pitch: float) -> tuple[Piece, Piece] | None:
    """The halves of a piece by the plane that leaves the least hulls; None if no plane divides it."""
    best: tuple[float, Array, float, float] | None = None
    points = np.concatenate([piece.inside, piece.skin])
    if not len(points):
        return None
    corners = np.unique(piece.points(), axis=0)
    own = 2 * _diagonal(corners)

    def tried(normal: Array, places: Array) -> None:
        nonlocal best
        along = points @ normal
        for place, level in zip(places, np.quantile(along, places), strict=True):
            halves = cut_points(piece, corners, normal, float(level), pitch)
            hulls = [hull_volume(half) for half in halves]
            if min(hulls) <= 0:
                continue
            cost = sum(hulls) / piece.hull + _COMPACT * sum(map(_diagonal, halves)) / own
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
    tried(best[1], np.clip(best[2] + np.array(_FINER), 0.05, 0.95))
    return cut(piece, best[1], best[3], pitch)


def _joined(parts: Sequence[_Part], solid: _Solid, mesh: TriangleMesh) -> list[_Part]:
    """The parts, with those joined whose common hulls add least."""
    costs: dict[tuple[int, int], tuple[float, _Part]] = {}
    by_name = dict(enumerate(parts))
    while True:
        total = sum(part.piece.hull for part in by_name.values())
        for i in by_name:
            for j in by_name:
                if i < j and (i, j) not in costs and _touch(by_name[i].piece, by_name[j].piece, solid.pitch):
                    whole = union(by_name[i].piece, by_name[j].piece)
                    costs[i, j] = (whole.hull - by_name[i].piece.hull - by_name[j].piece.hull, solid.part(whole))
        allowed = [
            (added, pair) for pair, (added, one) in costs.items()
            if added < _JOINED_SHARE * mesh.volume and one.concavity <= MAX_CONCAVITY * mesh.diagonal
            and (total + added <= MAX_VOLUME_RATIO * mesh.volume or added <= 1e-9 * mesh.volume)
        ]  # fmt: skip
        if not allowed:
            return list(by_name.values())
        _, pair = min(allowed)
        new = max(by_name) + 1
        by_name[new] = costs[pair][1]
        for name in pair:
            del by_name[name]
        costs = {key: value for key, value in costs.items() if not set(key) & set(pair)}


def _touch(a: Piece, b: Piece, pitch: float) -> bool:
    """Whether the boxes around two pieces meet."""
    first, second = a.points(), b.points()
    low = np.maximum(first.min(axis=0), second.min(axis=0))
    return bool((low <= np.minimum(first.max(axis=0), second.max(axis=0)) + _TOUCHING * pitch).all())


def _few_vertices(mesh: TriangleMesh) -> TriangleMesh:
    """A convex mesh of the vertices that reach farthest, at most as many as a part may have."""
    from scipy.spatial import ConvexHull

    if len(mesh.vertices) <= _PART_VERTICES:
        return mesh
    points = mesh.vertices
    centred = points - points.mean(axis=0)
    axes = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    kept = set(np.concatenate([axes.argmin(axis=0), axes.argmax(axis=0)]).tolist())
    kept |= set(np.argsort(-np.linalg.norm(centred, axis=1))[:2].tolist())
    while len(kept) < _PART_VERTICES:
        hull = ConvexHull(points[sorted(kept)])
        beyond = points @ hull.equations[:, :3].T + hull.equations[:, 3]
        order = np.argsort(-beyond.max(axis=0))[: max(1, (_PART_VERTICES - len(kept)) // 3)]
        new = {int(beyond[:, f].argmax()) for f in order if beyond[:, f].max() > 1e-9 * mesh.diagonal} - kept
        if not new:
            break
        kept |= set(sorted(new)[: _PART_VERTICES - len(kept)])
    return hull_mesh(points[sorted(kept)])


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
    """Points with the hulls of the pieces of `cut`; `corners` are those of the piece, each once [n, 3].

    Nothing else of the pieces is computed, so that many planes can be compared.
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


def _diagonal(points: Array) -> float:
    """The diagonal of the box around points [m]."""
    return float(np.linalg.norm(np.ptp(points, axis=0)))
