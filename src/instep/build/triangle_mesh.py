"""Triangle meshes: volume, centre and inertia, whether they are closed, simplification, and OBJ files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.lazy import optional_library
from instep.core.records import array_dataclass
from instep.core.world import Array

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
