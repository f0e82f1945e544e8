"""Statistics over runs: rows of one run are not independent, so whole runs are the blocks."""

from __future__ import annotations

from math import nan

import numpy as np

from .errors import BadInput
from .stats import Estimate
from .stats_tails import student_quantile
from .world import Array


def pooled(sums: Array, counts: Array, *, power: float = 0.5, unit: str = "") -> list[Estimate]:
    """(sum of sums / sum of counts) ** power over runs, for each column of `sums` [runs, columns].

    With `sums` of squared errors and power 1/2 this is a root mean square. `counts` [runs] are the rows behind each
    sum. The interval deletes a run at a time and works on the logarithm, where errors are nearly symmetric, with
    Student's quantile. Against a block bootstrap over the same runs: percentiles cover 72 to 81 % instead of 95 %
    over five runs, studentised draws cover as well as this but run off to tenfold widths where one run dominates.
    """
    sums, counts = np.asarray(sums, float), np.asarray(counts, float)
    used = counts > 0
    sums, counts = sums[used], counts[used]
    if len(sums) == 0:
        return [Estimate(nan, nan, nan, 0, unit)] * np.shape(sums)[-1]
    ratio = sums.sum(axis=0) / counts.sum()
    if len(sums) == 1:
        return [Estimate(float(r**power), nan, nan, 1, unit) for r in ratio]
    without = (sums.sum(axis=0) - sums) / (counts.sum() - counts)[:, None]
    return log_jackknife(ratio, without, power=power, unit=unit)


def log_jackknife(
    whole: Array, without: Array, *, power: float = 0.5, unit: str = "", degrees: int | None = None
) -> list[Estimate]:
    """Positive statistics [columns] to a power, with intervals from what they are without each run [runs, columns].

    `degrees` of freedom are one less than the runs where not given.
    """
    n = len(without)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, middle = np.log(without), np.log(whole)
        spread = np.sqrt((n - 1) / n * ((logs - logs.mean(axis=0)) ** 2).sum(axis=0))
        bias = (n - 1) * (logs.mean(axis=0) - middle)
        half = student_quantile(0.975, degrees or n - 1) * spread
    edges = np.stack([whole, whole * np.exp(_sound(-bias - half)), whole * np.exp(_sound(-bias + half))]) ** power
    return [Estimate(float(r), float(low), float(high), n, unit) for r, low, high in edges.T]


def jackknife(blocks: Array, *, unit: str = "") -> Estimate:
    """The mean of independent values with Student's interval: the delete-one jackknife of a mean."""
    values = np.asarray(blocks, float)
    if values.size == 0:
        raise BadInput("A statistic needs at least one sample, and none was given.")
    mean = float(values.mean())
    if values.size == 1:
        return Estimate(mean, nan, nan, 1, unit)
    half = student_quantile(0.975, values.size - 1) * float(values.std(ddof=1)) / values.size**0.5
    return Estimate(mean, mean - half, mean + half, int(values.size), unit)


def _sound(edge: Array) -> Array:
    return np.where(np.isfinite(edge), edge, 0.0)
