"""A measure of gates: the 90 % quantile of the largest speed, in place of the largest one of all episodes.

The file `pyproject.toml` beside this one registers it in one line:

    [project.entry-points."instep.gates"]
    speed_q90 = "gate_measure:speed_q90"

A rules file then names it:

    [[rule]]
    measure = "speed_q90"
    at_most = 1.5
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.statistics import Estimate, bootstrap
from instep.evaluate import EpisodeResult


def speed_q90(rows: Sequence[EpisodeResult]) -> Estimate:
    """90 % quantile of the largest speed of each episode [rad/s or m/s]."""
    return bootstrap([row.speed for row in rows], lambda x: np.quantile(x, 0.9, axis=-1))
