"""Automatic domain randomisation: a box of knobs that grows where a policy succeeds at its edge, and shrinks where not.

Each round puts one knob at one end of its range, draws the others from the box, and measures success there: at an end
that is still easy the range widens by a step, at one that is too hard it narrows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.errors import BadInput
from instep.core.param import Box, Knob
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
    """By which an end moves, as a share of the knob's own bounds."""
    rounds: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Where the ranges stood, and how often episodes at their ends succeeded."""

    low: Array
    """In unit coordinates [knobs]."""
    high: Array
    rates: Mapping[str, tuple[Estimate, Estimate]]
    """Success at the low and the high end, by address."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """The box that came out, and how it came about."""

    knobs: tuple[Knob, ...]
    rounds: tuple[Round, ...]
    low: Array
    high: Array
    stopped: bool = False

    @property
    def box(self) -> Box:
        """The ranges, to be drawn from."""
        return _box(self.knobs, self.low, self.high)

    @property
    def entropy(self) -> float:
        """Mean logarithm of the ranges' widths as shares of the bounds: 0 where all that is possible is drawn."""
        return float(np.log(np.maximum(self.high - self.low, 1e-9)).mean())


def grow(
    success: Success,
    knobs: Sequence[Knob],
    start: Mapping[str, float],
    options: AdrOptions | None = None,
    *,
    watch: Callable[[int, Round], None] | None = None,
) -> Grown:
    """Widen and narrow ranges around a start by measured success at their ends; Ctrl-C keeps what was reached."""
    options = options or AdrOptions()
    _check(knobs, start, options)
    centre = np.array([float(knob.to_unit(start[knob.address])) for knob in knobs])
    low, high = centre.copy(), centre.copy()
    rounds: list[Round] = []
    stopped = False
    try:
        for number in range(options.rounds):
            rates = _measured(success, knobs, (low, high), options, number)
            rounds.append(Round(low.copy(), high.copy(), rates))
            if watch is not None:
                watch(number, rounds[-1])
            low, high = _moved(knobs, rates, (low, high), centre, options)
    except KeyboardInterrupt:
        stopped = True
    return Grown(tuple(knobs), tuple(rounds), low, high, stopped)


def _measured(
    success: Success, knobs: Sequence[Knob], ends: tuple[Array, Array], options: AdrOptions, number: int
) -> dict[str, tuple[Estimate, Estimate]]:
    """Success with each knob at each end, all of it in one batch of episodes."""
    low, high = ends
    n, sides = options.episodes, 2 * len(knobs)
    rng = np.random.default_rng((options.seed, number, 0xAD2))
    points = low + (high - low) * rng.random((sides, n, len(knobs)))
    for i in range(len(knobs)):
        points[2 * i, :, i], points[2 * i + 1, :, i] = low[i], high[i]
    flat = points.reshape(-1, len(knobs))
    settings = {knob.address: knob.from_unit(flat[:, i]) for i, knob in enumerate(knobs)}
    # The same starts at every end, so that ends differ by their knob and not by their luck.
    seeds = [options.seed + number * n + k for _ in range(sides) for k in range(n)]
    won = np.asarray(success(settings, seeds), bool).reshape(sides, n).sum(axis=1)
    rates = [wilson(int(count), n) for count in won]
    return {knob.address: (rates[2 * i], rates[2 * i + 1]) for i, knob in enumerate(knobs)}


def _moved(
    knobs: Sequence[Knob],
    rates: Mapping[str, tuple[Estimate, Estimate]],
    ends: tuple[Array, Array],
    centre: Array,
    options: AdrOptions,
) -> tuple[Array, Array]:
    low, high = ends[0].copy(), ends[1].copy()
    for i, knob in enumerate(knobs):
        at_low, at_high = rates[knob.address]
        low[i] = np.clip(low[i] - options.step * _way(at_low, options), 0.0, centre[i])
        high[i] = np.clip(high[i] + options.step * _way(at_high, options), centre[i], 1.0)
    return low, high


def _way(rate: Estimate, options: AdrOptions) -> int:
    return 1 if rate.value >= options.widen else -1 if rate.value < options.narrow else 0


def _box(knobs: Sequence[Knob], low: Array, high: Array) -> Box:
    ranges: list[Knob] = []
    for i, knob in enumerate(knobs):
        # A range that never opened is drawn as a point; a knob needs some width to be one.
        ends = float(low[i]), float(max(high[i], low[i] + 1e-9))
        ranges.append(
            Knob(knob.address, float(knob.from_unit(ends[0])), float(knob.from_unit(ends[1])), knob.log, knob.unit)
        )
    return Box(tuple(ranges))


def _check(knobs: Sequence[Knob], start: Mapping[str, float], options: AdrOptions) -> None:
    if not 0 < options.narrow < options.widen <= 1:
        raise BadInput(
            f"A range narrows below a lower success than it widens above, not {options.narrow:g} and {options.widen:g}."
        )
    for knob in knobs:
        value = start.get(knob.address)
        if value is None or not knob.low <= value <= knob.high:
            raise BadInput(f"The start of {knob.address!r} must lie inside [{knob.low:g}, {knob.high:g}], not {value}.")
