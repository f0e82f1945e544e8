"""Statistics that never travel without their interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np

from .errors import BadInput
from .world import Array

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval, the number of independent observations behind it, and its unit."""

    value: float
    low: float
    high: float
    n: int
    unit: str = ""

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]{unit}, n = {self.n}"

    def as_dict(self) -> dict[str, float | int | str]:
        """The form `result.json` holds."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n, "unit": self.unit}


def wilson(successes: int, n: int) -> Estimate:
    """A success rate with Wilson's score interval."""
    if not 0 <= successes <= n:
        raise BadInput(f"Successes must lie between 0 and the number of trials, not {successes} of {n}.")
    if n == 0:
        return Estimate(nan, 0.0, 1.0, 0)
    rate, z2 = successes / n, Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * sqrt(rate * (1 - rate) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half), n)


def bootstrap(
    samples: Sequence[float] | Array,
    statistic: Callable[[Array], Array] = lambda draws: draws.mean(axis=-1),
    *,
    unit: str = "",
    draws: int = 2000,
    seed: int = 0,
) -> Estimate:
    """A statistic of independent samples with its percentile bootstrap interval.

    The samples are whole runs, not rows: rows of one run are not independent. `statistic` works along the last axis.
    """
    values = np.asarray(samples, float)
    if values.size == 0:
        raise BadInput("A statistic needs at least one sample, and none was given.")
    point = float(statistic(values))
    if values.size == 1:
        return Estimate(point, nan, nan, 1, unit)
    rng = np.random.default_rng((seed, 0xB007))
    resampled = statistic(values[rng.integers(0, values.size, (draws, values.size))])
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(point, float(low), float(high), int(values.size), unit)
