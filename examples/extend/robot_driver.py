"""A robot driver: a servo on a line of text, `w 0.3` to command it and `r` to read it.

The file `pyproject.toml` beside this one registers it in one line:

    [project.entry-points."instep.robots"]
    text_servo = "robot_driver:open_servo"

Every command then takes it as a world, behind the same limits as a robot on a link:
`instep run hold robot:text_servo:/dev/ttyACM0`.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from instep.core.world import Array, Spec, vector
from instep.robot import Reading

JOINT = vector(["shoulder"], "rad")


class TextServo:
    """One joint whose position stands in a file, in place of a serial line."""

    def __init__(self, line: Path):
        self.spec = Spec(0.02, JOINT, vector(["shoulder"], "rad/s"), JOINT)
        self._line, self._begin = line, time.monotonic()

    def read(self) -> Reading:
        """The newest position."""
        q = np.array([float(self._line.read_text() or 0.0)])
        return Reading(time.monotonic() - self._begin, q, np.zeros(1))

    def write(self, action: Array) -> Array:
        """Send a position."""
        self._line.write_text(f"{float(action[0])!r}")
        return action

    def hold(self) -> Array:
        """The position where it is."""
        return self.read().q

    def passed(self, periods: int) -> None:
        """A servo goes on by itself."""

    def reset(self, seed: int) -> None:
        """Nothing to clear."""
        self._begin = time.monotonic()

    def stop(self) -> None:
        """A servo stands where it was sent last."""


@contextmanager
def open_servo(address: str) -> Generator[TextServo]:
    """The servo at a path, for as long as the block lasts."""
    yield TextServo(Path(address))
