"""Agreement of a virtual evaluation with reality."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, UnknownName
from instep.core.statistics import mmrv
from instep.evaluate.agreement import SuccessRates, rank_agreement, rank_agreements, read_rates

HEAD = "task,policy,real,sim,n_real_trials\n"


def rates(real, sim, trials=50):
    return [SuccessRates("t", f"p{i}", r, s, trials, None) for i, (r, s) in enumerate(zip(real, sim, strict=True))]


def test_rank_violations_depend_on_which_side_is_real():
    # The trap: the source's function takes (sim, real), its manual passes (real, sim).
    real, sim = (
        np.array([0.733, 0.633, 0.583, 0.450, 0.017, 0.350]),
        np.array([0.779, 0.442, 0.354, 0.317, 0.050, 0.042]),
    )
    assert mmrv(sim, real) == pytest.approx(0.111, abs=5e-4)
    assert mmrv(real, sim) == pytest.approx(0.003, abs=5e-4)


def test_a_tie_in_reality_costs_nothing_and_a_tie_in_simulation_counts_for_the_better_policy():
    assert mmrv(np.array([0.2, 0.4]), np.array([0.5, 0.5])) == 0.0
    assert mmrv(np.array([0.4, 0.4]), np.array([0.7, 0.5])) == pytest.approx(0.1)


def test_few_policies_are_refused_in_words():
    found = rank_agreement(rates([0.1, 0.5, 0.9], [0.2, 0.5, 0.8]))
    assert not found.informative and found.words == "Not informative: 3 policies; a correlation needs at least 6."


def test_a_correlation_that_may_be_none_is_refused_in_words():
    found = rank_agreement(rates([0.63, 0.93, 0.89, 0.74, 0.0, 0.52], [0.34, 0.86, 0.67, 0.89, 0.28, 0.44]))
    assert found.words.startswith("Nothing follows: over 6 policies")


def test_a_good_simulator_is_said_to_be_one():
    truth = np.linspace(0.1, 0.9, 8)
    found = rank_agreement(rates(truth, truth + 0.02, trials=200))
    assert found.words.startswith("Correlated 1.00") and "no more than a perfect simulator" in found.words
    assert found.bias.value == pytest.approx(0.02) and found.slope == pytest.approx(1.0)


def test_a_table_is_read_or_refused_in_one_sentence(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "a,x,0.5,0.4,20\na,y,0.7,0.6,20\n")
    assert len(rank_agreements(read_rates(path))) == 1
    path.write_text("task,policy,real\na,x,0.5\n")
    with pytest.raises(UnknownName, match="'sim'"):
        read_rates(path)
    path.write_text(HEAD + "a,x,0.5,many,20\n")
    with pytest.raises(BadInput, match="Line 2"):
        read_rates(path)
    path.write_text(HEAD + "a,x,1.5,0.4,20\n")
    with pytest.raises(BadInput, match="rates from 0 to 1"):
        read_rates(path)
    path.write_text(HEAD)
    with pytest.raises(BadInput, match="no rows"):
        read_rates(path)
    with pytest.raises(BadInput, match="There is no file"):
        read_rates(tmp_path / "none.csv")
    with pytest.raises(BadInput, match="one policy"):
        rank_agreement([SuccessRates("a", "x", 0.5, 0.4, 20, None)])
