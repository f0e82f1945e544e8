"""Streams of one motion that were stamped by different clocks: how far the clocks are apart, and what that changes.

Time between two worlds: how much later one answers, and what the error is with and without that.

The lag is reported and never taken off silently: a delay is a parameter of a model, not a shift of a recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, pooled, student_quantile
from instep.core.world import Array

from .channels import QUAT, channels
from .gap_result import RunPair
from .horizon import HorizonOptions
from .preparation import velocity
from .time_alignment import ClockOffset, angular_speed, clock_offset, lag


@dataclass(frozen=True, slots=True, eq=False)
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


def _difference(a: tuple[Array, Array], b: tuple[Array, Array], shift: float) -> float:
    stamps = b[0] + shift
    inside = (stamps >= a[0][0]) & (stamps <= a[0][-1])
    return float(np.sqrt(np.mean((np.interp(stamps[inside], a[0], a[1]) - b[1][inside]) ** 2)))


@dataclass(frozen=True, slots=True)
class Timing:
    """When two worlds do the same."""

    lag: Estimate
    """How much later the simulator moves than the robot [s], the median over runs; negative where it leads."""
    spread: float
    """Standard deviation over runs [s], from the median absolute deviation."""
    before: Estimate
    """The overall error as it is."""
    after: Estimate
    """The overall error if every run were shifted by its own lag."""


def timing(pairs: Sequence[RunPair], *, options: HorizonOptions | None = None, longest: float = 0.5) -> Timing | None:
    """The lag between two worlds over runs; None where nothing moves or no run shows a clear lag."""
    options = options or HorizonOptions()
    labels = pairs[0].real.spec.q.labels
    compared = channels(pairs[0].real.spec.q, None, [w for w in options.wrapping if w in labels])
    scales = compared.scales([pair.real.q for pair in pairs], options.scales)
    sizes = np.array([scales[unit] for unit in compared.units])
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
    return Timing(*_median(np.array(lags)), before, after)


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
