"""Transfer scores: planted success rates lie in their intervals, and what cannot be calibrated is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep import BadInput
from instep.evaluate import transfer_score
from instep.evaluate.agreement import SuccessRates, score_coverage

TABLE = Path(__file__).resolve().parents[3] / "shared/data/policy_tables/simpler_real_vs_sim.csv"


def planted(rng: np.random.Generator, count: int) -> tuple[list[SuccessRates], np.ndarray]:
    """Policies whose virtual success follows the real one with a bias and a spread, and their true real success."""
    true = rng.beta(1.2, 1.2, count)
    logit = np.log(true / (1 - true))
    virtual = 1 / (1 + np.exp(-(0.3 + 0.8 * logit + 0.7 * rng.standard_normal(count))))
    sim, real = rng.binomial(100, virtual) / 100, rng.binomial(20, true) / 20
    return [SuccessRates("t", str(i), real[i], sim[i], 20, 100) for i in range(count)], true


def test_true_rates_lie_in_the_interval_as_often_as_it_says():
    rng, inside = np.random.default_rng(0), []
    for _ in range(120):
        rates, true = planted(rng, 41)
        found = transfer_score(round(rates[-1].sim * 100), 100, rates[:-1]).success
        inside.append(found.low <= true[-1] <= found.high)
    assert 0.85 <= np.mean(inside) <= 0.97


def test_rates_that_are_often_equal_do_not_make_the_interval_hold_everything():
    rng = np.random.default_rng(3)
    # Virtual rates that say nothing, and real ones of which more than a tenth are 1 and a third 0.
    real = np.concatenate([np.zeros(40), np.ones(15), rng.integers(1, 18, 65) / 20])
    rates = [SuccessRates("t", str(i), real[i], 0.5, 20, 20) for i in range(len(real))]
    assert 0.85 <= score_coverage(rates).value <= 0.95


def test_more_agreement_gives_a_narrower_interval_and_fewer_trials_to_settle():
    rates, _ = planted(np.random.default_rng(1), 40)
    loose = transfer_score(70, 100, rates)
    tight = transfer_score(70, 100, [SuccessRates(r.task, r.policy, r.sim, r.sim, 20, 100) for r in rates])
    assert tight.success.high - tight.success.low < loose.success.high - loose.success.low
    assert tight.needed < loose.needed
    assert "real trials" in loose.words


def test_few_past_policies_and_impossible_counts_are_refused():
    rates, _ = planted(np.random.default_rng(2), 12)
    with pytest.raises(BadInput, match="at least 10 past policies"):
        transfer_score(3, 10, rates[:9])
    with pytest.raises(BadInput, match="do not fit"):
        transfer_score(11, 10, rates)


@pytest.mark.skipif(not TABLE.is_file(), reason="needs recordings: there is no table of published policies")
def test_published_real_rates_lie_in_the_interval_of_the_others():
    from instep.evaluate import read_rates

    assert 0.85 <= score_coverage(read_rates(TABLE)).value <= 0.97
