"""Producer side of the ring buffer: the loop reserves space and returns; a thread copies the bytes and notifies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, cast
from weakref import finalize

import numpy as np

from instep.core.world import Array

from .ring_buffer import MESSAGE, TAIL, Part, Ring

MAX_PENDING = 1 << 13
"""Calls that may wait for the thread; at 60 Hz more than two minutes."""
CLOSE_TIMEOUT_S = 60.0
"""How long the end of a recording waits for a disk that has stalled [s]."""
_F_SETPIPE_SZ = 1031
Stamps = tuple[int, int]


class _Job(NamedTuple):
    """Messages with reserved space: bytes still to be copied there, and the notification for the reader."""

    late: list[tuple[int, memoryview]]
    message: bytes


class Producer:
    """The producer, which never waits.

    `send` copies what may change after it returns, and hands on what cannot (see `is_immutable`): a control loop that
    shows images nobody writes to pays for none of their bytes.
    """

    def __init__(self, ring: Ring, pipe: int):
        self._ring, self._head, self._base = ring, 0, 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # Where the pipe cannot grow it holds fewer messages; that is a shorter queue, not a fault.
        with suppress(OSError):
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, 1 << 20)
        self._thread = Thread(target=_fill, args=(ring, pipe, self._jobs), daemon=True, name="recorder")
        self._thread.start()
        # Whoever forgets to close loses nothing: at the end of the process what was taken is handed over.
        self._end = finalize(self, _finish, self._jobs, self._thread)

    def send(self, parts: Sequence[Part], stamps: Stamps) -> str:
        """Take messages, all or none; returns why not, or an empty text."""
        if not self._thread.is_alive():
            return "the writing process was gone"
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
        if head - max(tail, self._base) > size or self._jobs.qsize() >= MAX_PENDING:
            return "the queue was full"
        late, message = list[tuple[int, memoryview]](), bytearray()
        for (kind, stream, payload), start in zip(parts, places, strict=True):
            length = len(payload)
            if isinstance(payload, memoryview) and is_immutable(payload.obj):
                late.append((start, payload))
            else:
                self._ring.view(start, length)[:] = payload
            message += MESSAGE.pack(kind, 0, stream, length, start, start + length, *stamps)
        self._head = head
        self._jobs.put(_Job(late, bytes(message)))
        return ""

    def close(self) -> None:
        """Say that nothing more will come, once all that was taken is handed over."""
        self._end()


def is_immutable(owner: object) -> bool:
    """Whether the bytes of `owner` stay as they are: nobody may write to it, nor to what it is a view of."""
    while isinstance(owner, np.ndarray):
        array = cast(Array, owner)
        if array.flags.writeable:
            return False
        if array.base is None:
            return True
        owner = array.base
    return isinstance(owner, bytes)


def _fill(ring: Ring, pipe: int, jobs: SimpleQueue[_Job | None]) -> None:
    """Copy bytes to their reserved space and notify the reader, in order, until the end or a closed pipe."""
    try:
        while (job := jobs.get()) is not None:
            for start, payload in job.late:
                # NumPy lets go of Python's lock while it copies, so that the loop is not held up.
                np.copyto(np.frombuffer(ring.view(start, len(payload)), np.uint8), np.frombuffer(payload, np.uint8))
            # Messages of one call are shorter than PIPE_BUF: the pipe takes them whole.
            os.write(pipe, job.message)
    except BrokenPipeError:
        return
    finally:
        os.close(pipe)


def _finish(jobs: SimpleQueue[_Job | None], thread: Thread) -> None:
    jobs.put(None)
    thread.join(CLOSE_TIMEOUT_S)
