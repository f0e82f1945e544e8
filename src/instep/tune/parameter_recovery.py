"""Plant truths near a fit, on the same excitation with the same noise, and see whether it finds them again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from instep.core.statistics import wilson
from instep.core.world import Array

from .fit import Fit, uncertainty
from .least_squares import Point, Problem, descend, evaluate, rough
from .posterior import freedom_factor
from .windows import Windows


@dataclass(frozen=True, slots=True, eq=False)
class Recovery:
    """How often each parameter's truth lay inside its own interval."""

    names: tuple[str, ...]
    inside: Array
    """Whether the truth lay inside [draws, parameters]."""
    errors: Array
    """Found minus planted, in unit coordinates [draws, parameters]."""
    level: float

    @property
    def share(self) -> dict[str, float]:
        """Share of draws inside, by parameter."""
        return dict(zip(self.names, self.inside.mean(axis=0).tolist(), strict=True))


ENOUGH, MOST = 0.85, 5
"""Share of truths that must be found again; and how many times as many are planted where few leave it in doubt."""


def recover_parameters(
    found: Fit, draws: int = 10, *, level: float = 0.9, seed: int = 0, iterations: int = 6
) -> Recovery:
    """Simulate the recorded windows with known parameters and the residuals' own noise, and fit again.

    Of ten truths with honest 90 % intervals, two or more are missed one time in four. So where the share falls short,
    more are planted, until it does not or it is beyond doubt that it does.
    """
    rng = np.random.default_rng((seed, 0x7EC0))
    inside, errors = [], []
    while len(inside) < draws or (len(inside) < MOST * draws and _in_doubt(inside)):
        error, half = _again(found, rng, level, iterations)
        inside.append(np.abs(error) <= half)
        errors.append(error)
    return Recovery(tuple(k.address for k in found.params), np.array(inside), np.array(errors), level)


def _again(found: Fit, rng: np.random.Generator, level: float, iterations: int) -> tuple[Array, Array]:
    """Plant one truth and find it again: found minus planted, and half the width of the intervals [parameters]."""
    truth = _truth(found, rng)
    problem = synthetic_problem(found, truth, rng)
    # Begin where the real fit ended, as a user would who does not know the truth.
    begin = replace(evaluate(problem, found.x[None])[0], nudge=found.point.nudge)
    point = descend(problem, begin, 2 * iterations if rough(begin) else iterations, 1e-4)
    covariance, _ = uncertainty(problem, point)
    n = len(problem.shooter.windows)
    half = stats.t.ppf(0.5 + level / 2, max(1, n - len(truth))) * np.sqrt(np.diag(covariance))
    return point.x - truth, half


def _in_doubt(inside: list[Array]) -> bool:
    """Whether too few truths were found so far, yet not beyond doubt."""
    share = wilson(int(np.sum(inside)), int(np.size(inside)))
    return share.value < ENOUGH <= share.high


def synthetic_problem(found: Fit, truth: Array, rng: np.random.Generator) -> Problem:
    """The same problem with recordings made by the simulator: known parameters, noisy starts, coloured noise."""
    problem, windows = found.problem, found.windows
    shifts = rng.standard_normal((1, len(windows), len(problem.sigma_start))) * problem.sigma_start
    made: Point = evaluate(problem, truth[None], shifts)[0]
    size = len(windows.tangent.labels)
    path = np.zeros((*made.residual.shape[:2], size))
    path[..., windows.tangent.seen] = made.residual
    noise = np.zeros_like(path)
    noise[..., windows.tangent.seen] = coloured(found, rng)
    target = windows.tangent.plus(windows.tangent.plus(windows.target, path), noise)
    shooter = replace(problem.shooter, windows=_with_target(windows, target), worlds=0)
    return replace(problem, shooter=shooter)


def some(found: Fit, limit: int) -> Fit:
    """The same fit seen through at most `limit` of its windows, evenly chosen, with the doubt that goes with them."""
    windows, point = found.windows, found.point
    if len(windows) <= limit:
        return found
    index = np.linspace(0, len(windows) - 1, limit).round().astype(int)
    shooter = replace(found.problem.shooter, windows=windows.some(index), worlds=0)
    kept = replace(point, starts=point.starts[index], residual=point.residual[index])
    widened = found.covariance * len(windows) / limit
    return replace(found, problem=replace(found.problem, shooter=shooter), point=kept, covariance=widened)


def _truth(found: Fit, rng: np.random.Generator) -> Array:
    """Somewhere near the fit: a few of its own deviations away, at least a hundredth of the range."""
    sigma = np.sqrt(np.clip(np.diag(found.covariance), 1e-4, 1e-2))
    return np.clip(found.x + sigma * rng.standard_normal(len(sigma)), 0.0, 1.0)


def coloured(found: Fit, rng: np.random.Generator) -> Array:
    """Noise that keeps its sign as long as the residuals do, in sizes as different from window to window.

    Residuals of a fit have lost what start states and params took up, the very directions in which noise moves a fit
    again, so they cannot be planted as they are: what is planted has their size, made larger by the degrees of freedom
    that went, and their correlation up to where it ends.
    """
    residual = np.nan_to_num(found.point.residual)
    windows, span, channels = residual.shape
    white = np.fft.rfft(rng.standard_normal((windows, 2 * span, channels)), axis=1)
    noise = np.fft.irfft(_colour(residual / found.problem.scale)[:, None] * white, 2 * span, axis=1)[:, :span]
    sizes = np.sqrt((residual**2).mean(axis=1, keepdims=True))
    return noise * sizes[rng.permutation(windows)] * np.sqrt(freedom_factor(found))


def _colour(residual: Array) -> Array:
    """Root of the spectrum of unit noise with the autocorrelation of the residuals, up to where that ends."""
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


def _with_target(windows: Windows, target: Array) -> Windows:
    return replace(windows, target=target)
