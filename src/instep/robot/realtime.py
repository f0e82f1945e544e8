"""Real time: priority, garbage collection and thread switching; the robot's clock, and estimates of its offset."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import field
from itertools import pairwise

import numpy as np

from instep.core.world import frozen_dataclass

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


JUMP_S = 0.005
"""A sample that differs by more from the estimate, beyond what its round trip explains, means a clock step [s]."""
BLOCKS = 8
"""The window is cut into this many parts, of which each gives its quickest sample."""


@frozen_dataclass
class Clock:
    """A robot's clock; an offset and a drift make it disagree with the computer's, as another computer's would."""

    offset: float = 0.0
    """How far it is ahead at its start [s]."""
    drift_ppm: float = 0.0
    """How much faster it runs [parts per million]."""
    source: Callable[[], int] = time.monotonic_ns
    """The time it is made from [ns]."""
    wall_clock: Callable[[], int] = time.time_ns
    """Wall time [ns]; recorded beside the other, never used for control."""
    _start: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_start", self.source())

    def mono(self) -> int:
        """Time that never jumps [ns]."""
        now = self.source()
        return now + round(self.offset * 1e9 + (now - self._start) * self.drift_ppm * 1e-6)

    def wall(self) -> int:
        """Time of day [ns since 1970]; it may jump."""
        return self.wall_clock()


@frozen_dataclass
class ClockSample:
    """One exchange of time stamps; the shorter its round trip, the more accurate."""

    at: float
    """Middle of the exchange on the own clock [s]."""
    offset: float
    """Other clock minus own clock [s]."""
    round_trip: float
    """How long the exchange took [s]; the offset is wrong by at most half of it."""


class ClockEstimate:
    """Estimate of the offset and drift of another clock.

    Queues make round trips longer, never shorter, so the quickest exchange of each stretch of time is the truest;
    a line through those, weighted by 1 / round trip^2, gives offset and drift.
    """

    def __init__(self, window: int = 256):
        self._samples: deque[ClockSample] = deque(maxlen=window)
        self._outliers = 0
        self._line = (0.0, 0.0, 0.0)  # offset [s] at the time [s], drift
        self.spread = float("inf")
        """How wrong the offset may be [s]: half the quickest round trip, or the scatter about the line."""
        self.jumps = 0
        """How often the other clock was set while it was observed."""

    @property
    def drift_ppm(self) -> float:
        """How much faster the other clock runs [parts per million]."""
        return self._line[2] * 1e6

    def offset(self, at: float) -> float:
        """Other clock minus own clock at a time on the own clock [s]."""
        offset, origin, drift = self._line
        return offset + drift * (at - origin)

    def own(self, other: float) -> float:
        """A time on the other clock as the own clock counts it [s]."""
        offset, origin, drift = self._line
        return (other - offset + drift * origin) / (1.0 + drift)

    def add(self, sent: float, other: float, received: float) -> None:
        """Learn from one exchange: sent and received on the own clock, answered at `other` on the other [s]."""
        if received < sent:
            return
        middle, trip = 0.5 * (sent + received), received - sent
        sample = ClockSample(middle, other - middle, trip)
        beside = abs(sample.offset - self.offset(middle)) > JUMP_S + 0.5 * trip + min(self.spread, 1.0)
        self._outliers = self._outliers + 1 if self._samples and beside else 0
        if self._outliers >= 3:
            # Three in a row are no accident: the other clock was set, and what was known is void.
            self._samples.clear()
            self._outliers, self.jumps = 0, self.jumps + 1
        self._samples.append(sample)
        if self._outliers == 0:
            self._fit()

    def _fit(self) -> None:
        samples = list(self._samples)
        quickest = min(samples, key=lambda s: s.round_trip)
        self.spread = 0.5 * quickest.round_trip
        self._line = (quickest.offset, quickest.at, 0.0)
        if samples[-1].at - samples[0].at < 1.0:
            return  # a drift of 100 ppm moves less than a round trip in that time
        edges = np.linspace(0, len(samples), BLOCKS + 1).astype(int)
        parts = [samples[a:b] for a, b in pairwise(edges) if b > a]
        best = [min(part, key=lambda s: s.round_trip) for part in parts]
        at = np.array([s.at for s in best])
        offsets = np.array([s.offset for s in best])
        weight = 1.0 / (np.array([s.round_trip for s in best]) + 1e-5) ** 2
        origin = float(np.average(at, weights=weight))
        centre = float(np.average(offsets, weights=weight))
        across = float(np.sum(weight * (at - origin) ** 2))
        drift = float(np.sum(weight * (at - origin) * (offsets - centre)) / across) if across > 0 else 0.0
        scatter = np.average((offsets - centre - drift * (at - origin)) ** 2, weights=weight)
        self._line = (centre, origin, drift)
        self.spread = max(self.spread, float(np.sqrt(scatter)))
