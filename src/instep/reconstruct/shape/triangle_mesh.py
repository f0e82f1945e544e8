"""Triangle meshes: volume, centre and inertia, whether they are closed, simplification, and OBJ files.

Isosurfaces of a field on a regular grid by marching tetrahedra: closed, and without ambiguous cases.

Every cell is cut into six tetrahedra around one diagonal, the same way everywhere, so that faces of neighbours match.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass

AGGRESSIVENESS = 3.0
"""How fast the error that a collapse may leave grows from pass to pass, of a mesh whose diagonal is 1.

With 7, the usual value, whole corners go; with 5, where few faces are asked for, millimetres of a mug.
"""
_CANONICAL = (np.ones((3, 3)) + np.eye(3)) / 120.0
"""Second moments of the tetrahedron of the origin and the unit vectors."""


@array_dataclass
class TriangleMesh:
    """Triangles whose normals point outwards."""

    vertices: Array
    """[vertices, 3] [m]."""
    faces: Array
    """Indices of corners [faces, 3], anticlockwise from outside."""

    @property
    def corners(self) -> Array:
        """Corners of each face [faces, 3, 3]."""
        return self.vertices[self.faces]

    @property
    def bounds(self) -> Array:
        """Smallest and largest coordinates [2, 3] [m]."""
        return np.stack([self.vertices.min(axis=0), self.vertices.max(axis=0)])

    @property
    def diagonal(self) -> float:
        """Diagonal of the bounding box [m]."""
        return float(np.linalg.norm(np.ptp(self.vertices, axis=0)))

    @property
    def watertight(self) -> bool:
        """Whether faces pass every edge as often in one direction as in the other, so that they enclose a volume.

        Four faces may share an edge, as where two parts of an object touch along it.
        """
        n = len(self.vertices)
        a = self.faces.astype(np.int64)
        b = np.roll(a, -1, axis=1)
        ways, back = np.sort((a * n + b).ravel()), np.sort((b * n + a).ravel())
        return bool(len(ways) and np.array_equal(ways, back))

    @property
    def areas(self) -> Array:
        """Area of each face [faces] [m^2]."""
        return 0.5 * np.linalg.norm(self._crosses(), axis=1)

    @property
    def normals(self) -> Array:
        """Unit normal of each face [faces, 3]; zero for a face without area."""
        cross = self._crosses()
        return cross / np.maximum(np.linalg.norm(cross, axis=1, keepdims=True), 1e-30)

    @property
    def volume(self) -> float:
        """Enclosed volume [m^3]; negative where the faces are inside out."""
        return float(self._determinants().sum() / 6)

    @property
    def centroid(self) -> Array:
        """Centre of the enclosed volume [3] [m]."""
        weights = self._determinants()
        return (weights[:, None] * self.corners.sum(axis=1)).sum(axis=0) / (4 * weights.sum())

    @property
    def unit_inertia(self) -> Array:
        """Inertia about the centroid per density [3, 3] [m^5]."""
        corners = self.corners - self.centroid
        moments = np.einsum("f,fki,kl,flj->ij", np.linalg.det(corners), corners, _CANONICAL, corners)
        return np.trace(moments) * np.eye(3) - moments

    def moved(self, new_from_old: Array) -> TriangleMesh:
        """The mesh after a rigid motion (4 x 4)."""
        return TriangleMesh(self.vertices @ new_from_old[:3, :3].T + new_from_old[:3, 3], self.faces)

    def sampled(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Points spread evenly over the surface [count, 3] and the faces they are on [count]."""
        areas = self.areas
        face = rng.choice(len(areas), count, p=areas / areas.sum())
        shares = rng.random((count, 2))
        shares = np.where(shares.sum(axis=1, keepdims=True) > 1, 1 - shares, shares)
        a, b, c = np.moveaxis(self.corners[face], 1, 0)
        return a + shares[:, :1] * (b - a) + shares[:, 1:] * (c - a), face

    def save_obj(self, path: Path, texels: Array | None = None) -> None:
        """Write an OBJ file; `texels` are texture coordinates of every corner of every face [faces, 3, 2]."""
        lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in self.vertices]
        if texels is None:
            lines += [f"f {a} {b} {c}" for a, b, c in self.faces + 1]
        else:
            lines += [f"vt {u:.6f} {v:.6f}" for u, v in texels.reshape(-1, 2)]
            lines += [
                f"f {a}/{3 * i + 1} {b}/{3 * i + 2} {c}/{3 * i + 3}" for i, (a, b, c) in enumerate(self.faces + 1)
            ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _crosses(self) -> Array:
        a, b, c = np.moveaxis(self.corners, 1, 0)
        return np.cross(b - a, c - a)

    def _determinants(self) -> Array:
        a, b, c = np.moveaxis(self.corners, 1, 0)
        return np.einsum("ni,ni->n", a, np.cross(b, c))


def simplified(mesh: TriangleMesh, faces: int) -> TriangleMesh:
    """The mesh with about so many faces, by collapsing edges of least quadric error; as it is where it has fewer.

    More are left where the shape needs them: errors are limited in shares of the diagonal, whatever the unit.
    """
    if len(mesh.faces) <= faces:
        return mesh
    library = optional_library("fast_simplification", "build", "fast-simplification")
    middle, size = mesh.bounds.mean(axis=0), max(mesh.diagonal, 1e-12)
    unit = (mesh.vertices - middle) / size
    for target in (faces, 2 * faces, 4 * faces):
        points, triangles = library.simplify(
            unit.astype(float), mesh.faces.astype(np.int32), target_count=target, agg=AGGRESSIVENESS
        )
        triangles = np.asarray(triangles, np.int32)
        whole = (triangles != np.roll(triangles, 1, axis=1)).all(axis=1)
        found = without_unused(TriangleMesh(middle + size * np.asarray(points, float), triangles[whole]))
        # Collapsing edges may pinch a thin part; a mesh that is open has no volume to weigh.
        if found.watertight or not mesh.watertight:
            return found
    return mesh


def without_unused(mesh: TriangleMesh) -> TriangleMesh:
    """The mesh without vertices that no face uses."""
    used, faces = np.unique(mesh.faces, return_inverse=True)
    return TriangleMesh(mesh.vertices[used], faces.reshape(-1, 3).astype(np.int32))


def joined(meshes: list[TriangleMesh]) -> TriangleMesh:
    """Several meshes as one."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]
    return TriangleMesh(np.concatenate([mesh.vertices for mesh in meshes]), np.concatenate(faces))


def separated(mesh: TriangleMesh) -> list[TriangleMesh]:
    """The connected pieces of a mesh, largest volume first."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    a, b = mesh.faces[:, [0, 1, 2]].ravel(), mesh.faces[:, [1, 2, 0]].ravel()
    n = len(mesh.vertices)
    _, label = connected_components(coo_matrix((np.ones(len(a), bool), (a, b)), shape=(n, n)), directed=False)
    of_face = label[mesh.faces[:, 0]]
    pieces = [without_unused(TriangleMesh(mesh.vertices, mesh.faces[of_face == k])) for k in np.unique(of_face)]
    return sorted(pieces, key=lambda piece: -abs(piece.volume))


def surface_distances(
    mesh: TriangleMesh, other: TriangleMesh, count: int = 20_000, seed: int = 0, *, dense: int = 20
) -> tuple[float, float]:
    """Mean distance from samples of each of two surfaces to the other [m].

    The other surface stands as `dense` times as many samples: with as many, equal surfaces would be as far apart as
    samples are.
    """
    from scipy.spatial import cKDTree

    def away(start: TriangleMesh, end: TriangleMesh, turn: int) -> float:
        points, _ = start.sampled(count, np.random.default_rng((seed, turn)))
        surface, _ = end.sampled(dense * count, np.random.default_rng((seed, 2 + turn)))
        return float(cKDTree(surface).query(points)[0].mean())

    return away(mesh, other, 1), away(other, mesh, 2)


def checked_mesh(mesh: TriangleMesh, what: str) -> TriangleMesh:
    """The mesh, which must be closed and enclose a volume."""
    if not len(mesh.faces) or not mesh.watertight or mesh.volume <= 0:
        raise BadInput(f"The surface of {what} is not closed, so it has no volume; more views of it are needed.")
    return mesh


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
