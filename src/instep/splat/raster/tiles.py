"""Tile binning and depth order: which Gaussians each tile renders, in which of its cells, and in which order.

An entry of a tile's list is a Gaussian's record with its centre counted from the tile's first pixel, and a mask of 64
bits, one per cell, column after column: the cells that the exact ellipse reaches. The packed Gaussians are kept in the
depth order of an earlier frame, so a tile's list comes nearly sorted and insertion sort is tried first. The result
never depends on that order: equal depths are ordered by index.

Gaussians are packed as float32 with precomputed covariances, in the depth order of a camera. Buffers are kept from
frame to frame, so that a frame allocates nothing but its image. The thread pool is our own rather than numba's: it is
safe to call from several threads and after a fork, and kernels compile faster without numba's parallel transformation.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from instep.core.errors import Unsupported
from instep.core.processes import usable_cores
from instep.core.world import Array
from instep.splat.gaussians import Gaussians
from instep.splat.image import Region

from .gaussian_projection import RECORD, ProjectedEllipses
from .simd import (
    CELL,
    CELLS,
    INLINE,
    KERNEL,
    LOG2_255,
    MIN_ALPHA,
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


class PackedGaussians(NamedTuple):
    """The same Gaussians in some order, as the kernels take them; `ids` say which is which."""

    means: Array  # [n, 3] m
    covariances: Array  # [n, 6] m^2: xx, xy, xz, yy, yz, zz
    strengths: Array  # [n, 2] log2 opacity, reach in standard deviations (-1: too faint to render)
    colours: Array  # [n, 3], of degree 0
    harmonics: Array  # [n, (degree + 1)^2, 3], empty for degree 0
    body: Array  # [n] int32
    ids: Array  # [n] int32, index in the Gaussians

    def permuted(self, order: Array) -> PackedGaussians:
        """The same in another order."""
        harmonics = self.harmonics[order] if len(self.harmonics) else self.harmonics
        parts = self.means, self.covariances, self.strengths, self.colours, self.body, self.ids
        means, covariances, strengths, colours, body, ids = (np.ascontiguousarray(part[order]) for part in parts)
        return PackedGaussians(means, covariances, strengths, colours, np.ascontiguousarray(harmonics), body, ids)

    def sorted_for(self, frames: Array) -> PackedGaussians:
        """The same, nearest first for a camera; `frames` [bodies, 12] are the rows of camera_from_body."""
        axis = frames[self.body, 8:]
        depth = np.einsum("ni,ni->n", axis[:, :3], self.means) + axis[:, 3]
        return self.permuted(np.argsort(depth, kind="stable"))


def pack(gaussians: Gaussians) -> PackedGaussians:
    """Gaussians for the kernels, in the order in which they are given."""
    n = len(gaussians)
    covariances = np.empty((n, 6), np.float32)
    _covariances(np.asarray(gaussians.quats, float), np.asarray(gaussians.scales, float), covariances)
    opacities = np.maximum(np.asarray(gaussians.opacities, float), 1e-12)
    reach = np.sqrt(np.maximum(2 * np.log(opacities / MIN_ALPHA), 0.0))
    strengths = np.column_stack([np.log2(opacities), np.where(opacities >= MIN_ALPHA, reach, -1.0)])
    shaded = gaussians.degree > 0
    return PackedGaussians(
        _floats(gaussians.means),
        covariances,
        _floats(strengths),
        _floats(np.maximum(gaussians.colours, 0.0)),
        _floats(gaussians.sh) if shaded else np.zeros((0, 1, 3), np.float32),
        np.ascontiguousarray(gaussians.body, np.int32),
        np.arange(n, dtype=np.int32),
    )


@njit(**KERNEL)
def _covariances(quats: Any, scales: Any, out: Any) -> None:
    """Covariances R diag(scales^2) R^T (xx, xy, xz, yy, yz, zz) of quaternions of any length."""
    for i in range(len(quats)):
        w, x, y, z = quats[i, 0], quats[i, 1], quats[i, 2], quats[i, 3]
        twice = 2.0 / (w * w + x * x + y * y + z * z)
        a, b, c = scales[i, 0] ** 2, scales[i, 1] ** 2, scales[i, 2] ** 2
        r00, r01, r02 = 1 - twice * (y * y + z * z), twice * (x * y - w * z), twice * (x * z + w * y)
        r10, r11, r12 = twice * (x * y + w * z), 1 - twice * (x * x + z * z), twice * (y * z - w * x)
        r20, r21, r22 = twice * (x * z - w * y), twice * (y * z + w * x), 1 - twice * (x * x + y * y)
        out[i, 0] = a * r00 * r00 + b * r01 * r01 + c * r02 * r02
        out[i, 1] = a * r00 * r10 + b * r01 * r11 + c * r02 * r12
        out[i, 2] = a * r00 * r20 + b * r01 * r21 + c * r02 * r22
        out[i, 3] = a * r10 * r10 + b * r11 * r11 + c * r12 * r12
        out[i, 4] = a * r10 * r20 + b * r11 * r21 + c * r12 * r22
        out[i, 5] = a * r20 * r20 + b * r21 * r21 + c * r22 * r22


def _floats(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32)


class Workspace:
    """Arrays for one frame at a time."""

    def __init__(self) -> None:
        self.projected = ProjectedEllipses(np.empty((0, RECORD), np.float32), np.empty(0, np.int32))
        self.colours: Array = np.empty((0, 3), np.float32)
        self.entries: Array = np.empty((0, ENTRY), np.float32)
        self.masks: Array = np.empty(0, np.uint64)
        self.slots: Array = np.empty(0, np.int32)
        self.slots_from: Array = np.empty(0, np.int64)
        self.gradients: Array = np.empty((0, ENTRY_GRADIENTS), np.float32)
        self.across = self.down = 0
        self.starts: Array = np.empty(0, np.int64)
        self.changes: Array = np.empty((0, 0, 0), np.int64)
        self.places: Array = np.empty((0, 0), np.int64)

    def fit(self, gaussians: int, region: Region, threads: int) -> None:
        """Make room for this many Gaussians and the tiles of a region."""
        left, top, right, bottom = region
        across, down = -(-(right - left) // TILE), -(-(bottom - top) // TILE)
        if max(across, down) > MAX_TILES:
            raise Unsupported(
                f"An image of {right - left} x {bottom - top} pixels is longer than {MAX_TILES * TILE} on a side, the "
                f"most that is rendered at once; render it in regions."
            )
        if len(self.projected.boxes) < gaussians:
            self.projected = ProjectedEllipses(np.empty((gaussians, RECORD), np.float32), np.empty(gaussians, np.int32))
            self.colours = np.empty((gaussians, 3), np.float32)
        if self.changes.shape != (threads, down + 1, across + 1):
            self.across, self.down = across, down
            self.changes = np.empty((threads, down + 1, across + 1), np.int64)
            self.starts = np.empty(across * down + 1, np.int64)
            self.places = np.empty((threads, across * down), np.int64)
            self.slots_from = np.empty(threads, np.int64)

    def fit_entries(self, length: int) -> None:
        """Make room for the tiles' lists, with some to spare for the next frame."""
        if len(self.entries) < length:
            self.entries = np.empty((length + length // 4 + 64, ENTRY), np.float32)
            self.masks = np.empty(len(self.entries), np.uint64)
            self.slots = np.empty(len(self.entries), np.int32)

    def tile_lists(self, ids: Array) -> TileLists:
        """The tiles' lists for threads that take one tile after the other, from the first on."""
        return TileLists(self.entries, self.masks, self.starts, ids, self.across, np.zeros(1, np.int64))

    def fit_gradients(self, length: int) -> None:
        """Make room for the derivatives by every entry."""
        if len(self.gradients) < length:
            self.gradients = np.empty((len(self.entries), ENTRY_GRADIENTS), np.float32)


class WorkspacePool:
    """Free workspaces; each is used by one call at a time, from any thread."""

    def __init__(self) -> None:
        self._free: deque[Workspace] = deque(maxlen=8)

    def take(self) -> Workspace:
        """A free workspace, or a new one."""
        try:
            return self._free.pop()
        except IndexError:
            return Workspace()

    def give_back(self, workspace: Workspace) -> None:
        """Let others use it."""
        self._free.append(workspace)


_pool: ThreadPoolExecutor | None = None


def run_on_threads(task: Callable[[int], object], threads: int) -> None:
    """Call task(0), task(1), ... at once, the first on this thread, and wait for all."""
    if threads == 1:
        task(0)
        return
    others = [_thread_pool().submit(task, part) for part in range(1, threads)]
    try:
        task(0)
    finally:
        for other in others:
            other.result()


def row_range(n: int, part: int, parts: int) -> tuple[int, int]:
    """The rows of n that fall to one of several parts."""
    return n * part // parts, n * (part + 1) // parts


def _thread_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, usable_cores() * 2), thread_name_prefix="splat")
    return _pool


def _drop_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool)
