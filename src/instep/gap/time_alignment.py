"""Time alignment: offsets between clocks, lags between signals, and how much of an error a lag explains.

A lag is not a delay: a servo that trails its command by 100 ms may have a transport delay of 30 ms. A lag is reported
and never used to shift a stream. An offset between two clocks may be taken off, and then both numbers are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import angle_between, normalized
from instep.core.statistics import Estimate, pooled, student_quantile
from instep.core.world import Array, frozen_dataclass

from .gap_result import AlignedStreams, ClockOffset, RunPair
from .horizon import QUAT, HorizonOptions, pair_channels, velocity

MIN_WINDOWS = 5
"""Fewest windows from which an offset and its spread are estimated."""
Stream = tuple[Array, Array]
"""Stamps [s] and a signal [rows]."""


@frozen_dataclass
class Lag:
    """How much later one signal follows another."""

    seconds: float
    correlation: float
    """Correlation of the two signals once the lag is taken off."""
    at_limit: bool
    """Whether the best lag is the longest one tried; then it is not reliable."""


@frozen_dataclass
class WorldLag:
    """The lag between two worlds."""

    lag: Estimate
    """How much later the simulator moves than the robot [s], the median over runs; negative if it leads."""
    before: Estimate
    """The overall error as it is."""
    after: Estimate
    """The overall error if every run were shifted by its own lag."""


def lag(first: Array, second: Array, dt: float, *, longest: float = 0.5) -> Lag:
    """How much later `second` [rows, n] follows `first`, by the peak of their correlation, between rows by a parabola.

    Pass rates of change: positions that drift hide the peak.
    """
    a, b = (np.reshape(np.asarray(x, float), (len(x), -1)) for x in (first, second))
    reach = min(round(longest / dt), len(a) // 3)
    if reach < 1:
        raise BadInput(f"A lag needs at least three rows within {longest:g} s, and there are {len(a)} rows.")
    shifts = np.arange(-reach, reach + 1)
    scores = np.array([_correlation(a[: len(a) - s], b[s:]) if s >= 0 else _correlation(a[-s:], b[:s]) for s in shifts])
    best = int(np.nanargmax(scores))
    return Lag((shifts[best] + _peak(scores, best)) * dt, float(scores[best]), best in (0, len(scores) - 1))


def clock_offset(first: Stream, second: Stream, *, longest: float = 5.0, windows: int = 8) -> ClockOffset:
    """How far the clock of the second stream is behind that of the first.

    Signals must be rates that both clocks see, such as angular speeds. A global search is refined in windows; those
    with little motion or a poor match are left out.
    """
    dt = 0.5 * min(float(np.median(np.diff(first[0]))), float(np.median(np.diff(second[0]))))
    grid = np.arange(max(first[0][0], second[0][0] - longest), min(first[0][-1], second[0][-1] + longest), dt)
    if len(grid) < 20:
        raise BadInput("The two streams share no time even when their clocks are shifted; check the stamps.")
    shifts = np.arange(-longest, longest + dt, dt)
    coarse = float(shifts[int(np.nanargmax(_shift_scores(first, second, grid, shifts)))])
    begin, end = max(first[0][0], second[0][0] + coarse), min(first[0][-1], second[0][-1] + coarse)
    reach = max(0.2, 10 * dt)
    shifts = coarse + np.arange(-reach, reach + dt, dt)
    found: list[float] = []
    matches: list[float] = []
    for low, high in pairwise(np.linspace(float(begin), float(end), windows + 1).tolist()):
        grid = np.arange(low + reach, high - reach, dt)
        scores = _shift_scores(first, second, grid, shifts) if len(grid) >= 20 else np.full(1, -np.inf)
        best = int(np.nanargmax(scores))
        offset = float(shifts[best] + _peak(scores, best) * dt)
        if scores[best] > 0.5 and abs(offset - coarse) < 0.95 * reach:
            found.append(offset)
            matches.append(float(scores[best]))
    if len(found) < MIN_WINDOWS:
        raise BadInput(
            f"Only {len(found)} of {windows} windows show a common motion, and a clock offset needs {MIN_WINDOWS}; "
            "record longer, or move more."
        )
    middle, n = float(np.median(found)), len(found)
    # Of few values the median deviation is too small on average, by about n / (n - 0.8).
    spread = float(1.4826 * n / (n - 0.8) * np.median(np.abs(np.array(found) - middle)))
    # A median is noisier than a mean by sqrt(pi / 2). Student's quantile pays for the few windows; a median deviation
    # knows the spread only as well as the standard deviation of about half as many would.
    half = max(spread, 1e-12) * (np.pi / 2 / n) ** 0.5 * student_quantile(0.975, max(1, round(0.55 * (n - 1))))
    seconds = Estimate(middle, middle - half, middle + half, n, "s")
    return ClockOffset(seconds, spread, tuple(found), float(np.median(matches)))


def angular_speed(stamps: Array, quats: Array, *, baseline: float = 0.6) -> Stream:
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


def stream_groups(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Runs that are streams of one motion, by group: those whose `meta` names a `stream`."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if "stream" in episode.meta:
            groups.setdefault(episode.meta.get("group", ""), []).append(episode)
    return {name: group for name, group in groups.items() if len(group) > 1}


def align_all_streams(groups: Mapping[str, Sequence[Episode]]) -> dict[str, AlignedStreams]:
    """Each further stream of each group against its first; the stream with the higher rate leads."""
    found: dict[str, AlignedStreams] = {}
    for name, group in groups.items():
        ranked = sorted(group, key=lambda e: e.spec.dt)
        for other in ranked[1:]:
            key = name if len(ranked) == 2 else f"{name}: {other.meta['stream']}"
            found[key] = align_streams(ranked[0], other)
    return found


def align_streams(first: Episode, second: Episode) -> AlignedStreams:
    """How far the clock of the second stream is from that of the first, by the speed both see."""
    a, unit = _speed(first)
    b, other = _speed(second)
    if unit != other:
        raise BadInput(f"One stream gives speeds in {unit!r}, the other in {other!r}; they cannot be aligned.")
    found = clock_offset(a, b)
    names = (first.meta.get("stream", "first"), second.meta.get("stream", "second"))
    before, after = (_difference(a, b, shift) for shift in (0.0, found.seconds.value))
    return AlignedStreams(names[0], names[1], found, before, after, unit, (a, b))


def world_lag(
    pairs: Sequence[RunPair], *, options: HorizonOptions | None = None, longest: float = 0.5
) -> WorldLag | None:
    """The lag between two worlds over runs; None if nothing moves or no run shows a clear lag."""
    columns, sizes = _plain_channels(pairs, options)
    lags: list[float] = []
    sums: list[list[float]] = []
    counts: list[int] = []
    for pair in pairs:
        real, sim, dt = pair.real.q[:, columns], pair.sim.q[:, columns], pair.real.spec.dt
        if len(real) < 30 or not np.isfinite(sim).all() or not columns:
            continue
        found = lag(velocity(real, dt) / sizes, velocity(sim, dt) / sizes, dt, longest=longest)
        if found.at_limit or found.correlation < 0.5:
            continue
        shifted = _shifted(sim, found.seconds, dt)
        inside = np.isfinite(shifted).all(axis=-1)
        errors = [np.mean(((s - real)[inside] / sizes) ** 2, axis=-1).sum() for s in (sim, shifted)]
        lags.append(found.seconds)
        sums.append([float(e) for e in errors])
        counts.append(int(inside.sum()))
    if not lags:
        return None
    before, after = pooled(np.array(sums), np.array(counts), unit="1")
    middle, n, half = float(np.median(lags)), len(lags), float("nan")
    if n >= 3:
        spread = float(1.4826 * np.median(np.abs(np.array(lags) - middle)))
        half = student_quantile(0.975, n - 1) * spread * (np.pi / 2 / n) ** 0.5
    return WorldLag(Estimate(middle, middle - half, middle + half, n, "s"), before, after)


def _plain_channels(pairs: Sequence[RunPair], options: HorizonOptions | None) -> tuple[list[int], Array]:
    """Columns of the channels that are no orientations, and the size of each by its unit."""
    compared, sizes = pair_channels(pairs, options or HorizonOptions())
    single = [i for i, columns in enumerate(compared.columns) if len(columns) == 1]
    return [compared.columns[i][0] for i in single], sizes[single]


def _speed(episode: Episode) -> tuple[Stream, str]:
    """Stamps on the recorder's own clock [s], and the speed of the joints; of turning if the recording has a pose."""
    labels = episode.spec.q.labels
    t = np.asarray(episode.t, float) + float(episode.meta.get("start", 0.0))
    bodies = [label.removesuffix(".qw") for label in labels if label.endswith(".qw")]
    if bodies:
        columns = [labels.index(f"{bodies[0]}.{part}") for part in QUAT]
        return angular_speed(t, episode.q[:, columns]), "rad/s"
    rates = velocity(np.asarray(episode.q, float), episode.spec.dt)
    return (t, np.sqrt((rates**2).sum(axis=-1))), f"{episode.spec.q.units[0]}/s"


def _shift_scores(first: Stream, second: Stream, grid: Array, shifts: Array) -> Array:
    """The correlation of two streams at the moments of a grid, for each shift of the second clock."""
    a, b = _sampled(first)(grid), _sampled(second)
    return np.array([_masked_correlation(a, b(grid - s)) for s in shifts])


def _sampled(stream: Stream) -> Callable[[Array], Array]:
    """A stream at any moment, NaN in gaps. Smoothing to the rate of the other would lag, so it is interpolated."""
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
    return _correlation(a[both], b[both])


def _correlation(a: Array, b: Array) -> float:
    """One correlation over all columns, each about its own mean."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else -1.0


def _peak(scores: Array, best: int) -> float:
    """Where the top of a parabola through the best score and its neighbours lies, between -1 and 1."""
    if not 0 < best < len(scores) - 1:
        return 0.0
    left, middle, right = (float(x) for x in scores[best - 1 : best + 2])
    bend = left - 2 * middle + right
    return float(np.clip((left - right) / (2 * bend), -1, 1)) if np.isfinite(bend) and bend < 0 else 0.0


def _difference(a: Stream, b: Stream, shift: float) -> float:
    stamps = b[0] + shift
    inside = (stamps >= a[0][0]) & (stamps <= a[0][-1])
    return float(np.sqrt(np.mean((np.interp(stamps[inside], a[0], a[1]) - b[1][inside]) ** 2)))


def _shifted(q: Array, seconds: float, dt: float) -> Array:
    """A run that is `seconds` late without its lag; NaN beyond its end."""
    rows = np.arange(len(q), dtype=float)
    at = rows + seconds / dt
    out = np.stack([np.interp(at, rows, q[:, i]) for i in range(q.shape[1])], axis=-1)
    out[(at < 0) | (at > len(q) - 1)] = np.nan
    return out
