"""Rendered views of scanned objects on a table, as captures to build scenes from."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.spatial import cKDTree

from instep.core.world import Array
from instep.data.frames import encode_png
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, read_mesh, welded
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.camera_files import camera_element
from instep.scene.folder import Scene
from instep.splat.rendering import save_png

SIZE = (480, 360)
TABLE_DIAGONALS = 12.0
"""Width of a given table top, in diagonals of the scan."""
_FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
_XML = """
<mujoco>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0 0 0" specular="0 0 0"/>
    <quality shadowsize="2048" offsamples="4"/><global offwidth="{width}" offheight="{height}"/>
    <map znear="0.01" zfar="50"/></visual>
  <asset><mesh name="scan" file="model.obj"/><texture name="scan" type="2d" file="texture.png"/>
    <material name="scan" texture="scan" specular="0" shininess="0"/>
    <texture name="table" type="2d" file="table.png"/>
    <material name="table" texture="table" texrepeat="{repeat} {repeat}" texuniform="true" specular="0"/>
  </asset>
  <worldbody>
    <light pos="0.3 0.5 2" dir="-0.15 -0.2 -1" diffuse="0.45 0.45 0.45" specular="0 0 0" castshadow="true"/>
    <light pos="-1 -1 2" dir="0.4 0.4 -1" diffuse="0.25 0.25 0.25" specular="0 0 0" castshadow="false"/>
    <geom type="plane" size="{half} {half} .1" material="table"/>
    <body name="scan"><freejoint/><geom type="mesh" mesh="scan" material="scan"/></body>
    {cameras}
  </worldbody>
</mujoco>
"""


def scan_mesh(folder: Path) -> TriangleMesh:
    """The mesh of a scan, with equal vertices made one."""
    return welded(read_mesh((folder / "model.obj").read_bytes(), folder.name))


def surface_distances(mesh: TriangleMesh, other: TriangleMesh, count: int = 20_000) -> tuple[float, float]:
    """Mean distance from samples of each of two surfaces to twenty times as many samples of the other [m]."""

    def away(start: TriangleMesh, end: TriangleMesh, turn: int) -> float:
        points, _ = start.sampled(count, np.random.default_rng((0, turn)))
        surface, _ = end.sampled(20 * count, np.random.default_rng((0, 2 + turn)))
        return float(cKDTree(surface).query(points)[0].mean())

    return away(mesh, other, 1), away(other, mesh, 2)


def cameras_around(mesh: TriangleMesh, count: int, size: tuple[int, int] = SIZE) -> list[Camera]:
    """Cameras at three heights around a mesh, which fills about half of their images."""
    middle, radius = mesh.bounds.mean(axis=0), mesh.diagonal / 2
    plain = pinhole("view", size, 40.0)
    distance = 1.15 * radius / np.tan(np.radians(40.0) / 2 * size[1] / size[0])
    rings = np.array([0.4, 0.35, 0.25]) * count
    numbers = np.floor(rings).astype(int)
    numbers[0] += count - numbers.sum()
    cameras: list[Camera] = []
    for elevation, number, turn in zip((18.0, 42.0, 68.0), numbers, (0.0, 0.4, 0.9), strict=True):
        for k in range(number):
            angle, up = 2 * np.pi * k / number + turn, np.radians(elevation)
            eye = middle + distance * np.array([np.cos(up) * np.cos(angle), np.cos(up) * np.sin(angle), np.sin(up)])
            name = f"v{len(cameras):02d}"
            cameras.append(Camera(name, *size, plain.focal, plain.centre, "world", look_at(eye, middle)))
    return cameras


def render_scan(
    scan: Path, cameras: list[Camera], folder: Path, seed: int = 0, table: Array | None = None
) -> list[Array]:
    """The image of each camera [height, width, 3] uint8, by MuJoCo's renderer and with noise.

    The rendered model stays in `folder`. A given table top is `TABLE_DIAGONALS` of the scan wide.
    """
    rng = np.random.default_rng((seed, 0x5CA))
    folder.mkdir(parents=True, exist_ok=True)
    width, height = cameras[0].width, cameras[0].height
    placed = "".join(ET.tostring(camera_element(camera), encoding="unicode") for camera in cameras)
    # MuJoCo's repeat counts half textures. Three copies of one across put its middle at the origin.
    wide = (4.0 if table is None else TABLE_DIAGONALS) * scan_mesh(scan).diagonal
    repeat, half = f"{2 / wide:.4g}", "20" if table is None else f"{1.5 * wide:.4g}"
    for name in ("model.obj", "texture.png"):
        (folder / name).write_bytes((scan / name).read_bytes())
    (folder / "table.png").write_bytes(encode_png(table_top(rng) if table is None else table))
    (folder / "scan.xml").write_text(_XML.format(width=width, height=height, repeat=repeat, half=half, cameras=placed))
    scene = Scene.load(folder / "scan.xml")
    renderer = MujocoRenderer(scene)
    images = [renderer.render(scene.start(0)[0], scene.cameras[camera.name]) for camera in cameras]
    renderer.close()
    noisy = [image.astype(float) + rng.normal(0.0, 2.0, image.shape) for image in images]
    return [np.clip(image, 0, 255).astype(np.uint8) for image in noisy]


def write_views(folder: Path, cameras: list[Camera], images: list[Array]) -> Path:
    """Write images with transforms.json and ground_plane.json, as `load_capture` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    frames: list[dict[str, object]] = []
    for camera, image in zip(cameras, images, strict=True):
        save_png(folder / f"{camera.name}.png", image)
        place = (camera.body_from_camera @ _FLIP).tolist()
        frames.append({"file_path": f"{camera.name}.png", "transform_matrix": place})
    first = cameras[0]
    table = {"fl_x": first.focal[0], "fl_y": first.focal[1], "cx": first.centre[0], "cy": first.centre[1]}
    (folder / "transforms.json").write_text(json.dumps({**table, "frames": frames}))
    (folder / "ground_plane.json").write_text(json.dumps({"plane": [0.0, 0.0, 1.0, 0.0]}))
    return folder


def table_top(rng: np.random.Generator, size: int = 512) -> Array:
    """A table top: smooth streaks of bluish grey, seamless at its borders."""
    coarse = gaussian_filter(rng.normal(size=(size, size)), (30, 4), mode="wrap")
    fine = gaussian_filter(rng.normal(size=(size, size)), 2.0, mode="wrap")
    level = 0.6 + 0.06 * coarse / coarse.std() + 0.03 * fine / fine.std()
    return (255 * np.clip(level[..., None] * np.array([0.78, 0.88, 0.95]), 0, 1)).astype(np.uint8)
