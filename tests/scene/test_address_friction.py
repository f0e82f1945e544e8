"""Parameters that identification needs beyond the usual: offsets of servos, ranges of commands, friction stiffness."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.errors import BadInput
from instep.scene import address
from instep.scene.folder import Scene

SERVO = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body>
      <joint name="hinge" axis="0 1 0" damping="1" frictionloss="1" armature="0.02"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.2"/>
    </body>
  </worldbody>
  <actuator><position name="hinge" joint="hinge" kp="{kp}" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


def world(tmp_path, kp: float) -> MujocoWorld:
    (tmp_path / "scene.xml").write_text(SERVO.format(kp=kp))
    (tmp_path / "scene.toml").write_text('rate = 50.0\n[robot]\njoints = ["hinge"]\n')
    return MujocoWorld(Scene.load(tmp_path))


def after(sim, seconds: float, action: float) -> float:
    state = sim.place(np.zeros(1), np.zeros(1))
    for _ in range(round(seconds / sim.spec.dt)):
        state = sim.step(state, np.array([action]))
    return float(state.q[0])


def test_a_bias_moves_a_servo_by_bias_over_stiffness(tmp_path):
    sim = world(tmp_path, kp=20.0).tuned({"joint.hinge.frictionloss": 1e-9, "option.gravity": 0.0})
    assert after(sim.tuned({"actuator.hinge.bias": 2.0}), 5.0, 0.0) == pytest.approx(0.1, rel=1e-3)


def test_a_firm_grip_holds_a_loaded_joint_that_creeps_by_default(tmp_path):
    # The arm weighs 0.2 kg * 9.81 m/s2 * 0.15 m = 0.29 Nm, less than the friction of 1 Nm that should hold it.
    sim = world(tmp_path, kp=1e-6)
    assert after(sim, 5.0, 0.0) > 0.005
    assert after(sim.tuned({"joint.hinge.friction_stiffness": 0.9999}), 5.0, 0.0) < 1e-4


def test_drag_slows_a_joint_by_the_square_of_its_speed(tmp_path):
    still = {"joint.hinge.frictionloss": 1e-12, "joint.hinge.damping": 1e-9, "option.gravity": 0.0}
    sim = world(tmp_path, kp=1e-9).tuned({**still, "joint.hinge.drag": 0.1, "joint.hinge.armature": 1.0})
    state = sim.place(np.zeros(1), np.full(1, 10.0))
    inertia = 1.0 + sim.model.body_inertia[1].max() + 0.2 * 0.15**2
    for _ in range(50):
        state = sim.step(state, np.zeros(1))
    # v' = -c v^2 / J is solved by v = v0 / (1 + c v0 t / J).
    assert float(state.v[0]) == pytest.approx(10.0 / (1 + 0.1 * 10.0 * 1.0 / inertia), rel=2e-3)


BALL = """
<mujoco>
  <worldbody><body name="ball" pos="0 0 1" simple="{simple}"><freejoint/><geom size="0.1"/></body></worldbody>
</mujoco>
"""


def test_the_centre_of_mass_of_a_thing_that_lies_about_can_be_moved(tmp_path):
    (tmp_path / "scene.xml").write_text(BALL.format(simple="false"))
    sim = MujocoWorld(tmp_path / "scene.xml").tuned({"body.ball.com_x": np.array([0.0, 0.05])})
    begun = sim.scene.start(0)
    spun = np.tile([0, 0, 0, 0, 0, 1.0], (2, 1))
    state = sim.step(sim.place(np.tile(begun[0], (2, 1)), spun), np.zeros((2, 0)))
    # The origin of the second is on its way round its centre of mass, 5 cm away: it is pulled there.
    assert abs(state.q[0, 0]) < 1e-12
    assert state.q[1, 0] == pytest.approx(0.05 / 2 * sim.spec.dt**2, rel=0.2)


def test_a_centre_of_mass_that_mujoco_has_settled_is_refused_with_what_to_write(tmp_path):
    (tmp_path / "scene.xml").write_text(BALL.format(simple="auto"))
    with pytest.raises(BadInput, match='simple="false"'):
        MujocoWorld(tmp_path / "scene.xml").tuned({"body.ball.com_x": 0.05})


def test_the_stiffness_of_a_servo_with_scaled_commands_keeps_the_scale(tmp_path):
    scaled = '<general name="hinge" joint="hinge" biastype="affine" gainprm="0.5" biasprm="0 -50 -1"/>'
    text = SERVO.format(kp=1)
    begin, end = text.index("<position"), text.index("</actuator>")
    (tmp_path / "scene.xml").write_text(text[:begin] + scaled + text[end:])
    (tmp_path / "scene.toml").write_text('rate = 50.0\n[robot]\njoints = ["hinge"]\n')
    model = Scene.load(tmp_path).model
    assert address.read(model, ["actuator.hinge.kp"]) == {"actuator.hinge.kp": 50.0}
    changed = address.write(model, {"actuator.hinge.kp": 80.0})
    assert changed.actuator_biasprm[0, 1] == pytest.approx(-80.0)
    assert changed.actuator_gainprm[0, 0] == pytest.approx(0.8), "100 commands are one radian, as before"
