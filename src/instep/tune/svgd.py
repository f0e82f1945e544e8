"""Stein variational gradient descent that keeps its spread, in coordinates in which the target is about round.

With a Gaussian kernel alone, a few dozen particles end too close together: at 0.85 of a normal target's deviation in
three dimensions, 0.55 in ten, 0.4 in thirty. A linear kernel makes mean and covariance those of the target in any
dimension, as long as there are more particles than directions, yet it only stretches and shears. So particles first
take the shape with the one, then the spread with both. What is still wrong is weighed away: the draws come from a
mixture around the particles.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from instep.core.errors import Diverged
from instep.core.world import Array

RATE = 0.3
"""Length of a step; 1 would carry particles of a round target to its middle."""

Slope = Callable[[Array], Array]
"""Slope of the log density at each point [points, directions]."""


def flow(slope: Slope, z: Array, steps: int) -> Array:
    """Where particles [particles, directions] end: half of the steps for their shape, half for their spread."""
    for step in range(steps):
        gradient = slope(z)
        near, mass = _near(z, gradient)
        push = near / mass if step < steps // 2 else near + _linear(z, gradient)
        # Far from the target slopes are steep; particles go at most about a deviation at a time.
        z = z + RATE * push / max(1.0, float(np.sqrt((push**2).mean())))
    return z


def _near(z: Array, gradient: Array) -> tuple[Array, float]:
    """k grad log p + grad k with a Gaussian kernel of the median width, and the mean of that kernel."""
    gaps = z[:, None] - z[None]  # [i, j, d] = z_i - z_j
    squared = (gaps**2).sum(axis=-1)
    apart = squared[squared > 0]
    width = max(float(np.median(apart)) / np.log(len(z) + 1), 1e-9) if apart.size else 1.0
    kernel = np.exp(-squared / width)
    repulsion = (kernel[..., None] * gaps * 2 / width).sum(axis=1)
    return (kernel @ gradient + repulsion) / len(z), float(kernel.mean())


def _linear(z: Array, gradient: Array) -> Array:
    """The same with the kernel 1 + (z_i - m) (z_j - m), nought where E[grad] = 0 and E[grad (z - m)^T] = -1."""
    away = z - z.mean(axis=0)
    return gradient.mean(axis=0) + away @ (away.T @ gradient) / (len(z) - 1) + away


def drawn(log: Slope, z: Array, n: int, rng: np.random.Generator) -> Array:
    """n draws from a density [n, directions]: from normals around the particles, drawn again by their weights.

    The mixture has the mean and covariance of the particles (its middles are drawn towards their mean by as much as the
    normals widen it). No weight is larger than the root of n mean ones, which costs little where the mixture is near
    and keeps one draw from standing for all where it is not.
    """
    count, size = z.shape
    share = min(0.95, (4 / (count * (size + 2))) ** (1 / (size + 4)))  # Silverman's rule
    mean = z.mean(axis=0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(z.T)))
    root = vectors * np.sqrt(np.maximum(values, 1e-12))
    middles = np.linalg.solve(root, (z - mean).T).T * np.sqrt(1 - share**2)
    round_points = middles[np.arange(n) % count] + share * rng.standard_normal((n, size))
    points = mean + round_points @ root.T
    squared = ((round_points[:, None] - middles) ** 2).sum(axis=-1) / share**2
    mixture = np.logaddexp.reduce(-0.5 * squared, axis=1)
    weight = log(points) - mixture
    if not np.isfinite(weight).any():
        raise Diverged("No simulation near the particles was sound; use shorter windows or narrower bounds.")
    weight = np.exp(weight - weight.max())
    weight = np.minimum(weight / weight.mean(), np.sqrt(n))
    return points[_even(weight / weight.sum(), rng)]


def _even(share: Array, rng: np.random.Generator) -> Array:
    """Indices drawn by their shares with as little chance as can be: one offset for all."""
    at = (np.arange(len(share)) + rng.random()) / len(share)
    return np.minimum(np.searchsorted(np.cumsum(share), at), len(share) - 1)
