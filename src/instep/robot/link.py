"""The link to a robot: a `World` whose steps go over a websocket to a robot server.

Connections may break: the session reconnects, and the watchdog of the robot decides what happens meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.rollout import checked_action
from instep.core.websocket import connect, connection_errors, explain, parse_address, refused
from instep.core.world import Array, Observation, Spec, State, array_dataclass

from .driver import SENT, STAMP, Reading
from .realtime import ClockEstimate
from .signal_checks import SensorChecks
from .wire import (
    FROM_ROBOT,
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
    from websockets.asyncio.client import ClientConnection

KEY = "link"
HEARTBEAT_S = 0.1
"""Time between heartbeats [s]."""
SILENCE_S = 2.0
"""A connection on which nothing comes for this long is given up [s]."""


class RobotWorld:
    """A robot, real or simulated, behind an address. `step` blocks until the robot reports the next state.

    `State.t` and the stamps of observations are the robot's time since the reset; `hidden["link"]` holds the tick,
    the robot's two clocks [ns], and `captured`, the moment of the state on this computer's monotonic clock [s].
    """

    def __init__(
        self, address: str, token: str, *, timeout: float = 2.0, reset_timeout: float = 60.0, role: Role = "control"
    ):
        self.address, self._timeout, self._reset_timeout = address, timeout, reset_timeout
        self._session = LinkSession(address, token, role)
        try:
            self._hello = self._session.wait(timeout).hello
        except BaseException:
            self._session.close()
            raise
        weakref.finalize(self, self._session.close)  # a link that is forgotten must not keep the robot
        self._spec = self._hello.spec.with_observations({SENT: self._hello.spec.action})
        known = {"low", "high", "velocity"} <= set(self._hello.limits)
        self._checks = SensorChecks(self._hello.spec, self._hello.limits) if known else None

    @property
    def spec(self) -> Spec:
        """The robot's spec, with the action that was sent."""
        return self._spec

    @property
    def pace(self) -> Pace:
        """Whether the robot's clock sets the pace or each command does."""
        return self._hello.pace

    @property
    def limits(self) -> Mapping[str, Array]:
        """The limits inside which the robot keeps commands: low, high, velocity, acceleration and jerk of each."""
        return self._hello.limits

    @property
    def clock(self) -> ClockEstimate:
        """How far the robot's clock is ahead, its drift, and how sure that is."""
        return self._session.clock

    @property
    def counts(self) -> Mapping[str, int]:
        """What the robot has counted, and what this side has under `link.*`."""
        own = {f"link.{name}": count for name, count in self._session.counts.items()}
        return {**self._session.robot_counts, **own}

    def newest_counts(self, timeout: float = 0.5) -> Mapping[str, int]:
        """The counts of the next heartbeat, or the last known ones where none comes within `timeout` [s]."""
        self._session.wait_for_counts(timeout)
        return self.counts

    def reset(self, seed: int = 0) -> State:
        """Ask the robot to begin anew, and wait until it has."""
        if not 0 <= int(seed) < 2**63:
            raise BadInput(f"A seed is an integer from 0 to 2^63 - 1, not {seed}.")
        live = self._session.ask(
            lambda live, seq: Reset(live.hello.connection, seq, int(seed)),
            lambda live, seq: 0 < seq <= live.report.echo,
            self._reset_timeout,
            "reset",
        )
        if live.hello.spec != self._hello.spec:
            raise LinkLost(f"The robot at {self.address} is not the one it was; open a new link to it.")
        self._hello = live.hello
        if self._checks is not None:
            self._checks.reset()
        return self._running_state(live)

    def step(self, state: State, action: Array) -> State:
        """Send an action and wait for the next state that it led to; the newest counts."""
        memory = self._memory(state)
        action = checked_action(action, self._hello.spec, ())
        after, episode = int(memory["tick"]), int(memory["episode"])
        lockstep = self._hello.pace == "step"

        def answered(live: LiveConnection, seq: int) -> bool:
            self._same_run(live, episode)
            report = live.report
            if report.mode == "stop" and report.tick > after:
                return True
            # In lock-step a tick says it all: no other action can have led from one to the next.
            return report.tick > after if lockstep else 0 < seq <= report.echo

        def request(live: LiveConnection, seq: int) -> Command:
            self._same_run(live, episode)
            if lockstep and live.report.tick != after and live.report.mode != "stop":
                raise BadInput(
                    f"A robot cannot go back: the action is for state {after}, but it is at {live.report.tick}; step "
                    f"from its newest state, or reset it."
                )
            return Command(live.hello.connection, seq, after, action)

        return self._running_state(self._session.ask(request, answered, self._timeout, "answer"))

    def observe(self, state: State) -> Observation:
        """What the robot's sensors showed in that state, with the stamps of those that are older."""
        memory = self._memory(state)
        stamps = {f"{name}{STAMP}": stamp for name, stamp in memory["stamps"].items()}
        return {SENT: memory["sent"], **memory["seen"], **stamps}

    def latest(self) -> State:
        """The newest state, without asking the robot for anything."""
        return self._state(self._session.wait(self._timeout))

    def close(self) -> None:
        """Close the link; the robot holds, then stops."""
        self._session.close()

    def __enter__(self) -> RobotWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _same_run(self, live: LiveConnection, episode: int) -> None:
        if live.hello.boot != self._hello.boot:
            raise LinkLost(f"The robot at {self.address} restarted in the middle of a run; reset it to begin anew.")
        if live.report.episode != episode:
            raise LinkLost(f"The robot at {self.address} was reset by someone else; reset it to begin anew.")

    def _running_state(self, live: LiveConnection) -> State:
        if live.report.mode == "stop":
            raise LinkLost(
                f"The robot at {self.address} has stopped: {live.report.reason} Make it safe, then reset it."
            )
        self._doubt(live.report)
        return self._state(live)

    def _doubt(self, report: Report) -> None:
        """Raise where readings have been impossible for a few states; the robot's server should have refused them."""
        reading = Reading(report.t, report.q, report.v, report.seen, report.stamps)
        if self._checks is None:
            return
        doubt = self._checks.doubt(reading)
        self._session.counts["doubtful"] += bool(doubt)
        if self._checks.certain:
            raise LinkLost(
                f"The readings of the robot at {self.address} cannot be right: {doubt} Mend it, then reset it."
            )

    def _state(self, live: LiveConnection) -> State:
        report = live.report
        memory: dict[str, Any] = {
            "tick": np.int64(report.tick),
            "episode": np.int64(report.episode),
            "mono": np.int64(report.mono),
            "wall": np.int64(report.wall),
            "captured": np.float64(self.clock.own(report.mono * 1e-9)),
            "sent": report.sent,
            "seen": dict(report.seen),
            "stamps": {name: np.float64(stamp) for name, stamp in report.stamps.items()},
        }
        return State(report.t, report.q, report.v, {KEY: memory})

    def _memory(self, state: State) -> Mapping[str, Any]:
        if KEY not in state.hidden or state.batch:
            raise BadInput("A robot takes one state at a time, and only one that it gave itself; begin with reset.")
        return state.hidden[KEY]


@array_dataclass
class LiveConnection:
    """A connection that works: the robot has said hello and where it is."""

    hello: Hello
    report: Report
    """The newest one, with the newest frame of every camera."""


class LinkSession:
    """A conversation with a robot in a thread of its own: reconnects, sends heartbeats, keeps the newest state."""

    def __init__(self, address: str, token: str, role: Role = "control"):
        self.address = address.rstrip("/")
        parse_address(self.address, "robot")
        if not token.isascii():
            raise BadInput("A robot's token is plain ASCII text, and this one is not.")
        self._token, self._role = token, role
        self.clock = ClockEstimate()
        """How far the robot's clock is ahead of this computer's."""
        self.counts: Counter[str] = Counter()
        """Counted on this side: connections, messages dropped because they were late or old."""
        self.robot_counts: Mapping[str, int] = {}
        """What the robot has counted, as of its last answer."""
        self._changed = threading.Condition()
        self._live: LiveConnection | None = None
        self._hello: Hello | None = None
        self._refusals: dict[int, Refused] = {}
        self._seq = self._answers = 0
        self._why = "it has not answered yet"
        self._fatal: InstepError | None = None
        self._socket: ClientConnection | None = None
        self._runner = asyncio.Runner()
        self._events = self._runner.get_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="instep-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself in between
                self._events.call_soon_threadsafe(self._cancel)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def wait(self, timeout: float) -> LiveConnection:
        """The newest state, as soon as there is a connection that works."""
        return self._until(lambda live: live, timeout, "connect")

    def wait_for_counts(self, timeout: float) -> None:
        """Wait until the robot has sent its counts anew, for no longer than `timeout` [s]."""
        with self._changed:
            known = self._answers
            self._changed.wait_for(lambda: self._answers > known + 1 or self._fatal is not None, timeout)

    def ask(
        self,
        request: Callable[[LiveConnection, int], Command | Reset],
        answered: Callable[[LiveConnection, int], bool],
        timeout: float,
        what: str,
    ) -> LiveConnection:
        """Send a request and wait for the state that answers it; after a reconnect it is sent again.

        `answered` is asked with the newest state and the request's sequence number, 0 before the request was sent
        on this connection.
        """
        asked = ("", 0)

        def check(live: LiveConnection) -> LiveConnection | None:
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
                refusal = self._refusals.pop(asked[1])
                if refusal.cause != "stale":
                    raise BadInput(f"The robot at {self.address} refused: {refusal.reason}")
                # Too late for this state: nothing moved, and the newest state asks for another action.
                self.counts["stale"] += 1
                return live
            return live if answered(live, asked[1]) else None

        return self._until(check, timeout, what)

    def _until(
        self, check: Callable[[LiveConnection], LiveConnection | None], timeout: float, what: str
    ) -> LiveConnection:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._fatal is not None:
                    raise self._fatal
                found = check(self._live) if self._live is not None else None
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    why = "the connection stands, but no new state came" if self._live is not None else self._why
                    raise LinkLost(
                        f"The robot at {self.address} did not {what} within {timeout:g} s: {why}. See that it runs and "
                        f"can be reached, then reset it."
                    )
                self._changed.wait(left)

    def stop(self, timeout: float = 2.0) -> None:
        """Stop the robot until it is reset, and wait until it says that it has stopped."""
        asked = ""

        def check(live: LiveConnection) -> LiveConnection | None:
            nonlocal asked
            if live.report.mode == "stop":
                return live
            if asked != live.hello.connection:  # after a reconnect it is asked again
                asked = live.hello.connection
                self._post(Stop(asked))
            return None

        self._until(check, timeout, "stop")

    def _post(self, message: Command | Reset | Stop) -> None:
        data = pack(message)
        self._events.call_soon_threadsafe(self._send_soon, data, message.connection)

    def _send_soon(self, data: bytes, connection: str) -> None:
        if self._socket is not None and self._hello is not None and self._hello.connection == connection:
            task = self._events.create_task(self._send(self._socket, data))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _send(self, socket: ClientConnection, data: bytes) -> None:
        with contextlib.suppress(*connection_errors()):  # the reader notices and redials
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

    def _cancel(self) -> None:
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
                async with await connect(f"{self.address}/{self._role}", self._token, MAX_BYTES) as socket:
                    self._socket = socket
                    if await self._converse(socket):
                        pause = 0.05
            except (*connection_errors(), BadInput) as error:
                self._lost(_reason(error))
            finally:
                self._socket = None
            if self._fatal is not None:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _converse(self, socket: ClientConnection) -> bool:
        """Receive until the connection breaks; returns whether it ever worked."""
        self.counts["connections"] += 1
        events = asyncio.get_running_loop()
        heartbeats = events.create_task(self._send_heartbeats(socket))
        try:
            async with asyncio.timeout(SILENCE_S) as silence:
                while True:
                    data = await socket.recv()
                    silence.reschedule(events.time() + SILENCE_S)
                    self._take(unpack(data if isinstance(data, bytes) else b"", FROM_ROBOT))
        except (*connection_errors(), BadInput) as error:
            worked = self._live is not None
            self._lost(_reason(error))
            return worked
        finally:
            heartbeats.cancel()

    async def _send_heartbeats(self, socket: ClientConnection) -> None:
        with contextlib.suppress(*connection_errors()):
            for number in range(2**62):
                # The first few come quickly, so that the clocks are matched when the first state is asked for.
                await asyncio.sleep(0.01 if number < 8 else HEARTBEAT_S)
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
                self.robot_counts, self._answers = message.counts, self._answers + 1
            elif isinstance(message, Refused):
                self._refusals[message.seq] = message
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
        self._live = LiveConnection(hello, report)


def _reason(error: Exception) -> InstepError | str:
    """Why a connection broke: an error for the user to act on, or a clause while the link goes on trying."""
    if isinstance(error, BadInput):
        return f"it sent what is no message of this link ({str(error).rstrip('.')})"
    refusal = refused(error)
    return BadInput(refusal) if refusal else explain(error)
