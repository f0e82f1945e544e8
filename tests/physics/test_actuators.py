"""Friction models M1 to M6, and worlds with actuator models."""

from __future__ import annotations

import numpy as np
import pytest

from instep import Constant, MujocoWorld, Script, rollout
from instep.core.errors import BadInput, UnknownName
from instep.physics.actuator_models import friction_limit
from instep.physics.actuators import ActuatedWorld, with_inputs
from instep.physics.engines import open_world
from instep.scene.folder import Scene, write_settings
from instep.tune.param_export import promote
from instep.tune.param_selection import command_limits, named_params

RAIL = """
<mujoco>
  <option timestep="0.001" integrator="implicitfast" gravity="0 0 0"/>
  <worldbody>
    <body name="wheel">
      <joint name="hinge" axis="0 0 1" armature="0.1" frictionloss="0.5" solimpfriction="0.9999 0.9999 0.001"/>
      <geom type="sphere" size="0.01" mass="0.001"/>
    </body>
  </worldbody>
  <actuator><motor name="hinge" joint="hinge"/></actuator>
</mujoco>
"""
SERVO = RAIL.replace(
    '<motor name="hinge" joint="hinge"/>', '<position name="hinge" joint="hinge" kp="1" forcerange="-1 1"/>'
)


def world(tmp_path, xml: str) -> MujocoWorld:
    (tmp_path / "scene.xml").write_text(xml)
    (tmp_path / "scene.toml").write_text('rate = 100.0\n[robot]\njoints = ["hinge"]\n')
    return MujocoWorld(Scene.load(tmp_path))


def add(folder, lines: str) -> None:
    """Add lines to the end of a scene's table."""
    with (folder / "scene.toml").open("a") as table:
        table.write(lines)


def values(**terms: float):
    return {name: np.array([value]) for name, value in terms.items()}


def test_each_model_reduces_to_its_formula():
    speed, outer, motor = np.array([0.2]), np.array([0.3]), np.array([-0.5])
    s = np.exp(-0.2 / 0.1)
    four = values(static=0.1, static_speed=0.1, load=0.2, load_static=0.4)
    assert friction_limit(np.array([1.0]), {}, speed, outer, motor) == pytest.approx(1.0)
    assert friction_limit(np.array([1.0]), four, speed, outer, motor) == pytest.approx(
        1 + 0.2 * 0.8 + s * (0.1 + 0.4 * 0.8)
    )
    five = values(load_out=0.1, load_in=0.3, load_out_static=0.2, load_in_static=0.4, static_speed=0.1)
    expected = abs(0.1 * 0.3 + 0.3 * 0.5) + s * abs(0.2 * 0.3 + 0.4 * 0.5)
    assert friction_limit(np.zeros(1), five, speed, outer, motor) == pytest.approx(expected)
    six = values(square_out=2.0, square_in=3.0, static_speed=0.1)
    assert friction_limit(np.zeros(1), six, speed, outer, motor) == pytest.approx(s * 2.0 * 0.3**2)
    assert friction_limit(np.zeros(1), six, speed, outer, -motor) == pytest.approx(0.0)


def pushed(sim, torque: float, seconds: float = 0.5) -> float:
    state = sim.place(np.zeros(1), np.zeros(1))
    for _ in range(round(seconds / sim.spec.dt)):
        state = sim.step(state, np.array([torque]))
    return float(state.v[0])


def test_static_friction_holds_what_coulomb_friction_would_not(tmp_path):
    sim = world(tmp_path, RAIL)
    sticky = ActuatedWorld(sim, {"joint.hinge.static": 0.3, "joint.hinge.static_speed": 0.05})
    assert pushed(sim, 0.7) > 0.5
    assert abs(pushed(sticky, 0.7)) < 1e-3
    # Once it slides, only Coulomb's 0.5 Nm is left: 0.4 Nm on 0.1 kg m2 for half a second.
    assert pushed(sticky, 0.9) == pytest.approx(2.0, rel=0.1)


def test_friction_under_load_grows_with_the_motor_torque(tmp_path):
    sim = ActuatedWorld(world(tmp_path, RAIL), {"joint.hinge.load": 0.25})
    # Friction is 0.5 + 0.25 * 2 = 1.0 Nm of the motor's 2 Nm; the first step does not know the load yet.
    assert pushed(sim, 2.0) == pytest.approx(5.0, rel=0.02)


def test_many_actuated_worlds_equal_one_at_a_time(tmp_path):
    sim = ActuatedWorld(world(tmp_path, RAIL), {"joint.hinge.static": 0.0})
    many = sim.tuned({"joint.hinge.static": np.array([0.05, 0.3]), "joint.hinge.frictionloss": np.array([0.4, 0.6])})
    state = many.place(np.zeros((2, 1)), np.ones((2, 1)))
    for _ in range(20):
        state = many.step(state, np.full((2, 1), 0.5))
    for i, (static, coulomb) in enumerate([(0.05, 0.4), (0.3, 0.6)]):
        one = sim.tuned({"joint.hinge.static": static, "joint.hinge.frictionloss": coulomb})
        single = one.place(np.zeros(1), np.ones(1))
        for _ in range(20):
            single = one.step(single, np.array([0.5]))
        np.testing.assert_allclose(state.q[i], single.q, atol=1e-12)


def test_a_supply_sets_stiffness_and_limit_and_its_voltage_drops_under_current(tmp_path):
    motor = {"kt": 0.5, "resistance": 2.0, "duty": 0.01, "volts": 10.0, "supply_resistance": 0.0}
    sim = ActuatedWorld(world(tmp_path, SERVO), {f"actuator.hinge.{name}": value for name, value in motor.items()})
    assert sim.spec.action.labels == ("hinge", "hinge.gain")

    def speed_after_one_step(sim) -> float:
        return float(sim.step(sim.place(np.zeros(1), np.zeros(1)), np.array([1.0, 100.0])).v[0])

    # 100 * 0.01 * 1 rad is full duty: 10 V * 0.25 Nm/V = 2.5 Nm, of which 0.5 Nm is friction.
    assert speed_after_one_step(sim) == pytest.approx((2.5 - 0.5) / 0.1 * 0.01, rel=0.05)
    # At rest 5 A flow, so a supply of 0.4 ohm has 8 V left.
    assert speed_after_one_step(sim.tuned({"actuator.hinge.supply_resistance": 0.4})) == pytest.approx(
        1.5 / 0.1 * 0.01, rel=0.05
    )


def test_an_unknown_term_offers_the_nearest(tmp_path):
    with pytest.raises(UnknownName, match="static"):
        ActuatedWorld(world(tmp_path, RAIL), {"joint.hinge.statc": 0.3})


def test_actuator_params_are_found_by_pattern_and_promoted_into_their_own_table(tmp_path):
    world(tmp_path, SERVO)
    friction, supply = {"joint.hinge.load": 0.1}, {"actuator.hinge.supply_resistance": 0.5}
    write_settings(tmp_path / "scene.toml", friction, "actuators", "friction")
    write_settings(tmp_path / "scene.toml", supply, "actuators", "supply")
    scene = Scene.load(tmp_path)
    choice = named_params(scene, ["joint.hinge.*oad", "actuator.hinge.supply_resistance", "joint.hinge.armature"], {})
    assert {k.address for k in choice.params} == {
        "joint.hinge.load",
        "actuator.hinge.supply_resistance",
        "joint.hinge.armature",
    }
    assert choice.initial["actuator.hinge.supply_resistance"] == 0.5
    new = promote(scene, {"joint.hinge.load": 0.2, "joint.hinge.armature": 0.3}, tmp_path / "new", {})
    assert Scene.load(new).actuators == {"friction": {"joint.hinge.load": 0.2}, "supply": supply}
    assert dict(Scene.load(new).settings) == {"joint.hinge.armature": 0.3}


def test_inputs_of_an_actuator_come_from_the_metadata_of_a_recording(tmp_path):
    sim = world(tmp_path, SERVO)
    add(tmp_path, '[actuators.supply]\n"actuator.hinge.kt" = 0.5\n[inputs]\n"hinge.gain" = "kp"\n')
    scene = Scene.load(tmp_path)
    run = rollout(sim, Constant(np.array([0.1])), steps=5)
    given = with_inputs(scene, [run.with_columns({}, kp="200")])[0]
    assert given.spec.action.labels == open_world(scene).spec.action.labels == ("hinge", "hinge.gain")
    assert given.action[3].tolist() == [0.1, 200.0]
    with pytest.raises(BadInput, match="'kp'"):
        with_inputs(scene, [run])


def test_a_command_range_is_read_from_where_a_joint_stood_short_of_its_command(tmp_path):
    (tmp_path / "scene.xml").write_text(SERVO.replace('kp="1"', 'kp="30" kv="3" ctrlrange="-2 2"'))
    (tmp_path / "scene.toml").write_text('rate = 100.0\n[robot]\njoints = ["hinge"]\n')
    scene = Scene.load(tmp_path)
    commanded = 1.5 * np.sin(np.arange(1200) / 100)[:, None]
    free = rollout(MujocoWorld(scene), Script(commanded), steps=1200)
    assert command_limits(scene, [free]) == {}
    stopped = rollout(MujocoWorld(scene), Script(np.maximum(commanded, -0.8)), steps=1200)
    found = command_limits(scene, [stopped.with_columns({"action": commanded})])
    assert list(found) == ["actuator.hinge.low"]
    assert found["actuator.hinge.low"] == pytest.approx(-0.8, abs=0.03)


def test_a_servo_that_sags_under_its_load_is_not_taken_for_one_that_is_clipped(tmp_path):
    # An elbow that stood 63 mrad above every command was taken to be clipped at the lowest of them.
    (tmp_path / "scene.xml").write_text(SERVO.replace('kp="1"', 'kp="30" kv="3" ctrlrange="-2 2"'))
    (tmp_path / "scene.toml").write_text('rate = 100.0\n[robot]\njoints = ["hinge"]\n')
    scene = Scene.load(tmp_path)
    commanded = np.repeat([0.4, 0.1, -0.2, -0.4], [200, 200, 200, 400])[:, None]
    sagging = rollout(MujocoWorld(scene), Script(commanded + 0.12), steps=len(commanded))
    sagging = sagging.with_columns({"action": commanded})
    beyond = sagging.q[:, 0].min() - commanded[:, 0]
    assert (beyond > 0.1 * np.ptp(sagging.q)).sum() > 1 / scene.dt
    assert command_limits(scene, [sagging]) == {}
