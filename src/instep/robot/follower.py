"""Jerk-limited follower: set points at the policy's rate in, commands at the motors' rate out, inside all limits.

Set points s_k are joined by a quadratic B-spline, whose speed and acceleration are those of the set points
themselves. It runs two set-point periods late, a delay that is known and constant: 1.5 for the spline, half of one to
take up jitter. A set point that is missing is extrapolated once; then the follower brakes, by the plan that `Limits`
keeps for every command.
"""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

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
            _, before, last = self._line
            if not self._fresh:
                self._missing += 1
                self._next = np.clip(2 * last - before, self._limits.low, self._limits.high)
            self._line = [before, last, self._next]
            self._fresh = False
        u, (first, second, third) = self._phase, self._line
        at = 0.5 * (1 - u) ** 2 * first + (0.5 + u - u * u) * second + 0.5 * u * u * third
        speed = ((1 - u) * (second - first) + u * (third - second)) * self._share / self._dt
        # A spline through set points that jump has no speed worth following; bound it as the joint's is.
        reach, top = np.asarray(self._limits.acceleration) * self._dt, np.asarray(self._limits.velocity)
        self._speed = np.clip(np.clip(speed, self._speed - reach, self._speed + reach), -top, top)
        return at, self._speed
