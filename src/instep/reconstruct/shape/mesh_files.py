"""Triangle meshes of other programs: read GLB, OBJ and STL from bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import parsing
from instep.core.world import Array
from instep.splat.io.gltf import accessor_table, node_transform, read_glb

from .triangle_mesh import TriangleMesh

MAX_FACES = 4_000_000
"""Most faces of a mesh that is read."""
_FORMS = "a mesh in GLB, OBJ or STL"
_STL_ROW = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("more", "<u2")])
_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_MAX_DEPTH = 64
_COMPRESSED = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")


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
