"""Blend the Gaussians of a tile, nearest first, cell by cell.

A cell's 16 pixels stay in registers, as two Lanes (its upper and its lower two rows) of transmittance, red, green, blue
and summed depth, while the Gaussians that reach the cell pass by. It is finished when hardly any light is left.

Which body each pixel shows most of, compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .simd import (
    CELL,
    CELLS,
    DARK,
    FAST,
    INLINE,
    LOG2_255,
    SOLID,
    TILE,
    F,
    U,
    any_of,
    constant,
    exp2,
    float_as_bits,
    larger,
    largest,
    load,
    lowest_bit,
    next_ticket,
    select,
    smaller,
    spread,
    store,
)
from .tiles import cell_lists, order_tile

COLUMNS = constant(0, 1, 2, 3, 0, 1, 2, 3)
UPPER = constant(0, 0, 0, 0, 1, 1, 1, 1)
LOWER = constant(2, 2, 2, 2, 3, 3, 3, 3)
PIXELS = 16
"""Pixels of a cell."""
OVER = F(-1.0)
"""Floor of a finished pixel, under which no light can fall."""
OUT = 5 * PIXELS
"""Numbers that are left of a cell: transmittance, red, green, blue, summed depth."""


@njit(**INLINE)
def coverage(power: Any) -> Any:
    """How much a Gaussian covers, from the logarithm to base 2."""
    none = spread(F(0.0))
    return select(power >= spread(-LOG2_255), smaller(spread(SOLID), exp2(power)), none)


@njit(**INLINE)
def offsets(entries: Any, k: Any, x: Any, y: Any) -> Any:
    """How far the pixels of a cell are from a Gaussian's centre: across, down in the upper and in the lower half."""
    across, down = COLUMNS() + spread(x - entries[k, 0]), spread(y - entries[k, 1])
    return across, UPPER() + down, LOWER() + down


@njit(**INLINE)
def coverages(entries: Any, k: Any, across: Any, upper: Any, lower: Any) -> Any:
    """How much a Gaussian covers of a cell, upper and lower half."""
    level = spread(entries[k, 2]) * across * across + spread(entries[k, 5])
    tilt, C = spread(entries[k, 3]) * across, spread(entries[k, 4])
    return coverage((tilt + C * upper) * upper + level), coverage((tilt + C * lower) * lower + level)


@njit(**INLINE)
def pass_through(cover: Any, light: Any, rest: Any, floor: Any) -> Any:
    """What of the light a Gaussian takes, and the light, the rest and the floor after it.

    Where it would leave too little light it is left out, the pixel is finished, and its light goes to the backdrop.
    """
    weight = light * cover
    after = light - weight
    last = after <= floor
    if any_of(last):
        none = spread(F(0.0))
        rest = rest + select(last, light, none)
        weight, after, floor = select(last, none, weight), select(last, none, after), select(last, spread(OVER), floor)
    return weight, after, rest, floor


@njit(**INLINE)
def hide(limit: Any, depth: Any, light: Any, rest: Any, floor: Any) -> Any:
    """Finish the pixels whose backdrop is nearer than `depth`; return light, rest and floor after it."""
    behind, none = limit < spread(depth), spread(F(0.0))
    return select(behind, none, light), rest + select(behind, light, none), select(behind, spread(OVER), floor)


@njit(**INLINE)
def nearest_left(limits: Any, depth: Any) -> Any:
    """The nearest backdrop of a cell that is not nearer than `depth`."""
    upper, lower, far = load(limits, 0), load(limits, 8), spread(F(-np.inf))
    none = spread(F(0.0))
    upper = select(upper < spread(depth), far, none - upper)
    lower = select(lower < spread(depth), far, none - lower)
    return -largest(larger(upper, lower))


@njit(**INLINE)
def blend_cell(entries: Any, order: Any, words: Any, n: Any, cell: Any, limits: Any, nearest: Any, out: Any) -> None:
    """Blend the Gaussians that reach one cell; `limits` [16] are the backdrop's depths, `nearest` their smallest."""
    none, full, dark = spread(F(0.0)), spread(F(1.0)), spread(DARK)
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1, floor_0, floor_1 = full, full, none, none, dark, dark
    red_0, red_1, green_0, green_1, blue_0, blue_1, depth_0, depth_1 = none, none, none, none, none, none, none, none
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
            part = spread(entries[k, 6])
            red_0, red_1 = red_0 + weight_0 * part, red_1 + weight_1 * part
            part = spread(entries[k, 7])
            green_0, green_1 = green_0 + weight_0 * part, green_1 + weight_1 * part
            part = spread(entries[k, 8])
            blue_0, blue_1 = blue_0 + weight_0 * part, blue_1 + weight_1 * part
            part = spread(z)
            depth_0, depth_1 = depth_0 + weight_0 * part, depth_1 + weight_1 * part
        if largest(larger(light_0, light_1)) <= F(0.0):
            break
    rest_0, rest_1 = rest_0 + light_0, rest_1 + light_1
    store_pair(out, 0, rest_0, rest_1)
    store_pair(out, 16, red_0, red_1)
    store_pair(out, 32, green_0, green_1)
    store_pair(out, 48, blue_0, blue_1)
    store_pair(out, 64, mean_depth(depth_0, rest_0), mean_depth(depth_1, rest_1))


@njit(**INLINE)
def store_pair(array: Any, at: Any, upper: Any, lower: Any) -> None:
    """Write both halves of a cell."""
    store(array, at, upper)
    store(array, at + 8, lower)


@njit(**INLINE)
def mean_depth(summed: Any, rest: Any) -> Any:
    """The mean depth of what is seen, infinite where nothing is."""
    cover, none = spread(F(1.0)) - rest, spread(F(0.0))
    return select(cover > none, summed / cover, spread(F(np.inf)))


@njit(**INLINE)
def read_limits(depth: Any, left: Any, top: Any, limits: Any) -> Any:
    """The backdrop's depths behind a cell, where it has any; return the nearest."""
    nearest = F(np.inf)
    height, width = depth.shape
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            limit = depth[top + row, left + column]
            limits[row * CELL + column] = limit
            nearest = min(nearest, limit)
    return nearest


@njit(**INLINE)
def write_cell(out: Any, left: Any, top: Any, backdrop: Any, colour: Any, alpha: Any, depth: Any) -> None:
    """Write a cell into the image, over the backdrop if there is one."""
    height, width = alpha.shape
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            o = row * CELL + column
            y, x = top + row, left + column
            rest = out[o]
            colour[y, x, 0], colour[y, x, 1], colour[y, x, 2] = (
                out[PIXELS + o],
                out[2 * PIXELS + o],
                out[3 * PIXELS + o],
            )
            if len(backdrop):
                colour[y, x, 0] += rest * backdrop[y, x, 0]
                colour[y, x, 1] += rest * backdrop[y, x, 1]
                colour[y, x, 2] += rest * backdrop[y, x, 2]
            alpha[y, x] = F(1.0) - rest
            depth[y, x] = out[4 * PIXELS + o]


@njit(**INLINE)
def longest_list(starts: Any) -> Any:
    """The length of the longest list of a tile."""
    longest = 0
    for tile in range(len(starts) - 1):
        longest = max(longest, starts[tile + 1] - starts[tile])
    return longest


@njit(**FAST)
def blend_tiles(
    entries: Any, masks: Any, starts: Any, ids: Any, across: Any, tickets: Any, backdrop: Any, limit: Any,
    colour: Any, alpha: Any, depth: Any,
) -> Any:  # fmt: skip
    """Draw tiles, whichever is next, until none is left; several threads may do so at once.

    `backdrop` is empty where all behind is black, `limit` where it is behind everything.
    Return how many entries were out of order.
    """
    height, width = alpha.shape
    longest = longest_list(starts)
    keys, order = np.empty(2 * longest, np.int64), np.empty(2 * longest, np.int32)
    words = np.empty(longest + 64, np.uint64)
    limits, out = np.full(PIXELS, np.inf, np.float32), np.empty(OUT, np.float32)
    breaks = 0
    while True:
        tile = next_ticket(tickets)
        if tile >= len(starts) - 1:
            return breaks
        start, stop = starts[tile], starts[tile + 1]
        breaks += order_tile(entries, start, stop, ids, keys, order)
        cell_lists(masks, order, stop - start, words)
        for cell in range(CELLS * CELLS):
            left = (tile % across) * TILE + (cell // CELLS) * CELL
            top = (tile // across) * TILE + (cell % CELLS) * CELL
            if left < width and top < height:
                nearest = read_limits(limit, left, top, limits)
                blend_cell(entries, order, words, stop - start, cell, limits, nearest, out)
                write_cell(out, left, top, backdrop, colour, alpha, depth)


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
