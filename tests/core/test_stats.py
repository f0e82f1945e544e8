"""Statistics with intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from instep.core.stats_runs import jackknife, pooled
from instep.core.stats_tails import beta_cdf, beta_quantile, binomial_mass, binomial_tail, student_quantile


@pytest.mark.parametrize("share", [0.6, 0.9, 0.975, 0.9995])
@pytest.mark.parametrize("degrees", [1, 2, 5, 30, 400])
def test_students_quantile_is_scipys(share, degrees):
    assert student_quantile(share, degrees) == pytest.approx(stats.t.ppf(share, degrees), rel=1e-8)
    assert student_quantile(1 - share, degrees) == pytest.approx(-stats.t.ppf(share, degrees), rel=1e-8)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 9), (49, 13), (300, 2), (0.5, 40)])
def test_the_beta_distribution_is_scipys(a, b):
    for x in (0.01, 0.3, 0.5, 0.95):
        assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-14)
        assert beta_quantile(x, a, b) == pytest.approx(special.betaincinv(a, b, x), rel=1e-9)


def test_the_binomial_is_scipys():
    for k, n, p in [(0, 5, 0.5), (3, 12, 0.3), (50, 80, 0.7)]:
        assert binomial_tail(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p))
        assert binomial_mass(k, n, p) == pytest.approx(stats.binom.pmf(k, n, p))
    assert binomial_tail(-1, 5) == 0 and binomial_tail(5, 5) == 1 and binomial_mass(6, 5) == 0


def test_pooled_is_the_root_mean_square_of_all_rows():
    rng = np.random.default_rng(0)
    runs = [rng.normal(0, 1, (n, 2)) for n in (30, 80, 50)]
    sums = np.array([(r**2).sum(axis=0) for r in runs])
    found = pooled(sums, np.array([len(r) for r in runs]))
    expected = np.sqrt((np.concatenate(runs) ** 2).mean(axis=0))
    np.testing.assert_allclose([e.value for e in found], expected)
    assert all(e.low < e.value < e.high and e.n == 3 for e in found)


def test_a_run_without_rows_does_not_count_and_one_run_has_no_interval():
    sums, counts = np.array([[4.0], [0.0]]), np.array([4, 0])
    (found,) = pooled(sums, counts)
    assert found.value == 1.0 and found.n == 1 and np.isnan(found.low)
    (empty,) = pooled(sums, np.zeros(2))
    assert empty.n == 0 and np.isnan(empty.value)


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
