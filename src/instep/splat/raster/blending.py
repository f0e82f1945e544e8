"""Alpha blending of the Gaussians of a tile, nearest first, cell by cell.

A cell's 16 pixels stay in registers, as two Float8 (its upper and lower two rows) of transmittance, red, green, blue
and summed depth, while the Gaussians that reach the cell are blended. A cell is finished when its transmittance is
near 0. The same loop finds the body with the largest weight at each pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .simd import (
    CELL,
    CELLS,
    INLINE,
    KERNEL,
    LOG2_255,
    MAX_ALPHA,
    MIN_TRANSMITTANCE,
    TILE,
    F,
    U,
    any_of,
    broadcast,
    constant,
    exp2,
    fetch_add,
    float_as_bits,
    load,
    maximum,
    minimum,
    reduce_max,
    select,
    store,
    trailing_zeros,
)
from .tiles import cell_lists, sort_tile

COLUMNS = constant(0, 1, 2, 3, 0, 1, 2, 3)
UPPER = constant(0, 0, 0, 0, 1, 1, 1, 1)
LOWER = constant(2, 2, 2, 2, 3, 3, 3, 3)
PIXELS = 16
"""Pixels of a cell."""
FINISHED = F(-1.0)
"""Floor of a finished pixel, under which no light can fall."""
OUT = 5 * PIXELS
"""Numbers that are left of a cell: transmittance, red, green, blue, summed depth."""


@njit(**INLINE)
def alpha_from_log2(power: Any) -> Any:
    """How much a Gaussian covers, from the logarithm to base 2."""
    none = broadcast(F(0.0))
    return select(power >= broadcast(-LOG2_255), minimum(broadcast(MAX_ALPHA), exp2(power)), none)


@njit(**INLINE)
def offsets(entries: Any, k: Any, x: Any, y: Any) -> Any:
    """How far the pixels of a cell are from a Gaussian's centre: across, down in the upper and in the lower half."""
    across, down = COLUMNS() + broadcast(x - entries[k, 0]), broadcast(y - entries[k, 1])
    return across, UPPER() + down, LOWER() + down


@njit(**INLINE)
def alphas(entries: Any, k: Any, across: Any, upper: Any, lower: Any) -> Any:
    """How much a Gaussian covers of a cell, upper and lower half."""
    level = broadcast(entries[k, 2]) * across * across + broadcast(entries[k, 5])
    tilt, C = broadcast(entries[k, 3]) * across, broadcast(entries[k, 4])
    return alpha_from_log2((tilt + C * upper) * upper + level), alpha_from_log2((tilt + C * lower) * lower + level)


@njit(**INLINE)
def composite(cover: Any, light: Any, rest: Any, floor: Any) -> Any:
    """What of the light a Gaussian takes, and the light, the rest and the floor after it.

    Where it would leave too little light it is left out, the pixel is finished, and its light goes to the backdrop.
    """
    weight = light * cover
    after = light - weight
    last = after <= floor
    if any_of(last):
        none = broadcast(F(0.0))
        rest = rest + select(last, light, none)
        weight, after, floor = (
            select(last, none, weight),
            select(last, none, after),
            select(last, broadcast(FINISHED), floor),
        )
    return weight, after, rest, floor


@njit(**INLINE)
def occlude(limit: Any, depth: Any, light: Any, rest: Any, floor: Any) -> Any:
    """Finish the pixels whose backdrop is nearer than `depth`; return light, rest and floor after it."""
    behind, none = limit < broadcast(depth), broadcast(F(0.0))
    return select(behind, none, light), rest + select(behind, light, none), select(behind, broadcast(FINISHED), floor)


@njit(**INLINE)
def next_nearest(limits: Any, depth: Any) -> Any:
    """The nearest backdrop of a cell that is not nearer than `depth`."""
    upper, lower, far = load(limits, 0), load(limits, 8), broadcast(F(-np.inf))
    none = broadcast(F(0.0))
    upper = select(upper < broadcast(depth), far, none - upper)
    lower = select(lower < broadcast(depth), far, none - lower)
    return -reduce_max(maximum(upper, lower))


@njit(**INLINE)
def blend_cell(entries: Any, order: Any, words: Any, n: Any, cell: Any, limits: Any, nearest: Any, out: Any) -> None:
    """Blend the Gaussians that reach one cell; `limits` [16] are the backdrop's depths, `nearest` their smallest."""
    none, full, dark = broadcast(F(0.0)), broadcast(F(1.0)), broadcast(MIN_TRANSMITTANCE)
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1, floor_0, floor_1 = full, full, none, none, dark, dark
    red_0, red_1, green_0, green_1, blue_0, blue_1, depth_0, depth_1 = none, none, none, none, none, none, none, none
    for group in range((n + 63) // 64):
        word = words[64 * group + cell]
        while word:
            k = order[64 * group + trailing_zeros(word)]
            word &= word - U(1)
            z = entries[k, 9]
            if z > nearest:
                light_0, rest_0, floor_0 = occlude(load(limits, 0), z, light_0, rest_0, floor_0)
                light_1, rest_1, floor_1 = occlude(load(limits, 8), z, light_1, rest_1, floor_1)
                nearest = next_nearest(limits, z)
            across, upper, lower = offsets(entries, k, x, y)
            cover_0, cover_1 = alphas(entries, k, across, upper, lower)
            weight_0, light_0, rest_0, floor_0 = composite(cover_0, light_0, rest_0, floor_0)
            weight_1, light_1, rest_1, floor_1 = composite(cover_1, light_1, rest_1, floor_1)
            part = broadcast(entries[k, 6])
            red_0, red_1 = red_0 + weight_0 * part, red_1 + weight_1 * part
            part = broadcast(entries[k, 7])
            green_0, green_1 = green_0 + weight_0 * part, green_1 + weight_1 * part
            part = broadcast(entries[k, 8])
            blue_0, blue_1 = blue_0 + weight_0 * part, blue_1 + weight_1 * part
            part = broadcast(z)
            depth_0, depth_1 = depth_0 + weight_0 * part, depth_1 + weight_1 * part
        if reduce_max(maximum(light_0, light_1)) <= F(0.0):
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
    cover, none = broadcast(F(1.0)) - rest, broadcast(F(0.0))
    return select(cover > none, summed / cover, broadcast(F(np.inf)))


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


@njit(**KERNEL)
def blend_tiles(
    entries: Any, masks: Any, starts: Any, ids: Any, across: Any, tickets: Any, backdrop: Any, limit: Any,
    colour: Any, alpha: Any, depth: Any,
) -> Any:  # fmt: skip
    """Blend tiles from a shared counter until none is left, in any number of threads.

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
        tile = fetch_add(tickets)
        if tile >= len(starts) - 1:
            return breaks
        start, stop = starts[tile], starts[tile + 1]
        breaks += sort_tile(entries, start, stop, ids, keys, order)
        cell_lists(masks, order, stop - start, words)
        for cell in range(CELLS * CELLS):
            left = (tile % across) * TILE + (cell // CELLS) * CELL
            top = (tile // across) * TILE + (cell % CELLS) * CELL
            if left < width and top < height:
                nearest = read_limits(limit, left, top, limits)
                blend_cell(entries, order, words, stop - start, cell, limits, nearest, out)
                write_cell(out, left, top, backdrop, colour, alpha, depth)


@njit(**INLINE)
def label_cell(
    entries: Any, order: Any, words: Any, n: Any, cell: Any, limits: Any, nearest: Any, body: Any, shares: Any
) -> None:
    """Sum the weights of each body in a cell; `shares` [(1 + bodies) * 16], first the backdrop's."""
    none, full, dark = broadcast(F(0.0)), broadcast(F(1.0)), broadcast(MIN_TRANSMITTANCE)
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1, floor_0, floor_1 = full, full, none, none, dark, dark
    shares[:] = F(0.0)
    for group in range((n + 63) // 64):
        word = words[64 * group + cell]
        while word:
            k = order[64 * group + trailing_zeros(word)]
            word &= word - U(1)
            z = entries[k, 9]
            if z > nearest:
                light_0, rest_0, floor_0 = occlude(load(limits, 0), z, light_0, rest_0, floor_0)
                light_1, rest_1, floor_1 = occlude(load(limits, 8), z, light_1, rest_1, floor_1)
                nearest = next_nearest(limits, z)
            across, upper, lower = offsets(entries, k, x, y)
            cover_0, cover_1 = alphas(entries, k, across, upper, lower)
            weight_0, light_0, rest_0, floor_0 = composite(cover_0, light_0, rest_0, floor_0)
            weight_1, light_1, rest_1, floor_1 = composite(cover_1, light_1, rest_1, floor_1)
            o = (1 + np.int64(body[float_as_bits(entries[k, 10])])) * PIXELS
            store_pair(shares, o, load(shares, o) + weight_0, load(shares, o + 8) + weight_1)
        if reduce_max(maximum(light_0, light_1)) <= F(0.0):
            break
    store_pair(shares, 0, rest_0 + light_0, rest_1 + light_1)


@njit(**KERNEL)
def label_tiles(
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
        tile = fetch_add(tickets)
        if tile >= len(starts) - 1:
            return
        start, stop = starts[tile], starts[tile + 1]
        sort_tile(entries, start, stop, ids, keys, order)
        cell_lists(masks, order, stop - start, words)
        for cell in range(CELLS * CELLS):
            left = (tile % across) * TILE + (cell // CELLS) * CELL
            top = (tile // across) * TILE + (cell % CELLS) * CELL
            if left >= width or top >= height:
                continue
            nearest = read_limits(limit, left, top, limits)
            label_cell(entries, order, words, stop - start, cell, limits, nearest, body, shares)
            for pixel in range(PIXELS):
                row, column = top + pixel // CELL, left + pixel % CELL
                if row < height and column < width:
                    best = 0
                    for name in range(1, 1 + names):
                        if shares[name * PIXELS + pixel] > shares[best * PIXELS + pixel]:
                            best = name
                    bodies[row, column] = best - 1
