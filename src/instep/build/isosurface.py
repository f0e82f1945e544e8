"""Isosurfaces of a field on a regular grid by marching tetrahedra: closed, and without ambiguous cases.

Every cell is cut into six tetrahedra around one diagonal, the same way everywhere, so that faces of neighbours match.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .triangle_mesh import TriangleMesh, without_unused

_TETRAHEDRA = np.array([[0, a, a + b, 7] for a, b, _ in permutations((1, 2, 4))])
"""Corners of the six tetrahedra of a cell; bit 0 of a corner is x, bit 1 is y, bit 2 is z."""
_MARGIN = 0.02
"""Least distance of a vertex from the ends of its edge [share]: nearer ones make triangles without area."""


@array_dataclass
class Grid:
    """A regular grid of points."""

    origin: Array
    """The first point [3] [m]."""
    pitch: float
    """Distance of neighbours [m]."""
    shape: tuple[int, int, int]
    """Points along x, y and z."""

    @property
    def diagonal(self) -> float:
        """Diagonal of the box of its points [m]."""
        return self.pitch * float(np.linalg.norm(np.array(self.shape) - 1))

    def points(self) -> Array:
        """All points [x, y, z, 3] [m]."""
        axes = [self.origin[i] + self.pitch * np.arange(self.shape[i]) for i in range(3)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


def grid_around(low: Array, high: Array, pitch: float, margin: int = 2) -> Grid:
    """A grid over a box, with a margin of some cells."""
    low = np.asarray(low, float) - margin * pitch
    counts = np.ceil((np.asarray(high, float) - low) / pitch).astype(int) + 1 + margin
    return Grid(low, pitch, (int(counts[0]), int(counts[1]), int(counts[2])))


def isosurface(values: Array, grid: Grid) -> TriangleMesh:
    """The surface between positive (inside) and negative values [x, y, z]; the border of the grid counts as outside."""
    field = np.array(values, float)
    least = 1e-6 * grid.pitch
    for axis in range(3):
        for end in (0, -1):
            side = np.take(field, end, axis=axis)
            np.moveaxis(field, axis, 0)[end] = np.minimum(side, -least)
    field[np.abs(field) < least] = -least
    corners = _crossed_cells(field)
    tets = corners[:, _TETRAHEDRA].reshape(-1, 4)
    flat = field.ravel()
    inside = flat[tets] > 0
    count = inside.sum(axis=1)
    ordered = np.take_along_axis(tets, np.argsort(~inside, axis=1, kind="stable"), axis=1)  # inside corners first
    edges = np.concatenate([_one(ordered[count == 1]), _three(ordered[count == 3]), *_two(ordered[count == 2])])
    return _triangles(edges, flat, grid)


def _crossed_cells(field: Array) -> Array:
    """Indices of the eight corners of the cells that the surface passes [cells, 8]."""
    nx, ny, nz = field.shape
    inside = field > 0
    some, every = np.zeros((nx - 1, ny - 1, nz - 1), bool), np.ones((nx - 1, ny - 1, nz - 1), bool)
    offsets: list[int] = []
    for corner in range(8):
        dx, dy, dz = corner & 1, corner >> 1 & 1, corner >> 2 & 1
        part = inside[dx : nx - 1 + dx, dy : ny - 1 + dy, dz : nz - 1 + dz]
        some |= part
        every &= part
        offsets.append((dx * ny + dy) * nz + dz)
    x, y, z = np.nonzero(some & ~every)
    return ((x * ny + y) * nz + z)[:, None] + np.array(offsets)


def _one(tets: Array) -> Array:
    """The triangle around the one inside corner, as pairs (inside, outside) [n, 3, 2]."""
    return np.stack([tets[:, [0, 1]], tets[:, [0, 2]], tets[:, [0, 3]]], axis=1)


def _three(tets: Array) -> Array:
    return np.stack([tets[:, [0, 3]], tets[:, [1, 3]], tets[:, [2, 3]]], axis=1)


def _two(tets: Array) -> tuple[Array, Array]:
    a, b, c, d = tets[:, [0, 2]], tets[:, [0, 3]], tets[:, [1, 3]], tets[:, [1, 2]]
    return np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)


def _triangles(edges: Array, flat: Array, grid: Grid) -> TriangleMesh:
    """Triangles whose corners are where the field is zero on edges (inside, outside) [triangles, 3, 2]."""
    pairs = np.sort(edges, axis=2).reshape(-1, 2)
    keys, first, faces = np.unique(pairs[:, 0] * len(flat) + pairs[:, 1], return_index=True, return_inverse=True)
    a, b = pairs[first].T
    share = np.clip(flat[a] / (flat[a] - flat[b]), _MARGIN, 1 - _MARGIN)[:, None]
    begin, end = _places(a, grid), _places(b, grid)
    vertices, faces = begin + share * (end - begin), faces.reshape(-1, 3).astype(np.int32)
    del keys
    outwards = _places(edges[..., 1], grid).mean(axis=1) - _places(edges[..., 0], grid).mean(axis=1)
    p, q, r = np.moveaxis(vertices[faces], 1, 0)
    flipped = np.einsum("ni,ni->n", np.cross(q - p, r - p), outwards) < 0
    faces[flipped] = faces[flipped][:, ::-1]
    return without_unused(TriangleMesh(vertices, faces))


def _places(index: Array, grid: Grid) -> Array:
    x, y, z = np.unravel_index(index, grid.shape)
    return grid.origin + grid.pitch * np.stack([x, y, z], axis=-1)
