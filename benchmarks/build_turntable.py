"""Rendered views of scanned objects on a turntable before fixed cameras, as captures to build scenes from.

Lamps, the floor and the wall stand still while the table turns; the poses are given as if the cameras had moved around
the table.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np

from build_scans import scan_mesh, table_top, write_views
from instep.core.world import Array
from instep.data.frames import encode_png
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.camera_files import camera_element
from instep.scene.folder import Scene

SIZE, FIELD_DEG = (480, 360), 40.0
_XML = """
<mujoco>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0 0 0" specular="0 0 0"/>
    <quality shadowsize="2048" offsamples="4"/><global offwidth="{width}" offheight="{height}"/>
    <map znear="0.01" zfar="50"/></visual>
  <asset><mesh name="scan" file="model.obj"/><texture name="scan" type="2d" file="texture.png"/>
    <material name="scan" texture="scan" specular="0" shininess="0"/>
    <texture name="disc" type="2d" file="disc.png"/>
    <material name="disc" texture="disc" specular="0"/>
    <texture name="room" type="2d" file="room.png"/>
    <material name="room" texture="room" texrepeat="{repeat} {repeat}" texuniform="true" specular="0"/>
  </asset>
  <worldbody>
    <light pos="0.3 0.5 2" dir="-0.15 -0.2 -1" diffuse="0.45 0.45 0.45" specular="0 0 0" castshadow="true"/>
    <light pos="-1 -1 2" dir="0.4 0.4 -1" diffuse="0.25 0.25 0.25" specular="0 0 0" castshadow="false"/>
    <geom type="plane" pos="0 0 {floor}" size="20 20 .1" material="room"/>
    <geom type="plane" pos="{wall} 0 0" size="20 20 .1" zaxis="1 0 0" material="room"/>
    <body name="turn"><joint name="turn" type="hinge" axis="0 0 1"/>
      <geom type="cylinder" pos="0 0 {under}" size="{radius} {thick}" material="disc"/>
      <geom type="mesh" mesh="scan" material="scan"/></body>
    {cameras}
  </worldbody>
</mujoco>
"""


def render_turntable(
    scan: Path, folder: Path, top: str, heights_deg: tuple[float, ...], count: int = 24, seed: int = 0
) -> Path:
    """The folder of a capture: a camera at each height, before which the table turns once around."""
    rng = np.random.default_rng((seed, 0x7EA))
    mesh, model = scan_mesh(scan), folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    fixed = [_camera(f"fixed{k}", mesh.bounds, degrees) for k, degrees in enumerate(heights_deg)]
    radius = 1.25 * float(np.linalg.norm(mesh.vertices[:, :2], axis=1).max())
    for name in ("model.obj", "texture.png"):
        (model / name).write_bytes((scan / name).read_bytes())
    (model / "disc.png").write_bytes(encode_png(disc_top(top, rng)))
    (model / "room.png").write_bytes(encode_png(table_top(rng)))
    text = _XML.format(
        width=SIZE[0], height=SIZE[1], repeat=f"{1 / mesh.diagonal:.4g}", floor=-0.4 * mesh.diagonal,
        wall=-2.5 * mesh.diagonal, radius=radius, thick=0.02 * mesh.diagonal, under=-0.02 * mesh.diagonal,
        cameras="".join(ET.tostring(camera_element(camera), encoding="unicode") for camera in fixed),
    )  # fmt: skip
    (model / "scan.xml").write_text(text)
    scene = Scene.load(model / "scan.xml")
    renderer = MujocoRenderer(scene)
    cameras, images = list[Camera](), list[Array]()
    for k, camera in enumerate(fixed):
        for angle in np.arange(count // len(fixed)) * 2 * np.pi / (count // len(fixed)) + 0.1 * k:
            image = renderer.render(np.array([angle]), scene.cameras[camera.name]).astype(float)
            images.append(np.clip(image + rng.normal(0.0, 2.0, image.shape), 0, 255).astype(np.uint8))
            cameras.append(_moved(camera, f"v{len(cameras):02d}", float(angle)))
    renderer.close()
    return write_views(folder / "views", cameras, images)


def disc_top(kind: str, rng: np.random.Generator, size: int = 512) -> Array:
    """The top of a turntable: white, wood, or printed with squares of four greys."""
    if kind == "white":
        return np.full((size, size, 3), 225, np.uint8)
    if kind == "wood":
        streaks = table_top(rng, size).astype(float).mean(axis=-1)[..., None]
        return np.clip(streaks * np.array([1.15, 0.85, 0.6]), 0, 255).astype(np.uint8)
    squares = np.kron(rng.choice([40, 100, 170, 230], (16, 16)), np.ones((size // 16, size // 16)))
    return np.repeat(squares[..., None], 3, axis=2).astype(np.uint8)


def _camera(name: str, bounds: Array, degrees: float) -> Camera:
    """A camera at a height that looks at the middle of an object on the axis of the table, along -x."""
    middle, diagonal = np.array([0.0, 0.0, bounds[:, 2].mean()]), float(np.linalg.norm(bounds[1] - bounds[0]))
    plain = pinhole(name, SIZE, FIELD_DEG)
    distance, up = 0.65 * diagonal / np.tan(np.radians(FIELD_DEG) / 2 * SIZE[1] / SIZE[0]), np.radians(degrees)
    eye = middle + distance * np.array([np.cos(up), 0.0, np.sin(up)])
    return Camera(name, *SIZE, plain.focal, plain.centre, "world", look_at(eye, middle))


def _moved(camera: Camera, name: str, angle: float) -> Camera:
    """Where a fixed camera is, seen from a table that turned by an angle."""
    back = np.eye(4)
    back[:2, :2] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return Camera(name, *SIZE, camera.focal, camera.centre, "world", back @ camera.body_from_camera)
