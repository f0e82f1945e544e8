"""How far to trust a twin, in [0, 1], calibrated on runs in which all was well.

A frame's score is how strange its log is: each number against its own distribution in nominal runs. A run's score is
the largest mean of its frames over a short window. By split conformal prediction, trust is the share of nominal runs
that looked at least as strange,

    trust(s) = (1 + #{nominal runs with score >= s}) / (1 + number of nominal runs)

so that a new nominal run falls below a level `alpha` with probability alpha at most, whatever the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

WATCHED = (
    "nis", "shift", "turn", "residual", "photo", "sigma", "weakest", "behind", "lost", "cut", "found", "doubt",
    "frozen", "latency", "error",
)  # fmt: skip
"""Endings of the log's names that tell of trouble when they grow."""
FALLING = ("overlap", "seen")
"""Endings of those that tell of trouble when they fall."""
WINDOW = 12
"""Frames over which scores are averaged: a fifth of a second at 60 Hz."""


@dataclass(frozen=True, slots=True, eq=False)
class Trust:
    """A calibrated measure of trust."""

    names: tuple[str, ...]
    centre: Array
    """Median of each number in nominal runs."""
    spread: Array
    """How far it usually reaches above its median."""
    scores: Array
    """Scores of the nominal runs that calibrate, ascending."""
    skip: int = 5
    """Rows at the beginning that are not judged, while the twin finds its bodies."""

    def frames(self, log: Mapping[str, Array]) -> Array:
        """How strange each frame is [rows], averaged over the last frames."""
        return _windowed(_strangeness(_rows(log, self.names), self.centre, self.spread), self.skip)

    def of(self, score: Array | float) -> Array:
        """Trust in [0, 1] for scores."""
        above = len(self.scores) - np.searchsorted(self.scores, np.asarray(score), side="left")
        return (1.0 + above) / (1.0 + len(self.scores))

    def alarm(self, log: Mapping[str, Array], alpha: float = 0.05) -> int | None:
        """The first row at which trust falls to alpha or below; None where it never does."""
        low = np.flatnonzero(self.of(self.frames(log))[self.skip :] <= alpha)
        return int(low[0]) + self.skip if len(low) else None


def calibrated(nominal: Sequence[Mapping[str, Array]], skip: int = 5) -> Trust:
    """Trust from the logs of nominal runs: one half gives the distributions, the other the scores.

    Of each run the first `skip` rows are left out, while the twin still finds its bodies.
    """
    if len(nominal) < 4:
        raise BadInput(f"Trust needs at least four nominal runs to be calibrated on, and {len(nominal)} were given.")
    names = tuple(n for n in nominal[0] if n.rpartition(".")[2] in (*WATCHED, *FALLING))
    half = len(nominal) // 3
    rows = np.concatenate([_rows(log, names)[skip:] for log in nominal[:half]])
    centre = np.median(rows, axis=0)
    spread = np.maximum(np.quantile(rows, 0.95, axis=0) - centre, 1e-6 + 0.05 * np.abs(centre))
    odd = [_windowed(_strangeness(_rows(log, names), centre, spread), skip) for log in nominal[half:]]
    return Trust(names, centre, spread, np.sort([float(one[skip:].max()) for one in odd]), skip)


def _rows(log: Mapping[str, Array], names: Sequence[str]) -> Array:
    """The numbers that are watched [rows, names]; one that is not there is as bad as it can be."""
    signs = [-1.0 if name.rpartition(".")[2] in FALLING else 1.0 for name in names]
    rows = np.stack([sign * np.asarray(log[name], float) for sign, name in zip(signs, names, strict=True)], axis=1)
    return np.where(np.isfinite(rows), rows, 1e3)


def _strangeness(rows: Array, centre: Array, spread: Array) -> Array:
    """The mean of how far each number lies above its usual reach, bounded, so that one alone cannot drown the rest."""
    above = np.clip((rows - centre) / spread, 0.0, 20.0)
    return np.sqrt(np.mean(above**2, axis=1))


def _windowed(values: Array, skip: int) -> Array:
    """Means over the last frames; those that are not there or not judged count as nought."""
    judged = np.where(np.arange(len(values)) < skip, 0.0, values)
    total = np.cumsum(np.concatenate([np.zeros(1), judged]))
    return (total[1:] - total[np.maximum(np.arange(len(values)) + 1 - WINDOW, 0)]) / WINDOW
