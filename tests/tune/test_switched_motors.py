"""Recordings in which a servo lifts a mass and is switched off: read, measured and identified with the motor off."""

from __future__ import annotations

import json

import numpy as np
import pytest

from instep.core.world import advance
from instep.data import load_episodes
from instep.gap.measure import measure_gap
from instep.gap.preparation import check_data
from instep.physics.actuators import with_inputs
from instep.physics.engines import open_world, without_delta
from instep.scene.folder import Scene
from instep.tune import TuneOptions, identify
from instep.tune.recording_checks import recording_problems, scene_problems

TRUTH = {"joint.servo.damping": 0.018, "joint.servo.frictionloss": 0.012}
"""Planted values, away from the scene's 0.0105 and 0.007."""


@pytest.fixture(scope="module")
def drops(tmp_path_factory):
    """A folder of lifts and drops as the bench of the XL330 writes them: the motor is off from 1.2 s on."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "raw").mkdir()
    for kp in (100, 200, 800):
        (folder / "raw" / f"kp{kp}.json").write_text(json.dumps(recorded(kp)))
    return folder


def recorded(kp, seconds=3.0):
    sim = without_delta("servo_pendulum").tuned(TRUTH)
    dt, rng = sim.spec.dt, np.random.default_rng(kp)
    state, entries = sim.place(np.zeros(1), np.zeros(1)), list[dict[str, object]]()
    for row in range(round(seconds / dt)):
        t = row * dt
        on, goal = t < 1.2, -1.4 * min(t / 1.0, 1.0)
        position = float(state.q[0] + rng.normal(0, 3e-4))
        entry = {"position": position, "speed": float(state.v[0]), "load": 0, "input_volts": 7.4, "temp": 30}
        entries.append({**entry, "timestamp": t, "goal_position": goal, "torque_enable": on})
        state = advance(sim, state, np.array([goal, kp, float(on)]))
    header = {"mass": 0.49, "length": 0.1, "kp": kp, "vin": 7.4, "motor": "xl330", "trajectory": "lift_and_drop"}
    return {**header, "entries": entries}


def test_the_log_says_when_the_motor_was_off(drops):
    run = load_episodes(drops, "xl330")[0]
    assert run.spec.inputs.labels == ("servo.enable",)
    off = run.t > 1.2 + 1e-6
    np.testing.assert_array_equal(run["inputs"][:, 0], np.where(off | np.isclose(run.t, 1.2), 0.0, 1.0))
    np.testing.assert_array_equal(run.powered, ~(off | np.isclose(run.t, 1.2)))


def test_a_drop_is_replayed_with_the_motor_off(drops):
    runs = load_episodes(drops, "xl330")
    sim = open_world("servo_pendulum").tuned(TRUTH)
    # Three tenths of a milliradian of noise; with the motor held on the mass stays up, 900 mrad away.
    assert measure_gap(sim, runs).curves["servo"].estimates[-1].value < 5e-3
    held_on = [run.with_columns({"inputs": np.ones_like(run["inputs"])}) for run in runs]
    assert measure_gap(sim, held_on).curves["servo"].estimates[-1].value > 0.2


def test_rows_without_power_are_not_judged_against_their_command(drops):
    runs = load_episodes(drops, "xl330")
    assert not [p for p in check_data(runs).problems if p.check in ("offset", "order", "frozen", "gain")]
    held_on = [run.with_columns({"inputs": np.ones_like(run["inputs"])}) for run in runs]
    assert [p for p in check_data(held_on).problems if p.check == "offset"]
    never = [run.rows(240).with_columns({}) for run in runs]
    assert not never[0].powered.any() and len(never[0].powered_stretch()) == 0
    assert not [p for p in check_data(never).problems if p.check == "offset"]
    assert scene_problems(Scene.load("servo_pendulum"), never) == recording_problems(never) == []


def test_friction_is_identified_from_drops(drops):
    scene = Scene.load("servo_pendulum")
    options = TuneOptions(window=0.5, windows=24, seeds=2, draws=0)
    found = identify(scene, with_inputs(scene, load_episodes(drops, "xl330")), tuple(TRUTH), options)
    for name, value in TRUTH.items():
        assert found.values[name] == pytest.approx(value, rel=0.1)


def test_drops_of_a_real_servo_are_replayed_with_the_motor_off(recordings):
    folder = recordings / "xl330"
    runs = [run for run in load_episodes(folder, "xl330") if not run.powered.all()] if folder.is_dir() else []
    if not runs:
        pytest.skip(f"needs recordings: there is no drop of the XL330 at {folder}")
    scene = Scene.load("servo_pendulum")
    for run in with_inputs(scene, runs):
        assert measure_gap(scene, [run]).curves["servo"].estimates[-1].value < 0.06
