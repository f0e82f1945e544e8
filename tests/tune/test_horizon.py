"""Rows that noise of the start alone carries away say nothing about parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.episode import Log
from instep.core.param import Param
from instep.scene.folder import Scene
from instep.tune.fit.windows import Shooter, cut_windows, predictable_windows

PENDULUM = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <body>
      <joint name="hinge" type="hinge" axis="0 1 0" damping="0.001"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.01" mass="0.2"/>
    </body>
  </worldbody>
  <actuator><motor name="hinge" joint="hinge" gear="0.01"/></actuator>
</mujoco>
"""


@pytest.fixture
def world(tmp_path):
    (tmp_path / "pendulum.xml").write_text(PENDULUM)
    return MujocoWorld(Scene.load(tmp_path / "pendulum.xml"))


def recorded(world, angle):
    """Two seconds of a pendulum let go at an angle, read by an encoder with a milliradian of noise."""
    state, log = world.place(np.array([angle]), np.zeros(1)), Log(world.spec, {})
    for _ in range(round(2 / world.spec.dt)):
        log(state, world.observe(state), np.zeros(1))
        state = world.step(state, np.zeros(1))
    episode = log.episode()
    noise = np.random.default_rng(0).normal(0, 1e-3, episode.q.shape)
    return episode.with_columns({"q": episode.q + noise})


def test_a_hanging_pendulum_is_foreseen_to_the_end_and_an_upright_one_is_not(world):
    episodes = [recorded(world, 0.5), recorded(world, np.pi - 0.002)]
    windows = cut_windows(world, episodes, span=round(2 / world.spec.dt) - 1)
    kept = predictable_windows(world, windows).inside.sum(axis=1)
    whole = windows.inside.sum(axis=1)
    assert kept[0] == whole[0]
    assert 0 < kept[1] < 0.7 * whole[1]


def test_rows_that_do_not_count_are_not_simulated_and_the_rest_is_the_same(world):
    windows = cut_windows(world, [recorded(world, 0.5), recorded(world, 1.0)], span=round(2 / world.spec.dt) - 1)
    inside = windows.inside.copy()
    inside[1, 80:] = False
    params = (Param("joint.hinge.damping", 1e-4, 1e-1, log=True),)
    points = np.array([[0.2], [0.7]])
    whole, part = (Shooter(world, w, params)(points) for w in (windows, replace(windows, inside=inside)))
    np.testing.assert_allclose(part[:, 0], whole[:, 0], atol=1e-12)
    np.testing.assert_allclose(part[:, 1, :80], whole[:, 1, :80], atol=1e-12)
    assert not part[:, 1, 80:].any()
    assert np.abs(whole[:, 1, 80:]).max() > 0.01


def test_a_pendulum_without_a_motor_is_foreseen_too(tmp_path):
    (tmp_path / "free.xml").write_text(PENDULUM.replace('<motor name="hinge" joint="hinge" gear="0.01"/>', ""))
    free = MujocoWorld(Scene.load(tmp_path / "free.xml"))
    state, log = free.place(np.array([0.5]), np.zeros(1)), Log(free.spec, {})
    for _ in range(100):
        log(state, free.observe(state), np.zeros(0))
        state = free.step(state, np.zeros(0))
    windows = cut_windows(free, [log.episode()], span=40)
    np.testing.assert_array_equal(predictable_windows(free, windows).inside, windows.inside)
