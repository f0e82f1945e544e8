"""Clocks: what a robot's shows, and how well another computer knows it."""

from __future__ import annotations

import numpy as np
import pytest

from instep.robot.realtime import Clock, ClockEstimate


def exchanges(match: ClockEstimate, seconds: float, truth, *, start: float = 0.0, seed: int = 0) -> None:
    """Pings every 0.1 s over a link with queues: 0.2 ms each way, and now and then many milliseconds more."""
    rng = np.random.default_rng(seed)
    for sent in start + np.arange(0.0, seconds, 0.1):
        there, back = 2e-4 + rng.exponential([2e-4, 2e-4]) + (rng.random(2) < 0.2) * rng.exponential(0.01, 2)
        match.add(sent, truth(sent + there), sent + there + back)


def test_a_clock_with_offset_and_drift_shows_both():
    now = [0]
    clock = Clock(offset=0.25, drift_ppm=200.0, source=lambda: now[0])
    assert clock.mono() == 250_000_000
    now[0] = 10**12
    assert clock.mono() == 10**12 + 250_000_000 + 200_000_000


def test_offset_and_drift_are_found_under_queueing_noise():
    match = ClockEstimate()
    exchanges(match, 60.0, lambda t: t + 0.3 + 200e-6 * t)
    assert match.drift_ppm == pytest.approx(200.0, abs=25.0)
    assert match.offset(60.0) == pytest.approx(0.3 + 200e-6 * 60, abs=5e-4)
    assert abs(match.offset(60.0) - (0.3 + 200e-6 * 60)) <= 3 * match.spread
    assert match.spread < 1e-3


def test_own_time_undoes_the_other_clock():
    match = ClockEstimate()
    exchanges(match, 30.0, lambda t: t - 7.0 + 100e-6 * t)
    for t in (0.0, 12.5, 30.0):
        assert match.own(t + match.offset(t)) == pytest.approx(t, abs=1e-9)


def test_a_clock_that_was_set_is_noticed_and_learnt_anew():
    match = ClockEstimate()
    exchanges(match, 20.0, lambda t: t + 0.1)
    exchanges(match, 3.0, lambda t: t + 0.4, start=20.0, seed=1)
    assert match.jumps == 1
    assert match.offset(23.0) == pytest.approx(0.4, abs=1e-3)


def test_a_few_slow_exchanges_are_no_jump():
    match = ClockEstimate()
    exchanges(match, 5.0, lambda t: t + 0.1)
    for sent in (5.0, 5.1, 5.2, 5.3):
        match.add(sent, sent + 0.3 + 0.1, sent + 0.3)  # the answer was quick, the question was not
    assert match.jumps == 0 and match.offset(5.3) == pytest.approx(0.1, abs=1e-3)


def test_nothing_is_claimed_before_the_first_exchange():
    assert ClockEstimate().spread == float("inf")
