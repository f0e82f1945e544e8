"""Dynamic time warping within a band: how far two runs are apart when time may bend.

An extra and no more: it hides errors of timing. Every number that is shown with it is shown without it, too.
"""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array


def dtw(first: Array, second: Array, *, band: int) -> float:
    """The least root of summed squared distances over all walks through two runs [rows, n] within a band [rows]."""
    from .dtw_fast import walk

    a, b = _checked(first, second, band)
    return float(walk(a, b, band)) ** 0.5


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


def _checked(first: Array, second: Array, band: int) -> tuple[Array, Array]:
    a, b = (np.ascontiguousarray(x, float) for x in (first, second))
    a, b = (x[:, None] if x.ndim == 1 else x for x in (a, b))
    if a.shape[1] != b.shape[1] or not len(a) or not len(b):
        raise BadInput(f"Two runs need rows and as many channels each, not {a.shape} and {b.shape}.")
    if band < abs(len(a) - len(b)):
        raise BadInput(f"A band of {band} rows cannot join runs of {len(a)} and {len(b)} rows; widen it.")
    return a, b
