"""What a look at recordings found, and what it may look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array

MOST_ROWS = 60_000
"""So many rows, spread over all runs, are enough to judge a channel by."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One suspicion about one channel."""

    severity: Literal["error", "warning"]
    check: str
    channel: str
    sentence: str


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """The runs a preflight looks at."""

    episodes: tuple[Episode, ...]
    limits: Mapping[str, tuple[float, float]]

    def sample(self) -> list[Episode]:
        """Some of the runs, spread over all of them, that hold enough rows to judge by."""
        rows = sum(len(e) for e in self.episodes)
        every = max(1, rows // MOST_ROWS)
        return list(self.episodes[::every])

    @property
    def servos(self) -> list[tuple[str, int, int]]:
        """Joints that are told a position in their own unit: label, place in q, place in the action."""
        spec = self.episodes[0].spec
        actions = dict(zip(spec.action.labels, spec.action.units, strict=True))
        return [
            (label, i, spec.action.labels.index(label))
            for i, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True))
            if label in actions and actions[label] == unit and "action" in self.episodes[0]
        ]


def moves(column: Array) -> float:
    """How far a signal moves: between its 1st and 99th percentile."""
    low, high = np.quantile(column, [0.01, 0.99])
    return float(high - low)


def name_of(episode: Episode, place: int) -> str:
    """What a run is called in a sentence."""
    return episode.meta.get("name", episode.meta.get("episode", str(place)))
