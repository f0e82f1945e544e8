"""Time alignment: offsets between clocks, lags between signals, and how much of an error a lag explains.

A lag is not a delay: a servo that trails its command by 100 ms may have a transport delay of 30 ms. A lag is reported,
never used to shift a stream; an offset between two clocks may be taken off, and then both numbers are shown.

Dynamic time warping within a Sakoe-Chiba band: the distance of two runs when time may be warped.

Only an extra: it hides errors of timing, so every number shown with it is shown without it, too. The compiled walk goes
along anti-diagonals, whose cells do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numba import njit, uint64

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import angle_between, normalized
from instep.core.statistics import Estimate, pooled, student_quantile
from instep.core.world import Array, array_dataclass, frozen_dataclass

from .gap_result import RunPair
from .horizon import QUAT, HorizonOptions, pair_channels, velocity

WINDOWS = 5
"""The fewest windows an offset is estimated from, so that it has a spread."""


@frozen_dataclass
class Lag:
    """How much later one signal follows another."""

    seconds: float
    correlation: float
    """Of the two signals once the lag is taken off."""
    at_limit: bool
    """Whether the best lag is the longest one tried, so that it says nothing."""


@frozen_dataclass
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
    turns = angle_between(quats[before], quats[after])
    span = stamps[after] - stamps[before]
    # Across a dropout the turn is an average over a longer time than the baseline.
    whole = span < 1.5 * baseline + 2 * float(np.median(np.diff(stamps)))
    return (0.5 * (stamps[after] + stamps[before]))[whole], (turns / span)[whole]


@array_dataclass
class AlignedStreams:
    """Two streams of one motion, before and after their clocks are brought together."""

    first: str
    second: str
    offset: ClockOffset
    """Add it to the stamps of the second stream."""
    before: float
    """Root mean square difference of the two speeds as stamped."""
    after: float
    """The same with the offset taken off."""
    unit: str
    speeds: tuple[tuple[Array, Array], tuple[Array, Array]]
    """Stamps [s] and speeds of both streams, as stamped."""


def stream_groups(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Runs that are streams of one motion, by group: those whose `meta` names a `stream`."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if "stream" in episode.meta:
            groups.setdefault(episode.meta.get("group", ""), []).append(episode)
    return {name: group for name, group in groups.items() if len(group) > 1}


def align_streams(first: Episode, second: Episode, *, longest: float = 5.0) -> AlignedStreams:
    """How far the clock of the second stream is from that of the first, by the speed both see."""
    a, unit = speed(first)
    b, other = speed(second)
    if unit != other:
        raise BadInput(f"One stream gives speeds in {unit!r}, the other in {other!r}; they cannot be aligned.")
    found = clock_offset(a, b, longest=longest)
    names = (first.meta.get("stream", "first"), second.meta.get("stream", "second"))
    before, after = (_difference(a, b, shift) for shift in (0.0, found.seconds.value))
    return AlignedStreams(names[0], names[1], found, before, after, unit, (a, b))


def align_all_streams(groups: Mapping[str, Sequence[Episode]]) -> dict[str, AlignedStreams]:
    """Each further stream of each group against its first; the stream with the higher rate leads."""
    found: dict[str, AlignedStreams] = {}
    for name, group in groups.items():
        ranked = sorted(group, key=lambda e: e.spec.dt)
        for other in ranked[1:]:
            key = name if len(ranked) == 2 else f"{name}: {other.meta['stream']}"
            found[key] = align_streams(ranked[0], other)
    return found


def speed(episode: Episode) -> tuple[tuple[Array, Array], str]:
    """Stamps on the recorder's own clock [s] and the speed of what is recorded: of turning where it has a pose."""
    labels = episode.spec.q.labels
    t = np.asarray(episode.t, float) + float(episode.meta.get("start", 0.0))
    bodies = [label.removesuffix(".qw") for label in labels if label.endswith(".qw")]
    if bodies:
        columns = [labels.index(f"{bodies[0]}.{part}") for part in QUAT]
        return angular_speed(t, episode.q[:, columns]), "rad/s"
    rates = velocity(np.asarray(episode.q, float), episode.spec.dt)
    return (t, np.sqrt((rates**2).sum(axis=-1))), f"{episode.spec.q.units[0]}/s"


@frozen_dataclass
class WorldLag:
    """The lag between two worlds."""

    lag: Estimate
    """How much later the simulator moves than the robot [s], the median over runs; negative where it leads."""
    spread: float
    """Standard deviation over runs [s], from the median absolute deviation."""
    before: Estimate
    """The overall error as it is."""
    after: Estimate
    """The overall error if every run were shifted by its own lag."""


def world_lag(
    pairs: Sequence[RunPair], *, options: HorizonOptions | None = None, longest: float = 0.5
) -> WorldLag | None:
    """The lag between two worlds over runs; None where nothing moves or no run shows a clear lag."""
    compared, sizes = pair_channels(pairs, options or HorizonOptions())
    single = [i for i, columns in enumerate(compared.columns) if len(columns) == 1]
    columns = [compared.columns[i][0] for i in single]
    lags: list[float] = []
    sums: list[list[float]] = []
    counts: list[int] = []
    for pair in pairs:
        real, sim, dt = pair.real.q[:, columns], pair.sim.q[:, columns], pair.real.spec.dt
        if len(real) < 30 or not np.isfinite(sim).all() or not columns:
            continue
        found = lag(velocity(real, dt) / sizes[single], velocity(sim, dt) / sizes[single], dt, longest=longest)
        if found.at_limit or found.correlation < 0.5:
            continue
        shifted = _shifted(sim, found.seconds, dt)
        inside = np.isfinite(shifted).all(axis=-1)
        errors = [np.mean(((s - real)[inside] / sizes[single]) ** 2, axis=-1).sum() for s in (sim, shifted)]
        lags.append(found.seconds)
        sums.append([float(e) for e in errors])
        counts.append(int(inside.sum()))
    if not lags:
        return None
    before, after = pooled(np.array(sums), np.array(counts), unit="1")
    return WorldLag(*_median(np.array(lags)), before, after)


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


def _difference(a: tuple[Array, Array], b: tuple[Array, Array], shift: float) -> float:
    stamps = b[0] + shift
    inside = (stamps >= a[0][0]) & (stamps <= a[0][-1])
    return float(np.sqrt(np.mean((np.interp(stamps[inside], a[0], a[1]) - b[1][inside]) ** 2)))


def _shifted(q: Array, seconds: float, dt: float) -> Array:
    """What a run that is `seconds` late would be without it; NaN where it would have to be known beyond its end."""
    rows = np.arange(len(q), dtype=float)
    at = rows + seconds / dt
    out = np.stack([np.interp(at, rows, q[:, i]) for i in range(q.shape[1])], axis=-1)
    out[(at < 0) | (at > len(q) - 1)] = np.nan
    return out


def _median(values: Array) -> tuple[Estimate, float]:
    middle = float(np.median(values))
    spread = float(1.4826 * np.median(np.abs(values - middle)))
    n = len(values)
    if n < 3:
        return Estimate(middle, np.nan, np.nan, n, "s"), spread
    half = student_quantile(0.975, n - 1) * spread * (np.pi / 2 / n) ** 0.5
    return Estimate(middle, middle - half, middle + half, n, "s"), spread


WARP_S = 0.5
"""How far time may be warped in the score of paired runs [s]."""


def dtw(first: Array, second: Array, *, band: int) -> float:
    """The least root of summed squared distances over all walks through two runs [rows, n] within a band [rows]."""
    a, b = _checked(first, second, band)
    return float(_best_walk(a, b, band)) ** 0.5


def reference(first: Array, second: Array, *, band: int) -> float:
    """The same, cell by cell: slow and plain, the judge of the fast path."""
    a, b = _checked(first, second, band)
    cost = np.full((len(a) + 1, len(b) + 1), np.inf)
    cost[0, 0] = 0.0
    for i in range(1, len(a) + 1):
        for j in range(max(1, i - band), min(len(b), i + band) + 1):
            apart = float(((a[i - 1] - b[j - 1]) ** 2).sum())
            cost[i, j] = apart + min(cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1])
    return float(cost[-1, -1]) ** 0.5


def warped_error(pairs: Sequence[RunPair], *, options: HorizonOptions | None = None) -> Estimate | None:
    """The overall error of paired runs with time warped by up to half a second; None where no run is finite."""
    compared, sizes = pair_channels(pairs, options or HorizonOptions())
    single = [i for i, columns in enumerate(compared.columns) if len(columns) == 1]
    columns = [compared.columns[i][0] for i in single]
    sums: list[float] = []
    counts: list[int] = []
    for pair in pairs:
        real, sim = (side.q[:, columns] / sizes[single] for side in (pair.real, pair.sim))
        if columns and np.isfinite(sim).all() and np.isfinite(real).all():
            sums.append(dtw(real, sim, band=max(1, round(WARP_S / pair.real.spec.dt))) ** 2 / len(columns))
            counts.append(len(real))
    return pooled(np.array(sums)[:, None], np.array(counts), unit="1")[0] if sums else None


def _checked(first: Array, second: Array, band: int) -> tuple[Array, Array]:
    a, b = (np.ascontiguousarray(x, float) for x in (first, second))
    a, b = (x[:, None] if x.ndim == 1 else x for x in (a, b))
    if a.shape[1] != b.shape[1] or not len(a) or not len(b):
        raise BadInput(f"Two runs need rows and as many channels each, not {a.shape} and {b.shape}.")
    if band < abs(len(a) - len(b)):
        raise BadInput(f"A band of {band} rows cannot join runs of {len(a)} and {len(b)} rows; widen it.")
    return a, b


# pyright: basic, reportUnknownParameterType=false
# Numba compiles this function; its decorators have no types.


def _best_walk(a: Array, b: Array, band: int) -> float:
    """The summed squared distance of the best walk."""
    # Reversed and turned on their sides, cells of one anti-diagonal read both runs in order, so that they fill lanes.
    sides = np.ascontiguousarray(a.T).ravel(), np.ascontiguousarray(b[::-1].T).ravel()
    return float(cast(Any, _walk)(*sides, a.shape[1], band))


@njit(cache=True, fastmath=True)
def _walk(a, b, channels, band):  # pragma: no cover - compiled
    n, m = a.size // channels, b.size // channels
    two, one, new = np.full(n + 2, np.inf), np.full(n + 2, np.inf), np.full(n + 2, np.inf)
    apart = np.empty(n + 2)
    # Slot i + 1 of a diagonal holds the cell (i, k - i); slot 0 is the border. Indices are unsigned: a signed one might
    # be negative and wrap round, and that doubt would keep the loops out of the lanes.
    for k in range(n + m - 1):
        low, high = max(0, k - m + 1, (k - band + 1) // 2), min(n - 1, k, (k + band) // 2)
        first, width = low + m - 1 - k, uint64(high - low + 1)
        for i in range(width):
            apart[i] = 0.0
        c = 0
        while c + 4 <= channels:
            p0, p1, p2, p3 = (
                uint64(c * n + low),
                uint64((c + 1) * n + low),
                uint64((c + 2) * n + low),
                uint64((c + 3) * n + low),
            )
            o0, o1 = uint64(c * m + first), uint64((c + 1) * m + first)
            o2, o3 = uint64((c + 2) * m + first), uint64((c + 3) * m + first)
            for i in range(width):
                d0, d1, d2, d3 = (
                    a[p0 + i] - b[o0 + i],
                    a[p1 + i] - b[o1 + i],
                    a[p2 + i] - b[o2 + i],
                    a[p3 + i] - b[o3 + i],
                )
                apart[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
            c += 4
        while c < channels:
            p, o = uint64(c * n + low), uint64(c * m + first)
            for i in range(width):
                d = a[p + i] - b[o + i]
                apart[i] += d * d
            c += 1
        if k == 0:
            new[1] = apart[0]
        else:
            at, up = uint64(low), uint64(low + 1)
            for i in range(width):
                new[up + i] = apart[i] + min(two[at + i], min(one[up + i], one[at + i]))
        # The cells beside the band are out of reach, whatever an older diagonal left there.
        new[low] = np.inf
        if high + 2 < n + 2:
            new[high + 2] = np.inf
        two, one, new = one, new, two
    return one[n]
