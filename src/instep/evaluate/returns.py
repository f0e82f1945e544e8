"""Return of an episode: the mean score over its time limit, one number per world of a batch.

After success the rest of the time counts as 1, after a failure as 0: fast and safe is better than slow or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.records import array_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Policy, State, stack
from instep.scene.tasks.task import Tasked

from .episode_batch import step_batch

SCORE_EVERY = 4
"""Control steps from one score to the next."""


@array_dataclass
class Returns:
    """The returns of a batch of episodes, and which of them did the task in time."""

    score: Array
    """Mean score over the time limit, 0 to 1 [n]."""
    success: Array
    """[n]."""
    error: Array
    """Mean tracking error [n]; that at the end of an episode counts for the rest of its time. NaN where the task
    defines none."""


def start_states(world: Tasked[Any], seeds: Sequence[int]) -> State:
    """The starts of some seeds as a batch."""
    return stack([world.reset(seed) for seed in seeds])


def episode_returns(world: Tasked[Any], policy: Policy, start: State, *, steps: int = 0, seed: int = 0) -> Returns:
    """Run a policy from a batch of starts for some control steps, those of the task where 0."""
    state, limit = start, steps or world.steps
    n = len(start.q)
    policy.reset(seed)
    total, count = np.zeros(n), 0
    error, away = np.zeros(n), np.zeros(n)
    lost, failed, done = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
    for row in range(limit):
        action = checked_action(policy.act(world.observe(state)), world.spec, state.batch)
        state, lost = step_batch(world, state, action, lost)
        failed |= lost | ((np.asarray(world.failure(state)) >= 0) & ~done)
        done |= np.asarray(world.success(state)) & ~failed
        if row % SCORE_EVERY == SCORE_EVERY - 1:
            now = np.asarray(world.score(state), float)
            total += np.where(failed, 0.0, np.where(done, 1.0, now))
            # An episode that is over keeps the error of its end.
            away = np.where((failed | done) & (count > 0), away, world.error(state))
            error += away
            count += 1
        if (failed | done).all():
            left = limit // SCORE_EVERY - count
            total, error, count = total + left * done, error + left * away, count + left
            break
    return Returns(total / max(1, count), done, error / max(1, count))
