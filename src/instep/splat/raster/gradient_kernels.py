"""How a picture's loss changes with every drawn Gaussian, compiled: the blend walked once more, front to back.

With s = v . colour + q depth + p the slope of the loss by a Gaussian's weight at a pixel, and R the sum of weight
times s over all Gaussians behind it, the slope by its coverage a is T s - R / (1 - a). R starts as the whole sum, which
is known from the picture, so nothing has to be walked backwards or stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .blending import (  # fmt: skip
    PIXELS,
    coverages,
    hide,
    longest_list,
    nearest_left,
    offsets,
    pass_through,
    read_limits,
)
from .depth_order import cell_lists, order_tile
from .simd import (
    CELL,
    CELLS,
    DARK,
    FAST,
    INLINE,
    SOLID,
    TILE,
    F,
    U,
    larger,
    largest,
    load,
    lowest_bit,
    next_ticket,
    select,
    spread,
    store,
    total,
    totals,
)
from .tiles import SLOPES

PIXEL = 6
"""Numbers per pixel: slopes by red, green, blue, by summed depth (q), by coverage (p), and their whole sum (R)."""


@njit(**INLINE)
def slope_by_power(cover: Any, weight: Any, slope: Any, behind: Any) -> Any:
    """The slope of the loss by the logarithm of the coverage; none where the coverage is cut at SOLID."""
    value = weight * slope - behind * cover / (spread(F(1.0)) - cover)
    return select(cover < spread(SOLID), value, spread(F(0.0)))


@njit(**INLINE)
def slope_at(pixels: Any, at: Any, entries: Any, k: Any, z: Any) -> Any:
    """The slope of the loss by a Gaussian's weight, at half a cell."""
    by_colour = (
        load(pixels, at) * spread(entries[k, 6])
        + load(pixels, at + PIXELS) * spread(entries[k, 7])
        + load(pixels, at + 2 * PIXELS) * spread(entries[k, 8])
    )
    return by_colour + load(pixels, at + 3 * PIXELS) * spread(z) + load(pixels, at + 4 * PIXELS)


@njit(**INLINE)
def gradient_cell(
    entries: Any,
    order: Any,
    words: Any,
    n: Any,
    cell: Any,
    limits: Any,
    nearest: Any,
    pixels: Any,
    deep: Any,
    slopes: Any,
) -> None:
    """Add the slopes of one cell to those of the entries that reach it."""
    none, full, dark = spread(F(0.0)), spread(F(1.0)), spread(DARK)
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1, floor_0, floor_1 = full, full, none, none, dark, dark
    behind_0, behind_1 = load(pixels, 5 * PIXELS), load(pixels, 5 * PIXELS + 8)
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
            slope_0, slope_1 = slope_at(pixels, 0, entries, k, z), slope_at(pixels, 8, entries, k, z)
            behind_0 = select(light_0 > none, behind_0 - weight_0 * slope_0, none)
            behind_1 = select(light_1 > none, behind_1 - weight_1 * slope_1, none)
            power_0 = slope_by_power(cover_0, weight_0, slope_0, behind_0)
            power_1 = slope_by_power(cover_1, weight_1, slope_1, behind_1)
            power = power_0 + power_1
            by_row = power_0 * upper + power_1 * lower
            by_rows = power_0 * upper * upper + power_1 * lower * lower
            sums = totals(
                power, power * across, by_row, power * across * across, by_row * across, by_rows,
                weight_0 * load(pixels, 0) + weight_1 * load(pixels, 8),
                weight_0 * load(pixels, PIXELS) + weight_1 * load(pixels, PIXELS + 8),
            )  # fmt: skip
            at = np.int64(k) * SLOPES
            store(slopes, at, load(slopes, at) + sums)
            blue = weight_0 * load(pixels, 2 * PIXELS) + weight_1 * load(pixels, 2 * PIXELS + 8)
            slopes[k, 8] += total(blue)
            if deep:
                slopes[k, 9] += total(weight_0 * load(pixels, 3 * PIXELS) + weight_1 * load(pixels, 3 * PIXELS + 8))
        if largest(larger(light_0, light_1)) <= F(0.0):
            break


@njit(**INLINE)
def read_pixels(
    left: Any, top: Any, image: Any, alpha: Any, depth: Any, backdrop: Any, by_colour: Any, by_alpha: Any,
    by_depth: Any, pixels: Any,
) -> None:  # fmt: skip
    """The slopes of a cell's pixels by weights, and their whole sums. `by_alpha` and `by_depth` may be empty."""
    height, width = alpha.shape
    pixels[:] = F(0.0)
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            o, y, x = row * CELL + column, top + row, left + column
            cover = alpha[y, x]
            p = by_alpha[y, x] if len(by_alpha) else F(0.0)
            q, whole = F(0.0), F(0.0)
            if len(by_depth) and cover > F(0.0):
                q = by_depth[y, x] / cover
                p -= q * depth[y, x]
                whole += q * depth[y, x] * cover
            for channel in range(3):
                v = by_colour[y, x, channel]
                pixels[channel * PIXELS + o] = v
                shown = image[y, x, channel]
                if len(backdrop):
                    p -= v * backdrop[y, x, channel]
                    shown -= (F(1.0) - cover) * backdrop[y, x, channel]
                whole += v * shown
            pixels[3 * PIXELS + o], pixels[4 * PIXELS + o], pixels[5 * PIXELS + o] = q, p, whole + p * cover


@njit(**FAST)
def gradient_tiles(
    entries: Any, masks: Any, starts: Any, ids: Any, across: Any, tickets: Any, backdrop: Any, limit: Any,
    image: Any, alpha: Any, depth: Any, by_colour: Any, by_alpha: Any, by_depth: Any, slopes: Any,
) -> None:  # fmt: skip
    """Find the slopes by every entry of every tile, whichever tile is next, until none is left."""
    height, width = alpha.shape
    longest = longest_list(starts)
    keys, order = np.empty(2 * longest, np.int64), np.empty(2 * longest, np.int32)
    words = np.empty(longest + 64, np.uint64)
    limits, pixels = np.full(PIXELS, np.inf, np.float32), np.empty(PIXEL * PIXELS, np.float32)
    while True:
        tile = next_ticket(tickets)
        if tile >= len(starts) - 1:
            return
        start, stop = starts[tile], starts[tile + 1]
        slopes[start:stop] = F(0.0)
        order_tile(entries, start, stop, ids, keys, order)
        cell_lists(masks, order, stop - start, words)
        for cell in range(CELLS * CELLS):
            left = (tile % across) * TILE + (cell // CELLS) * CELL
            top = (tile // across) * TILE + (cell % CELLS) * CELL
            if left < width and top < height:
                nearest = read_limits(limit, left, top, limits)
                read_pixels(left, top, image, alpha, depth, backdrop, by_colour, by_alpha, by_depth, pixels)
                gradient_cell(
                    entries, order, words, stop - start, cell, limits, nearest, pixels, len(by_depth) > 0, slopes
                )
