"""Which body each pixel shows most of, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .blend import (
    PIXELS,
    coverages,
    hide,
    longest_list,
    nearest_left,
    offsets,
    pass_through,
    read_limits,
    store_pair,
)  # fmt: skip
from .lanes import larger, largest, load, spread
from .order import cell_lists, order_tile
from .simd import CELL, CELLS, DARK, FAST, INLINE, TILE, F, U, float_as_bits, lowest_bit, next_ticket


@njit(**INLINE)
def body_cell(
    entries: Any, order: Any, words: Any, n: Any, cell: Any, limits: Any, nearest: Any, body: Any, shares: Any
) -> None:
    """Sum up what each body shows in a cell; `shares` [(1 + bodies) * 16], first the backdrop's."""
    none, full, dark = spread(F(0.0)), spread(F(1.0)), spread(DARK)
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1, floor_0, floor_1 = full, full, none, none, dark, dark
    shares[:] = F(0.0)
    for group in range((n + 63) // 64):
        word = words[64 * group + cell]
        while word:
            k = order[64 * group + lowest_bit(word)]
            word &= word - U(1)
            z = entries[k, 9]
            if z > nearest:
                light_0, rest_0, floor_0 = hide(load(limits, 0), z, light_0, rest_0, floor_0)
                light_1, rest_1, floor_1 = hide(load(limits, 8), z, light_1, rest_1, floor_1)
                nearest = nearest_left(limits, z)
            across, upper, lower = offsets(entries, k, x, y)
            cover_0, cover_1 = coverages(entries, k, across, upper, lower)
            weight_0, light_0, rest_0, floor_0 = pass_through(cover_0, light_0, rest_0, floor_0)
            weight_1, light_1, rest_1, floor_1 = pass_through(cover_1, light_1, rest_1, floor_1)
            o = (1 + np.int64(body[float_as_bits(entries[k, 10])])) * PIXELS
            store_pair(shares, o, load(shares, o) + weight_0, load(shares, o + 8) + weight_1)
        if largest(larger(light_0, light_1)) <= F(0.0):
            break
    store_pair(shares, 0, rest_0 + light_0, rest_1 + light_1)


@njit(**FAST)
def body_tiles(
    entries: Any, masks: Any, starts: Any, ids: Any, body: Any, names: Any, across: Any, tickets: Any, limit: Any,
    bodies: Any,
) -> None:  # fmt: skip
    """Find the body of every pixel, tile by tile, until no tile is left."""
    height, width = bodies.shape
    longest = longest_list(starts)
    keys, order = np.empty(2 * longest, np.int64), np.empty(2 * longest, np.int32)
    words = np.empty(longest + 64, np.uint64)
    limits, shares = np.full(PIXELS, np.inf, np.float32), np.empty((1 + names) * PIXELS, np.float32)
    while True:
        tile = next_ticket(tickets)
        if tile >= len(starts) - 1:
            return
        start, stop = starts[tile], starts[tile + 1]
        order_tile(entries, start, stop, ids, keys, order)
        cell_lists(masks, order, stop - start, words)
        for cell in range(CELLS * CELLS):
            left = (tile % across) * TILE + (cell // CELLS) * CELL
            top = (tile // across) * TILE + (cell % CELLS) * CELL
            if left >= width or top >= height:
                continue
            nearest = read_limits(limit, left, top, limits)
            body_cell(entries, order, words, stop - start, cell, limits, nearest, body, shares)
            for pixel in range(PIXELS):
                row, column = top + pixel // CELL, left + pixel % CELL
                if row < height and column < width:
                    best = 0
                    for name in range(1, 1 + names):
                        if shares[name * PIXELS + pixel] > shares[best * PIXELS + pixel]:
                            best = name
                    bodies[row, column] = best - 1
