"""Fits of causes are simulated as batches, without contacts where nothing touches; the numbers stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from instep.diagnose.candidates import candidate_causes
from instep.diagnose.cause_selection import CandidateOptions, WindowErrors, WindowFits
from instep.gap.horizon import velocity
from instep.physics.engine_model import touches_nothing


@pytest.fixture(scope="module")
def fits(arm, record):
    episodes = record(arm.tuned({"joint.elbow.damping": 0.4, "action.delay": 0.03}), range(2))
    extended, candidates = candidate_causes(arm.scene, arm)
    return WindowFits(WindowErrors(extended, episodes, CandidateOptions(most=12)), candidates), episodes


def test_a_batch_of_settings_has_the_errors_of_each_alone(fits):
    made, _ = fits
    assert {c.cause for c in made.candidates} >= {"joint damping", "latency", "backlash", "payload", "gains"}
    for i, candidate in enumerate(made.candidates):
        other = next(
            k
            for k, c in enumerate(made.candidates)
            if c.cause == ("gains" if candidate.cause != "gains" else "backlash")
        )
        beside = {other: 0.5 * made.candidates[other].points()[0]}
        settings = [made.settings({**beside, i: point}) for point in candidate.points()]
        together = made.errors.residuals(settings)
        assert len(together) == len(settings) > 1
        for one, found in zip(settings, together, strict=True):
            [alone] = made.errors.residuals([one])
            # Constants of a model are computed once for it or once per world, which rounds alike.
            assert np.allclose(found, alone, rtol=1e-9, atol=1e-12), candidate.cause


def test_settings_of_different_parameters_and_none_keep_their_order(fits):
    made, _ = fits
    several = [{"joint.elbow.damping": 0.3}, {}, {"joint.shoulder.damping": 0.2}, {"joint.elbow.damping": 0.9}]
    together = made.errors.residuals(several)
    for one, found in zip(several, together, strict=True):
        assert np.allclose(found, made.errors.residuals([one])[0], rtol=1e-9, atol=1e-12)
    assert np.array_equal(together[1], made.nominal.residuals)


def test_fits_without_contacts_are_the_same_where_nothing_touches(arm, fits):
    made, episodes = fits
    assert touches_nothing(arm, episodes)
    fast = candidate_causes(arm.scene, arm.without_contacts())[0]
    options = CandidateOptions(most=12, fitted_in=fast)
    other = WindowErrors(made.errors.sim, episodes, options)
    settings = [{"joint.elbow.damping": 0.3}, {"action.delay": 0.02}]
    for found, expected in zip(other.residuals(settings), made.errors.residuals(settings), strict=True):
        assert np.array_equal(found, expected)
    assert np.array_equal(other.held_out(settings[0]), made.errors.held_out(settings[0]))


@pytest.mark.parametrize("rows", [6, 7, 9, 10, 200])
def test_velocities_are_those_of_savitzky_and_golay(rows):
    from scipy.signal import savgol_filter

    q = np.random.default_rng(rows).normal(size=(rows, 3)).cumsum(axis=0)
    for dt in (0.02, 0.002):
        window = max(5, 2 * round(0.03 / dt) + 1)
        window = min(window, rows if rows % 2 else rows - 1)
        expected = savgol_filter(q, window, min(3, window - 2), deriv=1, delta=dt, axis=0)
        assert np.allclose(velocity(q, dt), expected, rtol=1e-9, atol=1e-9 / dt)
