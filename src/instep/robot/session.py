"""One lasting conversation with a robot over connections that may break: redials, beats, keeps the newest state."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from instep.core.errors import BadInput, InstepError, LinkLost

from .clock_sync import ClockMatch
from .wire import FROM_ROBOT, MAX_BYTES, Command, Hello, Ping, Pong, Refused, Report, Reset, Role, pack, unpack

BEAT = 0.1
"""Time between heartbeats [s]."""
SILENCE = 2.0
"""A connection on which nothing comes for this long is given up [s]."""
DIAL = 2.0
"""Longest time to open a connection [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A connection that works: the robot has said hello and where it is."""

    hello: Hello
    report: Report
    """The newest one, with the newest frame of every camera."""


class Session:
    """Talks to a robot from a thread of its own."""

    def __init__(self, address: str, token: str, role: Role = "control"):
        self.address = address.rstrip("/")
        place = urlsplit(self.address)
        if place.scheme not in ("ws", "wss") or not place.hostname or not token.isascii():
            raise BadInput(f"A robot's address looks like ws://127.0.0.1:8765 and its token is text, not {address!r}.")
        self._place = (place.hostname, place.port or (443 if place.scheme == "wss" else 80))
        self._token, self._role = token, role
        self.clock = ClockMatch()
        """How far the robot's clock is ahead of this computer's."""
        self.counts: Counter[str] = Counter()
        """What this side saw: connections, messages dropped because they were late or old."""
        self.robot_counts: Mapping[str, int] = {}
        """What the robot has counted, as of its last answer."""
        self._changed = threading.Condition()
        self._live: Live | None = None
        self._hello: Hello | None = None
        self._refusals: dict[int, str] = {}
        self._seq = 0
        self._why = "it has not answered yet"
        self._fatal: InstepError | None = None
        self._socket: ClientConnection | None = None
        self._runner = asyncio.Runner()
        self._events = self._runner.get_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="instep-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up and end the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself in between
                self._events.call_soon_threadsafe(self._hang_up)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def wait(self, timeout: float) -> Live:
        """The newest state, as soon as there is a connection that works."""
        return self._until(lambda live: live, timeout, "connect")

    def ask(
        self,
        request: Callable[[Live, int], Command | Reset],
        answered: Callable[[Live, int], bool],
        timeout: float,
        what: str,
    ) -> Live:
        """Send a request and wait for the state that answers it; after a reconnect it is sent again.

        `answered` is asked with the newest state and the request's sequence number, 0 before the request was sent
        on this connection.
        """
        asked = ("", 0)

        def look(live: Live) -> Live | None:
            nonlocal asked
            if asked[0] != live.hello.connection:
                if asked[0] and answered(live, 0):
                    return live
                self._seq += 1
                asked = (live.hello.connection, self._seq)
                self._refusals.clear()
                self._post(request(live, self._seq))
                return None
            if asked[1] in self._refusals:
                raise BadInput(f"The robot at {self.address} refused: {self._refusals.pop(asked[1])}")
            return live if answered(live, asked[1]) else None

        return self._until(look, timeout, what)

    def _until(self, look: Callable[[Live], Live | None], timeout: float, what: str) -> Live:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._fatal is not None:
                    raise self._fatal
                found = look(self._live) if self._live is not None else None
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LinkLost(self._lament(timeout, what))
                self._changed.wait(left)

    def _lament(self, timeout: float, what: str) -> str:
        why = "the connection stands, but no new state came" if self._live is not None else self._why
        return (
            f"The robot at {self.address} did not {what} within {timeout:g} s: {why}. See that it runs and can be "
            f"reached, then reset it."
        )

    def _post(self, message: Command | Reset) -> None:
        data = pack(message)
        self._events.call_soon_threadsafe(self._send_soon, data, message.connection)

    def _send_soon(self, data: bytes, connection: str) -> None:
        if self._socket is not None and self._hello is not None and self._hello.connection == connection:
            task = self._events.create_task(self._send(self._socket, data))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _send(self, socket: ClientConnection, data: bytes) -> None:
        with contextlib.suppress(WebSocketException):  # the reader notices and redials
            await socket.send(data)

    def _run(self) -> None:
        try:
            with self._runner, contextlib.suppress(asyncio.CancelledError):
                self._runner.run(self._keep_connected())
        except BaseException as error:
            with self._changed:
                self._fatal = LinkLost(f"The link to {self.address} broke down: {error!r}.")
                self._changed.notify_all()
            raise

    def _hang_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
        with self._changed:
            self._fatal = LinkLost(f"The link to {self.address} was closed; open a new one.")
            self._changed.notify_all()

    async def _keep_connected(self) -> None:
        self._task = asyncio.current_task()
        pause = 0.05
        while True:
            try:
                async with await self._dial() as socket:
                    self._socket = socket
                    if await self._converse(socket):
                        pause = 0.05
            except (OSError, TimeoutError, WebSocketException, BadInput) as error:
                self._lost(_because(error))
            finally:
                self._socket = None
            if self._fatal is not None:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _dial(self) -> ClientConnection:
        events = asyncio.get_running_loop()
        async with asyncio.timeout(DIAL):
            found = await events.getaddrinfo(*self._place, type=sockets.SOCK_STREAM)
            family, kind, protocol, _, place = found[0]
            raw = sockets.socket(family, kind, protocol)
            try:
                raw.setblocking(False)
                raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
                await events.sock_connect(raw, place)
                # A socket of our own goes past the proxies that the environment may name.
                return await connect(
                    f"{self.address}/{self._role}",
                    sock=raw,
                    additional_headers={"Authorization": f"Bearer {self._token}"},
                    user_agent_header=None,
                    compression=None,
                    max_size=MAX_BYTES,
                    max_queue=4,
                    open_timeout=DIAL,
                    ping_interval=5.0,
                    ping_timeout=5.0,
                    close_timeout=0.2,
                )
            except BaseException:
                raw.close()
                raise

    async def _converse(self, socket: ClientConnection) -> bool:
        """Listen until the connection breaks; gives whether it ever worked."""
        self.counts["connections"] += 1
        events = asyncio.get_running_loop()
        beating = events.create_task(self._beat(socket))
        try:
            async with asyncio.timeout(SILENCE) as patience:
                while True:
                    data = await socket.recv()
                    patience.reschedule(events.time() + SILENCE)
                    self._take(unpack(data if isinstance(data, bytes) else b"", FROM_ROBOT))
        except (OSError, TimeoutError, WebSocketException, BadInput) as error:
            worked = self._live is not None
            self._lost(_because(error))
            return worked
        finally:
            beating.cancel()

    async def _beat(self, socket: ClientConnection) -> None:
        with contextlib.suppress(WebSocketException):
            for number in range(2**62):
                # The first few come quickly, so that the clocks are matched when the first state is asked for.
                await asyncio.sleep(0.01 if number < 8 else BEAT)
                if self._hello is not None:
                    await socket.send(pack(Ping(self._hello.connection, time.monotonic_ns())))

    def _lost(self, why: InstepError | str) -> None:
        with self._changed:
            self._live, self._hello = None, None
            if isinstance(why, InstepError):
                self._fatal = type(why)(f"The robot at {self.address} {why}")
            else:
                self._why = why
            self._changed.notify_all()

    def _take(self, message: object) -> None:
        with self._changed:
            if isinstance(message, Hello):
                self._hello = message
                return
            if self._hello is None or getattr(message, "connection", "") != self._hello.connection:
                self.counts["late"] += 1
                return
            if isinstance(message, Pong):
                self.clock.add(message.sent * 1e-9, message.mono * 1e-9, time.monotonic())
                self.robot_counts = message.counts
            elif isinstance(message, Refused):
                self._refusals[message.seq] = message.reason
            elif isinstance(message, Report):
                self._newest(self._hello, message)
            self._changed.notify_all()

    def _newest(self, hello: Hello, report: Report) -> None:
        last = self._live.report if self._live is not None else None
        if last is not None and report.tick <= last.tick:
            self.counts["old"] += 1
            return
        if last is not None and report.episode == last.episode:
            # A frame that was sent before is not sent again.
            report = replace(report, seen={**last.seen, **report.seen})
        self._live = Live(hello, report)


def _because(error: Exception) -> InstepError | str:
    """Why a connection broke: a sentence for the user to act on, or a clause to go on trying."""
    if isinstance(error, InvalidStatus):
        status, body = error.response.status_code, (error.response.body or b"").decode("ascii", "replace").strip()
        if status in (401, 403, 404):
            return BadInput(f"refused the connection ({status}): {body[:200]}")
        return f"it answered {status}: {body[:200].rstrip('.')}"
    if isinstance(error, TimeoutError):
        return "it is silent"
    if isinstance(error, BadInput):
        return f"it sent what is no message of this link ({str(error).rstrip('.')})"
    return f"the connection broke ({type(error).__name__}: {error})"
