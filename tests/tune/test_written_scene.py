"""Never worse: what was written is opened from disk and compared with the scene as given."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from instep import MujocoWorld
from instep.core.statistics import Estimate
from instep.scene.folder import Scene
from instep.tune.gated_fit import compare
from instep.tune.param_export import promote
from instep.tune.scene_gates import check_written_scene

TRUTH = {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0}


@pytest.fixture
def checked(servo, recorded, tmp_path):
    """Writes a scene with some settings, and checks it against what the truth promised."""
    held_out = recorded(servo, TRUTH, range(2), steps=100)
    promised = compare(servo, servo.tuned(TRUTH), held_out, window=0.5)

    def check(settings, expected=promised):
        folder = promote(servo.scene, settings, tmp_path / "new", {})
        return check_written_scene(servo.scene, folder, held_out, expected, window=0.5)

    return check


def test_a_scene_that_holds_what_was_identified_passes(checked):
    gate = checked(TRUTH)
    assert gate.state == "passed", gate.message
    assert "Opened from disk" in gate.message and "whole runs" in gate.message


def test_a_scene_no_better_than_the_given_one_fails_even_where_that_was_promised(checked, servo, recorded):
    promised = compare(servo, servo, recorded(servo, TRUTH, range(2), steps=100), window=0.5)
    gate = checked({}, promised)
    assert gate.state == "failed" and "At least 5 %" in gate.message


def test_a_broken_scene_fails(servo, recorded, tmp_path):
    held_out = recorded(servo, TRUTH, range(2), steps=100)
    promised = compare(servo, servo.tuned(TRUTH), held_out, window=0.5)
    folder = promote(servo.scene, TRUTH, tmp_path / "new", {})
    (folder / "scene.xml").write_text("<mujoco>")
    gate = check_written_scene(servo.scene, folder, held_out, promised, window=0.5)
    assert gate.state == "failed" and "cannot be opened" in gate.message


def test_settings_that_are_better_in_windows_but_worse_over_whole_runs_are_not_better(servo, recorded):
    found = compare(servo, servo.tuned(TRUTH), recorded(servo, TRUTH, range(2), steps=100), window=0.5)
    assert found.better and found.open_loop is not None and found.open_loop.value > 0.5
    assert not replace(found, open_loop=Estimate(-0.1, -0.3, 0.1, 2)).better
    assert not replace(found, diverged=1).better
    assert replace(found, open_loop=None).better, "whole runs that nothing predicts do not count"


@pytest.mark.fault(45)
def test_a_diverging_simulator_is_never_better(servo, recorded):
    held_out = recorded(servo, {}, range(2), steps=60)
    found = compare(servo, servo.tuned({"actuator.hinge.kv": -200.0}), held_out, window=0.5)
    assert found.diverged > 0 and not found.better


def test_promotion_writes_the_last_gate_into_the_scene(servo, recorded, tmp_path):
    from instep.tune import TuneOptions, identify

    options = TuneOptions(window=0.5, seeds=3, draws=2, windows=24)
    found = identify(MujocoWorld(Scene.load(servo.scene.root)), recorded(servo, TRUTH, range(4)), list(TRUTH), options)
    final, folder = found.promoted(tmp_path / "out")
    assert final.passed and folder == tmp_path / "out" / "scene"
    assert final.gates[-1].name == "written scene" and final.gates[-1].passed
    assert json.loads((folder / "tuned.json").read_text())["gates"]["written scene"]["state"] == "passed"
