"""Two policies over the same starts: which is better, how sure that is, and how many episodes would settle it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt

from instep.core.stats import Z95, Estimate
from instep.core.stats_tails import binomial_mass, binomial_tail, normal_quantile

from .eval_play import Ended


@dataclass(frozen=True, slots=True)
class Comparison:
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

    @property
    def still(self) -> float:
        """How many more episodes are needed; 0 where the difference is already shown."""
        return 0.0 if self.p < 0.05 else max(0.0, self.needed - self.difference.n)

    def __str__(self) -> str:
        d = self.difference
        words = f"{100 * d.value:+.1f} points [{100 * d.low:+.1f}, {100 * d.high:+.1f}], p = {self.p:.3g}, n = {d.n}"
        if self.p < 0.05:
            return words
        if self.needed == inf:
            return f"{words}; no difference to be seen, {self.rules_out:.0f} episodes would rule out 10 points"
        return f"{words}; about {self.still:.0f} more episodes would settle it"


def compare(first: Sequence[Ended], second: Sequence[Ended]) -> Comparison:
    """Pair the episodes of two policies by seed; those that the machinery broke are left out of both."""
    other = {row.seed: row for row in second if row.counts}
    pairs = [(row.success, other[row.seed].success) for row in first if row.counts and row.seed in other]
    n = len(pairs)
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    discordant = only_first + only_second
    return Comparison(
        _difference(only_first, only_second, n),
        only_first,
        only_second,
        mid_p(only_first, only_second),
        _needed(only_first, only_second, n),
        ceil(max(discordant, 1) / n * (normal_quantile(0.95) + normal_quantile(0.9)) ** 2 / 0.1**2) if n else inf,
    )


def mid_p(b: int, c: int) -> float:
    """McNemar's two-sided mid-p of b against c discordant pairs."""
    few = min(b, c)
    if b == c:
        return 1.0
    return min(1.0, 2 * binomial_tail(few, b + c) - binomial_mass(few, b + c))


def _difference(b: int, c: int, n: int) -> Estimate:
    """The paired difference with Bonett and Price's interval (one pseudo-pair on each side)."""
    if n == 0:
        return Estimate(0.0, -1.0, 1.0, 0)
    first, second = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = Z95 * sqrt((first + second - (first - second) ** 2) / (n + 2))
    centre = first - second
    return Estimate((b - c) / n, max(-1.0, centre - half), min(1.0, centre + half), n)


def _needed(b: int, c: int, n: int) -> float:
    """Connor's number of pairs for McNemar's test at these rates of discordance."""
    if b == c or n == 0:
        return inf
    share, d = (b + c) / n, abs(b - c) / n
    z = normal_quantile(0.975) * sqrt(share) + normal_quantile(0.8) * sqrt(max(share - d * d, 0.0))
    return float(ceil(z * z / (d * d)))
