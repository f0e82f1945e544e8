"""Threads for kernels that let go of Python's lock.

A pool of our own rather than numba's: it is safe to call from several threads and after a fork, and the kernels
compile several times faster without numba's parallel transformation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_pool: ThreadPoolExecutor | None = None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_threads(task: Callable[[int], object], threads: int) -> None:
    """Call task(0), task(1), ... at once, the first on this thread, and wait for all."""
    if threads == 1:
        task(0)
        return
    others = [_workers().submit(task, part) for part in range(1, threads)]
    try:
        task(0)
    finally:
        for other in others:
            other.result()


def share(n: int, part: int, parts: int) -> tuple[int, int]:
    """The rows of n that fall to one of several parts."""
    return n * part // parts, n * (part + 1) // parts


def _workers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, cores() * 2), thread_name_prefix="splat")
    return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
