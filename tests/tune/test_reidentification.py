"""Parameters are found again while a robot runs: sudden changes, drift, the gate of updates, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import Episode, Scene, open_world
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.world import Spec, vector
from instep.report.tune_pages import reidentification_page
from instep.tune import Reidentifier, ReidentifyOptions, online_params, reidentify
from instep.tune.online.parameter_filter import DriftOptions, ParameterFilter, WindowEvidence
from instep.tune.online.reidentification import Trial, UpdateOptions
from instep.tune.online.window_prediction import SampleBuffer

ARM = """<mujoco><option timestep="0.005" integrator="implicitfast"/><worldbody>
<body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 1 0" damping="0.2" frictionloss="0.4"/>
<geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" mass="2"/>
<body name="fore" pos="0.4 0 0"><joint name="elbow" axis="0 1 0" damping="0.1" frictionloss="0.2"/>
<geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.025" mass="1"/></body></body></worldbody>
<actuator><position name="shoulder" joint="shoulder" kp="200" kv="10"/>
<position name="elbow" joint="elbow" kp="120" kv="5"/></actuator></mujoco>"""
MASS, FRICTION = "body.fore.mass", "joint.shoulder.frictionloss"
NOISE = 1e-4


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    path = tmp_path_factory.mktemp("arm") / "arm.xml"
    path.write_text(ARM)
    scene = Scene.load(path)
    return replace(scene, reader=replace(scene.reader, spec=replace(scene.spec, dt=0.01)))


def recorded(scene: Scene, seconds: float, truth, seed: int = 0) -> Episode:
    """A run of the arm with noise; `truth` gives its settings at a time."""
    rng, n = np.random.default_rng(seed), round(seconds / scene.dt)
    t = scene.dt * np.arange(n)
    commands = np.stack([0.5 * np.sin(1.3 * t) + 0.2 * np.sin(4.1 * t), 0.6 * np.sin(1.9 * t + 1)], axis=1)
    fixed = {f"joint.{joint}.friction_stiffness": 0.9999 for joint in ("shoulder", "elbow")}
    sims = {}
    state, rows = None, []
    for k in range(n):
        settings = truth(t[k])
        key = tuple(settings.items())
        if key not in sims:
            sims[key] = open_world(scene, threads=1).tuned({**fixed, **settings})
        state = state or sims[key].reset(0)
        rows.append(state.q + NOISE * rng.standard_normal(2))
        state = sims[key].step(state, commands[k])
    return Episode(scene.spec, {"q": np.array(rows), "action": commands})


def test_a_payload_is_found_within_two_seconds_and_the_twin_is_updated(scene):
    episode = recorded(scene, 24.0, lambda t: {MASS: 1.5 if t >= 14 else 1.0})
    found = reidentify(scene, [episode], [MASS, "joint.*.frictionloss"])
    [change] = [event for event in found.events if event.kind == "change"]
    assert list(change.settings) == [MASS] and 14 < change.t < 16
    after = [point for point in found.points if point.t >= 16]
    assert all(abs(point.values[0] - 1.5) < 0.05 for point in after)
    assert np.mean([point.low[0] <= 1.5 <= point.high[0] for point in after]) >= 0.85
    applied = [event for event in found.events if event.kind == "applied" and event.t > change.t]
    assert applied and found.settings[MASS] == pytest.approx(1.5, rel=0.05)


def test_slow_drift_stays_inside_its_interval_and_is_no_change(scene):
    episode = recorded(scene, 30.0, lambda t: {FRICTION: round(0.4 * (1 + t / 30), 3)}, seed=5)
    found = reidentify(scene, [episode], ["joint.*.frictionloss"])
    inside = [p.low[0] <= 0.4 * (1 + p.t / 30) <= p.high[0] for p in found.points[20:]]
    assert np.mean(inside) >= 0.85
    assert found.counts()["change"] == 0


def test_inertia_that_the_scene_lacks_is_found_beside_friction_and_does_not_bias_it(scene):
    """A rotor of 0.02 kg m^2, which the scene has not."""
    inertia = "joint.shoulder.armature"
    episode = recorded(scene, 30.0, lambda t: {inertia: 0.02, FRICTION: round(0.4 * (1 + t / 30), 3)}, seed=7)
    found = reidentify(scene, [episode], ["joint.*.frictionloss"])
    assert np.mean([p.low[0] <= 0.4 * (1 + p.t / 30) <= p.high[0] for p in found.points[20:]]) >= 0.85
    index = [p.address for p in found.nuisances].index(inertia)
    assert found.points[-1].nuisance[index] == pytest.approx(0.02, abs=0.006)


@pytest.mark.parametrize(("readings", "windows"), [(0.5, 200.0), (1e-6, 4.0)])
def test_as_far_as_errors_are_of_the_model_an_interval_is_that_of_four_windows(readings, windows):
    """200 windows with errors of variance 1 in each bin: of readings (twice 0.5), or of what the model lacks."""
    rng, slope = np.random.default_rng(8), np.ones((1, 1, 5))
    options = DriftOptions(spread=20.0, drift=1e-6)
    found = ParameterFilter([Param("joint.a.damping", 0.0, 100.0, False, "")], np.array([0.5]), options)
    seen = [WindowEvidence(np.array([0.5]), rng.standard_normal((1, 5)), slope) for _ in range(220)]
    found.begin(found.first_estimate(seen[:20], 0.2, np.array([1e-3])))
    for one in seen[20:]:
        innovation = found.step(one, 0.2)
        found.learn_noise(one, innovation)
        found.learn_readings(np.array([readings]))
    own, said = found.now.variance[0], found.interval_variance[0]
    assert said >= own
    # A window of five bins with variance 1 has information 5.
    assert said == pytest.approx(1 / (5 * windows), rel=0.5)


def test_a_delay_that_is_off_by_milliseconds_is_found_beside_friction_and_does_not_bias_it(scene):
    episode = recorded(scene, 30.0, lambda t: {"action.delay": 0.005, FRICTION: round(0.4 * (1 + t / 30), 3)}, seed=6)

    def inside(nuisances: bool):
        found = reidentify(scene, [episode], ["joint.*.frictionloss"], ReidentifyOptions(nuisances=nuisances))
        kept = found.points[20:]
        return found, np.mean([p.low[0] <= 0.4 * (1 + p.t / 30) <= p.high[0] for p in kept])

    found, share = inside(True)
    assert share >= 0.85 and found.nuisances[0].address == "action.delay"
    assert found.points[-1].nuisance[0] == pytest.approx(0.005, abs=5e-4)
    assert inside(False)[1] < share


def test_estimates_do_not_depend_on_what_comes_after(scene):
    episode = recorded(scene, 10.0, lambda t: {MASS: 1.5 if t >= 7 else 1.0})
    whole, part = reidentify(scene, [episode], [MASS]), reidentify(scene, [episode.rows(0, 800)], [MASS])
    for a, b in zip(whole.points, part.points, strict=False):
        assert a.t == b.t and np.array_equal(a.values, b.values) and np.array_equal(a.low, b.low)
    assert len(part.points) > 30


def test_late_readings_are_put_where_they_were_taken(scene):
    episode = recorded(scene, 12.0, lambda t: {MASS: 1.2})
    selection = online_params(scene, [MASS])
    sim = open_world(scene, threads=1)
    direct = Reidentifier(sim, episode.spec, selection.params, selection.initial)
    late = Reidentifier(sim, episode.spec, selection.params, selection.initial)
    for k in range(len(episode)):
        t = k * scene.dt
        direct.add(t, episode.q[k], episode.action[k])
        late.add(t, episode.q[max(k - 3, 0)], episode.action[k], stamp=max(t - 3 * scene.dt, 0.0))
    a, b = direct.result(), late.result()
    assert np.allclose(a.points[40].values, b.points[40].values, rtol=1e-9)


def test_windows_across_a_gap_of_readings_are_not_taken():
    spec = Spec(0.01, vector(["a"], "rad"), vector(["a"], "rad/s"), vector(["a"], "rad"))
    buffer = SampleBuffer(spec, spec, 10, (np.zeros(1), np.zeros(1)))
    taken = 0
    for k in range(200):
        if 60 <= k < 75:
            continue
        taken += buffer.add(0.01 * k, np.array([0.001 * k]), np.zeros(1)) is not None
    assert 0 < buffer.lost <= 3 and taken >= 13


def test_the_gate_applies_what_is_better_refuses_what_is_not_and_rolls_back_what_turned_out_worse():
    rng, options = np.random.default_rng(0), UpdateOptions()

    def decided(applied: bool, gain: float) -> tuple[str, int]:
        trial = Trial(np.zeros(1), applied, options)
        for n in range(1, 200):
            error = 1 + 0.1 * rng.standard_normal()
            if (decision := trial.add(error, error - gain + 0.05 * rng.standard_normal())) is not None:
                return decision, n
        raise AssertionError("no decision")

    assert decided(False, 0.3) == ("applied", options.min_windows)
    assert decided(False, 0.0) == ("not applied", options.max_windows)
    assert decided(False, -0.3) == ("not applied", options.max_windows)
    assert decided(True, 0.3)[0] == "rolled back"
    assert decided(True, -0.3) == ("kept", options.watch_windows)


def test_an_update_that_turned_out_worse_is_rolled_back(scene):
    """A filter that knows no drift and no changes sticks to the mass that was carried at first; the gate does not."""
    episode = recorded(scene, 15.0, lambda t: {MASS: 1.4 if t < 7 else 1.0})
    filtered, change = ReidentifyOptions().filter, ReidentifyOptions().change
    stuck = ReidentifyOptions(filter=replace(filtered, spread=0.5, drift=1e-6), change=replace(change, threshold=1e9))
    found = reidentify(scene, [episode], [MASS], stuck)
    [applied] = [event for event in found.events if event.kind == "applied"]
    [back] = [event for event in found.events if event.kind == "rolled back"]
    assert applied.t < 7 < back.t and applied.settings[MASS] == pytest.approx(1.4, rel=0.05)
    assert found.settings[MASS] == pytest.approx(1.0)


def test_an_estimate_at_the_end_of_its_range_is_not_applied_and_says_so(scene):
    episode = recorded(scene, 15.0, lambda t: {MASS: 1.4})
    found = reidentify(scene, [episode], [MASS], bounds={MASS: (0.5, 1.2)})
    refused = [event for event in found.events if event.kind == "not applied"]
    assert refused and "body.fore.mass at the end of its range" in refused[0].words
    assert found.counts()["applied"] == 0 and found.settings[MASS] == pytest.approx(1.0)


def test_unknown_names_short_windows_and_other_robots_are_refused(scene):
    with pytest.raises(UnknownName, match=r"no parameter named 'joint.wrist.damping'"):
        online_params(scene, ["joint.wrist.damping"])
    with pytest.raises(BadInput, match=r"A window of 0.01 s is shorter than two control periods of 0.01 s"):
        reidentify(scene, [recorded(scene, 1.0, lambda t: {})], [MASS], ReidentifyOptions(window=0.01))
    other = Spec(0.01, vector(["x"], "rad"), vector(["x"], "rad/s"), vector(["shoulder", "elbow"], "rad"))
    with pytest.raises(BadInput, match="measures none of the joints of the scene"):
        Reidentifier(open_world(scene), other, [Param(MASS, 0.1, 2.0)], {MASS: 1.0})
    with pytest.raises(BadInput, match="at least one recording"):
        reidentify(scene, [], [MASS])


def test_automatic_parameters_are_the_carried_mass_and_dry_friction(scene):
    selection = online_params(scene)
    assert [p.address for p in selection.params] == [MASS, FRICTION, "joint.elbow.frictionloss"]
    assert not selection.params[0].log and selection.params[1].log


FAR = {"actuator.shoulder.kp": 100.0, "actuator.elbow.kp": 60.0}
"""Half the gains of the scene: no friction or payload explains that."""


def test_a_scene_far_from_its_robot_is_to_be_identified_first_and_no_change_is_claimed(scene):
    episode = recorded(scene, 16.0, lambda t: {**FAR, **({MASS: 1.5} if t > 10 else {})})
    found = reidentify(scene, [episode], [MASS, "joint.*.frictionloss"])
    [event] = found.events
    assert event.kind == "not described" and "Identify it first with instep tune" in event.words
    assert not found.ready and found.mismatch is not None and found.mismatch.share > 0.7
    assert found.mismatch.joint in ("shoulder", "elbow") and found.mismatch.error > 50 * found.mismatch.noise > 0
    assert found.settings[MASS] == pytest.approx(1.0) and not found.estimates[MASS].has_interval
    page = reidentification_page("arm", found, {})
    assert page.verdict.headline == "The scene does not describe this robot."


def test_estimates_begin_once_the_scene_describes_the_robot(scene):
    episode = recorded(scene, 16.0, lambda t: FAR if t < 5 else {})
    found = reidentify(scene, [episode], [MASS, "joint.*.frictionloss"])
    assert [event.kind for event in found.events][:2] == ["not described", "ready"]
    assert found.ready and found.mismatch is None and found.counts()["change"] == 0


def test_a_payload_there_from_the_start_and_a_robot_at_rest_are_no_mismatch(scene):
    loaded = reidentify(scene, [recorded(scene, 6.0, lambda t: {MASS: 1.5})], [MASS, "joint.*.frictionloss"])
    assert loaded.ready and loaded.mismatch is None
    sim = open_world(scene, threads=1)
    state = sim.reset(0)
    for _ in range(500):
        state = sim.step(state, np.zeros(2))
    q = state.q + NOISE * np.random.default_rng(1).standard_normal((600, 2))
    resting = reidentify(scene, [Episode(scene.spec, {"q": q, "action": np.zeros((600, 2))})], [MASS])
    assert resting.ready and resting.mismatch is None


def test_nothing_changes_where_nothing_changed(scene):
    found = reidentify(scene, [recorded(scene, 30.0, lambda t: {}, seed=3)], [MASS, "joint.*.frictionloss"])
    assert found.counts()["change"] == 0 and found.counts()["rolled back"] == 0
    assert found.estimates[MASS].low <= 1.0 <= found.estimates[MASS].high
