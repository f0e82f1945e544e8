"""Statistics with intervals: rates, means, ratios, correlations, paired tests, equivalence, sequential tests.

Rows of one run are not independent, so every interval resamples or deletes whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from math import atanh, ceil, comb, isfinite, nan, sqrt, tanh
from typing import Any

import numpy as np

from .errors import BadInput
from .world import Array, array_dataclass, frozen_dataclass

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal."""


@frozen_dataclass
class Estimate:
    """A value with its 95 % interval, the number of independent observations behind it, and its unit."""

    value: float
    low: float
    high: float
    n: int
    unit: str = ""

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]{unit}, n = {self.n}"

    @property
    def has_interval(self) -> bool:
        """Whether both ends of the interval are known."""
        return isfinite(self.low) and isfinite(self.high)

    def as_dict(self) -> dict[str, float | int | str | None]:
        """The form `result.json` holds; ends that are not known are None."""
        value, low, high = (x if isfinite(x) else None for x in (self.value, self.low, self.high))
        return {"value": value, "low": low, "high": high, "n": self.n, "unit": self.unit}


def wilson(successes: int, n: int) -> Estimate:
    """A success rate with Wilson's score interval."""
    if not 0 <= successes <= n:
        raise BadInput(f"Successes must lie between 0 and the number of trials, not {successes} of {n}.")
    if n == 0:
        return Estimate(nan, 0.0, 1.0, 0)
    rate, z2 = successes / n, Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * sqrt(rate * (1 - rate) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    # The ends are exact where all trials agree; rounding would leave 5e-17 instead of 0.
    low, high = (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)
    return Estimate(rate, low, high, n)


def bootstrap(
    samples: Sequence[float] | Array,
    statistic: Callable[[Array], Array] = lambda draws: draws.mean(axis=-1),
    *,
    unit: str = "",
    draws: int = 2000,
    seed: int = 0,
) -> Estimate:
    """A statistic of independent samples with its percentile bootstrap interval.

    The samples are whole runs, not rows: rows of one run are not independent. `statistic` works along the last axis.
    """
    values = np.asarray(samples, float)
    if values.size == 0:
        raise BadInput("A statistic needs at least one sample, and none was given.")
    point = float(statistic(values))
    if values.size == 1:
        return Estimate(point, nan, nan, 1, unit)
    rng = np.random.default_rng((seed, 0xB007))
    resampled = statistic(values[rng.integers(0, values.size, (draws, values.size))])
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(point, float(low), float(high), int(values.size), unit)


def pooled(sums: Array, counts: Array, *, power: float = 0.5, unit: str = "") -> list[Estimate]:
    """(sum of sums / sum of counts) ** power over runs, for each column of `sums` [runs, columns].

    With `sums` of squared errors and power 1/2 this is a root mean square. `counts` [runs] are the rows behind each
    sum. The interval deletes a run at a time and works on the logarithm, where errors are nearly symmetric, with
    Student's quantile. Against a block bootstrap over the same runs: percentiles cover 72 to 81 % instead of 95 %
    over five runs, a studentised bootstrap covers as well as this but grows to tenfold widths where one run dominates.
    """
    sums, counts = np.asarray(sums, float), np.asarray(counts, float)
    used = counts > 0
    sums, counts = sums[used], counts[used]
    if len(sums) == 0:
        return [Estimate(nan, nan, nan, 0, unit)] * np.shape(sums)[-1]
    ratio = sums.sum(axis=0) / counts.sum()
    if len(sums) == 1:
        return [Estimate(float(r**power), nan, nan, 1, unit) for r in ratio]
    without = (sums.sum(axis=0) - sums) / (counts.sum() - counts)[:, None]
    return log_jackknife(ratio, without, power=power, unit=unit)


def log_jackknife(
    whole: Array, without: Array, *, power: float = 0.5, unit: str = "", degrees: int | None = None
) -> list[Estimate]:
    """Positive statistics [columns] to a power, with intervals from what they are without each run [runs, columns].

    `degrees` of freedom are one less than the runs where not given.
    """
    n = len(without)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, middle = np.log(without), np.log(whole)
        spread = np.sqrt((n - 1) / n * ((logs - logs.mean(axis=0)) ** 2).sum(axis=0))
        bias = (n - 1) * (logs.mean(axis=0) - middle)
        half = student_quantile(0.975, degrees or n - 1) * spread
    edges = np.stack([whole, whole * np.exp(_finite(-bias - half)), whole * np.exp(_finite(-bias + half))]) ** power
    return [Estimate(float(r), float(low), float(high), n, unit) for r, low, high in edges.T]


def jackknife(blocks: Array, *, unit: str = "") -> Estimate:
    """The mean of independent values with Student's interval: the delete-one jackknife of a mean."""
    values = np.asarray(blocks, float)
    if values.size == 0:
        raise BadInput("A statistic needs at least one sample, and none was given.")
    mean = float(values.mean())
    if values.size == 1:
        return Estimate(mean, nan, nan, 1, unit)
    half = student_quantile(0.975, values.size - 1) * float(values.std(ddof=1)) / values.size**0.5
    return Estimate(mean, mean - half, mean + half, int(values.size), unit)


def _finite(edge: Array) -> Array:
    return np.where(np.isfinite(edge), edge, 0.0)


MIN_POLICIES = 6
"""Number of policies below which a correlation is not informative."""


def pearson(x: Array, y: Array) -> Estimate:
    """Pearson's correlation with Fisher's interval tanh(atanh r +- 1.96 / sqrt(K - 3)); none below four pairs."""
    x, y = _pair(x, y)
    n = len(x)
    sx, sy = float(np.std(x)), float(np.std(y))
    if n < 2 or sx == 0 or sy == 0:
        return Estimate(nan, -1.0, 1.0, n)
    r = max(-1.0, min(1.0, float(((x - x.mean()) * (y - y.mean())).mean()) / (sx * sy)))
    if n < 4:
        return Estimate(r, -1.0, 1.0, n)
    return _fisher(r, Z95 / sqrt(n - 3), n)


def spearman(x: Array, y: Array) -> Estimate:
    """Spearman's rank correlation, ties by their mean rank, with Fisher's interval widened by Bonett and Wright."""
    x, y = _pair(x, y)
    found = pearson(ranks(x), ranks(y))
    n = found.n
    if n < 4 or not np.isfinite(found.value):
        return found
    return _fisher(found.value, Z95 * sqrt((1 + found.value**2 / 2) / (n - 3)), n)


def _fisher(r: float, half: float, n: int) -> Estimate:
    centre = atanh(max(min(r, 1 - 1e-15), 1e-15 - 1))
    return Estimate(r, tanh(centre - half), tanh(centre + half), n)


def mmrv(sim: Array, real: Array) -> float:
    """The mean maximum rank violation of a virtual evaluation. Mind the order: simulation first, reality second.

    (1 / N) sum_i max_j |R_i - R_j| [(S_i > S_j) xor (R_i > R_j)]: a wrong order weighs as much as the *real* rates
    differ, so that swapping the arguments gives another number.
    """
    s, r = _pair(sim, real)
    return float(_violations(s, r))


def mmrv_null(rates: Array, real_trials: Array, *, sim_trials: int = 200, draws: int = 2000, seed: int = 0) -> Estimate:
    """The violation that a perfect simulator would still show, by the noise of trials alone: its mean and 95th share.

    `rates` are taken as true; `low` is 0 and `high` the value that 95 % of perfect simulators stay below.
    """
    rates, trials = np.asarray(rates, float), np.asarray(real_trials, int)
    rng = np.random.default_rng((seed, 0x3317))
    p = np.clip(rates, 0, 1)
    real = rng.binomial(trials, p, (draws, len(p))) / trials
    sim = rng.binomial(sim_trials, p, (draws, len(p))) / sim_trials
    values = _violations(sim, real)
    return Estimate(float(values.mean()), 0.0, float(np.quantile(values, 0.95)), len(p))


def mmrv_interval(sim: tuple[Array, Array], real: tuple[Array, Array], *, draws: int = 1000, seed: int = 0) -> Estimate:
    """The rank violation of these very policies, from (rates, trials) of both sides, with its interval.

    Trials are noisy, and noise makes ranks look wrong: the value is biased upward. Rates are sampled from their
    Jeffreys posteriors; the interval reaches from their low end, less twice the bias of the samples, to their high end.
    It covers 93 to 97 %, where the plain percentiles of a bootstrap cover 76 to 95 %.
    """
    rng = np.random.default_rng((seed, 0x81E2))
    sampled: list[Array] = []
    for rates, trials in (sim, real):
        p, n = np.asarray(rates, float), np.asarray(trials, float)
        sampled.append(rng.beta(p * n + 0.5, n - p * n + 0.5, (draws, len(p))))
    values = _violations(sampled[0], sampled[1])
    value = mmrv(sim[0], real[0])
    low, high = (float(x) for x in np.quantile(values, [0.025, 0.975]))
    bias = max(float(values.mean()) - value, 0.0)
    return Estimate(value, max(0.0, min(low - 2 * bias, value)), max(high, value), len(np.asarray(sim[0])))


def ranks(values: Array) -> Array:
    """Ranks from 1, ties sharing their mean."""
    values = np.asarray(values, float)
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return below + 0.5 * (equal + 1)


def _violations(sim: Array, real: Array) -> Array:
    """Mean maximum rank violations [...] of rates [..., policies]."""
    wrong = (sim[..., :, None] > sim[..., None, :]) != (real[..., :, None] > real[..., None, :])
    return (np.abs(real[..., :, None] - real[..., None, :]) * wrong).max(axis=-1).mean(axis=-1)


def _pair(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise BadInput(f"Two rankings need as many values each, not {x.shape} and {y.shape}.")
    return x, y


@lru_cache(maxsize=512)
def normal_quantile(share: float) -> float:
    """Quantile of the standard normal distribution."""
    return float(_special().ndtri(share))


@lru_cache(maxsize=512)
def student_quantile(share: float, degrees: int) -> float:
    """Quantile of Student's distribution."""
    return float(_special().stdtrit(degrees, share))


def binomial_tail(k: int, n: int, p: float = 0.5) -> float:
    """P(X <= k) of a binomial with n trials."""
    return 0.0 if k < 0 else float(_special().bdtr(min(k, n), n, p))


def _special() -> Any:
    """Distributions of SciPy, which has no types."""
    return import_module("scipy.special")


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
    return McNemar(min(1.0, tail), min(1.0, tail - comb(n, least) / 2**n))


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
    """Effective number of real trials per real trial, n_eff / n."""


def prediction_powered(real: Array, sim: Array, extra: Array) -> PredictionPowered:
    """The mean of real results from n pairs (real, sim) and N further virtual results.

    theta = w mean_N(f) + mean_n(Y - w f) with w = Cov(Y, f) / ((1 + n / N) Var f). A simulator that does not
    correlate with reality adds nothing, and is refused.
    """
    y, f, more = (np.asarray(a, float) for a in (real, sim, extra))
    if len(y) != len(f) or len(y) < 4 or len(more) < 1:
        raise BadInput(f"A prediction-powered mean needs four pairs and further virtual trials, not {len(y)} pairs.")
    n, m = len(y), len(more)
    plain = jackknife(y)
    rho = pearson(y, f)
    pool = np.concatenate([f, more])
    if not np.isfinite(rho.value) or rho.low <= 0 <= rho.high or float(pool.var()) == 0:
        return PredictionPowered(plain, plain, rho, False, 1.0)
    # Each fold's weight comes from the other fold, so that the weight does not fit the noise it is to average.
    folds = np.arange(n) % 2
    spread = (1 + n / m) * float(pool.var(ddof=1))
    weights = [float(np.cov(y[folds != k], f[folds != k])[0, 1]) / spread for k in (0, 1)]
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
