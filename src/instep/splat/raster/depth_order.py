"""Who stands before whom in a tile, and the list of every cell.

The packed Gaussians are kept in the order of an earlier frame, so a tile's list comes nearly sorted and is mended;
where much has changed it is sorted. The result never depends on the start: equal depths are ordered by index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .simd import INLINE, U, float_as_bits

_MENDS = 8
"""Moves per entry that mending may take before sorting is cheaper."""


@njit(**INLINE)
def order_tile(entries: Any, start: Any, stop: Any, ids: Any, keys: Any, order: Any) -> Any:
    """Write the places start to stop - 1 into `order`, nearest first; return how many entries were out of place.

    `keys` int64 and `order` int32 are twice as long as the list.
    """
    n = stop - start
    breaks, previous = 0, np.int64(-1)
    for k in range(n):
        depth, row = float_as_bits(entries[start + k, 9]), float_as_bits(entries[start + k, 10])
        key = (np.int64(depth) << 32) | np.int64(ids[row])
        keys[k] = key
        order[k] = start + k
        breaks += key < previous
        previous = key
    if breaks and not mend(keys, order, n):
        merge_sort(keys, order, n)
    return breaks


@njit(**INLINE)
def mend(keys: Any, order: Any, n: Any) -> Any:
    """Insertion sort, given up where much is out of place."""
    moves = _MENDS * n
    for k in range(1, n):
        key, place = keys[k], order[k]
        j = k
        while j > 0 and keys[j - 1] > key:
            keys[j], order[j] = keys[j - 1], order[j - 1]
            j -= 1
        keys[j], order[j] = key, place
        moves -= k - j
        if moves < 0:
            return False
    return True


@njit(**INLINE)
def merge_sort(keys: Any, order: Any, n: Any) -> None:
    """Sort places by their keys, bottom up, between the two halves of the arrays."""
    source, target, width = 0, n, 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            a, b = low, middle
            for k in range(low, high):
                first = a < middle and (b >= high or keys[source + a] <= keys[source + b])
                taken = a if first else b
                keys[target + k], order[target + k] = keys[source + taken], order[source + taken]
                a, b = (a + 1, b) if first else (a, b + 1)
        source, target, width = target, source, 2 * width
    if source:
        for k in range(n):
            keys[k], order[k] = keys[source + k], order[source + k]


@njit(**INLINE)
def cell_lists(masks: Any, order: Any, n: Any, words: Any) -> None:
    """Turn masks of cells per entry into masks of entries per cell.

    `words` [groups * 64]: bit k of words[64 g + c] says whether the entry 64 g + k reaches cell c. A group is a matrix
    of 64 x 64 bits, transposed in place by swapping ever smaller blocks.
    """
    for group in range((n + 63) // 64):
        base = 64 * group
        for k in range(64):
            words[base + k] = masks[order[base + k]] if base + k < n else U(0)
        width, low = 32, U(0x00000000FFFFFFFF)
        while width:
            for pair in range(32):
                k = base + (pair // width) * 2 * width + pair % width
                swap = ((words[k] >> U(width)) ^ words[k + width]) & low
                words[k] ^= swap << U(width)
                words[k + width] ^= swap
            width //= 2
            low ^= low << U(width)
