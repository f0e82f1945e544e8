"""Recordings at another rate or with uneven clocks are resampled to the rate of the scene, and it is said."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.app.cli import main
from instep.core.rollout import Script, rollout
from instep.core.world import Spec, vector
from instep.data import write_dataset
from instep.gap.measure import measure_gap
from instep.gap.preparation import check_data, recorded_at_rate
from instep.physics.engines import open_world
from instep.report.page import render
from instep.report.tune_pages import identification_page
from instep.scene.folder import scene_for, scene_of_file
from instep.tune import TuneOptions, identify
from small_models import servo_model


@pytest.fixture
def robot(tmp_path):
    path = tmp_path / "arm.xml"
    values = {"timestep": 0.002, "damping": 0.3, "armature": 0.01, "mass": 0.5, "kp": 20.0, "kv": 0.0}
    path.write_text(servo_model(joint="shoulder", **values))
    return path


def moves(robot, rate, seconds=4.0, phase=0.0, **settings):
    """A run of the robot at a rate, its commands a wave that changes at every step."""
    sim = open_world(scene_of_file(robot, rate)).tuned({"actuator.shoulder.kp": 25.0, **settings})
    t = np.arange(round(seconds * rate))[:, None] / rate
    return rollout(sim, Script(0.6 * np.sin(2 * np.pi * 0.8 * t + phase)), steps=len(t))


@pytest.mark.parametrize("rate", [250.0, 125.0, 20.0])
def test_a_run_at_another_rate_is_replayed_as_well_as_one_at_the_scene_s(robot, rate):
    sim = open_world(scene_of_file(robot, 50.0)).tuned({"actuator.shoulder.kp": 25.0})
    gap = measure_gap(sim, [moves(robot, rate)])
    # The commanded wave moves by 0.06 rad in a period of the scene; a command half a period late would cost a third.
    assert gap.curves["shoulder"].estimates[-1].value < 0.004
    assert f"1 recording at {rate:g} Hz was resampled to 50 Hz." in gap.notes


def test_runs_at_the_scene_s_rate_are_left_alone(robot):
    run = moves(robot, 50.0)
    (same,), notes = recorded_at_rate([run], 0.02)
    assert same is run and notes == []


def test_each_group_of_runs_gets_its_sentence(robot):
    runs = [moves(robot, 125.0), moves(robot, 125.0), moves(robot, 50.0), uneven(robot)]
    resampled, notes = recorded_at_rate(runs, 0.02)
    assert notes == [
        "2 recordings at 125 Hz were resampled to 50 Hz.",
        "1 recording with uneven clocks was resampled to 50 Hz.",
    ]
    assert {run.spec.dt for run in resampled} == {0.02}
    assert all(np.allclose(np.diff(run.t), 0.02) for run in resampled)


def uneven(robot, seconds=4.0):
    """A run of a robot whose control loop is uneven: it reads and commands every 12 to 28 ms."""
    fast = open_world(scene_of_file(robot, 500.0)).tuned({"actuator.shoulder.kp": 25.0})
    rows = np.cumsum(np.random.default_rng(0).integers(6, 15, round(seconds * 50)))
    wave = 0.6 * np.sin(2 * np.pi * 0.8 * rows / 500)
    held = wave[np.clip(np.searchsorted(rows, np.arange(rows[-1] + 1), side="right") - 1, 0, None)]
    run = rollout(fast, Script(held[:, None]), steps=len(held))
    columns = {name: column[rows] for name, column in run.columns.items()}
    return Episode(replace(run.spec, dt=0.02), columns)


def test_an_uneven_clock_does_not_count_as_an_error_of_the_model(robot):
    sim = open_world(scene_of_file(robot, 50.0)).tuned({"actuator.shoulder.kp": 25.0})
    run = uneven(robot)
    blind = Episode(run.spec, {**run.columns, "timestamp": np.arange(len(run)) * 0.02})
    with_clock, without = (measure_gap(sim, [e]).curves["shoulder"].estimates[-1].value for e in (run, blind))
    assert with_clock < 0.5 * without


def test_noise_that_a_lower_rate_cannot_hold_is_filtered_out():
    t, rng = np.arange(4000) / 1000, np.random.default_rng(0)
    q = np.sin(2 * np.pi * t)[:, None]
    spec = Spec(1e-3, vector(["a"], "rad"), vector(["a"], "rad/s"), vector([]))
    noisy = Episode(spec, {"timestamp": t, "q": q + rng.normal(0, 0.01, q.shape)})
    (run,), _ = recorded_at_rate([noisy], 0.02)
    error = run.q[:, 0] - np.sin(2 * np.pi * run.t)
    assert error.std() < 0.003 and abs(error[5:-5].mean()) < 1e-3


def test_a_turn_of_a_continuous_joint_is_not_smeared():
    t = np.arange(2000) / 500
    q = (np.pi - np.mod(np.pi - 3.0 * t, 2 * np.pi))[:, None]
    spec = Spec(2e-3, vector(["a"], "rad"), vector(["a"], "rad/s"), vector([]))
    (run,), _ = recorded_at_rate([Episode(spec, {"timestamp": t, "q": q})], 0.02)
    np.testing.assert_allclose(run.q[:, 0], 3.0 * run.t, atol=1e-6)
    np.testing.assert_allclose(run["v"][:, 0], 3.0, atol=1e-6)


def test_time_that_stands_still_is_refused_with_the_name_of_the_run(robot):
    run = moves(robot, 125.0).with_columns({}, name="third")
    t = run.t.copy()
    t[10] = t[9]
    with pytest.raises(BadInput, match=r"Run 'third' is not 50 Hz. Time does not advance at row 10"):
        recorded_at_rate([run.with_columns({"timestamp": t})], 0.02)


def test_a_robot_file_runs_at_the_rate_of_its_recordings(robot):
    runs = [moves(robot, 125.0)]
    assert scene_for(robot, runs).dt == pytest.approx(0.008)
    assert scene_for(robot, runs, rate=50.0).dt == pytest.approx(0.02)
    assert scene_for("pusht", runs).dt == pytest.approx(scene_for("pusht", []).dt)


def test_identification_takes_runs_at_other_rates(robot):
    runs = [moves(robot, rate, phase=i) for i, rate in enumerate((250.0, 100.0, 50.0))]
    options = TuneOptions(window=0.5, windows=24, seeds=2, draws=0)
    found = identify(scene_of_file(robot, 100.0), runs, ("actuator.shoulder.kp",), options)
    assert found.values["actuator.shoulder.kp"] == pytest.approx(25.0, rel=0.05)
    assert "1 recording at 250 Hz was resampled to 100 Hz." in found.as_dict()["notes"]
    assert "resampled to 100 Hz" in render(identification_page(found))


def test_the_verbs_say_what_was_resampled(robot, tmp_path, capsys):
    write_dataset(
        [moves(robot, 125.0), moves(robot, 125.0, phase=1.0), moves(robot, 125.0, phase=2.0)], tmp_path / "set"
    )
    words = [str(tmp_path / "set"), str(robot), "--rate", "50"]
    assert main(["gap", *words, "--plain", "--out", str(tmp_path / "gap")]) == 0
    sentence = "3 recordings at 125 Hz were resampled to 50 Hz."
    assert sentence in capsys.readouterr().err
    assert sentence in json.loads((tmp_path / "gap" / "result.json").read_text())["notes"]
    assert sentence in (tmp_path / "gap" / "report.html").read_text()
    tuned = ["--params", "actuator.shoulder.kp", "--seeds", "1", "--draws", "0", "--out", str(tmp_path / "tune")]
    assert main(["tune", *words, *tuned]) in (0, 1)
    assert sentence in capsys.readouterr().err
    assert json.loads((tmp_path / "tune" / "result.json").read_text())["notes"] == [sentence]


def change(runs, column, rows=slice(None), place=None, factor=1.0, value=None, shift=0.0):
    """The runs with a part of one column scaled, shifted or replaced."""
    out = []
    for run in runs:
        values = np.array(run[column], float)
        part = rows if place is None else (rows, place)
        values[part] = factor * values[part] + shift if value is None else value
        out.append(run.with_columns({column: values}))
    return out


def swapped(runs):
    return [run.with_columns({"action": run["action"][:, [1, 0, 2]]}) for run in runs]


DEGREES = 180 / np.pi
SPOILT = {
    "nan": ("q", {"rows": 7, "place": 1, "value": np.nan}, "'elbow' in 'q' of run 'run 0' is not a finite number"),
    "clock back": ("timestamp", {"rows": 50, "value": 0.9}, "Time goes back at row 50"),
    "clock stands": ("timestamp", {"rows": slice(49, 51), "value": 0.98}, "Time stands still at row 50"),
    "milliseconds": ("timestamp", {"factor": 1000}, "milliseconds instead of seconds"),
    "sign": ("q", {"place": 0, "factor": -1}, "'shoulder' moves against its command"),
    "frozen": ("q", {"place": 1, "value": 0.1}, "'elbow' is frozen in 6 of the 6 runs"),
    "all frozen": ("q", {"rows": slice(60, 120), "value": 0.1}, "All positions of run 'run 0' stand still for 1.2 s"),
    "degrees": ("q", {"place": 1, "factor": DEGREES}, "'elbow' answers its command .*degrees and radians"),
    "degrees of commands": ("action", {"place": 1, "factor": DEGREES}, "'elbow' answers its command .*degrees"),
    "millimetres": ("q", {"place": 2, "factor": 1000}, "'slide' answers its command"),
    "velocities": ("v", {"place": 0, "factor": DEGREES}, "The velocity of 'shoulder' is"),
}  # fmt: skip


def test_sound_recordings_pass(runs):
    found = check_data(runs, limits={"shoulder": (-3, 3), "elbow": (-3, 3), "slide": (0, 0.1)})
    assert found.problems == ()
    found.require()


def test_nothing_is_refused(runs):
    with pytest.raises(BadInput, match="holds no episode"):
        check_data([])
    with pytest.raises(BadInput, match="has 1 row"):
        check_data([runs[0].rows(0, 1)])


@pytest.mark.parametrize(("column", "edit", "sentence"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_channel_is_named(runs, column, edit, sentence):
    errors = check_data(change(runs, column, **edit)).errors
    assert any(re.search(sentence, error.sentence) for error in errors), errors


def test_gaps_and_jitter_are_warned_of_and_many_gaps_refused(runs):
    found = check_data(change(runs, "timestamp", slice(100, None), shift=0.2))
    assert not found.errors and "6 gaps in the stamps, the longest 220 ms" in found.warnings[0].sentence
    many = [run.with_columns({"timestamp": run.t + 0.1 * (np.arange(len(run)) // 10)}) for run in runs]
    assert ("stamps", "timestamp") in [(f.check, f.channel) for f in check_data(many).errors]
    rng = np.random.default_rng(0)
    shaky = [run.with_columns({"timestamp": run.t + rng.uniform(-0.006, 0.006, len(run))}) for run in runs]
    assert any("scatter" in f.sentence for f in check_data(shaky).warnings)


def test_degrees_in_both_state_and_command_are_seen_by_the_range(runs):
    converted = change(change(runs, "q", place=1, factor=DEGREES), "action", place=1, factor=DEGREES)
    with pytest.raises(BadInput, match=r"'elbow' reaches .* degrees instead of rad"):
        check_data(converted, limits={"elbow": (-2.9, 2.9)}).require()


def test_swapped_joints_are_named_and_what_a_user_allows_becomes_a_warning(runs):
    with pytest.raises(BadInput, match=r"'shoulder' follows the command of 'elbow' .*order of the joints"):
        check_data(swapped(runs)).require()
    allowed = check_data(swapped(runs), allow=["order"])
    allowed.require()
    assert any(f.check == "order" for f in allowed.warnings)
    with pytest.raises(UnknownName, match="Did you mean 'order'"):
        check_data(runs, allow=["ordre"])


def test_a_wrong_zero_is_refused_and_a_small_one_warned_of(runs):
    commanded = change(runs, "action", value=[0.3, 0.0, 0.05])
    for shift, severity in ((1.0, "error"), (0.2, "warning")):
        parked = change(commanded, "q", value=[0.3 + shift, 0.0, 0.05])
        offsets = [f for f in check_data(parked).problems if f.check == "offset"]
        assert [(f.channel, f.severity) for f in offsets] == [("shoulder", severity)]


def test_recordings_without_actions_are_looked_at_too(runs):
    bare = [Episode(run.spec, {"timestamp": run.t, "q": run.q}, run.meta) for run in runs]
    assert check_data(bare).errors == ()


def test_one_joint_that_stands_still_may_stick_and_is_warned_of():
    spec = Spec(0.02, vector(["hinge"], "rad"), vector(["hinge"], "rad/s"), vector(["hinge"], "rad"))
    t = np.arange(200) * 0.02
    q = 0.5 * np.sin(3 * t)[:, None]
    commanded = np.sin(3 * t + 0.05)[:, None] * 0.5
    q[60:120] = q[60]
    found = check_data(
        [Episode(spec, {"timestamp": t, "q": q, "v": np.gradient(q, 0.02, axis=0), "action": commanded})]
    )
    assert not any("stand still" in f.sentence for f in found.errors)
    assert any("stand still" in f.sentence for f in found.warnings)
