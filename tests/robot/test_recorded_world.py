"""A recording as a world."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import Constant, rollout
from instep.core.world import Spec, stack, vector
from instep.robot import Recording


@pytest.fixture
def episode() -> Episode:
    names, rows = ("a", "b"), 5
    spec = Spec(
        0.1, vector(names, "rad"), vector(names, "rad/s"), vector(names, "rad"), {"touch": vector(["force"], "N")}
    )
    q = np.arange(10.0).reshape(rows, 2)
    columns = {
        "timestamp": 0.1 * np.arange(rows),
        "q": q,
        "action": q + 100,
        "observation.state": q.astype(np.float32),
        "observation.images.top": np.arange(rows * 12, dtype=np.uint8).reshape(rows, 2, 2, 3),
        "observation.images.top.stamp": 0.1 * np.arange(rows) - 0.03,
        "touch": np.arange(rows)[:, None],
        "action.sent": q + 99,
        "next.done": np.zeros(rows, bool),
    }
    return Episode(spec, columns)


def test_a_recording_shows_its_rows_whatever_the_action(episode):
    world = Recording(episode)
    for action in (np.zeros(2), np.full(2, 9.0)):
        seen = rollout(world, Constant(action), steps=5)
        for name in ("q", "timestamp", "observation.state", "observation.images.top", "touch", "action.sent"):
            assert np.array_equal(seen[name], episode[name])
        assert np.array_equal(seen["observation.images.top.stamp"], episode["observation.images.top.stamp"])
        assert "next.done" not in seen


def test_velocities_that_were_not_recorded_are_differences(episode):
    assert np.allclose(Recording(episode).reset().v, 20.0)


def test_after_the_end_the_last_row_is_shown_again_and_hidden_says_so(episode):
    world = Recording(episode)
    state = world.reset()
    over = [bool(state.hidden["recording"]["over"])]
    for _ in range(6):
        state = world.step(state, np.zeros(2))
        over.append(bool(state.hidden["recording"]["over"]))
    assert over == [False] * 5 + [True] * 2
    assert np.array_equal(state.q, episode.q[-1]) and state.t == episode.t[-1]
    assert np.array_equal(world.observe(state)["touch"], episode["touch"][-1])


def test_a_batch_of_recordings_walks_together(episode):
    world = Recording(episode)
    state = stack([world.reset(0), world.reset(1)])
    state = world.step(state, np.zeros((2, 2)))
    assert state.q.shape == (2, 2) and np.array_equal(state.q, episode.q[[1, 1]])
    assert world.observe(state)["observation.images.top"].shape == (2, 2, 2, 3)


def test_an_episode_without_rows_is_refused(episode):
    with pytest.raises(BadInput, match="at least one"):
        Recording(episode.rows(0, 0))
