"""How signals of a log relate: which answers which command, which is the derivative of which, which comes first."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.world import Array

SMOOTHING_S = 0.1
"""Time over which signals are averaged before their rates are compared [s]."""
LAGS = 13
"""Lags at which answers are compared with commands, from none to the longest."""
MAX_LAG_S = 0.5
"""Longest lag that is tried between a command and its answer [s]."""


def correlations(answers: Sequence[Array], commands: Sequence[Array], dt: float) -> Array:
    """Correlation of the rate of each answer (row) with that of each command (column); NaN where one does not move.

    Rates rather than positions: slow common motion makes positions of all joints alike. Each pair is compared at the
    lag at which it correlates best, since an answer trails its command, on weak servos by a third of a second.
    """
    parts = [_rates(a, c, dt) for a, c in zip(answers, commands, strict=True)]
    best = np.full((answers[0].shape[1], commands[0].shape[1]), np.nan)
    for rows in sorted({round(share * MAX_LAG_S / dt) for share in np.linspace(0, 1, LAGS)}):
        late = [(a[rows:], c[: len(c) - rows]) for a, c in parts if len(a) > rows + 2]
        if not late:
            break
        found = _cross(*(np.concatenate([part[side] for part in late]) for side in (0, 1)))
        best = np.where(np.isnan(best) | (np.abs(found) > np.abs(best)), found, best)
    return best


def derivative_ratio(values: Sequence[Array], rates: Sequence[Array], dt: float) -> tuple[float, float]:
    """How well `rates` are the derivative of `values` (median correlation), and how many times as large they are."""
    strengths: list[float] = []
    ratios: list[float] = []
    for x, v in zip(values, rates, strict=True):
        span = _span(len(x), dt)
        slope, mean = (x[span:] - x[:-span]) / (span * dt), _averaged(v, span)[: len(x) - span]
        for k in range(min(x.shape[1], v.shape[1])):
            if np.std(slope[:, k]) > 0 and np.std(mean[:, k]) > 0:
                strengths.append(float(np.corrcoef(slope[:, k], mean[:, k])[0, 1]))
                ratios.append(float(np.std(mean[:, k]) / np.std(slope[:, k])))
    return (float(np.median(strengths)), float(np.median(ratios))) if ratios else (0.0, float("nan"))


def lag(first: Sequence[Array], second: Sequence[Array], dt: float) -> float:
    """By how much `second` trails `first` [s], column by column alike; negative where it comes before."""
    most = max(1, round(MAX_LAG_S / dt))
    scores = np.zeros(2 * most + 1)
    for a, b in zip(first, second, strict=True):
        da, db = (np.diff(x[:, : min(a.shape[1], b.shape[1])], axis=0) for x in (a, b))
        if len(da) <= 2 * most + 2:
            continue
        da, db = ((d - d.mean(axis=0)) / (np.std(d, axis=0) + 1e-12) for d in (da, db))
        middle = db[most : len(db) - most]
        scores += [float((da[most - k : len(da) - most - k] * middle).mean()) for k in range(-most, most + 1)]
    return float((int(np.argmax(scores)) - most) * dt)


def gains(answers: Sequence[Array], commands: Sequence[Array]) -> Array:
    """How many times as much as its command each answer moves, by standard deviation; NaN where one does not move."""
    answer, command = (np.concatenate([x - x.mean(axis=0) for x in runs]) for runs in (answers, commands))
    spread = command.std(axis=0)
    return np.where(
        (spread > 0) & (answer.std(axis=0) > 0), answer.std(axis=0) / np.where(spread > 0, spread, 1), np.nan
    )


def assigned(cost: Array) -> list[int]:
    """The column for each row of a cost matrix such that the total cost is the least."""
    optimize: Any = import_module("scipy.optimize")  # its types do not name the function
    rows, columns = optimize.linear_sum_assignment(cost)
    found = [-1] * len(cost)
    for row, column in zip(rows, columns, strict=True):
        found[int(row)] = int(column)
    return found


def _rates(answers: Array, commands: Array, dt: float) -> tuple[Array, Array]:
    span = _span(len(answers), dt)
    smooth = [_averaged(x, span) for x in (answers, commands)]
    return smooth[0][span:] - smooth[0][:-span], smooth[1][span:] - smooth[1][:-span]


def _span(rows: int, dt: float) -> int:
    return max(1, min(round(SMOOTHING_S / dt), rows // 4))


def _averaged(x: Array, span: int) -> Array:
    sums = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)])
    return (sums[span:] - sums[:-span]) / span


def _cross(answer: Array, command: Array) -> Array:
    answer, command = (x - x.mean(axis=0) for x in (answer, command))
    sizes = np.outer(np.linalg.norm(answer, axis=0), np.linalg.norm(command, axis=0))
    floor = 1e-9 * (sizes.max() if sizes.size else 0.0)
    return np.where(sizes > floor, answer.T @ command / np.where(sizes > floor, sizes, 1.0), np.nan)
