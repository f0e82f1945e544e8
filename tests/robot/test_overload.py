"""An overloaded computer: late periods are counted by their cause, and the robot is slowed down before it holds."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from instep.core.world import Spec, vector
from instep.robot import Limits, Reading, SafetyOptions
from instep.robot.control_loop import RobotLoop
from instep.robot.realtime import NO_FULL_COLLECTION, quiet_interpreter
from instep.robot.wire import Command

DT = 0.01
SPEC = Spec(DT, vector(("joint",), "rad"), vector(("joint",), "rad/s"), vector(("joint",), "rad"), {})
LIMITS = Limits(("joint",), -2.0, 2.0, 3.0, 30.0, 600.0)


class Joint:
    """A joint that is where it was sent; some writes take long."""

    def __init__(self) -> None:
        self.spec, self.q, self.begin, self.writes = SPEC, np.zeros(1), time.monotonic(), 0
        self.slow_every, self.sent = 0, []

    def read(self) -> Reading:
        return Reading(time.monotonic() - self.begin, self.q, np.zeros(1))

    def write(self, action):
        self.writes += 1
        if self.slow_every and self.writes % self.slow_every == 0:
            time.sleep(4.5 * DT)
        self.q = np.array(action)
        self.sent.append(self.q)
        return action

    def hold(self):
        return self.q

    def passed(self, periods: int) -> None: ...

    def reset(self, seed: int) -> None: ...

    def stop(self) -> None: ...


@contextmanager
def served(joint: Joint):
    """A loop in a thread of its own, and a policy that swings the joint from another."""
    shown, over = [], threading.Event()
    loop = RobotLoop(joint, "real", SafetyOptions(limits=LIMITS, hold_after=0.4, stop_after=5.0), shown.append)
    loop.begin()

    def command() -> None:
        for k in range(10**6):
            if over.wait(DT):
                return
            loop.offer(Command("c", k + 1, shown[-1].tick, np.array([0.8 * np.sin(4.0 * k * DT)])))

    threads = [threading.Thread(target=loop.run, args=(over,)), threading.Thread(target=command)]
    for thread in threads:
        thread.start()
    yield loop, shown
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.fault(29)
def test_missed_periods_slow_the_robot_down_and_are_counted() -> None:
    joint = Joint()
    joint.slow_every = 8
    with served(joint) as (loop, shown):
        time.sleep(2.0)
        reasons = [each.reason for each in shown]
    counts = loop.counts
    assert counts["overruns"] > 3 and counts["slowed"] > 10
    assert any("control periods were missed" in reason for reason in reasons)
    assert np.abs(np.diff(np.stack(joint.sent[-40:]), axis=0)).max() <= 0.5 * DT + 1e-9, "reduced speed"


@pytest.mark.fault(32)
def test_a_pause_of_the_collector_breaks_no_limit() -> None:
    joint = Joint()
    with served(joint):
        time.sleep(0.3)
        junk = [[number] for number in range(500_000)]
        for _ in range(4):
            gc.collect()
            time.sleep(0.05)
        del junk
    v = np.diff(np.stack(joint.sent), axis=0) / DT
    assert np.abs(v).max() <= 3.0 + 1e-6 and np.abs(np.diff(v, axis=0)).max() <= 30.0 * DT + 1e-6


@pytest.mark.fault(32)
def test_a_served_robot_has_no_full_collections_whatever_is_allocated() -> None:
    with quiet_interpreter():
        before = gc.get_stats()[2]["collections"]
        junk = [[number] for number in range(300_000)]
        assert gc.get_stats()[2]["collections"] == before and len(junk) == 300_000
        assert gc.get_threshold()[2] == NO_FULL_COLLECTION
