"""Memory the renderer works in, kept from frame to frame so that a frame allocates nothing but its image."""

from __future__ import annotations

from collections import deque

import numpy as np

from instep.core.errors import Unsupported
from instep.core.world import Array

from .image import Region
from .projection import RECORD
from .simd import TILE
from .tiles import ENTRY, MAX_TILES, SLOPES


class Workspace:
    """Arrays for one frame at a time."""

    def __init__(self) -> None:
        self.records: Array = np.empty((0, RECORD), np.float32)
        self.boxes: Array = np.empty(0, np.int32)
        self.colours: Array = np.empty((0, 3), np.float32)
        self.entries: Array = np.empty((0, ENTRY), np.float32)
        self.masks: Array = np.empty(0, np.uint64)
        self.slots: Array = np.empty(0, np.int32)
        self.slots_from: Array = np.empty(0, np.int64)
        self.slopes: Array = np.empty((0, SLOPES), np.float32)
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
                f"most that is drawn at once; draw it in regions."
            )
        if len(self.records) < gaussians:
            self.records = np.empty((gaussians, RECORD), np.float32)
            self.boxes = np.empty(gaussians, np.int32)
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

    def fit_slopes(self, length: int) -> None:
        """Make room for the derivatives by every entry."""
        if len(self.slopes) < length:
            self.slopes = np.empty((len(self.entries), SLOPES), np.float32)


class Workspaces:
    """Workspaces that are free; each is lent to one call at a time, whichever thread makes it."""

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
