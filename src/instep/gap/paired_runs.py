"""Runs beside runs: pairs of two worlds, and the noise floor, the distance of reality from itself.

The noise floor is the scatter of repeats of the same commands; errors below it mean nothing. Repeats that end in
different places (a pendulum that swings up to +pi or to -pi) are split by outcome before they are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isinf

import numpy as np

from instep.core.episode import Episode, by_label
from instep.core.errors import BadInput, UnknownName
from instep.core.statistics import Estimate, log_jackknife, pooled, student_quantile
from instep.core.world import Array, Spec, frozen_dataclass, vector
from instep.data.resample import onto

from .gap_result import Curve, Gap, RunPair, run_name
from .horizon import (
    Channels,
    Errors,
    HorizonOptions,
    channels,
    curves_of,
    curves_through,
    groups_of,
    pair_channels,
    scale_note,
    scores_of,
    velocity,
    with_errors,
)

APART = {"rad": 1.0, "m": 0.1}
"""Ends closer than this are one outcome [unit]."""
SAME_COMMAND = 1e-6
"""Commands that differ by less than this share of their range are repeats."""


def compare_runs(real: Sequence[Episode], sim: Sequence[Episode], *, options: HorizonOptions | None = None) -> Gap:
    """How far apart two sets of paired runs are: over the whole run, and how fast they drift apart within k seconds.

    Runs are paired by name if both sets use the same names, by order otherwise. At a horizon of k seconds the curve
    holds how much further two runs moved apart in that time; 'full' is their plain difference over the whole run.
    """
    options = options or HorizonOptions()
    pairs = pair_up(real, sim)
    spec = pairs[0].real.spec
    compared = channels(spec.q, None, options.wrapping)
    scales = compared.scales([pair.real.q for pair in pairs])
    errors = drift_errors(pairs, compared, options)
    longest = max(len(pair.real) for pair in pairs)
    errors = [e for e in errors if isinf(e.horizon) or round(e.horizon / spec.dt) < longest]
    curves = curves_of(errors, compared, scales, spec.dt)
    pairs = with_errors(pairs, errors, compared, scales)
    notes = (
        scale_note(scales),
        "At k seconds the curve holds how much further two runs moved apart in that time; 'full' is their difference.",
    )
    return Gap(curves, scores_of(curves), pairs=tuple(pairs), notes=notes)


def pair_up(real: Sequence[Episode], sim: Sequence[Episode]) -> list[RunPair]:
    """The runs of two sets that belong together, in shared words, rates and lengths."""
    if not real or not sim:
        raise BadInput("A comparison needs runs on both sides, and one of the two datasets holds none.")
    names = [[run_name(e) for e in side] for side in (real, sim)]
    by_name = {name: e for name, e in zip(names[1], sim, strict=True) if name}
    unique = all(len(set(side)) == len(side) and all(side) for side in names)
    if unique and set(names[0]) & set(names[1]):
        missing = sorted(set(names[0]) ^ set(names[1]))
        if missing:
            raise BadInput(f"Run {missing[0]!r} stands in one dataset only; each run needs its counterpart.")
        couples = [(e, by_name[name]) for name, e in zip(names[0], real, strict=True)]
    elif len(real) == len(sim):
        couples = list(zip(real, sim, strict=True))
    else:
        raise BadInput(
            f"The datasets hold {len(real)} and {len(sim)} runs that share no names, so they cannot be paired; "
            "give both sides the same runs."
        )
    return [_in_step(a, b) for a, b in couples]


def drift_errors(pairs: Sequence[RunPair], compared: Channels, options: HorizonOptions) -> list[Errors]:
    """Squared differences of paired runs at each horizon, summed over the windows of each pair."""
    shape = (len(options.horizons), len(pairs), len(compared.names))
    sums, counts = np.zeros(shape), np.zeros(shape[:2])
    for i, pair in enumerate(pairs):
        for k, horizon in enumerate(options.horizons):
            squares = squared_drift(pair.sim.q, pair.real.q, compared, horizon, options, pair.real.spec.dt)
            sums[k, i], counts[k, i] = squares.sum(axis=0), len(squares)
    return [Errors(h, sums[k], counts[k]) for k, h in enumerate(options.horizons)]


def squared_drift(
    sim: Array, real: Array, compared: Channels, horizon: float, options: HorizonOptions, dt: float
) -> Array:
    """Squared differences [windows, channels] of two runs after a horizon; rows with NaN are left out."""
    if isinf(horizon):
        squares = compared.difference(sim[1:], real[1:]) ** 2
    else:
        k = max(1, round(horizon / dt))
        starts = np.arange(0, len(real) - k, max(1, round(options.every / dt)))
        ends = starts + k
        squares = compared.drift((sim[starts], sim[ends]), (real[starts], real[ends])) ** 2
    return squares[np.isfinite(squares).all(axis=-1)]


def repeated_runs(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Runs that repeat each other, in groups of two and more.

    Runs belong together when `meta` counts them as a `repeat` within a `group`, or when they were given the same
    commands.
    """
    named: dict[str, list[Episode]] = {}
    groups: list[list[Episode]] = []
    for episode in episodes:
        if "repeat" in episode.meta:
            named.setdefault(episode.meta.get("group", ""), []).append(episode)
            continue
        for group in groups:
            if _same_commands(group[0], episode):
                group.append(episode)
                break
        else:
            groups.append([episode])
    return [group for group in (*named.values(), *groups) if len(group) > 1]


def with_noise_floor(gap: Gap, episodes: Sequence[Episode], *, options: HorizonOptions | None = None) -> Gap:
    """The gap with the floor of the repeats among its runs, if there are any."""
    groups = repeated_runs(episodes)
    if not groups:
        note = "No command was repeated, so there is no floor: how much of the gap is noise is unknown."
        return replace(gap, notes=(*gap.notes, note))
    kinds = split_by_outcome(groups)
    runs = sum(len(kind) for kind in kinds)
    note = f"The floor comes from {runs} runs in {len(groups)} groups of repeats"
    note += f", which end in {len(kinds)} kinds and are averaged by kind." if len(kinds) != len(groups) else "."
    return replace(gap, floor=noise_floor(kinds, options=options), notes=(*gap.notes, note))


def noise_floor(groups: Sequence[Sequence[Episode]], *, options: HorizonOptions | None = None) -> dict[str, Curve]:
    """The horizon curve of real against real: the spread of repeats about their mean, k seconds after any moment.

    It is what the best deterministic model of these very runs would score: their mean. 'full' is the standard
    deviation over repeats, root mean square over the run.
    """
    options = options or HorizonOptions()
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return {}
    spec = groups[0][0].spec
    compared = channels(spec.q, None, options.wrapping)
    scales = compared.scales([e.q for group in groups for e in group])
    columns, _ = groups_of(compared, scales)
    horizons: list[float] = []
    points: list[list[Estimate]] = []
    for horizon in options.horizons:
        found = _scatter(groups, compared, horizon, options, columns)
        if found is not None:
            horizons.append(horizon)
            points.append(found)
    return curves_through(horizons, points, compared, scales, spec.dt)


def split_by_outcome(groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
    """Groups of repeats, each split into its outcomes; single runs are left out."""
    found: list[list[Episode]] = []
    for group in groups:
        kinds = outcomes(group)
        for number, kind in enumerate(kinds):
            if len(kind) < 2:
                continue
            name = group[0].meta.get("group", "")
            label = f"{name}, outcome {number + 1} of {len(kinds)}" if len(kinds) > 1 else name
            found.append([group[i].with_columns({}, group=label) for i in kind])
    return found


def outcomes(episodes: Sequence[Episode]) -> list[list[int]]:
    """Which runs end alike: places of runs, the largest kind first.

    A pendulum that swings up to +pi in some runs and to -pi in others has no mean run; its spread about one would be
    about 2 rad where each kind scatters by 0.1. Ends are compared unwrapped, over the last tenth of each run.
    """
    if len(episodes) < 2:
        return [list(range(len(episodes)))]
    ends = np.array([np.median(np.asarray(e.q, float)[-max(1, len(e) // 10) :], axis=0) for e in episodes])
    kinds = [list(range(len(episodes)))]
    for column, unit in enumerate(episodes[0].spec.q.units):
        kinds = [part for kind in kinds for part in _split(kind, ends[:, column], APART.get(unit, np.inf))]
    return sorted(kinds, key=lambda kind: (-len(kind), kind[0]))


def _in_step(real: Episode, sim: Episode) -> RunPair:
    """Two runs in the words, at the moments and for the time that they share."""
    shared = [label for label in real.spec.q.labels if label in sim.spec.q.labels]
    if not shared:
        raise UnknownName("position of the second dataset", real.spec.q.labels[0], sim.spec.q.labels)
    if len(real) < 2 or len(sim) < 2:
        raise BadInput(f"Run {run_name(real)!r} has fewer than two rows on one side; a comparison needs two.")
    t_real, t_sim = (np.asarray(e.t, float) - float(e.t[0]) for e in (real, sim))
    same = len(real) == len(sim) and float(np.abs(t_real - t_sim).max()) < 0.1 * real.spec.dt
    t = t_real if same else t_real[t_real <= t_sim[-1] + 0.5 * real.spec.dt]
    if len(t) < 2:
        raise BadInput(f"Run {run_name(real)!r} and its counterpart share no time; check their clocks.")
    units = dict(zip(real.spec.q.labels, real.spec.q.units, strict=True))
    action_units = dict(zip(real.spec.action.labels, real.spec.action.units, strict=True))
    actions = [label for label in real.spec.action.labels if label in sim.spec.action.labels]
    q = vector(shared, [units[label] for label in shared])
    spec = replace(real.spec, q=q, action=vector(actions, [action_units[label] for label in actions]))
    columns = {"timestamp": t, **_columns(real, spec, t_real, t, len(t))}
    answer = {"timestamp": t, **_columns(sim, spec, t_sim, t, len(t) if same else None)}
    return RunPair(Episode(spec, columns, real.meta), Episode(spec, answer, sim.meta), run_name(real))


def _columns(episode: Episode, spec: Spec, stamps: Array, t: Array, rows: int | None) -> dict[str, Array]:
    """Positions and actions at the moments `t`: taken as they are, or brought there (commands held, never blended)."""
    alike = episode.spec.q.labels == spec.q.labels
    q = episode.q if alike else by_label(episode.q, episode.spec.q.labels, spec.q.labels, np.zeros(()))
    columns = {"q": q[:rows] if rows is not None else onto(t, stamps, q, "linear", spec.q)}
    if "action" in episode and spec.action.labels:
        action = by_label(episode.action, episode.spec.action.labels, spec.action.labels, np.zeros(()))
        columns["action"] = action[:rows] if rows is not None else onto(t, stamps, action, "hold")
    images = {name: column for name, column in episode.columns.items() if name.startswith("observation.images.")}
    return {**columns, **({name: column[:rows] for name, column in images.items()} if rows is not None else {})}


def _scatter(
    groups: Sequence[Sequence[Episode]], compared: Channels, horizon: float, options: HorizonOptions, columns: Array
) -> list[Estimate] | None:
    """Scatter about the mean of repeats [curves], its interval by really leaving each run out of its group.

    Half the mean squared distance between repeats is their variance, angles and turns included; about the mean of n
    repeats it is (n - 1) / n of that.
    """
    tables = [_distances(group, compared, horizon, options) for group in groups]
    tables = [(d @ columns, rows) for d, rows in tables if rows]
    if not tables:
        return None
    whole = _variance(tables)
    runs = [(g, i) for g, (d, _) in enumerate(tables) for i in range(len(d))]
    without: list[Array] = []
    for g, i in runs:
        table, rows = tables[g]
        fewer = np.delete(np.delete(table, i, axis=0), i, axis=1)
        rest = [*tables[:g], *([(fewer, rows)] if len(fewer) > 1 else []), *tables[g + 1 :]]
        without.append(_variance(rest) if rest else whole)
    about = sum(len(d) - 1 for d, _ in tables) / len(runs)
    found = log_jackknife(about * whole, about * np.stack(without), degrees=max(1, len(runs) - len(tables)))
    if len(runs) > 2:
        return found
    return [Estimate(e.value, float("nan"), float("nan"), e.n, e.unit) for e in found]


def _distances(
    group: Sequence[Episode], compared: Channels, horizon: float, options: HorizonOptions
) -> tuple[Array, int]:
    """Mean squared distances between repeats [runs, runs, channels], and the rows behind them."""
    rows = min(len(e) for e in group)
    runs = [e.q[:rows] for e in group]
    table = np.zeros((len(runs), len(runs), len(compared.names)))
    count = 0
    for i in range(len(runs)):
        for j in range(i):
            squares = squared_drift(runs[j], runs[i], compared, horizon, options, group[0].spec.dt)
            count = len(squares)
            if count:
                table[i, j] = table[j, i] = squares.mean(axis=0)
    return table, count


def _variance(tables: Sequence[tuple[Array, int]]) -> Array:
    """The variance of repeats, groups weighed by their runs and rows."""
    total = np.zeros(tables[0][0].shape[-1])
    weight = 0.0
    for table, rows in tables:
        n = len(table)
        total += rows * (n - 1) * table.sum(axis=(0, 1)) / (2 * n * (n - 1))
        weight += rows * (n - 1)
    return total / weight


def _same_commands(a: Episode, b: Episode) -> bool:
    if "action" not in a or "action" not in b or a.spec.action.labels != b.spec.action.labels:
        return False
    rows = min(len(a), len(b)) - 1  # the action of the last row leads nowhere
    # Runs that stop a little earlier or later are still repeats; half of one is not.
    if rows < 2 or rows < 0.9 * (max(len(a), len(b)) - 1):
        return False
    x, y = a.action[:rows], b.action[:rows]
    size = np.ptp(x, axis=0)
    return bool(size.any()) and bool((np.abs(x - y) <= SAME_COMMAND * size + 1e-12).all())


def _split(kind: list[int], ends: Array, apart: float) -> list[list[int]]:
    """Cut a row of ends wherever a gap is wide by itself and against the scatter on both of its sides."""
    order = sorted(kind, key=lambda i: float(ends[i]))
    values = ends[order]
    gaps = np.diff(values)
    if not len(gaps):
        return [kind]
    typical = float(np.median(gaps)) if len(gaps) > 2 else 0.0
    cuts = np.flatnonzero((gaps > apart) & (gaps > 5 * typical)) + 1
    return [sorted(int(i) for i in part) for part in np.split(np.array(order), cuts)]


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
    scores = np.array([correlation(a[: len(a) - s], b[s:]) if s >= 0 else correlation(a[-s:], b[:s]) for s in shifts])
    best = int(np.nanargmax(scores))
    return Lag((shifts[best] + parabola_peak(scores, best)) * dt, float(scores[best]), best in (0, len(scores) - 1))


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
        # A run that is `seconds` late without its lag; NaN beyond its end.
        rows = np.arange(len(sim), dtype=float)
        at = rows + found.seconds / dt
        out = np.stack([np.interp(at, rows, sim[:, i]) for i in range(sim.shape[1])], axis=-1)
        out[(at < 0) | (at > len(sim) - 1)] = np.nan
        shifted = out
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


def correlation(a: Array, b: Array) -> float:
    """One correlation over all columns, each about its own mean."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else -1.0


def parabola_peak(scores: Array, best: int) -> float:
    """Where the top of a parabola through the best score and its neighbours lies, between -1 and 1."""
    if not 0 < best < len(scores) - 1:
        return 0.0
    left, middle, right = (float(x) for x in scores[best - 1 : best + 2])
    bend = left - 2 * middle + right
    return float(np.clip((left - right) / (2 * bend), -1, 1)) if np.isfinite(bend) and bend < 0 else 0.0
