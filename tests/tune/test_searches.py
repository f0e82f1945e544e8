"""Searches from different starts: where they end in the same place, a search that stalled counts as converged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.param import Param
from instep.tune.least_squares import FitStatus
from instep.tune.searches import _settled
from instep.tune.shooting import ShootingOptions, fit


def test_a_stalled_search_counts_where_three_others_end_in_the_same_place(servo, recorded):
    found = fit(servo, recorded(servo, {}, (1, 2)), [Param("joint.hinge.damping", 0.01, 1.0, True)], ShootingOptions())
    stalled = replace(found, status=FitStatus.STALLED)
    near = found.x + np.array([[-0.004], [0.0], [0.005]])
    settled = _settled(stalled, near)
    assert settled.status is FitStatus.CONVERGED
    assert settled.covariance[0, 0] > found.covariance[0, 0] + 1e-6
    assert _settled(stalled, near[:2]).status is FitStatus.STALLED
    assert _settled(stalled, near + np.array([[0.1], [0.0], [0.0]])).status is FitStatus.STALLED
