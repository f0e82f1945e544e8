"""Grippers with coupled fingers driven through a tendon, and actuators with names of their own."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

import instep
from instep.core.rollout import Script, rollout
from instep.physics.actuators import owner_of, with_inputs
from instep.scene import address
from instep.scene.folder import Scene, scene_of_file
from instep.scene.robot_structure import (
    driven_joints,
    driving_actuators,
    joint_groups,
    moved_coordinates,
    with_joint_labels,
)
from instep.tune import TuneOptions
from small_models import gripper_model

ARM = gripper_model('damping="0.3" frictionloss="0.01"')


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("gripper") / "arm.xml"
    path.write_text(ARM)
    return scene_of_file(path, 100.0)


def run(scene, seed, **settings):
    sim = instep.open_world(scene).tuned(settings) if settings else instep.open_world(scene)
    t = np.arange(300)[:, None] * scene.dt
    waves = np.sin(2 * np.pi * np.array([0.7 + 0.1 * seed, 1.0]) * t + seed)
    return rollout(sim, Script(np.array([0.0, 127.0]) + np.array([0.6, 90.0]) * waves), steps=300)


def test_an_actuator_knows_the_joints_it_moves(scene):
    model = scene.model
    assert driven_joints(model, "motor1") == ("shoulder",)
    assert driven_joints(model, "grip") == ("left", "right")
    assert driving_actuators(model, "right") == ("grip",)
    assert joint_groups(model) == {"left": ("left", "right"), "right": ("left", "right")}


def test_parameters_of_coupled_fingers_move_both(scene):
    both = ("left", "right")
    expected = {"joint.left": both, "joint.right": both, "actuator.grip": both, "actuator.motor1": ("shoulder",)}
    assert moved_coordinates(scene.model) == expected


def test_a_finger_that_only_follows_is_driven_too(tmp_path):
    (tmp_path / "arm.xml").write_text(ARM.replace('tendon="split" biastype', 'joint="right" biastype'))
    model = Scene.load(tmp_path / "arm.xml").model
    assert driven_joints(model, "grip") == ("right", "left")


def test_a_servo_of_a_tendon_has_gains_in_its_own_unit(scene):
    params = {param.address: param for param in scene.params("actuator.*")}
    assert params["actuator.grip.kp"].unit == "N/m" and params["actuator.motor1.kp"].unit == "Nm/rad"
    assert scene.spec.action.units == ("rad", "1")
    tuned = address.write(scene.model, {"actuator.grip.kp": 200.0})
    # Twice the stiffness, and the same opening at the same command.
    assert tuned.actuator_biasprm[1, 1] == -200.0 and tuned.actuator_gainprm[1, 0] == pytest.approx(0.0314)


def test_a_gripper_rests_where_it_starts(tmp_path):
    (tmp_path / "arm.xml").write_text(ARM.replace('range="0 0.04"', 'range="0 0.04" ref="0.03"'))
    sim = instep.open_world(tmp_path / "arm.xml")
    state = start = sim.reset(0)
    command = sim.scene.rest_action()
    assert command == pytest.approx([0.0, 100 * 0.03 / 0.0157])
    for _ in range(60):
        state = sim.step(state, command)
    assert state.q == pytest.approx(start.q, abs=1e-3)


def test_motors_on_a_supply_drive_joints(scene):
    assert owner_of(scene, "actuator.motor1.kt") == "supply"
    assert owner_of(scene, "actuator.grip.kt") is None


def test_actions_may_be_labelled_by_joint(scene):
    recorded = run(scene, 0)
    labels = replace(recorded.spec, action=replace(recorded.spec.action, labels=("shoulder", "grip")))
    by_joint = replace(recorded, spec=labels)
    assert with_inputs(scene, [by_joint])[0].spec.action.labels == ("motor1", "grip")
    assert with_joint_labels(scene.model, [recorded])[0].spec.action.labels == ("shoulder", "grip")
    same, other = (instep.measure_gap(scene, [e]) for e in (recorded, by_joint))
    assert same.scores["all m@full"].value == other.scores["all m@full"].value < 1e-9


def test_commands_are_compared_with_the_joint_that_follows_them(scene):
    gap = instep.measure_gap(scene, [run(scene, i) for i in range(2)])
    assert gap.following is not None and "shoulder" in gap.following.rmse


def test_gains_of_a_coupled_gripper_are_identified(scene, tmp_path):
    truth = {"actuator.motor1.kp": 27.0, "actuator.grip.kp": 140.0}
    runs = [run(scene, i, **truth) for i in range(3)]
    found = instep.identify(scene, runs, tuple(truth), TuneOptions(window=0.5, windows=20, seeds=2, draws=0))
    assert found.values == pytest.approx(truth, rel=0.03)
    saved = Scene.load(found.save(tmp_path / "scene"))
    assert saved.model.actuator_gainprm[1, 0] == pytest.approx(0.0157 * 1.4, rel=0.03)
    found.export(tmp_path / "export")
    exported = mujoco.MjModel.from_xml_path(str(tmp_path / "export" / "tuned.xml"))
    assert exported.actuator_gainprm[1, 0] == pytest.approx(0.0157 * 1.4, rel=0.03)
