"""Meshes of other programs: every format gives the triangles that were written, and damage is one sentence."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from build_scenes import box
from instep.core.errors import BadInput
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, mesh_form, read_mesh
from instep.splat.scene_files import GltfBuffer

BOX = box((-0.1, -0.2, 0.0), (0.3, 0.1, 0.5))


def as_obj(mesh: TriangleMesh) -> bytes:
    lines = [f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in mesh.vertices]
    return "\n".join(["# by a test", *lines, *(f"f {a}/1 {b}/2/3 {c}" for a, b, c in mesh.faces + 1)]).encode()


def as_stl(mesh: TriangleMesh) -> bytes:
    rows = b"".join(struct.pack("<12fH", 0, 0, 0, *corners.ravel(), 0) for corners in mesh.corners)
    return b"\0" * 80 + struct.pack("<I", len(mesh.faces)) + rows


def as_glb(mesh: TriangleMesh, folder, **node: object) -> bytes:
    buffer = GltfBuffer()
    points, order = buffer.accessor(mesh.vertices), buffer.accessor(mesh.faces.ravel())
    primitive = {"attributes": {"POSITION": points}, "indices": order}
    nodes = [{"children": [1], **node}, {"mesh": 0}]
    document = {"asset": {"version": "2.0"}, "scenes": [{"nodes": [0]}], "nodes": nodes}
    buffer.write(folder / "mesh.glb", {**document, "meshes": [{"primitives": [primitive]}]})
    return (folder / "mesh.glb").read_bytes()


def test_every_format_gives_the_same_triangles(tmp_path):
    for form, data in {"obj": as_obj(BOX), "stl": as_stl(BOX), "glb": as_glb(BOX, tmp_path)}.items():
        assert mesh_form(data) == form
        np.testing.assert_allclose(read_mesh(data, "a box").corners, BOX.corners, atol=1e-6)


def test_nodes_of_glb_are_applied(tmp_path):
    half = 0.5**0.5
    found = read_mesh(as_glb(BOX, tmp_path, scale=[2, 2, 2], rotation=[0, 0, half, half]), "a box")
    x, y, z = BOX.vertices.T
    np.testing.assert_allclose(found.vertices, 2 * np.stack([-y, x, z], axis=1), atol=1e-6)


def test_polygons_become_fans():
    square = b"v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nf -4 -3 -2 -1\n"
    assert read_mesh(square, "a square").faces.tolist() == [[0, 1, 2], [0, 2, 3]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>not found</html>", "is no mesh"),
        (b"", "is no mesh"),
        (b"v 0 0 0\nv 1 0 0\nv 0 1 0\n", "holds no triangles"),
        (b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n", "names corner 8"),
        (b"v 0 0 0\nv 1 0 0\nv 0 nan 0\nf 1 2 3\n", "not finite numbers"),
        (b"v 0 0 0\nf 1 two 3\n", "cannot be read as"),
        (b"glTF" + struct.pack("<II", 2, 20) + struct.pack("<II", 0, 0x4E4F534A), "not valid JSON"),
    ],
)
def test_damage_is_one_sentence(data, message):
    with pytest.raises(BadInput, match=message):
        read_mesh(data, "The answer")


def test_compressed_glb_is_refused_with_what_to_do(tmp_path):
    data = as_glb(BOX, tmp_path)
    length = struct.unpack_from("<I", data, 12)[0]
    table = {**json.loads(data[20 : 20 + length]), "extensionsRequired": ["KHR_draco_mesh_compression"]}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 4)
    packed = struct.pack("<II", len(text), 0x4E4F534A) + text + data[20 + length :]
    with pytest.raises(BadInput, match="export it without compression"):
        read_mesh(b"glTF" + struct.pack("<II", 2, 12 + len(packed)) + packed, "The answer")
