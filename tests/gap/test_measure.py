"""Gaps measured in one call, and how it is shown."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from instep import BadInput, Episode
from instep.core.world import Spec, vector
from instep.gap.gap_result import RunPair
from instep.gap.measure import (
    error_growth,
    measure_gap,
    measure_pairs,
    measure_recordings,
)
from instep.gap.paired_runs import outcomes, split_by_outcome, world_lag
from instep.report.gap_page import gap_page
from instep.report.page import render


def test_a_scene_and_its_simulator_give_the_same_gap(arm, runs):
    gap = measure_gap(arm, runs)
    again = measure_gap(arm.scene, runs)
    assert gap.scores["overall@0.5 s"] == again.scores["overall@0.5 s"]
    assert gap.following is not None and gap.growth is not None and len(gap.joint_errors) == len(runs)
    report = gap_page(gap)
    assert report.verdict.headline.startswith("The simulator is")
    page = render(report)
    for title in ("Error over the prediction horizon", "Error growth", "Command following", "Arms and tips"):
        assert title in page


def test_paired_runs_have_their_lag(arm, runs):
    late = [run.with_columns({"q": np.roll(run.q, 5, axis=0)}).rows(5) for run in runs]
    gap = measure_pairs([run.rows(5) for run in runs], late, scene=arm.scene)
    assert gap.kind == "paired" and gap_page(gap).verdict.headline.startswith("The two worlds are")
    assert gap.scores["lag of the second world"].value == pytest.approx(0.1, abs=0.01)


def test_recordings_alone_are_compared_with_their_commands(runs):
    gap = measure_recordings(runs)
    assert gap.kind == "commands" and "lag: all rad" in gap.scores
    assert "Command following" in render(gap_page(gap))


def test_no_runs_are_refused(arm):
    with pytest.raises(BadInput, match="at least one recorded run"):
        measure_gap(arm, [])


T = np.arange(1, 400) * 0.01


def noisy(curve, runs=6, seed=0):
    rng = np.random.default_rng(seed)
    return [T] * runs, [curve * np.exp(rng.normal(0, 0.05, len(T))) for _ in range(runs)]


@pytest.mark.parametrize(
    ("curve", "shape", "rate"),
    [
        (1e-3 * np.exp(1.5 * T), "exponential", 1.5),
        (1e-2 * T**0.5, "power", 0.5),
        (1e-2 * T**2, "power", 2.0),
        (0.5 / (1 + np.exp(-4 * (T - 1.5))), "logistic", 4.0),
    ],
)
def test_the_shape_of_growth_and_its_rate_are_found(curve, shape, rate):
    found = error_growth(*noisy(curve))
    assert found.shape == shape
    assert found.rate.value == pytest.approx(rate, rel=0.08)
    assert found.weights[shape] > 0.7


def test_an_exponential_error_doubles_in_a_time():
    found = error_growth(*noisy(1e-3 * np.exp(2 * T)))
    assert found.doubling.value == pytest.approx(log(2) / 2, rel=0.05)
    assert found.doubling.low < found.doubling.value < found.doubling.high


def test_an_error_that_does_not_rise_has_no_growth():
    with pytest.raises(BadInput, match="no growth to fit"):
        error_growth(*noisy(np.full(len(T), 0.1)))


SPEC = Spec(0.01, vector(["arm", "pole"], "rad"), vector(["arm", "pole"], "rad/s"), vector(["u"], "V"))


def swing(end, seed, **meta):
    rng = np.random.default_rng(seed)
    t = np.arange(300) * 0.01
    pole = end / (1 + np.exp(-6 * (t - 1.5))) + rng.normal(0, 0.02, 300)
    q = np.stack([0.3 * np.sin(4 * t), pole], axis=-1)
    return Episode(SPEC, {"timestamp": t, "q": q, "action": np.zeros((300, 1))}, meta)


def test_runs_that_end_differently_are_split_before_averaging():
    runs = [swing(np.pi, i) for i in range(4)] + [swing(-np.pi, i) for i in range(4, 7)]
    assert outcomes(runs) == [[0, 1, 2, 3], [4, 5, 6]]
    assert outcomes(runs[:4]) == [[0, 1, 2, 3]] and outcomes(runs[:1]) == [[0]]
    named = [r.with_columns({}, group="swing", repeat="0") for r in runs]
    kinds = split_by_outcome([named])
    assert [k[0].meta["group"] for k in kinds] == ["swing, outcome 1 of 2", "swing, outcome 2 of 2"]
    spread = np.std([r.q[:, 1] for r in runs], axis=0).mean()
    within = np.std([r.q[:, 1] for r in kinds[0]], axis=0).mean()
    assert spread > 20 * within


def test_a_lag_between_worlds_is_reported_with_and_without():
    t = np.arange(500) * 0.01

    def run(shift, seed):
        s = t - shift
        q = np.stack([np.sin((2 + 0.1 * seed) * s), np.cos(3 * s)], axis=-1)
        return Episode(SPEC, {"timestamp": t, "q": q, "action": np.zeros((500, 1))})

    pairs = [RunPair(run(0.0, k), run(0.043, k)) for k in range(5)]
    found = world_lag(pairs)
    assert found is not None and found.lag.value == pytest.approx(0.043, abs=2e-3)
    assert found.after.value < 0.1 * found.before.value
    still = Episode(SPEC, {"timestamp": t, "q": np.zeros((500, 2)), "action": np.zeros((500, 1))})
    assert world_lag([RunPair(still, still)]) is None
