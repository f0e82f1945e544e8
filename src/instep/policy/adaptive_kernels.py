"""Compiled steps of adaptive control: filtered regressors of the error dynamics, and the estimate of their weights."""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import numpy as np
from numba import njit

from instep.core.world import Array

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}


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


@njit(**OPTIONS)
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
            theta[a] += gain[a] / variance * moved
            for b in range(p):
                covariance[a, b] -= gain[a] * gain[b] / variance
    return surprise / max(count, 1)
