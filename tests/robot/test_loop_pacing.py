"""The robot's loop by its clock and by its commands: periods on a grid, late ones, resets, and the stop at the end."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import LinkLost
from instep.robot import Limits, Reading, WorldDriver, control_loop
from instep.robot.wire import Command, Reset

sys.path.append(str(Path(__file__).parent))
from loop_bench import PERIOD, LoopBench
from point_mass_robot import NAMES, PointMass


class Paced(WorldDriver):
    """A point mass that notes when it is read, ends the loop after some periods, and can take its time."""

    def __init__(self, periods: int):
        super().__init__(PointMass())
        self.over, self.periods = threading.Event(), periods
        self.read_at: list[int] = []
        self.went_by: list[int] = []
        self.stops, self.passing = 0, False
        self.bench: LoopBench
        self.writing = self.resetting = 0.0

    def read(self) -> Reading:
        if hasattr(self, "bench"):
            self.read_at.append(self.bench.now)
            if len(self.read_at) >= self.periods:
                self.over.set()
            elif self.writing or self.resetting:
                self.bench.command(0.1, 0.1)
        return super().read()

    def write(self, action):
        if not self.passing:
            self.bench.now += round(self.writing * 1e9)
        return super().write(action)

    def reset(self, seed):
        self.bench.now += round(self.resetting * 1e9)
        super().reset(seed)

    def passed(self, periods):
        self.went_by.append(periods)
        self.passing = True
        super().passed(periods)
        self.passing = False

    def stop(self):
        self.stops += 1
        super().stop()


def paced(monkeypatch, driver: Paced, **safety) -> LoopBench:
    """A loop by the clock whose sleeps move the virtual clock."""
    bench = LoopBench(driver, **safety)
    driver.bench = bench

    def sleep(seconds: float) -> None:
        bench.now += round(seconds * 1e9)

    monkeypatch.setattr(control_loop.time, "sleep", sleep)
    # The watchdog has tests of its own; here its thread would look at a clock that leaps.
    monkeypatch.setattr(bench.loop, "watch", lambda: None)
    return bench


def test_periods_lie_on_a_grid_and_the_robot_is_stopped_at_the_end(monkeypatch) -> None:
    driver = Paced(50)
    bench = paced(monkeypatch, driver)
    begin = bench.now
    bench.loop.run(driver.over)
    assert np.array_equal(driver.read_at, begin + PERIOD * np.arange(1, 51)) and driver.stops == 1
    assert bench.loop.counts["overruns"] == bench.loop.counts["missed"] == 0


@pytest.mark.parametrize("took", [0.003, 0.009, 0.015, 0.0199, 0.0201, 0.035, 0.095])
def test_a_write_that_takes_long_costs_whole_periods_and_none_is_made_up_for(monkeypatch, took: float) -> None:
    driver = Paced(24)
    driver.writing = took
    bench = paced(monkeypatch, driver, hold_after=1.0, stop_after=2.0)
    begin = bench.now
    bench.command(0.1, 0.1)
    bench.loop.run(driver.over)
    counts, ticks = bench.loop.counts, (np.array(driver.read_at) - round(took * 1e9) - begin) / PERIOD
    assert counts["stops"] == counts["holds"] == 0
    assert len(ticks) + counts["missed"] == np.floor(ticks[-1] + 1e-9), "each period of the grid ran or was missed"
    assert np.diff(ticks).min() >= max(took / 0.01, 1.0) - 1e-9, "no period is made up for in haste"
    assert bool(counts["overruns"]) == bool(counts["missed"]) == (took > 0.01)
    assert sum(driver.went_by) <= 3 * counts["overruns"] and max(driver.went_by, default=0) <= 3
    if took == 0.095:
        assert set(driver.went_by) == {3}


def test_the_time_a_reset_takes_is_not_missed(monkeypatch) -> None:
    driver = Paced(20)
    driver.resetting = 0.7
    bench = paced(monkeypatch, driver)
    assert bench.loop.offer(Reset("c", 1, 3)) is None
    bench.seq = 1
    bench.loop.run(driver.over)
    assert bench.loop.counts["overruns"] == 0 and bench.last.episode == 1 and bench.last.mode == "run"
    assert np.all(np.diff(driver.read_at) == PERIOD)


def test_missed_periods_slow_the_robot_down_for_a_second() -> None:
    fast = Limits(NAMES, -5.0, 5.0, 0.5, 30.0, 1e4)
    bench = LoopBench(WorldDriver(PointMass()), limits=fast)

    def speeds(periods: int) -> np.ndarray:
        sent = []
        for k in range(periods):
            bench.command(*([4.0, -4.0] if k // 100 % 2 == 0 else [-4.0, 4.0]))
            bench.tick()
            sent.append(bench.last.sent)
        return np.abs(np.diff(np.stack(sent), axis=0)).max(axis=1) / 0.01

    assert speeds(40).max() == pytest.approx(0.5, rel=0.02) and not bench.last.reason
    bench.loop._overrun(5)
    speeds(3)
    assert not bench.last.reason, "five of a hundred are borne"
    bench.loop._overrun(1)
    after = speeds(95)
    assert after[40:].max() <= 0.1 + 1e-9, "reduced speed"
    assert bench.last.reason == "Slowed down: 6 of 100 control periods were missed."
    assert bench.loop.counts["slowed"] == 95 and bench.last.mode == "run"
    speeds(12)
    assert not bench.last.reason and bench.loop.counts["slowed"] < 110


def test_in_lock_step_the_loop_waits_for_requests_and_ends_when_asked() -> None:
    driver = Paced(10**6)
    bench = LoopBench(driver, pace="step")
    driver.bench = bench
    thread = threading.Thread(target=bench.loop.run, args=(driver.over,))
    thread.start()
    try:
        assert not driver.over.wait(0.25) and not driver.read_at, "without a request nothing happens"
        begin = time.monotonic()
        for k in range(20):
            tick = bench.last.tick
            assert bench.command(0.1 * k, 0.0) == ""
            for _ in range(5000):
                if bench.last.tick > tick:
                    break
                driver.over.wait(0.001)
            assert bench.last.tick == tick + 1 and bench.last.reading.t == pytest.approx(0.01 * (k + 1))
        assert time.monotonic() - begin < 0.9, "a request is taken when it comes"
    finally:
        driver.over.set()
        thread.join(5.0)
    assert not thread.is_alive() and driver.stops == 1


def test_the_watchdog_of_a_served_robot_holds_while_its_driver_does_not_return() -> None:
    """In real time, with a driver that never comes back from `write` by itself."""
    entered, leave = threading.Event(), threading.Event()

    class Hanging(WorldDriver):
        def write(self, action):
            entered.set()
            leave.wait(10.0)
            return super().write(action)

    over, shown = threading.Event(), []
    safety = control_loop.SafetyOptions(limits=Limits(NAMES, -1, 1, 1, 1), hold_after=0.1, stop_after=0.4)
    loop = control_loop.RobotLoop(Hanging(PointMass()), "real", safety, shown.append)
    loop.begin()
    thread = threading.Thread(target=loop.run, args=(over,))
    thread.start()
    try:
        assert loop.offer(Command("c", 1, shown[-1].tick, np.zeros(2))) is None and entered.wait(5.0)
        assert not over.wait(1.5) and [each.mode for each in shown][-2:] == ["hold", "stop"]
    finally:
        over.set()
        leave.set()
        thread.join(5.0)
    assert not thread.is_alive()


class Unstoppable(WorldDriver):
    """A robot whose `stop` raises some times."""

    def __init__(self, times: int, error: Exception):
        super().__init__(PointMass())
        self.left, self.tries, self.error = times, [], error
        self.bench: LoopBench

    def stop(self):
        self.tries.append(self.bench.now)
        if self.left:
            self.left -= 1
            raise self.error
        super().stop()


@pytest.mark.parametrize(
    ("error", "said"), [(LinkLost("The bus is off."), "The bus is off."), (OSError("x"), "its driver raised OSError.")]
)
def test_a_driver_that_fails_to_stop_is_asked_again_and_the_robot_says_that_it_may_move(error, said, caplog) -> None:
    driver = Unstoppable(10**6, error)
    bench = LoopBench(driver)
    driver.bench = bench
    bench.loop.stop("Enough.")
    assert bench.last.mode == "stop" and bench.last.reason == "Enough." and not driver.tries, (
        "the loop's thread stops it"
    )
    bench.tick(500)
    assert len(driver.tries) == 4 == bench.loop.counts["stop_failures"]
    assert np.all(np.diff(driver.tries) == 0.25 * 1e9)
    assert bench.last.reason == f"The robot may still move, use its emergency stop: {said}"
    assert bench.loop.counts["stops"] == 1 and "failed to stop" in caplog.text
    bench.reset()
    bench.loop.stop("Again.")
    bench.tick()
    assert len(driver.tries) == 5, "after a reset it is asked anew"


def test_a_driver_that_stops_at_the_second_try_is_left_alone() -> None:
    driver = Unstoppable(1, OSError())
    bench = LoopBench(driver)
    driver.bench = bench
    bench.loop.stop("Enough.")
    bench.tick(300)
    assert len(driver.tries) == 2 and bench.loop.counts["stop_failures"] == 1


@pytest.mark.parametrize("times", [0, 3, 4])
def test_the_stop_at_the_end_is_tried_a_few_times_and_then_raises(monkeypatch, times: int) -> None:
    driver, slept = Unstoppable(times, OSError()), []
    driver.bench = bench = LoopBench(driver)
    monkeypatch.setattr(control_loop.time, "sleep", slept.append)
    over = threading.Event()
    over.set()
    if times < 4:
        bench.loop.run(over)
        assert len(driver.tries) == times + 1
    else:
        with pytest.raises(LinkLost, match="may still move"):
            bench.loop.run(over)
        assert len(driver.tries) == 4
    assert slept == [0.25] * min(times, 3)
