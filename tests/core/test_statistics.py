"""Statistics with intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from instep.core.statistics import (
    equivalence,
    jackknife,
    mcnemar,
    mmrv_null,
    newcombe,
    paired_difference,
    pairs_for_equivalence,
    pearson,
    pooled,
    prediction_powered,
    sequential_test,
    spearman,
    wilson,
)


def test_pooled_is_the_root_mean_square_of_all_rows():
    rng = np.random.default_rng(0)
    runs = [rng.normal(0, 1, (n, 2)) for n in (30, 80, 50)]
    sums = np.array([(r**2).sum(axis=0) for r in runs])
    found = pooled(sums, np.array([len(r) for r in runs]))
    expected = np.sqrt((np.concatenate(runs) ** 2).mean(axis=0))
    np.testing.assert_allclose([e.value for e in found], expected)
    assert all(e.low < e.value < e.high and e.n == 3 for e in found)


def test_no_error_at_all_is_zero_with_a_zero_interval():
    for runs in (3, 20):
        (found,) = pooled(np.zeros((runs, 1)), np.full(runs, 7.0))
        assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("runs", [3, 5, 20])
def test_pooled_intervals_cover_as_they_say(runs):
    rng = np.random.default_rng(runs)
    covered = 0
    for _ in range(400):
        squares = rng.chisquare(4, runs) / 4 * rng.integers(50, 100, runs)
        counts = squares * 0 + 75
        (found,) = pooled(squares[:, None], counts)
        covered += found.low <= 1.0 * np.sqrt(74.5 / 75) <= found.high
    # Three standard errors of a coverage of 95 % over 400 repetitions are 3.3 points; few runs cost a little more.
    assert covered / 400 > 0.90


def test_the_jackknife_of_a_mean_is_students_interval():
    values = np.array([1.0, 2.0, 4.0, 5.0])
    found = jackknife(values)
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("k", "n", "interval"),
    [
        (0, 10, (0.000, 0.278)),
        (8, 10, (0.490, 0.943)),
        (16, 20, (0.584, 0.919)),
        (34, 60, (0.441, 0.684)),
        (48, 60, (0.682, 0.882)),
        (80, 100, (0.711, 0.867)),
    ],
)
def test_the_interval_of_one_rate(k, n, interval):
    found = wilson(k, n)
    assert (found.low, found.high) == pytest.approx(interval, abs=5e-4)


def test_the_difference_of_two_rates():
    found = newcombe((48, 60), (34, 60))
    assert (found.low, found.high) == pytest.approx((0.067, 0.383), abs=5e-4)


@pytest.mark.parametrize(
    ("b", "c", "exact", "mid"),
    [(1, 7, 0.0703, 0.0391), (2, 10, 0.0386, 0.0225), (0, 5, 0.0625, 0.0313), (0, 6, 0.0312, 0.0156)],
)
def test_mcnemar_from_discordant_pairs(b, c, exact, mid):
    for pair in ((b, c), (c, b)):
        found = mcnemar(*pair)
        assert (found.exact, found.mid) == pytest.approx((exact, mid), abs=6e-5)
    assert mcnemar(0, 0).exact == 1.0


def test_tangos_interval_of_a_paired_difference():
    found = paired_difference(0, 1, 43)
    assert found.low < -1 / 43 < found.high and found.low == pytest.approx(-0.12, abs=0.01)
    swapped = paired_difference(1, 0, 43)
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low))
    none = paired_difference(0, 0, 20)
    assert none.low < 0 < none.high and none.low == pytest.approx(-none.high)


@pytest.mark.parametrize(
    ("discordance", "margin", "usual", "strong"),
    [(0.05, 0.1, 43, 55), (0.1, 0.1, 86, 109), (0.3, 0.1, 257, 325), (0.2, 0.15, 77, 97), (0.1, 0.05, 343, 433)],
)
def test_pairs_needed_for_equivalence(discordance, margin, usual, strong):
    assert pairs_for_equivalence(discordance, margin) == usual
    assert pairs_for_equivalence(discordance, margin, power=0.9) == strong


def test_no_significant_difference_is_not_equality():
    few = equivalence(1, 2, 20, 0.1)
    assert mcnemar(1, 2).exact == 1.0 and not few.equivalent
    assert "Not shown to be equivalent" in few.words and f"About {few.needed} pairs" in few.words
    many = equivalence(20, 22, 800, 0.1)
    assert many.equivalent and many.words.startswith("Equivalent to within 10%")


@pytest.mark.parametrize(
    ("k", "low", "high"), [(4, -0.13, 1.00), (5, 0.42, 1.00), (6, 0.60, 0.99), (10, 0.80, 0.99), (20, 0.88, 0.98)]
)
def test_fishers_interval_of_a_correlation(k, low, high):
    rng = np.random.default_rng(k)
    x, e = rng.normal(size=k), rng.normal(size=k)
    x = (x - x.mean()) / np.std(x)
    e = e - e.mean() - x * (e @ x) / k
    y = 0.95 * x + np.sqrt(1 - 0.95**2) * e / np.std(e)
    found = pearson(x, y)
    assert found.value == pytest.approx(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-3)


def test_rank_correlation_is_scipys_with_ties():
    x, y = np.array([1.0, 2, 2, 4, 5, 5]), np.array([2.0, 1, 3, 3, 6, 5])
    assert spearman(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic)


def test_a_perfect_simulator_still_violates_ranks_by_noise():
    null = mmrv_null(np.linspace(0.1, 0.9, 6), np.full(6, 10), draws=4000)
    assert null.value == pytest.approx(0.040, abs=0.01) and null.high == pytest.approx(0.133, abs=0.02)
    fine = mmrv_null(np.linspace(0.1, 0.9, 6), np.full(6, 60), draws=4000)
    assert fine.value < 0.005


def test_a_simulator_that_does_not_correlate_is_refused():
    rng = np.random.default_rng(0)
    y, f = rng.binomial(1, 0.6, 40), rng.binomial(1, 0.6, 40)
    found = prediction_powered(y, f, rng.binomial(1, 0.6, 400))
    assert not found.used and found.estimate == found.plain


def test_a_simulator_that_correlates_narrows_the_interval():
    rng = np.random.default_rng(1)
    hard = rng.normal(size=540)
    y = (hard + rng.normal(0, 0.3, 540) < 0.3).astype(float)
    f = (hard + rng.normal(0, 0.3, 540) < 0.5).astype(float)
    found = prediction_powered(y[:40], f[:40], f[40:])
    assert found.used and found.gain > 1.3
    assert found.estimate.high - found.estimate.low < found.plain.high - found.plain.low


def test_a_test_may_be_looked_at_any_time():
    rng = np.random.default_rng(0)
    wrong = sum(bool(sequential_test(rng.choice([-1, 0, 1], 300, p=[0.2, 0.6, 0.2])).better) for _ in range(200))
    assert wrong / 200 <= 0.05
    found = sequential_test(rng.choice([-1, 0, 1], 300, p=[0.05, 0.55, 0.4]))
    assert found.better == "A" and found.stopped is not None and "A is better" in found.words
    assert "Undecided" in sequential_test(np.zeros(5)).words
