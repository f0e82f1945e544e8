"""The robot's loop in virtual time: what it obeys, when it holds, when it stops."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.world import Spec, State, vector
from instep.robot import Limits, Reading, WorldDriver
from instep.robot.safety import SafetyOptions
from instep.robot.wire import Command

sys.path.append(str(Path(__file__).parent))
from loop_bench import PERIOD, LoopBench
from point_mass_robot import NAMES, PointMass


@pytest.fixture
def bench() -> LoopBench:
    return LoopBench(WorldDriver(PointMass()))


def test_a_robot_waits_for_its_first_command_however_long(bench):
    start = bench.last.reading.q
    bench.tick(500)
    assert bench.last.mode == "idle" and np.array_equal(bench.last.reading.q, start) and bench.last.reading.t == 0.0
    assert bench.command(0.5, 0.5, after=1) == "", "a first command may take its time"
    bench.tick()
    assert bench.last.mode == "run" and bench.last.reading.t == pytest.approx(0.01)


def test_a_command_moves_the_robot_as_the_world_would_move(bench):
    world = PointMass()
    bench.reset(3)
    state = world.reset(3)
    for k in range(20):
        action = np.array([np.sin(k), np.cos(k)])
        assert bench.command(*action) == ""
        bench.tick()
        state = world.step(state, action)
        assert np.array_equal(bench.last.reading.q, state.q) and bench.last.reading.t == state.t
        assert np.array_equal(bench.last.sent, action) and bench.last.echo == ("c", bench.seq)


def test_without_commands_it_obeys_the_last_then_holds_then_stops(bench):
    bench.command(0.3, 0.3)
    modes = []
    for _ in range(60):
        bench.tick()
        modes.append(bench.last.mode)
    # The command came one period before the first tick.
    assert modes[:10] == ["run"] * 10 and modes[10:50] == ["hold"] * 40 and modes[50:] == ["stop"] * 10
    assert bench.last.reason == "No command came for 0.51 s."
    assert bench.loop.counts["holds"] == 1 and bench.loop.counts["stops"] == 1


def test_a_command_ends_a_hold_but_only_a_reset_ends_a_stop(bench):
    bench.command(0.3, 0.3)
    bench.tick(20)
    assert bench.last.mode == "hold"
    bench.command(0.3, 0.3)
    bench.tick()
    assert bench.last.mode == "run"
    bench.tick(60)
    assert bench.last.mode == "stop"
    assert "has stopped: No command came" in bench.command(0.3, 0.3)
    bench.tick()
    assert bench.last.mode == "stop"
    bench.reset()
    assert bench.last.mode == "idle" and bench.command(0.1, 0.1) == ""


def test_a_hold_keeps_a_position_target_and_lets_go_of_a_torque():
    spec = Spec(0.01, vector(["a"], "rad"), vector(["a"], "rad/s"), vector(["p", "t", "s"], ["rad", "Nm", "rad/s"]))

    class Mixed:
        def __init__(self):
            self.spec = spec

        def reset(self, seed=0):
            return PointMass().reset(seed)

        def step(self, state, action):
            return state

        def observe(self, state):
            return {}

    driver = WorldDriver(Mixed())
    driver.reset(0)
    driver.write(np.array([1.0, 2.0, 3.0]))
    assert driver.hold().tolist() == [1.0, 0.0, 0.0]


def test_a_stopped_simulated_robot_stays_subject_to_physics(bench):
    bench.command(1.0, 1.0)
    bench.tick(5)
    moving = bench.last.reading
    bench.tick(300)
    assert bench.last.mode == "stop" and bench.last.reading.t > moving.t
    assert np.allclose(bench.last.reading.v, 0.0, atol=1e-3), "it comes to rest at its last target"


def test_limits_hold_on_the_robots_side_and_a_hold_brakes_inside_them():
    limits = Limits(NAMES, -0.5, 0.5, 1.0, 5.0)
    bench = LoopBench(WorldDriver(PointMass()), limits=limits)
    start = bench.last.reading.q
    sent = [start, start]
    for k in range(80):
        if k < 30:
            bench.command(9.0, -9.0)
        bench.tick()
        if bench.last.mode in ("run", "hold"):
            sent.append(bench.last.sent)
    rows = np.stack(sent)
    v = np.diff(rows, axis=0) / 0.01
    assert np.all(np.abs(rows) <= 0.5 + 1e-9) and np.abs(v).max() <= 1.0 + 1e-9
    assert np.abs(np.diff(v, axis=0) / 0.01).max() <= 5.0 + 1e-9
    assert np.abs(np.diff(rows, 3, axis=0) / 0.01**3).max() <= 100.0 * (1 + 1e-6)
    assert bench.loop.counts["limited"] >= 30 and np.abs(v[-1]).max() < 1e-9


def test_limits_for_another_robot_are_refused_at_once():
    with pytest.raises(BadInput, match="but the robot takes x, y"):
        LoopBench(WorldDriver(PointMass()), limits=Limits(("a",), -1, 1, 1, 1))


def test_in_lock_step_each_command_moves_one_period_and_no_time_passes_between():
    bench = LoopBench(WorldDriver(PointMass()), pace="step")
    bench.reset(1)
    for k in range(10):
        bench.now += 3600 * 10**9
        assert bench.command(0.1 * k, 0.0) == ""
        bench.loop.tick(bench.now)
    assert bench.last.reading.t == pytest.approx(0.10) and bench.last.mode == "run"


def test_in_lock_step_an_action_for_another_state_is_refused():
    bench = LoopBench(WorldDriver(PointMass()), pace="step")
    bench.reset(1)
    tick = bench.last.tick
    assert bench.command(0.0, 0.0, after=tick - 1) == f"The action is for state {tick - 1}, but the robot is at {tick}."


def test_in_lock_step_the_same_step_asked_twice_is_taken_once():
    bench = LoopBench(WorldDriver(PointMass()), pace="step")
    bench.reset(1)
    assert bench.command(0.5, 0.0) == ""
    again = Command("other", 1, bench.last.tick, np.array([0.5, 0.0]))
    assert bench.loop.offer(again) is None and bench.loop.counts["duplicates"] == 1
    bench.tick()
    assert bench.last.reading.t == pytest.approx(0.01)


@pytest.mark.fault(23)
def test_an_action_for_an_old_state_is_refused_while_the_robot_moves(bench):
    bench.command(0.1, 0.1)
    for _ in range(80):
        bench.command(0.1, 0.1)
        bench.tick()
    late = bench.command(0.1, 0.1, after=bench.last.tick - 45)
    assert late == "The action is for a state that is 0.45 s old; 0.25 s is the most."
    assert bench.command(0.1, 0.1, after=bench.last.tick - 20) == ""
    assert bench.loop.counts["stale"] == 1 and bench.loop.counts["refused"] == 1


@pytest.mark.fault(23)
def test_an_action_for_a_state_that_has_not_been_is_refused(bench):
    ahead = bench.last.tick + 10**6
    assert bench.command(0.1, 0.1, after=ahead) == f"The action is for state {ahead}, but the robot is at 1."
    assert bench.loop.counts["future"] == 1 and bench.loop.counts["executed"] == 0


@pytest.mark.fault(29)
def test_a_driver_that_does_not_return_delays_no_hold():
    """The watchdog reads the clock by itself: while `write` waits, it holds, says so, and what follows brakes."""

    class Slow(WorldDriver):
        def __init__(self):
            super().__init__(PointMass())
            self.during = []

        def write(self, action):
            if len(self.during) < 60 and bench.seq > 5:
                for _ in range(60):  # 0.6 s in which nothing returns
                    bench.now += PERIOD
                    bench.loop.watch()
                    self.during.append(bench.loop._mode)
            return super().write(action)

    driver = Slow()
    bench = LoopBench(driver)
    for _ in range(6):
        bench.command(0.3, 0.3)
        bench.tick()
    # The last command was accepted a period before `write` was called.
    assert driver.during.index("hold") == 9 and driver.during.index("stop") == 49
    held = next(shown for shown in bench.published if shown.mode == "hold")
    assert held.reason == "No command came for 0.11 s." and held.echo == ("c", 5), "nothing was answered yet"
    assert bench.last.mode == "stop" and bench.loop.counts["stops"] == 1


@pytest.mark.fault(13)
def test_the_first_command_begins_where_the_robot_is():
    """Whatever is asked for first, the first step is no more than the jerk allows: j T^3."""
    limits, rng = Limits(NAMES, -5.0, 5.0, 1.0, 10.0, 200.0), np.random.default_rng(13)
    for _ in range(100):
        world = PointMass()
        state = world.reset(0)
        driver = WorldDriver(world)
        driver._state = State(0.0, rng.uniform(-3, 3, 2), np.zeros(2), state.hidden)
        bench = LoopBench(driver, limits=limits)
        here = bench.last.reading.q
        bench.command(*rng.uniform(-9, 9, 2))
        bench.tick()
        assert np.all(np.abs(bench.last.sent - here) <= 200.0 * 0.01**3 * (1 + 1e-9) + 1e-12)


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("action", "cause"),
    [([1e300, -1e300], "position"), ([5.0, 0.0], "position"), ([0.9, 0.0], "velocity"), ([0.2, 0.2], "acceleration")],
)
def test_what_the_limits_change_is_counted_by_the_limit(action, cause):
    bench = LoopBench(WorldDriver(PointMass()), limits=Limits(NAMES, -1.0, 1.0, 50.0, 50.0))
    bench.command(*action)
    bench.tick()
    assert bench.loop.counts["limited"] == 1 and bench.loop.counts[f"limited_{cause}"] == 1
    assert np.all(np.abs(bench.last.sent) <= 0.11)


def test_a_driver_that_raises_stops_the_robot_and_the_client_learns_only_its_kind(bench, caplog):
    broken = LoopBench(WorldDriver(PointMass(breaks_at=0.2)))
    broken.command(5.0, 0.0)
    broken.tick(20)
    assert broken.last.mode == "stop" and broken.last.reason == "The point mass flew away."

    class Buggy(WorldDriver):
        def write(self, action):
            raise KeyError("/etc/secret")

    buggy = LoopBench(Buggy(PointMass()))
    buggy.command(0.0, 0.0)
    buggy.tick()
    assert buggy.last.mode == "stop" and buggy.last.reason == "Its driver raised KeyError."
    assert "/etc/secret" in caplog.text, "the robot's own log says it all"


def test_a_robot_that_cannot_be_read_is_not_served():
    class Blind(WorldDriver):
        def read(self):
            return Reading(0.0, np.full(2, np.nan), np.zeros(2))

    with pytest.raises(BadInput, match="cannot be read"):
        LoopBench(Blind(PointMass()))


def test_a_driver_whose_numbers_do_not_fit_its_spec_is_stopped(bench):
    class Odd(WorldDriver):
        bad = False

        def read(self):
            return Reading(0.0, np.zeros(3), np.zeros(2)) if self.bad else super().read()

    driver = Odd(PointMass())
    odd = LoopBench(driver)
    driver.bad = True
    odd.tick()
    assert odd.last.mode == "stop" and "but says it has (2,)" in odd.last.reason


def test_holding_must_come_before_stopping():
    with pytest.raises(BadInput, match="must hold before it stops"):
        SafetyOptions(hold_after=0.6, stop_after=0.5)


@pytest.mark.fault(39)
def test_readings_that_a_damaged_packet_leaves_out_are_bridged():
    class Bus(WorldDriver):
        rng, share = np.random.default_rng(39), 0.02

        def read(self):
            reading = super().read()
            lost = self.rng.random(2) < self.share
            return replace(reading, q=np.where(lost, np.nan, reading.q))

    driver = Bus(PointMass())
    bench = LoopBench(driver)
    for _ in range(500):
        bench.command(0.3, -0.3)
        bench.tick()
        assert np.isfinite(bench.last.reading.q).all()
    counts = bench.loop.counts
    assert counts["invalid_readings"] > 8 and counts["executed"] == 500 and not counts["holds"] + counts["stops"]
    driver.share = 1.0
    for _ in range(12):
        bench.command(0.3, -0.3)
        bench.tick()
    assert bench.last.mode == "hold"
