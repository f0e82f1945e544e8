"""Searches from different starts: where three agree, a search that stalled counts as converged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.param import Param
from instep.core.progress import Progress
from instep.tune.fit.least_squares import FitStatus
from instep.tune.fit.searches import SAME_COST, FitTask, _agrees, _settled, explained, search
from instep.tune.fit.shooting import Fit, ShootingOptions, fit
from instep.tune.fit.uncertainty import assess_fit
from instep.tune.gates import TuneOptions


def test_a_stalled_search_counts_where_three_searches_agree_and_is_as_uncertain_as_they_are_apart(servo, recorded):
    found = fit(servo, recorded(servo, {}, (1, 2)), [Param("joint.hinge.damping", 0.01, 1.0, True)], ShootingOptions())
    stalled = replace(found, status=FitStatus.STALLED)
    near = found.x + np.array([[-0.004], [0.0], [0.005]])
    settled, apart = _settled(stalled, near, 3), _settled(stalled, found.x + np.array([[0.1], [0.0], [0.0]]), 3)
    assert settled.status is FitStatus.CONVERGED
    assert settled.covariance[0, 0] > found.covariance[0, 0] + 1e-6
    assert np.sqrt(apart.covariance[0, 0]) > 0.1
    assert _settled(stalled, near[:2], 3).status is FitStatus.STALLED
    assert _settled(found, near[:2], 4).status is FitStatus.CONVERGED
    assert _settled(found, near[:1], 3).status is FitStatus.STALLED, "one of many local minima"


def test_searches_agree_whose_predictions_differ_by_less_than_what_is_left(servo, recorded):
    best = fit(servo, recorded(servo, {}, (1, 2)), [Param("joint.hinge.damping", 0.01, 1.0, True)], ShootingOptions())
    left = float(np.sqrt(np.mean(best.point.residual**2)))
    dear = 2 * SAME_COST * best.cost
    for share, agrees in ((0.5, True), (2.0, False)):
        moved = replace(best.point, x=best.x + 0.1, residual=best.point.residual + share * left)
        assert _agrees(replace(best, point=moved), dear, best, best.cost) is agrees


def test_a_fit_explains_recordings_where_it_leaves_only_white_noise(servo, recorded):
    params = [Param("joint.hinge.damping", 0.01, 1.0, True)]
    found = fit(servo, recorded(servo, {"joint.hinge.damping": 0.2}, (1, 2)), params, ShootingOptions())
    assert explained(found)
    assert not explained(replace(found, status=FitStatus.STALLED))
    stiffer = recorded(servo, {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0}, (1, 2))
    assert not explained(fit(servo, stiffer, params, ShootingOptions())), "what damping cannot explain is left over"
    wave = 1e-3 * np.sin(np.linspace(0, 6, found.point.residual.shape[1]))[None, :, None]
    slow = replace(found.point, residual=0.5 * found.point.residual + wave)
    assert not explained(replace(found, point=slow)), "small, but not white"


def test_a_search_at_the_noise_is_kept_though_one_that_stalled_fits_the_noise_better(servo, recorded):
    params = [Param("joint.hinge.damping", 0.01, 1.0, True)]
    episodes, done = recorded(servo, {"joint.hinge.damping": 0.2}, (1, 2)), list[Fit]()

    def stalls_first(sim, episodes, params, options=None, *, progress=None):
        found = fit(sim, episodes, params, options, progress=progress)
        done.append(found if done else replace(found, status=FitStatus.STALLED))
        return done[-1]

    task = FitTask(servo, params, ShootingOptions(), method=stalls_first, hold_unseen=True)
    first = replace(fit(servo, episodes, params, ShootingOptions()), status=FitStatus.STALLED)
    found = search(task, episodes, first, assess_fit(first), TuneOptions(seeds=3), Progress())
    assert len(done) == 2, "the second search ends the others"
    assert found.explained
    assert found.fit.status is FitStatus.CONVERGED
