"""Drawers and doors: bodies on joints that no sensor measures, found in images and followed."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import pose
from instep.core.world import State
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.scene.folder import Scene
from instep.twin import CameraRig, FilterOptions, PoseFilter
from instep.twin.camera_rig import IMAGES
from instep.twin.pose_solver import motion_between
from instep.twin.scene_bodies import JointedBody, load_starts, tracked_bodies

ROWS, RATE = 40, 50.0
XML = """
<mujoco><compiler angle="radian"/><option timestep="0.004"/>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/></visual>
  <worldbody>
    <geom type="plane" size="2 2 0.1" rgba="0.7 0.7 0.68 1"/>
    <camera name="front" pos="0.9 -0.9 0.9" xyaxes="0.7071 0.7071 0 -0.4 0.4 0.82"/>
    <body name="cabinet" pos="0 0 0.25">
      <geom type="box" size="0.2 0.2 0.01" pos="0 0 0.24" rgba="0.5 0.37 0.25 1"/>
      <geom type="box" size="0.2 0.2 0.01" pos="0 0 -0.24" rgba="0.5 0.37 0.25 1"/>
      <geom type="box" size="0.2 0.01 0.24" pos="0 0.19 0" rgba="0.5 0.37 0.25 1"/>
      <geom type="box" size="0.2 0.01 0.24" pos="0 -0.19 0" rgba="0.5 0.37 0.25 1"/>
      <body name="drawer" pos="0.02 0 0.1">
        <joint name="drawer" type="slide" axis="1 0 0" range="0 0.3" damping="5"/>
        <geom type="box" size="0.01 0.17 0.08" pos="0.19 0 0" rgba="0.75 0.76 0.8 1"/>
        <geom type="box" size="0.18 0.15 0.06" rgba="0.8 0.78 0.7 1"/>
      </body>
      <body name="door" pos="0.2 -0.18 -0.12">
        <joint name="door" type="hinge" axis="0 0 1" ref="0.2" range="-1.3 0.2" damping="0.5"/>
        <geom type="box" size="0.008 0.17 0.1" pos="0.01 0.17 0" rgba="0.3 0.42 0.5 1"/>
      </body>
    </body>
    <body name="box" pos="2 0 0.1"><freejoint/><geom type="box" size="0.05 0.05 0.05"/></body>
    <body name="cart"><joint name="rail" type="slide"/><geom size="0.1"/>
      <body name="flap"><joint name="flap"/><geom size="0.1"/></body>
    </body>
    <body name="free_slide"><joint name="free_slide" type="slide"/><geom size="0.1"/></body>
  </worldbody>
  <actuator><motor joint="rail"/></actuator>
</mujoco>
"""


def cabinet(folder: Path, jointed: str = '"drawer", "door"', robot: str = "") -> Scene:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scene.xml").write_text(XML)
    (folder / "scene.toml").write_text(
        f'model = "scene.xml"\nrate = {RATE}\n[robot]\njoints = [{robot}]\n'
        f"[objects]\njointed = [{jointed}]\n[cameras.front]\n"
    )
    return Scene.load(folder)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return cabinet(tmp_path_factory.mktemp("cabinet"))


def test_a_body_on_a_joint_is_where_the_engine_has_it(scene: Scene) -> None:
    data = mujoco.MjData(scene.model)
    for drawer, door in ((0.0, 0.2), (0.13, -0.7), (0.3, -1.3)):
        data.qpos[:2] = drawer, door
        mujoco.mj_kinematics(scene.model, data)
        for body in tracked_bodies(scene):
            assert isinstance(body, JointedBody)
            T, index = body.transform(data.qpos), scene.model.body(body.name).id
            assert np.allclose(T[:3, 3], data.xpos[index]) and np.allclose(T[:3, :3], data.xmat[index].reshape(3, 3))
            assert body.position(T) == pytest.approx(data.qpos[body.q])


def test_a_motion_of_the_body_moves_its_joint_within_its_range(scene: Scene) -> None:
    q = scene.start(0)[0]
    for body, way in zip(tracked_bodies(scene), (0.05, -0.05), strict=True):
        assert isinstance(body, JointedBody)
        q[body.q] = sum(body.limits) / 2
        T, after = body.transform(q), body.at(np.asarray(q[body.q] + way))
        xi = motion_between(T, after)
        assert body.moved(q, xi)[body.q] == pytest.approx(q[body.q] + way, rel=0.01)
        assert np.allclose(body.moved_poses(pose(T)[None], xi)[0], pose(after), atol=1e-3)
        assert body.moved(q, 1e3 * xi)[body.q] == pytest.approx(body.limits[int(way > 0)])


def test_drawer_and_door_are_found_and_followed_without_a_start(scene: Scene, opengl) -> None:
    away = followed(scene, FilterOptions())
    assert np.median(away[:, 0]) < 2e-3 and away[5:, 0].max() < 8e-3
    assert np.degrees(np.median(away[:, 1])) < 0.7 and np.degrees(away[5:, 1]).max() < 3


def test_a_start_by_joint_positions_is_taken(scene: Scene, opengl, tmp_path: Path) -> None:
    (tmp_path / "start.json").write_text(json.dumps({"drawer": {"joint": 0.05}, "door": {"joint": 0.0}}))
    away = followed(scene, FilterOptions(starts=load_starts(tmp_path / "start.json")))
    assert np.median(away[:, 0]) < 2e-3 and np.degrees(np.median(away[:, 1])) < 0.7


def test_a_door_that_leaves_the_images_unseen_counts_as_lost(scene: Scene, opengl) -> None:
    finder = PoseFilter(scene, CameraRig((scene.cameras["front"],)))
    q, v = scene.start(0)
    blank = np.full((240, 320, 3), 90, np.uint8) + (np.arange(320) % 7).astype(np.uint8)[None, :, None]
    found = finder.begin(State(0.0, q, v, {}), {IMAGES + "front": blank})
    lost = 0.0
    for k in range(1, 15):
        t = k / RATE
        image = np.roll(blank, k, axis=1)
        found = finder(found.memory, State(t, q, v, {}), {IMAGES + "front": image, IMAGES + "front.stamp": t}, t)
        lost = max(lost, found.log["door.frames_lost"])
    assert lost >= 10  # it is said that nothing shows it


def followed(scene: Scene, options: FilterOptions) -> np.ndarray:
    """Errors of drawer [m] and door [rad] in rendered images of both moving."""
    t = np.arange(ROWS) / RATE
    truth = np.tile(scene.start(0)[0], (ROWS, 1))
    truth[:, 0], truth[:, 1] = 0.15 - 0.1 * np.cos(2 * np.pi * t / 3), -0.35 + 0.35 * np.cos(2 * np.pi * t / 3)
    renderer, camera, sim = MujocoRenderer(scene), scene.cameras["front"], open_world(scene)
    finder = PoseFilter(scene, CameraRig.automatic(scene, (camera,)), options)
    q, v = scene.start(0)

    def seen(row: int) -> dict[str, np.ndarray]:
        return {IMAGES + "front": renderer.render(truth[row], camera), IMAGES + "front.stamp": np.asarray(t[row])}

    found, away = finder.begin(State(0.0, q, v, {}), seen(0)), list[np.ndarray]()
    for row in range(1, ROWS):
        state = sim.step(sim.place(found.q, found.v, t[row - 1]), np.zeros(1))
        found = finder(found.memory, State(t[row], state.q, state.v, {}), seen(row), float(t[row]))
        away.append(np.abs(found.q - truth[row])[:2])
    renderer.close()
    return np.array(away)


@pytest.mark.parametrize(
    ("jointed", "robot", "words"),
    [
        ('"box"', "", "one hinge or slide was expected"),
        ('"flap"', "", "which moves too"),
        ('"cart"', '"rail"', "a joint of the robot"),
        ('"free_slide"', "", "has no range"),
    ],
)
def test_other_bodies_are_refused(tmp_path: Path, jointed: str, robot: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        cabinet(tmp_path / "scene", jointed, robot)


def test_an_unknown_body_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="drawr"):
        cabinet(tmp_path / "scene", '"drawr"')


def test_a_named_colour_is_refused(scene: Scene) -> None:
    with pytest.raises(BadInput, match="--residual auto"):
        PoseFilter(scene, CameraRig(()), FilterOptions(residual="mask"))
