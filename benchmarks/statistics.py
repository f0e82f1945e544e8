"""Coverage of every interval and type-I error of every test that is reported, on synthetic data with known truth.

Coverage of 95 % intervals over 500 repetitions has a standard error of one point; the goal is three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness import percent, row
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
from instep.gap.joint_error import JointErrorProfile, profile_scores
from instep.gap.measure import clock_offset, error_growth, growth_difference
from instep.gap.paired_runs import compare_runs, noise_floor

Trial = tuple[Estimate, float]
"""An interval and the truth it should cover."""


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """One row per interval and test."""
    times = 400 if quick else 500
    rows: list[dict[str, Any]] = []
    for name, made in INTERVALS.items():
        rng = np.random.default_rng((0, len(name)))
        hits = sum(e.low <= truth <= e.high for e, truth in made(rng, times))
        cover = wilson(hits, times)
        near = abs(cover.value - 0.95) <= 0.03
        rows.append(row(f"coverage: {name}", percent(cover), at_least=95.0, ok=near))
    for name, made in TESTS.items():
        rng = np.random.default_rng((1, len(name)))
        # More repetitions: a true error of 5 % must not be taken for more by the luck of 500.
        trials = 4000
        wrong = sum(made(rng) for _ in range(trials))
        rate = wilson(wrong, trials)
        rows.append(row(f"type-I error: {name}", percent(rate), at_most=5.0, ok=rate.value <= 0.05))
    return rows


def rmse(runs: int) -> Callable[[np.random.Generator, int], Iterator[Trial]]:
    """A root mean square over runs of different length whose errors are coloured and of different size."""

    def made(rng: np.random.Generator, times: int) -> Iterator[Trial]:
        for _ in range(times):
            size = rng.lognormal(0, 0.3, runs)
            counts = rng.integers(100, 400, runs)
            sums = []
            for s, n in zip(size, counts, strict=True):
                white = rng.normal(size=n + 20)
                errors = s * np.convolve(white, np.ones(20) / 20**0.5, mode="valid")[:n]
                sums.append([float((errors**2).sum())])
            yield pooled(np.array(sums), counts)[0], float(np.exp(0.3**2))

    return made


def mean_of_runs(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """A mean over six runs: growth rates, event delays, lags."""
    for _ in range(times):
        yield jackknife(rng.normal(2.0, 0.7, 6)), 2.0


def success(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """A success rate of 40 trials, whatever the rate."""
    for p in rng.uniform(0.05, 0.95, times):
        yield wilson(int(rng.binomial(40, p)), 40), p


def difference(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The difference of two independent success rates."""
    for p, q in rng.uniform(0.1, 0.9, (times, 2)):
        yield newcombe((int(rng.binomial(50, p)), 50), (int(rng.binomial(80, q)), 80)), p - q


def paired(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The difference of two paired success rates."""
    for a, b in rng.uniform(0.03, 0.25, (times, 2)):
        both = rng.multinomial(60, [a, b, 1 - a - b])
        yield paired_difference(int(both[0]), int(both[1]), 60), a - b


def correlation(
    statistic: Callable[..., Estimate], rank: bool
) -> Callable[[np.random.Generator, int], Iterator[Trial]]:
    """A correlation over twelve policies."""

    def made(rng: np.random.Generator, times: int) -> Iterator[Trial]:
        for rho in rng.uniform(-0.5, 0.95, times):
            x, e = rng.normal(size=(2, 12))
            y = rho * x + np.sqrt(1 - rho**2) * e
            # Spearman's coefficient of a normal pair, in large samples.
            yield statistic(x, y), 6 / np.pi * np.arcsin(rho / 2) if rank else rho

    return made


def violation(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The rank violation of eight policies over forty trials each."""
    for _ in range(times):
        real = rng.uniform(0.05, 0.95, 8)
        sim = np.clip(real + rng.normal(0, rng.choice([0.03, 0.12, 0.25]), 8), 0.02, 0.98)
        n, m = np.full(8, 40), np.full(8, 200)
        seen = (rng.binomial(m, sim) / m, m), (rng.binomial(n, real) / n, n)
        found = mmrv_interval(*seen, draws=400, seed=int(rng.integers(1 << 30)))
        yield Estimate(found.value, found.low - 1e-12, found.high, found.n), mmrv(sim, real)


def powered(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """A real success rate from 40 real and 400 virtual trials that correlate."""
    for _ in range(times):
        hard = rng.normal(size=440)
        y = (hard + rng.normal(0, 0.6, 440) < 0.3).astype(float)
        f = (hard + rng.normal(0, 0.6, 440) < 0.5).astype(float)
        truth = 0.5 * (1 + _erf(0.3 / np.sqrt(1 + 0.6**2) / np.sqrt(2)))
        yield prediction_powered(y[:40], f[:40], f[40:]).estimate, truth


def growing(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The rate at which errors of six runs grow."""
    t = np.arange(1, 150) * 0.02
    for _ in range(times):
        rates = rng.normal(1.5, 0.2, 6)
        errors = [1e-3 * np.exp(r * t + rng.normal(0, 0.1, len(t))) for r in rates]
        found = error_growth([t] * 6, errors)
        if found.shape == "exponential":
            yield found.rate, 1.5
        else:
            yield Estimate(1.5, 1.5, 1.5, 6), 1.5


def faster(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """How much faster errors grow in a closed loop."""
    t = np.arange(1, 150) * 0.02
    for _ in range(times):
        sides = [
            [1e-3 * np.exp(rng.normal(r, 0.2) * t + rng.normal(0, 0.1, len(t))) for _ in range(6)] for r in (1.9, 1.2)
        ]
        yield growth_difference(*(error_growth([t] * 6, side) for side in sides)), 0.7


def clock(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The offset of a clock that saw the same motion."""
    t = np.arange(0, 40, 0.02)
    for shift in rng.uniform(-0.5, 0.5, times):
        kernel = np.hanning(60)
        motion = np.abs(np.convolve(rng.normal(size=len(t) + 59), kernel / kernel.sum(), mode="valid"))
        other = np.arange(0.7, 39, 1 / 30)
        seen = np.interp(other, t, motion) + rng.normal(0, 0.04, len(other))
        yield clock_offset((t, motion), (other - shift, seen), longest=0.8, windows=10).seconds, shift


SPEC = Spec(0.02, vector(["a", "b"], "rad"), vector(["a", "b"], "rad/s"), vector(["u"], "V"))


def _run(q: np.ndarray) -> Episode:
    columns = {"timestamp": np.arange(len(q)) * 0.02, "q": q, "action": np.ones((len(q), 1))}
    return Episode(SPEC, columns)


def scatter(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The floor of eight repeats whose offsets differ."""
    for _ in range(times):
        runs = [_run(rng.normal(0, 0.02, (1, 2)) + rng.normal(0, 0.01, (150, 2))) for _ in range(8)]
        # The scatter about the mean of the repeats: seven eighths of the variance.
        yield noise_floor([runs])["all rad"].at(float("inf")), float(np.sqrt((0.02**2 + 0.01**2) * 7 / 8))


def between(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The difference of eight paired runs."""
    for _ in range(times):
        real = [_run(rng.normal(0, 1, (120, 2)).cumsum(axis=0)) for _ in range(8)]
        sim = [_run(r.q + rng.normal(0, 0.05, (1, 2)) + rng.normal(0, 0.03, (120, 2))) for r in real]
        yield compare_runs(real, sim).curves["all rad"].at(float("inf")), float(np.sqrt(0.05**2 + 0.03**2))


def quantile(rng: np.random.Generator, times: int) -> Iterator[Trial]:
    """The 90 % quantile of the joint error over twelve runs."""
    truth = float(np.quantile(np.abs(rng.normal(0, 1, 400_000) * rng.lognormal(0, 0.3, 400_000)), 0.9))
    for _ in range(times):
        profiles = []
        for _ in range(12):
            errors = np.abs(rng.normal(0, rng.lognormal(0, 0.3), 200))
            profiles.append(JointErrorProfile("", np.arange(200), {"arm": errors}, errors, {}, {}, {}))
        yield profile_scores(profiles)["RMSE_norm, 90% of rows below"], truth


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


def _erf(x: float) -> float:
    from math import erf

    return erf(x)


INTERVALS: dict[str, Callable[[np.random.Generator, int], Iterator[Trial]]] = {
    "root mean square over 4 runs": rmse(4),
    "root mean square over 8 runs": rmse(8),
    "root mean square over 30 runs": rmse(30),
    "mean over runs": mean_of_runs,
    "difference of paired runs": between,
    "floor of repeats": scatter,
    "quantile of the joint error": quantile,
    "growth rate": growing,
    "closed-loop excess growth": faster,
    "clock offset": clock,
    "success rate (Wilson)": success,
    "difference of rates (Newcombe)": difference,
    "difference of paired rates (Tango)": paired,
    "correlation (Fisher)": correlation(pearson, rank=False),
    "rank correlation (Bonett-Wright)": correlation(spearman, rank=True),
    "rank violation (MMRV)": violation,
    "prediction-powered rate": powered,
}
TESTS: dict[str, Callable[[np.random.Generator], bool]] = {
    "McNemar, exact": no_difference,
    "paired equivalence": no_equivalence,
    "A against B, checked at any time": no_better,
}
