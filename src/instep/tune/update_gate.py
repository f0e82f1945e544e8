"""Gate of parameter updates: new values are taken only where they predict samples better that they have not seen.

A proposal is frozen when it is made, and every window that comes after it is predicted with it and with the values in
use. It is applied once the mean difference of the errors is above zero by more than its interval. What was applied
stays on trial against what it replaced, and is rolled back where that turns out better.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Literal

import numpy as np

from instep.core.records import options_dataclass
from instep.core.statistics import Estimate
from instep.core.world import Array

Decision = Literal["applied", "not applied", "rolled back", "kept"]


@options_dataclass
class UpdateOptions:
    """When values are taken, and when they are given back."""

    min_windows: int = 5
    """Windows after which a proposal is judged for the first time."""
    max_windows: int = 20
    """Windows after which a proposal that is not better is dropped, and the last windows by which values are judged."""
    watch_windows: int = 50
    """Windows over which values that were applied stay on trial against those before."""
    deviations: float = 4.0
    """Half the width of the interval that a difference must exceed, in standard errors. A difference is judged after
    every window, so this is wider than for one look: 4 is about 1 % over all looks where windows are few."""


class Trial:
    """A comparison of values in use with others, window by window."""

    def __init__(self, other: Array, applied: bool, options: UpdateOptions):
        """`other` are the values that were proposed, or where `applied`, those before, in unit coordinates."""
        self.other, self.applied, self._options = other, applied, options
        # Values that were applied are judged by what came last, not by how good they were at first.
        self._used: deque[float] = deque(maxlen=options.max_windows)
        self._other: deque[float] = deque(maxlen=options.max_windows)
        self._seen = 0

    def add(self, used: float, other: float) -> Decision | None:
        """Take the errors of one window; a decision once there is one."""
        self._used.append(used)
        self._other.append(other)
        self._seen = n = self._seen + 1
        if n < self._options.min_windows:
            return None
        if self.difference.low > 0:
            return "rolled back" if self.applied else "applied"
        if self.applied:
            return "kept" if n >= self._options.watch_windows else None
        return "not applied" if n >= self._options.max_windows else None

    @property
    def difference(self) -> Estimate:
        """Mean error of the values in use less that of the others, in standard deviations of the usual error."""
        pairs = np.array(self._used) - np.array(self._other)
        n, mean = len(pairs), float(pairs.mean())
        half = self._options.deviations * float(pairs.std(ddof=1)) / sqrt(n) if n > 1 else float("inf")
        return Estimate(mean, mean - half, mean + half, n, "sigma")

    @property
    def reduction(self) -> float:
        """Share by which the error of the others is smaller."""
        return 1.0 - float(np.mean(self._other)) / max(float(np.mean(self._used)), 1e-300)
