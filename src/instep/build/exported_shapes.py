"""The shapes of a scene as triangles on bodies, for files that know no MuJoCo geoms."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from instep.core.poses import matrix_from_quat
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.data.frames import encode_png
from instep.scene.folder import Scene

from .convex_decomposition import hull_mesh
from .triangle_mesh import TriangleMesh

_SIDES = 24
"""Corners of the circles that round shapes are made of."""
_ENDLESS_M = 1.0
"""Half the side of a plane without an end [m]."""
_SLAB_M = 0.01
"""Thickness of the slab that stands for a plane [m]: engines take no flat meshes."""
_HIDDEN_GROUP = 3
"""Geoms of this group and above are not shown, as in MuJoCo's viewer."""


@array_dataclass
class ExportedShape:
    """One geom as triangles in the frame of its body."""

    name: str
    body: int
    """Number of its body in the model."""
    mesh: TriangleMesh
    rgba: Array
    """[4], 0 to 1."""
    collides: bool
    shown: bool
    texels: Array | None = None
    """Texture coordinates of every corner of every face [faces, 3, 2], from the top left."""
    texture: bytes | None = None
    """PNG."""


def exported_shapes(scene: Scene) -> list[ExportedShape]:
    """Every geom of a scene that has a shape, as triangles."""
    model, found = scene.model, list[ExportedShape]()
    for geom in range(model.ngeom):
        mesh = _local_mesh(model, geom)
        if mesh is None:
            continue
        place = np.eye(4)
        place[:3, :3] = matrix_from_quat(np.asarray(model.geom_quat[geom], float))
        place[:3, 3] = model.geom_pos[geom]
        collides = bool(model.geom_contype[geom] or model.geom_conaffinity[geom])
        shown = int(model.geom_group[geom]) < _HIDDEN_GROUP and model.geom_rgba[geom][3] > 0
        texels, texture = _texture(model, geom)
        name = model.geom(geom).name or f"geom{geom}"
        found.append(
            ExportedShape(
                name, int(model.geom_bodyid[geom]), mesh.moved(place), _colour(model, geom), collides, bool(shown),
                texels, texture,
            )
        )  # fmt: skip
    return found


def mesh_triangles(model: Any, mesh: int) -> TriangleMesh:
    """A mesh of a model in the model's own frame of it, vertices as they are stored."""
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    begin, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    points = np.array(model.mesh_vert[first : first + count], float)
    return TriangleMesh(points, np.array(model.mesh_face[begin : begin + faces], np.int32))


def mesh_texels(model: Any, mesh: int) -> Array | None:
    """Texture coordinates of every corner of every face of a mesh [faces, 3, 2], from the top left; None without."""
    first = int(model.mesh_texcoordadr[mesh])
    if first < 0 or not model.mesh_texcoordnum[mesh]:
        return None
    begin, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    corners = np.asarray(model.mesh_facetexcoord[begin : begin + faces])
    return np.array(model.mesh_texcoord[first + corners], float)


def _local_mesh(model: Any, geom: int) -> TriangleMesh | None:
    """A geom as triangles in its own frame; None of a kind without a surface that could be written."""
    kind, size = int(model.geom_type[geom]), np.asarray(model.geom_size[geom], float)
    types = mujoco.mjtGeom
    if kind == int(types.mjGEOM_MESH):
        return mesh_triangles(model, int(model.geom_dataid[geom]))
    if kind == int(types.mjGEOM_PLANE):
        x, y = (side if side > 0 else _ENDLESS_M for side in size[:2])
        size, shift = np.array([x, y, _SLAB_M / 2]), np.array([0.0, 0.0, -_SLAB_M / 2])
        return hull_mesh(_cube() * size + shift)
    points = {
        int(types.mjGEOM_BOX): lambda: _cube() * size,
        int(types.mjGEOM_SPHERE): lambda: size[0] * _ball(),
        int(types.mjGEOM_ELLIPSOID): lambda: size * _ball(),
        int(types.mjGEOM_CYLINDER): lambda: _cylinder(size[0], size[1]),
        int(types.mjGEOM_CAPSULE): lambda: _capsule(size[0], size[1]),
    }.get(kind)
    return None if points is None else hull_mesh(np.asarray(points(), float))


def _cube() -> Array:
    return np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])


def _circle() -> Array:
    angle = 2 * np.pi * np.arange(_SIDES) / _SIDES
    return np.stack([np.cos(angle), np.sin(angle), np.zeros(_SIDES)], axis=1)


def _ball() -> Array:
    """Points on the unit sphere in rings, with the poles [n, 3]."""
    tilt = np.pi * np.arange(1, _SIDES // 2) / (_SIDES // 2) - np.pi / 2
    rings = [np.cos(a) * _circle() + [0.0, 0.0, np.sin(a)] for a in tilt]
    return np.concatenate([*rings, [[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]])


def _cylinder(radius: float, half: float) -> Array:
    return np.concatenate([radius * _circle() + [0.0, 0.0, z] for z in (-half, half)])


def _capsule(radius: float, half: float) -> Array:
    ball = radius * _ball()
    return np.concatenate([ball[ball[:, 2] >= -1e-9] + [0, 0, half], ball[ball[:, 2] <= 1e-9] - [0, 0, half]])


def _colour(model: Any, geom: int) -> Array:
    """The colour of a geom [4]: that of its texture on average, else its own, else that of its material."""
    pixels, material = _pixels(model, geom), int(model.geom_matid[geom])
    if pixels is not None:
        return np.append(pixels.reshape(-1, 3).mean(axis=0) / 255, 1.0)
    grey = np.array([0.5, 0.5, 0.5, 1.0])
    own = np.asarray(model.geom_rgba[geom], float)
    return own if material < 0 or not np.allclose(own, grey) else np.array(model.mat_rgba[material], float)


def _texture(model: Any, geom: int) -> tuple[Array | None, bytes | None]:
    """Texture coordinates and image of a geom whose mesh has both; None else."""
    mesh = int(model.geom_dataid[geom])
    if mesh < 0 or int(model.geom_type[geom]) != int(mujoco.mjtGeom.mjGEOM_MESH):
        return None, None
    pixels, texels = _pixels(model, geom), mesh_texels(model, mesh)
    return (None, None) if pixels is None or texels is None else (texels, encode_png(pixels))


def _pixels(model: Any, geom: int) -> Array | None:
    """The texture of a geom's material [height, width, 3] uint8; None without."""
    material = int(model.geom_matid[geom])
    texture = -1 if material < 0 else int(np.max(model.mat_texid[material]))
    if texture < 0:
        return None
    height, width, channels = (int(n[texture]) for n in (model.tex_height, model.tex_width, model.tex_nchannel))
    begin = int(model.tex_adr[texture])
    pixels = np.asarray(model.tex_data[begin : begin + height * width * channels]).reshape(height, width, channels)
    return np.ascontiguousarray(pixels[..., :3] if channels >= 3 else np.repeat(pixels[..., :1], 3, axis=2))
