"""Command following: how far positions are from what they were commanded, and how late they come.

The simplest model of a robot is that it is where it was commanded to be. A simulator must beat it to explain anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, jackknife, pooled
from instep.core.world import Array

LONGEST = 0.8
"""Lags up to this are tried [s]."""


@array_dataclass
class CommandFollowing:
    """How positions follow commands."""

    rmse: Mapping[str, Estimate]
    """Root mean square distance from the command, by joint and by unit ('all rad')."""
    shifted: Mapping[str, Estimate]
    """The same with the commands taken as late as suits best."""
    lag: Mapping[str, Estimate]
    """The lag at which each joint is nearest its command [s]; a lag is not a delay, and nothing is shifted by it."""
    lags: Array
    """The lags tried [s]."""
    by_lag: Mapping[str, Array]
    """Root mean square distance at each of them."""


def command_following(episodes: Sequence[Episode]) -> CommandFollowing:
    """How runs follow their commands, by joint and over all joints of a unit, with intervals over runs."""
    servos = position_servos(episodes)
    if not servos:
        raise BadInput(
            "No joint is commanded a position in its own unit, so command following cannot be measured; give a scene."
        )
    spec = episodes[0].spec
    reach = min(round(LONGEST / spec.dt), min(int(e.powered.sum()) for e in episodes) // 3)
    sums, counts = _squares(episodes, servos, reach)  # [lags, runs, joints], [lags, runs]
    names, columns, units = _columns(servos, spec.q.units)
    grouped = sums @ columns
    best = np.argmin(grouped.sum(axis=1) / counts.sum(axis=1)[:, None], axis=0)
    rmse = pooled(grouped[0], counts[0])
    by_lag = np.sqrt(grouped.sum(axis=1) / counts.sum(axis=1)[:, None])
    shifted = [pooled(grouped[best[i], :, [i]].T, counts[best[i]])[0] for i in range(len(names))]
    lags = np.arange(reach + 1) * spec.dt
    return CommandFollowing(
        {n: _in(e, u) for n, e, u in zip(names, rmse, units, strict=True)},
        {n: _in(e, u) for n, e, u in zip(names, shifted, units, strict=True)},
        {n: _lag(grouped[:, :, i], counts, lags) for i, n in enumerate(names)},
        lags,
        {n: by_lag[:, i] for i, n in enumerate(names)},
    )


def position_servos(episodes: Sequence[Episode]) -> list[tuple[str, int, int]]:
    """Joints commanded by a position in their own unit: label, column of q, column of the action."""
    spec = episodes[0].spec
    actions = dict(zip(spec.action.labels, spec.action.units, strict=True))
    return [
        (label, i, spec.action.labels.index(label))
        for i, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True))
        if label in actions and actions[label] == unit and "action" in episodes[0]
    ]


def _squares(episodes: Sequence[Episode], servos: Sequence[tuple[str, int, int]], reach: int) -> tuple[Array, Array]:
    """Summed squared distances for each lag, run and joint, and the rows behind them."""
    sums = np.zeros((reach + 1, len(episodes), len(servos)))
    counts = np.zeros((reach + 1, len(episodes)))
    for r, episode in enumerate(episodes):
        q = np.asarray(episode.q, float)[:, [place for _, place, _ in servos]]
        a = np.asarray(episode.action, float)[:, [commanded for _, _, commanded in servos]]
        q, a = q[:-1], a[:-1]  # the action of the last row leads nowhere
        powered = episode.powered[:-1]
        for k in range(reach + 1):
            # A motor that is switched off follows nothing.
            difference = (q[k:] - a[: len(a) - k])[powered[k:]]
            sums[k, r], counts[k, r] = np.einsum("ij,ij->j", difference, difference), len(difference)
    return sums, counts


def _columns(servos: Sequence[tuple[str, int, int]], all_units: Sequence[str]) -> tuple[list[str], Array, list[str]]:
    names = [label for label, _, _ in servos]
    units = [all_units[place] for _, place, _ in servos]
    columns = [np.eye(len(servos))]
    kinds = tuple(units)
    for unit in dict.fromkeys(kinds):
        same = np.array([u == unit for u in kinds], float)
        if same.sum() > 1:
            columns.append((same / same.sum())[:, None])
            names.append(f"all {unit}")
            units.append(unit)
    return names, np.concatenate(columns, axis=1), units


def _lag(sums: Array, counts: Array, lags: Array) -> Estimate:
    """The best lag, between rows by a parabola; its interval from the best lag of each run that moves."""
    each = [_lowest(sums[:, r] / counts[:, r], lags) for r in range(sums.shape[1])]
    sound = [x for x in each if x is not None]
    whole = _lowest(sums.sum(axis=1) / counts.sum(axis=1), lags)
    if whole is None or not sound:
        return Estimate(np.nan, np.nan, np.nan, len(sound), "s")
    spread = jackknife(np.array(sound))
    return Estimate(whole, whole - (spread.value - spread.low), whole + (spread.high - spread.value), len(sound), "s")


def _lowest(errors: Array, lags: Array) -> float | None:
    """Where errors are lowest; None where they hardly depend on the lag, or are lowest at the end of the search."""
    k = int(np.argmin(errors))
    if k == len(errors) - 1 or errors[k] > 0.98 * errors[0]:
        return 0.0 if k == 0 and errors[-1] > 1.05 * errors[0] else None
    left, middle, right = errors[k - 1], errors[k], errors[k + 1]
    bend = left - 2 * middle + right
    return float(lags[k] + (lags[1] - lags[0]) * (0.5 * (left - right) / bend if bend > 0 else 0.0))


def _in(estimate: Estimate, unit: str) -> Estimate:
    return Estimate(estimate.value, estimate.low, estimate.high, estimate.n, unit)
