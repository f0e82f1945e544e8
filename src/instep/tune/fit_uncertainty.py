"""How well parameters are known where a search ended, and whether it converged there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .least_squares import NEGLIGIBLE, Descent, FitStatus, Point, Problem, linearise, newton_decrement, rough
from .weak_directions import checked_curvature, profiled

MAX_DECREMENT, MAX_ROUGH_DECREMENT = 2e-4, 1e-2
"""Share of the cost that a full Gauss-Newton step may still promise where a search has converged, smooth or rough."""
STAIRCASE_STEP = 1e-2
"""Share of each range over which the roughness of the cost of an arm is sampled where its search stalled."""
MAX_STEP = 0.5
"""Or the length of that step per parameter, in standard deviations that count all rows as independent."""


def judged(
    problem: Problem, ended: Descent, widening: Array | None = None
) -> tuple[Point, Uncertainty, FitStatus]:  # fmt: skip
    """Where a search ended, how well the parameters are known there, and how it ended, given what derivatives promise.

    `widening` is that of `uncertainty`.
    """
    point = ended.point
    known = uncertainty(problem, point, widening)
    if problem.linearised and judged_status(ended, known.remaining) is FitStatus.STALLED:
        # A motor that flips between its limits makes the cost a staircase: derivatives promise what no step gains.
        point = replace(point, difference_step=STAIRCASE_STEP)
        known = uncertainty(problem, point, widening)
    return point, known, judged_status(ended, known.remaining)


def judged_status(ended: Descent, remaining: float) -> FitStatus:
    """How a search ended, given what derivatives at its end still promise (`uncertainty`)."""
    if ended.status is FitStatus.STOPPED:
        return FitStatus.STOPPED
    if remaining <= 1:
        return FitStatus.CONVERGED
    return FitStatus.STALLED if ended.status is FitStatus.CONVERGED else ended.status


@array_dataclass
class Uncertainty:
    """How well the parameters are known at the end of a search."""

    covariance: Array
    """Of the parameters in unit coordinates [parameters, parameters]."""
    information: Array
    """Fisher information of the data alone [parameters, parameters]."""
    remaining: float
    """Reduction of the cost by an undamped Gauss-Newton step, over what a converged search may leave: at most 1."""
    widening: Array
    """Standard deviations over those that derivatives give, 1 where the cost is smooth [parameters]."""


def uncertainty(problem: Problem, point: Point, widening: Array | None = None) -> Uncertainty:
    """How well the parameters are known at a point.

    Directions in which parameters are confounded are checked by simulation, see `weak_directions`; so are the intervals
    themselves, unless how much wider they must be is known from the same recordings (`widening`).

    Rows of one window are correlated, so a window counts as one observation: the sandwich estimator, or, where windows
    are few, the usual one with the correlation time of the residuals. Parameters and start states both count as
    degrees of freedom.
    """
    normal = linearise(problem, point, both_sides=True)
    prior = np.diag(problem.prior_precision)
    residual = np.nan_to_num(point.residual) / problem.scale
    rows = max(1, int(problem.shooter.windows.inside.sum()) * problem.weighing)
    taken = len(point.x) + len(point.starts) * problem.free_starts
    variance = float((residual**2).sum()) / max(1, rows - taken, rows / 2)
    curvature = checked_curvature(problem, point, normal, variance)
    information = curvature / max(variance, 1e-300) / correlation_time(residual)
    n, params = normal.scores.shape
    inverse = _inverse(curvature + prior)
    covariance = inverse * variance * correlation_time(residual)
    if by_scatter(n, params):
        safe = np.where(np.isfinite(inverse), inverse, 0.0)
        scatter = np.diag(safe @ (normal.scores.T @ normal.scores * n / (n - params)) @ safe)
        covariance = _with_diagonal(covariance, np.maximum(np.diag(covariance), scatter))
    if widening is None:
        widening = profiled(problem, point, normal, covariance, variance * correlation_time(residual))
    covariance = _with_diagonal(covariance, widening**2 * np.diag(covariance))
    allowed = (MAX_ROUGH_DECREMENT if rough(point) else MAX_DECREMENT) * point.cost
    allowed = max(allowed, MAX_STEP**2 * params * variance, NEGLIGIBLE)
    return Uncertainty(covariance, information, newton_decrement(problem, point, normal) / allowed, widening)


def by_scatter(windows: int, params: int) -> bool:
    """Whether there are enough windows to estimate the covariance from the scatter between them."""
    return windows >= 5 * params


def correlation_time(residual: Array) -> float:
    """The correlation time of the residuals, in rows: how many rows of a window count as one."""
    span = residual.shape[1]
    if span < 4:
        return float(span)
    power = float((residual**2).mean())
    if power == 0:
        return 1.0
    total = 1.0
    for lag in range(1, span - 1):
        rho = float((residual[:, lag:] * residual[:, :-lag]).mean()) / power
        if rho < 0.05:
            break
        total += 2 * rho * (1 - lag / span)
    return min(total, float(span))


def _inverse(matrix: Array) -> Array:
    """The inverse, infinite along directions without information."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    blind = values <= 1e-12 * max(float(values.max(initial=0.0)), 1e-300)
    if not blind.any():
        return (vectors / values) @ vectors.T
    safe = (vectors[:, ~blind] / values[~blind]) @ vectors[:, ~blind].T
    touched = (np.abs(vectors[:, blind]) > 1e-3).any(axis=1)
    safe[touched, touched] = np.inf
    return safe


def _with_diagonal(matrix: Array, diagonal: Array) -> Array:
    """The matrix with the same correlations and another diagonal."""
    old = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    ratio = np.sqrt(np.maximum(diagonal, 0)) / np.where(np.isfinite(old), old, 1.0)
    with np.errstate(invalid="ignore"):
        out = matrix * np.outer(ratio, ratio)
    out[np.diag_indices_from(out)] = diagonal
    return out
