"""Trust in a twin, in [0, 1], calibrated on nominal runs.

The score of a frame is the anomaly of its log: each number against its distribution in nominal runs. The score of a run
is the largest mean of its frames over a short window. By split conformal prediction, trust is the share of nominal runs
with a score at least as large,

    trust(s) = (1 + #{nominal runs with score >= s}) / (1 + number of nominal runs)

so that a new nominal run falls below a level `alpha` with probability alpha at most, whatever the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array

RISING = (
    "nis", "shift", "turn", "residual", "colour_residual", "sigma", "weakest_sigma", "image_delay", "frames_lost",
    "penetration", "relocalized", "disagreement", "excluded", "fault", "latency", "error",
)  # fmt: skip
"""Endings of the log's names that indicate trouble when they grow."""
FALLING = ("overlap", "visible_share")
"""Endings of those that indicate trouble when they fall."""
WINDOW_FRAMES = 12
"""Frames over which scores are averaged: a fifth of a second at 60 Hz."""
WARMUP_ROWS = 5
"""Rows at the beginning that are not scored, while the twin finds its bodies."""


@array_dataclass
class Trust:
    """A calibrated measure of trust."""

    names: tuple[str, ...]
    centre: Array
    """Median of each number in nominal runs."""
    spread: Array
    """Distance of its 95 % quantile from the median."""
    scores: Array
    """Scores of the nominal runs that calibrate, ascending."""
    skip: int = WARMUP_ROWS

    def frames(self, log: Mapping[str, Array]) -> Array:
        """The anomaly score of each frame [rows], averaged over the last frames."""
        return _averaged(_anomaly(_rows(log, self.names), self.centre, self.spread), self.skip)

    def of(self, score: Array | float) -> Array:
        """Trust in [0, 1] for scores."""
        above = len(self.scores) - np.searchsorted(self.scores, np.asarray(score), side="left")
        return (1.0 + above) / (1.0 + len(self.scores))

    def alarm(self, log: Mapping[str, Array], alpha: float = 0.05) -> int | None:
        """The first row at which trust falls to alpha or below; None where it never does."""
        low = np.flatnonzero(self.of(self.frames(log))[self.skip :] <= alpha)
        return int(low[0]) + self.skip if len(low) else None


def calibrate_trust(nominal: Sequence[Mapping[str, Array]], skip: int = WARMUP_ROWS) -> Trust:
    """Trust from the logs of nominal runs: a third gives the distributions, the others the scores.

    Of each run the first `skip` rows are left out, while the twin still finds its bodies.
    """
    if len(nominal) < 4:
        raise BadInput(f"Trust needs at least four nominal runs to be calibrated on, and {len(nominal)} were given.")
    names = tuple(n for n in nominal[0] if n.rpartition(".")[2] in (*RISING, *FALLING))
    third = len(nominal) // 3
    rows = np.concatenate([_rows(log, names)[skip:] for log in nominal[:third]])
    centre = np.median(rows, axis=0)
    spread = np.maximum(np.quantile(rows, 0.95, axis=0) - centre, 1e-6 + 0.05 * np.abs(centre))
    runs = [_averaged(_anomaly(_rows(log, names), centre, spread), skip) for log in nominal[third:]]
    return Trust(names, centre, spread, np.sort([float(run[skip:].max()) for run in runs]), skip)


def _rows(log: Mapping[str, Array], names: Sequence[str]) -> Array:
    """The monitored numbers [rows, names]; a missing one is as bad as it can be."""
    signs = [-1.0 if name.rpartition(".")[2] in FALLING else 1.0 for name in names]
    rows = np.stack([sign * np.asarray(log[name], float) for sign, name in zip(signs, names, strict=True)], axis=1)
    return np.where(np.isfinite(rows), rows, 1e3)


def _anomaly(rows: Array, centre: Array, spread: Array) -> Array:
    """Root mean square of how far each number lies above its median, in spreads, clipped so that none dominates."""
    above = np.clip((rows - centre) / spread, 0.0, 20.0)
    return np.sqrt(np.mean(above**2, axis=1))


def _averaged(values: Array, skip: int) -> Array:
    """Means over the last frames; those before the run and before `skip` count as zero."""
    judged = np.where(np.arange(len(values)) < skip, 0.0, values)
    total = np.cumsum(np.concatenate([np.zeros(1), judged]))
    return (total[1:] - total[np.maximum(np.arange(len(values)) + 1 - WINDOW_FRAMES, 0)]) / WINDOW_FRAMES
