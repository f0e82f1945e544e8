"""What the automatic selection identifies of hanging links, of motors on a supply, and of objects."""

from __future__ import annotations

import numpy as np
import pytest

import instep
from instep.core.progress import Progress
from instep.core.rollout import Script, rollout
from instep.physics.actuators import with_inputs
from instep.scene.folder import Scene, scene_of_file
from instep.tune.fit.searches import FitTask
from instep.tune.fit.shooting import ShootingOptions
from instep.tune.gated_fit import window_errors
from instep.tune.identification import SHORT_WINDOWS, SHORT_WINDOWS_S, _brief_fit
from instep.tune.param_selection import auto_params

LINKS = """
<mujoco>
  <option timestep="0.002"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.01" armature="0.001"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.5" contype="0" conaffinity="0"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.01"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.3" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>DRIVE</actuator>
</mujoco>
"""
TORQUE = '<motor name="shoulder" joint="shoulder" gear="2"/>'
SERVOS = (
    '<position name="shoulder" joint="shoulder" kp="50" kv="1"/><position name="elbow" joint="elbow" kp="50" kv="1"/>'
)


def selected(tmp_path, drive):
    (tmp_path / "links.xml").write_text(LINKS.replace("DRIVE", drive))
    scene = scene_of_file(tmp_path / "links.xml", 100.0)
    commands = 0.5 * np.sin(np.arange(100)[:, None] * np.full(scene.model.nu, 0.1))
    return {
        param.address
        for param in auto_params(scene, [rollout(instep.open_world(scene), Script(commands), steps=100)]).params
    }


def test_links_that_no_servo_holds_are_identified_up_to_one_known_weight(tmp_path):
    names = selected(tmp_path, TORQUE)
    assert {n for n in names if n.startswith("body.upper")} == {"body.upper.inertia_y", "body.upper.com_x"} or (
        {n for n in names if n.startswith("body.upper")} == {"body.upper.inertia_x", "body.upper.com_x"}
    )
    assert {"body.lower.com_x", "body.lower.com_z", "actuator.shoulder.gear", "joint.elbow.damping"} <= names
    # The inertia of each link is identified once: as inertia, or as the armature of its joint.
    assert not [n for n in names if n.endswith("armature")]


def test_links_of_an_arm_with_a_motor_on_every_joint_keep_their_inertias(tmp_path):
    names = selected(tmp_path, TORQUE + '<motor name="elbow" joint="elbow" gear="1"/>')
    assert not [n for n in names if n.startswith("body.")]
    assert {"actuator.shoulder.gear", "actuator.elbow.gear", "joint.elbow.armature"} <= names


def test_a_motor_on_a_supply_is_identified_by_its_constants_in_place_of_gains():
    scene = Scene.load("servo_pendulum")
    world = instep.open_world(scene)
    action = np.stack([np.sin(0.05 * np.arange(200)), np.full(200, 200.0)], axis=1)
    run = with_inputs(scene, [rollout(world, Script(action), steps=200)])
    names = {param.address for param in auto_params(scene, run).params}
    assert {f"actuator.servo.{word}" for word in ("kt", "resistance", "supply_resistance")} <= names
    assert {"joint.servo.load", "joint.servo.armature", "body.pendulum.com_y"} <= names
    # Firmware gain and supply voltage are known; stiffness and weight follow from them.
    assert not names & {f"actuator.servo.{word}" for word in ("kp", "kv", "bias", "duty", "volts")}
    assert "body.pendulum.com_z" not in names


@pytest.mark.parametrize("tumbles", [True, False])
def test_an_object_that_tumbles_shows_its_inertia_and_one_that_slides_does_not(tumbles):
    scene = Scene.load("cube")
    world = instep.open_world(scene)
    run = rollout(world, Script(np.zeros((60, 0))), steps=60)
    if not tumbles:
        run = run.with_columns({"q": np.concatenate([run.q[:, :3], np.tile([1.0, 0, 0, 0], (len(run), 1))], axis=1)})
    names = [param.address for param in auto_params(scene, [run]).params]
    assert len(set(names)) == len(names)
    assert {"geom.cube.friction", "geom.cube.solref_time", "geom.cube.solref_damp"} <= set(names)
    inertial = {"body.cube.com_x", "body.cube.com_z", "body.cube.inertia_y", "option.impratio"}
    assert (inertial <= set(names)) == tumbles and bool(inertial & set(names)) == tumbles


def test_a_cable_is_identified_where_the_scene_gives_bounds_for_it():
    scene = Scene.load("furuta")
    run = rollout(instep.open_world(scene), Script(np.sin(0.1 * np.arange(200))[:, None]), steps=200)
    names = {param.address for param in auto_params(scene, [run]).params}
    assert {"tendon.cable.stiffness", "tendon.cable.dead_band", "joint.arm.stiffness", "joint.arm.springref"} <= names
    # The arm turns about a vertical axis, on which weight does not act.
    assert "joint.arm.armature" in names and not [n for n in names if n.startswith("body.arm")]
    assert {"body.pendulum.inertia_x", "body.pendulum.com_y"} <= names
    assert not names & {"body.pendulum.com_z", "joint.pendulum.armature"}


def test_joints_that_nothing_drives_are_recognised(tmp_path):
    (tmp_path / "links.xml").write_text(LINKS.replace("DRIVE", TORQUE))
    scene = scene_of_file(tmp_path / "links.xml", 100.0)
    run = rollout(instep.open_world(scene), Script(np.full((50, 1), 0.2)), steps=50)
    assert auto_params(scene, [run]).undriven
    still = run.with_columns({"q": run.q * [1.0, 0.0]})
    assert not auto_params(scene, [still]).undriven


SHORT = [(window, SHORT_WINDOWS) for window in SHORT_WINDOWS_S]


@pytest.mark.parametrize(("stages", "near"), [(SHORT, False), ([(1.0, 2)], True)], ids=["short", "few"])
def test_a_fit_to_short_or_few_windows_finds_a_start_near_the_planted_values_of_a_pendulum(stages, near):
    sim = instep.open_world(Scene.load("furuta"))
    truth = {"actuator.arm.gear": 0.007, "joint.arm.damping": 4e-4, "body.pendulum.inertia_x": 4.5e-5,
             "tendon.cable.stiffness": 3e-3}  # fmt: skip
    waves = [2 * np.sin(0.03 * (1 + k) * np.arange(300) + k)[:, None] for k in range(2)]
    runs = [rollout(sim.tuned(truth), Script(wave), steps=300) for wave in waves]
    choice = auto_params(sim.scene, runs)
    others = [{name: 1.1 * value for name, value in truth.items()}] if near else []
    options = ShootingOptions(initial=choice.initial, guesses=1)
    task = FitTask(sim.tuned(choice.fixed), choice.params, options, tuple(others), choice.initial)
    begun = _brief_fit(task, runs, stages, Progress())
    before, after = (np.sqrt(window_errors(sim, runs, found, 1.0)[0].mean()) for found in (choice.initial, begun))
    assert after < 0.2 * before
    assert set(begun) == set(choice.initial)
