"""Real-time context: SCHED_FIFO where the machine allows it, frozen garbage collector, short GIL switch interval."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

PRIORITY = 20
"""SCHED_FIFO priority, of 1 to 99: above ordinary programs, below the kernel's own threads."""
SWITCH_INTERVAL_S = 5e-4
"""How long another thread may keep the GIL once the loop asks for it [s]."""
NO_FULL_COLLECTION = 1_000_000
"""Collections of young objects between two full ones."""


@contextmanager
def realtime_priority(*, inherit: bool = False) -> Generator[None]:
    """Run a paced loop with real-time priority, where the machine allows it; with the other settings in any case.

    With `inherit`, threads and processes that are started inside get the priority too: threads that may hold the GIL
    need it, since the loop waits for them; for processes see `lower_priority`. Without, whatever a policy starts keeps
    ordinary priority.
    """
    with quiet_interpreter():
        scheduled = _schedule_fifo(inherit)
        try:
            yield
        finally:
            if scheduled:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def quiet_interpreter() -> Generator[None]:
    """No full garbage collections, and a short GIL switch interval."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    # Objects of one frame are dropped with it; what is old by now need not be searched again.
    gc.set_threshold(thresholds[0], thresholds[1], NO_FULL_COLLECTION)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class PauseWatch:
    """How long the garbage collector has paused this process, used with `with`."""

    def __init__(self) -> None:
        self._began, self._paused = 0.0, 0.0

    def __enter__(self) -> PauseWatch:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def take(self) -> float:
        """The pauses since this was last asked [s]."""
        paused, self._paused = self._paused, 0.0
        return paused

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._paused += time.perf_counter() - self._began


def lower_priority(process: int) -> None:
    """Take real-time priority from a process that inherited it, such as one that writes files."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))


def _schedule_fifo(inherit: bool) -> bool:
    if sys.platform != "linux":
        return False
    try:
        policy = os.SCHED_FIFO if inherit else os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True
