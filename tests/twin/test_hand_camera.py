"""A camera on the robot's hand: its images are taken from where the joints had it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import transform
from instep.core.world import Array, Channel, State, vector
from instep.data.frames import encode_png
from instep.lab.visual_forces import VisualForces
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.scene.camera import standing
from instep.scene.folder import Scene
from instep.twin import CameraRig, FilterOptions, PoseFilter, track_recording
from instep.twin.camera_frames import ImageFault
from instep.twin.camera_rig import IMAGES
from instep.twin.scene_bodies import StartPose

ROWS, RATE, LATE = 50, 50.0, 0.03
XML = """
<mujoco><compiler angle="radian"/><option timestep="0.005"/>
  <visual>
    <global offwidth="480" offheight="360"/>
    <headlight ambient="0.6 0.6 0.6" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="print" type="cube" file="print.png"/><material name="print" texture="print"/>
    <texture name="cloth" type="2d" file="print.png"/><material name="cloth" texture="cloth" texrepeat="3 3"/>
  </asset>
  <worldbody>
    <geom type="plane" size="1 1 0.1" material="cloth"/>
    <body name="stand" pos="0.3 0 0.6" euler="0 0 0.4">
      <camera name="fixed" pos="0.02 0 0" euler="0 0.45 0" fovy="45" resolution="480 360"/>
      <body name="hand" pos="-0.3 0 -0.05">
        <joint name="swing" axis="0 1 0" range="-1 1" damping="5"/>
        <joint name="roll" axis="1 0 0" range="-1 1" damping="5"/>
        <geom size="0.02" pos="0 0 0.05" mass="1"/>
        <camera name="wrist" pos="0 0 -0.03" fovy="55" resolution="480 360"/>
      </body>
    </body>
    <body name="box" pos="0.02 0.03 0.03"><freejoint/><geom type="box" size="0.06 0.04 0.03" material="print"/></body>
  </worldbody>
  <actuator><position name="swing" joint="swing" kp="100"/><position name="roll" joint="roll" kp="100"/></actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("hand")
    patches = np.kron(np.random.default_rng(4).integers(40, 230, (12, 12, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    (folder / "print.png").write_bytes(encode_png(patches))
    (folder / "scene.xml").write_text(XML)
    (folder / "scene.toml").write_text(
        f'model = "scene.xml"\nrate = {RATE}\n[robot]\njoints = ["swing", "roll"]\n[objects]\nbodies = ["box"]\n'
        "[cameras.wrist]\n[cameras.fixed]\n"
    )
    return Scene.load(folder)


def truth(scene: Scene, t: Array) -> Array:
    """Positions at some times: the hand swings, the box slides and turns on the table; both rest before."""
    t = np.maximum(t, 0.0)
    q = np.tile(scene.start(0)[0], (len(t), 1))
    q[:, 0], q[:, 1] = 0.12 * (1 - np.cos(3 * t)), 0.1 * (np.cos(4 * t) - 1)
    at = int(scene.spec.q.labels.index("box.x"))
    q[:, at] += 0.04 * (1 - np.cos(2 * t))
    q[:, at + 3], q[:, at + 6] = np.cos(0.25 * t), np.sin(0.25 * t)
    return q


@pytest.mark.parametrize("name", ["wrist", "fixed"])
def test_a_body_is_followed_by_a_camera_on_the_hand_and_by_one_on_a_stand(scene: Scene, name: str, opengl) -> None:
    t = np.arange(ROWS) / RATE
    q, taken = truth(scene, t), truth(scene, t - LATE)
    renderer, sim, at = MujocoRenderer(scene), open_world(scene), scene.spec.q.labels.index("box.x")
    start = {"box": StartPose(transform(truth(scene, np.array([-LATE]))[0, at : at + 7]))}
    rig = CameraRig(standing(scene.model, [scene.cameras[name]]))
    finder = PoseFilter(scene, rig, FilterOptions(starts=start))

    def seen(row: int) -> dict[str, Array]:
        stamp = np.asarray(t[row] - LATE)
        return {IMAGES + name: renderer.render(taken[row], scene.cameras[name]), IMAGES + name + ".stamp": stamp}

    found, far, faults = finder.begin(State(0.0, q[0], np.zeros(scene.model.nv), {}), seen(0)), [], []
    for row in range(1, ROWS):
        state = sim.step(sim.place(found.q, found.v, t[row - 1]), q[row, :2])
        joints = np.concatenate([q[row, :2], state.q[2:]])  # a twin's joints are the measured ones
        found = finder(found.memory, State(t[row], joints, state.v, {}), seen(row), float(t[row]))
        far.append(1e3 * np.linalg.norm(found.q[at : at + 2] - q[row, at : at + 2]))
        faults.append(found.log[f"{name}.fault"])
    renderer.close()
    assert np.median(far) < 3 and max(far) < 10, (np.median(far), max(far))
    assert set(faults) == {float(ImageFault.NONE)}


def test_a_moving_camera_is_refused_where_nothing_says_where_it_was(scene: Scene) -> None:
    rig = CameraRig((scene.cameras["wrist"],))
    with pytest.raises(BadInput, match="joints are unknown"):
        PoseFilter(scene, rig, FilterOptions(joints_known=False))
    with pytest.raises(BadInput, match="fixed in the world"):
        VisualForces(PoseFilter(scene, rig))
    shown = {IMAGES + "wrist": Channel(("height", "width", "channels"), "", (360, 480, 3), "uint8")}
    spec = replace(scene.spec, q=vector(()), v=vector(()), action=vector(()), observation=shown)
    none, images = np.zeros((1, 0)), np.zeros((1, 360, 480, 3), np.uint8)
    columns = {"timestamp": np.zeros(1), "q": none, "v": none, "action": none, IMAGES + "wrist": images}
    with pytest.raises(BadInput, match=r"'wrist' moves with 'hand'.*--cameras"):
        track_recording(scene, Episode(spec, columns))
