"""The simulated robot in its own process, as `instep robot` starts it."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest

from instep import Constant, MujocoWorld, Scene, rollout
from instep.app.cli import main
from instep.app.side_process import robot_process
from instep.app.verbs.robot import SensorDriver
from instep.core.errors import LinkLost
from instep.evaluate.perturbed_robot import Perturbation, hidden_settings, simulate_robot
from instep.robot import RobotWorld, WorldDriver

pytestmark = pytest.mark.realtime


def test_a_policy_runs_on_the_simulated_robot_as_in_the_simulator():
    scene = Scene.load("pusht")
    policy = Constant(scene.rest_action() + 0.05)
    with (
        robot_process("pusht", ["--hidden", "5", "--pace", "step"]) as child,
        RobotWorld(child.address, child.token) as robot,
    ):
        real = rollout(robot, policy, steps=60, seed=2)
        again = rollout(robot, policy, steps=60, seed=2)
    virtual = rollout(MujocoWorld(scene), policy, steps=60, seed=2)
    assert real.spec.q.labels == virtual.spec.q.labels
    assert np.array_equal(real.q, again.q), "in step pace a run is repeatable"
    # Another engine and other parameters, but the same command: both end near it.
    assert np.abs(real.q[-1, :2] - virtual.q[-1, :2]).max() < 0.01 < np.abs(real.q - virtual.q)[:30].max() + 0.02


def test_a_robot_keeps_its_token_in_a_file_that_only_its_owner_reads(tmp_path):
    kept = tmp_path / "token.txt"
    for _ in range(2):  # the second robot takes the token that the first one wrote
        with robot_process("cartpole", ["--pace", "step", "--token", str(kept)]) as child:
            assert kept.read_text().strip() == child.token and kept.stat().st_mode & 0o077 == 0
            with RobotWorld(child.address, kept.read_text().strip()) as robot:
                assert robot.reset(0).t == 0
    kept.write_text("")
    assert main(["robot", "cartpole", "--token", str(kept)]) == 2


def test_the_real_pace_is_kept():
    with (
        robot_process("cartpole", ["--hidden", "1", "--pace", "real"]) as child,
        RobotWorld(child.address, child.token) as robot,
    ):
        state = robot.reset(0)
        begin = time.monotonic()
        for _ in range(250):
            state = robot.step(state, np.zeros(1))
        took = time.monotonic() - begin
    # One second of a 250 Hz robot; a loaded machine may lose periods but never gain them.
    assert 0.9 < took < 20


def test_a_killed_simulated_robot_is_missed_in_a_sentence():
    with (
        robot_process("cartpole", ["--pace", "step"]) as child,
        RobotWorld(child.address, child.token, timeout=1.0) as robot,
    ):
        state = robot.step(robot.reset(0), np.zeros(1))
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(LinkLost) as caught:
            for _ in range(5):
                state = robot.step(state, np.zeros(1))
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_hidden_is_revealed_only_to_a_file(tmp_path):
    reveal = tmp_path / "truth.json"
    with robot_process("so101", ["--hidden", "3", "--reveal", str(reveal)]):
        pass
    truth = json.loads(reveal.read_text())
    assert truth == pytest.approx(hidden_settings(Scene.load("so101"), 3))
    assert 0.015 <= truth["action.delay"] <= 0.06


def test_sensors_tell_less_than_the_simulation_knows():
    scene = Scene.load("pusht")
    driver = SensorDriver(WorldDriver(simulate_robot(scene, Perturbation(engine="mujoco", hidden=2, noise=0.01)).world))
    driver.reset(0)
    for _ in range(5):
        driver.write(scene.rest_action() + 0.05)
    reading = driver.read()
    assert np.array_equal(reading.q[:2], reading.seen["observation.state"])
    clean = SensorDriver(WorldDriver(simulate_robot(scene, Perturbation(engine="mujoco", hidden=2, noise=0.0)).world))
    clean.reset(0)
    for _ in range(5):
        clean.write(scene.rest_action() + 0.05)
    assert 0.0005 < np.abs(reading.q[:2] - clean.read().q[:2]).max() < 0.05


def test_a_scene_without_motors_cannot_be_a_simulated_robot(capsys):
    assert main(["robot", "cube"]) == 2
    assert "no actuators" in capsys.readouterr().err


def test_a_simulated_robot_that_does_not_start_says_why():
    with pytest.raises(LinkLost, match="no scene named"), robot_process("nowhere"):
        pass


def test_a_rate_that_cameras_cannot_have_is_refused(capsys):
    assert main(["robot", "pusht", "--cameras", "all", "--camera-rate", "200"]) == 2
    assert "up to 60 images per second" in capsys.readouterr().err


def test_the_compiled_lens_shows_what_the_plain_one_does(opengl):
    from dataclasses import replace

    from instep.app.verbs.robot import Lens
    from instep.evaluate.perturbed_robot import distorted
    from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer

    scene = Scene.load("pusht")
    plain = next(iter(scene.cameras.values()))
    camera, effects = distorted(plain, -0.04), ImageEffects(0.9, (1.0, 0.95, 1.02), 0.0)
    q, _ = scene.start(0)
    expected = MujocoRenderer(scene).render(q, camera, effects, 0)
    clean = MujocoRenderer(scene).render(q, replace(plain, distortion=()))
    shown = Lens(camera, effects, 0).apply(clean, 0)
    inside = slice(8, -8)  # at the border the plain one is black where no ray comes from
    assert np.abs(shown[inside, inside].astype(int) - expected[inside, inside]).max() <= 2
    noisy = Lens(camera, replace(effects, sigma=3.0), 0)
    assert 2.5 < (noisy.apply(clean, 1).astype(int) - shown).std() < 3.2
    assert not np.array_equal(noisy.apply(clean, 1), noisy.apply(clean, 2))


def test_cameras_whose_process_was_killed_stop_the_robot_and_come_back_with_a_reset(opengl: str):
    from instep.app.verbs.robot import CameraDriver, RenderJob
    from instep.physics.mujoco_cameras import ImageEffects

    scene = Scene.load("pusht")
    name = next(iter(scene.cameras))
    job = RenderJob(scene="pusht", words=(name,), cameras=(name,), effects=ImageEffects())
    with CameraDriver(WorldDriver(MujocoWorld(scene)), job, scene.cameras) as driver:
        driver.reset(0)
        assert f"observation.images.{name}" in driver.read().seen
        os.kill(driver.filming.side.process.pid, signal.SIGKILL)
        driver.filming.side.process.join()
        with pytest.raises(LinkLost, match="renders the simulated robot's cameras has ended"):
            driver.read()
        driver.reset(1)
        assert f"observation.images.{name}" in driver.read().seen
