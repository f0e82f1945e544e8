"""Gaussians of a scene: from a scan, or spread over the surfaces of its geoms in the colour of their materials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, quat_from_matrix
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.folder import Scene
from instep.scene.model import body_poses

from .gaussians import Gaussians, concatenate, gaussians_from_colours
from .io import load_gaussians

SPACING_M = 0.008
"""Distance of Gaussians from each other [m]; on large surfaces more."""
MAX_PER_GEOM = 1200
"""Gaussians on one shape at most, about."""
VISIBLE_GROUPS = 3
"""Shapes of groups below this one are shown, as in MuJoCo's viewer."""
AMBIENT = 0.65
"""Light on what faces down; what faces up has 1."""
Surface = tuple[Array, Array]
"""Points [n, 3] and the normals there [n, 3]."""


def gaussians_from_geoms(scene: Scene) -> Gaussians:
    """Flat Gaussians on every visible geom, in the colour of its material, on its body."""
    parts = _geom_gaussians(scene.model)
    if not parts:
        raise BadInput(f"Scene {scene.name!r} has no visible geom to render; give the Gaussians of a scan instead.")
    bodies = [scene.model.body(b).name for b in range(1, scene.model.nbody)]
    used = {name for part in parts for name in part.names}
    return concatenate(parts, ("world", *(name for name in bodies if name in used)))


def scene_gaussians(scene: Scene, scan: Path | None = None) -> Gaussians:
    """The Gaussians of a scan, with those of geoms on moving bodies that it lacks; of all geoms without a scan."""
    if scan is None:
        return gaussians_from_geoms(scene)
    found = load_gaussians(scan)
    known = [scene.model.body(b).name for b in range(scene.model.nbody)]
    for name in found.names:
        if name not in known:
            raise UnknownName(f"body (named in {scan.name})", name, known)
    missing = [name for name in known if name not in found.names and not is_static(scene, name)]
    return concatenate([found, *_geom_gaussians(scene.model, missing)])


def _geom_gaussians(model: Any, bodies: Sequence[str] | None = None) -> list[Gaussians]:
    """Gaussians of each visible geom, of some bodies where they are named."""
    return [_surface_gaussians(model, geom) for geom in _visible_geoms(model) if bodies is None or geom.body in bodies]


def scene_poses(scene: Scene, names: Sequence[str], q: Array) -> Array:
    """Poses xyz + wxyz [..., names, 7] of bodies of a scene at positions q [..., nq]."""
    flat = np.asarray(q, float).reshape(-1, np.shape(q)[-1])
    world = np.broadcast_to(np.eye(7)[3], (len(flat), 1, 7))
    rows = [scene.model.body(name).id for name in names]
    poses = np.concatenate([world, body_poses(scene.model, flat)], axis=-2)[:, rows]
    return poses.reshape(*np.shape(q)[:-1], len(rows), 7)


def is_static(scene: Scene, name: str) -> bool:
    """Whether nothing between a body and the world has a joint."""
    return int(scene.model.body_weldid[scene.model.body(name).id]) == 0


@array_dataclass
class _Geom:
    """A visible shape, placed in the frame of its body."""

    body: str
    kind: int
    size: Array
    position: Array
    quat: Array
    rgba: Array
    mesh: int


def _visible_geoms(model: Any) -> Iterator[_Geom]:
    """All that is visible: shapes, and marks on the table."""
    for kind, count in (("geom", model.ngeom), ("site", model.nsite)):
        for i in range(count):
            pick = {f: getattr(model, f"{kind}_{f}")[i] for f in ("bodyid", "type", "size", "pos", "quat", "group")}
            rgba = _colour(model, getattr(model, f"{kind}_rgba")[i], int(getattr(model, f"{kind}_matid")[i]))
            if rgba[3] <= 0 or pick["group"] >= VISIBLE_GROUPS or (kind == "site" and pick["size"].max() < SPACING_M):
                continue
            mesh = int(model.geom_dataid[i]) if kind == "geom" else -1
            body = model.body(int(pick["bodyid"])).name
            yield _Geom(body, int(pick["type"]), pick["size"], pick["pos"], pick["quat"], rgba, mesh)


def _colour(model: Any, own: Array, material: int) -> Array:
    """The colour of a shape, else of its material, mixed with the mean of its texture."""
    if material < 0 or not np.allclose(own, [0.5, 0.5, 0.5, 1.0]):
        return np.asarray(own, float)
    rgba = np.array(model.mat_rgba[material], float)
    texture = int(np.max(model.mat_texid[material]))
    if texture >= 0:
        height, width, channels = (int(getattr(model, f"tex_{f}")[texture]) for f in ("height", "width", "nchannel"))
        begin = int(model.tex_adr[texture])
        texels = model.tex_data[begin : begin + height * width * channels].reshape(-1, channels)
        rgba[:3] *= texels[:, :3].mean(axis=0) / 255
    return rgba


def _surface_gaussians(model: Any, geom: _Geom) -> Gaussians:
    points, normals, pitch = _surface(model, geom.kind, geom.size, geom.mesh)
    matrix = matrix_from_quat(np.asarray(geom.quat, float))
    points, normals = points @ matrix.T + geom.position, normals @ matrix.T
    light = AMBIENT + (1 - AMBIENT) * 0.5 * (1 + normals[:, 2:])
    # Half a pitch wide, they blend into one surface whose edges are no softer than that.
    flat = np.array([0.55, 0.55, 0.1]) * pitch
    colours = np.clip(geom.rgba[:3] * light, 0, 1)
    return gaussians_from_colours(
        points, flat, colours, quats=orientations(normals), opacities=float(geom.rgba[3])
    ).attached_to(geom.body)


def _surface(model: Any, kind: int, size: Array, mesh: int) -> tuple[Array, Array, float]:
    """Points and normals of a shape, and how far the points are from each other [m]."""
    makers: dict[int, Callable[[Array, float], Surface]] = {
        int(mujoco.mjtGeom.mjGEOM_PLANE): _plane,
        int(mujoco.mjtGeom.mjGEOM_BOX): _box,
        int(mujoco.mjtGeom.mjGEOM_CYLINDER): _cylinder,
        int(mujoco.mjtGeom.mjGEOM_CAPSULE): _capsule,
        int(mujoco.mjtGeom.mjGEOM_SPHERE): lambda size, pitch: _ellipsoid(np.full(3, size[0]), pitch),
        int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): _ellipsoid,
    }
    if kind == int(mujoco.mjtGeom.mjGEOM_MESH):
        maker: Callable[[Array, float], Surface] = lambda _, pitch: _mesh(model, mesh, pitch)  # noqa: E731
    elif kind in makers:
        maker = makers[kind]
    else:
        raise BadInput(
            f"A shape of MuJoCo's type {mujoco.mjtGeom(kind).name} has no surface to render; give a scan instead."
        )
    pitch = SPACING_M
    points, normals = maker(size, pitch)
    if len(points) > MAX_PER_GEOM:
        pitch *= float(np.sqrt(len(points) / MAX_PER_GEOM))
        points, normals = maker(size, pitch)
    return points, normals, pitch


def _grid(half_x: float, half_y: float, pitch: float) -> Array:
    """Points of a rectangle [n, 2], the outermost half a pitch from its edges."""
    nx, ny = (max(1, round(2 * half / pitch)) for half in (half_x, half_y))
    x = half_x * (2 * np.arange(nx) + 1 - nx) / nx
    y = half_y * (2 * np.arange(ny) + 1 - ny) / ny
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)


def _plane(size: Array, pitch: float) -> Surface:
    x, y = (float(s) if s > 0 else 1.0 for s in size[:2])  # MuJoCo's planes without a size have no end
    flat = _grid(x, y, pitch)
    return np.column_stack([flat, np.zeros(len(flat))]), np.tile([0.0, 0.0, 1.0], (len(flat), 1))


def _box(size: Array, pitch: float) -> Surface:
    points: list[Array] = []
    normals: list[Array] = []
    for axis in range(3):
        a, b = (axis + 1) % 3, (axis + 2) % 3
        flat = _grid(size[a], size[b], pitch)
        for side in (-1.0, 1.0):
            face, normal = np.zeros((len(flat), 3)), np.zeros((len(flat), 3))
            face[:, a], face[:, b], face[:, axis], normal[:, axis] = flat[:, 0], flat[:, 1], side * size[axis], side
            points.append(face)
            normals.append(normal)
    return np.concatenate(points), np.concatenate(normals)


def _cylinder(size: Array, pitch: float) -> Surface:
    radius, half = float(size[0]), float(size[1])
    wall = _grid(np.pi * radius, half, pitch)
    angle = wall[:, 0] / radius
    out = np.column_stack([np.cos(angle), np.sin(angle), np.zeros(len(angle))])
    side = radius * out + np.column_stack([np.zeros((len(angle), 2)), wall[:, 1]])
    disc = _grid(radius, radius, pitch)
    disc = disc[np.hypot(*disc.T) <= radius]
    caps = [np.column_stack([disc, np.full(len(disc), z)]) for z in (-half, half)]
    up = [np.tile([0.0, 0.0, np.sign(z)], (len(disc), 1)) for z in (-half, half)]
    return np.concatenate([side, *caps]), np.concatenate([out, *up])


def _capsule(size: Array, pitch: float) -> Surface:
    radius, half = float(size[0]), float(size[1])
    wall, out = _cylinder(size, pitch)
    rim = np.abs(out[:, 2]) < 0.5
    ball, normal = _ellipsoid(np.full(3, radius), pitch)
    ends = ball + np.sign(ball[:, 2:]) * np.array([0.0, 0.0, half])
    return np.concatenate([wall[rim], ends]), np.concatenate([out[rim], normal])


def _ellipsoid(size: Array, pitch: float) -> Surface:
    """Points along a spiral from pole to pole, each with the same share of a sphere."""
    n = max(8, round(4 * np.pi * float(np.mean(size)) ** 2 / pitch**2))
    z = 1 - (2 * np.arange(n) + 1) / n
    angle, r = np.pi * (1 + np.sqrt(5)) * np.arange(n), np.sqrt(1 - z * z)
    unit = np.column_stack([r * np.cos(angle), r * np.sin(angle), z])
    normal = unit / size
    return unit * size, normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _mesh(model: Any, mesh: int, pitch: float) -> Surface:
    begin, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    first, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    corners = model.mesh_vert[begin : begin + count][model.mesh_face[first : first + faces]].astype(float)
    across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(across, axis=1) / 2
    n, rng = max(8, round(float(area.sum()) / pitch**2)), np.random.default_rng(0)
    which = np.searchsorted(np.cumsum(area) / area.sum(), (np.arange(n) + 0.5) / n)
    a, b = np.sort(rng.uniform(size=(2, n)), axis=0)
    shares = np.stack([a, b - a, 1 - b], axis=1)
    normals = across[which] / np.maximum(2 * area[which, None], 1e-12)
    return np.einsum("nk,nkx->nx", shares, corners[which]), normals


def orientations(normals: Array) -> Array:
    """Orientations [n, 4] whose third axis is the normal."""
    helper = np.where(np.abs(normals[:, :1]) < 0.9, [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
    x = np.cross(helper, normals)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return quat_from_matrix(np.stack([x, np.cross(normals, x), normals], axis=2))
