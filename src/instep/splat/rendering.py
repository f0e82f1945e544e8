"""Render Gaussians: `render` in one call, cameras that frame or circle a scene, images and videos on disk.

Gaussians of a scene: from a scan, or spread over the surfaces of its geoms in the colour of their materials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, quat_from_matrix
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera, look_at
from instep.scene.folder import Scene
from instep.scene.model import body_poses

from .gaussian_files import FORMATS, load_gaussians
from .gaussians import Gaussians, concatenate, gaussians_from_colours
from .image import RenderedImage
from .raster.rasterizer import Device, Rasterizer, open_rasterizer

_GAP_PX = 6
"""White between images."""


@array_dataclass
class Rendering:
    """Images of Gaussians, one per camera."""

    cameras: tuple[Camera, ...]
    frames: tuple[RenderedImage, ...]
    """Colour, alpha and depth of each camera."""

    @property
    def images(self) -> tuple[Array, ...]:
        """Colours uint8 [height, width, 3], one per camera."""
        return tuple(frame.bytes for frame in self.frames)

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write a PNG file, or a folder with one per camera; return what was written."""
        path = Path(path)
        if path.suffix.lower() == ".png" and len(self.frames) == 1:
            save_png(path, self.images[0])
            return (path,)
        if path.suffix:
            raise BadInput(f"{len(self.frames)} images are written to one .png or into a folder, not to {path.name!r}.")
        path.mkdir(parents=True, exist_ok=True)
        written = tuple(path / f"{camera.name.replace('/', '_')}.png" for camera in self.cameras)
        for file, image in zip(written, self.images, strict=True):
            save_png(file, image)
        return written


def render(
    source: Scene | Gaussians | str | Path,
    cameras: Camera | Sequence[Camera] | None = None,
    *,
    q: Array | None = None,
    poses: Array | None = None,
    device: Device = "cpu",
) -> Rendering:
    """Render a scene, Gaussians or a Gaussian file through cameras, or through one that frames them all.

    Args:
        source: a scene (its name, folder or MJCF file: Gaussians on its geoms), a Gaussian file (.ply, .splat, .spz,
            .glb, .usdc, ...) or a folder with one file per body.
        cameras: one camera or several.
        q: positions of a scene [nq]; its start where not given.
        poses: poses xyz + wxyz [bodies, 7] of Gaussians in the order of their names; identity where not given.
        device: cpu, or cuda for a GPU.

    """
    gaussians, poses = _placed(source, q, poses)
    if len(gaussians) == 0:
        raise BadInput("There are no Gaussians to render.")
    if cameras is None:
        cameras = framing_camera(gaussians, poses)
    chosen = (cameras,) if isinstance(cameras, Camera) else tuple(cameras)
    rasterizer = open_rasterizer(gaussians, device)
    return Rendering(chosen, tuple(rasterizer.render(camera, poses) for camera in chosen))


def framing_camera(gaussians: Gaussians, poses: Array | None = None, *, size: tuple[int, int] = (640, 480)) -> Camera:
    """A camera that looks obliquely from above at all but the outermost 2 % of the Gaussians."""
    means = gaussians.in_world(poses)
    low, high = np.quantile(means, [0.02, 0.98], axis=0)
    centre, diagonal = (low + high) / 2, max(float(np.linalg.norm(high - low)), 1e-3)
    eye = centre + 1.1 * diagonal * np.array([0.7, -0.7, 0.5])
    (width, height), focal = size, 600.0 * size[0] / 640
    return Camera(
        "overview", width, height, (focal, focal), (width / 2, height / 2), "world", look_at(eye, centre)
    )  # fmt: skip


def orbit_images(
    rasterizer: Rasterizer, camera: Camera, centre: Array, *, frames: int = 60, poses: Array | None = None
) -> Iterator[Array]:
    """Images uint8 of a camera that circles a point at its own distance and height, once around."""
    centre = np.asarray(centre, float)
    start = camera.body_from_camera[:3, 3] - centre
    for angle in np.arange(frames) * 2 * np.pi / frames:
        c, s = np.cos(angle), np.sin(angle)
        eye = centre + np.array([c * start[0] - s * start[1], s * start[0] + c * start[1], start[2]])
        placed = replace(camera, body="world", body_from_camera=look_at(eye, centre))
        yield rasterizer.render(placed, poses).bytes


def side_by_side(rows: Sequence[tuple[Array, Array]]) -> Array:
    """Pairs of real and rendered images uint8, one pair per row: real, rendered, and four times their difference."""
    if not rows:
        raise BadInput("A comparison needs at least one pair of images, and none was given.")
    out: list[Array] = []
    width = max(real.shape[1] for real, _ in rows)
    for real, rendered in rows:
        apart = np.clip(4 * np.abs(real.astype(int) - rendered.astype(int)), 0, 255).astype(np.uint8)
        cells = [
            np.pad(image, ((0, 0), (0, width - image.shape[1]), (0, 0)), constant_values=255)
            for image in (real, rendered, apart)
        ]
        gap = np.full((real.shape[0], _GAP_PX, 3), 255, np.uint8)
        out += [np.hstack([cells[0], gap, cells[1], gap, cells[2]])]
        out += [np.full((_GAP_PX, out[-1].shape[1], 3), 255, np.uint8)]
    return np.vstack(out[:-1])


def save_png(path: Path, image: Array) -> None:
    """Write an image [height, width, 3] uint8."""
    from instep.data.frames import encode_png

    try:
        path.write_bytes(encode_png(image))
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written: {error.strerror or error}.") from None


def save_video(path: Path, images: Iterable[Array], *, fps: int = 20) -> None:
    """Write images uint8 as .mp4."""
    from instep.data.video import VideoOptions, VideoWriter

    if path.suffix.lower() != ".mp4":
        raise BadInput(f"A video is written as .mp4, not as {path.suffix!r}.")
    with VideoWriter(path, fps, VideoOptions(crf=23, g=20)) as writer:
        for image in images:
            writer.add(image[: image.shape[0] // 2 * 2, : image.shape[1] // 2 * 2])


def _placed(
    source: Scene | Gaussians | str | Path, q: Array | None, poses: Array | None
) -> tuple[Gaussians, Array | None]:
    if isinstance(source, str | Path):
        path = Path(source)
        folder = path.is_dir() and not (path / "scene.toml").is_file()
        splats = folder and any(file.suffix.lower() in FORMATS for file in path.iterdir())
        source = load_gaussians(path) if splats or path.suffix.lower() in FORMATS else Scene.load(source)
    if isinstance(source, Gaussians):
        if q is not None:
            raise BadInput("Gaussians without a scene have no positions q; give poses [bodies, 7].")
        return source, poses
    gaussians = scene_gaussians(source)
    return gaussians, scene_poses(source, gaussians.names, source.start(0)[0] if q is None else q)


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
    parts = [_surface_gaussians(scene.model, geom) for geom in _visible_geoms(scene.model)]
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
    lacking = [geom for geom in _visible_geoms(scene.model) if geom.body in missing]
    return concatenate([found, *(_surface_gaussians(scene.model, geom) for geom in lacking)])


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
    makers: dict[mujoco.mjtGeom, Callable[[Array, float], Surface]] = {
        mujoco.mjtGeom.mjGEOM_PLANE: _plane,
        mujoco.mjtGeom.mjGEOM_BOX: _box,
        mujoco.mjtGeom.mjGEOM_CYLINDER: _cylinder,
        mujoco.mjtGeom.mjGEOM_CAPSULE: _capsule,
        mujoco.mjtGeom.mjGEOM_SPHERE: lambda size, pitch: _ellipsoid(np.full(3, size[0]), pitch),
        mujoco.mjtGeom.mjGEOM_ELLIPSOID: _ellipsoid,
        mujoco.mjtGeom.mjGEOM_MESH: lambda _, pitch: _mesh(model, mesh, pitch),
    }
    maker = makers.get(mujoco.mjtGeom(kind))
    if maker is None:
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
    faces: list[Surface] = []
    for axis in range(3):
        flat = _grid(size[(axis + 1) % 3], size[(axis + 2) % 3], pitch)
        for side in (-1.0, 1.0):
            # Columns along the two axes of the face, then its own; rolled to x, y, z.
            face = np.column_stack([flat, np.full(len(flat), side * size[axis])])
            faces.append((np.roll(face, axis + 1, axis=1), np.tile(side * np.eye(3)[axis], (len(flat), 1))))
    return np.concatenate([points for points, _ in faces]), np.concatenate([normals for _, normals in faces])


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
    first, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    corners = model.mesh_vert[model.mesh_face[first : first + faces] + model.mesh_vertadr[mesh]].astype(float)
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
