"""Readings that cannot be right are found within three periods, hold the robot, and are named in one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.world import Spec, vector
from instep.robot import Clock, Limits, Reading
from instep.robot.control_loop import RobotLoop
from instep.robot.safety import SafetyOptions
from instep.robot.signal_checks import SensorChecks
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


def checks_of(spec: Spec, low: float = -2.9, high: float = 2.9, velocity: float = 2.0, **named) -> SensorChecks:
    size = len(spec.action.labels)
    bounds = {"low": np.full(size, low), "high": np.full(size, high), "velocity": np.full(size, velocity)}
    return SensorChecks(spec, bounds, **named)


def test_a_wrong_size_and_a_time_that_is_none_are_named():
    checks = checks_of(ARM)
    for q, v in ((np.zeros(4), np.zeros(3)), (np.zeros(3), np.zeros(2))):
        assert "but says it has (3,) and (3,)" in checks.doubt(Reading(0.0, q, v))
    assert checks.doubt(Reading(np.inf, START, np.zeros(3))) == "The time of a reading is not a finite number."
    assert checks.certain, "three in a row"
    assert checks.doubt(Reading(0.0, START, np.zeros(3))) == "" and not checks.certain
    assert "is -1e+06, which no sensor shows" in checks.doubt(Reading(0.0, START, np.array([0.0, -1e6, 0.0])))
    assert checks.doubt(Reading(0.0, START, np.array([0.0, -0.99e6, 0.0]))) == ""


def test_a_wrap_and_degrees_inside_a_wide_range_are_told_apart_from_a_slip():
    for turn in (-2 * np.pi, 2 * np.pi, 4 * np.pi):
        checks = checks_of(ARM, -100.0, 100.0)
        checks.doubt(Reading(0.0, START, np.zeros(3)))
        said = checks.doubt(Reading(0.02, START + np.array([0.0, turn, 0.05]), np.zeros(3)))
        assert said == f"elbow jumped by {turn:.3g} rad within 20 ms; its sensor wrapped by 2 pi."
    checks = checks_of(ARM, -200.0, 200.0)
    checks.doubt(Reading(0.0, START, np.zeros(3)))
    assert "the sensors seem to give degrees." in checks.doubt(Reading(0.02, np.rad2deg(START), np.zeros(3)))
    one = checks.doubt(Reading(0.04, np.array([*START[:2], np.rad2deg(START[2])]), np.zeros(3)))
    assert one.endswith("faster than it can move: a sensor fault, or it slipped."), "one joint alone is no unit"
    two = checks.doubt(Reading(0.04, START + np.array([1.0, 1.0, 0.0]), np.zeros(3)))
    assert two.endswith("faster than it can move: a sensor fault, or it slipped.")


def test_how_far_outside_its_range_a_joint_may_be_read_depends_on_its_unit():
    slide = Spec(0.02, vector(("x", "y"), "m"), vector(("x", "y"), "m/s"), vector(("x", "y"), "m"), {})
    for spec, beyond, unit in ((ARM, 1.0, "degrees"), (slide, 0.25, "millimetres")):
        size = len(spec.q.labels)
        for side, edge in ((1.0, 0.5), (-1.0, -0.3)):
            for extra, found in ((beyond - 0.01, False), (beyond + 0.01, True)):
                q = np.zeros(size)
                q[1] = edge + side * extra
                said = checks_of(spec, -0.3, 0.5).doubt(Reading(0.0, q, np.zeros(size)))
                assert bool(said) == found and (not found or said.endswith("outside its range."))
        said = checks_of(spec, -3.0, 3.0).doubt(Reading(0.0, np.full(size, 100.0), np.zeros(size)))
        assert said.endswith(f"outside its range; the sensors seem to give {unit}.")
        far = checks_of(spec, -3.0, 3.0).doubt(Reading(0.0, np.array([1e5] + [0.0] * (size - 1)), np.zeros(size)))
        assert far.endswith("outside its range."), "what is outside in the other unit too is no other unit"


@pytest.mark.parametrize(("unit", "slack"), [("rad", 0.1), ("m", 0.03)])
@pytest.mark.parametrize("gap", [1, 4, 10, 50])
def test_how_far_a_joint_may_have_moved_grows_with_the_gap_up_to_ten_periods(unit, slack, gap):
    spec = Spec(0.02, vector(("x",), unit), vector(("x",), f"{unit}/s"), vector(("x",), unit), {})
    allowed = 4.0 * 2.0 * 0.02 * (min(gap, 10) + 1) + slack
    for share, found in ((0.99, False), (1.01, True)):
        checks = checks_of(spec, -9.0, 9.0)
        checks.doubt(Reading(0.0, np.zeros(1), np.zeros(1)))
        said = checks.doubt(Reading(0.02 * gap, np.array([-share * allowed]), np.zeros(1)))
        assert bool(said) == found, said


def test_what_was_doubted_does_not_become_possible_by_waiting():
    checks = checks_of(ARM)
    checks.doubt(Reading(0.0, START, np.zeros(3)))
    for k in range(1, 40):
        assert checks.doubt(Reading(0.02 * k, START + 0.5, np.zeros(3)))
    assert checks.certain
    checks.reset()
    assert checks.doubt(Reading(0.8, START + 0.5, np.zeros(3))) == "", "after a reset the robot may be anywhere"
    assert not checks.certain


def test_coordinates_that_no_command_drives_may_jump_but_not_be_huge():
    labels = ("base", "cup.x", "cup.y")
    spec = Spec(
        0.02, vector(labels, ["rad", "m", "m"]), vector(labels, ["rad/s", "m/s", "m/s"]), vector(["motor"], "rad"), {}
    )
    checks = checks_of(spec, joints=("base",))
    checks.doubt(Reading(0.0, np.zeros(3), np.zeros(3)))
    assert checks.doubt(Reading(0.02, np.array([0.1, 5.0, -50.0]), np.zeros(3))) == ""
    assert "base jumped by 2.4 rad" in checks.doubt(Reading(0.04, np.array([2.5, 5.0, -50.0]), np.zeros(3)))
    assert "cup.y is 1e+07" in checks.doubt(Reading(0.04, np.array([0.1, 5.0, 1e7]), np.zeros(3)))
    # Nothing of it is driven: an object that lies still is not frozen.
    free = checks_of(spec)
    assert not any(free.doubt(Reading(0.02 * k, np.zeros(3), np.ones(3)), np.full(1, 0.1 * k)) for k in range(60))


@pytest.mark.parametrize(
    ("dt", "speed", "first"),
    [(0.02, 0.049, None), (0.02, 0.06, 2), (0.02, -2.0, 2), (0.002, 0.06, 9), (0.002, -0.2, 3)],
)
def test_a_joint_that_moves_is_frozen_once_its_sensor_would_have_seen_it(dt, speed, first):
    """The coarsest sensor sees 1 mrad; a joint below 0.05 rad/s may well stand still."""
    checks = checks_of(replace(ARM, dt=dt))
    said = [checks.doubt(Reading(dt * k, START, np.array([0.0, speed, 0.0]))) for k in range(12)]
    assert next((k for k, sentence in enumerate(said) if sentence), None) == first
    if first is not None:
        assert said[first] == f"elbow moves at {speed:.3g} rad/s, but its position does not change: frozen."
        assert checks.certain


@pytest.mark.parametrize(("away", "found"), [(0.19, False), (0.21, True)])
def test_a_joint_at_rest_is_frozen_only_once_commands_are_far_and_for_long(away, found):
    checks, v = checks_of(ARM), np.zeros(3)
    said = ""
    for k in range(40):
        sent = START + np.array([0.0, 0.0, -away if k > 5 else 0.0])
        said = said or checks.doubt(Reading(0.02 * k, START, v), sent)
        if k <= 15:
            assert not said, "0.3 s must have gone by"
    assert bool(said) == found and (not found or "position of wrist has not changed" in said)
    # A reading that comes again with the same stamp says nothing new, and without commands nothing is known.
    checks.reset()
    assert not any(checks.doubt(Reading(0.0, START, np.full(3, 2.0))) for _ in range(20))
    checks.reset()
    assert not any(checks.doubt(Reading(0.02 * k, START, v), None) for k in range(60))


def test_a_slide_is_frozen_by_its_own_bounds():
    slide = Spec(0.05, vector(("x",), "m"), vector(("x",), "m/s"), vector(("x",), "m"), {})
    for speed, found in ((0.019, False), (0.025, True)):
        checks = checks_of(slide)
        assert any(checks.doubt(Reading(0.05 * k, np.zeros(1), np.full(1, speed))) for k in range(9)) == found
    for away, found in ((0.049, False), (0.051, True)):
        checks, rest = checks_of(slide), np.zeros(1)
        sent = [np.full(1, away if k > 2 else 0.0) for k in range(12)]
        assert any(checks.doubt(Reading(0.05 * k, rest, rest), sent[k]) for k in range(12)) == found


@pytest.mark.parametrize(("unit", "near", "far", "said"), [("rad", 12.4, 12.7, "degrees"), ("m", 9.9, 10.2, "millime")])
def test_another_unit_is_named_only_where_numbers_are_that_large(unit, near, far, said):
    spec = Spec(0.02, vector("ab", unit), vector("ab", f"{unit}/s"), vector("ab", unit), {})
    for value, named in ((near, False), (far, True), (-far, True)):
        sentence = checks_of(spec, -3.0, 3.0).doubt(Reading(0.0, np.array([0.0, value]), np.zeros(2)))
        assert "b reads" in sentence and (said in sentence) == named


def test_two_doubtful_readings_are_not_yet_certain():
    checks, nan = checks_of(ARM), Reading(0.0, np.full(3, np.nan), np.zeros(3))
    assert not checks.certain
    for _ in range(2):
        for certain in (False, False, True):
            assert checks.doubt(nan) and checks.certain == certain
        checks.reset()
        assert not checks.certain


def test_a_jump_of_two_joints_is_told_by_where_both_went():
    def said(before, after) -> str:
        checks = checks_of(ARM, -200.0, 200.0)
        checks.doubt(Reading(0.0, np.array(before), np.zeros(3)))
        return checks.doubt(Reading(0.02, np.array(after), np.zeros(3)))

    assert said([0.4, -0.9, 1.6], [-0.9, 0.4, 1.6]).endswith("the joints seem to come in another order.")
    assert said([0.4, -0.9, 1.6], [-0.9, 2.4, 1.6]).endswith("or it slipped."), "only one of them is another's"
    assert said([0.4, -0.9, 0.0], [22.9, -51.6, 0.0]).endswith("the sensors seem to give degrees.")


def test_an_arm_with_slides_and_joints_in_other_units_is_named_by_the_farthest():
    spec = Spec(0.02, vector("ab", ["rad", "m"]), vector("ab", ["rad/s", "m/s"]), vector("ab", ["rad", "m"]), {})
    said = checks_of(spec, -1.0, 1.0).doubt(Reading(0.0, np.array([20.0, 900.0]), np.zeros(2)))
    assert said == "b reads 900 m, outside its range; the sensors seem to give millimetres."


def test_the_time_at_rest_is_counted_from_the_first_reading():
    checks = checks_of(ARM)
    for k in range(15):
        assert not checks.doubt(Reading(100.0 + 0.02 * k, START, np.zeros(3)), START + 0.1 * k)
    assert checks.doubt(Reading(100.32, START, np.zeros(3)), START + 2.0)
