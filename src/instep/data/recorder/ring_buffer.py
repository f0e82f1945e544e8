"""Ring buffer in shared memory: a bounded queue of bytes from one process to another that never blocks.

Standard library only: the writing process starts with it.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import NamedTuple

MESSAGE = struct.Struct("<BBHIQQqq")
"""kind, 0, stream, length, start and end of the payload as counts of bytes since the beginning, both clocks [ns]."""
PAGE = 4096
TAIL, ROWS, SYNCED, FAILED, COMMITS, SAMPLES = range(6)
"""Places of the counters that the reader keeps: bytes read, rows written, rows synced, errno, episodes committed."""


class Part(NamedTuple):
    """One message: what it is, and its bytes, plain and contiguous. A tuple, since the loop makes several a row."""

    kind: int
    stream: int
    payload: bytes | memoryview


class Ring:
    """The memory both sides share: a page of counters, then the bytes of messages, used round and round."""

    def __init__(self, handle: int, size: int):
        self.size = size
        self._map = mmap.mmap(handle, PAGE + size)
        self._bytes = memoryview(self._map)
        # Counters are whole words at their natural place, which processors read and write in one go.
        self.counters = memoryview(self._map)[:128].cast("Q")

    def view(self, start: int, length: int) -> memoryview:
        """The bytes of a message."""
        place = PAGE + start % self.size
        return self._bytes[place : place + length]

    def touch(self) -> None:
        """Have the memory given to us now, not at the first lap."""
        for place in range(PAGE, PAGE + self.size, PAGE):
            self._map[place] = 0

    @property
    def error(self) -> str:
        """What the reader says went wrong."""
        return bytes(self._map[256:1280]).rstrip(b"\0").decode("utf-8", "replace")

    def fail(self, number: int, text: str) -> None:
        """Say what went wrong, once."""
        if not self.counters[FAILED]:
            self._map[256:1280] = text.encode()[:1024].ljust(1024, b"\0")
            self.counters[FAILED] = number


def memory(size: int) -> int:
    """A file in memory that processes can share, gone when the last of them is."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("instep", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, PAGE + size)
    return handle
