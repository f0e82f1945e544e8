"""A driver that writes down each command with its time; it is opened in the process of a follower."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from instep.core.world import Spec, vector
from instep.robot import Limits, Reading

JOINTS = ("a", "b")
LIMITS = Limits(JOINTS, -2.0, 2.0, 1.0, 10.0, 200.0)


class LoggingDriver:
    """Two joints that are where they were sent; `write` may fail, `read` may take its time."""

    def __init__(self, log: Path, fails_after: int = 10**9, read_s: float = 0.0):
        q = vector(JOINTS, "rad")
        self.spec = Spec(0.02, q, vector(JOINTS, "rad/s"), q, {})
        self._log, self._fails_after, self._read_s = log, fails_after, read_s
        self._q, self._count, self._begin = np.zeros(2), 0, time.monotonic()

    def read(self) -> Reading:
        time.sleep(self._read_s)
        return Reading(time.monotonic() - self._begin, self._q, np.zeros(2))

    def write(self, action: np.ndarray) -> np.ndarray:
        if self._count >= self._fails_after:
            raise OSError("bus off")
        self._count += 1
        with self._log.open("ab") as stream:
            stream.write(np.array([time.monotonic(), *action]).tobytes())
        self._q = np.array(action)
        return action

    def hold(self) -> np.ndarray:
        return self._q

    def passed(self, periods: int) -> None: ...

    def reset(self, seed: int) -> None:
        self._fails_after = 10**9 if self._count else self._fails_after

    def stop(self) -> None:
        self._log.with_suffix(".stopped").touch()


def commands_of(log: Path) -> tuple[np.ndarray, np.ndarray]:
    """The times of the commands so far [s], and the commands."""
    data = np.frombuffer(log.read_bytes(), float) if log.exists() else np.zeros(0)
    rows = data[: len(data) // 3 * 3].reshape(-1, 3)
    return rows[:, 0], rows[:, 1:]


def main() -> None:
    """Follow set points for a minute; the process of the follower is printed, commands go to the file that is named."""
    from instep.robot.follower_process import FollowerProcess

    with FollowerProcess(partial(LoggingDriver, Path(sys.argv[1])), LIMITS, rate=250.0) as arm:
        arm.reset(0)
        print(arm.pid, flush=True)
        begin = time.monotonic()
        while (t := time.monotonic() - begin) < 60.0:
            arm.write(np.full(2, 1.5 * np.sin(0.5 * t)))
            time.sleep(0.02)


if __name__ == "__main__":
    main()
