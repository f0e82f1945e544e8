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
