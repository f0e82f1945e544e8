"""Virtual cameras: images from what sensors measure, static or on the robot, from demonstrations to evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from instep import MujocoWorld, stack
from instep.app.cli import main
from instep.core.errors import InstepError
from instep.core.rollout import Constant, rollout
from instep.data import load_episodes
from instep.robot import Late
from instep.scene.folder import Scene
from instep.splat.rendered_world import Sensor, load_rendered_cameras
from instep.splat.rendering import gaussians_from_geoms

SHAPES = """<mujoco>
  <asset><mesh name="wedge" vertex="0 0 0  .1 0 0  0 .1 0  0 0 .1"/></asset>
  <worldbody>
    <geom type="plane" size=".5 .5 .1" rgba=".2 .2 .2 1"/>
    <body name="box" pos="0 0 .05"><freejoint/><geom type="box" size=".05 .04 .03" rgba="1 0 0 1"/></body>
    <body name="ball" pos=".2 0 .05"><freejoint/><geom type="sphere" size=".05" rgba="0 1 0 1"/></body>
    <body name="can" pos="0 .2 .05"><freejoint/><geom type="cylinder" size=".03 .05" rgba="0 0 1 1"/></body>
    <body name="pill" pos="0 -.2 .1"><freejoint/><geom type="capsule" size=".03 .05"/></body>
    <body name="egg" pos="-.2 0 .1"><freejoint/><geom type="ellipsoid" size=".03 .04 .05"/></body>
    <body name="rock" pos="-.2 .2 .1"><freejoint/><geom type="mesh" mesh="wedge"/></body>
    <body name="ghost" pos="-.2 -.2 .1"><freejoint/><geom type="box" size=".1 .1 .1" group="3"/></body>
  </worldbody>
</mujoco>"""
ABOVE = "at = [0.46, 0.33, 0.75]\ntowards = [0.46, 0.33, 0.0]\nup = [0.0, 1.0, 0.0]\nangle = 44\nsize = [64, 64]\n"
RIDING = 'body = "pusher"\nat = [0.0, 0.0, 0.3]\ntowards = [0.0, 0.0, 0.0]\nup = [0.0, 1.0, 0.0]\nangle = 100\n'


@pytest.fixture
def cameras(tmp_path) -> Path:
    path = tmp_path / "cameras.toml"
    path.write_text(f"[static]\n{ABOVE}[gripper]\n{RIDING}")
    return path


def where_orange(image: np.ndarray) -> np.ndarray:
    """Row and column of the middle of what is orange."""
    red = image.astype(float)
    return np.argwhere((red[..., 0] > 180) & (red[..., 2] < 90)).mean(axis=0)


def test_every_kind_of_shape_is_painted_onto_its_body(tmp_path):
    path = tmp_path / "shapes.xml"
    path.write_text(SHAPES)
    gaussians = gaussians_from_geoms(Scene.load(path))
    assert set(gaussians.names) == {"world", "box", "ball", "can", "pill", "egg", "rock"}, "group 3 is not shown"
    ball = gaussians.on("ball")
    assert np.allclose(np.linalg.norm(ball.means, axis=1), 0.05), "Gaussians lie on the surface"
    assert np.ptp(gaussians.on("box").means, axis=0) == pytest.approx([0.1, 0.08, 0.06], abs=1e-9)
    assert (ball.colours[:, 1] > 0.6).all() and np.allclose(ball.colours[:, 0], 0)
    assert np.abs(gaussians.on("pill").means).max() == pytest.approx(0.08, abs=2e-3)
    flat = ball.scales.argmin(axis=1)
    assert (flat == 2).all(), "and are as flat as it"


def test_a_static_camera_sees_the_block_where_it_lies(cameras):
    world = load_rendered_cameras(cameras, Scene.load("pusht"), ("static",)).on(MujocoWorld(Scene.load("pusht")))
    state = stack([world.reset(seed) for seed in range(3)])
    images = world.observe(state)["observation.images.static"]
    assert images.shape == (3, 64, 64, 3) and images.dtype == np.uint8
    focal = 32 / np.tan(np.radians(22))
    for image, (x, y) in zip(images, state.q[:, 2:4], strict=True):
        row, column = where_orange(image)
        assert column == pytest.approx(32 + focal * (x - 0.46) / 0.72, abs=2.5)
        assert row == pytest.approx(32 - focal * (y - 0.33) / 0.72, abs=2.5)


def test_a_camera_on_the_stick_rides_with_it(cameras):
    scene = Scene.load("pusht")
    world = load_rendered_cameras(cameras, scene).on(MujocoWorld(scene))
    q, v = scene.start(0)
    moved = q.copy()
    moved[1] += 0.05  # the stick goes up in the image of a camera that looks down, so the block goes down
    before, after = (world.observe(world.place(where, v)) for where in (q, moved))
    rows = [where_orange(seen["observation.images.gripper"])[0] for seen in (before, after)]
    assert rows[1] - rows[0] > 3
    assert before["observation.images.gripper"] is before["observation.images.gripper"], "rendered once"
    assert set(before) == set(world.spec.observation)


def test_images_show_what_sensors_measure_and_not_the_true_state(cameras):
    scene = Scene.load("pusht")
    late = load_rendered_cameras(cameras, scene, ("gripper",)).on(Late(MujocoWorld(scene), observation=3))
    state = first = late.reset(0)
    for _ in range(3):
        state = late.step(state, scene.rest_action() + 0.2)
    name = "observation.images.gripper"
    assert np.array_equal(late.observe(state)[name], late.observe(first)[name])
    state = late.step(state, scene.rest_action() + 0.2)
    assert not np.array_equal(late.observe(state)[name], late.observe(first)[name])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nat = [0, 0, 1]\ntowards = [0, 0, 0]\n", "looks nowhere, or along its 'up'"),
        ("[a]\nat = [0, 0]\ntowards = [0, 0, 0]\n", "at of camera 'a' in cameras.toml must be a point"),
        ("[a]\nat = [0, 1, 0]\n", "towards of camera 'a' in cameras.toml must be a point"),
        (f"[a]\nbody = 'arm'\n{ABOVE}", "no body named 'arm'"),
        (f"[a]\n{ABOVE}fov = 3\n", "no entry of camera 'a' in cameras.toml named 'fov'"),
        (f"[a]\n{ABOVE.replace('44', '170')}", "must be 1 to 150 degrees"),
        (f"[a]\n{ABOVE.replace('[64, 64]', '[64, 4.5]')}", "must be [width, height] in pixels"),
        ("gaussians = 'none.ply'\n[a]\n" + ABOVE, "There is no file"),
        ("a = 3\n", "'a' in cameras.toml is no camera"),
        ("", "describes no camera"),
        ("[a\n", "is not valid TOML"),
    ],
)
def test_a_file_of_cameras_that_makes_no_sense_is_refused_in_one_sentence(text, said, tmp_path):
    path = tmp_path / "cameras.toml"
    path.write_text(text)
    with pytest.raises(InstepError) as error:
        load_rendered_cameras(path, Scene.load("pusht"))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_scan_takes_the_place_of_geoms(cameras, tmp_path):
    from instep.splat.gaussian_files import save_gaussians

    scene = Scene.load("pusht")
    save_gaussians(tmp_path / "tee.glb", gaussians_from_geoms(scene).on("tee"))
    cameras.write_text(f"gaussians = 'tee.glb'\n[static]\n{ABOVE}")
    gaussians = load_rendered_cameras(cameras, scene).layers.gaussians
    assert set(gaussians.names) == {"world", "tee", "pusher"}, "moving bodies that were not scanned are shown too"
    assert len(gaussians.on("tee")) == len(gaussians_from_geoms(scene).on("tee"))


def test_the_appearance_of_rendered_images_is_sampled_for_every_episode(cameras, tmp_path, capsys):
    words = ["eval", "expert", "pusht", "--seeds", "2", "--videos", "0", "--randomize", "appearance"]
    assert main([*words, "--out", str(tmp_path / "blind")]) == 2
    assert "needs cameras" in capsys.readouterr().err
    scene = Scene.load("pusht")
    rendered = load_rendered_cameras(cameras, scene, ("static",))
    run = rollout(MujocoWorld(scene), Constant(scene.rest_action()), steps=3)
    plain, dim = (rendered.add_images(run, sensor)["observation.images.static"] for sensor in (None, Sensor(gain=0.5)))
    np.testing.assert_allclose(dim, 0.5 * plain, atol=1.0)
    noisy = [rendered.add_images(run, Sensor().adjusted({"appearance.noise": 5.0}), seed) for seed in (0, 0, 1)]
    frames = [episode["observation.images.static"] for episode in noisy]
    np.testing.assert_array_equal(frames[0], frames[1])
    assert (frames[0] != frames[2]).any() and (frames[0][0] != frames[0][1]).any()


def test_from_demonstrations_to_a_policy_that_is_taught_and_judged_by_virtual_cameras(tmp_path, capsys, torch):
    sight = tmp_path / "so101.toml"
    sight.write_text(
        "[static]\nat = [0.6, 0.3, 0.5]\ntowards = [0.15, 0.0, 0.1]\nsize = [32, 32]\n"
        '[hand]\nbody = "gripper"\nat = [0.0, -0.1, 0.0]\ntowards = [0.0, 0.0, -0.1]\nsize = [32, 32]\n'
    )
    virtual, task = ["--virtual", str(sight)], ["--task", "reach"]
    assert (
        main(["lab", "augment", "expert", "so101", *task, *virtual, "--demos", "2", "--out", str(tmp_path / "shown")])
        == 0
    )
    data = tmp_path / "shown/demonstrations"
    assert capsys.readouterr().out.strip() == str(data)
    shown = load_episodes(data)[0].spec.observation
    assert {"observation.images.static", "observation.images.hand"} <= set(shown)
    small = ["--steps", "6", "--batch", "8", "--width", "16", "--threads", "1"]
    policy, anew = tmp_path / "policy", ["--virtual", str(sight), "--scene", "so101"]
    assert main(["train", str(data), str(tmp_path / "no_images"), "--cameras", "hand", *small]) == 0
    assert main(["train", str(data), str(policy), "--cameras", "hand", *anew, "--randomize", "appearance", *small]) == 0
    assert main(["train", str(data), str(tmp_path / "none"), "--cameras", "hand", *virtual, *small]) == 2
    assert "--virtual needs --scene" in capsys.readouterr().err
    judged = ["eval", str(policy), "so101", *task, "--seeds", "2", "--videos", "0"]
    assert main([*judged, *virtual, "--randomize", "appearance", "--out", str(tmp_path / "judged")]) == 0
    assert json.loads((tmp_path / "judged/result.json").read_text())["infrastructure_failures"] == {
        f"{policy} in mujoco": 0
    }
    capsys.readouterr()
    assert main([*judged, "--out", str(tmp_path / "bare")]) == 2
    assert "no camera named 'hand'" in capsys.readouterr().err
    assert main([*judged, *virtual, "--cameras", "foot", "--out", str(tmp_path / "foot")]) == 2
    assert "no camera in so101.toml named 'foot'" in capsys.readouterr().err
    words = ["lab", "augment", str(policy), "so101", str(data), *task, *virtual, "--demos", "1", "--tries", "2"]
    assert main([*words, "--seeds", "1", "--steps", "2", "--out", str(tmp_path / "taught")]) == 0
    assert "observation.images.hand" in load_episodes(tmp_path / "taught/demonstrations")[0].spec.observation
