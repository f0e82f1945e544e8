"""A queue of bytes from one process to another: bounded, never waiting, and alive for as long as either side is.

Standard library only: the writing process starts with it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

MESSAGE = struct.Struct("<BBHIQQqq")
"""kind, 0, stream, length, start and end of the payload as counts of bytes since the beginning, both clocks [ns]."""
PAGE = 4096
TAIL, ROWS, SYNCED, FAILED, COMMITS, SAMPLES = range(6)
"""Places of the counters that the reader keeps: bytes read, rows written, rows synced, errno, episodes committed."""
_F_SETPIPE_SZ = 1031


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


class Sender:
    """The side that must never wait."""

    def __init__(self, ring: Ring, pipe: int):
        self._ring, self._pipe, self._head, self._base = ring, pipe, 0, 0
        os.set_blocking(pipe, False)
        # Where the pipe cannot grow it holds fewer messages; that is a shorter queue, not a fault.
        with suppress(OSError):
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, 1 << 20)

    def send(self, parts: Sequence[Part], stamps: tuple[int, int]) -> str:
        """Hand over messages, all or none; returns why not, or an empty text."""
        places, head, tail = list[int](), self._head, self._ring.counters[TAIL]
        if tail == head:
            # All was read: begin again at the start of the memory, which is still in the processor's cache.
            head = self._base = -(-head // self._ring.size) * self._ring.size
        size = self._ring.size
        for _, _, payload in parts:
            place = head % size
            start = head if place + len(payload) <= size else head + size - place
            head = start + len(payload)
            places.append(start)
        if head - max(tail, self._base) > size:
            return "the queue was full"
        message = bytearray()
        for (kind, stream, payload), start in zip(parts, places, strict=True):
            length = len(payload)
            self._ring.view(start, length)[:] = payload
            message += MESSAGE.pack(kind, 0, stream, length, start, start + length, *stamps)
        try:
            # Messages of one call are shorter than PIPE_BUF, so the pipe takes them whole or not at all.
            os.write(self._pipe, message)
        except BlockingIOError:
            return "the queue was full"
        except BrokenPipeError:
            return "the writing process was gone"
        self._head = head
        return ""

    def close(self) -> None:
        """Say that nothing more will come."""
        os.close(self._pipe)
