"""States, batches, episodes, and the noise that is a function of its key."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from instep.core import counter_rng
from instep.core.episode import Episode, by_label
from instep.core.errors import BadInput, Diverged, MissingExtra, UnknownName
from instep.core.param import Box, Param, around
from instep.core.world import Spec, State, put, stack, take, vector

SPEC = Spec(0.1, vector(["a", "b"], ["rad", "m"]), vector(["a", "b"], ["rad/s", "m/s"]), vector(["a"], "rad"))


def state(x: float) -> State:
    return State(
        0.0, np.full(2, x), np.zeros(2), {"k": np.array(x), "deep": {"line": np.full((3, 1), x)}, "s": (np.array(x),)}
    )


def test_what_is_stacked_is_taken_apart_again():
    batch = stack([state(1.0), state(2.0), state(3.0)])
    assert batch.batch == (3,) and batch.hidden["deep"]["line"].shape == (3, 3, 1)
    second = take(batch, 1)
    assert second.q.tolist() == [2.0, 2.0] and second.hidden["s"][0] == 2.0
    assert take(batch, np.array([True, False, True])).q[:, 0].tolist() == [1.0, 3.0]


def test_putting_worlds_into_a_batch_leaves_the_others():
    batch = stack([state(1.0), state(2.0), state(3.0)])
    changed = put(batch, np.array([0, 2]), stack([state(7.0), state(8.0)]))
    assert changed.q[:, 0].tolist() == [7.0, 2.0, 8.0] and batch.q[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert changed.hidden["deep"]["line"][:, 0, 0].tolist() == [7.0, 2.0, 8.0]


def test_columns_of_an_episode_have_one_length():
    with pytest.raises(BadInput, match="one length"):
        Episode(SPEC, {"q": np.zeros((3, 2)), "action": np.zeros((2, 1))})


def test_a_missing_column_offers_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'action'"):
        Episode(SPEC, {"action": np.zeros((2, 1))})["acton"]


def test_velocities_that_were_not_recorded_are_the_slope_of_positions():
    t = np.arange(20) * 0.1
    episode = Episode(SPEC, {"timestamp": t, "q": np.stack([t**2, 3 * t], 1)})
    assert episode.v[5:15] == pytest.approx(np.stack([2 * t, np.full(20, 3.0)], 1)[5:15])


def test_columns_are_matched_by_label_and_the_rest_is_default():
    out = by_label(np.array([[1.0, 2.0]]), ["b", "a"], ["a", "b", "c"], np.array([9.0, 9.0, 5.0]))
    assert out.tolist() == [[2.0, 1.0, 5.0]]


def test_noise_is_a_function_of_its_key_and_batches_equal_loops():
    keys = np.array([counter_rng.key(seed, "x") for seed in range(4)])
    together = counter_rng.normal(keys, 5)
    assert np.array_equal(together, np.stack([counter_rng.normal(key, 5) for key in keys]))
    assert not np.array_equal(counter_rng.key(1, "x"), counter_rng.key(1, "y"))


def test_noise_is_standard_normal_and_uncorrelated():
    keys = np.array([counter_rng.key(seed, "n") for seed in range(2000)])
    draws = counter_rng.normal(keys, 10)
    # 20000 draws: the mean is within 5 standard errors, 0.035, and so are neighbours' correlations.
    assert abs(draws.mean()) < 0.035 and abs(draws.std() - 1) < 0.03
    assert np.abs(np.corrcoef(draws.T) - np.eye(10)).max() < 0.12
    after = counter_rng.normal(counter_rng.next_key(keys), 10)
    assert abs(np.corrcoef(draws.ravel(), after.ravel())[0, 1]) < 0.035


def test_bounds_must_be_the_right_way_round():
    with pytest.raises(BadInput, match="low below high"):
        Param("joint.a.damping", 2.0, 1.0)
    with pytest.raises(BadInput, match="above 0"):
        Param("joint.a.damping", 0.0, 1.0, log=True)


def test_a_box_draws_between_its_bounds_evenly_in_decades():
    box = Box((Param("a", 0.01, 100.0, log=True), Param("b", -1.0, 1.0)))
    samples = box.sample(4000, np.random.default_rng(0))
    assert samples["a"].min() >= 0.01 and samples["a"].max() <= 100
    assert abs(np.log10(samples["a"]).mean()) < 0.1 and abs(samples["b"].mean()) < 0.05
    near = around(box.params, [1.0, 0.5], 2.0)
    assert (near.params[0].low, near.params[0].high) == (0.5, 2.0)


def test_errors_cross_a_process_boundary():
    for error in (UnknownName("joint", "elbw", ["elbow"]), MissingExtra("torch", "learn"), Diverged("lost", (1,))):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert str(again) == str(error) and type(again) is type(error)
