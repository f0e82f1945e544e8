"""Compiled steps of adaptive control: motion of the model, recursive estimate of weights, supervision, limits.

A control period lasts one or two milliseconds and its arrays hold a few numbers, so allocating them costs more than
computing them. Each kernel therefore writes into arrays that it is given.

The values of a motion of n joints are one row: q, v and effort [n each], the inertia and the inertia by each kg at the
tip [n * n each], and the regressors [n * (4 + 6 n)].

Supervision. The compensation torque u moves the joints by x, with M x'' + (kv + b) x' + kp x = u, so without it the
error e to the model would be about e - x. The compensation of a joint is at most the largest |e - x| of the last
second, less `OVERSHOOT` times the part of the error that is beyond the model in the direction of the compensation. If
e is larger than e - x for `PATIENCE_S`, and than half the largest |e - x|, the robot is outside the set for which the
law is stable. The compensation then fades out and pauses, each time twice as long. The model continues meanwhile.
"""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from instep.core.world import Array

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
ANY_ORDER = {**OPTIONS, "fastmath": {"reassoc", "contract", "nsz"}}
"""Sums may be formed in any order, so that they are vectorized; NaN stays NaN."""
STOP_SPEED, FLIP_S = 0.02, 0.03
"""Speed below which dry friction fades [rad/s or m/s], and the time in which it changes its sign: a command that jumps
with it would break the limits on acceleration and jerk."""
WINDOW_S = 0.08
"""Time constant of the mean squares that are compared [s]."""
PEAK_S = 1.0
"""Time constant of the largest error without compensation [s]."""
WORSE = 1.6
"""A compensation is harmful where the error is this many times the error without it."""
PEAK_SHARE = 0.5
"""Share of the largest error without compensation that a harmful error exceeds. A joint that dry friction holds a few
milliradians off does not move by its compensation and is not harmed."""
PATIENCE_S = 0.03
"""Time for which a compensation must be harmful [s]."""
MIN_ERROR = 3e-3
"""Error up to which a compensation is never given up [rad or m]."""
OVERSHOOT = 3.0
"""The bound of a compensation falls by this many times the error beyond the model in its direction."""
QUICK_GROWTH = 0.01
"""Size up to which a compensation grows quickly, as for dry friction at a reversal [rad or m]."""
MAX_GROWTH = 0.5
"""Growth of a larger compensation [rad/s or m/s]."""
ACCELERATION = 10.0
"""Acceleration of a compensation [rad/s^2 or m/s^2], a third of what robots without stated limits are allowed. The
limits of a robot would overshoot with more, and a joint that is released suddenly throws the joints that it carries."""
FIRST_PAUSE_S = 1.0
"""Length of the first pause [s]."""
QUICK_FADE_S = 0.05
"""Time in which a harmful compensation fades out [s]."""
SATURATED = 0.98
"""Share of its torque limit above which a servo of the model no longer follows, so nothing is learned from it."""

POSITION, SPEED, WITH, WITHOUT, WORSE_FOR, PEAK, HARMED, HELPED = range(8)
"""Rows of `Supervision.joints`: displacement by the compensation and its speed, mean squares of the error with and
without it, time for which it has been harmful, largest error without it, whether it was harmful (1 or 0), and the share
of the compensation that is applied."""


class Servos(NamedTuple):
    """Position servos of the driven joints [n each]."""

    kp: Array
    kv: Array
    limit: Array
    """Largest torque [Nm or N]."""
    damping: Array
    """Damping of each joint by its servo and its bearing."""


class JointIndex(NamedTuple):
    """Indices of the driven joints in positions, velocities and commands [n each]."""

    q: Array
    dof: Array
    action: Array


class LawMemory(NamedTuple):
    """Memory of the recursive estimate."""

    weights: Array
    """Estimate and the two stages of the filter C [3, p]."""
    covariance: Array
    columns: Array
    """Filtered regressors and torque, and their rates [2, n, p + 1]."""
    surprise: Array
    """Mean squared innovation over its variance [1]."""


class LawLimits(NamedTuple):
    """Bounds of the recursive estimate [p each, `reading` n x 2]."""

    drift: Array
    """Variance by which each weight wanders in a period."""
    variance: Array
    """Largest variance of each weight."""
    low: Array
    high: Array
    first_share: Array
    """Share of the way that the first stage of C goes in a period."""
    second_share: Array
    reading: Array
    """Variance and dead zone of a reading."""


class LawInput(NamedTuple):
    """Input of the law in one period."""

    error: Array
    """Position less that of the model at the time of the reading [n]."""
    active: Array
    """Joints to adapt to: read, and not at their torque limit [n]."""
    past: Array
    """Values of the motion at the time of the reading."""
    past_regressors: Array
    applied: Array
    """Torque of compensation at that time [n]."""
    regressors: Array
    """Regressors of the motion after the command that is being sent."""


class Supervision(NamedTuple):
    """State of the supervision."""

    error: Array
    """Error to the model [n]."""
    share: Array
    """Share of the compensation that is applied [1]."""
    joints: Array
    """[8, n]."""
    pause: Array
    """Remaining pause and the length of the next one [2] [s]."""


class SupervisionRules(NamedTuple):
    """Constants of the supervision."""

    dt: float
    fade: float
    """Time in which a compensation fades in again [s]."""
    max_error: float
    """Error at which compensation is given up [rad or m]."""


class Reading(NamedTuple):
    """A reading with the two motions of the model around its time."""

    q: Array
    newer: Array
    older: Array
    part: float
    """Position of the reading between the newer (0) and the older motion (1)."""
    usable: bool
    """Whether it is recent enough."""
    trusted: bool
    applied: Array
    """Torques of compensation at the time of the reading [n]."""


@njit(**OPTIONS)
def filter_columns(
    inertia: Array, servos: Servos, force: Array, x: Array, w: Array, dt: float
) -> None:  # pragma: no cover - compiled
    """Advance `x` and its rate `w` [n, columns] in place by a period of M x'' + B x' + K x = force [n, columns].

    Implicit Euler, (M + dt B + dt^2 K) w' = M w + dt (force - K x) and x' = x + dt w', is stable for every period.
    """
    damping, stiffness = servos.damping, servos.kp
    n, columns = x.shape
    lower = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            total = inertia[i, j]
            if i == j:
                total += dt * damping[i] + dt * dt * stiffness[i]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(total) if i == j else total / lower[j, j]
    right = np.empty((n, columns))
    for i in range(n):
        for c in range(columns):
            right[i, c] = dt * (force[i, c] - stiffness[i] * x[i, c])
        for j in range(n):
            m = inertia[i, j]
            for c in range(columns):
                right[i, c] += m * w[j, c]
    for i in range(n):
        for k in range(i):
            for c in range(columns):
                right[i, c] -= lower[i, k] * right[k, c]
        for c in range(columns):
            right[i, c] /= lower[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            for c in range(columns):
                right[i, c] -= lower[k, i] * right[k, c]
        for c in range(columns):
            right[i, c] /= lower[i, i]
    for i in range(n):
        for c in range(columns):
            w[i, c] = right[i, c]
            x[i, c] += dt * right[i, c]


@njit(**ANY_ORDER)
def update_estimate(
    theta: Array, covariance: Array, phi: Array, z: Array, noise: Array, active: Array
) -> float:  # pragma: no cover - compiled
    """Take measurements z = phi theta + noise in place, one active joint after the other.

    `noise` [n, 2] holds the variance of a measurement and the dead zone, by which an innovation is shrunk before it
    moves the estimate. Returns the mean squared innovation over its variance (1 where the model is right).
    """
    p = phi.shape[1]
    gain, next_gain, taken = np.empty(p), np.empty(p), np.flatnonzero(active)
    if len(taken) == 0:
        return 0.0
    for a in range(p):
        total = 0.0
        for b in range(p):
            total += covariance[a, b] * phi[taken[0], b]
        gain[a] = total
    surprise = 0.0
    for k in range(len(taken)):
        i = taken[k]
        variance, innovation = noise[i, 0], z[i]
        for a in range(p):
            variance += gain[a] * phi[i, a]
            innovation -= phi[i, a] * theta[a]
        surprise += innovation * innovation / variance
        size = max(abs(innovation) - noise[i, 1], 0.0)
        moved = size if innovation > 0 else -size
        # Each row of the covariance is also multiplied by the next joint's regressors while it is at hand.
        following = phi[taken[min(k + 1, len(taken) - 1)]]
        for a in range(p):
            scaled, total = gain[a] / variance, 0.0
            theta[a] += scaled * moved
            for b in range(p):
                value = covariance[a, b] - scaled * gain[b]
                covariance[a, b] = value
                total += value * following[b]
            next_gain[a] = total
        gain, next_gain = next_gain, gain
    return surprise / len(taken)


@njit(**OPTIONS)
def learn_weights(
    before: LawMemory, after: LawMemory, seen: LawInput, servos: Servos, limits: LawLimits, dt: float
) -> Array:  # pragma: no cover - compiled
    """One period of the estimate, written into `after`; returns the torque of compensation [n]."""
    after.weights[:], after.covariance[:], after.columns[:] = before.weights, before.covariance, before.columns
    theta, x, w = after.weights[0], after.columns[0], after.columns[1]
    n, p = seen.regressors.shape
    # A payload does not only pull: it also slows the error down.
    mass = max(theta[0], 0.0)
    heavier, force = np.empty((n, n)), np.empty((n, p + 1))
    for i in range(n):
        for j in range(n):
            heavier[i, j] = seen.past[3 * n + i * n + j] + mass * seen.past[3 * n + n * n + i * n + j]
        for k in range(p):
            force[i, k] = -seen.past_regressors[i, k]
        force[i, p] = seen.applied[i]
    filter_columns(heavier, servos, force, x, w, dt)
    for k in range(p):
        after.covariance[k, k] = min(after.covariance[k, k] + limits.drift[k], limits.variance[k])
    phi, z = np.empty((n, p)), np.empty(n)
    for i in range(n):
        for k in range(p):
            phi[i, k] = x[i, k]
        z[i] = seen.error[i] - x[i, p]
    surprise = update_estimate(theta, after.covariance, phi, z, limits.reading, seen.active)
    after.surprise[0] = before.surprise[0] + dt * (surprise - before.surprise[0])
    for k in range(p):
        theta[k] = min(max(theta[k], limits.low[k]), limits.high[k])
        after.weights[1, k] += limits.first_share[k] * (theta[k] - after.weights[1, k])
        after.weights[2, k] += limits.second_share[k] * (after.weights[1, k] - after.weights[2, k])
    torque = np.zeros(n)
    for i in range(n):
        for k in range(p):
            torque[i] += seen.regressors[i, k] * after.weights[2, k]
    return torque


@njit(**OPTIONS)
def watch_joints(
    before: Supervision, after: Supervision, applied: Array, past: Array, servos: Servos, rules: SupervisionRules
) -> None:  # pragma: no cover - compiled
    """Joints and pause one period later; the error of `after` is given, and `past` are the values of a motion."""
    n, dt, error = len(after.error), rules.dt, after.error
    joints, rows = before.joints, after.joints
    moved, speed, force = rows[POSITION].reshape((n, 1)), rows[SPEED].reshape((n, 1)), np.empty((n, 1))
    for i in range(n):
        moved[i, 0], speed[i, 0], force[i, 0] = joints[POSITION, i], joints[SPEED, i], applied[i]
    filter_columns(past[3 * n : 3 * n + n * n].reshape((n, n)), servos, force, moved, speed, dt)
    longest, mean = 0.0, min(1.0, dt / WINDOW_S)
    for i in range(n):
        bare = error[i] - moved[i, 0]
        rows[WITH, i] = joints[WITH, i] + mean * (error[i] * error[i] - joints[WITH, i])
        rows[WITHOUT, i] = joints[WITHOUT, i] + mean * (bare * bare - joints[WITHOUT, i])
        rows[PEAK, i] = max(abs(bare), joints[PEAK, i] * (1 - dt / PEAK_S))
        worse = max(WORSE * WORSE * rows[WITHOUT, i], MIN_ERROR * MIN_ERROR)
        harmful = rows[WITH, i] > max(worse, PEAK_SHARE * PEAK_SHARE * rows[PEAK, i] * rows[PEAK, i])
        rows[WORSE_FOR, i] = joints[WORSE_FOR, i] + dt if harmful else 0.0
        rows[HARMED, i] = joints[HARMED, i]
        longest = max(longest, rows[WORSE_FOR, i])
    after.pause[0], after.pause[1] = max(before.pause[0] - dt, 0.0), before.pause[1]
    if after.pause[0] == 0.0 and longest >= PATIENCE_S:
        # One law helps all joints: where it harms one of them, none is helped. Those that it did help go slowly.
        after.pause[0], after.pause[1] = before.pause[1], 2 * before.pause[1]
        for i in range(n):
            rows[HARMED, i] = 1.0 if rows[WORSE_FOR, i] >= PATIENCE_S else 0.0
            rows[WORSE_FOR, i] = 0.0
    for i in range(n):
        rate = dt / rules.fade
        if after.pause[0] > 0:
            rate = -dt / QUICK_FADE_S if rows[HARMED, i] > 0 else -dt / rules.fade
        rows[HELPED, i] = min(max(joints[HELPED, i] + rate, 0.0), 1.0)


@njit(**OPTIONS)
def passed_torques(
    torques: Array, sent: Array, command: Array, servos: Servos, index: JointIndex
) -> Array:  # pragma: no cover - compiled
    """The last torques of compensation as the limits of the world let them through.

    `sent` is the command after the limits (empty where the world does not show it), `command` without compensation.
    """
    out, n = torques.copy(), len(torques)
    if len(sent) == 0:
        return out
    for i in range(n):
        if not np.isfinite(sent[index.action[i]]):
            return out
    for i in range(n):
        out[i] = servos.kp[i] * (sent[index.action[i]] - command[index.action[i]])
    return out


@njit(**OPTIONS)
def compare_reading(
    seen: Reading, before: Supervision, after: Supervision, active: Array, servos: Servos, rules: SupervisionRules
) -> bool:  # pragma: no cover - compiled
    """Compare a reading with the model at that time; returns whether the model must restart at the robot.

    Writes the supervision after this period and the joints to adapt to.
    """
    n = len(seen.q)
    past = seen.newer if seen.part < 0.5 else seen.older
    all_read, all_near = True, True
    for i in range(n):
        after.error[i] = seen.q[i] - (seen.newer[i] + seen.part * (seen.older[i] - seen.newer[i]))
        read = seen.usable and np.isfinite(after.error[i])
        near = read and abs(after.error[i]) <= rules.max_error
        if not read:
            after.error[i] = before.error[i]
        active[i] = near
        all_read, all_near = all_read and read, all_near and near
    watch_joints(before, after, seen.applied, past, servos, rules)
    step = rules.dt / rules.fade if all_near and seen.trusted else -rules.dt / rules.fade
    after.share[0] = min(max(before.share[0] + step, 0.0), 1.0)
    for i in range(n):
        saturated = abs(past[2 * n + i]) >= SATURATED * servos.limit[i]
        active[i] = active[i] and not saturated and seen.trusted and after.share[0] * after.joints[HELPED, i] > 0
    return all_read and after.share[0] == 0.0


class BodyMotion(NamedTuple):
    """Motion of a whole model at one instant, with its mass matrix and the Jacobian of the tip [6, nv]."""

    inertia: Array
    jacobian: Array
    turn: Array
    """Rotation from the frame of the tip to the world [9]."""
    gravity: Array
    q: Array
    v: Array
    command: Array
    before: Array
    """Speeds one period ago; empty where unknown."""


@njit(**OPTIONS)
def describe_motion(
    at: BodyMotion, index: JointIndex, servos: Servos, dt: float, values: Array, speeds: Array
) -> None:  # pragma: no cover - compiled
    """Write the values and speeds of a motion.

    Torques by a body at the tip: the force is m f + (dw x + w x w x) m c and the torque about the tip m c x f, with f
    the acceleration of the tip less gravity, w its angular velocity, and m c in its frame.
    """
    n, nv = len(index.q), len(at.v)
    p = 4 + 6 * n
    begin = 3 * n + 2 * n * n
    for k in range(6):
        speeds[k] = 0.0
        for j in range(nv):
            speeds[k] += at.jacobian[k, j] * at.v[j]
    for i in range(n):
        dof, target = index.dof[i], at.command[index.action[i]]
        position, speed = at.q[index.q[i]], at.v[dof]
        speeds[6 + i], speeds[6 + n + i] = speed, target
        effort = servos.kp[i] * (target - position) - servos.kv[i] * speed
        values[i], values[n + i] = position, speed
        values[2 * n + i] = min(max(effort, -servos.limit[i]), servos.limit[i])
        for j in range(n):
            other, tip = index.dof[j], 0.0
            for k in range(3):
                tip += at.jacobian[k, dof] * at.jacobian[k, other]
            values[3 * n + i * n + j], values[3 * n + n * n + i * n + j] = at.inertia[dof, other], tip
    rates = np.zeros(6 + 2 * n)
    if len(at.before):
        for k in range(len(rates)):
            rates[k] = (speeds[k] - at.before[k]) / dt
    wrench = _payload_wrench(at, rates, speeds)
    regressors = values[begin:].reshape((n, p))
    regressors[:] = 0.0
    for i in range(n):
        for c in range(4):
            for k in range(6):
                regressors[i, c] += at.jacobian[k, index.dof[i]] * wrench[k, c]
        a = rates[6 + i]
        regressors[i, 4 + i] = np.tanh(values[n + i] / (STOP_SPEED + FLIP_S * abs(a)))
        regressors[i, 4 + n + i] = values[n + i]
        regressors[i, 4 + 2 * n + i] = a
        regressors[i, 4 + 3 * n + i] = servos.kp[i] * rates[6 + n + i]
        regressors[i, 4 + 4 * n + i] = values[2 * n + i]
        regressors[i, 4 + 5 * n + i] = 1.0


@njit(**OPTIONS)
def _payload_wrench(at: BodyMotion, rates: Array, speeds: Array) -> Array:  # pragma: no cover - compiled
    """Force and torque at the tip by a mass of 1 and by a first moment of 1 along each axis [6, 4]."""
    wrench = np.zeros((6, 4))
    f, w, dw = rates[:3] - at.gravity, speeds[3:6], rates[3:6]
    wrench[:3, 0] = f
    for c in range(3):
        arm = np.array([at.turn[c], at.turn[3 + c], at.turn[6 + c]])
        wrench[:3, 1 + c] = _cross(dw, arm) + _cross(w, _cross(w, arm))
        wrench[3:, 1 + c] = -_cross(f, arm)
    return wrench


@njit(**OPTIONS)
def limit_compensation(
    torque: Array, most: float, now: Supervision, last: Array, servos: Servos, dt: float
) -> Array:  # pragma: no cover - compiled
    """The offset of each command and its speed [2, n], from the ones before.

    Its aim is at most the share `most` of each torque limit, and no larger than the error it is to remove. It goes
    there from `last` [2, n] at a bounded acceleration, and comes to rest there.
    """
    n, change = len(torque), ACCELERATION * dt
    moving = np.empty((2, n))
    for i in range(n):
        limit = most * servos.limit[i]
        wanted = now.share[0] * (min(max(torque[i], -limit), limit) / servos.kp[i])
        # Where the robot is beyond its model in the direction of the compensation, that went too far.
        beyond = max(now.error[i] if wanted > 0 else -now.error[i], 0.0)
        bound = max(now.joints[PEAK, i] + MIN_ERROR - OVERSHOOT * beyond, 0.0)
        aim, offset, was = now.joints[HELPED, i] * min(max(wanted, -bound), bound), last[0, i], last[1, i]
        gap = aim - offset
        # The largest speed from which it comes to rest at its aim.
        speed = min(change * (np.sqrt(0.25 + 2 * abs(gap) / (change * dt)) - 0.5), abs(gap) / dt)
        if gap * offset > 0 and abs(offset) >= QUICK_GROWTH:
            speed = min(speed, MAX_GROWTH)
        speed = min(max(speed if gap > 0 else -speed, was - change), was + change)
        moving[1, i] = speed
        moving[0, i] = aim if speed == gap / dt else offset + dt * speed
    return moving


@njit(**OPTIONS)
def _cross(a: Array, b: Array) -> Array:  # pragma: no cover - compiled
    out = np.empty(3)
    out[0], out[1], out[2] = a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]
    return out
