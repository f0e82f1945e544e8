"""One row in shared memory: a control loop writes it, the viewer's process reads the newest.

The writer never waits: a counter is odd while a row is written, and a reader that meets it, or that sees it change,
tries again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from instep.core.records import frozen_dataclass
from instep.core.world import Array

TRIES = 100
"""How often a reader tries to get a whole row."""


@frozen_dataclass
class RowLayout:
    """What a row holds, in this order: a counter, the time, numbers, then images."""

    numbers: int
    images: Mapping[str, tuple[int, int, int]]
    """Camera -> shape of its images."""

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return 16 + 8 * self.numbers + sum(8 + _room(shape) for shape in self.images.values())


class SharedRow:
    """The block, on either side."""

    def __init__(self, layout: RowLayout, path: Path | None = None):
        self.layout = layout
        self._owned = path is None
        self.path = _new_file(layout.size) if path is None else path
        """The file that the other process maps."""
        with self.path.open("r+b") as file:
            buffer = mmap.mmap(file.fileno(), layout.size)
        self._counter = np.frombuffer(buffer, np.int64, 1)
        self._t = np.frombuffer(buffer, np.float64, 1, 8)
        self._numbers = np.frombuffer(buffer, np.float64, layout.numbers, 16)
        at = 16 + 8 * layout.numbers
        self._images: dict[str, tuple[Array, Array]] = {}
        for camera, shape in layout.images.items():
            count = int(np.prod(shape))
            pixels = np.frombuffer(buffer, np.uint8, count, at + 8).reshape(shape)
            self._images[camera] = np.frombuffer(buffer, np.int64, 1, at), pixels
            at += 8 + _room(shape)

    def write(self, t: float, parts: Sequence[Array]) -> None:
        """Write the time and the numbers, given as parts that follow each other."""
        self._counter[0] += 1
        self._t[0] = t
        at = 0
        for part in parts:
            self._numbers[at : at + part.size] = part.reshape(-1)
            at += part.size
        self._counter[0] += 1

    def write_image(self, camera: str, image: Array) -> None:
        """Write an image; its own counter says that it is new."""
        counter, pixels = self._images[camera]
        counter[0] += 1
        pixels[:] = image
        counter[0] += 1

    def read(self, seen: int) -> tuple[int, float, Array] | None:
        """Counter, time and numbers of a row that is newer than `seen`; None where there is none."""
        for _ in range(TRIES):
            before = int(self._counter[0])
            if before % 2 or before == seen:
                if before == seen:
                    return None
                continue
            t, numbers = float(self._t[0]), self._numbers.copy()
            if int(self._counter[0]) == before:
                return before, t, numbers
        return None

    def read_image(self, camera: str, seen: int) -> tuple[int, Array] | None:
        """Counter and pixels of an image that is newer than `seen`; None where there is none."""
        counter, pixels = self._images[camera]
        for _ in range(TRIES):
            before = int(counter[0])
            if before == seen or before % 2:
                return None
            image = pixels.copy()
            if int(counter[0]) == before:
                return before, image
        return None

    def close(self) -> None:
        """Remove the file, where this side made it; the mapping goes with its last user."""
        if self._owned:
            self.path.unlink(missing_ok=True)


def _new_file(size: int) -> Path:
    """A file of zeros in memory where the system offers that: a disk could make a writer wait."""
    memory = Path("/dev/shm")  # noqa: S108 - the file is made by mkstemp
    descriptor, name = tempfile.mkstemp(prefix="instep-view-", dir=memory if memory.is_dir() else None)
    os.close(descriptor)
    os.truncate(name, size)
    return Path(name)


def _room(shape: tuple[int, int, int]) -> int:
    return -(-int(np.prod(shape)) // 8) * 8
