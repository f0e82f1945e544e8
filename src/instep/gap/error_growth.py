"""Compounding: how an error grows with time, how fast it doubles, and when it crosses a threshold.

Three shapes are fitted to log E(t) on the rising part, and Akaike's corrected criterion chooses:
exponential e0 exp(lambda t), power a t^beta (1/2 random walk, 1 drift, 2 acceleration), logistic (saturation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite, log
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, binomial_tail, jackknife, student_quantile
from instep.core.world import Array

from .channels import scipy

Shape = Literal["exponential", "power", "logistic"]
SHAPES: tuple[Shape, ...] = ("exponential", "power", "logistic")
POINTS = 30
"""So many points of a curve are fitted: rows lie too close to be independent."""


@array_dataclass
class ErrorGrowth:
    """How the error of runs grows."""

    shape: Shape
    rate: Estimate
    """lambda [1/s] of the exponential and the logistic, beta of the power."""
    doubling: Estimate
    """How long the error takes to double [s]; NaN for a power, infinite where it does not grow."""
    weights: Mapping[Shape, float]
    """Akaike weights: how much each shape is supported, summing to 1."""
    rates: tuple[float, ...]
    """The rate of each run."""


def error_growth(t: Sequence[Array], errors: Sequence[Array]) -> ErrorGrowth:
    """The shape that fits the errors [rows] of runs over time [rows, s] best, its rate with an interval over runs."""
    curves = [part for part in (rising(a, e) for a, e in zip(t, errors, strict=True)) if part is not None]
    if not curves:
        raise BadInput("No run's error rises over at least eight points, so there is no growth to fit.")
    scores: dict[Shape, float] = dict.fromkeys(SHAPES, 0.0)
    fits: dict[Shape, list[Array]] = {shape: [] for shape in SHAPES}
    for x, y in curves:
        for shape in SHAPES:
            parameters, aicc = fit_shape(shape, x, y)
            scores[shape] += aicc
            fits[shape].append(parameters)
    best = min(SHAPES, key=lambda shape: scores[shape])
    # Of all runs together, a difference of a few points is already certain; the mean run keeps the weights readable.
    relative: dict[Shape, float] = {
        shape: np.exp(-0.5 * (scores[shape] - scores[best]) / len(curves)) for shape in SHAPES
    }
    whole = sum(relative.values())
    rates = np.array([float(p[1]) for p in fits[best]])
    rate = jackknife(rates, unit="1" if best == "power" else "1/s")
    weights: dict[Shape, float] = {shape: float(relative[shape] / whole) for shape in SHAPES}
    return ErrorGrowth(best, rate, _doubling(best, rate), weights, tuple(float(r) for r in rates))


def rising(t: Array, error: Array) -> tuple[Array, Array] | None:
    """The rising part of an error and its logarithm, thinned; None where it does not rise.

    It ends where the smoothed error first reaches nine tenths of its highest value, plus a third as long, so that a
    saturation can be seen.
    """
    t, error = np.asarray(t, float), np.asarray(error, float)
    sound = np.isfinite(error) & (error > 0) & (t > 0)
    t, error = t[sound], error[sound]
    if len(t) < 8:
        return None
    width = max(1, len(error) // 50)
    smooth = np.sqrt(np.convolve(error**2, np.ones(width) / width, mode="valid"))
    at = np.convolve(t, np.ones(width) / width, mode="valid")
    top = int(np.argmax(smooth >= 0.9 * smooth.max()))
    end = min(len(smooth), max(8, top + top // 3 + 1))
    if smooth[:end].max() < 2 * smooth[0]:
        return None
    pick = np.unique(np.linspace(0, end - 1, POINTS).astype(int))
    return at[pick], np.log(smooth[pick])


def fit_shape(shape: Shape, t: Array, y: Array) -> tuple[Array, float]:
    """Parameters of a shape fitted to log errors, and the corrected Akaike criterion."""
    n = len(t)
    if shape == "logistic":
        parameters, residual = _logistic(t, y)
    else:
        x = t if shape == "exponential" else np.log(t)
        design = np.stack([np.ones(n), x], axis=-1)
        parameters = np.linalg.lstsq(design, y, rcond=None)[0]
        residual = y - design @ parameters
    k = len(parameters) + 1  # the spread of the residual is one more
    square = max(float(residual @ residual) / n, 1e-12)
    return parameters, n * log(square) + 2 * k + 2 * k * (k + 1) / max(n - k - 1, 1)


def growth_difference(first: ErrorGrowth, second: ErrorGrowth) -> Estimate:
    """How much faster the first grows than the second, with Welch's interval: closed loop minus open loop, say."""
    a, b = np.array(first.rates), np.array(second.rates)
    difference = float(a.mean() - b.mean())
    if len(a) < 2 or len(b) < 2:
        return Estimate(difference, np.nan, np.nan, min(len(a), len(b)), "1/s")
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0:
        return Estimate(difference, difference, difference, len(a) + len(b), "1/s")
    degrees = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = student_quantile(0.975, max(1, int(degrees))) * (va + vb) ** 0.5
    return Estimate(difference, difference - half, difference + half, len(a) + len(b), "1/s")


def crossing(t: Array, error: Array, threshold: float, *, dwell: int = 5) -> float:
    """When an error first exceeds a threshold for `dwell` rows in a row [s]; infinity where it never does."""
    above = np.asarray(error, float) > threshold
    if len(above) < dwell:
        return inf
    lasting = np.convolve(above.astype(int), np.ones(dwell, int), mode="valid") == dwell
    return float(t[int(np.argmax(lasting))]) if lasting.any() else inf


def time_to_threshold(times: Sequence[float]) -> Estimate:
    """The median time to a threshold over runs [s], with the exact interval of a median; infinity is 'never'."""
    ordered = np.sort(np.asarray(times, float))
    n = len(ordered)
    if n == 0:
        raise BadInput("A time to a threshold needs at least one run.")
    middle = float(ordered[(n - 1) // 2]) if n % 2 or not isfinite(ordered[n // 2]) else float(np.median(ordered))
    # The k-th smallest and k-th largest hold the median unless fewer than k of n fall on one side.
    k = 0
    while k + 1 <= n // 2 and _below(k + 1, n) <= 0.025:
        k += 1
    if k == 0:
        return Estimate(middle, np.nan, np.nan, n, "s")
    return Estimate(middle, float(ordered[k - 1]), float(ordered[n - k]), n, "s")


def _below(k: int, n: int) -> float:
    return binomial_tail(k - 1, n)


def _doubling(shape: Shape, rate: Estimate) -> Estimate:
    if shape == "power":
        return Estimate(np.nan, np.nan, np.nan, rate.n, "s")
    ends = [log(2) / x if x > 0 else inf for x in (rate.value, rate.high, rate.low)]
    return Estimate(ends[0], ends[1], ends[2], rate.n, "s")


def _logistic(t: Array, y: Array) -> tuple[Array, Array]:
    """log E = log top - log(1 + exp(-lambda (t - t0)))."""

    def residual(p: Array) -> Array:
        return p[0] - np.logaddexp(0.0, -p[1] * (t - p[2])) - y

    span = float(t[-1] - t[0])
    best: Any = None
    for share in (0.3, 0.6, 0.9):
        start = np.array([float(y.max()), 4.0 / span, float(t[0]) + share * span])
        found = scipy("optimize").least_squares(residual, start, max_nfev=200)
        if best is None or found.cost < best.cost:
            best = found
    return np.asarray(best.x, float), np.asarray(best.fun, float)
