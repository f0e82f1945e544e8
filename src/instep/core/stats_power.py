"""Few real trials and many virtual ones: prediction-powered estimates, and tests that may be looked at any time."""

from __future__ import annotations

from dataclasses import dataclass
from math import atanh, nan, sqrt, tanh

import numpy as np

from .errors import BadInput
from .stats import Z95, Estimate
from .stats_tails import student_quantile
from .world import Array


@dataclass(frozen=True, slots=True)
class Powered:
    """A real mean, estimated with and without the simulator."""

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


def prediction_powered(real: Array, sim: Array, extra: Array) -> Powered:
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
        return Powered(plain, plain, rho, False, 1.0)
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
    return Powered(Estimate(value, value - half, value + half, n), plain, rho, True, gain)


def effective_trials(rho: float, ratio: float) -> float:
    """n_eff / n = 1 / (1 - rho^2 N / (n + N)) where N = ratio n virtual trials come to n real ones."""
    return 1 / (1 - rho**2 * ratio / (1 + ratio))


@dataclass(frozen=True, slots=True, eq=False)
class Anytime:
    """A test of A against B that may be looked at after every trial."""

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


def anytime(differences: Array, *, alpha: float = 0.05) -> Anytime:
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
        return Anytime(e, "", None)
    first = int(over[0])
    better = "A" if wealth["A"][first] > wealth["B"][first] else "B"
    return Anytime(e[: first + 1], better, first + 1)


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
