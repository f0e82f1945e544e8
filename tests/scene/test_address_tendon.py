"""Parameters of tendons: motors behind a differential."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from instep.scene import address

WRIST = """
<mujoco>
  <option timestep="0.001" integrator="implicitfast" gravity="0 0 0"/>
  <worldbody>
    <body>
      <joint name="bend" axis="0 1 0" armature="0.01"/>
      <geom type="sphere" size="0.01" mass="0.001"/>
      <body>
        <joint name="turn" axis="0 0 1" armature="0.01"/>
        <geom type="sphere" size="0.01" mass="0.001"/>
      </body>
    </body>
    <body pos="1 0 0"><joint name="slide" type="slide"/><geom size="0.01" mass="1"/></body>
  </worldbody>
  <tendon>
    <fixed name="sum"><joint joint="bend" coef="1"/><joint joint="turn" coef="1"/></fixed>
    <fixed name="rope"><joint joint="slide" coef="1"/></fixed>
  </tendon>
</mujoco>
"""


@pytest.fixture
def model():
    return mujoco.MjModel.from_xml_string(WRIST)


def after(model: mujoco.MjModel, torque: tuple[float, float]) -> np.ndarray:
    data = mujoco.MjData(model)
    for _ in range(200):
        data.qfrc_applied[:2] = torque
        mujoco.mj_step(model, data)
    return data.qpos[:2].copy()


def test_friction_of_a_motor_holds_the_sum_of_two_joints_and_leaves_their_difference_free(model):
    dry = address.write(model, {"tendon.sum.frictionloss": 0.5, "tendon.sum.friction_stiffness": 0.9999})
    assert np.abs(after(dry, (0.2, 0.2))).max() < 1e-3
    np.testing.assert_allclose(after(dry, (0.2, -0.2)), after(model, (0.2, -0.2)), rtol=1e-3)


def test_a_tendon_over_hinges_is_measured_in_angles_and_one_over_slides_in_lengths(model):
    units = {param.address: param.unit for param in address.params(model, ["tendon.*"])}
    assert units["tendon.sum.frictionloss"] == "Nm" and units["tendon.rope.frictionloss"] == "N"
    assert units["tendon.sum.dead_band"] == "rad" and units["tendon.rope.damping"] == "N s/m"
