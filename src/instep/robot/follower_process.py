"""The follower in a process of its own: driver, fast commands and a watchdog, apart from network, policy and twin.

The parent sends set points as datagrams, each with a number and the time it was sent; the child takes the newest, and
brakes by its own clock when none comes. So a parent that is slow, stopped or killed cannot keep the robot moving, and a
driver whose `read` is slow delays no command.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.processes import main_thread_ended
from instep.core.world import Array, Spec, array_dataclass

from .driver import Driver, Reading
from .follower import Follower
from .jerk_kernels import compiled
from .limits import Limits
from .realtime import realtime_priority

LOSS_S = 0.05
"""Without a set point for this long the follower brakes, or for three set-point periods where those are longer [s]."""
MAX_AGE_S = 0.25
"""A set point that was under way for longer is dropped [s]."""
START_TIMEOUT_S = 60.0
"""Longest time until the driver's first reading [s]."""
RESET_TIMEOUT_S = 120.0
HEADER = struct.Struct("<cQq")
"""Kind of a message, its number, and the monotonic clock when it was sent [ns]."""
TARGET, RESET, STOP, END = b"T", b"R", b"S", b"E"

_log = logging.getLogger(__name__)


@array_dataclass
class FollowerReport:
    """What the child says, once per control period."""

    reading: Reading | None
    """The newest reading; None before the first."""
    command: Array | None
    """The command that was sent last; None before the first set point."""
    answered: int
    """Number of the last reset that was carried out."""
    error: str
    """Why that reset failed; empty where it did not."""
    missed: int
    """Periods of the follower that were skipped because the computer was late."""
    late: int
    """Set points that were dropped because they were too old."""


class FollowerProcess:
    """A driver in a process of its own, which gets jerk-limited commands at `rate` [Hz] while set points come slower.

    `make` opens the driver in that process; it must be importable there (a function of a module, or a
    `functools.partial` of one). `write` of the driver is called by one thread, `read` by another. An exception in
    `write` stops the robot until a reset, and every further reading says why. Use it with `with`, and serve it like any
    driver.
    """

    def __init__(self, make: Callable[[], Driver], limits: Limits, *, rate: float = 500.0):
        context = multiprocessing.get_context("spawn")
        self._targets, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._targets.setblocking(False)
        self._reports, reports = context.Pipe(duplex=False)
        arguments = (make, limits, rate, theirs, reports, os.getpid())
        self._process = context.Process(target=_run, args=arguments, name="instep-follower", daemon=True)
        self._process.start()
        theirs.close()
        reports.close()
        self._seq, self._last = 0, FollowerReport(None, None, 0, "", 0, 0)
        try:
            self._spec = self._receive_spec()
            self._wait(lambda: self._last.reading is not None, START_TIMEOUT_S, "was not read")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid or 0

    @property
    def missed(self) -> int:
        """Periods of the follower that were skipped because the computer was late."""
        return self._last.missed

    @property
    def spec(self) -> Spec:
        """The spec of the driver."""
        return self._spec

    def read(self) -> Reading:
        """The newest reading; it never waits for the driver. A process that has ended is a fault."""
        self._drain()
        reading = self._last.reading
        if reading is None:
            raise LinkLost("The follower's process has read nothing from the robot yet.")
        return reading if self._alive else replace(reading, fault=self._ended())

    def write(self, action: Array) -> Array:
        """Send a set point, and return the command that was sent last."""
        self._send(TARGET, np.asarray(action, "<f8").tobytes())
        self._drain()
        return np.asarray(action, float) if self._last.command is None else self._last.command

    def hold(self) -> Array:
        """The command that was sent last; without further set points the follower brakes by itself."""
        return np.zeros(self.spec.action.shape) if self._last.command is None else self._last.command

    def passed(self, periods: int) -> None:
        """Nothing to do: the follower has gone on by itself."""

    def reset(self, seed: int) -> None:
        """Go to a start and clear a stop, and wait until that is done."""
        number = self._send(RESET, struct.pack("<q", seed))
        self._wait(lambda: self._last.answered >= number, RESET_TIMEOUT_S, "was not reset")
        if self._last.error:
            raise LinkLost(self._last.error)

    def stop(self) -> None:
        """Brake inside the limits, then come to rest."""
        with suppress(LinkLost):  # a process that has ended sends nothing any more
            self._send(STOP)

    def close(self) -> None:
        """Stop the robot and end the process."""
        with suppress(LinkLost):
            self._send(END)
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._targets.close()
        self._reports.close()

    def __enter__(self) -> FollowerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, kind: bytes, body: bytes = b"") -> int:
        self._seq += 1
        try:
            self._targets.send(HEADER.pack(kind, self._seq, time.monotonic_ns()) + body)
        except BlockingIOError:
            raise LinkLost("The follower's process takes no set points; see that its driver returns.") from None
        except OSError:
            raise LinkLost(self._ended()) from None
        return self._seq

    def _receive_spec(self) -> Spec:
        if not self._reports.poll(START_TIMEOUT_S):
            raise LinkLost(f"The robot's driver did not open within {START_TIMEOUT_S:g} s.")
        try:
            opened = self._reports.recv()
        except EOFError:
            raise LinkLost(self._ended()) from None
        if isinstance(opened, Spec):
            return opened
        raise BadInput(f"The robot's driver did not open: {opened}")

    def _drain(self) -> None:
        with suppress(EOFError, OSError):
            while self._reports.poll():
                self._last = self._reports.recv()

    def _wait(self, done: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if not self._alive:
                raise LinkLost(self._ended())
            if time.monotonic() > deadline:
                raise LinkLost(f"The robot {what} within {timeout:g} s.")
            with suppress(EOFError, OSError):
                self._reports.poll(0.05)
            self._drain()

    @property
    def _alive(self) -> bool:
        return self._process.is_alive() and not main_thread_ended(self.pid)

    def _ended(self) -> str:
        code = self._process.exitcode
        known = "" if code is None else f" (exit code {code})"
        return f"The follower's process has ended{known}; start the robot again."


def _run(
    make: Callable[[], Driver], limits: Limits, rate: float, targets: socket.socket, reports: Connection, parent: int
) -> None:
    """The child: open the driver, then follow until the parent ends it or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    targets.setblocking(False)
    try:
        driver = make()
        compiled()
        reports.send(driver.spec)
    except Exception as error:  # noqa: BLE001 - a vendor's driver may raise anything; the parent raises it again
        _log.exception("The robot's driver did not open.")
        reports.send(_sentence(error))
        return
    with realtime_priority():
        _FollowerChild(driver, limits, rate, targets, reports).run(parent)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, InstepError) else f"Its driver raised {type(error).__name__}."


class _FollowerChild:
    """The follower's loop in one thread, the readings of the driver in another."""

    def __init__(self, driver: Driver, limits: Limits, rate: float, targets: socket.socket, reports: Connection):
        self._driver, self._limits, self._rate = driver, limits, rate
        self._targets, self._reports = targets, reports
        self._loss = max(LOSS_S, 3 * driver.spec.dt)
        self._follower: Follower | None = None
        self._fault, self._error, self._answered = "", "", 0
        self._reading: Reading | None = None
        self._fed = 0.0
        self._missed = self._late = self._seq = 0
        self._stopping, self._over = False, threading.Event()

    def run(self, parent: int) -> None:
        """Until the parent ends it, or is gone."""
        reader = threading.Thread(target=self._read, name="instep-reader", daemon=True)
        reader.start()
        dt = 1.0 / self._rate
        deadline = time.monotonic()
        try:
            while not self._over.is_set() and os.getppid() == parent:
                self._receive()
                self._step()
                deadline += dt
                late = time.monotonic() - deadline
                if late > dt:
                    # Catching up would send two commands in one period, which the motors see as twice the speed.
                    self._missed += int(late / dt)
                    deadline += int(late / dt) * dt
                time.sleep(max(0.0, deadline - time.monotonic()))
        finally:
            self._over.set()
            self._stopping = True
            deadline = time.monotonic() + self._limits.stop_time + 1.0
            while self._follower is not None and time.monotonic() < deadline:
                self._step()
                time.sleep(dt)
            self._halt()
            reader.join(1.0)

    def _receive(self) -> None:
        """Take what the parent sent; of several set points the newest counts."""
        newest: bytes | None = None
        while True:
            try:
                data = self._targets.recv(1 << 16)
            except BlockingIOError:
                break
            kind, number, sent = HEADER.unpack_from(data)
            if number <= self._seq:
                continue
            self._seq = number
            if kind == TARGET:
                fresh = (time.monotonic_ns() - sent) * 1e-9 <= MAX_AGE_S
                self._late += not fresh
                newest = data[HEADER.size :] if fresh else newest
            else:
                newest = None
                self._obey(kind, number, data[HEADER.size :])
        if newest is not None and not self._fault and not self._stopping:
            self._aim(np.frombuffer(newest, "<f8"))

    def _obey(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == END:
            self._over.set()
        elif kind == STOP:
            self._stopping = True
        elif kind == RESET:
            self._follower, self._fault, self._stopping, self._error = None, "", False, ""
            try:
                self._driver.reset(*struct.unpack("<q", body))
            except Exception as error:  # noqa: BLE001 - a vendor's call may raise anything; the parent raises it again
                _log.exception("The robot was not reset.")
                self._error = _sentence(error)
            self._reading, self._answered = None, number

    def _aim(self, target: Array) -> None:
        if self._follower is None:
            reading = self._reading
            if reading is None:
                return  # nothing moves before it is known where the robot is
            start = self._limits.start(reading.q, self._driver.spec)
            self._follower = Follower(self._limits, start, rate=self._rate, target_rate=1.0 / self._driver.spec.dt)
        self._follower.set_target(target)
        self._fed = time.monotonic()

    def _step(self) -> None:
        """One command; without set points for too long, or on the way to a stop, one that brakes."""
        follower = self._follower
        if follower is None:
            if self._stopping:
                self._halt()
            return
        if self._stopping or time.monotonic() - self._fed > self._loss:
            follower.brake()
        command = follower.step()
        try:
            self._driver.write(np.where(self._limits.position_targets, command, follower.target))
        except Exception as error:  # noqa: BLE001 - a vendor's call may raise anything, and the robot must stop
            _log.exception("The motors refused a command.")
            self._fault = f"The motors refused a command: {_sentence(error)}"
            self._halt()
            return
        if self._stopping and follower.at_rest:
            self._halt()

    def _halt(self) -> None:
        self._follower, self._stopping = None, False
        try:
            self._driver.stop()
        except Exception:  # noqa: BLE001 - it counts as stopped; what the driver said is in the log
            _log.exception("The robot's driver failed to stop it.")

    def _read(self) -> None:
        """Read the driver once per control period and tell the parent, until the end."""
        period = self._driver.spec.dt
        while not self._over.wait(period):
            try:
                reading = self._driver.read()
            except Exception as error:  # noqa: BLE001 - a vendor's call may raise anything; the robot stops for it
                _log.exception("The robot cannot be read.")
                self._fault = self._fault or _sentence(error)
                reading = self._reading
            if reading is not None:
                self._reading = reading
                reading = replace(reading, fault=self._fault or reading.fault)
            follower = self._follower
            command = None if follower is None else follower.motion.q
            try:
                self._reports.send(
                    FollowerReport(reading, command, self._answered, self._error, self._missed, self._late)
                )
            except OSError:
                self._over.set()  # the parent is gone
