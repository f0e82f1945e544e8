"""How many threads step a batch, chosen by measuring.

All threads wait for each other after every native call. On cores that other programs use too, one of them is late most
of the time, and a single thread may be faster than two. Results do not depend on the number of threads.
"""

from __future__ import annotations

import threading

from instep.core.cores import usable_cores

STEPS_PER_THREAD = 32
"""Physics steps of one native call, over all its worlds, that pay for waking one more thread."""
_MEMORY = 0.7
"""Weight of what was known before in the mean time of a number of threads."""
_TRIAL_SHARE = 0.02
"""Largest share of the time that goes into trying again what was slower."""


class ThreadChoice:
    """Numbers of threads for one kind of call: the fastest so far, and now and then another one again."""

    def __init__(self, most: int):
        self._lock = threading.Lock()
        self._times: dict[int, float | None] = dict.fromkeys(_numbers(most))
        self._total = self._tried = 0.0
        self._turn = 0

    @property
    def best(self) -> int:
        """The number of threads with the least mean time; the largest where none was tried."""
        known = {count: taken for count, taken in self._times.items() if taken is not None}
        return min(known, key=known.__getitem__) if known else max(self._times)

    def next(self) -> int:
        """The number of threads for the next call."""
        with self._lock:
            if all(taken is None for taken in self._times.values()):
                return max(self._times)
            others = self._neighbours()
            untried = [count for count in others if self._times[count] is None]
            if untried:
                return untried[0]
            if not others or self._tried > _TRIAL_SHARE * self._total:
                return self.best
            self._turn += 1
            return others[self._turn % len(others)]

    def _neighbours(self) -> list[int]:
        """The next larger and the next smaller number: far from the best a trial may cost ten times its time."""
        counts = list(self._times)
        at = counts.index(self.best)
        return counts[max(0, at - 1) : at] + counts[at + 1 : at + 2]

    def note(self, threads: int, seconds: float, work: float = 1.0) -> None:
        """A call took so long; `work` is its size, where calls differ."""
        with self._lock:
            before, now = self._times.get(threads), seconds / work
            self._times[threads] = now if before is None else _MEMORY * before + (1 - _MEMORY) * now
            self._tried += seconds if threads != self.best else 0.0
            self._total += seconds


def most_threads(worlds: int, steps: int) -> int:
    """Most threads that can pay for a call of so many worlds, each by so many physics steps."""
    return max(1, min(usable_cores(), worlds, worlds * steps // STEPS_PER_THREAD))


def _numbers(most: int) -> list[int]:
    """Most, half of it, and so on down to one."""
    found = [most]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found
