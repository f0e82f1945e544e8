"""The gap in torques: measured ones against the inverse dynamics of a scene."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from instep import BadInput
from instep.app.cli import main
from instep.core.world import vector
from instep.data import write_dataset
from instep.gap.torque_gap import NORM, RELATIVE, TorqueOptions, measure_torque_gap, torque_runs
from instep.physics.inverse_dynamics import inertial_parameters, with_inertial_parameters
from instep.scene.folder import Scene
from planted_torque import ARM, JOINTS, recording


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    path = tmp_path_factory.mktemp("planted") / "arm.xml"
    path.write_text(ARM)
    return Scene.load(path)


def test_a_scene_against_its_own_torques_leaves_the_noise(scene):
    gap = measure_torque_gap(scene, [recording(scene.model, seed) for seed in (0, 1)])
    assert gap.scores[RELATIVE].value == pytest.approx(2.0, rel=0.3)  # noise of 2 % of each joint's spread
    assert gap.joints == JOINTS and gap.scores[NORM].unit == "Nm"
    assert max(share["both"] for share in gap.shares.values()) < 0.1


def test_accelerations_are_derived_from_positions_where_none_were_recorded(scene):
    plain = recording(scene.model, 0, noise=0.0, accelerations=False)
    gap = measure_torque_gap(scene, [plain.with_columns({"v": np.roll(plain.v, 10, axis=0)})])  # late by 50 ms
    assert gap.runs[0].notes["acceleration"] == "derived from q"
    assert gap.scores[RELATIVE].value < 1.0  # the low-pass rounds reversals of dry friction


def test_wrong_friction_is_named_as_friction_and_a_sensor_offset_as_offset(scene):
    slack = scene.model.__copy__()
    slack.dof_frictionloss[:] *= 4
    gap = measure_torque_gap(scene, [recording(slack, 0, noise=0.0)])
    assert gap.shares["base"]["friction"] > 0.95 and gap.shares["base"]["offset"] < 0.1
    gap = measure_torque_gap(scene, [recording(scene.model, 0, noise=0.0, offset=np.array([0, 0, 0.5, 0]))])
    assert gap.shares["elbow"]["offset"] > 0.99
    assert gap.scores["elbow rms"].value == pytest.approx(0.5, rel=0.01)


def test_the_error_grows_with_a_wrong_mass_and_has_an_interval(scene):
    heavy = with_inertial_parameters(scene.model, [3], 1.3 * _inertial(scene, 3))
    score = measure_torque_gap(scene, [recording(heavy, seed) for seed in range(3)]).scores["shoulder of rms torque"]
    assert 5 < score.low < score.value < score.high < 40 and score.unit == "%"


def test_recordings_without_torques_are_refused_in_one_sentence(scene):
    whole = recording(scene.model, 0)
    columns = {k: c for k, c in whole.columns.items() if k != "observation.effort"}
    with pytest.raises(BadInput, match=r"has no measured torques: a column 'observation\.effort'"):
        measure_torque_gap(scene, [replace(whole, columns=columns)])
    frozen = whole.with_columns({"observation.effort": np.ones((len(whole), 4))})
    with pytest.raises(BadInput, match="never change"):
        measure_torque_gap(scene, [frozen])
    current = {**whole.spec.observation, "observation.effort": vector(list(JOINTS), "A")}
    with pytest.raises(BadInput, match="is in A, not in Nm"):
        measure_torque_gap(scene, [replace(whole, spec=replace(whole.spec, observation=current))])
    with pytest.raises(BadInput, match="--cutoff must lie between 0 and 100 Hz"):
        torque_runs(scene, [whole], TorqueOptions(cutoff=150.0))
    still = whole.with_columns({"q": np.zeros((len(whole), 4)), "v": np.zeros((len(whole), 4))})
    with pytest.raises(BadInput, match="rows in which the robot moves"):
        measure_torque_gap(scene, [still])


def test_the_command_writes_scores_and_applies_limits(scene, tmp_path, capsys):
    write_dataset([recording(scene.model, seed) for seed in (0, 1)], tmp_path / "data")
    command = ["torque", str(tmp_path / "data"), str(scene.root / "arm.xml"), "--compare"]
    command += ["--out", str(tmp_path / "out")]
    assert main(command) == 0
    scores = json.loads((tmp_path / "out" / "result.json").read_text())["scores"]
    assert scores["torque error"]["unit"] == "%" and scores["elbow rms"]["unit"] == "Nm"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Error of each joint" in page and "shoulder" in page
    assert main([*command, "--limit", "torque error=0.5"]) == 1
    assert "A limit is broken: torque error is" in capsys.readouterr().out


def _inertial(scene: Scene, body: int) -> np.ndarray:
    return inertial_parameters(scene.model, [body])
