"""Infer a posterior over knobs from recordings: Laplace, ensemble Kalman, Stein variational, neural.

All methods share one likelihood. With r the residuals of all windows at unit coordinates x, start states profiled out,

    log p(recordings | x) = - |r(x) / scale|^2 / (2 v T),

where v is the variance of the scaled residuals at the best fit and T their correlation time in rows: rows that repeat
each other count once, which is what keeps posteriors from real data from being far too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from instep.core.errors import UnknownName
from instep.core.world import Array

from .belief import Cloud, Gaussian, Posterior
from .fit import Fit, correlation_time
from .shoot import Shooter
from .solve import Problem, evaluate, linearise

Method = Literal["laplace", "eki", "svgd", "npe"]
METHODS: tuple[Method, ...] = ("laplace", "eki", "svgd", "npe")


def infer(found: Fit, method: Method = "laplace", *, seed: int = 0, **more: int) -> Posterior:
    """The posterior around a fit by one of the methods; `more` sets a method's budget by the names of its arguments."""
    known: dict[str, Callable[..., Posterior]] = {"laplace": laplace, "eki": eki, "svgd": svgd, "npe": _npe}
    if method not in known:
        raise UnknownName("posterior method", method, known)
    return known[method](found, seed=seed, **more)


def laplace(found: Fit, *, seed: int = 0) -> Gaussian:
    """The normal distribution with the curvature of the likelihood at its top."""
    return Gaussian(found.knobs, found.x, found.covariance)


def eki(found: Fit, *, seed: int = 0, members: int = 0, steps: int = 6) -> Cloud:
    """Ensemble Kalman inversion with multiple data assimilation, from the prior box or the Laplace posterior, widened.

    Each step moves the members by x += C_xg (C_gg + a Gamma)^-1 (y + sqrt(a) eta - g(x)), a = steps, solved in the
    space of the members, so that the number of rows does not matter.
    """
    rng = np.random.default_rng((seed, 0xE41))
    n = members or max(20, 6 * len(found.knobs))
    target = likelihood(found)
    wide = replace_covariance(found, 9.0)
    points = wide.draw(n, rng)
    for _ in range(steps):
        rows = target.rows(points)  # [members, rows], in deviations of the noise
        sound = np.isfinite(rows).all(axis=1)
        points, rows = points[sound], rows[sound]
        pull = -rows + np.sqrt(steps) * rng.standard_normal(rows.shape)
        away, spread = points - points.mean(axis=0), rows - rows.mean(axis=0)
        inner = spread @ spread.T / (len(points) - 1) + steps * np.eye(len(points))
        weights = np.linalg.solve(inner, spread @ pull.T) / (len(points) - 1)  # [members, members]
        points = np.clip(points + weights.T @ away, 0.0, 1.0)
    return Cloud(found.knobs, points)


def svgd(found: Fit, *, seed: int = 0, particles: int = 24, steps: int = 15) -> Cloud:
    """Stein variational gradient descent on the multiple-shooting likelihood, from the Laplace posterior.

    Particles follow k grad log p + grad k, in coordinates in which the Laplace posterior is round, so that one step
    size suits all directions; the kernel has the median width.
    """
    rng = np.random.default_rng((seed, 0x57E1))
    target = likelihood(found)
    root = _whitener(found)
    centre = found.x
    points = replace_covariance(found, 1.5).draw(particles, rng)
    z = np.linalg.solve(root, (points - centre).T).T
    rate, memory = 0.3, np.zeros_like(z)
    for step in range(steps):
        x = np.clip(centre + z @ root.T, 0.0, 1.0)
        gradient = np.stack([target.gradient(p) for p in x]) @ root
        phi = _stein(z, gradient)
        memory = phi**2 if step == 0 else 0.9 * memory + 0.1 * phi**2
        z = z + rate * phi / (1e-6 + np.sqrt(memory.mean()))
        rate *= 0.95
    return Cloud(found.knobs, np.clip(centre + z @ root.T, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Likelihood:
    """How probable the recordings are under a setting."""

    problem: Problem
    starts: Array
    """Start states at the best fit; methods that ask many settings keep them."""
    noise: float
    """What a squared scaled residual is divided by: variance times correlation time."""

    def rows(self, points: Array) -> Array:
        """Residuals of each point in deviations of the noise [points, rows]."""
        starts = np.repeat(self.starts[None], len(points), axis=0)
        found = evaluate(self.problem, points, starts)
        rows = np.stack([p.residual for p in found]) / self.problem.scale / np.sqrt(self.noise)
        return rows.reshape(len(points), -1)

    def log(self, points: Array) -> Array:
        """Log likelihood of each point [points]; minus infinity where it diverged."""
        rows = self.rows(points)
        return np.where(np.isfinite(rows).all(axis=1), -0.5 * (rows**2).sum(axis=1), -np.inf)

    def gradient(self, x: Array) -> Array:
        """Slope of the log posterior, start states profiled out, priors included [knobs]."""
        point = evaluate(self.problem, x[None], self.starts[None])[0]
        if not np.isfinite(point.cost):
            return np.zeros_like(x)
        normal = linearise(self.problem, point)
        return -normal.gradient / self.noise


def likelihood(found: Fit) -> Likelihood:
    """The likelihood of the recordings a fit was made from."""
    residual = found.point.residual / found.problem.scale
    variance = float((residual**2).mean()) if residual.size else 1.0
    problem = replace(found.problem, robust=0.0, shooter=_copy(found.problem.shooter))
    return Likelihood(problem, found.point.starts, max(variance, 1e-12) * correlation_time(residual))


def replace_covariance(found: Fit, factor: float) -> Gaussian:
    """The Laplace posterior with its variance times a factor, never wider than the box."""
    covariance = np.where(np.isfinite(found.covariance), found.covariance, 0.0)
    blind = ~np.isfinite(np.diag(found.covariance))
    covariance[blind, blind] = 1 / 12 / factor
    limit = np.sqrt(np.minimum(1.0, 1 / 12 / np.maximum(np.diag(covariance) * factor, 1e-300)))
    return Gaussian(found.knobs, found.x, factor * covariance * np.outer(limit, limit))


def _npe(found: Fit, *, seed: int = 0, sims: int = 2000) -> Cloud:
    from .neural import npe

    return npe(found, seed=seed, sims=sims)


def _stein(z: Array, gradient: Array) -> Array:
    gaps = z[:, None] - z[None]  # [i, j, d] = z_i - z_j
    squared = (gaps**2).sum(axis=-1)
    width = max(float(np.median(squared[squared > 0])) / np.log(len(z) + 1), 1e-9)
    kernel = np.exp(-squared / width)
    repulsion = (kernel[..., None] * gaps * 2 / width).sum(axis=1)
    return (kernel @ gradient + repulsion) / len(z)


def _whitener(found: Fit) -> Array:
    covariance = replace_covariance(found, 1.0).covariance
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 1e-12))


def _copy(shooter: Shooter) -> Shooter:
    return replace(shooter, worlds=0)
