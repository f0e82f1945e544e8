"""Jerk-limited follower: set points at the policy's rate in, commands at the motors' rate out, inside all limits.

Commands are positions q_k, one per period T, with v, a and the jerk j as their first three differences. With every
command the follower keeps a plan of accelerations that brings the joint to rest without leaving a limit. The next
command is accepted only if such a plan exists for it too; if not, the plan that exists is followed. So nothing that
is asked can lead out of the limits, and when set points stop coming the plan is the stop.

Set points s_k are joined by a quadratic B-spline, whose speed and acceleration are those of the set points
themselves. It runs two set-point periods late, a delay that is known and constant: 1.5 for the spline, half of one to
take up jitter. A set point that is missing is extrapolated once; then the follower brakes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.records import array_dataclass
from instep.core.world import Array

from .driver import Driver, WrappedDriver
from .limits import Limits

GRID = np.linspace(0.0, 1.0, 9)[:, None]
"""Shares of an interval of accelerations that are tried side by side, which costs hardly more than one."""


@array_dataclass
class FollowerMotion:
    """Where the commands of all joints are, and the plan that brings them to rest."""

    q: Array
    v: Array
    a: Array
    plan: Array
    """Accelerations of the periods to come [periods, joints]; zero after the joint is at rest."""


class Follower:
    """Commands at a fast rate that follow set points at a slow one: `set_target` takes one, `step` gives a command."""

    def __init__(self, limits: Limits, start: Array, *, rate: float = 250.0, target_rate: float = 60.0):
        if not rate >= target_rate > 0:
            raise BadInput(
                f"A follower must run at least as fast as its set points come, not {rate:g} for {target_rate:g} Hz."
            )
        self._limits, self._dt, self._share = limits, 1.0 / rate, target_rate / rate
        here = np.asarray(start, float)
        self.motion = FollowerMotion(here, np.zeros_like(here), np.zeros_like(here), np.zeros((1, here.size)))
        """The last command and the plan behind it."""
        self._line = [here, here, here]
        self._phase, self._next, self._missing = 0.0, here, 2
        self._speed = np.zeros_like(here)
        self._fresh = False

    @property
    def braking(self) -> bool:
        """Whether set points are late by more than one period, so that the follower comes to rest."""
        return self._missing > 1

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
            self.motion = planned(self.motion, self._dt)
        else:
            reference, speed = self._reference()
            self.motion = follow(self.motion, reference, speed, self._limits, self._dt)
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

    `write` of the inner driver is called by the follower's thread, all other calls come from the robot's loop. A write
    that fails is raised at the next set point, so that the robot's loop stops.
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
            raise LinkLost(f"The motors refused a command: {self._thread.error}")
        self._thread.set_target(action)
        return self._thread.command

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

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.__exit__()
            self._thread = None


def follow(motion: FollowerMotion, reference: Array, speed: Array, limits: Limits, dt: float) -> FollowerMotion:
    """One period towards a moving reference; a joint for which nothing else is feasible follows its plan.

    Seen from the reference the task is to come to rest at it: the acceleration is chosen such that braking right
    after this period, in the frame of the reference, would end exactly there.
    """
    wanted = _wanted(motion, reference, speed, limits, dt)
    moved, feasible = _moved(motion, wanted, limits, dt)
    if feasible.all():
        return moved
    # Between the plan, which is feasible, and the wanted acceleration: as far as is feasible, joint by joint.
    low, high = np.zeros_like(wanted), np.ones_like(wanted)
    plan = _next_planned(motion)
    for _ in range(2):
        shares = low + (high - low) * GRID
        fine = _moved(motion, plan + shares * (wanted - plan), limits, dt)[1]
        last = np.where(fine.any(axis=0), len(GRID) - 1 - np.argmax(fine[::-1], axis=0), 0)
        low, high = _picked(shares, last), _picked(shares, np.minimum(last + 1, len(GRID) - 1))
    moved, feasible = _moved(motion, np.where(feasible, wanted, plan + low * (wanted - plan)), limits, dt)
    return _chosen(feasible, moved, planned(motion, dt))


def planned(motion: FollowerMotion, dt: float) -> FollowerMotion:
    """One period of the plan that brings the joints to rest."""
    a = _next_planned(motion)
    v = motion.v + a * dt
    return FollowerMotion(motion.q + v * dt, v, a, motion.plan[1:])


def brake(v: Array, a: Array, limits: Limits, dt: float) -> Array:
    """Accelerations [periods, ..., joints] that bring joints from speed v and acceleration a [..., joints] to rest.

    Of all plans with n periods the deepest and the highest are trapezoids that change by the jerk limit; any speed
    between what those two take away is taken away by a mixture of them. n is the smallest for which there is one.
    """
    top, rise = np.asarray(limits.acceleration), _rise(limits, dt)
    n, share, _ = _mixture(v, a, limits, dt)
    i = np.arange(1, max(int(n.max()), 1) + 1).reshape(-1, *[1] * v.ndim)
    ends = np.maximum(n - i, 0.0) * rise
    deep = np.maximum(np.maximum(-top, a - i * rise), -ends)
    high = np.minimum(np.minimum(top, a + i * rise), ends)
    return share * deep + (1.0 - share) * high


def _mixture(v: Array, a: Array, limits: Limits, dt: float) -> tuple[Array, Array, Array]:
    """How many periods it takes to come to rest, the share of the deepest plan, and the way until then."""
    top, rise = np.asarray(limits.acceleration), _rise(limits, dt)
    least = _periods(v, a, top, rise, dt)
    n = np.stack([least - 2, least - 1, least])  # a few lengths below the bound [lengths, ..., joints]
    deep, deep_way = _trapezoid(a, n, top, rise)
    high, high_way = (-part for part in _trapezoid(-a, n, top, rise))
    change = -v / dt
    slack = 1e-12 * (1.0 + np.abs(change))
    possible = (deep - slack <= change) & (change <= high + slack) & (n * rise >= np.abs(a) * (1 - 1e-12)) & (n > 0)
    pick = np.argmax(possible, axis=0)[None]
    share = np.clip((high - change) / np.maximum(high - deep, 1e-300), 0.0, 1.0)
    way = dt * (n * v + dt * (share * deep_way + (1.0 - share) * high_way))
    return _picked(n, pick[0]), _picked(share, pick[0]), _picked(way, pick[0])


def _trapezoid(a: Array, n: Array, top: Array, rise: Array) -> tuple[Array, Array]:
    """The sum over i = 1..n of the deepest plan b_i = max(-top, a - i rise, -(n - i) rise), and that of its sums.

    Down for p periods, flat until r, up again; the sum of the sums is the sum of (n + 1 - i) b_i.
    """
    n = np.maximum(n, 0)
    p = np.clip(np.floor(np.minimum((a + top) / rise, (a + n * rise) / (2 * rise))), 0, n)
    r = np.clip(np.floor(n - top / rise), p, n)
    m = n - r
    ramp, rest = p * (p + 1) / 2, m * (m - 1) / 2
    total = p * a - rise * (ramp + rest) - top * (r - p)
    moment = a * ramp - rise * ramp * (2 * p + 1) / 3 - top * (r * (r + 1) / 2 - ramp)
    moment = moment - rise * rest * (n - (2 * m - 1) / 3)
    return total, (n + 1) * total - moment


def _periods(v: Array, a: Array, top: Array, rise: Array, dt: float) -> Array:
    """A number of periods that suffices to come to rest, from the same problem in continuous time."""
    jerk = rise / dt
    ahead = v + a * np.abs(a) / (2 * jerk)
    sign = np.where(ahead >= 0, 1.0, -1.0)
    v, a = sign * v, sign * a
    peak = np.minimum(np.sqrt(np.maximum(jerk * v + 0.5 * a * a, 0.0)), top)
    flat = np.maximum(v + (0.5 * a * a - peak * peak) / jerk, 0.0) / top
    return np.ceil(((a + 2 * peak) / jerk + flat) / dt) + 1.0


def _wanted(motion: FollowerMotion, reference: Array, speed: Array, limits: Limits, dt: float) -> Array:
    step = _rise(limits, dt)
    low = np.maximum(motion.a - step, -np.asarray(limits.acceleration))
    high = np.minimum(motion.a + step, limits.acceleration)
    direct = ((reference - motion.q) / dt - motion.v) / dt
    drift = np.abs(motion.v + direct * dt - speed)
    # On the reference and as fast as it: stay on it. The search would find the same, slower.
    near = (direct >= low) & (direct <= high) & (drift <= 0.5 * step * dt)
    if near.all():
        return direct
    root = _root(lambda tried: _miss(motion, tried, reference, speed, limits, dt), low, high)
    return np.where(near, direct, root)


def _root(miss: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Where a function that grows crosses zero between two bounds, joint by joint, else the bound nearest to it."""
    low, high, _, _ = _bracket(miss, low, high)
    low, high, short, far = _bracket(miss, low, high)
    return np.clip(low - short * (high - low) / np.where(far > short, far - short, 1.0), low, high)


def _bracket(miss: Callable[[Array], Array], low: Array, high: Array) -> tuple[Array, Array, Array, Array]:
    """The part of the grid in which the function crosses zero: two places, and the function there."""
    tried = low + (high - low) * GRID
    values = miss(tried)
    last = np.clip(np.sum(values <= 0, axis=0) - 1, 0, len(GRID) - 2)
    return _picked(tried, last), _picked(tried, last + 1), _picked(values, last), _picked(values, last + 1)


def _picked(rows: Array, index: Array) -> Array:
    return np.take_along_axis(rows, index[None], 0)[0]


def _miss(motion: FollowerMotion, a: Array, reference: Array, speed: Array, limits: Limits, dt: float) -> Array:
    """How far beyond the reference the joint would come to rest relative to it."""
    v = motion.v + a * dt
    relative = v - speed
    return motion.q + v * dt - reference + _mixture(relative, a, limits, dt)[2]


def _moved(motion: FollowerMotion, a: Array, limits: Limits, dt: float) -> tuple[FollowerMotion, Array]:
    """The motion after a period at acceleration a [..., joints], and which can come to rest inside the limits."""
    v = motion.v + a * dt
    q = motion.q + v * dt
    plan = brake(v, a, limits, dt)
    speeds = v + dt * np.cumsum(plan, axis=0)
    places = q + dt * np.cumsum(speeds, axis=0)
    tiny, jump = 1e-11, np.asarray(limits.jerk) * dt * (1 + 1e-12) + 1e-11
    top, fast = np.asarray(limits.acceleration) + tiny, np.asarray(limits.velocity) + tiny
    # A joint that begins outside its limits may come back, not go further.
    low, high = np.minimum(limits.low, motion.q), np.maximum(limits.high, motion.q)
    feasible = (np.abs(a - motion.a) <= jump) & (np.abs(plan[0] - a) <= jump) & (np.abs(plan[-1]) <= jump)
    feasible &= (np.abs(a) <= top) & (np.abs(v) <= fast) & (low <= q) & (q <= high) & (np.abs(speeds[-1]) <= 1e-9)
    feasible &= ((np.abs(speeds) <= fast) & (np.abs(plan) <= top) & (low <= places) & (places <= high)).all(axis=0)
    return FollowerMotion(q, v, a, plan), feasible & (np.abs(np.diff(plan, axis=0)) <= jump).all(axis=0)


def _chosen(first: Array, one: FollowerMotion, other: FollowerMotion) -> FollowerMotion:
    """The joints of one motion where `first`, of the other where not."""
    rows = max(len(one.plan), len(other.plan))
    plans = [np.concatenate([m.plan, np.zeros((rows - len(m.plan), m.q.size))]) for m in (one, other)]
    parts = [np.where(first, x, y) for x, y in ((one.q, other.q), (one.v, other.v), (one.a, other.a))]
    return FollowerMotion(*parts, plan=np.where(first, *plans))


def _rise(limits: Limits, dt: float) -> Array:
    """Most change of acceleration in one period; no more than from one limit to the other is ever of use."""
    return np.minimum(np.asarray(limits.jerk) * dt, 2 * np.asarray(limits.acceleration))


def _next_planned(motion: FollowerMotion) -> Array:
    return motion.plan[0] if len(motion.plan) else np.zeros_like(motion.q)
