"""Compiled steps of adaptive control: motion of the model, recursive estimate of weights, supervision, limits.

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


class JointReading(NamedTuple):
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
) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """`x` and its rate `w` [n, columns] after a period of M x'' + B x' + K x = force [n, columns].

    Implicit Euler, (M + dt B + dt^2 K) w' = M w + dt (force - K x) and x' = x + dt w', is stable for every period.
    """
    left = inertia + np.diag(dt * servos.damping + dt * dt * servos.kp)
    rate = np.linalg.solve(left, inertia @ w + dt * (force - servos.kp.reshape(-1, 1) * x))
    return x + dt * rate, rate


@njit(**OPTIONS)
def update_estimate(
    theta: Array, covariance: Array, phi: Array, z: Array, noise: Array, active: Array
) -> None:  # pragma: no cover - compiled
    """Take measurements z = phi theta + noise in place, one active joint after the other.

    `noise` [n, 2] holds the variance of a measurement and the dead zone, by which an innovation is shrunk before it
    moves the estimate.
    """
    for i in np.flatnonzero(active):
        row = phi[i]
        gain = covariance @ row
        scaled, innovation = gain / (noise[i, 0] + gain @ row), z[i] - row @ theta
        theta += scaled * np.sign(innovation) * max(abs(innovation) - noise[i, 1], 0.0)
        covariance -= np.outer(scaled, gain)


@njit(**OPTIONS)
def learn_weights(
    before: LawMemory, seen: LawInput, servos: Servos, limits: LawLimits, dt: float
) -> tuple[LawMemory, Array]:  # pragma: no cover - compiled
    """One period of the estimate, and the torque of compensation [n]."""
    n, p = seen.regressors.shape
    theta, covariance = before.weights[0].copy(), before.covariance.copy()
    plain, by_mass = seen.past[3 * n : 3 * n + n * n], seen.past[3 * n + n * n : 3 * n + 2 * n * n]
    # A payload does not only pull: it also slows the error down.
    heavier = (plain + max(theta[0], 0.0) * by_mass).reshape((n, n))
    force = np.concatenate((-seen.past_regressors, seen.applied.reshape((n, 1))), axis=1)
    x, w = filter_columns(heavier, servos, force, before.columns[0], before.columns[1], dt)
    for k in range(p):
        covariance[k, k] = min(covariance[k, k] + limits.drift[k], limits.variance[k])
    update_estimate(theta, covariance, x[:, :p].copy(), seen.error - x[:, p], limits.reading, seen.active)
    theta = np.minimum(np.maximum(theta, limits.low), limits.high)
    first = before.weights[1] + limits.first_share * (theta - before.weights[1])
    second = before.weights[2] + limits.second_share * (first - before.weights[2])
    memory = LawMemory(np.stack((theta, first, second)), covariance, np.stack((x, w)))
    return memory, seen.regressors @ second


@njit(**OPTIONS)
def watch_joints(
    before: Supervision, error: Array, applied: Array, past: Array, servos: Servos, rules: SupervisionRules
) -> Supervision:  # pragma: no cover - compiled
    """Joints and pause one period later, given the error; `past` are the values of a motion."""
    n, dt, joints = len(error), rules.dt, before.joints
    rows, pause = joints.copy(), before.pause.copy()
    position, speed = joints[POSITION].copy().reshape((n, 1)), joints[SPEED].copy().reshape((n, 1))
    inertia = past[3 * n : 3 * n + n * n].copy().reshape((n, n))
    moved, rate = filter_columns(inertia, servos, applied.copy().reshape((n, 1)), position, speed, dt)
    rows[POSITION], rows[SPEED], bare, mean = moved[:, 0], rate[:, 0], error - moved[:, 0], min(1.0, dt / WINDOW_S)
    rows[WITH] += mean * (error * error - rows[WITH])
    rows[WITHOUT] += mean * (bare * bare - rows[WITHOUT])
    rows[PEAK] = np.maximum(np.abs(bare), joints[PEAK] * (1 - dt / PEAK_S))
    worse = np.maximum(WORSE * WORSE * rows[WITHOUT], np.maximum(MIN_ERROR, PEAK_SHARE * rows[PEAK]) ** 2)
    rows[WORSE_FOR] = np.where(rows[WITH] > worse, joints[WORSE_FOR] + dt, 0.0)
    pause[0] = max(pause[0] - dt, 0.0)
    if pause[0] == 0.0 and rows[WORSE_FOR].max() >= PATIENCE_S:
        # One law helps all joints: where it harms one of them, none is helped. Those that it did help go slowly.
        pause[0], pause[1] = pause[1], 2 * pause[1]
        rows[HARMED] = np.where(rows[WORSE_FOR] >= PATIENCE_S, 1.0, 0.0)
        rows[WORSE_FOR] = 0.0
    fade = np.full(n, dt / rules.fade)
    if pause[0] > 0:
        fade = -np.where(rows[HARMED] > 0, dt / QUICK_FADE_S, dt / rules.fade)
    rows[HELPED] = np.minimum(np.maximum(joints[HELPED] + fade, 0.0), 1.0)
    return Supervision(error, before.share, rows, pause)


@njit(**OPTIONS)
def compare_reading(
    seen: JointReading, before: Supervision, servos: Servos, rules: SupervisionRules
) -> tuple[Supervision, Array, bool]:  # pragma: no cover - compiled
    """Compare a reading with the model at that time.

    Returns the supervision after this period, the joints to adapt to, and whether the model must restart at the robot.
    """
    n = len(seen.q)
    past = seen.newer if seen.part < 0.5 else seen.older
    error = seen.q - (seen.newer[:n] + seen.part * (seen.older[:n] - seen.newer[:n]))
    read = np.isfinite(error) & seen.usable
    active = read & (np.abs(error) <= rules.max_error)
    after = watch_joints(before, np.where(read, error, before.error), seen.applied, past, servos, rules)
    step = rules.dt / rules.fade if active.all() and seen.trusted else -rules.dt / rules.fade
    share = np.minimum(np.maximum(before.share + step, 0.0), 1.0)
    free = np.abs(past[2 * n : 3 * n]) < SATURATED * servos.limit
    helped = (share[0] * after.joints[HELPED] > 0) & seen.trusted
    return (
        Supervision(after.error, share, after.joints, after.pause), active & free & helped,
        bool(read.all() and share[0] == 0.0),
    )  # fmt: skip


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
    at: BodyMotion, index: JointIndex, servos: Servos, dt: float
) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """The values and speeds of a motion.

    Torques by a body at the tip: the force is m f + (dw x + w x w x) m c and the torque about the tip m c x f, with f
    the acceleration of the tip less gravity, w its angular velocity, and m c in its frame.
    """
    n = len(index.q)
    jacobian, target = at.jacobian[:, index.dof], at.command[index.action]
    position, speed = at.q[index.q], at.v[index.dof]
    speeds = np.concatenate((at.jacobian @ at.v, speed, target))
    rates = (speeds - at.before) / dt if len(at.before) else np.zeros(6 + 2 * n)
    effort = servos.kp * (target - position) - servos.kv * speed
    effort = np.minimum(np.maximum(effort, -servos.limit), servos.limit)
    # Force and torque at the tip by a mass of 1 and by a first moment of 1 along each axis [6, 4].
    wrench, f, w, dw = np.zeros((6, 4)), rates[:3] - at.gravity, speeds[3:6], rates[3:6]
    wrench[:3, 0] = f
    for c in range(3):
        arm = np.array([at.turn[c], at.turn[3 + c], at.turn[6 + c]])
        wrench[:3, 1 + c] = np.cross(dw, arm) + np.cross(w, np.cross(w, arm))
        wrench[3:, 1 + c] = -np.cross(f, arm)
    a = rates[6 : 6 + n]
    friction = np.tanh(speed / (STOP_SPEED + FLIP_S * np.abs(a)))
    own = (friction, speed, a, servos.kp * rates[6 + n :], effort, np.ones(n))
    regressors = np.zeros((n, 4 + 6 * n))
    regressors[:, :4] = jacobian.T.copy() @ wrench
    for k in range(6):
        for i in range(n):
            regressors[i, 4 + k * n + i] = own[k][i]
    inertia, by_mass = at.inertia[index.dof][:, index.dof], jacobian[:3].T.copy() @ jacobian[:3].copy()
    values = np.concatenate((position, speed, effort, inertia.ravel(), by_mass.ravel(), regressors.ravel()))
    return values, speeds


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
