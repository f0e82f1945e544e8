"""The jerk-limited follower: inside all limits, on the set points, at rest when they stop."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.robot import Limits
from instep.robot.follower import Follower
from instep.robot.limits import LimitedCommand

sys.path.append(str(Path(__file__).parent))
import reference_follower as reference

JOINTS = tuple("abcdefg")
FAST = Limits(JOINTS, -2.7, 2.7, np.array([2.62] * 4 + [5.26, 4.18, 5.26]), 10.0, 5000.0)
SOFT = Limits(JOINTS, -1.0, 1.0, 3.4, 8.0, 60.0)
SLOW = Limits(JOINTS, -1.0, 1.0, 1.0, 8.0, 8.0)
"""A second until its acceleration has built up: longer than braking from its highest speed would take without jerk."""
ROBOTS = {"fast": FAST, "soft": SOFT, "slow": SLOW}


def run(follower: Follower, rate: float, seconds: float, target) -> list[LimitedCommand]:
    """Step for some time; `target(k)` is the k-th set point at 60 Hz, None where it is lost."""
    motions, aimed = [], 0
    for i in range(round(seconds * rate)):
        if i * 60.0 / rate >= aimed:
            wanted = target(aimed)
            aimed += 1
            if wanted is not None:
                follower.set_target(wanted)
        follower.step()
        motions.append(follower.motion)
    return motions


def excess(limits: Limits, motions: list[LimitedCommand], dt: float) -> float:
    """By how much the worst of position, speed, acceleration and jerk breaks its limit."""
    q, v, a = (np.stack([getattr(m, name) for m in motions]) for name in "qva")
    jerk = np.diff(np.concatenate([np.zeros_like(a[:1]), a]), axis=0) / dt
    worst = [np.maximum(limits.low - q, q - limits.high), np.abs(v) - limits.velocity, np.abs(a) - limits.acceleration]
    # The jerk is a small difference over a small time; its tolerance is relative.
    return max(*(float(w.max()) for w in worst), float((np.abs(jerk) / limits.jerk - 1).max()))


@pytest.mark.parametrize("name", ROBOTS)
@pytest.mark.parametrize("rate", [250.0, 1000.0])
def test_wild_set_points_break_no_limit(name, rate):
    limits, rng = ROBOTS[name], np.random.default_rng(3)
    jump = [rng.uniform(-4, 4, 7)]

    def target(k: int) -> np.ndarray | None:
        if k % 20 == 0:
            jump[0] = rng.uniform(-4, 4, 7)
        wild = rng.uniform(-4, 4, 7) if k % 60 < 20 else jump[0]
        return None if rng.random() < 0.1 else wild

    follower = Follower(limits, np.zeros(7), rate=rate)
    motions = run(follower, rate, 360 / rate, target)
    assert excess(limits, motions, 1 / rate) <= 1e-9
    # The commands that go out are what the motion says.
    q, v = np.stack([m.q for m in motions]), np.stack([m.v for m in motions])
    assert np.allclose(np.diff(q, axis=0) * rate, v[1:], atol=1e-9)


def test_smooth_set_points_are_followed_two_periods_late():
    t60 = 2.0 / 60.0

    def path(t: np.ndarray | float) -> np.ndarray:
        return 0.4 * (1 - np.cos(2 * np.pi * 0.3 * np.maximum(t, 0.0)))

    follower = Follower(FAST, np.zeros(7), rate=300.0)
    motions = run(follower, 300.0, 3.0, lambda k: np.full(7, path(k / 60.0)))
    times = (np.arange(len(motions)) + 1) / 300.0
    reached = np.stack([m.q[0] for m in motions])[300:]
    errors = {late: np.abs(reached - path(times[300:] - late)).max() for late in np.arange(0, 4, 0.1) / 60.0}
    best = min(errors, key=errors.__getitem__)
    assert best == pytest.approx(t60, abs=0.3 / 60.0) and errors[best] < 1e-3


@pytest.mark.parametrize("name", ["fast", "soft"])
def test_a_jump_ends_at_its_target_and_stays_there(name):
    follower = Follower(ROBOTS[name], np.zeros(7))
    motions = run(follower, 250.0, 2.5, lambda k: np.full(7, 0.9))
    q = np.stack([m.q for m in motions])
    assert np.abs(q[-50:] - 0.9).max() < 1e-9, "no humming about the target"
    assert q.max() < 0.9 + 5e-4


def test_silence_stops_the_robot_within_the_bound():
    """From a steady speed T_stop <= T_detect + T + v/a + a/j, with two set-point periods to detect."""
    speed, last = 2.0, 60
    follower = Follower(FAST, np.full(7, -1.0), rate=250.0)
    motions = run(follower, 250.0, 2.0, lambda k: np.full(7, speed * k / 60.0 - 1.0) if k <= last else None)
    assert excess(FAST, motions, 1 / 250.0) <= 1e-9
    v = np.stack([np.abs(m.v).max() for m in motions])
    silent_from = round(last / 60.0 * 250.0)
    assert v[silent_from] == pytest.approx(speed, rel=1e-3)
    at_rest = np.argmax(v[silent_from:] < 1e-9) / 250.0
    assert 0 < at_rest <= 0.05 + 1 / 60.0 + speed / 10.0 + 10.0 / 5000.0
    assert follower.braking and np.all(v[silent_from + round(at_rest * 250.0) :] < 1e-9)


@pytest.mark.parametrize("name", ROBOTS)
def test_from_any_motion_a_plan_ends_within_the_stated_time(name):
    """T_stop <= v/a + 2 a/j, and two periods of rounding; low jerk included."""
    limits, rng, dt = ROBOTS[name], np.random.default_rng(5), 1 / 250.0
    motion, target = limits.rest(np.zeros((40, 7))), np.zeros((40, 7))
    for k in range(400):
        target = rng.uniform(-3, 3, (40, 7)) if k % 50 == 0 else target
        motion = limits.towards(motion, target, dt)
        if k % 25 == 0:
            left = (motion.rows[..., 4] - motion.rows[..., 6]).max()
            assert left * dt <= limits.stop_time + 2 * dt
    for _ in range(int(np.ceil(limits.stop_time / dt)) + 2):
        motion = limits.brake(motion, dt)
    assert np.abs(motion.v).max() < 1e-9 and np.abs(motion.a).max() < 1e-9


@pytest.mark.parametrize("name", ROBOTS)
def test_the_compiled_step_is_the_one_of_the_reference(name):
    limits, rng, dt = ROBOTS[name], np.random.default_rng(6), 1 / 250.0
    motion, target, differ = limits.rest(np.zeros(7)), np.zeros(7), 0
    for k in range(120):
        target = np.clip(rng.uniform(-3, 3, 7), limits.low, limits.high) if k % 30 == 0 else target
        after = limits.follow(motion, target, np.zeros(7), dt)
        if k % 3 == 0:
            plan, braking = [], motion
            for _ in range(max(1, int((motion.rows[:, 4] - motion.rows[:, 6]).max()))):
                braking = limits.brake(braking, dt)
                plan.append(braking.a)
            slow = reference.FollowerMotion(motion.q, motion.v, motion.a, np.stack(plan))
            slow = reference.follow(slow, target, np.zeros(7), limits, dt)
            differ += int(np.any(np.abs(slow.a - after.a) > 1e-6))
        motion = after
    assert differ == 0


def test_one_lost_set_point_is_bridged_without_braking():
    def path(k: int) -> np.ndarray:
        return np.full(7, 1.0 * k / 60.0 - 1.0)

    follower = Follower(FAST, np.full(7, -1.0), rate=300.0)
    motions = run(follower, 300.0, 1.5, lambda k: None if k == 60 else path(k))
    v = np.stack([m.v[0] for m in motions])[240:]
    assert np.allclose(v, 1.0, atol=1e-6), "the speed does not even waver"


def test_after_silence_it_goes_on_from_where_it_is():
    follower = Follower(FAST, np.zeros(7), rate=250.0)
    run(follower, 250.0, 1.0, lambda k: np.full(7, 1.0) if k < 10 else None)
    here = follower.motion.q
    assert follower.braking
    motions = run(follower, 250.0, 1.0, lambda k: here)
    assert np.abs(np.stack([m.q for m in motions]) - here).max() < 1e-9


def test_set_points_that_are_none_are_refused():
    follower = Follower(FAST, np.zeros(7))
    for bad in (np.zeros(6), np.full(7, np.nan), np.array([np.inf] * 7)):
        with pytest.raises(BadInput, match="7 finite numbers"):
            follower.set_target(bad)
    with pytest.raises(BadInput, match="not 30 for 60 Hz"):
        Follower(FAST, np.zeros(7), rate=30.0)


def test_a_brake_plan_ends_at_rest_inside_acceleration_and_jerk():
    rng, dt = np.random.default_rng(0), 1 / 250.0
    for limits in (FAST, SOFT, SLOW, Limits(JOINTS, -1, 1, 3.4, 8.0, np.inf)):
        top, jerk = np.asarray(limits.acceleration), np.asarray(limits.jerk)
        v = rng.uniform(-1, 1, (200, 7)) * limits.velocity * 10.0 ** rng.uniform(-8, 0, (200, 7))
        motion, before = limits.moving(np.zeros((200, 7)), v, dt), np.zeros((200, 7))
        for _ in range(int(motion.rows[..., 4].max()) + 1):
            motion = limits.brake(motion, dt)
            assert np.all(np.abs(motion.a) <= top + 1e-12)
            assert np.all(np.abs(motion.a - before) <= jerk * dt + 1e-9)
            before = motion.a
        assert np.abs(motion.v).max() < 1e-12 and np.abs(motion.a).max() == 0.0


def test_a_joint_outside_its_limits_comes_back():
    motion = SOFT.rest(np.full(7, 1.2))
    for _ in range(800):
        motion = SOFT.follow(motion, np.full(7, 0.5), np.zeros(7), 1 / 250.0)
        assert motion.q.max() <= 1.2
    assert np.allclose(motion.q, 0.5)
    assert np.allclose(SOFT.brake(motion, 1 / 250.0).q, motion.q, atol=1e-9)


def test_a_follower_knows_when_it_brakes_and_when_it_rests():
    follower = Follower(FAST, np.zeros(7), rate=250.0)
    assert follower.braking and follower.at_rest and np.array_equal(follower.target, np.zeros(7))
    follower.set_target(np.full(7, 9.0))
    assert not follower.braking and not follower.at_rest and np.array_equal(follower.target, FAST.high)
    run(follower, 250.0, 0.3, lambda k: np.full(7, 1.0))
    follower.brake()
    assert follower.braking and not follower.at_rest
    for _ in range(int(FAST.stop_time * 250) + 2):
        follower.step()
    assert follower.at_rest
