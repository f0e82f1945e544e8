"""What the robot's loop makes of requests and readings that are late, repeated, out of order, faulty or backwards."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.robot import Limits, Reading, WorldDriver, control_loop
from instep.robot.wire import Command, Reset

sys.path.append(str(Path(__file__).parent))
from loop_bench import LoopBench
from point_mass_robot import NAMES, PointMass


class Spoilt(WorldDriver):
    """A point mass whose readings can be spoilt."""

    def __init__(self):
        super().__init__(PointMass())
        self.spoil = lambda reading: reading

    def read(self) -> Reading:
        return self.spoil(super().read())


@pytest.fixture
def bench() -> LoopBench:
    return LoopBench(WorldDriver(PointMass()))


def test_repeated_and_late_requests_are_counted_and_dropped(bench) -> None:
    def offer(connection: str, seq: int, x: float) -> None:
        assert bench.loop.offer(Command(connection, seq, bench.last.tick, np.array([x, 0.0]))) is None

    counts = bench.loop.counts
    assert bench.last.echo == ("", 0), "nothing took effect yet"
    offer("a", 5, 0.5)
    offer("a", 5, 0.7)
    offer("a", 5, 0.8)
    offer("a", 4, 0.9)
    assert counts["duplicates"] == 2 and counts["out_of_order"] == 1 and counts["superseded"] == 0
    bench.tick()
    assert bench.last.sent[0] == 0.5 and bench.last.echo == ("a", 5) and counts["executed"] == 1
    offer("b", 1, 0.1)  # another connection counts anew
    offer("b", 2, 0.2)
    assert counts["superseded"] == 1
    bench.tick()
    assert bench.last.sent[0] == 0.2 and bench.last.echo == ("b", 2) and counts["executed"] == 2
    assert counts["duplicates"] == 2 and counts["out_of_order"] == 1 and counts["refused"] == 0


def test_in_lock_step_a_step_that_is_another_one_is_no_duplicate() -> None:
    bench = LoopBench(WorldDriver(PointMass()), pace="step")
    assert bench.command(0.1, 0.0) == ""
    assert bench.loop.offer(Command("other", 1, bench.last.tick - 1, np.zeros(2))).kind == "invalid"
    assert bench.loop.counts["duplicates"] == 0 and bench.loop.counts["refused"] == 1
    assert bench.loop.counts["future"] == 0
    assert bench.loop.offer(Reset("other", 2, 0)) is None, "a reset is never the same step"
    assert bench.loop.counts["superseded"] == 1
    bench.tick()
    assert bench.last.episode == 1


def test_an_action_for_a_state_that_is_forgotten_is_refused(bench) -> None:
    for _ in range(300):
        bench.command(0.1, 0.1)
        bench.tick()
    assert len(bench.loop._times) == 256
    assert bench.command(0.1, 0.1, after=3) == (
        "The action is for a state that is more than 0.25 s old; 0.25 s is the most."
    )


def test_numbers_that_are_none_are_refused_and_counted_and_the_last_command_goes_on(bench) -> None:
    bench.command(0.2, 0.2)
    bench.tick()
    for bad in ([0.1], [np.nan, 0.0], [np.inf, 0.0]):
        assert "action" in bench.command(*bad)
    bench.tick()
    counts = bench.loop.counts
    assert counts["invalid"] == counts["refused"] == 3 and counts["executed"] == 1 and bench.last.mode == "run"
    assert np.array_equal(bench.last.sent, [0.2, 0.2])


def test_a_stop_drops_what_waits_and_is_told_at_once(bench) -> None:
    bench.command(0.2, 0.2)
    bench.tick(3)
    shown, before = len(bench.published), bench.last
    bench.command(0.9, 0.9)
    bench.loop.stop("The operator asked for it.")
    bench.loop.stop("A second reason comes too late.")
    assert len(bench.published) == shown + 2 and bench.last.reason == "The operator asked for it."
    assert bench.last.mono == before.mono and bench.last.reading is before.reading
    bench.tick(5)
    assert bench.loop.counts["executed"] == 1 and bench.loop.counts["stops"] == 1
    assert bench.loop.offer(Command("c", 99, bench.last.tick, np.zeros(2))).kind == "stopped"
    assert np.array_equal(bench.last.sent, [0.2, 0.2]), "nothing new is sent"


def test_a_fault_that_the_driver_reads_stops_the_robot() -> None:
    driver = Spoilt()
    bench = LoopBench(driver)
    bench.command(0.1, 0.1)
    bench.tick()
    driver.spoil = lambda reading: replace(reading, fault="The drive is too hot.")
    bench.tick()
    assert bench.last.mode == "stop" and bench.last.reason == "The drive is too hot."
    assert bench.loop.counts["stops"] == 1 and bench.loop.counts["failures"] == 0


def test_readings_that_run_backwards_are_counted_and_not_shown() -> None:
    driver = Spoilt()
    bench = LoopBench(driver)
    bench.command(0.1, 0.1)
    bench.tick(5)
    shown = len(bench.published)
    driver.spoil = lambda reading: replace(reading, t=reading.t - 0.05)
    bench.command(0.1, 0.1)
    bench.tick(3)
    assert bench.loop.counts["backwards"] == 3 and len(bench.published) == shown
    driver.spoil = lambda reading: reading
    bench.command(0.1, 0.1)
    bench.tick(1)
    assert bench.last.mode == "run" and bench.last.reading.t == pytest.approx(0.09)


def test_a_reading_that_is_not_new_is_not_shown_again_and_after_a_while_the_robot_holds() -> None:
    driver = Spoilt()
    bench = LoopBench(driver)
    bench.command(0.1, 0.1)
    bench.tick(5)
    kept, shown = bench.last.reading, len(bench.published)
    driver.spoil = lambda reading: kept
    for _ in range(9):
        bench.command(0.1, 0.1)
        bench.tick()
    assert len(bench.published) == shown
    for _ in range(4):
        bench.command(0.1, 0.1)
        bench.tick()
    assert bench.last.mode == "hold" and bench.last.reason.startswith("No valid reading came for 0.1")
    driver.spoil = lambda reading: reading
    bench.command(0.1, 0.1)
    bench.tick(2)
    assert bench.last.mode == "run", "it goes on when readings come again"


def test_readings_that_are_not_finite_are_counted_apart_from_those_that_are_doubtful() -> None:
    driver = Spoilt()
    bench = LoopBench(driver, limits=Limits(NAMES, -1.0, 1.0, 1.0, 10.0))
    for spoil, counted in (
        (lambda reading: replace(reading, t=np.nan), "invalid_readings"),
        (lambda reading: replace(reading, q=np.array([np.nan, 0.0])), "invalid_readings"),
        (lambda reading: replace(reading, v=np.array([0.0, np.inf])), "invalid_readings"),
        (lambda reading: replace(reading, q=reading.q + 0.6), "doubtful"),
    ):
        before = bench.loop.counts[counted]
        bench.command(0.0, 0.0)
        driver.spoil = spoil
        bench.tick()
        driver.spoil = lambda reading: reading
        bench.tick()
        assert bench.loop.counts[counted] == before + 1
    assert bench.loop.counts["invalid_readings"] == 3 and bench.loop.counts["doubtful"] == 1


def test_a_robot_that_cannot_be_read_after_a_reset_says_so_and_takes_no_command() -> None:
    driver = Spoilt()
    bench = LoopBench(driver)
    driver.spoil = lambda reading: replace(reading, q=np.full(2, np.nan))
    bench.reset()
    assert bench.last.tick == 1, "there is nothing to show"
    bench.command(0.1, 0.1)
    bench.tick()
    assert (
        bench.last.mode == "stop" and bench.last.reason == "No position of the robot is known, so no command is sent."
    )
    assert bench.loop.counts["failures"] == 1 and np.array_equal(bench.last.sent, [0.0, 0.0])


def test_a_driver_that_fails_each_period_is_logged_once(caplog) -> None:
    class Failing(WorldDriver):
        failing = False

        stops = 0

        def read(self):
            if self.failing:
                raise OSError("gone")
            return super().read()

        def stop(self):
            self.stops += 1

    driver = Failing(PointMass())
    bench = LoopBench(driver)
    driver.failing = True
    bench.tick()
    assert driver.stops == 1, "it is stopped in the same period"
    bench.tick(19)
    assert driver.stops == 1
    assert bench.loop.counts["failures"] == 20 and bench.loop.counts["stops"] == 1
    assert sum("driver failed" in each.message for each in caplog.records) == 1


def test_a_test_motion_after_a_reset_waits_for_the_robot_only_at_its_own_pace(monkeypatch) -> None:
    for pace, waits in (("real", True), ("step", False)):
        slept, driver = [], WorldDriver(PointMass())
        # A spring that is soft for its mass: slow limits let it follow.
        bench = LoopBench(driver, pace=pace, wiggle=True, limits=Limits(NAMES, -1.0, 1.0, 0.3, 2.0))
        monkeypatch.setattr(control_loop.time, "sleep", slept.append)
        bench.reset()
        assert bench.last.mode == "idle", bench.last.reason
        assert bool(slept) == waits and set(slept) <= {driver.spec.dt}
        assert bench.last.reading.t > 0.1, "it has moved"


def test_waiting_times_are_never_shorter_than_a_few_periods() -> None:
    """A robot at 5 Hz does not hold between two of its own commands."""
    bench = LoopBench(WorldDriver(PointMass(dt=0.2)))
    bench.command(0.1, 0.1)
    since = {}
    for k in range(120):
        bench.now += 10_000_000
        bench.loop.watch() if k % 20 else bench.loop.tick(bench.now)
        since.setdefault(bench.loop._mode, (k + 1) * 0.01)
    assert since["hold"] == pytest.approx(0.51) and since["stop"] == pytest.approx(1.01)


def test_a_robot_that_was_never_read_can_be_stopped_and_shows_nothing() -> None:
    shown = []
    loop = control_loop.RobotLoop(WorldDriver(PointMass()), "real", control_loop.SafetyOptions(), shown.append)
    loop.stop("Enough.")
    assert not shown and loop.counts["stops"] == 1
    assert loop.offer(Command("c", 1, 0, np.zeros(2))).kind == "stopped"


def test_after_a_reset_the_robot_may_be_anywhere_and_what_it_was_blamed_for_is_forgotten() -> None:
    class Carried(WorldDriver):
        """A slide that does not move at all, and that is put somewhere else by a reset."""

        def __init__(self):
            super().__init__(PointMass())
            self.place, self.t = np.zeros(2), 0.0

        def read(self):
            return Reading(self.t, self.place + 1e-4 * np.sin(1e3 * self.t), np.zeros(2))

        def write(self, action):
            self.t += 0.01
            return action

        def reset(self, seed):
            self.place = np.array([0.9, -0.9])

    bench = LoopBench(Carried(), limits=Limits(NAMES, -1.0, 1.0, 1.0, 10.0))
    for k in range(200):
        bench.command(min(0.004 * k, 0.7), 0.0)
        bench.tick()
    assert bench.loop._mode != "run" and "does not follow" in bench.last.reason
    bench.reset()
    assert bench.last.mode == "idle" and bench.last.reading.q[0] == pytest.approx(0.9, abs=1e-3)
    assert bench.loop.counts["doubtful"] == 0
    bench.command(0.9, -0.9)
    bench.tick()
    assert bench.last.mode == "run" and not bench.last.reason


def test_a_doubt_is_told_where_readings_are_missing_and_not_where_commands_are() -> None:
    driver = Spoilt()
    bench = LoopBench(driver, limits=Limits(NAMES, -1.0, 1.0, 1.0, 10.0))
    bench.command(0.0, 0.0)
    bench.tick(2)
    driver.spoil = lambda reading: replace(reading, q=reading.q + 0.6)
    for _ in range(11):
        bench.command(0.0, 0.0)
        bench.tick()
    assert bench.last.mode == "hold" and bench.last.reason.startswith("x jumped by 0.6 m")
    assert bench.loop._reason.startswith("No valid reading came for 0.11 s. x jumped by")
    driver.spoil = lambda reading: reading
    bench.command(0.0, 0.0)
    bench.tick(10)
    driver.spoil = lambda reading: replace(reading, q=reading.q + 0.6)
    bench.tick(2)
    assert bench.loop._mode == "hold" and bench.loop._reason == "No command came for 0.12 s."
