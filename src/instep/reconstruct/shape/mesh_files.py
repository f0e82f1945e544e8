"""Triangle meshes of other programs: read GLB, OBJ and STL from bytes, and make them closed.

A surface with holes is sampled anew: a point is inside if the generalised winding number, the solid angle of the
surface seen from there over 4 pi, is above one half. That closes holes smoothly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.reading import parsing
from instep.core.world import Array
from instep.splat.io.gltf import accessor_table, node_transform, read_glb
from instep.splat.raster.simd import KERNEL

from .triangle_mesh import TriangleMesh, grid_around, isosurface, joined, separated, simplified, welded

MAX_FACES = 4_000_000
"""Most faces of a mesh that is read."""
_FORMS = "a mesh in GLB, OBJ or STL"
_STL_ROW = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("more", "<u2")])
_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_MAX_DEPTH = 64
_COMPRESSED = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")
_CELLS = 72
"""Cells along the diagonal of a surface that is sampled anew."""
_FACES = 2500
"""Faces of a surface with holes for winding numbers."""
_SAMPLES = 80_000
_PIECE_SHARE = 0.02
"""Least volume of a loose piece, as a share of the largest."""
_MIN_VOLUME_SHARE = 1e-5
"""Least volume of a shape, as a share of the cube of its diagonal."""


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


def closed_mesh(mesh: TriangleMesh, name: str) -> tuple[TriangleMesh, str]:
    """A closed mesh with a volume, normals outwards, and the repair in words; `name` is for errors."""
    mesh, how = welded(mesh, 1e-6 * mesh.diagonal), "as given"
    if not len(mesh.faces):
        raise BadInput(f"{name} encloses no volume: all its triangles are without area; a solid was expected.")
    if not mesh.watertight:
        mesh, how = _resampled(mesh), "closed: it had holes"
    elif mesh.volume < 0:
        mesh, how = TriangleMesh(mesh.vertices, mesh.faces[:, ::-1].copy()), "turned: it was inside out"
    pieces = [piece for piece in separated(mesh) if piece.volume > 0] if len(mesh.faces) else []
    kept = [piece for piece in pieces if piece.volume >= _PIECE_SHARE * pieces[0].volume]
    if not kept or sum(piece.volume for piece in kept) < _MIN_VOLUME_SHARE * mesh.diagonal**3:
        raise BadInput(f"{name} encloses no volume; a solid was expected, not a sheet or a shell with wide openings.")
    return joined(kept), how


def _resampled(mesh: TriangleMesh) -> TriangleMesh:
    """A closed surface around the inside of one with holes."""
    from scipy.spatial import cKDTree

    surface = simplified(mesh, _FACES)
    pitch = mesh.diagonal / _CELLS
    grid = grid_around(mesh.bounds[0], mesh.bounds[1], pitch)
    points = grid.points()
    samples, _ = mesh.sampled(_SAMPLES, np.random.default_rng(0))
    distance, _ = cKDTree(samples).query(points.reshape(-1, 3), distance_upper_bound=3 * pitch)
    distance = np.minimum(distance, 3 * pitch).reshape(grid.shape)
    corners = np.ascontiguousarray(surface.corners)
    coarse = winding_numbers(np.ascontiguousarray(points[::2, ::2, ::2]), corners)
    winding = coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)[tuple(map(slice, grid.shape))]
    near = distance < 2 * pitch
    winding[near] = winding_numbers(points[near], corners)
    return isosurface(np.where(winding > 0.5, distance, -distance), grid)


def winding_numbers(points: Array, corners: Array) -> Array:
    """How often triangles [faces, 3, 3] wind around points [..., 3]: 1 inside of a closed surface, 0 outside [...]."""
    out = np.empty(points.reshape(-1, 3).shape[0])
    _winding(np.ascontiguousarray(points.reshape(-1, 3)), corners, out)
    return out.reshape(points.shape[:-1])


@njit(**KERNEL)
def _winding(points: Any, corners: Any, out: Any) -> None:
    """The solid angle of each triangle by Van Oosterom and Strackee, summed."""
    for i in range(points.shape[0]):
        x, y, z = points[i]
        total = 0.0
        for f in range(corners.shape[0]):
            t = corners[f]
            ax, ay, az = t[0, 0] - x, t[0, 1] - y, t[0, 2] - z
            bx, by, bz = t[1, 0] - x, t[1, 1] - y, t[1, 2] - z
            cx, cy, cz = t[2, 0] - x, t[2, 1] - y, t[2, 2] - z
            la = np.sqrt(ax * ax + ay * ay + az * az)
            lb = np.sqrt(bx * bx + by * by + bz * bz)
            lc = np.sqrt(cx * cx + cy * cy + cz * cz)
            up = ax * (by * cz - bz * cy) + ay * (bz * cx - bx * cz) + az * (bx * cy - by * cx)
            ab, bc, ca = ax * bx + ay * by + az * bz, bx * cx + by * cy + bz * cz, cx * ax + cy * ay + cz * az
            total += np.arctan2(up, la * lb * lc + ab * lc + bc * la + ca * lb)
        out[i] = total / (2.0 * np.pi)
