"""Posteriors of a small servo: four methods agree, cover planted truths, and notice when the model is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.posterior.beliefs import GaussianBelief, infer, laplace, likelihood
from instep.tune.posterior.posterior_checks import (
    TRUTHS,
    calibration,
    check_posterior,
    misspecification,
    predictive_band,
)

TRUTH = {"joint.hinge.damping": 0.1, "actuator.hinge.kp": 5.0}
QUICK = ShootingOptions(
    window=0.5, stride=0.5, guesses=1, initial={"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0}
)


@pytest.fixture
def found(servo, recorded):
    """A fit of damping and stiffness to two noisy recordings."""
    episodes = recorded(servo, TRUTH, range(2), noise=0.002, steps=126)
    return fit(servo, episodes, servo.scene.params(*TRUTH), QUICK)


def points_of(belief):
    return belief.draw(1000, np.random.default_rng(0)) if isinstance(belief, GaussianBelief) else belief.points


def test_the_likelihood_falls_as_the_laplace_posterior_says(found):
    target, spread = likelihood(found), np.sqrt(np.linalg.eigvalsh(found.covariance))
    _, vectors = np.linalg.eigh(found.covariance)
    steps = np.concatenate([[found.x], found.x + 2 * (spread * vectors).T, found.x - 2 * (spread * vectors).T])
    log = target.log(steps)
    # Two deviations along an axis cost 2; the mean of both sides is free of how far the top is off.
    fallen = log[0] - (log[1:3] + log[3:5]) / 2
    np.testing.assert_allclose(fallen, 2.0, rtol=0.5)


def test_an_ensemble_agrees_with_the_laplace_posterior_where_it_is_right(found):
    expected, points = laplace(found), points_of(infer(found, "eki", seed=1))
    spread = np.sqrt(np.diag(expected.covariance))
    assert (np.abs(points.mean(axis=0) - expected.mean) < spread).all()
    assert (points.std(axis=0) > 0.5 * spread).all()
    assert (points.std(axis=0) < 1.5 * spread).all()


def test_planted_truths_lie_inside_the_laplace_posterior_as_often_as_it_says(found):
    checked = calibration(found, lambda fit, _: laplace(fit), truths=10)
    assert checked.coverage(0.9).value >= 0.75
    assert min(checked.uniformity.values()) > 1e-3


def test_a_model_without_the_delay_of_the_machine_is_called_wrong_and_the_right_one_is_not(servo, recorded):
    episodes = recorded(servo, TRUTH | {"action.delay": 0.06}, range(2), noise=0.002, steps=126)
    options = replace(QUICK, skip=0.1)
    p = {}
    for name, sim in (("right", servo.tuned({"action.delay": 0.06})), ("wrong", servo)):
        found = fit(sim, episodes, servo.scene.params(*TRUTH), options)
        p[name] = misspecification(found, laplace(found)).value
    assert p["right"] > 0.05
    assert p["wrong"] <= 0.05


def test_a_checked_posterior_writes_files_and_a_message(found, servo, recorded, tmp_path):
    other = recorded(servo, TRUTH, [9], noise=0.002, steps=126)
    checked = check_posterior(laplace(found), found, other)
    checked.save(tmp_path)
    said = checked.as_dict()
    for name in said["files"]:
        assert (tmp_path / name).stat().st_size > 0
    assert said["truths"] == TRUTHS["laplace"]
    assert "recordings" in said["message"] or "Residuals" in said["message"]


def test_ranks_of_a_belief_that_is_too_sure_are_not_uniform(found):
    sure = calibration(found, lambda fit, _: replace(laplace(fit), covariance=fit.covariance / 100), truths=4)
    assert sure.coverage(0.9).value < 0.6


def test_held_out_rows_lie_inside_the_band_of_predictions(found, servo, recorded):
    other = recorded(servo, TRUTH, range(7, 17), noise=0.002, steps=126)
    band = predictive_band(servo, laplace(found), other, found)
    assert 0.75 <= band.inside.value <= 1.0
