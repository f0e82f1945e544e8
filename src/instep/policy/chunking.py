"""Latency of a policy, counted in control steps.

Policies that decide several actions at a time, and ways to play them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Policy


@dataclass(slots=True, eq=False)
class Latency:
    """A policy whose decisions are late by some control steps: it acts on what was seen that many steps ago.

    Steps, not seconds, so that a run depends on nothing but its seed. Before so many steps have passed it acts on the
    first thing it saw, as a robot does that waits for its first answer at its start.
    """

    policy: Policy
    steps: int
    _seen: deque[Observation] = field(default_factory=deque[Observation])

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        self._seen.clear()
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The action for what was seen some steps ago."""
        self._seen.append(observation)
        while len(self._seen) > self.steps + 1:
            self._seen.popleft()
        return self.policy.act(self._seen[0])


class ChunkPolicy(Protocol):
    """What decides several actions ahead."""

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        ...

    def infer(self, observation: Observation) -> Array:
        """The next actions [..., horizon, nu] for what is seen; leading axes are a batch."""
        ...


@dataclass(slots=True, eq=False)
class Chunked:
    """Play the first actions of each chunk, then ask for the next one.

    With `latency`, a chunk takes that many control steps to be decided: it is asked for so much earlier, the old one
    is played meanwhile, and the first actions of the new one, too late by then, are left out. All is counted in steps,
    so that a run depends on nothing but its seed. A robot waits at its start for the first chunk.
    """

    policy: ChunkPolicy
    execute: int
    """How many actions of a chunk are played."""
    latency: int = 0
    """How many control steps a decision takes."""
    blend: int = 0
    """Over how many steps the new chunk takes over from the old one, where that reaches far enough."""
    _playing: _Chunk | None = None
    _coming: _Chunk | None = None
    _step: int = 0
    _ask: int = 0
    """The step at which the next chunk is asked for."""

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        self._playing, self._coming, self._step, self._ask = None, None, 0, 0
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        now = self._step
        self._step += 1
        if self._playing is None:
            self._take_over(_Chunk(self._asked(observation), now, now), now)
        elif self._coming is None and now >= self._ask:
            self._coming = _Chunk(self._asked(observation), now, now + self.latency, self._playing)
        if self._coming is not None and now >= self._coming.since:
            self._take_over(self._coming, now)
        return self._playing.at(now, self.blend) if self._playing else np.zeros(0)

    def _take_over(self, chunk: _Chunk, now: int) -> None:
        before = None if chunk.before is None else replace(chunk.before, before=None)
        self._playing, self._coming = replace(chunk, before=before), None
        self._ask = now + max(1, self.execute - self.latency)

    def _asked(self, observation: Observation) -> Array:
        actions = np.asarray(self.policy.infer(observation), float)
        horizon = actions.shape[-2] if actions.ndim > 1 else 0
        if horizon < self.execute + self.latency:
            raise BadInput(
                f"A chunk of {horizon} actions cannot be played for {self.execute} steps at a latency of "
                f"{self.latency}; play fewer steps of it, or train with a longer horizon."
            )
        return actions


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    actions: Array
    begin: int
    """The step whose observation it was decided on; its first action was meant for that step."""
    since: int
    """The step at which it takes over."""
    before: _Chunk | None = None

    def at(self, step: int, blend: int) -> Array:
        own = self.actions[..., min(step - self.begin, self.actions.shape[-2] - 1), :]
        if self.before is None or step - self.since >= blend:
            return own
        old = step - self.before.begin
        if old >= self.before.actions.shape[-2]:
            return own
        share = (step - self.since + 1) / (blend + 1)
        return share * own + (1 - share) * self.before.actions[..., old, :]


@dataclass(slots=True, eq=False)
class Ensembled:
    """Ask for a chunk at every step, and take the mean of what all of them say about this step.

    The weight of a chunk that is i decisions younger than the oldest is exp(-decay i), as in ACT.
    """

    policy: ChunkPolicy
    decay: float = 0.01
    every: int = 1
    """Steps from one decision to the next."""
    _chunks: list[_Chunk] = field(default_factory=list[_Chunk])
    _step: int = 0

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        self._chunks, self._step = [], 0
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        now = self._step
        self._step += 1
        if now % self.every == 0:
            self._chunks.append(_Chunk(np.asarray(self.policy.infer(observation), float), now, now))
        self._chunks = [chunk for chunk in self._chunks if now - chunk.begin < chunk.actions.shape[-2]]
        weights = np.exp(-self.decay * np.arange(len(self._chunks)))
        said = np.stack([chunk.at(now, 0) for chunk in self._chunks])
        return np.tensordot(weights / weights.sum(), said, axes=1)
