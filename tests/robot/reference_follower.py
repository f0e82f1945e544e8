"""The step of jerk-limited joints in NumPy, with plans as lists of accelerations: slow, the judge of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from instep.core.world import Array
from instep.robot import Limits

GRID = np.linspace(0.0, 1.0, 9)[:, None]
"""Shares of an interval of accelerations that are tried side by side, which costs hardly more than one."""


@dataclass(frozen=True)
class FollowerMotion:
    """Where the commands of all joints are, and the plan that brings them to rest."""

    q: Array
    v: Array
    a: Array
    plan: Array
    """Accelerations of the periods to come [periods, joints]; zero after the joint is at rest."""


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
