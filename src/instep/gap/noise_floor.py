"""Noise floor: how far reality is from itself when the same commands are repeated. Nothing below it means anything.

Repeats that end in different places (a pendulum that swings up to +pi or to -pi) are split by outcome before they are
averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.statistics import Estimate, log_jackknife
from instep.core.world import Array

from .channels import Channels, channels
from .gap_result import Curve, Gap
from .horizon import HorizonOptions, curves_through, groups_of
from .paired_runs import squared_drift

APART = {"rad": 1.0, "m": 0.1}
"""Ends closer than this are one outcome [unit]."""


def outcomes(episodes: Sequence[Episode]) -> list[list[int]]:
    """Which runs end alike: places of runs, the largest kind first.

    A pendulum that swings up to +pi in some runs and to -pi in others has no mean run; its spread about one would be
    about 2 rad where each kind scatters by 0.1. Ends are compared unwrapped, over the last tenth of each run.
    """
    if len(episodes) < 2:
        return [list(range(len(episodes)))]
    ends = np.array([_end(e) for e in episodes])
    kinds = [list(range(len(episodes)))]
    for column, unit in enumerate(episodes[0].spec.q.units):
        kinds = [part for kind in kinds for part in _split(kind, ends[:, column], APART.get(unit, np.inf))]
    return sorted(kinds, key=lambda kind: (-len(kind), kind[0]))


def split_by_outcome(groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
    """Groups of repeats, each split into its outcomes; what ended alone is left out."""
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


def _end(episode: Episode) -> Array:
    q = np.asarray(episode.q, float)
    return np.median(q[-max(1, len(q) // 10) :], axis=0)


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


SAME_COMMAND = 1e-6
"""Commands that differ by less than this share of their range are repeats."""


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
    scales = compared.scales([e.q for group in groups for e in group], options.scales)
    columns, _ = groups_of(compared, scales)
    horizons: list[float] = []
    points: list[list[Estimate]] = []
    for horizon in options.horizons:
        found = _scatter(groups, compared, horizon, options, columns)
        if found is not None:
            horizons.append(horizon)
            points.append(found)
    return curves_through(horizons, points, compared, scales, spec.dt)


def noise_floors(
    groups: Sequence[Sequence[Episode]], *, options: HorizonOptions | None = None
) -> dict[str, dict[str, Curve]]:
    """The floor of each group of repeats by itself, and of each outcome of a group, by name."""
    named: dict[str, dict[str, Curve]] = {}
    for i, group in enumerate(split_by_outcome(groups)):
        name = group[0].meta.get("group", "") or f"repeats of {group[0].meta.get('name', f'command {i}')}"
        named[name] = noise_floor([group], options=options)
    return named


def with_noise_floor(gap: Gap, episodes: Sequence[Episode], *, options: HorizonOptions | None = None) -> Gap:
    """The gap with the floor of the repeats among its runs, where there are any."""
    groups = repeated_runs(episodes)
    if not groups:
        note = "No command was repeated, so there is no floor: how much of the gap is noise is unknown."
        return replace(gap, notes=(*gap.notes, note))
    kinds = split_by_outcome(groups)
    runs = sum(len(kind) for kind in kinds)
    note = f"The floor comes from {runs} runs in {len(groups)} groups of repeats"
    note += f", which end in {len(kinds)} kinds and are averaged by kind." if len(kinds) != len(groups) else "."
    return replace(gap, floor=noise_floor(kinds, options=options), notes=(*gap.notes, note))


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
