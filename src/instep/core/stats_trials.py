"""Trials that succeed or fail: one rate, two rates, paired rates, equivalence, and how many trials each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

from .errors import BadInput
from .stats import Estimate, wilson
from .stats_tails import beta_quantile, binomial_mass, binomial_tail, normal_quantile


def clopper_pearson(successes: int, n: int) -> Estimate:
    """A success rate with the exact interval of Clopper and Pearson, which never covers less than it says."""
    point = wilson(successes, n)
    low = 0.0 if successes == 0 else beta_quantile(0.025, successes, n - successes + 1)
    high = 1.0 if successes == n else beta_quantile(0.975, successes + 1, n - successes)
    return Estimate(point.value, low, high, n)


def newcombe(first: tuple[int, int], second: tuple[int, int]) -> Estimate:
    """The difference of two independent rates (successes, trials), first minus second, with Newcombe's interval."""
    a, b = wilson(*first), wilson(*second)
    difference = a.value - b.value
    low = difference - sqrt((a.value - a.low) ** 2 + (b.high - b.value) ** 2)
    high = difference + sqrt((a.high - a.value) ** 2 + (b.value - b.low) ** 2)
    return Estimate(difference, low, high, min(first[1], second[1]))


@dataclass(frozen=True, slots=True)
class McNemar:
    """Whether two paired rates differ. A large p is not equality: for that there is `equivalence`."""

    exact: float
    """Exact two-sided p."""
    mid: float
    """Mid-p, which is less cautious."""


def mcnemar(only_first: int, only_second: int) -> McNemar:
    """McNemar's test from the discordant pairs: those that only the first won, those that only the second won."""
    n, least = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return McNemar(1.0, 1.0)
    tail = 2 * binomial_tail(least, n)
    return McNemar(min(1.0, tail), min(1.0, tail - binomial_mass(least, n)))


def paired_difference(only_first: int, only_second: int, n: int, *, confidence: float = 0.95) -> Estimate:
    """The difference of two paired rates, first minus second, with Tango's score interval."""
    if n < 1 or only_first < 0 or only_second < 0 or only_first + only_second > n:
        raise BadInput(f"{only_first} and {only_second} discordant pairs do not fit into {n} pairs.")
    z = normal_quantile(0.5 + confidence / 2)
    value = (only_first - only_second) / n

    def score(delta: float) -> float:
        """How many standard errors the data lie above a difference of delta."""
        a, b = 2 * n, -only_first - only_second + (2 * n - only_first + only_second) * delta
        c = -only_second * delta * (1 - delta)
        nuisance = (sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        spread = n * (2 * nuisance + delta * (1 - delta))
        return (only_first - only_second - n * delta) / sqrt(spread) if spread > 0 else 0.0

    low = _root(lambda d: score(d) - z, -1.0, value)
    high = _root(lambda d: score(d) + z, value, 1.0)
    return Estimate(value, low, high, n)


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Whether two paired rates are the same to within a margin."""

    difference: Estimate
    """With its 90 % interval: it must lie inside the margin for two one-sided tests at 5 %."""
    margin: float
    equivalent: bool
    needed: int
    """Pairs needed for a power of 80 % at the discordance seen, were the rates truly equal."""

    @property
    def words(self) -> str:
        """The conclusion in one sentence."""
        d = self.difference
        interval = f"{d.value:+.1%} [{d.low:+.1%}, {d.high:+.1%}]"
        if self.equivalent:
            return f"Equivalent to within {self.margin:.0%}: the difference is {interval} over {d.n} pairs."
        short = f" About {self.needed} pairs would be needed." if d.n < self.needed else ""
        return f"Not shown to be equivalent to within {self.margin:.0%}: the difference is {interval}.{short}"


def equivalence(only_first: int, only_second: int, n: int, margin: float) -> Equivalence:
    """Two one-sided tests at 5 % that two paired rates differ by less than a margin."""
    if not 0 < margin < 1:
        raise BadInput(f"A margin of equivalence lies between 0 and 1, not {margin:g}.")
    difference = paired_difference(only_first, only_second, n, confidence=0.90)
    # A discordance of nothing would need no pairs; one more pair than seen is the honest guess.
    discordance = max(only_first + only_second, 1) / n
    within = -margin < difference.low and difference.high < margin
    return Equivalence(difference, margin, within, pairs_for_equivalence(discordance, margin))


def pairs_for_equivalence(discordance: float, margin: float, *, power: float = 0.8) -> int:
    """Pairs with which equal paired rates are shown to be equal to within a margin.

    n = discordance (z_95 + z_(1 + power)/2)^2 / margin^2: with a true difference of 0 both one-sided tests must pass.
    """
    factor = normal_quantile(0.95) + normal_quantile((1 + power) / 2)
    return ceil(discordance * factor**2 / margin**2 - 1e-9)


def trials_for_difference(first: float, second: float, *, power: float = 0.8) -> int:
    """Trials per side with which two independent rates are told apart, two-sided at 5 %."""
    if first == second:
        raise BadInput("Equal rates cannot be told apart with any number of trials.")
    middle = (first + second) / 2
    spread = normal_quantile(0.975) * sqrt(2 * middle * (1 - middle))
    spread += normal_quantile(power) * sqrt(first * (1 - first) + second * (1 - second))
    return ceil((spread / (first - second)) ** 2 - 1e-9)


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """p values of several tasks, corrected by Holm so that all of them together err in 5 % of cases."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - rank) * p_values[name]))
        corrected[name] = highest
    return {name: corrected[name] for name in p_values}


def _root(rising_down: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero."""
    if rising_down(low + 1e-12) <= 0:
        return low
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising_down(middle) > 0 else (low, middle)
    return 0.5 * (low + high)
