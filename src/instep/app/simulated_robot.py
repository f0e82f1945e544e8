"""A simulated robot: another engine, hidden parameters, imperfect sensors and cameras behind a real robot's link.

`robot_process` starts one as a child process; `connect` connects to one, or to a real robot, as a world.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from instep.core.errors import LinkLost
from instep.core.reading import TEXT, read_entries
from instep.core.world import frozen_dataclass
from instep.robot import connect_robot

if TYPE_CHECKING:
    from instep.robot.link import RobotWorld


@frozen_dataclass
class Child:
    """A simulated robot in its own process."""

    address: str
    token: str
    pid: int


@contextmanager
def robot_process(scene: str, options: Sequence[str] = (), *, timeout: float = 60.0) -> Generator[Child]:
    """A running simulated robot, stopped on leaving; `options` are those of `instep robot`."""
    with TemporaryDirectory(prefix="instep-") as folder:
        ready, complaints = Path(folder) / "ready.json", Path(folder) / "stderr"
        command = [sys.executable, "-m", "instep.app.cli", "robot", scene, "--ready", str(ready), *options]
        with complaints.open("wb") as errors:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)  # noqa: S603
        try:
            deadline = time.monotonic() + timeout
            while not ready.is_file():
                if child.poll() is not None or time.monotonic() > deadline:
                    said = complaints.read_text(errors="replace").strip().splitlines()
                    raise LinkLost(f"The simulated robot did not start: {said[-1] if said else 'it said nothing'}")
                time.sleep(0.02)
            known = read_entries(ready, {"address": TEXT, "token": TEXT})
            yield Child(known["address"], known["token"], child.pid)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


SIMULATED = "simulated:"
"""Prefix of an address that asks for a simulated robot of a scene."""
START_TIMEOUT_S = 20.0
"""How long a simulated robot may take to answer: the first camera images of a cold machine take a while."""


def connect(address: str, token: str = "", *, timeout: float = 2.0) -> AbstractContextManager[RobotWorld]:
    """A robot as a `World`, to be used with `with`.

    `address` is that of a robot's link (`ws://HOST:PORT`, see docs/formats/link.md), with its `token`; the name of a
    driver and its address (`NAME:ADDRESS`); or
    `simulated:SCENE`, which starts a simulated robot of a scene in another process and another engine, with hidden
    parameters, noise and delay, and stops it on leaving. `timeout` [s] bounds how long a reply of the link may take.
    """
    if address.startswith(SIMULATED):
        return _simulated(address.removeprefix(SIMULATED), max(timeout, START_TIMEOUT_S))
    return connect_robot(address, token, timeout=timeout)


@contextmanager
def _simulated(scene: str, timeout: float) -> Generator[RobotWorld]:
    from instep.robot.link import RobotWorld

    with (
        robot_process(scene, ["--hidden", "1", "--pace", "step"]) as child,
        RobotWorld(child.address, child.token, timeout=timeout) as robot,
    ):
        yield robot
