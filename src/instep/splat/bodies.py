"""Which body each pixel shows most of, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .blend import COLUMNS, LOWER, PIXELS, UPPER, coverage, finish, longest_list, nearest_left, put_aside, read_limits
from .lanes import any_of, larger, largest, load, select, spread, store
from .order import cell_lists, order_tile
from .simd import CELL, CELLS, DARK, FAST, INLINE, TILE, F, U, float_as_bits, lowest_bit, next_ticket


@njit(**INLINE)
def body_cell(
    entries: Any, order: Any, words: Any, n: Any, cell: Any, limits: Any, nearest: Any, body: Any, shares: Any
) -> None:
    """Sum up what each body shows in a cell; `shares` [(1 + bodies) * 16], first the backdrop's."""
    none = spread(F(0.0))
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1 = spread(F(1.0)), spread(F(1.0)), none, none
    floor_0, floor_1 = spread(DARK), spread(DARK)
    shares[:] = F(0.0)
    for group in range((n + 63) // 64):
        word = words[64 * group + cell]
        while word:
            k = order[64 * group + lowest_bit(word)]
            word &= word - U(1)
            z = entries[k, 9]
            if z > nearest:
                light_0, rest_0, floor_0 = put_aside(load(limits, 0) < spread(z), light_0, rest_0, floor_0)
                light_1, rest_1, floor_1 = put_aside(load(limits, 8) < spread(z), light_1, rest_1, floor_1)
                nearest = min(nearest_left(load(limits, 0), z), nearest_left(load(limits, 8), z))
            dx, down = COLUMNS() + spread(x - entries[k, 0]), spread(y - entries[k, 1])
            level = spread(entries[k, 2]) * dx * dx + spread(entries[k, 5])
            tilt, C = spread(entries[k, 3]) * dx, spread(entries[k, 4])
            dy = UPPER() + down
            weight_0 = light_0 * coverage((tilt + C * dy) * dy + level)
            dy = LOWER() + down
            weight_1 = light_1 * coverage((tilt + C * dy) * dy + level)
            after_0, after_1 = light_0 - weight_0, light_1 - weight_1
            if any_of(after_0 <= floor_0) or any_of(after_1 <= floor_1):
                last_0, last_1 = after_0 <= floor_0, after_1 <= floor_1
                after_0, rest_0, floor_0 = finish(last_0, after_0, light_0, rest_0, floor_0)
                after_1, rest_1, floor_1 = finish(last_1, after_1, light_1, rest_1, floor_1)
                weight_0, weight_1 = select(last_0, none, weight_0), select(last_1, none, weight_1)
            light_0, light_1 = after_0, after_1
            o = (1 + np.int64(body[float_as_bits(entries[k, 10])])) * PIXELS
            store(shares, o, load(shares, o) + weight_0)
            store(shares, o + 8, load(shares, o + 8) + weight_1)
        if largest(larger(light_0, light_1)) <= F(0.0):
            break
    store(shares, 0, rest_0 + light_0)
    store(shares, 8, rest_1 + light_1)


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
