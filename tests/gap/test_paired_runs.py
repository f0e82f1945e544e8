"""Two sets of runs that answer each other."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.core.world import Spec, vector
from instep.gap.horizon import measure_horizon
from instep.gap.paired_runs import compare_runs, noise_floor, pair_up, repeated_runs, with_noise_floor

SPEC = Spec(0.01, vector(["a"], "rad"), vector(["a"], "rad/s"), vector(["a"], "rad"))


def run(q, dt=0.01, action=None, **meta):
    q = np.asarray(q, float)
    spec = Spec(dt, SPEC.q, SPEC.v, SPEC.action)
    action = np.zeros((len(q), 1)) if action is None else action
    return Episode(spec, {"timestamp": np.arange(len(q)) * dt, "q": q[:, None], "action": action}, meta)


def test_full_is_the_plain_difference_and_a_constant_offset_does_not_drift():
    t = np.arange(200) * 0.01
    gap = compare_runs([run(np.sin(t))], [run(np.sin(t) + 0.1)])
    assert gap.curves["a"].at(inf).value == pytest.approx(0.1)
    assert gap.curves["a"].at(0.5).value == pytest.approx(0.0, abs=1e-12)


def test_two_worlds_are_as_far_apart_as_the_replay_says(arm, runs, record):
    other = record(arm, range(6))
    pairs = compare_runs(runs, other)
    measured = measure_horizon(arm, runs)
    # The runs share their start and their commands, so replay and rollout are the same run.
    assert pairs.curves["elbow"].at(inf).value == pytest.approx(measured.curves["elbow"].at(inf).value, rel=1e-3)


def test_runs_are_paired_by_name_where_both_sides_have_names():
    a = [run(np.zeros(9), name="x"), run(np.ones(9), name="y")]
    b = [run(np.ones(9), name="y"), run(np.zeros(9), name="x")]
    assert compare_runs(a, b).curves["a"].at(inf).value == 0.0
    with pytest.raises(BadInput, match="'y' stands in one dataset only"):
        pair_up(a, b[1:])
    with pytest.raises(BadInput, match="2 and 1 runs that share no names"):
        pair_up([run(np.zeros(9)), run(np.zeros(9))], [run(np.zeros(9))])
    with pytest.raises(BadInput, match="holds none"):
        pair_up([], b)


def test_other_rates_are_brought_to_the_first_with_commands_held():
    t = np.arange(101) * 0.01
    fast = np.arange(401) * 0.0025
    steps = np.floor(fast * 10)[:, None]
    pair = pair_up([run(np.sin(t))], [run(np.sin(fast), 0.0025, steps)])[0]
    np.testing.assert_allclose(pair.sim.q[:, 0], np.sin(t), atol=1e-9)
    assert set(np.unique(pair.sim.action)) <= set(range(11))


def test_datasets_without_a_common_joint_are_refused():
    other = Episode(Spec(0.01, vector(["b"]), vector(["b"]), vector(["b"])), {"q": np.zeros((5, 1))})
    with pytest.raises(UnknownName, match="'a'"):
        compare_runs([run(np.zeros(5))], [other])


def test_repeats_are_found_by_their_group_or_by_equal_commands():
    command = np.sin(np.arange(50) / 5)[:, None]
    same = [run(np.zeros(50), action=command) for _ in range(3)]
    other = run(np.zeros(50), action=command * 1.1)
    named = [run(np.zeros(50), group="swing", repeat=str(i), action=command * i) for i in (2, 3)]
    groups = repeated_runs([same[0], other, same[1], *named, same[2]])
    assert sorted(len(g) for g in groups) == [2, 3]
    assert repeated_runs([run(np.zeros(50)), run(np.zeros(50))]) == []


def test_the_floor_is_the_standard_deviation_of_repeats():
    rng = np.random.default_rng(0)
    command = np.sin(np.arange(400) / 5)[:, None]
    group = [run(rng.normal(0, 0.02, 400), action=command) for _ in range(5)]
    curve = noise_floor([group])["a"]
    expected = np.sqrt(np.mean(np.var([e.q[1:, 0] for e in group], axis=0)))
    assert curve.at(inf).value == pytest.approx(expected)
    # Two noisy ends make the spread of a drift sqrt(2) of that of a position.
    assert curve.at(0.1).value == pytest.approx(0.02 * np.sqrt(2 * 4 / 5), rel=0.2)
    assert curve.at(inf).low < 0.02 * np.sqrt(4 / 5) < curve.at(inf).high


def test_a_gap_without_repeats_says_that_the_floor_is_unknown(arm, runs):
    gap = with_noise_floor(measure_horizon(arm, runs), runs)
    assert not gap.floor and any("no floor" in note for note in gap.notes)
