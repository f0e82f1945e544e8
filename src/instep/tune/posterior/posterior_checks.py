"""Checks by planted parameters: recovery by a fit, calibration of a posterior; its coverage and misspecification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Simulator, array_dataclass
from instep.tune.fit.least_squares import FIRST_DAMPING, NEAR_DAMPING, Point, Problem, descend, evaluate, rough
from instep.tune.fit.shooting import Fit
from instep.tune.fit.uncertainty import judged
from instep.tune.fit.windows import Shooter, Windows, cut_windows
from instep.tune.gates import MAX_REPEATS, MIN_BAND_SHARE, MIN_MISSPECIFICATION_P, MIN_RECOVERED, PLANTED_VALUES

from .beliefs import (
    GaussianBelief,
    Posterior,
    PosteriorFunction,
    SampleBelief,
    estimates,
    infer,
    likelihood,
    save_belief,
    widened_laplace,
)

LEVELS = (0.5, 0.8, 0.9, 0.95)
TRUTHS, OTHER_TRUTHS = {"laplace": 20, "eki": 10}, 4
"""Planted parameter sets of the calibration, by method; each costs a fit and an inference."""


@array_dataclass
class PosteriorCheck:
    """A posterior and how far it can be trusted."""

    method: str
    belief: Posterior
    calibration: RankCalibration | None
    band: PredictiveBand
    misspecification_p: float

    @property
    def message(self) -> str:
        """The verdict in words."""
        inside, said = self.band.inside, "The model explains the recordings up to noise."
        if self.misspecification_p < MIN_MISSPECIFICATION_P:
            said = (
                "Residuals are not noise: the model lacks something, so the posterior is about the model's parameters "
                "rather than the machine's."
            )
        if inside.high < MIN_BAND_SHARE:
            said += f" Held-out rows leave the 90 % band too often ({inside.value:.0%} inside): widen the belief."
        return said

    @property
    def coverage(self) -> dict[float, Estimate]:
        """Share of planted truths inside the intervals of each level; empty if none were planted."""
        return {} if self.calibration is None else {level: self.calibration.coverage(level) for level in LEVELS}

    def save(self, folder: Path) -> Path:
        """Write belief.json and belief.npz."""
        return save_belief(self.belief, folder / "belief.json")

    def as_dict(self) -> dict[str, Any]:
        """What `result.json` holds of it."""
        checked = self.calibration
        levels = () if checked is None else LEVELS
        return {
            "method": self.method,
            "estimates": {name: e.as_dict() for name, e in estimates(self.belief).items()},
            "truths": 0 if checked is None else len(checked.ranks),
            "coverage of planted truths": {f"{k:g}": checked.coverage(k).as_dict() for k in levels if checked},
            "uniform ranks, p": {} if checked is None else checked.uniformity,
            "held-out rows inside the 90 % band": self.band.inside.as_dict(),
            "misspecification p": self.misspecification_p,
            "message": self.message,
            "files": ["belief.json", "belief.npz"],
        }


def check_posterior(
    belief: Posterior, found: Fit, held_out: Sequence[Episode], *, method: str | PosteriorFunction = "laplace",
    truths: int | None = None, seed: int = 0,
) -> PosteriorCheck:  # fmt: skip
    """Calibrate a posterior by planted parameters, and compare its predictions with held-out recordings.

    `truths` is the number of planted parameter sets; 0 leaves out the calibration.
    """
    name = method if isinstance(method, str) else method.__name__

    def again(fit: Fit, seed: int) -> Posterior:
        return infer(fit, method, seed=seed)

    truths, checked = TRUTHS.get(name, OTHER_TRUTHS) if truths is None else truths, None
    if isinstance(belief, SampleBelief) and belief.ranks is not None:
        checked = RankCalibration(tuple(param.address for param in belief.params), belief.ranks)
    elif truths:
        # Fewer windows check the same method in a fraction of the time.
        few = subset(found, 12)  # most windows of such a calibration
        checked = calibration(few, again, truths, seed=seed)
    band = predictive_band(found.problem.shooter.sim, belief, held_out, found, seed=seed)
    return PosteriorCheck(name, belief, checked, band, misspecification(found, belief, seed=seed).value)


@array_dataclass
class RankCalibration:
    """Ranks of planted parameters within their posteriors."""

    names: tuple[str, ...]
    ranks: Array
    """Share of posterior samples below the planted value [truths, parameters]; uniform where it is calibrated."""

    def coverage(self, level: float) -> Estimate:
        """Share of planted values inside the central interval of a level, over all parameters."""
        inside = np.abs(self.ranks - 0.5) <= level / 2
        return wilson(int(inside.sum()), inside.size)

    @property
    def uniformity(self) -> dict[str, float]:
        """p-value that the ranks are uniform, by parameter (Kolmogorov-Smirnov)."""
        return {name: float(stats.kstest(self.ranks[:, i], "uniform").pvalue) for i, name in enumerate(self.names)}

    @property
    def error(self) -> float:
        """Mean distance between nominal and actual coverage, over levels."""
        return float(np.mean([abs(self.coverage(level).value - level) for level in LEVELS]))


def calibration(
    found: Fit, method: Callable[[Fit, int], Posterior], truths: int = 50, *, seed: int = 0, draws: int = 400
) -> RankCalibration:
    """Simulation-based calibration: plant parameters near a fit, fit again, infer, and rank them in the posterior."""
    rng = np.random.default_rng((seed, 0x5BC))
    ranks: list[Array] = []
    # Planted values come from a region wider than any posterior, or every method would look calibrated.
    region = widened_laplace(found, 16.0)
    for number in range(truths):
        truth = region.draw(1, rng)[0]
        belief = method(refit(found, truth, rng), number)
        points = belief.draw(draws, rng) if isinstance(belief, GaussianBelief) else belief.points
        ranks.append((points < truth).mean(axis=0))
    return RankCalibration(tuple(k.address for k in found.params), np.array(ranks))


def misspecification(found: Fit, belief: Posterior, *, draws: int = 50, seed: int = 0) -> Estimate:
    """p-value of the autocorrelation of the residuals under the posterior and white noise.

    The statistic is the lag-one correlation of the residuals: noise has none, missing physics has.
    """
    rng = np.random.default_rng((seed, 0x315))
    target = likelihood(found)
    shape, size = found.point.residual.shape, found.point.residual.size
    here = target.rows(found.x[None])[:, :size]
    made = target.rows(belief.draw(draws, rng))[:, :size] - here
    made = made + rng.standard_normal(made.shape)
    # Start states that are off by more than their noise are no error of the physics: they are taken at their best.

    def lag_one(residual: Array) -> float:
        power = float((residual**2).mean())
        return float((residual[:, 1:] * residual[:, :-1]).mean()) / power if power > 0 else 0.0

    simulated, real = (
        [lag_one(rows.reshape(shape)) for rows in target.marginalised(part.reshape(len(part), shape[0], -1))]
        for part in (made, here)
    )
    beyond = int((np.array(simulated) >= real[0]).sum())
    return Estimate((beyond + 1) / (draws + 1), 0.0, 1.0, draws, "1")


@array_dataclass
class PredictiveBand:
    """The 90 % band of the predictions of held-out windows, minus the measured positions."""

    low: Array
    """[windows, span, channels]."""
    high: Array
    windows: Windows
    inside: Estimate
    """Share of rows within the band."""


def predictive_band(
    sim: Simulator, belief: Posterior, episodes: Sequence[Episode], found: Fit, *, draws: int = 40, seed: int = 0
) -> PredictiveBand:
    """The 90 % band of predictions of held-out recordings from parameters, start states and sensor noise."""
    rng = np.random.default_rng((seed, 0xBA2D))
    windows = cut_windows(
        sim, episodes, span=found.windows.action.shape[1], skip=first_row(belief.params, sim), limit=64
    )
    shooter = Shooter(sim, windows, belief.params)
    # Start states are as uncertain as their noise, or as far off as those of the fit turned out to be.
    moved = np.sqrt((found.point.starts**2).mean(axis=0))
    sigma = np.where(found.problem.sigma_start > 0, np.maximum(found.problem.sigma_start, moved), 0.0)
    starts = rng.standard_normal((draws, len(windows), len(sigma))) * sigma if sigma.any() else None
    residual = shooter(belief.draw(draws, rng), starts)[..., windows.tangent.measured]
    scatter = found.point.residual.std(axis=(0, 1))
    made = residual + scatter * rng.standard_normal(residual.shape)
    low, high = np.nanquantile(made, [0.05, 0.95], axis=0)
    inside = ((low <= 0) & (high >= 0))[windows.inside]
    # Rows of a window are one observation, so the count behind the interval is that of windows.
    share, n = float(inside.mean()), len(windows) * inside.shape[-1]
    return PredictiveBand(low, high, windows, replace(wilson(round(share * n), n), value=share))


def first_row(params: Sequence[Param], sim: Simulator) -> int:
    """The first row to predict from: commands before a recording are unknown, and a delayed one may still act."""
    return round(max((param.high for param in params if param.parts.field == "delay"), default=0.0) / sim.spec.dt)


@array_dataclass
class Recovery:
    """How often each planted parameter lay inside its interval."""

    names: tuple[str, ...]
    inside: Array
    """Whether the planted value lay inside [draws, parameters]."""
    errors: Array
    """Found minus planted, in unit coordinates [draws, parameters]."""
    level: float

    @property
    def share(self) -> dict[str, float]:
        """Share of draws inside, by parameter."""
        return dict(zip(self.names, self.inside.mean(axis=0).tolist(), strict=True))


def planted_sets(params: int) -> int:
    """How many sets of some number of parameters are planted: about forty values, in two to ten sets."""
    return int(np.clip(-(-PLANTED_VALUES // max(1, params)), 2, 10))


def recover_parameters(
    found: Fit, draws: int = 10, *, level: float = 0.9, seed: int = 0, iterations: int = 6,
    progress: Progress | None = None,
) -> Recovery | None:  # fmt: skip
    """Simulate the recorded windows with known parameters and the residuals' own noise, and fit again.

    Of ten values with correct 90 % intervals, two or more are missed one time in four. So where the share is too small,
    more are planted until it is large enough, or significantly too small; parameters that are known as a sum only are
    missed together and count as one. None where the time ends before `draws` sets.
    """
    independent = independent_values(found.covariance)
    rng, progress = np.random.default_rng((seed, 0x7EC0)), progress or Progress()
    inside: list[Array] = []
    errors: list[Array] = []

    def undecided() -> bool:
        share, n = float(np.mean(inside)), max(1, round(independent * len(inside)))
        return share < MIN_RECOVERED <= wilson(round(share * n), n).high

    while len(inside) < draws or (len(inside) < MAX_REPEATS * draws and undecided()):
        if progress.ended or not progress.affords(1):
            break
        began = progress.clock()
        progress.advance("recovery of planted parameters", len(inside) / max(draws, len(inside) + 1))
        # Plant one parameter set and fit it: found minus planted, and half the width of the intervals [parameters].
        truth = _truth(found, rng)
        longer = rough(found.point) or found.problem.linearised
        again = refit(found, truth, rng, 2 * iterations if longer else iterations, 1e-4)
        error, half = again.x - truth, again.deviations(level) * np.sqrt(np.diag(again.covariance))
        inside.append(np.abs(error) <= half)
        errors.append(error)
        progress.stepped(progress.clock() - began)
    if len(inside) < draws:
        return None
    return Recovery(tuple(k.address for k in found.params), np.array(inside), np.array(errors), level)


def refit(found: Fit, truth: Array, rng: np.random.Generator, iterations: int = 10, tolerance: float = 1e-5) -> Fit:
    """The fit to simulated recordings with known parameters, starting at the real fit.

    Where it ends above the cost of the known parameters it missed the minimum, which the solve gate would notice;
    intervals are asked about here, so it starts at the known ones instead.
    """
    problem, planted = synthetic_problem(found, truth, rng)
    begin = replace(evaluate(problem, found.x[None])[0], difference_step=found.point.difference_step)
    damping = NEAR_DAMPING if problem.linearised else FIRST_DAMPING
    ended = descend(problem, begin, iterations, tolerance, damping=damping)
    if ended.point.cost > planted.cost:
        begin = replace(planted, difference_step=found.point.difference_step)
        ended = descend(problem, begin, iterations, tolerance, damping=damping)
    point, known, status = judged(problem, ended, found.widening)
    return replace(
        found, problem=problem, point=point, covariance=known.covariance, information=known.information, status=status
    )  # fmt: skip


def independent_values(covariance: Array) -> float:
    """How many independent values the estimates of parameters amount to: as many as there are where uncorrelated."""
    root = _correlation_root(covariance)
    return len(covariance) ** 2 / float(((root @ root.T) ** 2).sum())


def synthetic_problem(found: Fit, truth: Array, rng: np.random.Generator) -> tuple[Problem, Point]:
    """The same problem with simulated recordings (known parameters, noisy start states, coloured noise), and these."""
    problem, windows = found.problem, found.windows
    shifts = rng.standard_normal((1, len(windows), len(problem.sigma_start))) * problem.sigma_start
    made: Point = evaluate(problem, truth[None], shifts)[0]
    size = len(windows.tangent.labels)
    path = np.zeros((*made.residual.shape[:2], size))
    path[..., windows.tangent.measured] = made.residual
    noise = np.zeros_like(path)
    noise[..., windows.tangent.measured] = coloured_noise(found, rng)
    target = windows.tangent.plus(windows.tangent.plus(windows.target, path), noise)
    shooter = replace(problem.shooter, windows=replace(windows, target=target), worlds=0)
    simulated = replace(problem, shooter=shooter)
    return simulated, evaluate(simulated, truth[None], shifts)[0]


def subset(found: Fit, limit: int) -> Fit:
    """The same fit over at most `limit` of its windows, evenly spaced, with the covariance scaled accordingly."""
    windows, point = found.windows, found.point
    if len(windows) <= limit:
        return found
    index = np.linspace(0, len(windows) - 1, limit).round().astype(int)
    shooter = replace(found.problem.shooter, windows=windows.subset(index), worlds=0)
    kept = replace(point, starts=point.starts[index], residual=point.residual[index])
    widened = found.covariance * len(windows) / limit
    return replace(found, problem=replace(found.problem, shooter=shooter), point=kept, covariance=widened)


def _truth(found: Fit, rng: np.random.Generator) -> Array:
    """A random point near the fit: a few standard deviations away, at least a hundredth of the range.

    For an arm it is drawn from the estimate itself, correlations included. There a hundredth of the range is many
    deviations, and so are independent draws of parameters that are known as a sum only, such as the damping of a motor
    and that of its joint; stick-slip in between makes the least-squares fit that follows end elsewhere, without the
    search of its joints that comes first.
    """
    variance, normal = np.diag(found.covariance), rng.standard_normal(len(found.x))
    if not found.problem.linearised:
        return np.clip(found.x + np.sqrt(np.clip(variance, 1e-4, 1e-2)) * normal, 0.0, 1.0)
    sigma = np.sqrt(np.clip(variance, 1e-10, 1e-2))
    return np.clip(found.x + sigma * (_correlation_root(found.covariance) @ normal), 0.0, 1.0)


def _correlation_root(covariance: Array) -> Array:
    """A root of the correlation matrix; parameters whose variance is not known or 0 are independent of the others."""
    sigma = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = covariance / np.outer(sigma, sigma)
    correlation = np.where(np.isfinite(correlation), correlation, 0.0)
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def coloured_noise(found: Fit, rng: np.random.Generator) -> Array:
    """Coloured noise with the autocorrelation of the residuals and their size, window by window.

    Residuals of a fit lack what start states and parameters absorbed, the directions in which noise moves a fit, so
    they cannot be planted as they are: the noise is scaled up by the lost degrees of freedom.
    """
    residual = np.nan_to_num(found.point.residual)
    windows, span, channels = residual.shape
    white = np.fft.rfft(rng.standard_normal((windows, 2 * span, channels)), axis=1)
    noise = np.fft.irfft(_colour(residual / found.problem.scale)[:, None] * white, 2 * span, axis=1)[:, :span]
    sizes = np.sqrt((residual**2).mean(axis=1, keepdims=True))
    return noise * sizes[rng.permutation(windows)] * np.sqrt(found.freedom_factor)


def _colour(residual: Array) -> Array:
    """Amplitude spectrum of unit noise with the autocorrelation of the residuals, cut off where it ends."""
    span, power = residual.shape[1], max(float((residual**2).mean()), 1e-300)
    rho = [1.0]
    for lag in range(1, span - 1):
        rho.append(float((residual[:, lag:] * residual[:, :-lag]).mean()) / power)
        if rho[-1] < 0.05:
            rho.pop()
            break
    around = np.zeros(2 * span)
    around[: len(rho)] = np.array(rho) * (1 - np.arange(len(rho)) / span)
    around[1:] = np.maximum(around[1:], around[:0:-1])
    spectrum = np.maximum(np.fft.rfft(around).real, 0.0)
    total = spectrum.sum() + spectrum[1:-1].sum()
    return np.sqrt(spectrum * 2 * span / max(float(total), 1e-300))
