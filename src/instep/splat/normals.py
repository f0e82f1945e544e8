"""Normal equations of body poses from the difference between a picture and a target, compiled.

For every cell the picture is blended, compared with the target, and blended once more while the derivatives of its
pixels by the pose of each tracked body, J [3 colours, 6], gather in a small buffer. J^T W J and J^T W r are summed up
before the next cell; no image of derivatives is ever stored.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from .blend import (
    OUT,
    PIXELS,
    blend_cell,
    coverages,
    hide,
    longest_list,
    nearest_left,
    offsets,
    pass_through,
    read_limits,
)  # fmt: skip
from .lanes import larger, largest, load, select, spread, store, total
from .order import cell_lists, order_tile
from .simd import (
    CELL,
    CELLS,
    DARK,
    FAST,
    INLINE,
    LOG2_E,
    SOLID,
    TILE,
    F,
    U,
    float_as_bits,
    lowest_bit,
    next_ticket,
)  # fmt: skip

JACOBIAN = 18 * PIXELS
"""Numbers of J for one body and cell: [colour, motion, pixel]."""
SUMS = 29
"""Numbers per body: J^T W J (21, upper triangle by rows), J^T W r (6), r^T W r, W."""


@njit(**INLINE)
def compare(
    out: Any, left: Any, top: Any, backdrop: Any, target: Any, weight: Any, huber: Any, residual: Any, cost: Any
) -> Any:
    """Residuals and weights of a cell: residual [4 * 16] is red, green, blue, weight. Return whether any weighs.

    The colours in `out` become those with the backdrop behind them.
    """
    height, width = weight.shape
    residual[:] = F(0.0)
    any_weight = False
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            o, y, x = row * CELL + column, top + row, left + column
            w = weight[y, x]
            if w <= F(0.0):
                continue
            rest, square = out[o], F(0.0)
            for channel in range(3):
                shown = out[(1 + channel) * PIXELS + o]
                if len(backdrop):
                    shown += rest * backdrop[y, x, channel]
                    out[(1 + channel) * PIXELS + o] = shown
                difference = shown - target[y, x, channel]
                residual[channel * PIXELS + o] = difference
                square += difference * difference
            length = F(math.sqrt(square))
            if length > huber:
                w *= huber / length
            residual[3 * PIXELS + o] = w
            cost[0] += w * square
            cost[1] += w
            any_weight = True
    return any_weight


@njit(**INLINE)
def gather_half(
    jacobian: Any, at: Any, across: Any, down: Any, a: Any, b: Any, c: Any, motion: Any, row: Any,
    red: Any, green: Any, blue: Any,
) -> None:  # fmt: skip
    """Add one Gaussian's share to J of half a cell: slope of the colours times change of the power, for 6 motions."""
    ex, ey = a * across + b * down, b * across + c * down
    half = spread(F(0.5))
    exx, exy, eyy = half * ex * ex, ex * ey, half * ey * ey
    for k in range(6):
        o = 5 * k
        change = spread(motion[row, o]) * ex + spread(motion[row, o + 1]) * ey
        change = change + spread(motion[row, o + 2]) * exx
        change = change + spread(motion[row, o + 3]) * exy + spread(motion[row, o + 4]) * eyy
        place = at + k * PIXELS
        store(jacobian, place, load(jacobian, place) + red * change)
        store(jacobian, place + 6 * PIXELS, load(jacobian, place + 6 * PIXELS) + green * change)
        store(jacobian, place + 12 * PIXELS, load(jacobian, place + 12 * PIXELS) + blue * change)


@njit(**INLINE)
def colour_slopes(entries: Any, k: Any, cover: Any, weight: Any, light: Any, red: Any, green: Any, blue: Any) -> Any:
    """Slopes of a half cell's colours by the power of a Gaussian, and the colours behind it after it has passed."""
    none = spread(F(0.0))
    odds = select(cover < spread(SOLID), cover / (spread(F(1.0)) - cover), none)
    shown = select(cover < spread(SOLID), weight, none)
    alive = light > none
    own_red, own_green, own_blue = spread(entries[k, 6]), spread(entries[k, 7]), spread(entries[k, 8])
    red = select(alive, red - weight * own_red, none)
    green = select(alive, green - weight * own_green, none)
    blue = select(alive, blue - weight * own_blue, none)
    slopes = shown * own_red - red * odds, shown * own_green - green * odds, shown * own_blue - blue * odds
    return slopes, red, green, blue


@njit(**INLINE)
def jacobian_cell(
    entries: Any, order: Any, words: Any, n: Any, cell: Any, limits: Any, nearest: Any, out: Any,
    body: Any, track: Any, motion: Any, jacobian: Any, touched: Any,
) -> None:  # fmt: skip
    """J of one cell for every tracked body: jacobian [bodies * 18 * 16], `touched` [bodies] says whose is not 0."""
    none, full, dark = spread(F(0.0)), spread(F(1.0)), spread(DARK)
    x, y = F((cell // CELLS) * CELL), F((cell % CELLS) * CELL)
    light_0, light_1, rest_0, rest_1, floor_0, floor_1 = full, full, none, none, dark, dark
    red_0, green_0, blue_0 = load(out, 16), load(out, 32), load(out, 48)
    red_1, green_1, blue_1 = load(out, 24), load(out, 40), load(out, 56)
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
            slopes_0, red_0, green_0, blue_0 = colour_slopes(
                entries, k, cover_0, weight_0, light_0, red_0, green_0, blue_0
            )
            slopes_1, red_1, green_1, blue_1 = colour_slopes(
                entries, k, cover_1, weight_1, light_1, red_1, green_1, blue_1
            )
            row = np.int64(float_as_bits(entries[k, 10]))
            slot = np.int64(track[body[row]])
            if slot >= 0:
                touched[slot] = 1
                a, b = spread(F(-2.0) / LOG2_E * entries[k, 2]), spread(F(-1.0) / LOG2_E * entries[k, 3])
                c = spread(F(-2.0) / LOG2_E * entries[k, 4])
                at = slot * JACOBIAN
                gather_half(jacobian, at, across, upper, a, b, c, motion, row, slopes_0[0], slopes_0[1], slopes_0[2])
                gather_half(
                    jacobian, at + 8, across, lower, a, b, c, motion, row, slopes_1[0], slopes_1[1], slopes_1[2]
                )
        if largest(larger(light_0, light_1)) <= F(0.0):
            break


@njit(**INLINE)
def sum_up(jacobian: Any, slot: Any, residual: Any, sums: Any) -> None:
    """Add J^T W J and J^T W r of one cell and body to its sums, and clear J."""
    place = 0
    for k in range(6):
        for l in range(k, 6):
            square = spread(F(0.0))
            for half in range(0, PIXELS, 8):
                weight = load(residual, 3 * PIXELS + half)
                for channel in range(3):
                    o = slot * JACOBIAN + channel * 6 * PIXELS + half
                    square = square + weight * load(jacobian, o + k * PIXELS) * load(jacobian, o + l * PIXELS)
            sums[slot, place] += total(square)
            place += 1
    for k in range(6):
        pull = spread(F(0.0))
        for half in range(0, PIXELS, 8):
            weight = load(residual, 3 * PIXELS + half)
            for channel in range(3):
                o = slot * JACOBIAN + channel * 6 * PIXELS + half
                pull = pull + weight * load(jacobian, o + k * PIXELS) * load(residual, channel * PIXELS + half)
        sums[slot, 21 + k] += total(pull)
    jacobian[slot * JACOBIAN : (slot + 1) * JACOBIAN] = F(0.0)


@njit(**FAST)
def normal_tiles(
    entries: Any, masks: Any, starts: Any, ids: Any, body: Any, across: Any, tickets: Any, backdrop: Any, limit: Any,
    target: Any, weight: Any, huber: Any, track: Any, motion: Any, sums: Any, cost: Any,
) -> None:  # fmt: skip
    """Sum up the normal equations tile by tile until no tile is left: sums [bodies, 29], cost [2] (r^T W r, W)."""
    height, width = weight.shape
    longest = longest_list(starts)
    keys, order = np.empty(2 * longest, np.int64), np.empty(2 * longest, np.int32)
    words = np.empty(longest + 64, np.uint64)
    limits, out = np.full(PIXELS, np.inf, np.float32), np.empty(OUT, np.float32)
    residual, touched = np.empty(4 * PIXELS, np.float32), np.zeros(len(sums), np.int64)
    jacobian = np.zeros(len(sums) * JACOBIAN, np.float32)
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
            blend_cell(entries, order, words, stop - start, cell, limits, nearest, out)
            if compare(out, left, top, backdrop, target, weight, huber, residual, cost):
                jacobian_cell(
                    entries, order, words, stop - start, cell, limits, nearest, out, body, track, motion, jacobian,
                    touched,
                )  # fmt: skip
                for slot in range(len(sums)):
                    if touched[slot]:
                        sum_up(jacobian, slot, residual, sums)
                        touched[slot] = 0
