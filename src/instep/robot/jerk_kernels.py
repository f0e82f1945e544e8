"""Compiled step of jerk-limited joints: the next command towards a moving reference, and the plan that stops it.

A joint is a row of `ROW` numbers, its limits are a row of `BOUNDS` numbers. The plan of a joint are n accelerations
that bring it to rest; it is kept in closed form, as a mixture of the deepest and the highest plan of that length.
"""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import math

import numpy as np
from numba import njit

from instep.core.world import Array

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
ROW = ("q", "v", "a", "plan_a", "plan_length", "plan_share", "plan_at", "target", "speed")
"""A joint: the last command and its differences; the plan began at acceleration `plan_a`, has a length and a share of
the deepest plan, and was followed for `plan_at` periods; the last target, and how fast it moves."""
BOUNDS: tuple[str, ...] = ("low", "high", "velocity", "acceleration", "jerk")
HALVINGS = 6
"""How often an interval of accelerations is halved in a search; a search costs as many plans."""
EPSILON = float(np.finfo(float).eps)
FAR = 1e12
"""A reference further away than this is taken to be this far, so that nothing overflows [rad or m]."""


@njit(**OPTIONS)
def follow_references(
    rows: Array, references: Array, speeds: Array, bounds: Array, dt: float, out: Array
) -> None:  # pragma: no cover - compiled
    """Write the joints [n, ROW] one period later, each towards its reference, which moves at a speed."""
    for k in range(rows.shape[0]):
        follow_one(rows[k], references[k], speeds[k], bounds[k], dt, out[k])


@njit(**OPTIONS)
def approach_targets(
    rows: Array, targets: Array, bounds: Array, dt: float, out: Array
) -> None:  # pragma: no cover - compiled
    """Write the joints [n, ROW] one period later, each towards its target inside the range, as fast as that moves."""
    for k in range(rows.shape[0]):
        low, high, top, reach = bounds[k, 0], bounds[k, 1], bounds[k, 2], bounds[k, 3] * dt
        target = min(max(targets[k], low), high)
        # A target that jumps has no speed worth following; what it may have is bounded as the joint's is.
        before, moved = rows[k, 8], (target - rows[k, 7]) / dt
        speed = min(max(min(max(moved, before - reach), before + reach), -top), top)
        follow_one(rows[k], target, speed, bounds[k], dt, out[k])
        out[k, 7], out[k, 8] = target, speed
        # A target that is reached is sent as it is, not as its last bits are rounded.
        if abs(out[k, 0] - target) <= 16 * EPSILON * max(abs(target), abs(rows[k, 0])):
            out[k, 0] = target


@njit(**OPTIONS)
def follow_plans(rows: Array, bounds: Array, dt: float, out: Array) -> None:  # pragma: no cover - compiled
    """Write the joints [n, ROW] one period later on the plans that bring them to rest."""
    for k in range(rows.shape[0]):
        _follow_plan(rows[k], bounds[k], dt, out[k])


@njit(**OPTIONS)
def make_plans(rows: Array, bounds: Array, dt: float, out: Array) -> None:  # pragma: no cover - compiled
    """Write plans that begin at the speed and acceleration of the joints [n, ROW]."""
    for k in range(rows.shape[0]):
        top = bounds[k, 3]
        length, share, _ = plan_to_rest(rows[k, 1], rows[k, 2], top, min(bounds[k, 4] * dt, 2.0 * top), dt)
        out[k, 3], out[k, 4], out[k, 5], out[k, 6] = rows[k, 2], length, share, 0.0


@njit(**OPTIONS)
def follow_one(row, reference, speed, bound, dt, out):  # pragma: no cover - compiled
    """One joint: as near to the reference as a command can be after which the joint can stop inside its limits.

    Seen from the reference the task is to come to rest at it: the acceleration is chosen such that braking right after
    this period, in the frame of the reference, would end exactly there.
    """
    q, v, a = row[0], row[1], row[2]
    top = bound[3]
    rise = min(bound[4] * dt, 2.0 * top)
    low, high = max(a - rise, -top), min(a + rise, top)
    reference = min(max(reference, q - FAR), q + FAR)
    wanted = ((reference - q) / dt - v) / dt
    # On the reference and as fast as it: stay on it. The search would find the same, slower.
    if not (low <= wanted <= high and abs(v + wanted * dt - speed) <= 0.5 * rise * dt):
        wanted = _root(row, low, high, reference, speed, top, rise, dt)
    # Between the plan, which is feasible, and the wanted acceleration: as far as is feasible.
    plan, least, most, share = _planned(row, top, rise), 0.0, 1.0, 1.0
    for k in range(HALVINGS + 2):
        feasible = share > 0.0 and _try(row, plan + share * (wanted - plan), bound, rise, dt, out)
        if feasible and (k == 0 or k == HALVINGS + 1):
            return
        if feasible:
            least = share
        else:
            most = share
        share = 0.5 * (least + most) if k < HALVINGS else least
    _follow_plan(row, bound, dt, out)


@njit(**OPTIONS)
def _follow_plan(row, bound, dt, out):  # pragma: no cover - compiled
    a = _planned(row, bound[3], min(bound[4] * dt, 2.0 * bound[3]))
    out[1] = row[1] + a * dt
    out[0] = row[0] + out[1] * dt
    out[2] = a
    out[3], out[4], out[5], out[6] = row[3], row[4], row[5], row[6] + 1.0


@njit(**OPTIONS)
def _planned(row, top, rise):  # pragma: no cover - compiled
    return _plan_at(row[3], row[4], row[5], row[6] + 1.0, top, rise)


@njit(**OPTIONS)
def _plan_at(a, n, share, i, top, rise):  # pragma: no cover - compiled
    """The i-th acceleration of a plan of n periods that begins at acceleration a."""
    end = max(n - i, 0.0) * rise
    deep = max(max(-top, a - i * rise), -end)
    high = min(min(top, a + i * rise), end)
    return share * deep + (1.0 - share) * high


@njit(**OPTIONS)
def _try(row, a, bound, rise, dt, out):  # pragma: no cover - compiled
    """Write the joint after a period at acceleration a; whether it can come to rest inside the limits from there."""
    v = row[1] + a * dt
    q = row[0] + v * dt
    top, fast = bound[3], bound[2] + 1e-11
    # A joint that begins outside its limits may come back, not go further.
    low, high = min(bound[0], row[0]), max(bound[1], row[0])
    if not (low <= q <= high and abs(v) <= fast and abs(a) <= top + 1e-11):
        return False
    if not abs(a - row[2]) <= rise * (1.0 + 1e-12) + 1e-11:
        return False
    n, share, _ = plan_to_rest(v, a, top, rise, dt)
    out[0], out[1], out[2], out[3], out[4], out[5], out[6] = q, v, a, a, n, share, 0.0
    for i in range(1, int(n) + 1):
        v += dt * _plan_at(a, n, share, float(i), top, rise)
        q += dt * v
        if not (low <= q <= high and abs(v) <= fast):
            return False
    # A mixture of two plans is rounded by their accelerations.
    return abs(v) <= 1e-9 + 1e-14 * top * dt


@njit(**OPTIONS)
def plan_to_rest(v, a, top, rise, dt):  # pragma: no cover - compiled
    """The shortest plan to rest from speed v and acceleration a: its length, its share of the deepest plan, its way.

    Of all plans with n periods the deepest and the highest are trapezoids that change by the jerk limit; any speed
    between what those two take away is taken away by a mixture of them. n is the smallest for which there is one.
    """
    change = -v / dt
    slack = 1e-12 * (1.0 + abs(change))
    n = max(_periods(v, a, top, rise, dt) - 2.0, 1.0) - 1.0
    deep = deep_way = high = high_way = 0.0
    for _ in range(9):
        n += 1.0
        for side in (1.0, -1.0):
            total, way = _trapezoid(side * a, n, top, rise)
            deep, deep_way, high, high_way = high, high_way, total, way
        possible = deep - slack <= change <= slack - high
        if possible and n * rise >= abs(a) * (1.0 - 1e-12):
            break
    share = min(max((-high - change) / max(-high - deep, 1e-300), 0.0), 1.0)
    return n, share, dt * (n * v + dt * (share * deep_way - (1.0 - share) * high_way))


@njit(**OPTIONS)
def _trapezoid(a, n, top, rise):  # pragma: no cover - compiled
    """The sum over i = 1..n of the deepest plan b_i = max(-top, a - i rise, -(n - i) rise), and that of its sums.

    Down for p periods, flat until r, up again; the sum of the sums is the sum of (n + 1 - i) b_i.
    """
    p = min(max(math.floor(min((a + top) / rise, (a + n * rise) / (2.0 * rise))), 0.0), n)
    r = min(max(math.floor(n - top / rise), p), n)
    m = n - r
    ramp, rest = 0.5 * p * (p + 1.0), 0.5 * m * (m - 1.0)
    total = p * a - rise * (ramp + rest) - top * (r - p)
    moment = a * ramp - rise * ramp * (2.0 * p + 1.0) / 3.0 - top * (0.5 * r * (r + 1.0) - ramp)
    moment -= rise * rest * (n - (2.0 * m - 1.0) / 3.0)
    return total, (n + 1.0) * total - moment


@njit(**OPTIONS)
def _periods(v, a, top, rise, dt):  # pragma: no cover - compiled
    """A number of periods that suffices to come to rest, from the same problem in continuous time."""
    jerk = rise / dt
    if v + a * abs(a) / (2.0 * jerk) < 0.0:
        v, a = -v, -a
    peak = min(math.sqrt(max(jerk * v + 0.5 * a * a, 0.0)), top)
    flat = max(v + (0.5 * a * a - peak * peak) / jerk, 0.0) / top
    return math.ceil(((a + 2.0 * peak) / jerk + flat) / dt) + 1.0


@njit(**OPTIONS)
def _root(row, low, high, reference, speed, top, rise, dt):  # pragma: no cover - compiled
    """The acceleration between two bounds for which the joint would come to rest at the reference, else the nearest."""
    short = far = 0.0
    tried = low
    for k in range(HALVINGS + 2):
        miss = _miss(row, tried, reference, speed, top, rise, dt)
        if (k == 0 and miss >= 0.0) or (k == 1 and miss <= 0.0):
            return tried
        if miss <= 0.0:
            low, short = tried, miss
        else:
            high, far = tried, miss
        tried = high if k == 0 else 0.5 * (low + high)
    return min(max(low - short * (high - low) / (far - short if far > short else 1.0), low), high)


@njit(**OPTIONS)
def _miss(row, a, reference, speed, top, rise, dt):  # pragma: no cover - compiled
    """How far beyond the reference the joint would come to rest relative to it."""
    v = row[1] + a * dt
    return row[0] + v * dt - reference + plan_to_rest(v - speed, a, top, rise, dt)[2]


def compiled() -> None:
    """Compile the functions, or load them, before a loop needs them."""
    rows, out = np.zeros((1, len(ROW))), np.zeros((1, len(ROW)))
    bounds = np.array([[-1.0, 1.0, 1.0, 1.0, 10.0]])
    make_plans(rows, bounds, 0.01, out)
    approach_targets(rows, np.ones(1), bounds, 0.01, out)
    follow_references(rows, np.ones(1), np.zeros(1), bounds, 0.01, out)
    follow_plans(rows, bounds, 0.01, out)
