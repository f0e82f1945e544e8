"""Domain randomization baselines: ranges by automatic domain randomization (ADR), distributions by DROPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Box, Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Simulator, array_dataclass, options_dataclass
from instep.tune.fit.shooting import Fit
from instep.tune.fit.windows import Shooter, cut_windows
from instep.tune.posterior.beliefs import GaussianBelief

Success = Callable[[Mapping[str, Array], Sequence[int]], Array]
"""Whether each episode succeeded [n], given its settings (address -> [n]) and its seed."""


@options_dataclass
class AdrOptions:
    """Options of automatic domain randomization."""

    episodes: int = 24
    """Episodes at each end of each range, per round."""
    widen: float = 0.8
    """Success at an end above which its range widens."""
    narrow: float = 0.5
    """Success at an end below which its range narrows."""
    step: float = 0.05
    """By which an end moves, as a share of the parameter's own bounds."""
    rounds: int = 20
    seed: int = 0


@array_dataclass
class AdrRound:
    """The ranges of one round, and the success rates at their ends."""

    low: Array
    """In unit coordinates [parameters]."""
    high: Array
    rates: Mapping[str, tuple[Estimate, Estimate]]
    """Success rates at the low and the high end, by address."""


@array_dataclass
class AdrResult:
    """The final ranges and how they were reached."""

    params: tuple[Param, ...]
    rounds: tuple[AdrRound, ...]
    low: Array
    high: Array
    stopped: bool = False

    @property
    def box(self) -> Box:
        """The ranges as a belief."""
        return _box(self.params, self.low, self.high)

    @property
    def entropy(self) -> float:
        """Mean logarithm of the widths as shares of the bounds: 0 where the ranges fill them."""
        return float(np.log(np.maximum(self.high - self.low, 1e-9)).mean())


def expand_ranges(
    success: Success,
    params: Sequence[Param],
    start: Mapping[str, float],
    options: AdrOptions | None = None,
    *,
    train: Callable[[Box], None] | None = None,
    watch: Callable[[int, AdrRound], None] | None = None,
) -> AdrResult:
    """Automatic domain randomization: widen and narrow ranges around a start by the success rates at their ends.

    Each round sets one parameter to one end of its range, samples the others from the box and measures success: an end
    with a high rate moves out by a step, one with a low rate moves in. `train` is called with the ranges before each
    round, so that the policy behind `success` can learn in them. Ctrl-C keeps the ranges reached so far.
    """
    options = options or AdrOptions()
    _check_adr(params, start, options)
    centre = np.array([float(param.to_unit(start[param.address])) for param in params])
    low, high = centre.copy(), centre.copy()
    rounds: list[AdrRound] = []
    stopped = False
    try:
        for number in range(options.rounds):
            if train is not None:
                train(_box(params, low, high))
            rates = _measured(success, params, (low, high), options, number)
            rounds.append(AdrRound(low.copy(), high.copy(), rates))
            if watch is not None:
                watch(number, rounds[-1])
            low, high = _moved(params, rates, (low, high), centre, options)
    except KeyboardInterrupt:
        stopped = True
    return AdrResult(tuple(params), tuple(rounds), low, high, stopped)


def _measured(
    success: Success, params: Sequence[Param], ends: tuple[Array, Array], options: AdrOptions, number: int
) -> dict[str, tuple[Estimate, Estimate]]:
    """Success rates with each parameter at each end, all in one batch of episodes."""
    low, high = ends
    n, sides = options.episodes, 2 * len(params)
    rng = np.random.default_rng((options.seed, number, 0xAD2))
    points = low + (high - low) * rng.random((sides, n, len(params)))
    for i in range(len(params)):
        points[2 * i, :, i], points[2 * i + 1, :, i] = low[i], high[i]
    flat = points.reshape(-1, len(params))
    settings = {param.address: param.from_unit(flat[:, i]) for i, param in enumerate(params)}
    # The same seeds at every end, so that ends differ by their parameter alone.
    seeds = [options.seed + number * n + k for _ in range(sides) for k in range(n)]
    won = np.asarray(success(settings, seeds), bool).reshape(sides, n).sum(axis=1)
    rates = [wilson(int(count), n) for count in won]
    return {param.address: (rates[2 * i], rates[2 * i + 1]) for i, param in enumerate(params)}


def _moved(
    params: Sequence[Param],
    rates: Mapping[str, tuple[Estimate, Estimate]],
    ends: tuple[Array, Array],
    centre: Array,
    options: AdrOptions,
) -> tuple[Array, Array]:
    low, high = ends[0].copy(), ends[1].copy()
    for i, param in enumerate(params):
        at_low, at_high = rates[param.address]
        low[i] = np.clip(low[i] - options.step * _direction(at_low, options), 0.0, centre[i])
        high[i] = np.clip(high[i] + options.step * _direction(at_high, options), centre[i], 1.0)
    return low, high


def _direction(rate: Estimate, options: AdrOptions) -> int:
    return 1 if rate.value >= options.widen else -1 if rate.value < options.narrow else 0


def _box(params: Sequence[Param], low: Array, high: Array) -> Box:
    ranges: list[Param] = []
    for i, param in enumerate(params):
        # A range that never opened is a point, and bounds must differ.
        below, above = float(param.from_unit(low[i])), float(param.from_unit(max(high[i], low[i] + 1e-9)))
        ranges.append(replace(param, low=below, high=above))
    return Box(tuple(ranges))


def _check_adr(params: Sequence[Param], start: Mapping[str, float], options: AdrOptions) -> None:
    if not 0 < options.narrow < options.widen <= 1:
        raise BadInput(
            f"A range narrows below a lower success rate than it widens above, not {options.narrow:g} and "
            f"{options.widen:g}."
        )
    for param in params:
        value = start.get(param.address)
        if value is None or not param.low <= value <= param.high:
            raise BadInput(
                f"The start of {param.address!r} must lie inside [{param.low:g}, {param.high:g}], not {value}."
            )


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
