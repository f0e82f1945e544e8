"""Chunks of actions: how many are played, how late they come, how they are blended."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest

from instep import BadInput
from instep.core.world import Array, Observation, Spec, vector
from instep.policy.chunking import AsyncChunked, Chunked, Ensembled, Latency, as_chunk_policy


@dataclass
class Counter:
    """Says what it saw and how far ahead each action lies: 100 x seen + index."""

    horizon: int = 8
    asked: list[float] = field(default_factory=list)
    resets: int = 0

    def reset(self, seed: int = 0) -> None:
        self.resets += 1

    def infer(self, observation: Observation) -> Array:
        now = np.asarray(observation["observation.state"], float)
        self.asked.append(float(np.ravel(now)[0]))
        return 100 * now[..., None, :] + np.arange(self.horizon)[:, None]


def play(policy, steps: int, width: int = 1) -> list[float]:
    """What the policy does when the state counts the steps."""
    policy.reset()
    return [float(policy.act({"observation.state": np.full((width, 1), float(t))})[0, 0]) for t in range(steps)]


def test_so_many_actions_of_a_chunk_are_played():
    counter = Counter()
    assert play(Chunked(counter, 3), 7) == [0, 1, 2, 300, 301, 302, 600]
    assert counter.asked == [0, 3, 6]


def test_a_late_chunk_is_asked_for_earlier_and_its_first_actions_are_left_out():
    counter = Counter()
    # Asked at 1, there at 3, from its third action on; asked at 4, there at 6.
    assert play(Chunked(counter, 3, latency=2), 8) == [0, 1, 2, 102, 103, 104, 402, 403]
    assert counter.asked == [0, 1, 4, 7]


def test_a_chunk_takes_over_bit_by_bit():
    played = play(Chunked(Counter(), 4, blend=1), 6)
    assert played[:4] == [0, 1, 2, 3]
    assert played[4] == pytest.approx(0.5 * 400 + 0.5 * 4)
    assert played[5] == 401


def test_a_chunk_that_is_too_short_is_refused():
    with pytest.raises(BadInput, match="A chunk of 8 actions cannot be executed for 7 steps at a latency of 2"):
        play(Chunked(Counter(8), 7, latency=2), 1)


def test_a_new_episode_starts_anew():
    counter = Counter()
    policy = Chunked(counter, 3)
    play(policy, 2)
    assert play(policy, 2) == [0, 1]
    assert counter.resets == 2


def test_a_batch_is_played_in_step():
    policy = Chunked(Counter(), 2)
    policy.reset()
    first = policy.act({"observation.state": np.array([[1.0], [2.0], [3.0]])})
    second = policy.act({"observation.state": np.array([[9.0], [9.0], [9.0]])})
    assert first[:, 0].tolist() == [100, 200, 300] and second[:, 0].tolist() == [101, 201, 301]


def test_an_ensemble_is_the_weighted_mean_of_all_chunks_that_reach_this_step():
    ensemble = Ensembled(Counter(3), decay=0.5)
    played = play(ensemble, 4)
    weight = np.exp(-0.5 * np.arange(3))
    said = np.array([102.0, 201.0, 300.0])  # at step 3 the chunks of steps 1, 2 and 3
    assert played[3] == pytest.approx(float(weight @ said / weight.sum()))
    assert played[0] == 0


def test_latency_acts_on_what_was_seen_that_many_steps_ago():
    policy = Latency(Chunked(Counter(), 1), 2)
    assert play(policy, 5) == [0, 0, 0, 100, 200]


def test_the_chunks_of_a_policy_are_found_for_serving():
    counter = Counter()
    assert as_chunk_policy(Chunked(counter, 3)) is counter
    single = as_chunk_policy(Latency(Chunked(counter, 1), 0))
    assert single.infer({"observation.state": np.ones((1, 1))}).shape == (1, 1, 1)


def test_only_policies_that_infer_chunks_can_infer_in_the_background():
    spec = Spec(0.02, vector(["a"], "rad"), vector(["a"], "rad/s"), vector(["a"], "rad"), {})
    with closing(AsyncChunked.of(Chunked(Counter()), spec)) as policy:
        policy.act({"observation.state": np.zeros(1)})
    with pytest.raises(BadInput, match="infers chunks of actions"):
        AsyncChunked.of(Latency(Chunked(Counter()), 1), spec)
