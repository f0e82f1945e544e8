"""Planted truths in torques: base parameters, physical inertias, friction, payloads, and what must be refused."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from instep import BadInput, UnknownName
from instep.app.cli import main
from instep.data import write_dataset
from instep.gap.torque_gap import RELATIVE, measure_torque_gap
from instep.physics.inverse_dynamics import inertial_parameters, rigid_groups, with_inertial_parameters
from instep.scene.folder import Scene
from instep.tune.fit.least_squares import FitStatus
from instep.tune.torque.torque_fit import LogCholesky, consistent, inertial_of, pseudo_inertia
from instep.tune.torque.torque_gates import base_combinations
from instep.tune.torque.torque_identification import IdentifyTorqueOptions, identify_torque
from planted_torque import ARM, JOINTS, recording

PAYLOAD = np.array([1.2, 0.024, -0.012, 0.12, 0.016, 0.0, -0.0024, 0.016, 0.0012, 0.004])
"""1.2 kg, 0.1 m in front of the hand, in the frame of the hand."""
OFFSET = np.array([0.1, -0.3, 0.2, 0.02])


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    path = tmp_path_factory.mktemp("planted") / "arm.xml"
    path.write_text(ARM)
    return Scene.load(path)


@pytest.fixture(scope="module")
def robot(scene):
    """The scene with other inertias and friction."""
    bodies, rng = rigid_groups(scene.model), np.random.default_rng(5)
    pi = np.stack(
        [LogCholesky.around(p).inertial(rng.normal(0, 0.15, 10)) for p in inertial_parameters(scene.model, bodies)]
    )
    model = copy.copy(with_inertial_parameters(scene.model, bodies, pi))
    model.dof_frictionloss[:] *= [1.5, 0.6, 1.2, 2.0]
    model.dof_damping[:] *= [0.5, 1.6, 1.0, 1.5]
    return model


@pytest.fixture(scope="module")
def found(scene, robot):
    return identify_torque(scene, [recording(robot, seed, offset=OFFSET) for seed in range(3)])


def test_log_cholesky_coordinates_are_physical_everywhere_and_have_the_derivative_they_say():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    pi = inertial_of(root @ root.T)
    assert pseudo_inertia(pi) == pytest.approx(root @ root.T)
    around = LogCholesky.around(pi)
    assert around.inertial(np.zeros(10)) == pytest.approx(pi)
    assert all(consistent(around.inertial(rng.normal(0, 2, 10))) for _ in range(50))
    x, step = rng.normal(0, 0.3, 10), 1e-6
    numeric = np.stack(
        [(around.inertial(x + step * e) - around.inertial(x - step * e)) / (2 * step) for e in np.eye(10)], 1
    )
    assert around.jacobian(x) == pytest.approx(numeric, abs=1e-6)
    assert not consistent(np.array([1.0, 0, 0, 0, 1, 0, 0, 1, 0, 2.5]))  # breaks the triangle inequality


def test_friction_and_offsets_are_found(found, robot):
    assert found.status == FitStatus.CONVERGED
    for k, joint in enumerate(JOINTS):
        assert found.values[f"joint.{joint}.frictionloss"].value == pytest.approx(
            robot.dof_frictionloss[k], rel=0.15, abs=0.02
        )
        assert found.values[f"joint.{joint}.damping"].value == pytest.approx(robot.dof_damping[k], rel=0.15, abs=0.02)
        assert found.values[f"torque offset of {joint}"].value == pytest.approx(OFFSET[k], abs=0.05)
    assert found.terms == found.terms[:3]  # nothing else was planted, so nothing else is fitted


def test_base_parameters_are_recovered_inside_their_intervals(found, robot):
    bodies = rigid_groups(found.scene.model)
    combined = base_combinations(found.scene.model, bodies, found.fitted[0].dofs)
    truth = combined.matrix @ inertial_parameters(robot, bodies).ravel()
    inside = [b.value.low <= t <= b.value.high for b, t in zip(found.base, truth, strict=True) if b.identified]
    assert len(inside) >= 15 and np.mean(inside) >= 0.85
    strong = found.base[0]
    assert "turret.Izz" in strong.name and "+" in strong.name and strong.value.unit == "kg m2"
    for base, t in zip(found.base, truth, strict=True):
        if base.identified:
            assert abs(base.value.value - t) <= abs(base.given - t) + 2 * (base.value.high - base.value.low)


def test_the_error_on_held_out_recordings_is_the_noise_and_the_gates_are_passed(found):
    assert found.before[RELATIVE].value > 10
    assert found.after[RELATIVE].value < 2.5  # noise of 2 % of each joint's spread
    assert found.passed, [(gate.name, gate.message) for gate in found.gates]


def test_the_written_scene_has_the_identified_torques_when_opened_again(found, robot, tmp_path):
    folder = found.save(tmp_path / "scene")
    gap = measure_torque_gap(folder, [recording(robot, 9, offset=OFFSET)])
    assert gap.scores[RELATIVE].value < 2.5
    record = json.loads((folder / "tuned.json").read_text())
    assert record["gates"] and record["torque_offsets"]["shoulder"] == pytest.approx(-0.3, abs=0.05)
    with pytest.raises(BadInput, match="not empty"):
        found.save(folder)


def loaded(model, seed):
    """A recording with a payload in the hand."""
    hand = model.body("hand").id
    carrying = with_inertial_parameters(model, [hand], inertial_parameters(model, [hand]) + PAYLOAD)
    return recording(carrying, seed, payload="1.2 kg")


def test_a_payload_is_found_beside_the_robot(scene, robot, tmp_path):
    runs = [recording(robot, seed) for seed in range(3)] + [loaded(robot, seed) for seed in range(3, 6)]
    found = identify_torque(scene, runs, IdentifyTorqueOptions(draws=0))
    load = found.payloads["1.2 kg"]
    assert load.body == "hand" and load.mass.value == pytest.approx(1.2, rel=0.05)
    assert [c.value for c in load.centre] == pytest.approx(PAYLOAD[1:4] / 1.2, abs=0.01)
    assert {g.name: g.state for g in found.gates}["recovery"] == "not run" and not found.passed
    assert Scene.load(found.save(tmp_path / "with", payload="1.2 kg")).model.body("payload").mass[0] == pytest.approx(
        load.mass.value, rel=1e-6
    )
    with pytest.raises(UnknownName):
        found.save(tmp_path / "other", payload="2 kg")


def test_a_payload_alone_is_found_with_the_robot_as_in_the_scene(scene):
    runs = [loaded(scene.model, seed) for seed in range(3)]
    found = identify_torque(scene, runs, IdentifyTorqueOptions(payload_only=True))
    assert found.payloads["payload"].mass.value == pytest.approx(1.2, rel=0.03)
    assert found.passed, [(gate.name, gate.message) for gate in found.gates]


def test_a_rotor_behind_a_gear_is_added_where_it_pays(scene):
    model = copy.copy(scene.model)
    model.dof_armature[:] = [0.4, 0.4, 0.2, 0.05]
    found = identify_torque(scene, [recording(model, seed) for seed in range(2)], IdentifyTorqueOptions(draws=0))
    assert "rotor inertia" in [term.name for term in found.terms]
    assert found.after[RELATIVE].value < 2.5


def test_torques_with_the_wrong_sign_are_not_promoted(scene):
    runs = [recording(scene.model, seed) for seed in range(2)]
    runs = [run.with_columns({"observation.effort": -run["observation.effort"]}) for run in runs]
    found = identify_torque(scene, runs, IdentifyTorqueOptions(draws=1))
    assert not found.passed
    assert "run against" in next(gate.message for gate in found.gates if gate.name == "telemetry")


def test_recordings_held_out_are_chosen_by_name(scene):
    runs = [recording(scene.model, seed) for seed in range(2)]
    with pytest.raises(UnknownName, match="run 7"):
        identify_torque(scene, runs, IdentifyTorqueOptions(hold_out=("run 7",)))
    with pytest.raises(BadInput, match="All recordings are held out"):
        identify_torque(scene, runs, IdentifyTorqueOptions(hold_out=("run 0", "run 1")))


def test_the_command_writes_a_scene_and_refuses_recordings_without_torques(scene, robot, tmp_path, capsys):
    write_dataset([recording(robot, seed) for seed in range(3)], tmp_path / "data")
    command = ["torque", str(tmp_path / "data"), str(scene.root / "arm.xml"), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["passed"] and result["status"] == "converged" and result["base"]
    assert result["scores"]["after: torque error"]["value"] < 2.5
    gap = ["torque", str(tmp_path / "data"), str(tmp_path / "out" / "scene"), "--compare", "--limit", "torque error=3"]
    assert main([*gap, "--out", str(tmp_path / "gap")]) == 0
    plain = [recording(robot, seed) for seed in range(2)]
    bare = [type(e)(e.spec, {k: c for k, c in e.columns.items() if k != "observation.effort"}, e.meta) for e in plain]
    write_dataset(bare, tmp_path / "bare")
    capsys.readouterr()
    assert main(["torque", str(tmp_path / "bare"), str(scene.root / "arm.xml")]) == 2
    assert "has no measured torques" in capsys.readouterr().err


def test_identified_inertias_are_physical(found):
    assert consistent(found.solution.inertial).all()
    states = {gate.name: gate.state for gate in found.gates}
    assert states["consistency"] == "passed"
