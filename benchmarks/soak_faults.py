"""Faults of a soak test, each injected for real: signals, cut and silent links, spoilt images, hostile clients."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Protocol

from instep.core.websocket import connect_blocking, connection_errors
from instep.core.world import frozen_dataclass
from soak_link import SpoilingProxy
from soak_programs import Program, child_of

CAMERAS = "instep.app.simulated_cameras"
"""In the command line of the process that renders the robot's cameras."""
WRITER = "writer_process"
"""In the command line of the process that writes a recording."""
HALF_OPEN = 100
GARBAGE_BYTES = 65536


class Plant(Protocol):
    """The programs that faults are injected into."""

    robot: Program
    serve: Program
    twin: Program
    proxy: SpoilingProxy
    token: str

    def servers(self) -> dict[str, int]:
        """Ports by the name of the server."""
        ...


@frozen_dataclass
class Fault:
    """Something that goes wrong, for some time."""

    name: str
    inject: Callable[[Plant], AbstractContextManager[None]]
    """Lasts as long as the block."""
    lasts_s: float
    stops: bool = False
    """Whether no command can come from then on, so that the robot must hold."""


def _killed(which: Callable[[Plant], int]) -> Callable[[Plant], AbstractContextManager[None]]:
    @contextmanager
    def inject(plant: Plant) -> Generator[None]:
        _send(which(plant), signal.SIGKILL)
        yield

    return inject


def _stopped(which: Callable[[Plant], int]) -> Callable[[Plant], AbstractContextManager[None]]:
    @contextmanager
    def inject(plant: Plant) -> Generator[None]:
        pid = which(plant)
        _send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            _send(pid, signal.SIGCONT)

    return inject


@contextmanager
def _cut(plant: Plant) -> Generator[None]:
    plant.proxy.cut()
    try:
        yield
    finally:
        plant.proxy.way = "pass"


@contextmanager
def _silent(plant: Plant) -> Generator[None]:
    plant.proxy.way = "silent"
    try:
        yield
    finally:
        plant.proxy.way = "pass"


@contextmanager
def _spoilt(plant: Plant) -> Generator[None]:
    plant.proxy.way = "spoil"
    try:
        yield
    finally:
        plant.proxy.way = "pass"


@contextmanager
def _half_open(plant: Plant) -> Generator[None]:
    """Requests that never end, to every server."""
    with ExitStack() as stack:
        for port in plant.servers().values():
            for _ in range(HALF_OPEN):
                with suppress(OSError):
                    peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2))
                    peer.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        yield


@contextmanager
def _garbage(plant: Plant) -> Generator[None]:
    """Random bytes to every server, before the request and inside an admitted connection."""
    for port in plant.servers().values():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as peer:
            peer.sendall(os.urandom(GARBAGE_BYTES))
    for name, kind in (("robot", "Bearer"), ("serve", "Api-Key")):
        port = plant.servers().get(name)
        place = f"ws://127.0.0.1:{port}" + ("/watch" if name == "robot" else "")
        with suppress(*connection_errors()), connect_blocking(place, f"{kind} {plant.token}", 1 << 22, 5.0) as client:
            client.send(os.urandom(1024))
            client.recv(timeout=2.0)
    yield


@contextmanager
def _disk_full(plant: Plant) -> Generator[None]:
    """The process that writes the recording may write no further."""
    pid = child_of(plant.twin.pid, WRITER)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE) if pid else (-1, -1)
    if pid:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError, PermissionError):
            if pid:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _send(pid: int, number: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


STOPPING = (
    Fault("policy server killed", _killed(lambda plant: plant.serve.pid), 2.0, stops=True),
    Fault("link cut", _cut, 3.0, stops=True),
    Fault("twin stopped and continued", _stopped(lambda plant: plant.twin.pid), 1.5, stops=True),
    Fault("camera process killed", _killed(lambda plant: child_of(plant.robot.pid, CAMERAS)), 2.0, stops=True),
    Fault("link silent", _silent, 3.0, stops=True),
    Fault("policy server stopped and continued", _stopped(lambda plant: plant.serve.pid), 1.5, stops=True),
    Fault("twin killed", _killed(lambda plant: plant.twin.pid), 2.0, stops=True),
)
"""Faults after which the robot must hold."""
SURVIVED = (
    Fault("images spoilt", _spoilt, 1.0),
    Fault("half-open requests to every server", _half_open, 4.0),
    Fault("garbage to every server", _garbage, 1.0),
    Fault("camera process stopped and continued", _stopped(lambda plant: child_of(plant.robot.pid, CAMERAS)), 1.0),
    Fault("disk full for the recording", _disk_full, 2.0),
)
"""Faults that a run survives; without usable images a twin would hold after 1.5 s, and hand over after 3 s."""


def answers(plant: Plant) -> list[str]:
    """The servers that do not answer a good client within 5 s."""
    return [name for name, port in plant.servers().items() if not _answers(port)]


def _answers(port: int) -> bool:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            if peer.recv(16).startswith(b"HTTP/1.1 "):
                return True
        time.sleep(0.1)
    return False
