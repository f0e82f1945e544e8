"""Gates say in words what passed and what did not."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.progress import Progress
from instep.tune.fit.searches import FitTask
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.fit.uncertainty import assess_fit
from instep.tune.gated_fit import gated_fit, split, window_errors
from instep.tune.gates import TuneOptions
from instep.tune.posterior.posterior_checks import independent_values

QUICK = ShootingOptions(window=0.5, guesses=1)
GATES = TuneOptions(seeds=3, draws=4)


def test_inertia_stiffness_and_damping_scaled_together_are_named_and_one_is_frozen(weightless, recorded):
    names = ["joint.hinge.armature", "actuator.hinge.kp", "actuator.hinge.kv"]
    params = weightless.scene.params(*names)
    truth = {names[0]: 0.03, names[1]: 6.0, names[2]: 0.15, "joint.hinge.damping": 1e-6}
    found = fit(weightless.tuned({"joint.hinge.damping": 1e-6}), recorded(weightless, truth, range(3)), params, QUICK)
    weak = assess_fit(found)
    assert len(weak.weak) == 1
    assert {name for name, _ in weak.weak[0].parts} == set(names)
    assert len({np.sign(share) for _, share in weak.weak[0].parts}) == 1
    assert "rise together" in weak.weak[0].message
    assert len(weak.unidentifiable) == 1


def test_a_param_without_effect_is_named_and_left_alone(servo, recorded):
    names = ["joint.hinge.damping", "joint.other.damping"]
    params = servo.scene.params(*names)
    episodes = [
        Episode(e.spec, {**e.columns, "q": e.q * [1.0, 0.0]}, e.meta)
        for e in recorded(servo, {"joint.hinge.damping": 0.2}, range(3))
    ]
    weak = assess_fit(fit(servo, episodes, params, QUICK))
    assert weak.unidentifiable == ("joint.other.damping",)
    assert weak.weak[0].message == "the recordings hold no information about 'joint.other.damping'"


def test_a_sound_run_passes_every_gate(servo, recorded):
    truth = {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0}
    params = servo.scene.params(*truth)
    options = ShootingOptions(window=0.5, guesses=1, initial={"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0})
    result = gated_fit(FitTask(servo, params, options), *split(recorded(servo, truth, range(6))), GATES)
    assert [g.name for g in result.gates] == [
        "telemetry",
        "identifiability",
        "solve",
        "recovery",
        "whiteness",
        "held-out",
    ]
    assert result.passed, [g.message for g in result.gates if not g.passed]
    assert result.settings["actuator.hinge.kp"] == pytest.approx(6.0, rel=0.02)


def test_params_told_only_together_are_turned_and_stay_near_where_they_were(weightless, recorded):
    names = ["joint.hinge.armature", "actuator.hinge.kp", "actuator.hinge.kv"]
    truth = {names[0]: 0.03, names[1]: 6.0, names[2]: 0.15, "joint.hinge.damping": 1e-6}
    sim = weightless.tuned({"joint.hinge.damping": 1e-6})
    start = {names[0]: 0.03, names[1]: 3.0, names[2]: 0.15}
    options = ShootingOptions(window=0.5, guesses=1, initial=start)
    episodes = split(recorded(weightless, truth, range(6)))
    result = gated_fit(FitTask(sim, weightless.scene.params(*names), options), *episodes, TuneOptions(seeds=1, draws=0))
    found = result.settings
    assert len(result.identifiability.confounded) == 1 and not result.identifiability.unobservable
    assert f"held near the initial values by a prior: {result.identifiability.confounded[0]}" in result.gates[1].message
    assert found[names[1]] / found[names[0]] == pytest.approx(200, rel=0.02)
    assert found[names[2]] / found[names[0]] == pytest.approx(5, rel=0.02)
    assert 0.5 < found[result.identifiability.confounded[0]] / start[result.identifiability.confounded[0]] < 2.0


def test_a_param_that_was_right_already_is_not_promoted(servo, recorded):
    names = ["joint.hinge.damping"]
    params = servo.scene.params(*names)
    options = ShootingOptions(window=0.5, guesses=1, initial={names[0]: 0.05})
    result = gated_fit(
        FitTask(servo, params, options), *split(recorded(servo, {}, range(6))), TuneOptions(seeds=1, draws=0)
    )
    held_out = result.gates[-1]
    assert not held_out.passed
    assert not result.passed
    assert "At least 5 %" in held_out.message


@pytest.mark.parametrize(
    ("gates", "names"),
    [
        (TuneOptions(seeds=1, draws=2), ["solve"]),
        (TuneOptions(seeds=2, draws=2), ["solve"]),
        (TuneOptions(seeds=3, draws=0), ["recovery"]),
    ],
)
def test_a_gate_that_was_not_run_is_not_passed_and_nothing_is_promoted(servo, recorded, gates, names):
    truth = {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0}
    options = ShootingOptions(window=0.5, guesses=1, initial={"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0})
    result = gated_fit(
        FitTask(servo, servo.scene.params(*truth), options), *split(recorded(servo, truth, range(3))), gates
    )
    missing = [gate for gate in result.gates if gate.state == "not run"]
    assert [gate.name for gate in missing] == names
    assert not any(gate.passed for gate in missing) and not result.passed
    assert all("--" in gate.remedy for gate in missing), "an option that runs it is named"


def test_a_spent_budget_keeps_the_best_so_far_and_leaves_gates_not_run(servo, recorded):
    truth = {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0}
    start = {"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0}
    options = ShootingOptions(window=0.5, guesses=1, initial=start, tolerance=1e-12)
    episodes = split(recorded(servo, truth, range(6)))
    result = gated_fit(FitTask(servo, servo.scene.params(*truth), options), *episodes, progress=Progress(budget=0.2))
    assert {gate.name: gate.state for gate in result.gates}["solve"] == "not run"
    assert result.gates[3].state == "not run" and not result.passed
    assert set(result.settings) == set(truth)


def test_parameters_that_are_missed_together_count_as_one():
    apart = np.diag([4.0, 1.0, 0.25, np.inf])
    assert independent_values(apart) == pytest.approx(4)
    sums_only = np.kron(np.eye(2), np.ones((3, 3)))  # two groups of three that rise together
    assert independent_values(sums_only) == pytest.approx(2)
    assert independent_values(np.array([[1.0, 0.6], [0.6, 1.0]])) == pytest.approx(4 / 2.72)


@pytest.mark.parametrize("after", [1, 4, 12])
def test_stopping_by_hand_keeps_the_best_so_far_and_goes_no_further(servo, recorded, after):
    truth = {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0}
    start = {"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0}
    calls = 0

    def watch(iteration, cost, x):
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt

    options = ShootingOptions(window=0.5, guesses=1, initial=start, tolerance=1e-9)
    episodes, progress = split(recorded(servo, truth, range(6))), Progress(watch=watch)
    result = gated_fit(FitTask(servo, servo.scene.params(*truth), options), *episodes, progress=progress)
    assert calls == after
    assert not result.passed
    assert result.gates[2].state == "not run" and "Interrupted" in result.gates[2].message
    assert result.gates[3].state == "not run"
    assert all(not estimate.has_interval for estimate in result.fit.estimates.values())
    assert set(result.settings) == set(truth)
    assert abs(result.settings["actuator.hinge.kp"] - 6.0) < 2.0


def test_recordings_where_nothing_moves_are_refused(servo, recorded):
    episode = recorded(servo, {}, [0])[0]
    still = Episode(episode.spec, {**episode.columns, "q": np.zeros_like(episode.q)}, {})
    with pytest.raises(BadInput, match="Nothing moves"):
        fit(servo, [still], servo.scene.params("joint.hinge.damping"), QUICK)


def test_a_clock_that_runs_backwards_is_a_fault(servo, recorded):
    episodes = recorded(servo, {}, range(2))
    t = episodes[1].t.copy()
    t[50] = t[49] - 0.1
    bad = episodes[1].with_columns({"timestamp": t})
    params = servo.scene.params("joint.hinge.damping")
    with pytest.raises(BadInput, match="clock runs backwards or stands still at row 50"):
        gated_fit(FitTask(servo, params, QUICK), [episodes[0]], [bad], GATES)


def test_whole_runs_are_held_out(servo, recorded):
    episodes = recorded(servo, {}, range(7), steps=20)
    fitted, held_out = split(episodes)
    assert len(fitted) == 5
    assert len(held_out) == 2
    assert not {id(e) for e in fitted} & {id(e) for e in held_out}


def test_no_motion_of_a_plan_is_held_out_alone(servo, recorded):
    runs = recorded(servo, {}, [0], steps=20) * 9
    planned = [run.with_columns({}, motion=str(i % 3), gain=str(i // 3)) for i, run in enumerate(runs)]
    fitted, held_out = split(planned)
    assert len(held_out) == 3
    assert {run.meta["motion"] for run in fitted} == {run.meta["gain"] for run in fitted} == {"0", "1", "2"}


def test_a_run_is_judged_against_the_scene_as_it_was_given(servo, recorded):
    # The two dampings are not identifiable separately, so one is held; not where it was, which was far off.
    start = {"joint.hinge.damping": 0.05, "actuator.hinge.kv": 3.0}
    fitted, held_out = split(recorded(servo, {"joint.hinge.damping": 0.2}, range(6)))
    options = ShootingOptions(window=0.5, guesses=1, initial=start)
    result = gated_fit(
        FitTask(servo, servo.scene.params(*start), options), fitted, held_out, TuneOptions(seeds=1, draws=0)
    )
    assert len(result.identifiability.unidentifiable) == 1
    squares, _ = window_errors(servo, held_out, start, 0.5)
    assert result.comparison.channels["hinge"][0] == pytest.approx(float(np.sqrt(squares[:, 0].mean())))


def test_a_fit_that_beats_only_its_own_bad_start_is_not_promoted(servo, recorded):
    # The scene is right as it is; the search begins far from it and is cut short on the way back.
    start = {"joint.hinge.damping": 2.0, "actuator.hinge.kp": 1.0}
    episodes = split(recorded(servo, {}, range(6)))
    options = ShootingOptions(window=0.5, guesses=1, initial=start, iterations=1)
    params = servo.scene.params(*start)
    loose = gated_fit(FitTask(servo, params, options), *episodes, TuneOptions(seeds=1, draws=0))
    assert loose.gates[-1].passed, "it is better than its start"
    strict = gated_fit(FitTask(servo, params, options, given=servo), *episodes, TuneOptions(seeds=1, draws=0))
    assert not strict.gates[-1].passed and not strict.passed
    assert strict.comparison.worse_over_whole_runs, "and worse than the scene as it was given"
