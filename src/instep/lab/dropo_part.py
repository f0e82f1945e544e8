"""DROPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Param
from instep.core.world import Array, Simulator, options_dataclass
from instep.tune.fit.shooting import Fit
from instep.tune.fit.windows import Shooter, cut_windows
from instep.tune.posterior.beliefs import GaussianBelief


@options_dataclass
class DropoOptions:
    """Options of DROPO."""

    steps: int = 5
    """Rows that are predicted from each recorded state."""
    windows: int = 60
    """Recorded states that are used, evenly spaced."""
    draws: int = 24
    """Settings sampled from each candidate distribution."""
    generations: int = 30
    population: int = 10
    epsilon: float = 0.0
    """Variance added to predictions [squared units]; that of the noise of measured positions where 0."""
    widest: float = 0.25
    """Largest deviation of a parameter, as a share of its range."""
    seed: int = 0


def dropo(found: Fit, *, seed: int = 0) -> GaussianBelief:
    """The distribution to train on, rather than a posterior, from the windows of a fit."""
    options, windows = DropoOptions(seed=seed), found.windows
    index = np.unique(np.linspace(0, len(windows) - 1, options.windows).round().astype(int))
    rows = {name: getattr(windows, name)[:, : options.steps] for name in ("action", "target", "inside")}
    windows = replace(windows, **rows).subset(index)
    return _most_likely(replace(found.problem.shooter, windows=windows, worlds=0), options)


def dropo_from_episodes(
    sim: Simulator, episodes: Sequence[Episode], params: Sequence[Param], options: DropoOptions | None = None
) -> GaussianBelief:
    """The independent normal distribution of parameters under which recordings are most likely (DROPO).

    From each recorded state the simulator runs a few steps under settings sampled from a normal distribution with mean
    mu and deviations sigma in unit coordinates. The measured positions must be likely under the normal distribution of
    the predicted ones, sum over windows of log N(measured | mean, covariance + eps), so the spread of the parameters
    grows to what they must explain, and no further.
    """
    options = options or DropoOptions()
    windows = cut_windows(sim, episodes, span=options.steps, stride=options.steps, limit=options.windows)
    return _most_likely(Shooter(sim, windows, tuple(params)), options)


def _most_likely(shooter: Shooter, options: DropoOptions) -> GaussianBelief:
    size = len(shooter.params)
    rng = np.random.default_rng((options.seed, 0xD207))
    # The same standard normal samples for every candidate, so that candidates differ by their numbers alone.
    noise = rng.standard_normal((options.draws, size))
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)
    search = CmaSearch(
        spread=0.25, generations=options.generations, population=options.population, seed=int(rng.integers(2**31))
    )
    best, least = np.full(2 * size, 0.5), np.inf
    for found in cma_generations(
        lambda points: _negative_log_likelihood(shooter, points, noise, options), best.copy(), search
    ):
        if found.costs[found.best] < least:
            best, least = found.points[found.best], float(found.costs[found.best])
    return GaussianBelief(tuple(shooter.params), best[:size], np.diag(_sigma(best[size:], options) ** 2))


def _negative_log_likelihood(shooter: Shooter, points: Array, noise: Array, options: DropoOptions) -> Array:
    """Negative log likelihood of each candidate (mu, sigma) [candidates]."""
    size, windows = noise.shape[1], shooter.windows
    sampled = points[:, None, :size] + noise * _sigma(points[:, None, size:], options)
    residual = shooter(np.clip(sampled, 0.0, 1.0).reshape(-1, size))[..., windows.tangent.measured]
    last = residual[:, :, -1].reshape(len(points), len(noise), len(windows), -1)
    last = np.nan_to_num(last, nan=1e3)
    floor = options.epsilon or np.maximum(2 * windows.noise_q[windows.tangent.measured] ** 2, 1e-10)
    mean, variance = last.mean(axis=1), last.var(axis=1) + floor
    return 0.5 * (mean**2 / variance + np.log(variance)).sum(axis=(1, 2))


def _sigma(shares: Array, options: DropoOptions) -> Array:
    """Deviations by coordinates in [0, 1], over three decades."""
    return options.widest * 10 ** (3 * (shares - 1))
