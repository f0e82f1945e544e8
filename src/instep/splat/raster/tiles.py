"""Tile binning and depth order: which Gaussians each tile renders, in which of its cells, and in which order.

An entry of a tile's list is a Gaussian's record with its centre counted from the tile's first pixel, and a mask of 64
bits, one per cell, column after column: the cells that the exact ellipse reaches. The packed Gaussians are kept in the
depth order of an earlier frame, so a tile's list comes nearly sorted and insertion sort is tried first. The result
never depends on that order: equal depths are ordered by index.
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
    TILE,
    F,
    I,
    U,
    bits_as_float,
    broadcast,
    cell_bits,
    constant,
    fetch_add,
    float_as_bits,
    maximum,
    minimum,
    select,
    sqrt8,
)

ENTRY = 12
"""Numbers per entry: u, v, A, B, C, log2 opacity, red, green, blue, depth, row in the packed arrays (bits), unused."""
ENTRY_GRADIENTS = 10
"""Derivatives per entry: moments of the power's gradient (1, x, y, xx, xy, yy); by red, green, blue; by depth."""
MAX_TILES = 127
"""Most tiles along one side of an image."""
COLUMNS = constant(*(CELL * column for column in range(CELLS)))
"""The first pixel of each column of cells."""
_MARGIN_PX = F(1e-3)


class TileLists(NamedTuple):
    """The Gaussians that each tile of an image renders."""

    entries: Array
    """The lists of all tiles, one after the other [entries, ENTRY]."""
    masks: Array
    """The cells that each entry reaches [entries] uint64."""
    starts: Array
    """Where the list of each tile starts, and where the last one ends [tiles + 1]."""
    ids: Array
    """Index of each packed Gaussian, which orders equal depths [n]."""
    across: int
    """Tiles in a row."""
    tickets: Array
    """The next tile that a thread takes [1]."""


class SortedTile(NamedTuple):
    """The list of one tile in depth order, in buffers that are used for one tile after the other."""

    entries: Array
    """Those of all tiles."""
    order: Array
    """Places in `entries`, nearest first."""
    words: Array
    """The entries that reach each cell, as `cell_lists` writes them."""
    keys: Array
    """Numbers that the list is sorted by."""
    limits: Array
    """The backdrop's depths behind the pixels of a cell [16]."""


@njit(**INLINE)
def tile_box(centre: Any, half: Any, size: Any, changes: Any) -> Any:
    """First and last column, first and last row of the tiles whose pixel centres an ellipse's box holds, a byte each.

    Truncation of numbers above 0 stands for floor, which would be a call into the C library.
    """
    left = int(max(F(0.0), centre[0] - half[0])) // TILE
    right = int(min(centre[0] + half[0], size[0] - F(1.0))) // TILE
    top = int(max(F(0.0), centre[1] - half[1])) // TILE
    bottom = int(min(centre[1] + half[1], size[1] - F(1.0))) // TILE
    changes[top, left] += 1
    changes[top, right + 1] -= 1
    changes[bottom + 1, left] -= 1
    changes[bottom + 1, right + 1] += 1
    return left | (right << 8) | (top << 16) | (bottom << 24)


@njit(**KERNEL)
def allocate_lists(changes: Any, starts: Any, places: Any, slots_from: Any) -> Any:
    """Where each tile's list starts [tiles + 1] and where each part writes [parts, tiles]; return the whole length.

    `slots_from` [parts] receive where each part's entries begin when counted Gaussian by Gaussian.
    """
    parts, down, across = changes.shape[0], changes.shape[1] - 1, changes.shape[2] - 1
    counts = np.zeros((parts, down + 1, across + 1), np.int64)
    for part in range(parts):
        for row in range(down):
            for column in range(across):
                counts[part, row, column] = (
                    changes[part, row, column]
                    + (counts[part, row - 1, column] if row else 0)
                    + (counts[part, row, column - 1] if column else 0)
                    - (counts[part, row - 1, column - 1] if row and column else 0)
                )
    total = 0
    slots_from[:] = 0
    for tile in range(down * across):
        starts[tile] = total
        for part in range(parts):
            places[part, tile] = total
            count = counts[part, tile // across, tile % across]
            total += count
            for later in range(part + 1, parts):
                slots_from[later] += count
    starts[down * across] = total
    return total


@njit(**INLINE)
def covered_cells(records: Any, i: Any, u: Any, v: Any) -> Any:
    """The mask of the cells of a tile that a Gaussian reaches, all columns of cells at once.

    u and v count from the tile's first pixel. At dx off the centre the ellipse reaches from low to high, the roots of
    C dy^2 + B dx dy + A dx^2 + margin = 0. Its lowest and highest points lie at -+ B / (2 A) half_height; where that is
    outside a column, the column's near edge counts.
    """
    A, B, C, margin = records[i, 2], records[i, 3], records[i, 4], records[i, 5] + LOG2_255
    half, lean, none = F(0.5) / C, broadcast(F(-0.5) * B / A * records[i, 11]), broadcast(F(0.0))
    curve, offset = broadcast(B * B - F(4.0) * A * C), broadcast(F(-4.0) * C * margin)
    near = COLUMNS() - broadcast(u)
    far = near + broadcast(F(CELL - 1))
    up, down = minimum(maximum(none - lean, near), far), minimum(maximum(lean, near), far)
    under_low, under_high = curve * up * up + offset, curve * down * down + offset
    low = broadcast(v) + (sqrt8(maximum(under_low, none)) - broadcast(B) * up) * broadcast(half)
    high = broadcast(v) - (sqrt8(maximum(under_high, none)) + broadcast(B) * down) * broadcast(half)
    # Rows of pixels from ceil(low) to floor(high), in units of cells; columns beside the ellipse are empty.
    reached = under_low >= none
    first = (low + broadcast(F(1.0) - _MARGIN_PX)) * broadcast(F(1.0 / CELL))
    after = (high + broadcast(F(CELL) + _MARGIN_PX)) * broadcast(F(1.0 / CELL))
    return cell_bits(select(reached, first, broadcast(F(CELLS))), after)


@njit(**KERNEL)
def fill_tiles(rows: tuple[int, int], projected: Any, tiles: TileLists, places: Any, slots: Any, slot: Any) -> None:
    """Write the Gaussians of some rows into the lists of their tiles; `places` [tiles] say where each goes on.

    `slots`, from `slot` on, receive where the entries of one Gaussian after the other went.
    """
    (records, boxes), entries, masks, across = projected, tiles.entries, tiles.masks, tiles.across
    for i in range(rows[0], rows[1]):
        box = boxes[i]
        if box < 0:
            continue
        for row in range((box >> 16) & 255, (box >> 24) + 1):
            for column in range(box & 255, ((box >> 8) & 255) + 1):
                at = places[row * across + column]
                places[row * across + column] = at + 1
                slots[slot] = at
                slot += 1
                u = records[i, 0] - F(column * TILE) - F(0.5)
                v = records[i, 1] - F(row * TILE) - F(0.5)
                entries[at, 0], entries[at, 1] = u, v
                for number in range(2, 10):
                    entries[at, number] = records[i, number]
                entries[at, 10] = bits_as_float(I(i))
                masks[at] = covered_cells(records, i, u, v)


@njit(**KERNEL)
def tile_buffers(tiles: TileLists) -> Any:
    """Room for the longest list of a tile."""
    longest = 0
    for tile in range(len(tiles.starts) - 1):
        longest = max(longest, tiles.starts[tile + 1] - tiles.starts[tile])
    return SortedTile(
        tiles.entries,
        np.empty(2 * longest, np.int32),
        np.empty(longest + 64, np.uint64),
        np.empty(2 * longest, np.int64),
        np.full(CELL * CELL, np.inf, np.float32),
    )


@njit(**INLINE)
def next_tile(tiles: TileLists, buffers: SortedTile) -> Any:
    """Take a tile and sort its list: its index (-1: none is left), its length, how many entries were out of place."""
    tile = fetch_add(tiles.tickets)
    if tile >= len(tiles.starts) - 1:
        return -1, 0, 0
    start, n = tiles.starts[tile], tiles.starts[tile + 1] - tiles.starts[tile]
    breaks = sort_tile(tiles, start, n, buffers.keys, buffers.order)
    cell_lists(tiles.masks, buffers.order, n, buffers.words)
    return tile, n, breaks


@njit(**INLINE)
def cell_corner(tile: Any, cell: Any, across: Any) -> Any:
    """The first column and row of pixels of a cell in the image."""
    return (tile % across) * TILE + (cell // CELLS) * CELL, (tile // across) * TILE + (cell % CELLS) * CELL


_MAX_MOVES = 8
"""Moves per entry that mending may take before sorting is cheaper."""


@njit(**INLINE)
def sort_tile(tiles: TileLists, start: Any, n: Any, keys: Any, order: Any) -> Any:
    """Write the n places from start on into `order`, nearest first; return how many entries were out of place.

    `keys` int64 and `order` int32 are twice as long as the list.
    """
    entries, ids = tiles.entries, tiles.ids
    breaks, previous = 0, np.int64(-1)
    for k in range(n):
        depth, row = float_as_bits(entries[start + k, 9]), float_as_bits(entries[start + k, 10])
        key = (np.int64(depth) << 32) | np.int64(ids[row])
        keys[k] = key
        order[k] = start + k
        breaks += key < previous
        previous = key
    if breaks and not insertion_sort(keys, order, n):
        merge_sort(keys, order, n)
    return breaks


@njit(**INLINE)
def insertion_sort(keys: Any, order: Any, n: Any) -> Any:
    """Insertion sort, given up where much is out of place."""
    moves = _MAX_MOVES * n
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
