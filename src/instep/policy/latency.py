"""Latency of a policy, counted in control steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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
