"""Domain randomization baselines: ranges by automatic domain randomization (ADR), distributions by DROPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.param import Box, Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, array_dataclass, options_dataclass

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












