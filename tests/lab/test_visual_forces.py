"""Visual forces on several bodies: each is pulled to where the images show it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.world import State
from instep.lab.visual_forces import VisualForces
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.scene.folder import Scene
from instep.twin import CameraRig, FilterOptions, PoseFilter
from instep.twin.camera_rig import IMAGES
from instep.twin.scene_bodies import load_starts

XML = """
<mujoco><option timestep="0.004"/>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/></visual>
  <worldbody>
    <geom type="plane" size="2 2 0.1" rgba="0.75 0.75 0.72 1"/>
    <camera name="left" pos="-0.35 -0.5 0.6" xyaxes="0.82 -0.57 0 0.4 0.57 0.72"/>
    <camera name="right" pos="0.45 -0.45 0.6" xyaxes="0.71 0.71 0 -0.45 0.45 0.77"/>
    <body name="brick" pos="-0.1 0 0.03"><freejoint/>
      <geom type="box" size="0.05 0.035 0.03" mass="0.2" rgba="0.55 0.2 0.15 1"/></body>
    <body name="can" pos="0.1 0.03 0.05"><freejoint/>
      <geom type="cylinder" size="0.03 0.05" mass="0.2" rgba="0.2 0.3 0.35 1"/></body>
    <body name="lid" pos="0 0.5 0.1"><joint name="lid" axis="1 0 0" range="0 1"/>
      <geom type="box" size="0.1 0.1 0.01"/></body>
  </worldbody>
</mujoco>
"""
OFF = {"brick": (0.006, 0.003), "can": (-0.004, 0.006)}


def table(folder: Path, objects: str) -> Scene:
    (folder / "scene.xml").write_text(XML)
    cameras = "".join(f"[cameras.{name}]\nwidth = 320\nheight = 240\n" for name in ("left", "right"))
    (folder / "scene.toml").write_text(
        f'model = "scene.xml"\nrate = 50.0\n[robot]\njoints = []\n[objects]\n{objects}\n{cameras}'
    )
    return Scene.load(folder)


def test_each_body_is_pulled_to_where_the_images_show_it(tmp_path: Path, opengl: str) -> None:
    scene = table(tmp_path, 'bodies = ["brick", "can"]')
    (q, v), renderer = scene.start(0), MujocoRenderer(scene)
    cameras = tuple(scene.cameras.values())

    def seen(t: float) -> dict[str, np.ndarray]:
        images = {IMAGES + camera.name: renderer.render(q, camera) for camera in cameras}
        return images | {f"{name}.stamp": np.asarray(t) for name in images}

    start = tmp_path / "start.json"
    start.write_text('{"brick": {"pose": [-0.1, 0, 0.03, 1, 0, 0, 0]}, "can": {"pose": [0.1, 0.03, 0.05, 1, 0, 0, 0]}}')
    finder = PoseFilter(scene, CameraRig.automatic(scene, cameras), FilterOptions(starts=load_starts(start)))
    forces = VisualForces(finder)
    found = forces.begin(State(0.0, q, v, {}), seen(0.0))
    away = q.copy()
    for body, off in OFF.items():
        i = scene.spec.q.labels.index(f"{body}.x")
        away[i : i + 2] += off
    found = forces(found.memory, State(0.02, away, v, {}), seen(0.02), 0.02)
    renderer.close()
    assert found.wrench is not None
    model = open_world(scene).scene.model
    for body, off in OFF.items():
        pull = found.wrench[model.body(body).id - 1, :2]
        home = -np.array(off) / np.hypot(*off)
        assert pull @ home > 0.7 * np.linalg.norm(pull) > 0, (body, pull)
        assert found.log[f"{body}.force"] > 0
        assert found.log[f"{body}.residual"] > 0
    assert set(forces.logged) == set(found.log)


def test_bodies_on_joints_are_refused(tmp_path: Path) -> None:
    scene = table(tmp_path, 'bodies = ["brick"]\njointed = ["lid"]')
    rig = CameraRig(tuple(scene.cameras.values()))
    with pytest.raises(BadInput, match="'lid' is on a joint; use --correct pose"):
        VisualForces(PoseFilter(scene, rig))
