"""Time between two worlds: how much later one answers, and what the error is with and without that.

The lag is reported and never taken off silently: a delay is a knob of a model, not a shift of a recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.stats import Estimate
from instep.core.stats_runs import pooled
from instep.core.stats_tails import student_quantile
from instep.core.world import Array

from .channels import channels
from .clock import lag
from .horizon import HorizonOptions
from .prepare import velocity
from .records import Pair


@dataclass(frozen=True, slots=True)
class Timing:
    """When two worlds do the same."""

    lag: Estimate
    """How much later the simulator moves than the robot [s], the median over runs; negative where it leads."""
    spread: float
    """Standard deviation over runs [s], from the median absolute deviation."""
    before: Estimate
    """The overall error as it is."""
    after: Estimate
    """The overall error if every run were shifted by its own lag."""


def timing(pairs: Sequence[Pair], *, options: HorizonOptions | None = None, longest: float = 0.5) -> Timing | None:
    """The lag between two worlds over runs; None where nothing moves or no run shows a clear lag."""
    options = options or HorizonOptions()
    labels = pairs[0].real.spec.q.labels
    compared = channels(pairs[0].real.spec.q, None, [w for w in options.wrapping if w in labels])
    scales = compared.scales([pair.real.q for pair in pairs], options.scales)
    sizes = np.array([scales[unit] for unit in compared.units])
    single = [i for i, columns in enumerate(compared.columns) if len(columns) == 1]
    columns = [compared.columns[i][0] for i in single]
    lags: list[float] = []
    sums: list[list[float]] = []
    counts: list[int] = []
    for pair in pairs:
        real, sim, dt = pair.real.q[:, columns], pair.sim.q[:, columns], pair.real.spec.dt
        if len(real) < 30 or not np.isfinite(sim).all() or not columns:
            continue
        found = lag(velocity(real, dt) / sizes[single], velocity(sim, dt) / sizes[single], dt, longest=longest)
        if found.at_limit or found.correlation < 0.5:
            continue
        shifted = _shifted(sim, found.seconds, dt)
        inside = np.isfinite(shifted).all(axis=-1)
        errors = [np.mean(((s - real)[inside] / sizes[single]) ** 2, axis=-1).sum() for s in (sim, shifted)]
        lags.append(found.seconds)
        sums.append([float(e) for e in errors])
        counts.append(int(inside.sum()))
    if not lags:
        return None
    before, after = pooled(np.array(sums), np.array(counts), unit="1")
    return Timing(*_median(np.array(lags)), before, after)


def _shifted(q: Array, seconds: float, dt: float) -> Array:
    """What a run that is `seconds` late would be without it; NaN where it would have to be known beyond its end."""
    rows = np.arange(len(q), dtype=float)
    at = rows + seconds / dt
    out = np.stack([np.interp(at, rows, q[:, i]) for i in range(q.shape[1])], axis=-1)
    out[(at < 0) | (at > len(q) - 1)] = np.nan
    return out


def _median(values: Array) -> tuple[Estimate, float]:
    middle = float(np.median(values))
    spread = float(1.4826 * np.median(np.abs(values - middle)))
    n = len(values)
    if n < 3:
        return Estimate(middle, np.nan, np.nan, n, "s"), spread
    half = student_quantile(0.975, n - 1) * spread * (np.pi / 2 / n) ** 0.5
    return Estimate(middle, middle - half, middle + half, n, "s"), spread
