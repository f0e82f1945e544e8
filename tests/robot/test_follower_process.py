"""The follower in a process of its own: fast commands, a watchdog by its own clock, faults that are seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, LinkLost
from instep.robot.follower_process import FollowerProcess

sys.path.append(str(Path(__file__).parent))
from logging_driver import LIMITS, LoggingDriver, commands_of

pytestmark = pytest.mark.realtime
DRIVER = Path(__file__).with_name("logging_driver.py")


def feed(arm: FollowerProcess, seconds: float, speed: float = 0.5) -> None:
    """Set points at 50 Hz that move on at a speed."""
    begin, start = time.monotonic(), arm.read().q
    while (t := time.monotonic() - begin) < seconds:
        arm.write(start + speed * t)
        time.sleep(0.02)


def test_commands_come_at_their_rate_inside_all_limits_and_end_when_set_points_do(tmp_path):
    log = tmp_path / "commands"
    with FollowerProcess(partial(LoggingDriver, log), LIMITS, rate=250.0) as arm:
        arm.reset(0)
        feed(arm, 1.0)
        lost = time.monotonic()
        time.sleep(0.05 + LIMITS.stop_time + 0.5)  # the parent says nothing
        times, q = commands_of(log)
        assert arm.missed + len(times) > 250 and not arm.read().fault
    v = np.diff(q, axis=0) * 250.0
    assert np.abs(v).max() <= 1.0 + 1e-9 and np.abs(np.diff(v, axis=0)).max() * 250.0 <= 10.0 + 1e-6
    assert np.abs(np.diff(v, 2, axis=0)).max() * 250.0**2 <= 200.0 * (1 + 1e-4)
    assert q[-1, 0] > q[0, 0] + 0.2
    still = times[1:][np.abs(v).max(axis=1) > 1e-9][-1] - lost
    # 60 ms until the loss is certain, then v/a + 2 a/j; a busy test machine may be late by the same again.
    assert still <= 2 * (0.06 + LIMITS.stop_time)


@pytest.mark.fault(30)
@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs Linux: whether a process lives is read from /proc"
)
def test_a_parent_that_is_killed_leaves_a_robot_that_comes_to_rest(tmp_path):
    log = tmp_path / "commands"
    parent = subprocess.Popen([sys.executable, str(DRIVER), str(log)], stdout=subprocess.PIPE, text=True)
    try:
        follower = int(parent.stdout.readline())
        until(lambda: len(commands_of(log)[0]) > 100)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    killed = time.monotonic()
    until(lambda: not running(follower))
    times, q = commands_of(log)
    v = np.diff(q, axis=0) * 250.0
    assert np.abs(v[-1]).max() < 1e-9, "the last command is at rest"
    assert times[-1] - killed <= 2 * (0.06 + LIMITS.stop_time) + 1.0 and (tmp_path / "commands.stopped").exists()


def running(pid: int) -> bool:
    """Whether a process lives; one that has ended but is not waited for does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def until(true, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.02)


@pytest.mark.fault(31)
def test_a_follower_that_is_killed_is_a_fault_at_the_next_reading(tmp_path):
    with FollowerProcess(partial(LoggingDriver, tmp_path / "commands"), LIMITS) as arm:
        os.kill(arm.pid, signal.SIGKILL)
        until(lambda: bool(arm.read().fault))
        assert arm.read().fault.startswith("The follower's process has ended")
        until(lambda: "(exit code -9)" in arm.read().fault)
        with pytest.raises(LinkLost, match="has ended"):
            arm.reset(0)


def test_motors_that_refuse_stop_the_robot_and_every_reading_says_why(tmp_path):
    with FollowerProcess(partial(LoggingDriver, tmp_path / "commands", fails_after=20), LIMITS) as arm:
        arm.reset(0)
        deadline = time.monotonic() + 30.0
        while not arm.read().fault and time.monotonic() < deadline:
            arm.write(np.full(2, 0.3))
            time.sleep(0.02)
        assert arm.read().fault == "The motors refused a command: Its driver raised OSError."
        assert len(commands_of(tmp_path / "commands")[0]) == 20, "nothing is sent after that"
        arm.reset(0)
        until(lambda: not arm.read().fault)


def test_a_slow_read_delays_no_command(tmp_path):
    log = tmp_path / "commands"
    with FollowerProcess(partial(LoggingDriver, log, read_s=0.4), LIMITS, rate=250.0) as arm:
        arm.reset(0)
        until(lambda: arm.read().t > 0)
        before = time.monotonic()
        arm.read()
        assert time.monotonic() - before < 0.2, "a reading never waits for the driver"
        feed(arm, 1.0)
    times, _ = commands_of(log)
    assert np.median(np.diff(times)) < 0.02


def test_a_driver_that_does_not_open_is_said():
    with pytest.raises(BadInput, match="did not open: Its driver raised TypeError"):
        FollowerProcess(partial(LoggingDriver, Path(), nonsense=1), LIMITS)
