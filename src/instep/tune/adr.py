"""Automatic domain randomisation: a box of params that grows where a policy succeeds at its edges, else shrinks.

Each round puts one param at one end of its range, draws the others from the box, and measures success there: at an end
that is still easy the range widens by a step, at one that is too hard it narrows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.errors import BadInput
from instep.core.param import Box, Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array

Success = Callable[[Mapping[str, Array], Sequence[int]], Array]
"""Whether each episode succeeded [n], given its settings (address -> [n]) and its seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdrOptions:
    """When and by how much a range moves."""

    episodes: int = 24
    """Measured at each end of each range, per round."""
    widen: float = 0.8
    """Success at an end above which its range widens."""
    narrow: float = 0.5
    """Success at an end below which its range narrows."""
    step: float = 0.05
    """By which an end moves, as a share of the parameter's own bounds."""
    rounds: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AdrRound:
    """Where the ranges stood, and how often episodes at their ends succeeded."""

    low: Array
    """In unit coordinates [parameters]."""
    high: Array
    rates: Mapping[str, tuple[Estimate, Estimate]]
    """Success at the low and the high end, by address."""


@dataclass(frozen=True, slots=True, eq=False)
class AdrResult:
    """The box that came out, and how it came about."""

    params: tuple[Param, ...]
    rounds: tuple[AdrRound, ...]
    low: Array
    high: Array
    stopped: bool = False

    @property
    def box(self) -> Box:
        """The ranges, to be drawn from."""
        return _box(self.params, self.low, self.high)

    @property
    def entropy(self) -> float:
        """Mean logarithm of the ranges' widths as shares of the bounds: 0 where all that is possible is drawn."""
        return float(np.log(np.maximum(self.high - self.low, 1e-9)).mean())


def expand_ranges(
    success: Success,
    params: Sequence[Param],
    start: Mapping[str, float],
    options: AdrOptions | None = None,
    *,
    watch: Callable[[int, AdrRound], None] | None = None,
) -> AdrResult:
    """Widen and narrow ranges around a start by measured success at their ends; Ctrl-C keeps what was reached."""
    options = options or AdrOptions()
    _check(params, start, options)
    centre = np.array([float(param.to_unit(start[param.address])) for param in params])
    low, high = centre.copy(), centre.copy()
    rounds: list[AdrRound] = []
    stopped = False
    try:
        for number in range(options.rounds):
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
    """Success with each parameter at each end, all of it in one batch of episodes."""
    low, high = ends
    n, sides = options.episodes, 2 * len(params)
    rng = np.random.default_rng((options.seed, number, 0xAD2))
    points = low + (high - low) * rng.random((sides, n, len(params)))
    for i in range(len(params)):
        points[2 * i, :, i], points[2 * i + 1, :, i] = low[i], high[i]
    flat = points.reshape(-1, len(params))
    settings = {param.address: param.from_unit(flat[:, i]) for i, param in enumerate(params)}
    # The same starts at every end, so that ends differ by their parameter and not by their luck.
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
        low[i] = np.clip(low[i] - options.step * _way(at_low, options), 0.0, centre[i])
        high[i] = np.clip(high[i] + options.step * _way(at_high, options), centre[i], 1.0)
    return low, high


def _way(rate: Estimate, options: AdrOptions) -> int:
    return 1 if rate.value >= options.widen else -1 if rate.value < options.narrow else 0


def _box(params: Sequence[Param], low: Array, high: Array) -> Box:
    ranges: list[Param] = []
    for i, param in enumerate(params):
        # A range that never opened is drawn as a point; a parameter needs some width to be one.
        ends = float(low[i]), float(max(high[i], low[i] + 1e-9))
        ranges.append(
            Param(
                param.address, float(param.from_unit(ends[0])), float(param.from_unit(ends[1])), param.log, param.unit
            )
        )
    return Box(tuple(ranges))


def _check(params: Sequence[Param], start: Mapping[str, float], options: AdrOptions) -> None:
    if not 0 < options.narrow < options.widen <= 1:
        raise BadInput(
            f"A range narrows below a lower success than it widens above, not {options.narrow:g} and {options.widen:g}."
        )
    for param in params:
        value = start.get(param.address)
        if value is None or not param.low <= value <= param.high:
            raise BadInput(
                f"The start of {param.address!r} must lie inside [{param.low:g}, {param.high:g}], not {value}."
            )
