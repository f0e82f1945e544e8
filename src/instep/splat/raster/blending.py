"""Alpha blending of the Gaussians of a tile, nearest first, cell by cell.

A cell's 16 pixels stay in registers, as two Float8 (its upper and lower two rows) of transmittance, red, green, blue
and summed depth, while the Gaussians that reach the cell are blended. A cell is finished when its transmittance is
near 0. The same loop finds the body with the largest weight at each pixel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from instep.core.world import Array

from .simd import (
    CELL,
    CELLS,
    INLINE,
    KERNEL,
    LOG2_255,
    MAX_ALPHA,
    MIN_TRANSMITTANCE,
    F,
    U,
    any_of,
    broadcast,
    constant,
    exp2,
    load,
    maximum,
    minimum,
    reduce_max,
    select,
    store,
    trailing_zeros,
)
from .tiles import SortedTile, TileLists, cell_corner, next_tile, tile_buffers

COLUMNS = constant(0, 1, 2, 3, 0, 1, 2, 3)
UPPER = constant(0, 0, 0, 0, 1, 1, 1, 1)
LOWER = constant(2, 2, 2, 2, 3, 3, 3, 3)
PIXELS = 16
"""Pixels of a cell."""
FINISHED = F(-1.0)
"""Floor of a finished pixel, under which no light can fall."""
OUT = 5 * PIXELS
"""Numbers that are left of a cell: transmittance, red, green, blue, summed depth."""
FIRST = (np.int64(-1), U(0))
"""The cursor of `next_entry` before the first entry."""


class ImageArrays(NamedTuple):
    """An image, or the gradient of a loss by it, as the kernels take it."""

    colour: Array
    """Red, green, blue [height, width, 3]."""
    alpha: Array
    """[height, width]; of a gradient, empty where it is 0."""
    depth: Array
    """[height, width]; of a gradient, empty where it is 0."""


class BackdropArrays(NamedTuple):
    """What is behind the Gaussians, as the kernels take it."""

    colour: Array
    """Red, green, blue [height, width, 3]; empty where all is black."""
    depth: Array
    """[height, width]; empty where it is behind everything."""


class CellLight(NamedTuple):
    """The light that passes through a cell, in its upper (0) and lower (1) half."""

    light_0: Any
    light_1: Any
    """Transmittance of what was blended."""
    rest_0: Any
    rest_1: Any
    """Light of finished pixels, which goes to the backdrop."""
    floor_0: Any
    floor_1: Any
    """Transmittance at which a pixel is finished."""
    nearest: Any
    """Depth of the nearest backdrop that is still behind what was blended."""


class CellCoverage(NamedTuple):
    """What one Gaussian covers of a cell, in its upper (0) and lower (1) half."""

    across: Any
    upper: Any
    lower: Any
    """Distances of the pixels from its centre: across, down in the upper and in the lower half."""
    cover_0: Any
    cover_1: Any
    """Its alpha."""
    weight_0: Any
    weight_1: Any
    """What it takes of the light."""


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
def full_light(nearest: Any) -> Any:
    """The light before anything is blended; `nearest` is the smallest depth of the backdrop."""
    none, full, dark = broadcast(F(0.0)), broadcast(F(1.0)), broadcast(MIN_TRANSMITTANCE)
    return CellLight(full, full, none, none, dark, dark, nearest)


@njit(**INLINE)
def next_entry(tile: SortedTile, n: Any, cell: Any, cursor: Any, light: CellLight) -> Any:
    """The next entry that reaches a cell and where to look after it; -1 where none is left or no light.

    A cursor is a group of 64 entries and those of them that are left; it begins as FIRST.
    """
    group, word = cursor
    while not word:
        group += 1
        if 64 * group >= n or reduce_max(maximum(light.light_0, light.light_1)) <= F(0.0):
            return -1, (group, word)
        word = tile.words[64 * group + cell]
    return tile.order[64 * group + trailing_zeros(word)], (group, word & (word - U(1)))


@njit(**INLINE)
def pass_entry(tile: SortedTile, k: Any, cell: Any, light: CellLight) -> Any:
    """The light after an entry, and what the entry covers of the cell."""
    entries, limits = tile.entries, tile.limits
    light_0, light_1, rest_0, rest_1, floor_0, floor_1, nearest = light
    z = entries[k, 9]
    if z > nearest:
        light_0, rest_0, floor_0 = occlude(load(limits, 0), z, light_0, rest_0, floor_0)
        light_1, rest_1, floor_1 = occlude(load(limits, 8), z, light_1, rest_1, floor_1)
        nearest = next_nearest(limits, z)
    across, upper, lower = offsets(entries, k, F((cell // CELLS) * CELL), F((cell % CELLS) * CELL))
    cover_0, cover_1 = alphas(entries, k, across, upper, lower)
    weight_0, light_0, rest_0, floor_0 = composite(cover_0, light_0, rest_0, floor_0)
    weight_1, light_1, rest_1, floor_1 = composite(cover_1, light_1, rest_1, floor_1)
    after = CellLight(light_0, light_1, rest_0, rest_1, floor_0, floor_1, nearest)
    return after, CellCoverage(across, upper, lower, cover_0, cover_1, weight_0, weight_1)


@njit(**INLINE)
def blend_cell(tile: SortedTile, n: Any, cell: Any, nearest: Any, out: Any) -> None:
    """Blend the Gaussians that reach one cell; `nearest` is the smallest of the tile's limits."""
    light, cursor = full_light(nearest), FIRST
    none, entries = broadcast(F(0.0)), tile.entries
    red_0, red_1, green_0, green_1, blue_0, blue_1, depth_0, depth_1 = none, none, none, none, none, none, none, none
    while True:
        k, cursor = next_entry(tile, n, cell, cursor, light)
        if k < 0:
            break
        light, covered = pass_entry(tile, k, cell, light)
        weight_0, weight_1 = covered.weight_0, covered.weight_1
        part = broadcast(entries[k, 6])
        red_0, red_1 = red_0 + weight_0 * part, red_1 + weight_1 * part
        part = broadcast(entries[k, 7])
        green_0, green_1 = green_0 + weight_0 * part, green_1 + weight_1 * part
        part = broadcast(entries[k, 8])
        blue_0, blue_1 = blue_0 + weight_0 * part, blue_1 + weight_1 * part
        part = broadcast(entries[k, 9])
        depth_0, depth_1 = depth_0 + weight_0 * part, depth_1 + weight_1 * part
    rest_0, rest_1 = light.rest_0 + light.light_0, light.rest_1 + light.light_1
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
def read_limits(depth: Any, corner: Any, limits: Any) -> Any:
    """The backdrop's depths behind a cell, where it has any; return the nearest."""
    nearest, (left, top) = F(np.inf), corner
    height, width = depth.shape
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            limit = depth[top + row, left + column]
            limits[row * CELL + column] = limit
            nearest = min(nearest, limit)
    return nearest


@njit(**INLINE)
def write_cell(out: Any, corner: Any, backdrop: Any, image: ImageArrays) -> None:
    """Write a cell into the image, over the backdrop if there is one."""
    (colour, alpha, depth), (left, top) = image, corner
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


@njit(**KERNEL)
def blend_tiles(tiles: TileLists, backdrop: BackdropArrays, image: ImageArrays) -> Any:
    """Blend tiles until none is left, in any number of threads; return how many entries were out of order."""
    height, width = image.alpha.shape
    buffers, out = tile_buffers(tiles), np.empty(OUT, np.float32)
    total = 0
    while True:
        tile, n, breaks = next_tile(tiles, buffers)
        if tile < 0:
            return total
        total += breaks
        for cell in range(CELLS * CELLS):
            left, top = corner = cell_corner(tile, cell, tiles.across)
            if left < width and top < height:
                blend_cell(buffers, n, cell, read_limits(backdrop.depth, corner, buffers.limits), out)
                write_cell(out, corner, backdrop.colour, image)
