"""Failure mining: states in which a policy fails, and demonstrations of an expert from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from instep.core.episode import Episode, Log
from instep.core.rollout import checked_action
from instep.core.world import Array, Policy, State, World, array_dataclass, stack, take
from instep.scene.tasks.task import Tasked

from .episode_batch import step_batch


def demonstrate(
    world: Tasked[World], expert: Policy, seeds: Sequence[int], *, states: State | None = None, steps: int | None = None
) -> list[Episode]:
    """Run an expert from the starts of some seeds, or from given states; failures are left out.

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
        if (np.asarray(world.done(state)) | (end >= 0)).all():
            break
    notes = [{"seed": str(seed), "task": world.task.text, "world": "demonstration"} for seed in seeds]
    episodes = log.episodes(notes)
    return [_from_zero(episodes[i].rows(stop=int(end[i]))) for i in range(n) if end[i] > 0]


def _from_zero(episode: Episode) -> Episode:
    """Time counted from the first row."""
    t: Array = episode.t - episode.t[0]
    return episode.with_columns({"timestamp": t})


EVERY = 10
"""Control steps from one kept state to the next."""
BATCH = 64
"""Episodes of the policy that are run at once."""
GRACE = 1.0
"""Time before a failure that no expert could undo [s]; states nearer to it are not taken."""


@array_dataclass
class FailureStates:
    """States of episodes that failed."""

    states: State
    """One state of each failed episode, as a batch."""
    seeds: tuple[int, ...]
    """The starts of those episodes."""
    rows: tuple[int, ...]
    """How many control steps each had gone."""
    tried: int
    """How many episodes were run."""


@array_dataclass
class CorrectiveDemos:
    """Demonstrations from where a policy fails."""

    episodes: tuple[Episode, ...]
    tried: int
    """How many episodes the policy ran."""
    failed: int
    """How many of them failed."""


def corrective_demos(
    world: Tasked[World],
    policy: Policy,
    expert: Policy,
    seeds: Iterable[int],
    *,
    wanted: int,
    shown_in: Tasked[World] | None = None,
) -> CorrectiveDemos:
    """Let an expert go on where a policy failed, until there are as many demonstrations as wanted or no more seeds.

    `shown_in` is the same world without the images that the policy sees, where those can be rendered afterwards.
    """
    found: list[Episode] = []
    tried = failed = 0
    starts = iter(seeds)
    while len(found) < wanted and (chosen := list(islice(starts, BATCH))):
        failures = find_failure_states(world, policy, chosen, seed=chosen[0])
        tried += len(chosen)
        if failures is None:
            continue
        failed += len(failures.seeds)
        shown = demonstrate(shown_in or world, expert, failures.seeds, states=failures.states)
        found += [episode.with_columns({}, world="failure state") for episode in shown]
    return CorrectiveDemos(tuple(found[:wanted]), tried, failed)


def find_failure_states(
    world: Tasked[World], policy: Policy, seeds: Sequence[int], *, seed: int = 0
) -> FailureStates | None:
    """Run a policy from some starts and take one state of each episode that failed; None where all succeeded.

    The state is sampled from the second half of the episode, where it no longer gets anywhere, but not from the last
    moments before something was lost for good.
    """
    state = stack([world.reset(start) for start in seeds])
    policy.reset(seeds[0])
    n, kept = len(seeds), [state]
    end, lost = np.full(n, world.steps), np.zeros(n, bool)
    for row in range(world.steps):
        action = checked_action(policy.act(world.observe(state)), world.spec, state.batch)
        state, lost = step_batch(world, state, action, lost)
        end = np.where((np.asarray(world.done(state)) | lost) & (end == world.steps), row + 1, end)
        if (row + 1) % EVERY == 0:
            kept.append(state)
        if (end <= row + 1).all():
            break
    failed: list[int] = np.flatnonzero(~np.asarray(world.success(state)) & ~lost).tolist()
    if not failed:
        return None
    rows: list[int] = _sampled_rows(end[failed], world, np.random.default_rng((seed, 0x314E))).tolist()
    found = [take(kept[row // EVERY], i) for i, row in zip(failed, rows, strict=True)]
    return FailureStates(stack(found), tuple(seeds[i] for i in failed), tuple(rows), n)


def _sampled_rows(end: Array, world: Tasked[World], rng: np.random.Generator) -> Array:
    """A row of the second half of each episode, that of a kept state."""
    grace = np.where(end < world.steps, round(GRACE / world.spec.dt), 0)
    last = np.maximum(end - grace, 0)
    rows = rng.uniform(np.minimum(end // 2, last), last)
    return np.asarray(rows.astype(int) // EVERY * EVERY)
