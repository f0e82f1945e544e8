"""Connect to a robot: a real one behind its link, or a simulated one that is started for the occasion."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from instep.robot.link import RobotWorld

from .simulated_robot import robot_process

SIMULATED = "simulated:"
"""Prefix of an address that asks for a simulated robot of a scene."""
START_TIMEOUT_S = 20.0
"""How long a simulated robot may take to answer: the first camera images of a cold machine take a while."""


def connect(address: str, token: str = "", *, timeout: float = 2.0) -> AbstractContextManager[RobotWorld]:
    """A robot as a `World`, to be used with `with`.

    `address` is that of a robot's link (`ws://HOST:PORT`, see docs/formats/link.md), with its `token`; or
    `simulated:SCENE`, which starts a simulated robot of a scene in another process and another engine, with hidden
    parameters, noise and delay, and stops it on leaving. `timeout` [s] bounds how long a reply of the link may take.
    """
    if address.startswith(SIMULATED):
        return _simulated(address.removeprefix(SIMULATED), max(timeout, START_TIMEOUT_S))
    return RobotWorld(address, token, timeout=timeout)


@contextmanager
def _simulated(scene: str, timeout: float) -> Generator[RobotWorld]:
    with (
        robot_process(scene, ["--hidden", "1", "--pace", "step"]) as child,
        RobotWorld(child.address, child.token, timeout=timeout) as robot,
    ):
        yield robot
