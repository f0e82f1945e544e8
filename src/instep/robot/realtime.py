"""Nothing of a loop's own in its way: no long searches for garbage, quick turns of threads, before other programs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

PRIORITY = 20
"""Place in the line of real-time threads, of 1 to 99: before all that is not urgent, behind the machine's own."""
TURN = 5e-4
"""How long another thread may keep Python's lock once the loop asks for it [s]."""
NEVER = 1_000_000
"""Searches of young objects between two searches of all."""


@contextmanager
def first_in_line(*, heirs: bool = False) -> Generator[None]:
    """Run a paced loop before other programs, where the machine allows that; else as it is.

    With `heirs` the threads that are started inside are urgent too, as those should be that may hold Python's lock: a
    loop that waits for a thread which waits for its turn gains nothing by its own place. So are processes; see `calm`.
    Without, whatever a policy starts stands with everybody else.
    """
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    # Objects of one frame are dropped with it; what is old by now need not be searched again and again.
    gc.set_threshold(thresholds[0], thresholds[1], NEVER)
    sys.setswitchinterval(TURN)
    urgent = _urgent(heirs)
    try:
        yield
    finally:
        if urgent:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def calm(process: int) -> None:
    """Let a process that was started in the loop's place stand behind it: one that writes files, for example."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))


def _urgent(heirs: bool) -> bool:
    if sys.platform != "linux":
        return False
    try:
        policy = os.SCHED_FIFO if heirs else os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True
