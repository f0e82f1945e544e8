"""The horizon curve."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from instep import BadInput, UnknownName, replay
from instep.core.poses import quat_exp
from instep.core.world import vector
from instep.gap.horizon import HorizonOptions, channels, circular_std, measure_horizon, wrapped


def test_a_world_has_no_gap_to_itself(arm, runs):
    same = arm.tuned({"joint.shoulder.damping": 1.0, "joint.elbow.damping": 0.4})
    gap = measure_horizon(same, runs)
    # Not exactly zero: a warm start is not in a recording, so the solver may stop at another last bit.
    assert max(e.value for e in gap.curves["overall"].estimates) < 1e-6


def test_full_is_the_open_loop_replay_and_one_step_the_replay_anchored_at_every_row(arm, runs):
    options = HorizonOptions(every=0.02)
    gap = measure_horizon(arm, runs, options=options)
    for anchor, horizon in ((None, inf), (1, 0.0)):
        squares = [(replay(arm, run, anchor=anchor).q - run.q)[1:] ** 2 for run in runs]
        expected = np.sqrt(np.concatenate(squares).mean(axis=0))
        found = [gap.curves[label].at(horizon).value for label in arm.spec.q.labels]
        # Batches and single worlds agree to the last bits only, since the solver warm-starts differently.
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_point_of_the_curve_is_the_error_k_rows_after_each_placement(arm, runs):
    gap = measure_horizon(arm, runs[:1], options=HorizonOptions(horizons=(0.1,), every=0.1))
    steps = replay(arm, runs[0], anchor=5)
    rows = np.arange(5, len(runs[0]), 5)
    expected = np.sqrt(((steps.q - runs[0].q)[rows] ** 2).mean(axis=0))
    np.testing.assert_allclose(gap.curves["elbow"].estimates[0].value, expected[1], rtol=1e-6)


def test_units_never_mix_and_one_scale_serves_all_channels_of_a_unit(arm, runs):
    gap = measure_horizon(arm, runs)
    rad, slide = gap.curves["all rad"], gap.curves["slide"]
    joints = [gap.curves[name].at(0.5).value for name in ("shoulder", "elbow")]
    assert rad.unit == "rad" and slide.unit == "m"
    assert rad.at(0.5).value == pytest.approx(np.sqrt(np.mean(np.square(joints))))


def test_every_score_has_an_interval_over_runs(arm, runs):
    gap = measure_horizon(arm, runs)
    for horizon in ("1 step", "0.5 s", "full"):
        score = gap.scores[f"overall@{horizon}"]
        assert 0 < score.low < score.value < score.high and score.n == len(runs)


def test_the_error_grows_with_the_horizon_where_friction_is_wrong(arm, runs):
    curve = measure_horizon(arm, runs, options=HorizonOptions(horizons=(0.0, 0.06, 0.1))).curves["all rad"]
    step, soon, later = (curve.at(h).value for h in (0.02, 0.06, 0.1))
    assert step < soon < later and later > 2 * step


def test_horizons_longer_than_every_run_are_left_out(arm, runs):
    gap = measure_horizon(arm, [run.rows(0, 20) for run in runs])
    assert gap.curves["overall"].names() == ("1 step", "0.1 s", "0.25 s", "full")


def test_a_window_that_diverges_is_counted_and_does_not_hurt_the_others(arm, runs):
    kicked = runs[1].with_columns({"v": np.where(np.arange(200)[:, None] == 100, 1e9, runs[1].v)})
    options = HorizonOptions(every=0.02 * 100)
    broken = measure_horizon(arm, [runs[0], kicked], options=options)
    sound = measure_horizon(arm, [runs[0], runs[1]], options=options)
    assert any("windows diverged" in note for note in broken.notes)
    assert broken.curves["elbow"].at(inf).value == pytest.approx(sound.curves["elbow"].at(inf).value)


def test_a_replay_that_diverges_is_a_score(arm, runs):
    wild = runs[0].with_columns({"v": runs[0].v + 1e9 * (np.arange(200)[:, None] == 0)})
    gap = measure_horizon(arm, [wild, runs[1]])
    assert gap.scores["diverged runs"].value == 0.5
    assert np.isnan(gap.pairs[0].sim.q[1:]).all() and np.isfinite(gap.pairs[1].sim.q).all()


def test_nothing_to_measure_is_said_in_one_sentence(arm, runs):
    with pytest.raises(BadInput, match="the dataset holds none"):
        measure_horizon(arm, [])
    with pytest.raises(BadInput, match="has 1 row; a gap needs at least two"):
        measure_horizon(arm, [runs[0].rows(0, 1)])


BODY = vector(["hinge", *(f"cube.{p}" for p in ("x", "y", "z", "qw", "qx", "qy", "qz"))], ["rad", *"mmm", *"1111"])


def test_an_orientation_is_one_channel_the_angle_between():
    compared = channels(BODY)
    assert compared.names == ("hinge", "cube.x", "cube.y", "cube.z", "cube.turn")
    a = np.concatenate([[0.0, 0, 0, 0], quat_exp(np.array([0.0, 0.0, 0.2]))])
    b = np.concatenate([[0.1, 0, 0, 1], -quat_exp(np.array([0.0, 0.0, -0.3]))])
    np.testing.assert_allclose(compared.difference(a, b), [-0.1, 0, 0, -1, 0.5], atol=1e-12)


def test_only_angles_that_go_round_are_wrapped():
    spec = vector(["wheel", "elbow"], "rad")
    compared = channels(spec, None, ["wheel"])
    np.testing.assert_allclose(compared.difference(np.array([3.0, 3.0]), np.array([-3.0, -3.0])), [6 - 2 * np.pi, 6.0])
    with pytest.raises(UnknownName, match="weel"):
        channels(spec, None, ["weel"])


def test_only_what_was_seen_is_compared():
    compared = channels(vector(["a", "b", "c"], "rad"), np.array([True, True, False]), ["b"])
    apart = compared.difference(np.array([[1.0, 3.0, 9.0]]), np.array([[0.5, -3.0, np.nan]]))
    np.testing.assert_allclose(apart, [[0.5, 6 - 2 * np.pi]])


def test_wrapping_ends_in_minus_pi_to_pi():
    np.testing.assert_allclose(wrapped(np.array([np.pi, -np.pi, 3 * np.pi, 0.0])), [np.pi, np.pi, np.pi, 0.0])


def test_circular_spread_does_not_see_the_jump_at_pi():
    angle = wrapped(np.pi + np.random.default_rng(0).normal(0, 0.11, 4000))
    assert np.std(angle) > 1.0
    assert circular_std(angle) == pytest.approx(0.11, rel=0.05)


def test_drift_takes_off_what_already_differed():
    compared = channels(BODY)
    start, end = np.zeros(8), np.zeros(8)
    start[4:] = quat_exp(np.array([0.0, 0.0, 0.3]))
    end[4:] = quat_exp(np.array([0.0, 0.0, 0.5]))
    still = np.zeros(8)
    still[4:] = quat_exp(np.array([1.0, 0.0, 0.0]))
    end[1] = 2.0
    start[1] = 1.5
    np.testing.assert_allclose(compared.drift((start, end), (still, still)), [0, 0.5, 0, 0, 0.2], atol=1e-12)


def test_a_still_channel_keeps_the_scale_of_its_unit():
    rng = np.random.default_rng(1)
    q = np.zeros((500, 8))
    q[:, 4] = 1.0
    q[:, 1] = rng.normal(0, 1.0, 500)
    scales = channels(BODY).scales([q])
    assert scales["m"] == pytest.approx(np.std(q[:, 1]) / np.sqrt(3))
    assert scales["rad"] == 1.0


def test_worlds_that_share_nothing_are_refused():
    with pytest.raises(BadInput, match="share no position"):
        channels(BODY, np.zeros(8, bool))
