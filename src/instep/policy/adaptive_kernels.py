"""Compiled steps of adaptive control: motion of the model, regressors, their filter, and the estimate of weights.

A control period has a millisecond or two, and arrays of a few numbers: making them takes longer than what is done with
them. Kernels therefore write into arrays that they are given, and each does all that lies between two calls of others.

The values of a motion of n joints are one row: q, v and effort [n each], inertia and inertia by each kg at the tip
[n * n each], and the regressors [n * (4 + 6 n)]. `servos` [4, n] are kp, kv, torque limits, and damping by servo and
bearing.
"""

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
    weights: Array,
    covariance: Array,
    columns: Array,
    surprise: Array,
    past: Array,
    regressors: Array,
    applied: Array,
    error: Array,
    active: Array,
    now: Array,
    servos: Array,
    limits: Array,
    noise: Array,
    mass_counts: float,
    dt: float,
    weights_after: Array,
    covariance_after: Array,
    columns_after: Array,
    surprise_after: Array,
    torque: Array,
) -> None:  # pragma: no cover - compiled
    """One period of the estimate: weights and their two stages of the filter C [3, p], covariance, filtered regressors
    and rates [2, n, p + 1], the surprise, and the torque of compensation.

    `past` are the values of the motion that was read, `regressors` those of the law then and `now` those of the command
    that is being sent, `applied` the torques that acted, `limits` [6, p] the drift and the largest variance of weights,
    their box, and the shares of both stages. `mass_counts` is 1 where the first weight is a mass at the tip, else 0.
    """
    weights_after[:], covariance_after[:], columns_after[:] = weights, covariance, columns
    theta, x, w = weights_after[0], columns_after[0], columns_after[1]
    n, p = regressors.shape
    # A payload does not only pull: with it the error moves more slowly.
    mass = mass_counts * max(theta[0], 0.0)
    heavier, force = np.empty((n, n)), np.empty((n, p + 1))
    for i in range(n):
        for j in range(n):
            heavier[i, j] = past[3 * n + i * n + j] + mass * past[3 * n + n * n + i * n + j]
        for k in range(p):
            force[i, k] = -regressors[i, k]
        force[i, p] = applied[i]
    filter_columns(heavier, servos[3], servos[0], force, x, w, dt)
    for k in range(p):
        covariance_after[k, k] = min(covariance_after[k, k] + limits[0, k], limits[1, k])
    phi, z = np.empty((n, p)), np.empty(n)
    for i in range(n):
        for k in range(p):
            phi[i, k] = x[i, k]
        z[i] = error[i] - x[i, p]
    found = update_estimate(theta, covariance_after, phi, z, noise, active)
    surprise_after[0] = surprise[0] + dt * (found - surprise[0])
    for k in range(p):
        theta[k] = min(max(theta[k], limits[2, k]), limits[3, k])
        weights_after[1, k] += limits[4, k] * (theta[k] - weights_after[1, k])
        weights_after[2, k] += limits[5, k] * (weights_after[1, k] - weights_after[2, k])
    for i in range(n):
        torque[i] = 0.0
        for k in range(p):
            torque[i] += now[i, k] * weights_after[2, k]


@njit(**OPTIONS)
def watch_joints(
    joints: Array,
    pause: Array,
    error: Array,
    applied: Array,
    past: Array,
    servos: Array,
    rules: Array,
    dt: float,
    joints_after: Array,
    pause_after: Array,
) -> None:  # pragma: no cover - compiled
    """What is known of each joint [8, n] and of the pause [2] one period later (see `adaptive_supervision`).

    `rules` are the shares of mean squares and of peaks that go by in a period, the factor that counts as worse, the
    least error, for how long it must be worse, by how much a share fades in a period (quickly, and slowly), and the
    share of the peak that the error must reach.
    """
    n = len(error)
    moved, speed, force = joints_after[0].reshape((n, 1)), joints_after[1].reshape((n, 1)), np.empty((n, 1))
    for i in range(n):
        moved[i, 0], speed[i, 0], force[i, 0] = joints[0, i], joints[1, i], applied[i]
    filter_columns(past[3 * n : 3 * n + n * n].reshape((n, n)), servos[3], servos[0], force, moved, speed, dt)
    longest = 0.0
    for i in range(n):
        bare = error[i] - moved[i, 0]
        joints_after[2, i] = joints[2, i] + rules[0] * (error[i] * error[i] - joints[2, i])
        joints_after[3, i] = joints[3, i] + rules[0] * (bare * bare - joints[3, i])
        joints_after[5, i] = max(abs(bare), joints[5, i] * (1 - rules[1]))
        worse = max(rules[2] * rules[2] * joints_after[3, i], rules[3] * rules[3])
        harmful = joints_after[2, i] > max(worse, rules[7] * rules[7] * joints_after[5, i] * joints_after[5, i])
        joints_after[4, i] = joints[4, i] + dt if harmful else 0.0
        joints_after[6, i] = joints[6, i]
        longest = max(longest, joints_after[4, i])
    pause_after[0], pause_after[1] = max(pause[0] - dt, 0.0), pause[1]
    if pause_after[0] == 0.0 and longest >= rules[4]:
        # One law helps all joints: where it harms one of them, none is helped. Those that it did help go slowly.
        pause_after[0], pause_after[1] = pause[1], 2 * pause[1]
        for i in range(n):
            joints_after[6, i] = 1.0 if joints_after[4, i] >= rules[4] else 0.0
            joints_after[4, i] = 0.0
    for i in range(n):
        rate = rules[6]
        if pause_after[0] > 0:
            rate = -rules[5] if joints_after[6, i] > 0 else -rules[6]
        joints_after[7, i] = min(max(joints[7, i] + rate, 0.0), 1.0)


@njit(**OPTIONS)
def compare_reading(
    q: Array,
    newer: Array,
    older: Array,
    part: float,
    applied: Array,
    passed: Array,
    sent: Array,
    command: Array,
    index: Array,
    usable: bool,
    trusted: bool,
    last: Array,
    share: Array,
    joints: Array,
    pause: Array,
    servos: Array,
    rules: Array,
    dt: float,
    error: Array,
    active: Array,
    share_after: Array,
    joints_after: Array,
    pause_after: Array,
) -> bool:  # pragma: no cover - compiled
    """Compare a reading with the model at that time, between two motions; whether the model is to begin anew.

    Writes into `passed` the last torques of compensation as the limits of the world let them through (`sent` less the
    command; nothing where it is empty or not finite), the error, the joints to adapt to, the share of compensation that
    is applied, and the watch. `usable` says that the reading is not too old, `last` is the error before. `rules` go on
    after those of `watch_joints`: the largest error, and the share of its torque limit at which a servo is saturated.
    """
    n = len(q)
    finite = len(sent) > 0
    for i in range(n if finite else 0):
        finite = finite and np.isfinite(sent[index[2, i]])
    for i in range(n if finite else 0):
        passed[i] = servos[0, i] * (sent[index[2, i]] - command[index[2, i]])
    past = newer if part < 0.5 else older
    all_read, all_near = True, True
    for i in range(n):
        error[i] = q[i] - (newer[i] + part * (older[i] - newer[i]))
        read = usable and np.isfinite(error[i])
        near = read and abs(error[i]) <= rules[8]
        if not read:
            error[i] = last[i]
        active[i] = near
        all_read, all_near = all_read and read, all_near and near
    watch_joints(joints, pause, error, applied, past, servos, rules, dt, joints_after, pause_after)
    step = rules[6] if all_near and trusted else -rules[6]
    share_after[0] = min(max(share[0] + step, 0.0), 1.0)
    for i in range(n):
        saturated = abs(past[2 * n + i]) >= rules[9] * servos[2, i]
        active[i] = active[i] and not saturated and trusted and share_after[0] * joints_after[7, i] > 0
    return all_read and share_after[0] == 0.0


@njit(**OPTIONS)
def describe_motion(
    full: Array,
    jacobian: Array,
    turn: Array,
    gravity: Array,
    q: Array,
    v: Array,
    command: Array,
    before: Array,
    index: Array,
    servos: Array,
    friction: Array,
    dt: float,
    values: Array,
    speeds: Array,
) -> None:  # pragma: no cover - compiled
    """Values and speeds of a motion, from the mass matrix and the Jacobian of the tip [6, nv] of a whole model.

    `before` are its speeds one period ago (empty: none are known), `index` [3, n] says where the joints are in q, v and
    the command, and `friction` is the speed below which dry friction fades, and the time in which it changes its sign.
    Torques by a body at the tip: the force is m f + (dw x + w x w x) m c and the torque about the tip m c x f, with f
    the acceleration of the tip less gravity, w its angular velocity, and m c in its frame.
    """
    n, nv = index.shape[1], len(v)
    p = 4 + 6 * n
    begin = 3 * n + 2 * n * n
    for k in range(6):
        speeds[k] = 0.0
        for j in range(nv):
            speeds[k] += jacobian[k, j] * v[j]
    for i in range(n):
        dof, target = index[1, i], command[index[2, i]]
        at, speed = q[index[0, i]], v[dof]
        speeds[6 + i], speeds[6 + n + i] = speed, target
        asked = servos[0, i] * (target - at) - servos[1, i] * speed
        values[i], values[n + i], values[2 * n + i] = at, speed, min(max(asked, -servos[2, i]), servos[2, i])
        for j in range(n):
            other, tip = index[1, j], 0.0
            for k in range(3):
                tip += jacobian[k, dof] * jacobian[k, other]
            values[3 * n + i * n + j], values[3 * n + n * n + i * n + j] = full[dof, other], tip
    rates = np.zeros(6 + 2 * n)
    if len(before):
        for k in range(len(rates)):
            rates[k] = (speeds[k] - before[k]) / dt
    wrench = np.zeros((6, 4))
    f, w, dw = rates[:3] - gravity, speeds[3:6], rates[3:6]
    wrench[:3, 0] = f
    for c in range(3):
        arm = np.array([turn[c], turn[3 + c], turn[6 + c]])
        wrench[:3, 1 + c] = _cross(dw, arm) + _cross(w, _cross(w, arm))
        wrench[3:, 1 + c] = -_cross(f, arm)
    regressors = values[begin:].reshape((n, p))
    regressors[:] = 0.0
    for i in range(n):
        for c in range(4):
            for k in range(6):
                regressors[i, c] += jacobian[k, index[1, i]] * wrench[k, c]
        a = rates[6 + i]
        regressors[i, 4 + i] = np.tanh(values[n + i] / (friction[0] + friction[1] * abs(a)))
        regressors[i, 4 + n + i] = values[n + i]
        regressors[i, 4 + 2 * n + i] = a
        regressors[i, 4 + 3 * n + i] = servos[0, i] * rates[6 + n + i]
        regressors[i, 4 + 4 * n + i] = values[2 * n + i]
        regressors[i, 4 + 5 * n + i] = 1.0


@njit(**OPTIONS)
def limit_compensation(
    torque: Array,
    most: float,
    share: Array,
    joints: Array,
    error: Array,
    last: Array,
    sizes: tuple[float, float, float, float, float],
    servos: Array,
    index: Array,
    dt: float,
    moving: Array,
    applied: Array,
    sent: Array,
) -> None:  # pragma: no cover - compiled
    """The compensation of commands and its speed [2, n], its torque, and the commands it is added to.

    Its aim is at most the share `most` of each torque limit, and no larger than the error it is to remove. It goes
    there from `last` [2, n] at a bounded acceleration, and comes to rest there. `sizes` are the least bound, the factor
    on an overshoot that lowers it, the size up to which it grows quickly, the speed of its growth beyond, and the
    acceleration.
    """
    least, over, small, growth, acceleration = sizes
    change = acceleration * dt
    for i in range(len(torque)):
        limit = most * servos[2, i]
        wanted = share[0] * (min(max(torque[i], -limit), limit) / servos[0, i])
        # Where the robot is beyond its model in the direction of the compensation, that went too far.
        beyond = max(error[i] if wanted > 0 else -error[i], 0.0)
        bound = max(joints[5, i] + least - over * beyond, 0.0)
        aim, now, was = joints[7, i] * min(max(wanted, -bound), bound), last[0, i], last[1, i]
        gap = aim - now
        # The largest speed from which it comes to rest at its aim.
        speed = min(change * (np.sqrt(0.25 + 2 * abs(gap) / (change * dt)) - 0.5), abs(gap) / dt)
        if gap * now > 0 and abs(now) >= small:
            speed = min(speed, growth)
        speed = min(max(speed if gap > 0 else -speed, was - change), was + change)
        moving[1, i] = speed
        moving[0, i] = aim if speed == gap / dt else now + dt * speed
        applied[i] = servos[0, i] * moving[0, i]
        sent[index[2, i]] += moving[0, i]


@njit(**OPTIONS)
def _cross(a: Array, b: Array) -> Array:  # pragma: no cover - compiled
    out = np.empty(3)
    out[0], out[1], out[2] = a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]
    return out
