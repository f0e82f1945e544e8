"""The example of an actuator model is found by its registration line, acts as its formula says, and is searched."""

from __future__ import annotations

import numpy as np
import pytest

from instep import Scene, UnknownName, open_world
from instep.tune.param_export import promote
from instep.tune.param_selection import named_params

FAN = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body><joint name="fan" axis="0 0 1" armature="0.01"/><geom type="sphere" size="0.01" mass="0.001"/></body>
  </worldbody>
  <actuator><motor name="fan" joint="fan"/></actuator>
</mujoco>
"""
TABLE = 'rate = 100.0\n[robot]\njoints = ["fan"]\n[actuators.air_drag]\n"joint.fan.air_drag" = 0.002\n'


@pytest.fixture
def scene(tmp_path, extensions):
    (tmp_path / "scene.xml").write_text(FAN)
    (tmp_path / "scene.toml").write_text(TABLE)
    return tmp_path


def speed(sim, torque: float) -> np.ndarray:
    """The speed after ten seconds under a torque [rad/s]."""
    state = sim.reset()
    for _ in range(1000):
        state = sim.step(state, np.array([torque]))
    return state.v


def test_a_fan_turns_as_fast_as_its_drag_allows(scene):
    assert speed(open_world(scene), 0.2) == pytest.approx(np.sqrt(0.2 / 0.002), rel=1e-3)


def test_its_parameter_is_searched_and_promoted_like_any_other(scene, tmp_path):
    loaded = Scene.load(scene)
    [param] = named_params(loaded, ["joint.*.air_drag"], {}).params
    assert (param.address, param.unit, param.log) == ("joint.fan.air_drag", "Nm s2/rad2", True)
    tuned = promote(loaded, {"joint.fan.air_drag": 0.008}, tmp_path / "tuned", {})
    assert speed(open_world(tuned), 0.2) == pytest.approx(np.sqrt(0.2 / 0.008), rel=1e-3)


def test_a_name_that_nobody_registered_is_answered_with_the_nearest(scene):
    (scene / "scene.toml").write_text(TABLE.replace("actuators.air_drag", "actuators.air_drug"))
    with pytest.raises(UnknownName, match="Did you mean 'air_drag'"):
        open_world(scene)
