"""Packed Gaussians, reusable buffers and threads of the rasteriser.

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
from .reference import MIN_ALPHA
from .simd import KERNEL, TILE
from .tiles import ENTRY, ENTRY_GRADIENTS, MAX_TILES, TileLists


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
