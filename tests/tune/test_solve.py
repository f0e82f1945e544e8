"""Least squares go downhill, also where contacts make the cost rough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import MujocoWorld, Script, rollout
from instep.core.param import Param
from instep.scene.folder import Scene
from instep.tune.fit import least_squares
from instep.tune.fit.shooting import ShootingOptions, fit

PUSHED = """
<mujoco>
  <option timestep="0.004" cone="elliptic" impratio="10"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1" friction="0.4 0.005 0.0001"/>
    <body name="pusher" pos="0 0 0.05">
      <joint name="push" type="slide" axis="1 0 0"/>
      <geom type="cylinder" size="0.012 0.04" mass="0.5" friction="0.4 0.005 0.0001"/>
    </body>
    <body name="box" pos="0.05 0.012 0.0201">
      <freejoint name="box"/>
      <geom type="box" size="0.03 0.05 0.02" mass="0.4" friction="0.4 0.005 0.0001"/>
    </body>
  </worldbody>
  <actuator><position name="push" joint="push" kp="300" kv="30"/></actuator>
</mujoco>
"""
# A box that slides neither lifts nor tilts: what its height does is the rattle of the contact solver.
FLAT = {"box.vz": 1e3, "box.wx": 1e3, "box.wy": 1e3}
OPTIONS = ShootingOptions(window=0.4, guesses=1, iterations=20, scale=FLAT)
PARAMS = (Param("actuator.push.kp", 75, 1200, True), Param("actuator.push.kv", 7.5, 120, True))


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """A stick that pushes a box over a table, and a recording of a stiffer one."""
    folder = tmp_path_factory.mktemp("pushed")
    (folder / "scene.xml").write_text(PUSHED)
    (folder / "scene.toml").write_text('rate = 50\n[robot]\njoints = ["push"]\n[objects]\nbodies = ["box"]\n')
    sim = MujocoWorld(Scene.load(folder))
    real = sim.tuned({"actuator.push.kp": 550.0, "actuator.push.kv": 48.0})
    runs = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        # A ramp that pushes, and a jerk every half second, or only stiffness over damping would be identifiable.
        path = np.minimum(np.arange(60) / 45, 1.0)[:, None] * rng.uniform(0.08, 0.12)
        path += 0.015 * (np.arange(60) % 24 > 11)[:, None]
        run = rollout(real, Script(path), steps=60)
        noise = 1e-4 * rng.standard_normal(run.q.shape) * np.isin(run.spec.q.labels, ["push", "box.x", "box.y"])
        runs.append(run.with_columns({"q": run.q + noise}))
    return sim, runs


@pytest.fixture(scope="module")
def found(pushed):
    return fit(*pushed, PARAMS, OPTIONS)


def test_a_fit_through_contact_finds_the_truth_and_covers_it(found):
    for name, truth in (("actuator.push.kp", 550.0), ("actuator.push.kv", 48.0)):
        interval = found.interval(name, 0.95)
        assert interval.value == pytest.approx(truth, rel=0.1)
        assert interval.low < truth < interval.high


def test_ripples_of_the_cost_make_intervals_wider(found):
    smooth, rough = (
        least_squares.linearise(found.problem, replace(found.point, difference_step=step), both_sides=True)
        for step in (least_squares.DIFFERENCE_STEP, least_squares.MAX_DIFFERENCE_STEP)
    )
    plain = least_squares.linearise(
        found.problem, replace(found.point, difference_step=least_squares.MAX_DIFFERENCE_STEP)
    )
    assert not least_squares.rough(replace(found.point, difference_step=least_squares.DIFFERENCE_STEP))
    assert (np.diag(np.linalg.inv(rough.curvature)) > np.diag(np.linalg.inv(plain.curvature))).all()
    assert smooth.curvature.shape == rough.curvature.shape == (2, 2)
