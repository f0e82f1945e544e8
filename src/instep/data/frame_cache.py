"""Decoded frames of video files that a process keeps, and decoders that go on where they were."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator
from pathlib import Path
from threading import Lock

import numpy as np

from instep.core.world import Array

from .video import decode, index_of

LEAST_BYTES, MOST_BYTES, MEMORY_SHARE = 256 << 20, 1 << 30, 0.125
"""Bytes of decoded frames that one process keeps: a share of the memory that is free, within bounds."""
DECODERS = 8
"""Most files that are held open to go on decoding."""
FileKey = tuple[str, int, int]
"""Path, time of change and size of a file."""


class FrameCache:
    """Decoded frames of one process, the least recently used forgotten first.

    Videos may have one key frame in hundreds; so a decoder goes on where it was rather than beginning at the last key
    frame for each frame, as long as frames are requested in order.
    """

    def __init__(self, limit: int | None = None):
        self._limit, self._used = limit or default_limit(), 0
        self._frames: OrderedDict[tuple[FileKey, int], Array] = OrderedDict()
        self._decoders: OrderedDict[FileKey, _Decoder] = OrderedDict()
        self._lock = Lock()

    def frame(self, path: Path, number: int) -> Array:
        """One frame [height, width, 3] uint8, decoded with those before it when it is not at hand."""
        stat = path.stat()
        file = (str(path), stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if (file, number) in self._frames:
                self._frames.move_to_end((file, number))
                return self._frames[file, number]
            decoder = self._decoders.pop(file, None)
        # While one thread decodes, another that reads the same file begins a decoder of its own.
        if decoder is None or not decoder.leads_to(number):
            decoder = _Decoder(path, number)
        while True:
            at, image = decoder.advance()
            self._keep((file, at), image)
            if at == number:
                break
        with self._lock:
            self._decoders[file] = decoder
            if len(self._decoders) > DECODERS:
                self._decoders.popitem(last=False)
        return image

    def _keep(self, key: tuple[FileKey, int], image: Array) -> None:
        image.setflags(write=False)
        with self._lock:
            if key not in self._frames:
                self._frames[key] = image
                self._used += image.nbytes
            while self._used > self._limit:
                self._used -= self._frames.popitem(last=False)[1].nbytes


class _Decoder:
    """A video file that is decoded in order, from the key frame before a frame on."""

    def __init__(self, path: Path, number: int):
        index = index_of(path)
        self._keys = np.flatnonzero(index.key)
        self._next = self._key_before(number)
        self._images: Generator[Array] = decode(path, self._next, len(index.pts))
        self._process = os.getpid()

    def leads_to(self, number: int) -> bool:
        """Whether a frame is ahead, and no key frame nearer to it; a file is shared with no forked process."""
        ahead = self._key_before(number) <= self._next <= number
        return ahead and self._process == os.getpid()

    def advance(self) -> tuple[int, Array]:
        """The next frame and its number."""
        self._next += 1
        return self._next - 1, next(self._images)

    def _key_before(self, number: int) -> int:
        before = self._keys[self._keys <= number]
        return int(before[-1]) if len(before) else 0


def default_limit() -> int:
    """Bytes of decoded frames that this process may keep."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return LEAST_BYTES
    return int(min(max(MEMORY_SHARE * free, LEAST_BYTES), MOST_BYTES))


CACHE = FrameCache()
