"""Run a policy in a world: one episode, or a batch of them in one world of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TypeAlias

import numpy as np

from .episode import Episode, Log
from .errors import BadInput, Diverged
from .records import frozen_dataclass
from .world import Array, Observation, Policy, Spec, State, Stateless, Watcher, World, put, stack, take

MAX_RECORDED_STATES = 100
"""How many of the last states a `Diverged` carries."""

Ending: TypeAlias = Callable[[State], Array | bool]
"""Whether a run is over, per world of a batch: a task's success, a fall, a limit."""


def rollout(
    world: World,
    policy: Policy,
    *,
    steps: int,
    seed: int = 0,
    until: Ending | None = None,
    watch: Sequence[Watcher] = (),
) -> Episode:
    """Run a policy in a world for some steps, or until an ending, and return the episode.

    A simulation that diverges raises `Diverged` with the last states in its `record`.
    """
    log = Log(world.spec, {"seed": str(seed)})
    ended = run_policy(world, policy, steps=steps, seed=seed, until=until, watch=(log, *watch))
    return log.episode().with_columns({}, ended=ended)


def run_policy(
    world: World,
    policy: Policy,
    *,
    steps: int,
    seed: int = 0,
    until: Ending | None = None,
    watch: Sequence[Watcher] = (),
) -> str:
    """As `rollout`, for runs of any length: only watchers keep rows. Returns how it ended, "steps" or "until"."""
    _check(steps)
    state = world.reset(seed)
    policy.reset(seed)
    last = Log(world.spec, {"seed": str(seed)}, keep=MAX_RECORDED_STATES)
    for _ in range(steps):
        observation = world.observe(state)
        action = checked_action(policy.act(observation), world.spec, state.batch)
        for watcher in (last, *watch):
            watcher(state, observation, action)
        if until is not None and bool(np.all(until(state))):
            return "until"
        try:
            state = world.step(state, action)
        except Diverged as error:
            error.record = last.episode()
            raise
    return "steps"


def rollouts(
    world: World,
    policy: Policy,
    *,
    seeds: Sequence[int],
    steps: int,
    until: Ending | None = None,
    watch: Sequence[Watcher] = (),
) -> list[Episode]:
    """Run a policy in a batch of worlds, one per seed, each control interval one call for all of them.

    An episode ends by itself: `meta["ended"]` is "steps", "until" or "diverged" (its last row is the last finite one).
    """
    _check(steps)
    state = stack([world.reset(seed) for seed in seeds])
    policy.reset(seeds[0])
    log = Log(world.spec)
    endings = _Endings(len(seeds), steps)
    for row in range(steps):
        observation = world.observe(state)
        action = checked_action(policy.act(observation), world.spec, state.batch)
        for watcher in (log, *watch):
            watcher(state, observation, action)
        if until is not None:
            endings.end(np.broadcast_to(until(state), state.batch), row, "until")
        if endings.all_over:
            break
        try:
            state = world.step(state, action)
        except Diverged as error:
            lost = np.asarray(error.worlds)
            endings.end(np.isin(np.arange(len(seeds)), lost), row, "diverged")
            # Diverged worlds wait at their last finite state; their episodes are over.
            state = put(error.state, lost, take(state, lost))
    return endings.cut(log.episodes([{"seed": str(seed)} for seed in seeds]))


@frozen_dataclass
class Constant(Stateless):
    """A policy that always takes the same action."""

    action: Array

    def act(self, observation: Observation) -> Array:
        """The action, for as many worlds as the observation shows."""
        batch = _batch_of(observation)
        return np.broadcast_to(self.action, (*batch, len(self.action))).copy()


class Script:
    """A policy that plays recorded actions [steps, nu], and holds the last one when they run out."""

    def __init__(self, actions: Array):
        self._actions = np.asarray(actions, float)
        self._next = 0

    def reset(self, seed: int = 0) -> None:
        """Back to the first action."""
        self._next = 0

    def act(self, observation: Observation) -> Array:
        """The next action, for as many worlds as the observation shows."""
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return np.broadcast_to(action, (*_batch_of(observation), action.shape[-1])).copy()


def checked_action(action: Array, spec: Spec, batch: tuple[int, ...]) -> Array:
    """The action if it has the size the world takes and finite numbers.

    NaN is refused before any clamp: clamps let it through, or turn it into a jump to the limit.
    """
    action = np.asarray(action, float)
    expected = (*batch, *spec.action.shape)
    if action.shape != expected:
        raise BadInput(
            f"An action of shape {action.shape} was given, but this world takes {expected}: "
            f"{', '.join(spec.action.labels)}."
        )
    if action.ndim == 1 and isfinite(action @ action):
        return action  # a sum of squares is the quickest look at the numbers of one world
    if not np.isfinite(action).all():
        bad = [label for i, label in enumerate(spec.action.labels) if not np.isfinite(action[..., i]).all()]
        raise BadInput(f"The action for {', '.join(bad)} is not a finite number; the policy must send finite actions.")
    return action


class _Endings:
    """Where and why each episode of a batch ends."""

    def __init__(self, n: int, steps: int):
        self._rows = np.full(n, steps)
        self._why = ["steps"] * n
        self._over = np.zeros(n, bool)

    @property
    def all_over(self) -> bool:
        return bool(self._over.all())

    def end(self, which: Array, row: int, why: str) -> None:
        for i in np.flatnonzero(which & ~self._over):
            self._rows[i], self._why[i], self._over[i] = row + 1, why, True

    def cut(self, episodes: list[Episode]) -> list[Episode]:
        return [
            episode.rows(stop=int(rows)).with_columns({}, ended=why)
            for episode, rows, why in zip(episodes, self._rows, self._why, strict=True)
        ]


def _batch_of(observation: Mapping[str, Array]) -> tuple[int, ...]:
    for name in ("observation.state", "observation.environment_state", "observation.velocity"):
        if name in observation:
            return np.shape(observation[name])[:-1]
    return ()


def _check(steps: int) -> None:
    if steps < 1:
        raise BadInput(f"A rollout needs at least one step, not {steps}.")
