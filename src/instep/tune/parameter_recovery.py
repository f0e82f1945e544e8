"""Parameter recovery: simulate recordings with known parameters near a fit, with its noise, and fit again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.progress import Progress
from instep.core.records import array_dataclass
from instep.core.statistics import wilson
from instep.core.world import Array

from .fit_uncertainty import judged
from .least_squares import FIRST_DAMPING, NEAR_DAMPING, Point, Problem, descend, evaluate, rough
from .posterior import freedom_factor
from .shooting import Fit


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


MIN_RECOVERED = 0.85
"""Share of planted values that must lie inside their 90 % intervals."""
MAX_REPEATS = 5
"""How many times as many sets are planted where few leave it undecided."""
PLANTED_VALUES = 40
"""Values planted altogether, over sets and parameters, where the number of sets is not given."""


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
    while len(inside) < draws or (len(inside) < MAX_REPEATS * draws and _undecided(inside, independent)):
        if progress.ended or not progress.affords(1):
            break
        began = progress.clock()
        progress.advance("recovery of planted parameters", len(inside) / max(draws, len(inside) + 1))
        error, half = _recovered(found, rng, level, iterations)
        inside.append(np.abs(error) <= half)
        errors.append(error)
        progress.stepped(progress.clock() - began)
    if len(inside) < draws:
        return None
    return Recovery(tuple(k.address for k in found.params), np.array(inside), np.array(errors), level)


def _recovered(found: Fit, rng: np.random.Generator, level: float, iterations: int) -> tuple[Array, Array]:
    """Plant one parameter set and fit it: found minus planted, and half the width of the intervals [parameters]."""
    truth = _truth(found, rng)
    longer = rough(found.point) or found.problem.linearised
    again = refit(found, truth, rng, 2 * iterations if longer else iterations, 1e-4)
    return again.x - truth, again.deviations(level) * np.sqrt(np.diag(again.covariance))


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


def _undecided(inside: list[Array], independent: float) -> bool:
    """Whether too few values were recovered so far, but not significantly too few; so many of a set are independent."""
    share, n = float(np.mean(inside)), max(1, round(independent * len(inside)))
    return share < MIN_RECOVERED <= wilson(round(share * n), n).high


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
    return noise * sizes[rng.permutation(windows)] * np.sqrt(freedom_factor(found))


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
