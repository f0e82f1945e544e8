"""Robot server: a driver behind a websocket, for one controller and any number of watchers.

The robot's loop runs in one thread and never waits for the network; the network runs in another and holds, for each
client, only the newest state. A driver registers under the entry-point group `instep.robots`: a function that takes the
address behind the name and returns a context manager of a `Driver`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.imports import extension, extension_names
from instep.core.websocket import (
    LOOPBACK,
    Authenticator,
    Certificate,
    HttpReply,
    ListenOptions,
    RateLimiter,
    WebsocketServer,
    connection_errors,
    expel,
    new_token,
)
from instep.core.world import Array, Spec, options_dataclass

from .control_loop import RobotLoop, RobotSnapshot
from .driver import Driver
from .jerk_kernels import BOUNDS
from .link import RobotWorld
from .realtime import quiet_interpreter
from .safety import SafetyOptions
from .wire import (
    FROM_CLIENT,
    MAX_BYTES,
    Command,
    Hello,
    Pace,
    Ping,
    Pong,
    Refused,
    Report,
    Reset,
    Role,
    Stop,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request

ROLES: dict[str, Role] = {"/control": "control", "/watch": "watch"}
"""What a client may do, by the path it connects to."""
CONTROLLER_TIMEOUT_S = 0.5
"""A controller that has said nothing for this long may be replaced by another one [s]."""

_log = logging.getLogger(__name__)


@options_dataclass
class ServerOptions:
    """Where a robot is served, to whom, and how it is kept safe."""

    host: str = "127.0.0.1"
    """Another host than this computer's own needs a certificate or `plain`, and is warned about."""
    certificate: Certificate | None = None
    """With one the link is encrypted (wss://)."""
    plain: bool = False
    """Whether the link beyond this computer may be unencrypted, since a tunnel encrypts it."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect."""
    safety: SafetyOptions = field(default_factory=SafetyOptions)


def serve(
    driver: Driver,
    *,
    port: int = 0,
    token: str | None = None,
    pace: Pace = "real",
    ready: Callable[[str, str], None] | None = None,
    options: ServerOptions | None = None,
) -> None:
    """Serve a robot until SIGINT or SIGTERM; `ready` is called with its address and token once it can be reached.

    The driver is used by the calling thread alone, which must be the main one. The process is set up for real time:
    a thread switch interval of half a millisecond, and a frozen garbage collector.
    """
    over = threading.Event()

    def end(number: int, frame: object) -> None:
        over.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with quiet_interpreter():
            RobotServer(driver, port=port, token=token, pace=pace, options=options).run(over, ready)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RobotServer:
    """A robot that can be reached. `run` serves in this thread; as a context manager it serves in one of its own."""

    def __init__(
        self,
        driver: Driver,
        *,
        port: int = 0,
        token: str | None = None,
        pace: Pace = "real",
        options: ServerOptions | None = None,
    ):
        self._options = options or ServerOptions()
        self.token = token or new_token()
        """What a client must know."""
        _fits(driver.spec)
        rules = Authenticator(self.token, self._options.host, self._options.origins, tuple(ROLES))
        # Watchers may fill the robot's seats, but not that of its controller.
        listen = ListenOptions(
            self._options.host, port, self._options.certificate, self._options.plain, reserved=("/control",)
        )
        self._loop = RobotLoop(driver, pace, self._options.safety, lambda snapshot: self._network.publish(snapshot))
        self._network = _Network(rules, self._loop, driver.spec, listen)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if self._loop.limits.assumed:
            _log.warning(
                "The robot does not state its limits of %s, so conservative ones hold: %s.",
                ", ".join(self._loop.limits.assumed),
                self._loop.limits,
            )
        if self._options.host not in LOOPBACK:
            _log.warning(
                "The robot listens on %s, where others can reach it; its token is all that keeps them out%s.",
                self._options.host,
                "" if self._options.certificate else ", and the link is not encrypted: use a tunnel",
            )

    @property
    def address(self) -> str:
        """Where clients connect, such as ws://127.0.0.1:43211."""
        return self._network.server.address

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened how often."""
        return {**self._loop.counts, **self._network.counts}

    def run(self, over: threading.Event, ready: Callable[[str, str], None] | None = None) -> None:
        """Serve in this thread until `over` is set."""
        self._loop.begin()
        self._network.check()
        self._network.server.start()
        try:
            if ready is not None:
                ready(self.address, self.token)
            self._loop.run(over)
        finally:
            self._network.server.close()

    def __enter__(self) -> RobotServer:
        """Serve in a thread of its own."""
        started = threading.Event()
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self.run(self._over, lambda address, token: started.set())
            except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
                failure.append(error)
                started.set()

        self._thread = threading.Thread(target=work, name="instep-robot", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            raise failure[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


class _Client:
    """One connection: its role, its rates, and which frames it has been sent."""

    def __init__(self, socket: ServerConnection, role: Role):
        self.socket = socket
        self.role: Role = role
        self.connection = secrets.token_hex(16)
        self.requests, self.questions = RateLimiter(5000.0, 5000.0), RateLimiter(100.0, 200.0)
        self.wake = asyncio.Event()
        self.heard_at = time.monotonic()
        self._shown: dict[str, tuple[int, float]] = {}

    def report(self, snapshot: RobotSnapshot) -> Report:
        """The newest state for this client; a frame it has already is left out."""
        reading = snapshot.reading
        seen: dict[str, Array] = {}
        for name, value in reading.seen.items():
            if name in reading.stamps:
                shown = (snapshot.episode, reading.stamps[name])
                if self._shown.get(name) == shown:
                    continue
                self._shown[name] = shown
            seen[name] = value
        return _report(snapshot, self.connection, seen)


class _Network:
    """The clients of a robot, in the thread of the websocket server."""

    def __init__(self, rules: Authenticator, robot: RobotLoop, spec: Spec, listen: ListenOptions):
        self._rules, self._robot, self._spec = rules, robot, spec
        self.counts: Counter[str] = Counter(dict.fromkeys(("connected", "unauthorized", "malformed", "floods"), 0))
        self._boot = secrets.token_hex(16)
        self._clients: set[_Client] = set()
        self._latest: RobotSnapshot | None = None
        self.server = WebsocketServer(self._converse, self._admit, listen, MAX_BYTES)

    def check(self) -> None:
        """Refuse a robot whose first state cannot be sent, before anyone asks for it."""
        if self._latest is not None:
            pack(_report(self._latest, self._boot, self._latest.reading.seen))

    def publish(self, snapshot: RobotSnapshot) -> None:
        """Let everyone know, from the robot's thread; whoever is slow gets only the newest."""
        self._latest = snapshot
        self.server.call(self._wake)

    def _wake(self) -> None:
        for client in self._clients:
            client.wake.set()

    def _admit(self, request: Request) -> HttpReply | None:
        refusal = self._rules.refusal(request)
        if refusal is not None:
            self.counts["unauthorized"] += 1
            return refusal
        controller = self._controller()
        if request.path == "/control" and controller and time.monotonic() - controller.heard_at < CONTROLLER_TIMEOUT_S:
            return HttpReply(HTTPStatus.CONFLICT, "Another controller holds the robot.")
        return None

    def _controller(self) -> _Client | None:
        return next((client for client in self._clients if client.role == "control"), None)

    async def _converse(self, socket: ServerConnection) -> None:
        request = socket.request
        role = ROLES[request.path] if request is not None else "watch"
        old = self._controller() if role == "control" else None
        if old is not None:
            # Two may have come at once, or the old one has gone silent; its late messages are dropped with it.
            self._clients.discard(old)
            task = asyncio.ensure_future(old.socket.close(1008, "Another controller has taken over."))
            task.add_done_callback(lambda done: done.exception())
        client = _Client(socket, role)
        self._clients.add(client)
        self.counts["connected"] += 1
        clock, pace, bounds = self._robot.clock, self._robot.pace, self._robot.limits.bounds
        limits = dict(zip(BOUNDS, np.ascontiguousarray(bounds.T), strict=True))
        hello = Hello(client.connection, self._boot, role, pace, self._spec, limits, clock.mono(), clock.wall())
        publisher: asyncio.Task[None] | None = None
        try:
            await socket.send(pack(hello))
            client.wake.set()
            publisher = asyncio.create_task(self._publish_to(client))
            await self._receive_from(client)
        finally:
            if publisher is not None:
                publisher.cancel()
            self._clients.discard(client)

    async def _publish_to(self, client: _Client) -> None:
        with contextlib.suppress(*connection_errors()):
            while True:
                await client.wake.wait()
                client.wake.clear()
                if self._latest is None:
                    continue
                try:
                    data = pack(client.report(self._latest))
                except BadInput:
                    _log.exception("The robot's state cannot be sent.")
                    return await client.socket.close(1011, "The robot's state cannot be sent.")
                await client.socket.send(data)

    async def _receive_from(self, client: _Client) -> None:
        async for data in client.socket:
            client.heard_at = time.monotonic()
            try:
                message = unpack(data if isinstance(data, bytes) else b"", FROM_CLIENT)
                if message.connection != client.connection:
                    raise BadInput("The message belongs to another connection.")
                if client.role == "watch" and not isinstance(message, Ping | Stop):
                    raise BadInput("A watcher may only send pings, and stop the robot.")
            except BadInput as error:
                self.counts["malformed"] += 1
                return await expel(client.socket, _brief(str(error), 120))
            limiter = client.questions if isinstance(message, Ping) else client.requests
            if not limiter.take():
                self.counts["floods"] += 1
                return await expel(client.socket, "Too many messages in a second.")
            await self._answer(client, message)
        return None

    async def _answer(self, client: _Client, message: object) -> None:
        if isinstance(message, Ping):
            counts = {**self._robot.counts, **self.counts}
            await client.socket.send(pack(Pong(client.connection, message.sent, self._robot.clock.mono(), counts)))
        elif isinstance(message, Stop):
            self._robot.stop(f"A {'controller' if client.role == 'control' else 'watcher'} asked for it.")
        elif isinstance(message, Command | Reset):
            refusal = self._robot.offer(message)
            if refusal is not None:
                why = _brief(refusal.reason, 500)
                await client.socket.send(pack(Refused(client.connection, message.seq, refusal.kind, why)))


def _report(snapshot: RobotSnapshot, connection: str, seen: Mapping[str, Array]) -> Report:
    reading, (asked_by, seq) = snapshot.reading, snapshot.echo
    return Report(
        connection,
        snapshot.tick,
        snapshot.episode,
        seq if asked_by == connection else 0,
        snapshot.mode,
        _brief(snapshot.reason, 500),
        float(reading.t),
        snapshot.mono,
        snapshot.wall,
        np.asarray(reading.q, float),
        np.asarray(reading.v, float),
        snapshot.sent,
        seen,
        {name: float(stamp) for name, stamp in reading.stamps.items()},
    )


def _brief(sentence: str, size: int) -> str:
    """A sentence that may go on the wire: plain characters, no more than so many."""
    return sentence.encode("ascii", "replace")[:size].decode()


def _fits(spec: Spec) -> None:
    """Refuse a robot whose observations do not fit into one message."""
    channels = (spec.q, spec.v, spec.action, *spec.observation.values())
    size = sum(int(np.prod(channel.shape)) * np.dtype(channel.dtype).itemsize for channel in channels)
    if size > MAX_BYTES - 2**16:
        raise BadInput(
            f"The robot's observations take {size / 2**20:.1f} MiB, but a message holds {MAX_BYTES / 2**20:g} MiB; "
            f"use smaller images."
        )


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
