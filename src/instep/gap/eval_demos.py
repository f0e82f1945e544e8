"""Demonstrations: an expert does the task, and what succeeded is kept as episodes to learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.episode import Episode, Log
from instep.core.rollout import checked_action
from instep.core.world import Array, Policy, State, World, stack
from instep.scene.tasks.tasked import Tasked


def demonstrate(
    world: Tasked[World], expert: Policy, seeds: Sequence[int], *, states: State | None = None, steps: int | None = None
) -> list[Episode]:
    """Let an expert do the task from the starts of some seeds, or from given states; failures are left out.

    Each episode ends where the task does.
    """
    state = stack([world.reset(seed) for seed in seeds]) if states is None else states
    expert.reset(seeds[0])
    log, n = Log(world.spec), len(seeds)
    end = np.full(n, -1)
    for row in range(steps or world.steps):
        seen = world.observe(state)
        action = checked_action(expert.act(seen), world.spec, state.batch)
        log(state, seen, action)
        state = world.step(state, action)
        done = np.asarray(world.success(state)) & (end < 0)
        end[done] = row + 1
        if (np.asarray(world.over(state)) | (end >= 0)).all():
            break
    notes = [{"seed": str(seed), "task": world.task.text, "world": "demonstration"} for seed in seeds]
    episodes = log.episodes(notes)
    return [_from_zero(episodes[i].rows(stop=int(end[i]))) for i in range(n) if end[i] > 0]


def _from_zero(episode: Episode) -> Episode:
    """Time counted from the first row."""
    t: Array = episode.t - episode.t[0]
    return episode.with_columns({"timestamp": t})
