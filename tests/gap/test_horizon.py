"""The horizon curve."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from instep import BadInput, MujocoWorld, replay
from instep.gap.gap_result import Gap
from instep.gap.horizon import HorizonOptions, measure_horizon


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


def test_a_measurement_is_the_same_twice(arm: MujocoWorld, runs):
    first, second = measure_horizon(arm, runs), measure_horizon(arm, runs)
    assert isinstance(first, Gap) and first.scores == second.scores
