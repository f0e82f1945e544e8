"""Clocks, lags, and what recordings need before a replay."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode
from instep.core.poses import quat_exp, quat_mul
from instep.core.world import Spec, vector
from instep.gap.measure import angular_speed, clock_offset
from instep.gap.paired_runs import lag
from instep.gap.preparation import prepare


def wander(rng, t, smooth=40):
    """A smooth random signal."""
    noise = rng.normal(size=len(t) + 400)
    kernel = np.hanning(smooth)
    return np.convolve(noise, kernel / kernel.sum(), mode="same")[200 : 200 + len(t)]


def test_a_lag_is_found_between_rows():
    t = np.arange(0, 20, 0.01)
    late = lag(np.sin(t * 3) + np.sin(t * 7.1), np.sin((t - 0.034) * 3) + np.sin((t - 0.034) * 7.1), 0.01)
    assert late.seconds == pytest.approx(0.034, abs=5e-4) and not late.at_limit
    early = lag(np.sin((t - 0.034) * 3), np.sin(t * 3), 0.01)
    assert early.seconds == pytest.approx(-0.034, abs=1e-3)


def test_a_lag_at_the_end_of_the_search_says_so():
    t = np.arange(0, 20, 0.01)
    assert lag(t, t**2, 0.01, longest=0.1).at_limit
    with pytest.raises(BadInput, match="at least three rows"):
        lag(np.zeros(2), np.zeros(2), 0.01)


@pytest.mark.parametrize("shift", [0.0, 0.317, -1.2])
def test_a_clock_offset_is_recovered_with_its_spread(shift):
    rng = np.random.default_rng(3)
    t = np.arange(0, 60, 0.01)
    speed = np.abs(wander(rng, t, 80))
    other = np.arange(0.7, 59, 1 / 30)
    seen = np.interp(other, t, speed) + rng.normal(0, 0.005, len(other))
    found = clock_offset((t, speed), (other - shift, seen))
    assert found.seconds.value == pytest.approx(shift, abs=0.01)
    assert found.seconds.low <= shift + 0.003 and found.seconds.high >= shift - 0.003
    assert 0 < found.spread < 0.02 and len(found.windows) >= 5


def test_streams_without_common_motion_are_refused():
    rng = np.random.default_rng(0)
    t = np.arange(0, 30, 0.02)
    with pytest.raises(BadInput, match="windows show a common motion"):
        clock_offset((t, rng.normal(size=len(t))), (t, rng.normal(size=len(t))))


def test_angular_speed_is_the_same_in_every_frame():
    t = np.arange(0, 5, 0.01)
    turn = np.stack([0.3 * np.sin(t), 0.5 * np.cos(2 * t), 0.2 * t], axis=-1)
    quats = quat_exp(turn)
    moved = quat_mul(quat_exp(np.array([0.4, -1.0, 0.2])), quat_mul(quats, quat_exp(np.array([1.0, 0.3, 0.0]))))
    stamps, speed = angular_speed(t, quats)
    np.testing.assert_allclose(angular_speed(t, -moved)[1], speed, atol=1e-9)
    assert stamps[0] == pytest.approx(0.3)


SPEC = Spec(0.004, vector(["arm", "pole"], "rad"), vector(["arm", "pole"], "rad/s"), vector(["u"], "V"))


def pendulum(late=0.0, wrap=False):
    t = np.arange(0, 6, 0.004)
    q = np.stack([np.sin(3 * t), 2.5 * np.sin(2 * t)], axis=-1)
    if wrap:
        q = np.stack([np.sin(3 * t), np.pi - np.mod(np.pi - 4 * t, 2 * np.pi)], axis=-1)
    s = t - late
    v = np.stack([3 * np.cos(3 * s), 5 * np.cos(2 * s)], axis=-1)
    return Episode(SPEC, {"timestamp": t, "q": q, "v": v, "action": np.zeros((len(t), 1))})


def test_velocities_that_lag_are_rebuilt_and_good_ones_kept():
    kept = prepare([pendulum()])
    assert kept.notes == () and np.array_equal(kept.episodes[0].v, pendulum().v)
    mended = prepare([pendulum(late=0.016)])
    assert "lag by up to 16 ms" in mended.notes[0]
    np.testing.assert_allclose(mended.episodes[0].v[10:-10], pendulum().v[10:-10], atol=2e-3)


def test_velocities_that_lack_are_rebuilt():
    bare = Episode(SPEC, {k: c for k, c in pendulum().columns.items() if k != "v"})
    found = prepare([bare])
    assert "none were recorded" in found.notes[0]
    np.testing.assert_allclose(found.episodes[0].v[10:-10], pendulum().v[10:-10], atol=2e-3)


def test_an_angle_that_jumps_by_a_turn_is_unwrapped_and_wraps_from_then_on():
    found = prepare([pendulum(wrap=True)])
    assert found.wrapping == ("pole",) and "jumps by a turn" in found.notes[0]
    t = found.episodes[0].t
    np.testing.assert_allclose(found.episodes[0].q[:, 1], 4 * t, atol=1e-9)
