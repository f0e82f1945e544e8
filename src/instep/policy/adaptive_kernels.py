"""Compiled steps of adaptive control: motion of the model, regressors, their filter, and the estimate of weights."""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import numpy as np
from numba import njit

from instep.core.world import Array

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
ANY_ORDER = {**OPTIONS, "fastmath": {"reassoc", "contract", "nsz"}}
"""Sums may be formed in any order, so that they are done several terms at a time; NaN stays NaN."""


@njit(**OPTIONS)
def filter_columns(
    inertia: Array, damping: Array, stiffness: Array, force: Array, x: Array, w: Array, dt: float
) -> None:  # pragma: no cover - compiled
    """Advance `x` and its rate `w` [n, columns] in place by a period of M x'' + B x' + K x = force [n, columns].

    Implicit Euler, (M + dt B + dt^2 K) w' = M w + dt (force - K x) and x' = x + dt w', is stable for every period.
    """
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
    n, p = phi.shape
    gain = np.empty(p)
    surprise, count = 0.0, 0
    for i in range(n):
        if not active[i]:
            continue
        variance, innovation = noise[i, 0], z[i]
        for a in range(p):
            total = 0.0
            for b in range(p):
                total += covariance[a, b] * phi[i, b]
            gain[a] = total
            variance += total * phi[i, a]
            innovation -= phi[i, a] * theta[a]
        surprise += innovation * innovation / variance
        count += 1
        size = max(abs(innovation) - noise[i, 1], 0.0)
        moved = size if innovation > 0 else -size
        for a in range(p):
            scaled = gain[a] / variance
            theta[a] += scaled * moved
            for b in range(p):
                covariance[a, b] -= scaled * gain[b]
    return surprise / max(count, 1)


@njit(**OPTIONS)
def learn_weights(
    known: tuple[Array, Array, Array, Array, Array],
    past: tuple[Array, Array, Array, Array],
    reading: tuple[Array, Array],
    servos: tuple[Array, Array],
    limits: tuple[Array, Array, Array, Array],
    shares: Array,
    noise: Array,
    dt: float,
) -> tuple[Array, Array, Array, Array, Array, float]:  # pragma: no cover - compiled
    """Weights, their two stages of the filter C [2, p], covariance, filtered regressors and rates, and the surprise.

    `known` are these before, `past` the regressors, applied torques, inertia, and inertia by each kg at the tip (all
    zero where no weight is a mass), `reading` error and active joints, `servos` damping and stiffness, `limits` the
    drift and the largest variance of weights, and their box.
    """
    theta, used, covariance, x, w = known
    theta, used, covariance, x, w = theta.copy(), used.copy(), covariance.copy(), x.copy(), w.copy()
    regressors, applied, inertia, tip = past
    drift, ceiling, low, high = limits
    n, p = regressors.shape
    # A payload does not only pull: with it the error moves more slowly.
    mass = max(theta[0], 0.0)
    heavier, force = np.empty((n, n)), np.empty((n, p + 1))
    for i in range(n):
        for j in range(n):
            heavier[i, j] = inertia[i, j] + mass * tip[i, j]
        for k in range(p):
            force[i, k] = -regressors[i, k]
        force[i, p] = applied[i]
    filter_columns(heavier, servos[0], servos[1], force, x, w, dt)
    for k in range(p):
        covariance[k, k] = min(covariance[k, k] + drift[k], ceiling[k])
    phi, z = np.empty((n, p)), np.empty(n)
    for i in range(n):
        for k in range(p):
            phi[i, k] = x[i, k]
        z[i] = reading[0][i] - x[i, p]
    surprise = update_estimate(theta, covariance, phi, z, noise, reading[1])
    for k in range(p):
        theta[k] = min(max(theta[k], low[k]), high[k])
        used[0, k] += shares[0, k] * (theta[k] - used[0, k])
        used[1, k] += shares[1, k] * (used[0, k] - used[1, k])
    return theta, used, covariance, x, w, surprise


@njit(**OPTIONS)
def watch_joints(
    known: tuple[Array, Array, Array, Array, Array, Array],
    error: Array,
    past: tuple[Array, Array],
    servos: tuple[Array, Array],
    window: tuple[float, float, float, float],
    dt: float,
) -> tuple[Array, Array, Array, Array, Array, Array]:  # pragma: no cover - compiled
    """Displacement by the compensation and its speed, mean squares with and without it, for how long it was worse, and
    largest errors without it, one period later; `past` are applied torques and inertia, `window` the shares of mean
    squares and of peaks, the factor that counts as worse, and the least error.
    """
    x, v, among, alone, worse, peak = known
    n = len(error)
    moved, speed, force = np.empty((n, 1)), np.empty((n, 1)), np.empty((n, 1))
    for i in range(n):
        moved[i, 0], speed[i, 0], force[i, 0] = x[i], v[i], past[0][i]
    filter_columns(past[1], servos[0], servos[1], force, moved, speed, dt)
    share, fall, factor, least = window
    out = np.empty((6, n))
    for i in range(n):
        bare = error[i] - moved[i, 0]
        out[0, i], out[1, i] = moved[i, 0], speed[i, 0]
        out[2, i] = among[i] + share * (error[i] * error[i] - among[i])
        out[3, i] = alone[i] + share * (bare * bare - alone[i])
        harmful = out[2, i] > max(factor * factor * out[3, i], least * least)
        out[4, i] = worse[i] + dt if harmful else 0.0
        out[5, i] = max(abs(bare), peak[i] * (1 - fall))
    return out[0], out[1], out[2], out[3], out[4], out[5]


@njit(**OPTIONS)
def servo_motion(
    full: Array,
    jacobian: Array,
    turn: Array,
    gravity: Array,
    q: Array,
    v: Array,
    command: Array,
    before: Array,
    index: Array,
    dofs: Array,
    actions: Array,
    servos: Array,
    dt: float,
) -> tuple[Array, Array, Array, Array, Array, Array, Array, Array]:  # pragma: no cover - compiled
    """The fields of a `ReferenceMotion`, from the mass matrix and the Jacobian of the tip [6, nv] of a whole model.

    `before` are its speeds one period ago (empty: none are known), `servos` [n, 3] are kp, kv and torque limits.
    Torques by a body at the tip: the force is m f + (dw x + w x w x) m c and the torque about the tip m c x f, with f
    the acceleration of the tip less gravity, w its angular velocity, and m c in its frame.
    """
    n = len(dofs)
    at, speed, effort = np.empty(n), np.empty(n), np.empty(n)
    inertia, tip, payload = np.empty((n, n)), np.empty((n, n)), np.zeros((n, 4))
    speeds, rates = np.zeros(6 + 2 * n), np.zeros(6 + 2 * n)
    for k in range(6):
        for j in range(len(v)):
            speeds[k] += jacobian[k, j] * v[j]
    for i in range(n):
        at[i], speed[i], target = q[index[i]], v[dofs[i]], command[actions[i]]
        speeds[6 + i], speeds[6 + n + i] = speed[i], target
        asked = servos[i, 0] * (target - at[i]) - servos[i, 1] * speed[i]
        effort[i] = min(max(asked, -servos[i, 2]), servos[i, 2])
        for j in range(n):
            inertia[i, j] = full[dofs[i], dofs[j]]
            tip[i, j] = 0.0
            for k in range(3):
                tip[i, j] += jacobian[k, dofs[i]] * jacobian[k, dofs[j]]
    if len(before):
        for k in range(len(speeds)):
            rates[k] = (speeds[k] - before[k]) / dt
    wrench = np.zeros((6, 4))
    f, w, dw = rates[:3] - gravity, speeds[3:6], rates[3:6]
    wrench[:3, 0] = f
    for c in range(3):
        arm = turn[:, c].copy()
        wrench[:3, 1 + c] = _cross(dw, arm) + _cross(w, _cross(w, arm))
        wrench[3:, 1 + c] = -_cross(f, arm)
    for i in range(n):
        for c in range(4):
            for k in range(6):
                payload[i, c] += jacobian[k, dofs[i]] * wrench[k, c]
    return at, speed, inertia, effort, tip, payload, speeds, rates


@njit(**OPTIONS)
def motion_regressors(
    payload: Array, v: Array, rates: Array, effort: Array, kp: Array, stop_speed: float, flip: float
) -> Array:  # pragma: no cover - compiled
    """Y of a motion [n, 4 + 6 n]: what the robot's torques are more by, for weights of one."""
    n = len(v)
    out = np.zeros((n, 4 + 6 * n))
    for i in range(n):
        a = rates[6 + i]
        out[i, :4] = payload[i]
        out[i, 4 + i] = np.tanh(v[i] / (stop_speed + flip * abs(a)))
        out[i, 4 + n + i] = v[i]
        out[i, 4 + 2 * n + i] = a
        out[i, 4 + 3 * n + i] = kp[i] * rates[6 + n + i]
        out[i, 4 + 4 * n + i] = effort[i]
        out[i, 4 + 5 * n + i] = 1.0
    return out


@njit(**OPTIONS)
def _cross(a: Array, b: Array) -> Array:  # pragma: no cover - compiled
    out = np.empty(3)
    out[0], out[1], out[2] = a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]
    return out
