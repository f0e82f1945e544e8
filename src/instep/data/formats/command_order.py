"""The joints of a command array that names none, from the motion that follows the commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import frozen_dataclass
from instep.core.world import Array
from instep.data.files import library

MAX_LAG_S = 0.3
"""Longest delay between a command and the motion that follows it [s]."""
MAX_LAGS = 16
"""How many delays are tried."""
CLEAR_RATIO = 0.5
"""A joint is the one commanded if its distance from the command is less than this share of any other joint's."""
MIN_CORRELATION, CLEAR_CORRELATION = 0.7, 0.15
"""Least correlation of a command with its joint, and by how much it exceeds that with any other joint."""


@frozen_dataclass
class CommandOrder:
    """Which joint each number of a command array is for."""

    joints: tuple[str, ...]
    """One name per number; empty where the motion does not say."""
    how: str
    """How they were found, or why they were not: part of a sentence."""


def infer_command_order(t: Array, commands: Array, states: Mapping[str, Array], joints: Sequence[str]) -> CommandOrder:
    """Match each number of a command array [rows, numbers] with a joint, by the states [rows, joints] of the same rows.

    Commands of positions, velocities or efforts are matched by their distance from these some time later; numbers in
    other units by correlation. A match counts where it is clear both for the command and for the joint. A last pair
    that is left over belongs together.
    """
    numbers, found, lags = commands.shape[1], dict[int, int](), _lags(t)
    if numbers > len(joints):
        return CommandOrder((), f"there are {numbers} numbers for {len(joints)} joints")
    if "position" in states and len(t) > 1:
        states = {"position": states["position"], "velocity": np.gradient(states["position"], t, axis=0), **states}
    kind = min(states, key=lambda name: _mismatch(commands, _distances(commands, states[name], lags)))
    found |= _matched(_clearly_nearest(_distances(commands, states[kind], lags)), range(numbers), range(len(joints)))
    by_distance = len(found)
    for values in states.values():
        rows, columns = _left(numbers, found), _left(len(joints), found.values())
        clear = _clearly_correlated(_correlations(commands[:, rows], values[:, columns], lags))
        found |= _matched(clear, rows, columns)
    rows, columns = _left(numbers, found), _left(len(joints), found.values())
    if len(rows) == len(columns) == 1:
        found[rows[0]] = columns[0]
    elif rows:
        unclear = ", ".join(str(k) for k in rows)
        return CommandOrder((), f"the motion does not tell which joints the numbers {unclear} are for")
    measure = f"distance from {kind}" if by_distance >= numbers - 1 else "correlation with the states"
    return CommandOrder(tuple(joints[found[k]] for k in range(numbers)), f"inferred by {measure}")


def check_ordered(header: Mapping[str, str], column: str, source: str) -> None:
    """Raise `BadInput` where a column of commands names no joints and its order could not be inferred."""
    if f"unordered:{column}" in header:
        raise BadInput(
            f"The commands of {source!r} name no joints, and {header[f'unordered:{column}']}; name them in their order "
            "as 'labels' under [action] in a mapping file."
        )


def _lags(t: Array) -> list[int]:
    """Delays to try [rows]."""
    period = float(np.median(np.diff(t))) if len(t) > 1 else MAX_LAG_S
    most = min(round(MAX_LAG_S / period), len(t) // 4) if period > 0 else 0
    return sorted({round(lag) for lag in np.linspace(0, most, MAX_LAGS)})


def _left(count: int, taken: Iterable[int]) -> list[int]:
    return sorted(set(range(count)) - set(taken))


def _distances(commands: Array, values: Array, lags: Sequence[int]) -> Array:
    """Root mean square distance of every command from every joint at the best delay [numbers, joints]."""
    at = [(commands[: len(values) - lag], values[lag:]) for lag in lags]
    return np.min([np.sqrt(np.mean((c[:, :, None] - x[:, None, :]) ** 2, axis=0)) for c, x in at], axis=0)


def _mismatch(commands: Array, distances: Array) -> float:
    """What is left of the commands when each has a joint of its own, as a share of each; a whole one in other units."""
    size = np.maximum(np.mean(commands**2, axis=0), 1e-12)[:, None]
    share = np.minimum(distances**2 / size, 1.0)
    return float(share[library("scipy.optimize").linear_sum_assignment(share)].sum())


def _correlations(commands: Array, values: Array, lags: Sequence[int]) -> Array:
    """Correlation of every command with every joint at the best delay [numbers, joints]; 0 where one does not move."""
    best = np.zeros((commands.shape[1], values.shape[1]))
    for lag in lags:
        parts = [x - x.mean(axis=0) for x in (commands[: len(values) - lag], values[lag:])]
        scale = np.outer(*(np.linalg.norm(x, axis=0) for x in parts))
        moving = scale > 1e-9 * max(float(scale.max(initial=0.0)), 1e-12)
        best = np.maximum(best, np.where(moving, parts[0].T @ parts[1] / np.where(moving, scale, 1.0), 0.0))
    return best


def _clearly_nearest(distances: Array) -> Array:
    return distances < CLEAR_RATIO * np.minimum(_best_other(distances, 0), _best_other(distances, 1))


def _clearly_correlated(correlations: Array) -> Array:
    other = np.maximum(-_best_other(-correlations, 0), -_best_other(-correlations, 1))
    return (correlations >= MIN_CORRELATION) & (correlations - other >= CLEAR_CORRELATION)


def _best_other(cost: Array, axis: int) -> Array:
    """For every entry the smallest other one along an axis."""
    if cost.shape[axis] < 2:
        return np.full_like(cost, np.inf)
    least, second = np.split(np.partition(cost, 1, axis=axis).take([0, 1], axis=axis), 2, axis=axis)
    return np.where(cost == least, second, least)


def _matched(clear: Array, rows: Sequence[int], columns: Sequence[int]) -> dict[int, int]:
    return {rows[int(i)]: columns[int(j)] for i, j in zip(*np.nonzero(clear), strict=True)}
