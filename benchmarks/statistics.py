"""Coverage of every interval and type-I error of every test that is reported, on synthetic data with known truth.

Coverage of 95 % intervals over 500 repetitions has a standard error of one point; the goal is three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import erf
from pathlib import Path

import numpy as np

from harness import Row, percent, row
from instep.core.episode import Episode
from instep.core.statistics import (
    Estimate,
    equivalence,
    jackknife,
    mcnemar,
    mmrv,
    mmrv_interval,
    newcombe,
    paired_difference,
    pearson,
    pooled,
    prediction_powered,
    sequential_test,
    spearman,
    wilson,
)
from instep.core.world import Spec, vector
from instep.gap.gap_result import ErrorGrowth
from instep.gap.joint_error import JointErrorProfile, profile_scores
from instep.gap.measure import clock_offset, error_growth
from instep.gap.paired_runs import compare_runs, noise_floor

Trial = tuple[Estimate, float]
"""An interval and the truth it should cover."""
SPEC = Spec(0.02, vector(["a", "b"], "rad"), vector(["a", "b"], "rad/s"), vector(["u"], "V"))
TIMES = np.arange(1, 150) * 0.02
"""Times of errors that grow [s]."""
TYPE_ONE_TRIALS = 4000
"""Repetitions of a test: a true error of 5 % must not be taken for more by luck."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """One row per interval and test."""
    times, rows = 400 if quick else 500, list[Row]()
    for name, trial in INTERVALS.items():
        rng = np.random.default_rng((0, len(name)))
        hits = sum(e.low <= truth <= e.high for e, truth in (trial(rng) for _ in range(times)))
        cover = wilson(hits, times)
        rows.append(row(f"coverage: {name}", percent(cover), at_least=95.0, ok=abs(cover.value - 0.95) <= 0.03))
    for name, rejects in TESTS.items():
        rng = np.random.default_rng((1, len(name)))
        rate = wilson(sum(rejects(rng) for _ in range(TYPE_ONE_TRIALS)), TYPE_ONE_TRIALS)
        rows.append(row(f"type-I error: {name}", percent(rate), at_most=5.0, ok=rate.value <= 0.05))
    return rows


def rmse(rng: np.random.Generator, runs: int) -> Trial:
    """A root mean square over runs of different length whose errors are coloured and of different size."""
    counts, sums = rng.integers(100, 400, runs), list[list[float]]()
    for s, n in zip(rng.lognormal(0, 0.3, runs), counts, strict=True):
        errors = s * np.convolve(rng.normal(size=n + 20), np.ones(20) / 20**0.5, mode="valid")[:n]
        sums.append([float((errors**2).sum())])
    return pooled(np.array(sums), counts)[0], float(np.exp(0.3**2))


def between(rng: np.random.Generator) -> Trial:
    """The difference of eight paired runs."""
    real = [_run(rng.normal(0, 1, (120, 2)).cumsum(axis=0)) for _ in range(8)]
    sim = [_run(r.q + rng.normal(0, 0.05, (1, 2)) + rng.normal(0, 0.03, (120, 2))) for r in real]
    return compare_runs(real, sim).curves["all rad"].at(float("inf")), float(np.sqrt(0.05**2 + 0.03**2))


def scatter(rng: np.random.Generator) -> Trial:
    """The floor of eight repeats whose offsets differ: about their mean, seven eighths of the variance."""
    runs = [_run(rng.normal(0, 0.02, (1, 2)) + rng.normal(0, 0.01, (150, 2))) for _ in range(8)]
    return noise_floor([runs])["all rad"].at(float("inf")), float(np.sqrt((0.02**2 + 0.01**2) * 7 / 8))


def _run(q: np.ndarray) -> Episode:
    return Episode(SPEC, {"timestamp": np.arange(len(q)) * 0.02, "q": q, "action": np.ones((len(q), 1))})


def quantile(rng: np.random.Generator) -> Trial:
    """The 90 % quantile of the joint error over twelve runs."""
    profiles: list[JointErrorProfile] = []
    for _ in range(12):
        errors = np.abs(rng.normal(0, rng.lognormal(0, 0.3), 200))
        profiles.append(JointErrorProfile("", np.arange(200), {"arm": errors}, errors, {}, {}, {}))
    return profile_scores(profiles)["RMSE_norm, 90% of rows below"], _true_quantile()


@cache
def _true_quantile() -> float:
    rng = np.random.default_rng(0)
    return float(np.quantile(np.abs(rng.normal(0, 1, 400_000) * rng.lognormal(0, 0.3, 400_000)), 0.9))


def grown(rng: np.random.Generator, rates: np.ndarray) -> ErrorGrowth:
    """Errors of runs that grow at these rates [1/s]."""
    errors = [1e-3 * np.exp(r * TIMES + rng.normal(0, 0.1, len(TIMES))) for r in rates]
    return error_growth([TIMES] * len(rates), errors)


def growing(rng: np.random.Generator) -> Trial:
    """The rate at which errors of six runs grow; another shape counts as covered."""
    found = grown(rng, rng.normal(1.5, 0.2, 6))
    return (found.rate if found.shape == "exponential" else Estimate(1.5, 1.5, 1.5, 6)), 1.5


def clock(rng: np.random.Generator) -> Trial:
    """The offset of a clock that saw the same motion."""
    t, shift, kernel = np.arange(0, 40, 0.02), rng.uniform(-0.5, 0.5), np.hanning(60)
    motion = np.abs(np.convolve(rng.normal(size=len(t) + 59), kernel / kernel.sum(), mode="valid"))
    other = np.arange(0.7, 39, 1 / 30)
    seen = np.interp(other, t, motion) + rng.normal(0, 0.04, len(other))
    return clock_offset((t, motion), (other - shift, seen), longest=0.8, windows=10).seconds, shift


def success(rng: np.random.Generator) -> Trial:
    """A success rate of 40 trials, whatever the rate."""
    p = rng.uniform(0.05, 0.95)
    return wilson(int(rng.binomial(40, p)), 40), p


def difference(rng: np.random.Generator) -> Trial:
    """The difference of two independent success rates."""
    p, q = rng.uniform(0.1, 0.9, 2)
    return newcombe((int(rng.binomial(50, p)), 50), (int(rng.binomial(80, q)), 80)), p - q


def paired(rng: np.random.Generator) -> Trial:
    """The difference of two paired success rates."""
    a, b = rng.uniform(0.03, 0.25, 2)
    both = rng.multinomial(60, [a, b, 1 - a - b])
    return paired_difference(int(both[0]), int(both[1]), 60), a - b


def correlated(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Rates of twelve policies in two worlds, and their correlation."""
    rho, (x, e) = rng.uniform(-0.5, 0.95), rng.normal(size=(2, 12))
    return x, rho * x + np.sqrt(1 - rho**2) * e, rho


def linear(rng: np.random.Generator) -> Trial:
    """Pearson's coefficient over twelve policies."""
    x, y, rho = correlated(rng)
    return pearson(x, y), rho


def ranked(rng: np.random.Generator) -> Trial:
    """Spearman's coefficient over twelve policies; the truth is that of a normal pair in large samples."""
    x, y, rho = correlated(rng)
    return spearman(x, y), 6 / np.pi * np.arcsin(rho / 2)


def violation(rng: np.random.Generator) -> Trial:
    """The rank violation of eight policies over forty trials each."""
    real = rng.uniform(0.05, 0.95, 8)
    sim = np.clip(real + rng.normal(0, rng.choice([0.03, 0.12, 0.25]), 8), 0.02, 0.98)
    n, m = np.full(8, 40), np.full(8, 200)
    seen = (rng.binomial(m, sim) / m, m), (rng.binomial(n, real) / n, n)
    found = mmrv_interval(*seen, draws=400, seed=int(rng.integers(1 << 30)))
    return Estimate(found.value, found.low - 1e-12, found.high, found.n), mmrv(sim, real)


def powered(rng: np.random.Generator) -> Trial:
    """A real success rate from 40 real and 400 virtual trials that correlate."""
    hard = rng.normal(size=440)
    y, f = ((hard + rng.normal(0, 0.6, 440) < level).astype(float) for level in (0.3, 0.5))
    return prediction_powered(y[:40], f[:40], f[40:]).estimate, 0.5 * (1 + erf(0.3 / np.sqrt(2 * (1 + 0.6**2))))


def no_difference(rng: np.random.Generator) -> bool:
    """McNemar's exact test where both rates are equal."""
    b, c, _ = rng.multinomial(60, [0.15, 0.15, 0.7])
    return mcnemar(int(b), int(c)).exact <= 0.05


def no_equivalence(rng: np.random.Generator) -> bool:
    """Equivalence where the difference is the margin itself."""
    b, c, _ = rng.multinomial(120, [0.15, 0.05, 0.8])
    return equivalence(int(b), int(c), 120, 0.1).equivalent


def no_better(rng: np.random.Generator) -> bool:
    """A test that is evaluated after each of 200 pairs, where neither is better."""
    return bool(sequential_test(rng.choice([-1.0, 0.0, 1.0], 200, p=[0.2, 0.6, 0.2])).better)


INTERVALS: dict[str, Callable[[np.random.Generator], Trial]] = {
    **{f"root mean square over {runs} runs": partial(rmse, runs=runs) for runs in (4, 8, 30)},
    "mean over runs": lambda rng: (jackknife(rng.normal(2.0, 0.7, 6)), 2.0),
    "difference of paired runs": between, "floor of repeats": scatter, "quantile of the joint error": quantile,
    "growth rate": growing,
    "clock offset": clock, "success rate (Wilson)": success, "difference of rates (Newcombe)": difference,
    "difference of paired rates (Tango)": paired, "correlation (Fisher)": linear,
    "rank correlation (Bonett-Wright)": ranked, "rank violation (MMRV)": violation, "prediction-powered rate": powered,
}  # fmt: skip
TESTS: dict[str, Callable[[np.random.Generator], bool]] = {
    "McNemar, exact": no_difference, "paired equivalence": no_equivalence,
    "A against B, checked at any time": no_better,
}  # fmt: skip
