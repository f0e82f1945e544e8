"""Clocks: how far two streams are apart in time, how sure that is, and how late an answer follows its command.

A lag is not a delay: a servo that trails its command by 100 ms may have a transport delay of 30 ms. A lag is reported,
never used to shift a stream; an offset between two clocks may be taken off, and then both numbers are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import angle_between, normalized
from instep.core.statistics import Estimate, student_quantile
from instep.core.world import Array

WINDOWS = 5
"""The fewest windows an offset is estimated from, so that it has a spread."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How much later one signal follows another."""

    seconds: float
    correlation: float
    """Of the two signals once the lag is taken off."""
    at_limit: bool
    """Whether the best lag is the longest one tried, so that it says nothing."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a clock is ahead of another."""

    seconds: Estimate
    """The median over windows [s]: add it to the stamps of the second stream."""
    spread: float
    """Standard deviation over windows [s], from the median absolute deviation."""
    windows: tuple[float, ...]
    correlation: float


def lag(first: Array, second: Array, dt: float, *, longest: float = 0.5) -> Lag:
    """How much later `second` [rows, n] follows `first`, by the peak of their correlation, between rows by a parabola.

    Pass rates of change: positions that drift hide the peak.
    """
    a, b = _columns(first), _columns(second)
    rows = len(a)
    reach = min(round(longest / dt), rows // 3)
    if reach < 1:
        raise BadInput(f"A lag needs at least three rows within {longest:g} s, and there are {rows} rows.")
    shifts = np.arange(-reach, reach + 1)
    scores = np.array([_overlap_correlation(a, b, int(s)) for s in shifts])
    best = int(np.nanargmax(scores))
    fraction = _parabola(scores[best - 1 : best + 2]) if 0 < best < len(scores) - 1 else 0.0
    at_limit = best in (0, len(scores) - 1)
    return Lag(float((shifts[best] + fraction) * dt), float(scores[best]), at_limit)


def clock_offset(
    first: tuple[Array, Array], second: tuple[Array, Array], *, longest: float = 5.0, windows: int = 8
) -> ClockOffset:
    """How far the clock of the second stream (stamps [s], signal [rows]) is behind that of the first.

    Signals must be rates that both clocks see, such as angular speeds. A global search is refined in windows; those
    with little motion or a poor match are left out.
    """
    dt = 0.5 * min(float(np.median(np.diff(first[0]))), float(np.median(np.diff(second[0]))))
    coarse = _coarse(first, second, dt, longest)
    starts = max(first[0][0], second[0][0] + coarse), min(first[0][-1], second[0][-1] + coarse)
    edges = [float(x) for x in np.linspace(float(starts[0]), float(starts[1]), windows + 1)]
    reach = max(0.2, 10 * dt)
    found: list[float] = []
    matches: list[float] = []
    for low, high in pairwise(edges):
        grid = np.arange(low + reach, high - reach, dt)
        if len(grid) < 20:
            continue
        best, match = _refine(first, second, grid, coarse, reach, dt)
        if match > 0.5 and abs(best - coarse) < 0.95 * reach:
            found.append(best)
            matches.append(match)
    if len(found) < WINDOWS:
        raise BadInput(
            f"Only {len(found)} of {windows} windows show a common motion, and a clock offset needs {WINDOWS}; "
            "record longer, or move more."
        )
    return _summary(np.array(found), float(np.median(matches)))


def angular_speed(stamps: Array, quats: Array, *, baseline: float = 0.6) -> tuple[Array, Array]:
    """Stamps [s] and angular speeds [rad/s] of orientations wxyz; the same in every frame.

    Each speed is the turn over a baseline [s] about its stamp, so noise is averaged without a lag. Give both streams
    the same baseline: filtering one side shifts it against the other.
    """
    stamps, fresh = np.unique(np.asarray(stamps, float), return_index=True)
    quats = normalized(np.asarray(quats, float)[fresh])
    step = max(1, round(0.5 * baseline / float(np.median(np.diff(stamps)))))
    before, after = slice(0, len(stamps) - 2 * step), slice(2 * step, len(stamps))
    turned = angle_between(quats[before], quats[after])
    span = stamps[after] - stamps[before]
    # Across a dropout the turn is an average over a longer time than the baseline.
    whole = span < 1.5 * baseline + 2 * float(np.median(np.diff(stamps)))
    return (0.5 * (stamps[after] + stamps[before]))[whole], (turned / span)[whole]


def _summary(found: Array, match: float) -> ClockOffset:
    middle = float(np.median(found))
    n = len(found)
    # Of few values the median deviation is too small on average, by about n / (n - 0.8).
    spread = float(1.4826 * n / (n - 0.8) * np.median(np.abs(found - middle)))
    # A median is noisier than a mean by sqrt(pi / 2). Student's quantile pays for the few windows; a median deviation
    # knows the spread only as well as the standard deviation of about half as many would.
    error = max(spread, 1e-12) * (np.pi / 2 / n) ** 0.5 * student_quantile(0.975, max(1, round(0.55 * (n - 1))))
    estimate = Estimate(middle, middle - float(error), middle + float(error), n, "s")
    return ClockOffset(estimate, spread, tuple(float(x) for x in found), match)


def _coarse(first: tuple[Array, Array], second: tuple[Array, Array], dt: float, longest: float) -> float:
    """The offset that fits whole streams best, to one grid step."""
    begin, end = max(first[0][0], second[0][0] - longest), min(first[0][-1], second[0][-1] + longest)
    grid = np.arange(begin, end, dt)
    if len(grid) < 20:
        raise BadInput("The two streams share no time even when their clocks are shifted; check the stamps.")
    a, b = _sampled(first)(grid), _sampled(second)
    shifts = np.arange(-longest, longest + dt, dt)
    scores = [_masked_correlation(a, b(grid - s)) for s in shifts]
    return float(shifts[int(np.nanargmax(scores))])


def _refine(
    first: tuple[Array, Array], second: tuple[Array, Array], grid: Array, about: float, reach: float, dt: float
) -> tuple[float, float]:
    a, b = _sampled(first)(grid), _sampled(second)
    shifts = about + np.arange(-reach, reach + dt, dt)
    scores = np.array([_masked_correlation(a, b(grid - s)) for s in shifts])
    if not np.isfinite(scores).any():
        return about, 0.0
    best = int(np.nanargmax(scores))
    fraction = _parabola(scores[best - 1 : best + 2]) if 0 < best < len(scores) - 1 else 0.0
    return float(shifts[best] + fraction * dt), float(scores[best])


def _sampled(stream: tuple[Array, Array]) -> Callable[[Array], Array]:
    """A stream at any moment: smoothed to half the other's rate would lag, so plain interpolation, NaN in gaps."""
    stamps, values = np.asarray(stream[0], float), np.asarray(stream[1], float)
    gap = 3 * float(np.median(np.diff(stamps)))

    def at(t: Array) -> Array:
        right = np.clip(np.searchsorted(stamps, t), 1, len(stamps) - 1)
        inside = (t >= stamps[0]) & (t <= stamps[-1]) & (stamps[right] - stamps[right - 1] <= gap)
        return np.where(inside, np.interp(t, stamps, values), np.nan)

    return at


def _masked_correlation(a: Array, b: Array) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < max(20, 0.3 * len(a)):
        return -np.inf
    return _correlation(a[both][:, None], b[both][:, None])


def _overlap_correlation(a: Array, b: Array, shift: int) -> float:
    return _correlation(a[: len(a) - shift], b[shift:]) if shift >= 0 else _correlation(a[-shift:], b[:shift])


def _correlation(a: Array, b: Array) -> float:
    """One correlation over all columns, each about its own mean."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else -1.0


def _parabola(scores: Array) -> float:
    """Where between -1 and 1 the top of a parabola through three scores lies."""
    left, middle, right = (float(x) for x in scores)
    bend = left - 2 * middle + right
    return float(np.clip((left - right) / (2 * bend), -1, 1)) if np.isfinite(bend) and bend < 0 else 0.0


def _columns(signal: Array) -> Array:
    signal = np.asarray(signal, float)
    return signal[:, None] if signal.ndim == 1 else signal
