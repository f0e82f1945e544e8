"""Beliefs: draws stay inside the bounds, files come back as they were."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.param import Param
from instep.tune.posterior.beliefs import GaussianBelief, SampleBelief, load_belief, save_belief

PARAMS = (Param("joint.a.damping", 0.1, 10.0, True, "Nm s/rad"), Param("action.delay", 0.0, 0.2, False, "s"))


@pytest.fixture
def normal() -> GaussianBelief:
    return GaussianBelief(PARAMS, np.array([0.5, 0.3]), np.array([[0.01, 0.004], [0.004, 0.0025]]))


@pytest.fixture
def cloud() -> SampleBelief:
    return SampleBelief(PARAMS, np.random.default_rng(0).uniform(0.2, 0.6, (300, 2)))


@pytest.mark.parametrize("kind", ["normal", "cloud"])
def test_a_saved_belief_comes_back_as_it_was(kind, request, tmp_path):
    belief = request.getfixturevalue(kind)
    again = load_belief(save_belief(belief, tmp_path / "belief.json"))
    first, second = (b.sample(50, np.random.default_rng(1)) for b in (belief, again))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert again.params == belief.params


def test_draws_have_the_spread_and_the_correlation_that_were_asked_for(normal):
    points = normal.draw(20000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(points.T), normal.covariance, rtol=0.06)


def test_a_direction_of_which_nothing_is_known_fills_its_box():
    blind = GaussianBelief(PARAMS, np.array([0.5, 0.5]), np.diag([1e-6, np.inf]))
    points = blind.draw(4000, np.random.default_rng(0))
    assert points[:, 0].std() < 2e-3
    assert points[:, 1].std() > 0.2


def test_a_file_that_is_no_belief_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "other.json").write_text('{"kind": "gaussian"}')
    with pytest.raises(BadInput, match="cannot be read as a belief that instep saved"):
        load_belief(tmp_path / "other.json")
