"""Fit a distribution to train on, rather than a posterior: DROPO's idea, on windows of recordings.

From each recorded state the simulator runs a few steps under settings drawn from a normal distribution with mean mu and
deviations sigma in unit coordinates. What was measured then must be likely under the normal distribution of what was
predicted,

    sum over windows of log N(measured | mean, covariance + eps),

so the spread of the parameters grows to what they must explain, and no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.world import Array, Simulator

from .beliefs import GaussianBelief
from .shooting import Shooter
from .windows import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoOptions:
    """How much is simulated."""

    steps: int = 5
    """Rows that are predicted from each recorded state."""
    windows: int = 60
    """Recorded states that are used, evenly chosen."""
    draws: int = 24
    """Settings drawn from a distribution that is tried."""
    generations: int = 30
    population: int = 10
    epsilon: float = 0.0
    """Variance that is added to predictions [squared units]; that of the measured positions' noise where 0."""
    widest: float = 0.25
    """Largest deviation of a parameter, as a share of its range."""
    seed: int = 0


def dropo(
    sim: Simulator, episodes: Sequence[Episode], params: Sequence[Param], options: DropoOptions | None = None
) -> GaussianBelief:
    """The independent normal distribution of parameters under which the recordings are most likely."""
    from cmaes import CMA

    options = options or DropoOptions()
    windows = cut(sim, episodes, span=options.steps, stride=options.steps, limit=options.windows)
    shooter = Shooter(sim, windows, tuple(params))
    size = len(params)
    rng = np.random.default_rng((options.seed, 0xD207))
    # The same standard normal draws for every candidate, so that two candidates differ by their numbers alone.
    noise = rng.standard_normal((options.draws, size))
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)
    search = CMA(
        mean=np.full(2 * size, 0.5),
        sigma=0.25,
        bounds=np.tile([0.0, 1.0], (2 * size, 1)),
        seed=int(rng.integers(2**31)),
        population_size=options.population,
    )
    best, top = np.full(2 * size, 0.5), np.inf
    for _ in range(options.generations):
        points = np.array([search.ask() for _ in range(options.population)])
        costs = _costs(shooter, points, noise, options)
        search.tell(list(zip(points, costs.tolist(), strict=True)))
        at = int(np.argmin(costs))
        best, top = (points[at], float(costs[at])) if costs[at] < top else (best, top)
    return GaussianBelief(tuple(params), best[:size], np.diag(_sigma(best[size:], options) ** 2))


def _costs(shooter: Shooter, points: Array, noise: Array, options: DropoOptions) -> Array:
    """Minus the log likelihood of each candidate (mu, sigma) [candidates]."""
    size, windows = noise.shape[1], shooter.windows
    drawn = points[:, None, :size] + noise * _sigma(points[:, None, size:], options)
    residual = shooter(np.clip(drawn, 0.0, 1.0).reshape(-1, size))[..., windows.tangent.seen]
    last = residual[:, :, -1].reshape(len(points), len(noise), len(windows), -1)
    last = np.nan_to_num(last, nan=1e3)
    floor = options.epsilon or np.maximum(2 * windows.noise_q[windows.tangent.seen] ** 2, 1e-10)
    mean, variance = last.mean(axis=1), last.var(axis=1) + floor
    return 0.5 * (mean**2 / variance + np.log(variance)).sum(axis=(1, 2))


def _sigma(shares: Array, options: DropoOptions) -> Array:
    """Deviations by coordinates in [0, 1], over three decades."""
    return options.widest * 10 ** (3 * (shares - 1))
