"""Triangle meshes: volume, centre and inertia, hulls, simplification, files, and isosurfaces of fields on a grid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.imports import optional_library
from instep.core.reading import parsing
from instep.core.world import Array, array_dataclass
from instep.splat.scene_files import accessor_table, node_transform, read_glb

MAX_FACES = 4_000_000
"""Most faces of a mesh that is read."""
_FORMS = "a mesh in GLB, OBJ or STL"
_STL_ROW = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("more", "<u2")])
_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_MAX_DEPTH = 64
_COMPRESSED = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")
AGGRESSIVENESS = 3.0
"""Growth of the allowed collapse error from pass to pass. With the usual 7 whole corners go; with 5 and few faces,
millimetres of a mug."""
_CANONICAL = (np.ones((3, 3)) + np.eye(3)) / 120.0
"""Second moments of the tetrahedron of the origin and the unit vectors."""
_TETRAHEDRA = np.array([[0, a, a + b, 7] for a, b, _ in permutations((1, 2, 4))])
"""Corners of the six tetrahedra of a cell; bit 0 of a corner is x, bit 1 is y, bit 2 is z."""
_EDGE_MARGIN = 0.02
"""Least distance of a vertex from the ends of its edge [share]; nearer ones make triangles without area."""


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
        """Enclosed volume [m^3]; negative if the faces are inside out."""
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
        """The mesh after a motion (4 x 4)."""
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
            faces = enumerate(self.faces + 1)
            lines += [f"f {a}/{3 * i + 1} {b}/{3 * i + 2} {c}/{3 * i + 3}" for i, (a, b, c) in faces]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _crosses(self) -> Array:
        a, b, c = np.moveaxis(self.corners, 1, 0)
        return np.cross(b - a, c - a)

    def _determinants(self) -> Array:
        a, b, c = np.moveaxis(self.corners, 1, 0)
        return np.einsum("ni,ni->n", a, np.cross(b, c))


def simplified(mesh: TriangleMesh, faces: int) -> TriangleMesh:
    """The mesh with about so many faces, by collapsing edges of least quadric error.

    More faces are left where the shape needs them: the error is limited as a share of the diagonal.
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
        found = _cleaned(middle + size * np.asarray(points, float), np.asarray(triangles, np.int32))
        # Collapsing edges may pinch a thin part; an open mesh has no volume.
        if found.watertight or not mesh.watertight:
            return found
    return mesh


def welded(mesh: TriangleMesh, tolerance: float = 1e-7) -> TriangleMesh:
    """The mesh with equal corners made one (within a tolerance [m]), without faces of no area and double faces."""
    points = np.round(mesh.vertices / max(tolerance, 1e-300))
    _, first, same = np.unique(points, axis=0, return_index=True, return_inverse=True)
    found = _cleaned(mesh.vertices[first], same.reshape(-1)[mesh.faces].astype(np.int32))
    # A face that is given twice, the same way round, would leave edges that are passed twice.
    start = np.argmin(found.faces, axis=1) if len(found.faces) else np.zeros(0, int)
    turned = np.take_along_axis(found.faces, (start[:, None] + np.arange(3)) % 3, axis=1)
    once = np.sort(np.unique(turned, axis=0, return_index=True)[1])
    return TriangleMesh(found.vertices, found.faces[once])


def joined(meshes: Sequence[TriangleMesh]) -> TriangleMesh:
    """Several meshes as one."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]
    return TriangleMesh(np.concatenate([mesh.vertices for mesh in meshes]), np.concatenate(faces))


def separated(mesh: TriangleMesh) -> list[TriangleMesh]:
    """The connected pieces of a mesh, largest volume first."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(mesh.vertices)
    ends = np.concatenate([mesh.faces[:, :2], mesh.faces[:, 1:]])
    graph = coo_matrix((np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), shape=(n, n))
    label = connected_components(graph, directed=False)[1][mesh.faces[:, 0]]
    pieces = [_cleaned(mesh.vertices, mesh.faces[label == k]) for k in np.unique(label)]
    return sorted(pieces, key=lambda piece: -abs(piece.volume))


def checked_mesh(mesh: TriangleMesh, what: str) -> TriangleMesh:
    """The mesh, which must be closed and enclose a volume."""
    if not len(mesh.faces) or not mesh.watertight or mesh.volume <= 0:
        raise BadInput(f"The surface of {what} is not closed, so it has no volume; more views of it are needed.")
    return mesh


def hull_mesh(points: Array) -> TriangleMesh:
    """The convex hull of points [n, 3] as a mesh."""
    from scipy.spatial import ConvexHull

    hull = ConvexHull(points)
    mesh = _cleaned(points, hull.simplices.astype(np.int32))
    inwards = np.einsum("ni,ni->n", mesh.normals, hull.equations[:, :3]) < 0
    mesh.faces[inwards] = mesh.faces[inwards][:, ::-1]
    return mesh


def _cleaned(vertices: Array, faces: Array) -> TriangleMesh:
    """A mesh without faces of two equal corners, and without vertices that no face uses."""
    whole = (faces != np.roll(faces, 1, axis=1)).all(axis=1)
    used, index = np.unique(faces[whole], return_inverse=True)
    return TriangleMesh(vertices[used], index.reshape(-1, 3).astype(np.int32))


def mesh_form(data: bytes) -> str:
    """The format of the bytes of a mesh: glb, stl or obj; empty if unknown."""
    if data[:4] == b"glTF":
        return "glb"
    if _binary_stl(data) or (data[:6] == b"solid " and b"facet" in data[:1000]):
        return "stl"
    return "obj" if re.search(rb"^v\s+[-+.0-9]", data[: 1 << 16], re.MULTILINE) else ""


def read_mesh(data: bytes, name: str) -> TriangleMesh:
    """The triangles of a mesh file in its own frame and unit, nodes of GLB applied; `name` is for errors."""
    form = mesh_form(data)
    if not form:
        begin = data[:16].decode("ascii", "replace")
        raise BadInput(f"{name} is no mesh: {_FORMS} was expected, and its {len(data)} bytes begin with {begin!r}.")
    with parsing(name, _FORMS):
        reader = {"glb": _from_glb, "stl": _from_stl, "obj": _from_obj}[form]
        vertices, faces = reader(data, name)
        vertices, faces = np.asarray(vertices, float).reshape(-1, 3), np.asarray(faces, np.int64).reshape(-1, 3)
    if not len(faces):
        raise BadInput(f"{name} holds no triangles; a mesh with a volume was expected, not points.")
    if len(faces) > MAX_FACES:
        raise BadInput(f"{name} has {len(faces)} faces, and at most {MAX_FACES} are read; reduce it first.")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise BadInput(f"A face of {name} names corner {int(faces.max())}, and there are {len(vertices)}.")
    if not np.isfinite(vertices).all() or np.abs(vertices).max() > 1e9:
        raise BadInput(f"{name} has corners that are not finite numbers below 1e9.")
    return TriangleMesh(vertices, faces.astype(np.int32))


def _from_obj(data: bytes, name: str) -> tuple[Any, Any]:
    vertices: list[list[float]] = []
    faces: list[tuple[int, int, int]] = []
    for line in data.decode("utf-8", "replace").splitlines():
        words = line.split()
        if not words or words[0] not in ("v", "f"):
            continue
        if words[0] == "v":
            vertices.append([float(word) for word in words[1:4]])
            continue
        given = [int(word.partition("/")[0]) for word in words[1:]]
        corners = [k - 1 if k > 0 else len(vertices) + k for k in given]
        if len(corners) < 3 or min(corners) < 0:
            raise BadInput(f"{name} has a face {line.strip()[:60]!r}; three or more corners were expected.")
        faces += [(corners[0], corners[k], corners[k + 1]) for k in range(1, len(corners) - 1)]
    return vertices, faces


def _binary_stl(data: bytes) -> bool:
    return len(data) > 84 and len(data) == 84 + _STL_ROW.itemsize * int.from_bytes(data[80:84], "little")


def _from_stl(data: bytes, name: str) -> tuple[Any, Any]:
    if _binary_stl(data):
        corners = np.frombuffer(data, _STL_ROW, offset=84)["corners"].reshape(-1, 3)
    else:
        found = re.findall(rb"^\s*vertex\s+(\S+)\s+(\S+)\s+(\S+)", data, re.MULTILINE)
        corners = np.array([[float(word) for word in row] for row in found]).reshape(-1, 3)
    if len(corners) % 3:
        raise BadInput(f"{name} ends within a triangle; the file was cut off.")
    return corners, np.arange(len(corners)).reshape(-1, 3)


def _from_glb(data: bytes, name: str) -> tuple[Any, Any]:
    document, blob = read_glb(data, name)
    packed = [one for one in _COMPRESSED if one in document.get("extensionsRequired", ())]
    if packed:
        raise BadInput(f"{name} is compressed by {packed[0]}, which is not read; export it without compression.")
    vertices, faces = list[Array](), list[Array]()

    def visit(index: int, above: Array, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise BadInput(f"The nodes of {name} are nested more than {_MAX_DEPTH} deep, or in a circle.")
        node: Mapping[str, Any] = document["nodes"][index]
        here = above @ node_transform(dict(node))
        for primitive in document["meshes"][node["mesh"]]["primitives"] if "mesh" in node else ():
            points, triangles = _primitive(document, blob, primitive, name)
            faces.append(triangles + sum(len(some) for some in vertices))
            vertices.append(points @ here[:3, :3].T + here[:3, 3])
        for child in node.get("children", ()):
            visit(child, here, depth + 1)

    scenes = document.get("scenes")
    every = range(len(document.get("nodes", ())))
    for root in scenes[document.get("scene", 0)].get("nodes", ()) if scenes else every:
        visit(root, np.eye(4), 0)
    return np.concatenate([np.zeros((0, 3)), *vertices]), np.concatenate([np.zeros((0, 3), int), *faces])


def _primitive(document: dict[str, Any], blob: bytes, primitive: Mapping[str, Any], name: str) -> tuple[Array, Array]:
    """The corners and triangles of a primitive; none of points and lines."""
    mode = primitive.get("mode", _TRIANGLES)
    if mode not in (_TRIANGLES, _STRIP, _FAN):
        return np.zeros((0, 3)), np.zeros((0, 3), int)
    points = accessor_table(document, blob, primitive["attributes"]["POSITION"], name).astype(float)
    if "indices" in primitive:
        order = accessor_table(document, blob, primitive["indices"], name, scaled=False)[:, 0].astype(np.int64)
    else:
        order = np.arange(len(points))
    if mode == _TRIANGLES:
        return points, order[: len(order) // 3 * 3].reshape(-1, 3)
    k = np.arange(max(len(order) - 2, 0))
    if mode == _FAN:
        return points, np.stack([np.full(len(k), order[0]), order[k + 1], order[k + 2]], axis=1)
    odd = k % 2
    return points, np.stack([order[k], order[k + 1 + odd], order[k + 2 - odd]], axis=1)


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
        return self.places(np.moveaxis(np.indices(self.shape), 0, -1))

    def places(self, cells: Array) -> Array:
        """Points of the grid by their indices [..., 3] [m]."""
        return self.origin + self.pitch * cells


def grid_around(low: Array, high: Array, pitch: float, margin: int = 2) -> Grid:
    """A grid over a box, with a margin of some cells."""
    low = np.asarray(low, float) - margin * pitch
    counts = np.ceil((np.asarray(high, float) - low) / pitch).astype(int) + 1 + margin
    return Grid(low, pitch, (int(counts[0]), int(counts[1]), int(counts[2])))


def isosurface(values: Array, grid: Grid) -> TriangleMesh:
    """The surface between positive (inside) and negative values [x, y, z]; the border of the grid counts as outside.

    Marching tetrahedra: closed, and without ambiguous cases. Every cell is cut into six tetrahedra around one diagonal,
    the same way everywhere, so that faces of neighbours match.
    """
    field = np.array(values, float)
    least = 1e-6 * grid.pitch
    for axis in range(3):
        for end in (0, -1):
            side = np.take(field, end, axis=axis)
            np.moveaxis(field, axis, 0)[end] = np.minimum(side, -least)
    field[np.abs(field) < least] = -least
    tets = _crossed_cells(field)[:, _TETRAHEDRA].reshape(-1, 4)
    flat = field.ravel()
    inside = flat[tets] > 0
    count = inside.sum(axis=1)
    ordered = np.take_along_axis(tets, np.argsort(~inside, axis=1, kind="stable"), axis=1)  # inside corners first
    one, two, three = (ordered[count == k] for k in (1, 2, 3))
    # Edges (inside, outside) of the triangles of each case [n, 3, 2].
    a, b, c, d = two[:, [0, 2]], two[:, [0, 3]], two[:, [1, 3]], two[:, [1, 2]]
    edges = np.concatenate([
        np.stack([one[:, [0, 1]], one[:, [0, 2]], one[:, [0, 3]]], axis=1),
        np.stack([three[:, [0, 3]], three[:, [1, 3]], three[:, [2, 3]]], axis=1),
        np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1),
    ])  # fmt: skip
    pairs = np.sort(edges, axis=2).reshape(-1, 2)
    _, first, faces = np.unique(pairs[:, 0] * len(flat) + pairs[:, 1], return_index=True, return_inverse=True)
    p, q = pairs[first].T
    share = np.clip(flat[p] / (flat[p] - flat[q]), _EDGE_MARGIN, 1 - _EDGE_MARGIN)[:, None]
    begin, end = _places(p, grid), _places(q, grid)
    mesh = _cleaned(begin + share * (end - begin), faces.reshape(-1, 3).astype(np.int32))
    outwards = _places(edges[..., 1], grid).mean(axis=1) - _places(edges[..., 0], grid).mean(axis=1)
    flipped = np.einsum("ni,ni->n", mesh.normals, outwards) < 0
    mesh.faces[flipped] = mesh.faces[flipped][:, ::-1]
    return mesh


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


def _places(index: Array, grid: Grid) -> Array:
    return grid.places(np.stack(np.unravel_index(index, grid.shape), axis=-1))
