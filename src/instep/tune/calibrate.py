"""Are posteriors as sure as they may be? Simulation-based calibration, coverage, and a warning of misspecification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from instep.core.stats import Estimate, wilson
from instep.core.world import Array

from .belief import Gaussian, Posterior
from .fit import Fit, uncertainty
from .infer import Likelihood, likelihood, replace_covariance
from .recover import planted
from .solve import descend, evaluate

LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Where truths fell within their posteriors."""

    names: tuple[str, ...]
    ranks: Array
    """Share of posterior draws below the truth [truths, knobs]; uniform where the posterior is right."""

    def coverage(self, level: float) -> Estimate:
        """Share of truths inside the central interval of a level, over all knobs."""
        inside = np.abs(self.ranks - 0.5) <= level / 2
        return wilson(int(inside.sum()), inside.size)

    @property
    def uniformity(self) -> dict[str, float]:
        """p-value that the ranks are uniform, by knob (Kolmogorov and Smirnov's test)."""
        return {name: float(stats.kstest(self.ranks[:, i], "uniform").pvalue) for i, name in enumerate(self.names)}

    @property
    def error(self) -> float:
        """Mean distance between nominal and actual coverage, over levels."""
        return float(np.mean([abs(self.coverage(level).value - level) for level in LEVELS]))


def calibration(
    found: Fit, method: Callable[[Fit, int], Posterior], truths: int = 50, *, seed: int = 0, draws: int = 400
) -> Calibration:
    """Plant truths near a fit, fit again, infer, and rank each truth among the draws of its posterior."""
    rng = np.random.default_rng((seed, 0x5BC))
    ranks: list[Array] = []
    # Truths come from a region wider than any posterior, or every method would look right.
    region = replace_covariance(found, 16.0)
    for number in range(truths):
        truth = region.draw(1, rng)[0]
        again = refit(found, truth, rng)
        belief = method(again, number)
        points = belief.draw(draws, rng) if isinstance(belief, Gaussian) else belief.points
        ranks.append((points < truth).mean(axis=0))
    return Calibration(tuple(k.address for k in found.knobs), np.array(ranks))


def refit(found: Fit, truth: Array, rng: np.random.Generator, iterations: int = 10) -> Fit:
    """The fit that recordings made with a known truth would have given."""
    problem = planted(found, truth, rng)
    begin = replace(evaluate(problem, found.x[None])[0], nudge=found.point.nudge)
    point = descend(problem, begin, iterations, 1e-5)
    covariance, information = uncertainty(problem, point)
    return replace(found, problem=problem, point=point, covariance=covariance, information=information)


def misspecified(found: Fit, belief: Posterior, *, draws: int = 50, seed: int = 0) -> Estimate:
    """How likely residuals as coloured as the real ones are, if the posterior and white noise were the whole truth.

    The statistic is the lag-one correlation of the residuals: noise has none, missing physics has.
    """
    rng = np.random.default_rng((seed, 0x315))
    target: Likelihood = likelihood(found)
    shape, size = found.point.residual.shape, found.point.residual.size
    here = target.rows(found.x[None])[:, :size]
    made = target.rows(belief.draw(draws, rng))[:, :size] - here
    made = made + rng.standard_normal(made.shape)
    # Where start states are off by more than was thought, it is no fault of the physics: they are taken at their best.
    likes, real = (
        [_lag_one(rows.reshape(shape)) for rows in target.shrunk(some.reshape(len(some), shape[0], -1))]
        for some in (made, here)
    )
    beyond = int((np.array(likes) >= real[0]).sum())
    return Estimate((beyond + 1) / (draws + 1), 0.0, 1.0, draws, "1")


def _lag_one(residual: Array) -> float:
    power = float((residual**2).mean())
    return float((residual[:, 1:] * residual[:, :-1]).mean()) / power if power > 0 else 0.0
