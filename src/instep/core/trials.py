"""Statistics of success and failure: rates, differences, paired tests, equivalence, sample sizes, sequential tests."""

from __future__ import annotations

from collections.abc import Callable
from math import atanh, ceil, nan, sqrt, tanh

import numpy as np

from .errors import BadInput
from .records import array_dataclass, frozen_dataclass
from .statistics import (
    Z95,
    Estimate,
    beta_quantile,
    binomial_mass,
    binomial_tail,
    normal_quantile,
    student_quantile,
    wilson,
)
from .world import Array


def clopper_pearson(successes: int, n: int) -> Estimate:
    """A success rate with the exact interval of Clopper and Pearson, whose coverage is at least 95 %."""
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


@frozen_dataclass
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


@frozen_dataclass
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
    # A discordance of nothing would need no pairs; one more pair than seen is assumed.
    discordance = max(only_first + only_second, 1) / n
    within = -margin < difference.low and difference.high < margin
    return Equivalence(difference, margin, within, pairs_for_equivalence(discordance, margin))


def pairs_for_equivalence(discordance: float, margin: float, *, power: float = 0.8) -> int:
    """Pairs with which equal paired rates are shown to be equal to within a margin.

    n = discordance (z_95 + z_(1 + power)/2)^2 / margin^2: with a true difference of 0 both one-sided tests must pass.
    """
    factor = normal_quantile(0.95) + normal_quantile((1 + power) / 2)
    return ceil(discordance * factor**2 / margin**2 - 1e-9)


def _root(rising_down: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero."""
    if rising_down(low + 1e-12) <= 0:
        return low
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising_down(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


@frozen_dataclass
class PredictionPowered:
    """A real mean, estimated with and without simulated trials."""

    estimate: Estimate
    """With the simulator, where it helps; the plain one where it does not."""
    plain: Estimate
    """From the real trials alone."""
    correlation: Estimate
    """Of paired real and virtual results."""
    used: bool
    """Whether the simulator was used: only where the interval of the correlation leaves out 0."""
    gain: float
    """How many real trials one real trial counts for, n_eff / n."""


def prediction_powered(real: Array, sim: Array, extra: Array) -> PredictionPowered:
    """The mean of real results from n pairs (real, sim) and N further virtual results.

    theta = w mean_N(f) + mean_n(Y - w f) with w = Cov(Y, f) / ((1 + n / N) Var f). A simulator that does not
    correlate with reality adds nothing, and is refused.
    """
    y, f, more = (np.asarray(a, float) for a in (real, sim, extra))
    if len(y) != len(f) or len(y) < 4 or len(more) < 1:
        raise BadInput(f"A prediction-powered mean needs four pairs and further virtual trials, not {len(y)} pairs.")
    n, m = len(y), len(more)
    plain = _mean(y)
    rho = _correlation(y, f)
    pool = np.concatenate([f, more])
    if not np.isfinite(rho.value) or rho.low <= 0 <= rho.high or float(pool.var()) == 0:
        return PredictionPowered(plain, plain, rho, False, 1.0)
    # Each fold's weight comes from the other fold, so that the weight does not fit the noise it is to average.
    folds = np.arange(n) % 2
    weights = [_weight(y[folds != k], f[folds != k], pool, n / m) for k in (0, 1)]
    w = np.where(folds == 0, weights[0], weights[1])
    mean_weight = float(w.mean())
    rectified = y - w * f
    value = mean_weight * float(more.mean()) + float(rectified.mean())
    variance = mean_weight**2 * float(more.var(ddof=1)) / m + float(rectified.var(ddof=1)) / n
    half = student_quantile(0.975, n - 2) * sqrt(variance)
    gain = float(y.var(ddof=1)) / n / variance if variance > 0 else 1.0
    return PredictionPowered(Estimate(value, value - half, value + half, n), plain, rho, True, gain)


@array_dataclass
class SequentialTest:
    """A sequential test of A against B, valid after every trial."""

    e: Array
    """The evidence after each pair: how many times more likely than chance; 20 suffices at 5 %."""
    better: str
    """'A', 'B', or '' while undecided."""
    stopped: int | None
    """After how many pairs it was decided."""

    @property
    def words(self) -> str:
        """The conclusion in one sentence."""
        if self.better:
            return f"{self.better} is better, decided after {self.stopped} pairs (evidence {self.e[-1]:.3g} to 1)."
        last = self.e[-1] if len(self.e) else 1.0
        return (
            f"Undecided after {len(self.e)} pairs (evidence {last:.2g} to 1, 20 needed); go on or stop, both are valid."
        )


def sequential_test(differences: Array, *, alpha: float = 0.05) -> SequentialTest:
    """Paired differences A - B in [-1, 1], one after the other, tested by betting that their mean is 0.

    The wealth prod (1 + lambda_s d_s), lambda fixed before each pair, is a martingale under no difference; the mean of
    a bettor on A and one on B exceeds 1 / alpha with a chance of at most alpha, whenever one stops.
    """
    d = np.asarray(differences, float)
    if (np.abs(d) > 1).any() or not np.isfinite(d).all():
        raise BadInput("Differences of paired results lie between -1 and 1.")
    wealth = {"A": np.ones(len(d)), "B": np.ones(len(d))}
    for side, sign in (("A", 1.0), ("B", -1.0)):
        money, total, squares = 1.0, 0.0, 0.25
        for i, x in enumerate(sign * d):
            # An approximation of the growth-optimal bet from what was seen so far, never more than half the money.
            bet = min(0.5, max(0.0, total / (squares + total**2 / (i + 1)))) if i else 0.25
            money *= 1 + bet * x
            total, squares = total + x, squares + x * x
            wealth[side][i] = money
    e = 0.5 * (wealth["A"] + wealth["B"])
    over = np.flatnonzero(e >= 1 / alpha)
    if not len(over):
        return SequentialTest(e, "", None)
    first = int(over[0])
    better = "A" if wealth["A"][first] > wealth["B"][first] else "B"
    return SequentialTest(e[: first + 1], better, first + 1)


def _weight(y: Array, f: Array, pool: Array, ratio: float) -> float:
    covariance = float(np.cov(y, f)[0, 1]) if len(y) > 1 else 0.0
    return covariance / ((1 + ratio) * float(pool.var(ddof=1)))


def _mean(values: Array) -> Estimate:
    n = len(values)
    half = student_quantile(0.975, n - 1) * float(values.std(ddof=1)) / sqrt(n)
    value = float(values.mean())
    return Estimate(value, value - half, value + half, n)


def _correlation(x: Array, y: Array) -> Estimate:
    if float(x.std()) == 0 or float(y.std()) == 0:
        return Estimate(nan, -1.0, 1.0, len(x))
    r = float(np.corrcoef(x, y)[0, 1])
    centre, half = atanh(max(-1 + 1e-12, min(1 - 1e-12, r))), Z95 / sqrt(max(len(x) - 3, 1))
    return Estimate(r, tanh(centre - half), tanh(centre + half), len(x))
