"""Robots by address: a link (`ws://HOST:PORT`), or a driver by name (`NAME:ADDRESS`), served inside this process.

A driver registers under the entry-point group `instep.robots`: a function that takes the address behind the name and
returns a context manager of a `Driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from instep.core.errors import BadInput
from instep.core.imports import extension, extension_names

from .driver import Driver
from .link import RobotWorld
from .robot_server import RobotServer, ServerOptions
from .safety import SafetyOptions

SHIPPED: dict[str, str] = {}
"""Drivers that come with instep: name -> `module:function`."""
DriverOpener: TypeAlias = Callable[[str], AbstractContextManager[Driver]]


def connect_robot(
    address: str, token: str = "", *, timeout: float = 2.0, safety: SafetyOptions | None = None
) -> AbstractContextManager[RobotWorld]:
    """A robot as a world, to be used with `with`: behind a link, or by the name of its driver.

    A driver is served inside this process, behind the same limits, checks and watchdog as behind a link; `safety` is
    for drivers only.
    """
    if address.startswith(("ws://", "wss://")):
        return RobotWorld(address, token, timeout=timeout)
    name, colon, place = address.partition(":")
    if not colon:
        known = ", ".join(f"{one}:ADDRESS" for one in extension_names("robots", SHIPPED))
        raise BadInput(f"{address!r} is no address of a robot; expected ws://HOST:PORT{known and f', {known}'}.")
    opener: DriverOpener = extension("robots", name, SHIPPED)
    return _served(opener, place, timeout, ServerOptions(safety=safety or SafetyOptions()))


@contextmanager
def _served(opener: DriverOpener, place: str, timeout: float, options: ServerOptions) -> Generator[RobotWorld]:
    with (
        opener(place) as driver,
        RobotServer(driver, options=options) as server,
        RobotWorld(server.address, server.token, timeout=timeout) as robot,
    ):
        yield robot
