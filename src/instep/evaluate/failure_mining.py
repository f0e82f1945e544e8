"""Failure mining: states in which a policy fails, and demonstrations of an expert from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from instep.core.episode import Episode, Log
from instep.core.world import Array, Policy, State, World, array_dataclass, stack, take
from instep.scene.tasks.task import Tasked

from .episode_batch import batch_steps, start_states

EVERY = 10
"""Control steps from one kept state to the next."""
BATCH = 64
"""Episodes of the policy that run at once."""
GRACE = 1.0
"""Time before a failure that no expert could undo [s]; no state is taken from it."""


@array_dataclass
class FailureStates:
    """States of episodes that failed."""

    states: State
    """One state of each failed episode, as a batch."""
    seeds: tuple[int, ...]
    """The starts of those episodes."""
    rows: tuple[int, ...]
    """Control steps before each state."""
    tried: int
    """Episodes that were run."""


@array_dataclass
class CorrectiveDemos:
    """Demonstrations from the failure states of a policy."""

    episodes: tuple[Episode, ...]
    tried: int
    """Episodes that the policy ran."""
    failed: int
    """Failed episodes among them."""


def demonstrate(
    world: Tasked[World], expert: Policy, seeds: Sequence[int], *, states: State | None = None, steps: int | None = None
) -> list[Episode]:
    """Run an expert from the starts of some seeds, or from given states, and return the successes.

    Each episode ends at the success, and its time begins at 0.
    """
    start, log, n = start_states(world, seeds) if states is None else states, Log(world.spec), len(seeds)
    end = np.full(n, -1)
    for step in batch_steps(world, expert, start, steps or world.steps, seed=seeds[0]):
        log(step.state, step.observation, step.action)
        end[np.asarray(world.success(step.after)) & (end < 0) & ~step.diverged] = step.row + 1
        if (np.asarray(world.done(step.after)) | step.diverged | (end >= 0)).all():
            break
    episodes = log.episodes([{"seed": str(seed), "task": world.task.text, "world": "demonstration"} for seed in seeds])
    shown = [episodes[i].rows(stop=int(end[i])) for i in range(n) if end[i] > 0]
    return [episode.with_columns({"timestamp": np.asarray(episode.t - episode.t[0])}) for episode in shown]


def corrective_demos(
    world: Tasked[World],
    policy: Policy,
    expert: Policy,
    seeds: Iterable[int],
    *,
    wanted: int,
    shown_in: Tasked[World] | None = None,
) -> CorrectiveDemos:
    """Let an expert continue from the failure states of a policy, until there are `wanted` demonstrations.

    It also ends when the seeds run out. `shown_in` is the same world without the images that the policy sees, where
    those can be rendered afterwards.
    """
    shown: list[Episode] = []
    tried = failed = 0
    starts = iter(seeds)
    while len(shown) < wanted and (chosen := list(islice(starts, BATCH))):
        failures = find_failure_states(world, policy, chosen, seed=chosen[0])
        tried += len(chosen)
        if failures is None:
            continue
        failed += len(failures.seeds)
        episodes = demonstrate(shown_in or world, expert, failures.seeds, states=failures.states)
        shown += [episode.with_columns({}, world="failure state") for episode in episodes]
    return CorrectiveDemos(tuple(shown[:wanted]), tried, failed)


def find_failure_states(
    world: Tasked[World], policy: Policy, seeds: Sequence[int], *, seed: int = 0
) -> FailureStates | None:
    """Run a policy from some starts and sample one state of each failed episode; None where all succeeded.

    States come from the second half of the episode, but not from the last moments before a failure.
    """
    state, n = start_states(world, seeds), len(seeds)
    kept, end, lost = [state], np.full(n, world.steps), np.zeros(n, bool)
    for step in batch_steps(world, policy, state, world.steps, seed=seeds[0]):
        state, lost, ran = step.after, step.diverged, step.row + 1
        end = np.where((np.asarray(world.done(state)) | lost) & (end == world.steps), ran, end)
        if ran % EVERY == 0:
            kept.append(state)
        if (end <= ran).all():
            break
    failed: list[int] = np.flatnonzero(~np.asarray(world.success(state)) & ~lost).tolist()
    if not failed:
        return None
    rows: list[int] = _sampled_rows(end[failed], world, np.random.default_rng((seed, 0x314E))).tolist()
    states = [take(kept[row // EVERY], i) for i, row in zip(failed, rows, strict=True)]
    return FailureStates(stack(states), tuple(seeds[i] for i in failed), tuple(rows), n)


def _sampled_rows(end: Array, world: Tasked[World], rng: np.random.Generator) -> Array:
    """A row of the second half of each episode, that of a kept state."""
    grace = np.where(end < world.steps, round(GRACE / world.spec.dt), 0)
    last = np.maximum(end - grace, 0)
    rows = rng.uniform(np.minimum(end // 2, last), last)
    return np.asarray(rows.astype(int) // EVERY * EVERY)
