"""Readings that cannot be right are found within three periods, hold the robot, and are named in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.world import Spec, vector
from instep.robot import Clock, Limits, Reading
from instep.robot.control_loop import RobotLoop
from instep.robot.safety_options import SafetyOptions
from instep.robot.sensor_checks import SensorChecks
from instep.robot.wire import Command

JOINTS = ("base", "elbow", "wrist")
ARM = Spec(0.02, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "rad"), {})
LIMITS = Limits(JOINTS, -2.9, 2.9, 2.0, 10.0)
START = np.array([0.4, -0.9, 1.6])


class Arm:
    """An arm whose joints follow at once, with noise, and whose sensors can be spoilt."""

    def __init__(self):
        self.spec, self.q, self.v, self.t = ARM, START, np.zeros(3), 0.0
        self.rng = np.random.default_rng(0)
        self.spoil = lambda reading: reading

    def read(self) -> Reading:
        q = self.q + self.rng.normal(size=3) * 2e-4
        return self.spoil(Reading(self.t, q, self.v, {}, {"camera": self.t}))

    def write(self, action):
        self.v, self.q = (action - self.q) / 0.02, np.array(action)
        self.passed(1)
        return action

    def hold(self):
        return self.q

    def passed(self, periods):
        self.t += 0.02 * periods

    def reset(self, seed): ...

    def stop(self): ...


class Bench:
    """The arm's loop in virtual time, fed with a smooth motion."""

    def __init__(self):
        self.arm, self.now, self.published, self.count = Arm(), 10**9, [], 0
        clock = Clock(source=lambda: self.now)
        self.loop = RobotLoop(self.arm, "real", SafetyOptions(limits=LIMITS, clock=clock), self.published.append)
        self.loop.begin()

    def run(self, periods: int) -> list[str]:
        modes = []
        for _ in range(periods):
            self.count += 1
            target = START + 0.4 * (1 - np.cos(0.03 * self.count))
            self.loop.offer(Command("c", self.count, self.published[-1].tick, target))
            self.now += 20_000_000
            self.loop.tick(self.now)
            modes.append(self.loop._mode)
        return modes


def shifted(**changes):
    """Spoils a reading: `q` and `v` map arrays, other fields are replaced."""

    def spoil(reading: Reading) -> Reading:
        fields = {"t": reading.t, "q": reading.q, "v": reading.v, "seen": {}, "stamps": reading.stamps}
        for name, change in changes.items():
            fields[name] = change(fields[name])
        return Reading(**fields)

    return spoil


FAULTS = {
    "huge": (shifted(q=lambda q: q + np.array([0, 1e7, 0])), "The reading of elbow is 1e+07, which no sensor shows."),
    "a spike": (
        shifted(q=lambda q: q + np.array([1.0, 0, 0])),
        "ms, faster than it can move: a sensor fault, or it slipped.",
    ),
    "a wrap": (shifted(q=lambda q: q - np.array([0, 0, 2 * np.pi])), "wrist reads -4"),
    "degrees": (shifted(q=np.rad2deg), "outside its range; the sensors seem to give degrees."),
    "a stamp that is not a number": (shifted(stamps=lambda s: {"camera": np.nan}), "The time of camera is not"),
}


@pytest.mark.fault(10)
@pytest.mark.parametrize("name", FAULTS)
def test_a_spoilt_sensor_is_found_within_three_periods_and_named(name):
    spoil, sentence = FAULTS[name]
    bench = Bench()
    assert set(bench.run(60)) == {"run"} and bench.loop.counts["doubtful"] == 0
    bench.arm.spoil = spoil
    modes = bench.run(4)
    assert modes[:2] == ["run", "run"] and modes[2] == "hold"
    assert sentence in bench.published[-1].reason, bench.published[-1].reason
    shown = bench.published[-1].reading
    assert np.abs(shown.q - START).max() < 1.0, "what cannot be right is not published"
    assert bench.run(30)[-1] == "stop", "it does not go on blindly"


@pytest.mark.fault(12)
def test_joints_that_come_in_another_order_are_found_in_motion():
    bench = Bench()
    bench.run(60)
    bench.arm.spoil = shifted(q=lambda q: q[[2, 0, 1]])
    assert bench.run(3)[-1] == "hold" and "the joints seem to come in another order." in bench.published[-1].reason


@pytest.mark.fault(10)
def test_one_spike_is_left_out_and_the_robot_goes_on():
    bench = Bench()
    bench.run(30)
    bench.arm.spoil = shifted(q=lambda q: q + 1.5)
    bench.run(1)
    bench.arm.spoil = lambda reading: reading
    assert set(bench.run(20)) == {"run"} and bench.loop.counts["doubtful"] == 1


@pytest.mark.fault(10)
def test_a_sensor_that_freezes_in_motion_while_its_clock_runs_is_found():
    bench = Bench()
    bench.run(60)
    last = bench.arm.read()
    bench.arm.spoil = shifted(q=lambda q: last.q, v=lambda v: last.v)
    modes = bench.run(4)
    assert modes[2] == "hold" and "its position does not change: frozen." in bench.published[-1].reason


@pytest.mark.fault(10)
def test_a_sensor_that_froze_at_rest_is_found_when_commands_move_away():
    checks = SensorChecks(ARM, dict(zip(("low", "high", "velocity"), LIMITS.bounds[:, :3].T, strict=True)))
    sent, found = START, ""
    for k in range(60):
        sent = sent + 0.01
        found = found or checks.doubt(Reading(0.02 * k, START, np.zeros(3)), sent)
    assert found == "The position of base has not changed at all while its commands moved: frozen, or blocked."
    checks.reset()
    assert not any(checks.doubt(Reading(0.02 * k, START, np.zeros(3)), START) for k in range(100)), "at rest it may"


@pytest.mark.fault(11)
def test_a_robot_that_reads_degrees_is_not_served():
    arm = Arm()
    arm.spoil = shifted(q=np.rad2deg)
    loop = RobotLoop(arm, "real", SafetyOptions(limits=LIMITS), lambda snapshot: None)
    with pytest.raises(BadInput, match=r"cannot be read: wrist reads 9.*seem to give degrees"):
        loop.begin()


def test_in_lock_step_a_reading_that_cannot_be_right_stops_the_robot_at_once():
    shown, arm = [], Arm()
    loop = RobotLoop(arm, "step", SafetyOptions(limits=LIMITS), shown.append)
    loop.begin()
    arm.spoil = shifted(q=lambda q: q + 1.0)
    loop.offer(Command("c", 1, shown[-1].tick, START))
    loop.tick(loop.clock.mono())
    assert shown[-1].mode == "stop" and "base jumped by 1 rad" in shown[-1].reason


def test_a_fast_motion_with_noise_and_gaps_is_not_doubted():
    rng = np.random.default_rng(3)
    checks = SensorChecks(ARM, dict(zip(("low", "high", "velocity"), LIMITS.bounds[:, :3].T, strict=True)))
    t, last = 0.0, LIMITS.rest(START)
    for k in range(2000):
        last = LIMITS.towards(last, rng.uniform(-4, 4, 3) if k % 50 == 0 else last.target, 0.02)
        t += 0.02
        if rng.random() < 0.2:
            continue  # readings are lost
        assert checks.doubt(Reading(t, last.q + rng.normal(size=3) * 0.01, last.v), last.q) == ""
