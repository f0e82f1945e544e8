"""A recording of one camera: a textured body is followed from a given start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.poses import angle_between, quat_exp
from instep.core.world import Array, Channel, vector
from instep.data.frames import encode_png
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.scene.folder import Scene
from instep.twin import TwinOptions, track_recording
from instep.twin.camera_rig import IMAGES

ROWS, RATE = 40, 30.0
XML = """
<mujoco><option timestep="0.0111111111" gravity="0 0 0"/>
  <visual>
    <global offwidth="640" offheight="480"/>
    <headlight ambient="0.6 0.6 0.6" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="print" type="cube" file="print.png"/><material name="print" texture="print"/>
    <texture name="wall" type="2d" file="print.png"/><material name="wall" texture="wall" texrepeat="6 6"/>
  </asset>
  <worldbody>
    <geom type="box" size="2 2 0.01" pos="0 0 -1" {wall}/>
    <camera name="webcam" pos="0 0 0.6" fovy="{fovy}" resolution="640 480"/>
    <body name="box"><freejoint/><geom type="box" size="0.09 0.06 0.03" material="print"/></body>
  </worldbody>
</mujoco>
"""


def scene_of(folder: Path, fovy: float, wall: str = 'rgba="0.35 0.4 0.45 1"') -> Scene:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(4)
    patches = np.kron(rng.integers(40, 230, (24, 24, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    (folder / "print.png").write_bytes(encode_png(patches))
    (folder / "scene.xml").write_text(XML.format(fovy=fovy, wall=wall))
    (folder / "scene.toml").write_text(
        f'model = "scene.xml"\nrate = {RATE}\n[objects]\nbodies = ["box"]\n[cameras.webcam]\n'
    )
    return Scene.load(folder)


def film(scene: Scene, q: Array) -> Episode:
    """A recording of the body at poses [rows, 7]."""
    renderer, noise = MujocoRenderer(scene), np.random.default_rng(0)
    images = np.stack([np.asarray(renderer.render(row, scene.cameras["webcam"])) for row in q]).astype(int)
    images = np.clip(images + noise.integers(-3, 4, images.shape), 0, 255).astype(np.uint8)
    renderer.close()
    channel = Channel(("height", "width", "channels"), "", images.shape[1:], "uint8")
    spec = replace(scene.spec, q=vector(()), v=vector(()), observation={IMAGES + "webcam": channel})
    none = np.zeros((len(q), 0))
    columns = {"timestamp": np.arange(len(q)) / RATE, "q": none, "v": none, "action": none, IMAGES + "webcam": images}
    return Episode(spec, columns)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory, opengl) -> tuple[Scene, Episode, Array]:
    """The scene, a recording and the true poses."""
    scene = scene_of(tmp_path_factory.mktemp("one_camera") / "scene", 45.0)
    t = np.arange(ROWS) / RATE
    q = np.zeros((ROWS, 7))
    q[:, 0], q[:, 1], q[:, 2] = 0.05 * np.sin(2 * t), 0.03 * np.sin(3 * t), 0.08 * np.sin(2.5 * t)
    q[:, 3:] = quat_exp(np.stack([0.3 * np.sin(2 * t), 0.3 * np.sin(1.5 * t), 0.3 * np.sin(t)], axis=1))
    return scene, film(scene, q), q


def tracked_from(start: dict[str, object], filmed: tuple[Scene, Episode, Array], folder: Path):
    path = folder / "start.json"
    path.write_text(json.dumps({"box": start}))
    return track_recording(filmed[0], filmed[1], TwinOptions(residual="learned", start=path))


def test_a_start_by_points_or_by_a_pose_is_followed_by_one_camera(filmed, tmp_path: Path) -> None:
    scene, _, q = filmed
    camera = scene.cameras["webcam"]
    corners = np.array([[x, y, z] for x in (-0.09, 0.09) for y in (-0.06, 0.06) for z in (-0.03, 0.03)])
    pixels = camera.project((corners - camera.body_from_camera[:3, 3]) @ camera.body_from_camera[:3, :3])
    clicked = [[*corner, *pixel] for corner, pixel in zip(corners.tolist(), pixels.tolist(), strict=True)]
    for start in ({"camera": "webcam", "points": clicked}, {"pose": q[0].tolist()}):
        tracked = tracked_from(start, filmed, tmp_path)
        turned = np.degrees(angle_between(tracked.poses[:, 3:], q[:, 3:]))
        assert np.median(np.linalg.norm(tracked.poses[:, :2] - q[:, :2], axis=1)) < 3e-3 and np.median(turned) < 1.5


def test_a_box_that_turns_is_followed_before_a_plain_wall_and_before_one_with_its_own_print(tmp_path: Path, opengl):
    t = np.arange(45) / RATE
    q = np.zeros((len(t), 7))
    q[:, 0], q[:, 2] = 0.08 * np.sin(2 * t), 0.05 * np.sin(2.5 * t)
    q[:, 3:] = quat_exp(1.2 * t[:, None] * np.array([0.6, 0.7, 0.39]))
    off = np.array([1e-3, -5e-4, 2e-3, 0, 0, 0, 0.004])
    walls = {"plain": 'rgba="0.75 0.75 0.72 1"', "printed": 'material="wall"', "printed, start off": 'material="wall"'}
    for name, wall in walls.items():
        scene = scene_of(tmp_path / name, 45.0, wall)
        start = q[0] + (off if "off" in name else 0.0)
        tracked = tracked_from({"pose": start.tolist()}, (scene, film(scene, q), q), tmp_path)
        turned = np.degrees(angle_between(tracked.poses[:, 3:], q[:, 3:]))
        far = 1e3 * np.linalg.norm(tracked.poses[:, :3] - q[:, :3], axis=1)
        assert np.median(turned) < 1 and turned.max() < 5 and far.max() < 15, (name, turned.max(), far.max())
