"""Jerk-limited follower: set points at the policy's rate in, commands at the motors' rate out, inside all limits.

Set points s_k are joined by a quadratic B-spline, whose speed and acceleration are those of the set points
themselves. It runs two set-point periods late, a delay that is known and constant: 1.5 for the spline, half of one to
take up jitter. A set point that is missing is extrapolated once; then the follower brakes, by the plan that `Limits`
keeps for every command.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.world import Array

from .driver import Driver, Reading, WrappedDriver
from .limits import Limits


class Follower:
    """Commands at a fast rate that follow set points at a slow one: `set_target` takes one, `step` gives a command."""

    def __init__(self, limits: Limits, start: Array, *, rate: float = 250.0, target_rate: float = 60.0):
        if not rate >= target_rate > 0:
            raise BadInput(
                f"A follower must run at least as fast as its set points come, not {rate:g} for {target_rate:g} Hz."
            )
        self._limits, self._dt, self._share = limits, 1.0 / rate, target_rate / rate
        here = np.asarray(start, float)
        self.motion = limits.rest(here)
        """The last command and the plan behind it."""
        self._line = [here, here, here]
        self._phase, self._next, self._missing = 0.0, here, 2
        self._speed = np.zeros_like(here)
        self._fresh = False

    @property
    def braking(self) -> bool:
        """Whether set points are late by more than one period, so that the follower comes to rest."""
        return self._missing > 1

    @property
    def target(self) -> Array:
        """The newest set point, inside the range."""
        return self._next

    @property
    def at_rest(self) -> bool:
        """Whether the follower brakes and has come to rest."""
        return self.braking and bool(np.all(np.abs(self.motion.v) < 1e-9))

    def brake(self) -> None:
        """Come to rest from here, until the next set point."""
        self._missing = 2

    def set_target(self, target: Array) -> None:
        """Take a set point; the newest counts. One of another size or not finite is refused."""
        target = np.asarray(target, float)
        if target.shape != self.motion.q.shape or not np.isfinite(target).all():
            raise BadInput(f"A set point must be {self.motion.q.size} finite numbers, not {target}.")
        if self.braking:
            # Go on from here, never towards where the old set points led.
            period = self._dt / self._share
            self._line = [self.motion.q + i * period * self.motion.v for i in (-2, -1, 0)]
            # Half a period of slack takes up the jitter of the set points.
            self._phase, self._speed = 0.5, self.motion.v
        self._next, self._missing, self._fresh = np.clip(target, self._limits.low, self._limits.high), 0, True

    def step(self) -> Array:
        """The next command."""
        if self.braking:
            self.motion = self._limits.brake(self.motion, self._dt)
        else:
            reference, speed = self._reference()
            self.motion = self._limits.follow(self.motion, reference, speed, self._dt)
        return self.motion.q

    def _reference(self) -> tuple[Array, Array]:
        """Where the spline will be after this period, and its speed there."""
        self._phase += self._share
        if self._phase >= 1.0 - 1e-9:
            self._phase = max(self._phase - 1.0, 0.0)
            self._shift()
        u, (first, second, third) = self._phase, self._line
        at = 0.5 * (1 - u) ** 2 * first + (0.5 + u - u * u) * second + 0.5 * u * u * third
        speed = ((1 - u) * (second - first) + u * (third - second)) * self._share / self._dt
        # A spline through set points that jump has no speed worth following; bound it as the joint's is.
        reach, top = np.asarray(self._limits.acceleration) * self._dt, np.asarray(self._limits.velocity)
        self._speed = np.clip(np.clip(speed, self._speed - reach, self._speed + reach), -top, top)
        return at, self._speed

    def _shift(self) -> None:
        _, before, last = self._line
        if not self._fresh:
            self._missing += 1
            self._next = np.clip(2 * last - before, self._limits.low, self._limits.high)
        self._line = [before, last, self._next]
        self._fresh = False


class FollowerThread:
    """A follower that sends its commands by itself, at its rate, with absolute deadlines."""

    def __init__(self, follower: Follower, send: Callable[[Array], object], *, rate: float = 250.0):
        self._follower, self._send, self._dt = follower, send, 1.0 / rate
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="instep-follower", daemon=True)
        self.missed = 0
        """Periods that were skipped because the computer was late."""
        self.error: BaseException | None = None
        """What `send` raised, if it did; the thread ends then and no further command is sent."""

    @property
    def command(self) -> Array:
        """The command that was sent last."""
        return self._follower.motion.q

    def set_target(self, target: Array) -> None:
        """Take a set point from any thread."""
        with self._lock:
            self._follower.set_target(target)

    def __enter__(self) -> FollowerThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic()
        try:
            while not self._over.is_set():
                with self._lock:
                    command = self._follower.step()
                self._send(command)
                deadline += self._dt
                late = time.monotonic() - deadline
                if late > self._dt:
                    # Catching up would send two commands in one period, which the motors see as twice the speed.
                    self.missed += int(late / self._dt)
                    deadline += int(late / self._dt) * self._dt
                time.sleep(max(0.0, deadline - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - a vendor's call may raise anything; it is kept for the owner
            self.error = error


class FollowerDriver(WrappedDriver):
    """A driver whose motors get commands at `rate` [Hz] from a follower: set points in, jerk-limited commands out.

    `write` of the inner driver is called by the follower's thread, all other calls come from the robot's loop. After a
    write that failed no further command is sent, and the next reading is a fault, so that the robot stops and says why.
    """

    def __init__(self, inner: Driver, limits: Limits, *, rate: float = 250.0):
        super().__init__(inner)
        self._limits, self._rate = limits, rate
        self._thread: FollowerThread | None = None

    def write(self, action: Array) -> Array:
        """Take a set point, and return the command that was sent last."""
        if self._thread is None:
            start = self._limits.start(self._inner.read().q, self.spec)
            follower = Follower(self._limits, start, rate=self._rate, target_rate=1.0 / self.spec.dt)
            self._thread = FollowerThread(follower, self._inner.write, rate=self._rate)
            self._thread.__enter__()
        if self._thread.error is not None:
            raise LinkLost(self._refusal())
        self._thread.set_target(action)
        return self._thread.command

    def read(self) -> Reading:
        """The newest state; a command that the motors refused is a fault."""
        reading = self._inner.read()
        return replace(reading, fault=self._refusal()) if self._thread and self._thread.error else reading

    def hold(self) -> Array:
        """The command that was sent last; without further set points the follower brakes by itself."""
        return self._inner.hold() if self._thread is None else self._thread.command

    def passed(self, periods: int) -> None:
        """Nothing to do: the follower has gone on by itself."""

    def reset(self, seed: int) -> None:
        """End the follower, then go to a start."""
        self._end()
        super().reset(seed)

    def stop(self) -> None:
        """End the follower, then come to rest."""
        self._end()
        super().stop()

    def _refusal(self) -> str:
        return f"The motors refused a command: {self._thread.error if self._thread else ''}"

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.__exit__()
            self._thread = None
