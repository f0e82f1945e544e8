"""Two policies over the same starts: which is better, how sure that is, and how many episodes would settle it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, nan, sqrt

import numpy as np

from instep.core.records import frozen_dataclass
from instep.core.statistics import Estimate, normal_quantile
from instep.core.trials import equivalence, mcnemar, paired_difference, sequential_test

from .episode_batch import EpisodeResult

MARGIN = 0.1
"""Difference of success rates that counts as none in practice."""


@frozen_dataclass
class PolicyComparison:
    """The first policy against the second, start by start."""

    difference: Estimate
    """Success rate of the first less that of the second."""
    only_first: int
    """Starts from which only the first succeeded."""
    only_second: int
    p: float
    """McNemar's exact p, mid-p version: how surprising the discordant starts are if the policies were alike."""
    needed: float
    """Episodes in all that would show this difference with 80 % power at 5 %; infinite where there is none to show."""
    rules_out: float
    """Episodes in all that would rule out a difference of 10 points, were there none."""
    equivalent: bool = False
    """Whether two one-sided tests at 5 % show a difference of less than 10 points."""
    evidence: float = 1.0
    """E-value against equal policies, valid whenever one stops; 20 suffices at 5 %."""

    @property
    def still(self) -> float:
        """How many more episodes are needed; 0 where the difference is already shown."""
        return 0.0 if self.p < 0.05 else max(0.0, self.needed - self.difference.n)

    def __str__(self) -> str:
        d = self.difference
        words = f"{100 * d.value:+.1f} points [{100 * d.low:+.1f}, {100 * d.high:+.1f}], p = {self.p:.3g}, n = {d.n}"
        if self.p < 0.05:
            return words
        if self.equivalent:
            return f"{words}; equivalent to within {100 * MARGIN:.0f} points"
        if self.needed == inf:
            return f"{words}; no difference to be seen, {self.rules_out:.0f} episodes would rule out 10 points"
        return f"{words}; about {self.still:.0f} more episodes would settle it"


def compare_policies(first: Sequence[EpisodeResult], second: Sequence[EpisodeResult]) -> PolicyComparison:
    """Pair the episodes of two policies by seed; infrastructure failures are left out of both."""
    other = {row.seed: row for row in second if row.valid}
    pairs = [(row.success, other[row.seed].success) for row in first if row.valid and row.seed in other]
    n = len(pairs)
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    if n == 0:
        return PolicyComparison(Estimate(nan, -1.0, 1.0, 0), 0, 0, 1.0, inf, inf)
    same = equivalence(only_first, only_second, n, MARGIN)
    return PolicyComparison(
        paired_difference(only_first, only_second, n),
        only_first,
        only_second,
        mcnemar(only_first, only_second).mid,
        _needed(only_first, only_second, n),
        same.needed,
        same.equivalent,
        float(sequential_test(np.array([float(a) - float(b) for a, b in pairs])).e[-1]),
    )


def _needed(b: int, c: int, n: int) -> float:
    """Connor's number of pairs for McNemar's test at these rates of discordance."""
    if b == c or n == 0:
        return inf
    share, d = (b + c) / n, abs(b - c) / n
    z = normal_quantile(0.975) * sqrt(share) + normal_quantile(0.8) * sqrt(max(share - d * d, 0.0))
    return float(ceil(z * z / (d * d)))
