"""Dynamic time warping within a Sakoe-Chiba band: the distance of two runs when time may be warped.

Only an extra: it hides errors of timing, so every number shown with it is shown without it, too. The compiled walk goes
along anti-diagonals, whose cells do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numba import njit, uint64

from instep.core.errors import BadInput
from instep.core.statistics import Estimate, pooled
from instep.core.world import Array

from .gap_result import RunPair
from .horizon import HorizonOptions, pair_channels

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
