"""Stein variational gradient descent that keeps its spread, in coordinates in which the target is about round.

With a Gaussian kernel alone, a few dozen particles end too close together: at 0.85 of a normal target's deviation in
three dimensions, 0.55 in ten, 0.4 in thirty. A linear kernel makes mean and covariance those of the target in any
dimension, as long as there are more particles than directions, yet it only stretches and shears. So particles first
take the shape with the one, then the spread with both. What is still wrong is weighed away: the draws come from a
mixture around the particles.

Infer a posterior over parameters from recordings: Laplace, ensemble Kalman, Stein variational, neural.

All methods share one likelihood. With r the residuals of all windows at unit coordinates x, in scales of the fit,

    log p(recordings | x) = - r(x)^T (1 + G G^T)^-1 r(x) / (2 v T),

where G is what a start state moved within its own noise does to its window (start states are integrated out), v is the
variance of the residuals at the best fit and T their correlation time in rows: rows that repeat each other count once,
which is what keeps posteriors from real data from being far too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from instep.core.errors import Diverged, UnknownName
from instep.core.world import Array

from .beliefs import GaussianBelief, Posterior, SampleBelief
from .fit import Fit, correlation_time
from .least_squares import NUDGE, Problem, evaluate

RATE = 0.3
"""Length of a step; 1 would carry particles of a round target to its middle."""

Slope = Callable[[Array], Array]
"""Slope of the log density at each point [points, directions]."""


def svgd_flow(slope: Slope, z: Array, steps: int) -> Array:
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


Method = Literal["laplace", "eki", "svgd", "npe"]
METHODS: tuple[Method, ...] = ("laplace", "eki", "svgd", "npe")


def infer(found: Fit, method: Method = "laplace", *, seed: int = 0, **more: int) -> Posterior:
    """The posterior around a fit by one of the methods; `more` sets a method's budget by the names of its arguments."""
    known: dict[str, Callable[..., Posterior]] = {"laplace": laplace, "eki": eki, "svgd": svgd, "npe": _npe}
    if method not in known:
        raise UnknownName("posterior method", method, known)
    return known[method](found, seed=seed, **more)


def laplace(found: Fit, *, seed: int = 0) -> GaussianBelief:
    """The normal distribution with the curvature of the likelihood at its top."""
    return GaussianBelief(found.params, found.x, found.covariance)


def freedom_factor(found: Fit) -> float:
    """Rows over degrees of freedom that are left when parameters and start states have taken theirs; at most 2."""
    rows, free = _rows(found), int((found.problem.sigma_start > 0).sum())
    return rows / max(rows - len(found.params) - len(found.windows) * free, rows / 2)


def _rows(found: Fit) -> int:
    return max(int(found.windows.inside.sum()) * found.point.residual.shape[-1], 1 + len(found.params))


def eki(found: Fit, *, seed: int = 0, members: int = 0, steps: int = 4) -> SampleBelief:
    """Ensemble Kalman inversion with multiple data assimilation, from the Laplace posterior made five times as wide.

    Each step moves the members by x += C_xg (C_gg + a Gamma)^-1 (y + sqrt(a) eta - g(x)), a = steps, solved in the
    space of the members, so that the number of rows does not matter. Few members end too close together, since the gain
    is made of the very members that it moves: 20 per parameter at 0.93 of the deviation, 40 at 0.99.
    """
    rng = np.random.default_rng((seed, 0xE41))
    target = likelihood(found)
    points = widened_laplace(found, 25.0).draw(members or max(120, 30 * len(found.params)), rng)
    for _ in range(steps):
        points = assimilate(points, target.rows(points), float(steps), rng)
    return SampleBelief(found.params, points)


def assimilate(points: Array, rows: Array, share: float, rng: np.random.Generator) -> Array:
    """One Kalman step of an ensemble [members, parameters] whose residuals [members, rows] have unit noise.

    `share` says into how many steps the same data are split; on line, where each batch of rows is new, it is 1.
    """
    sound = np.isfinite(rows).all(axis=1)
    points, rows = points[sound], rows[sound]
    pull = -rows + np.sqrt(share) * rng.standard_normal(rows.shape)
    away, spread = points - points.mean(axis=0), rows - rows.mean(axis=0)
    inner = spread @ spread.T / (len(points) - 1) + share * np.eye(len(points))
    weights = np.linalg.solve(inner, spread @ pull.T) / (len(points) - 1)  # [members, members]
    return np.clip(points + weights.T @ away, 0.0, 1.0)


def svgd(found: Fit, *, seed: int = 0, particles: int = 0, steps: int = 12, draws: int = 400) -> SampleBelief:
    """Stein variational gradient descent on the multiple-shooting likelihood, from the Laplace posterior.

    Particles move in coordinates in which the Laplace posterior is round, so that one step suits all directions; all
    are differentiated in one batch. The cloud is drawn around where they end, and weighed by the likelihood.
    """
    rng = np.random.default_rng((seed, 0x57E1))
    target = likelihood(found)
    root, centre = whitener(found), found.x

    def slope(z: Array) -> Array:
        return target.gradients(np.clip(centre + z @ root.T, 0.0, 1.0)) @ root

    def log(z: Array) -> Array:
        x = centre + z @ root.T
        inside = ((x >= 0) & (x <= 1)).all(axis=1)
        return np.where(inside, target.log(np.clip(x, 0.0, 1.0)), -np.inf)

    points = widened_laplace(found, 1.5).draw(particles or max(30, 2 * len(found.params)), rng)
    z = svgd_flow(slope, np.linalg.solve(root, (points - centre).T).T, steps)
    return SampleBelief(found.params, np.clip(centre + drawn(log, z, draws, rng) @ root.T, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Likelihood:
    """How probable the recordings are under a setting."""

    problem: Problem
    noise: float
    """What a squared scaled residual is divided by: variance times correlation time."""
    turned: tuple[Array, Array]
    """Directions in which start states move their windows [windows, rows, free], and how far [windows, free]."""

    def rows(self, points: Array) -> Array:
        """Residuals in deviations of the noise, start states integrated out, and those of the priors [points, rows]."""
        found = evaluate(self.problem, points)
        rows = np.stack([p.residual for p in found]) / self.problem.scale / np.sqrt(self.noise)
        rows = rows.reshape(*rows.shape[:2], -1)  # [points, windows, rows of a window]
        rows = self.shrunk(rows)
        known = np.isfinite(self.problem.prior_sigma)
        prior = (points - self.problem.prior_mean)[:, known] / self.problem.prior_sigma[known]
        return np.concatenate([rows.reshape(len(points), -1), prior], axis=1)

    def shrunk(self, rows: Array) -> Array:
        """(1 + G G^T)^-1/2 times rows [points, windows, rows of a window].

        Once, it makes the noise of start states as large as any other; twice, it leaves the residuals of best starts.
        """
        basis, size = self.turned
        if not size.size:
            return rows
        along = np.einsum("wrf,pwr->pwf", basis, rows, optimize=True)
        return rows + np.einsum("wrf,pwf->pwr", basis, along * (1 / np.sqrt(1 + size**2) - 1), optimize=True)

    def log(self, points: Array) -> Array:
        """Log of likelihood times prior of each point [points]; minus infinity where it diverged."""
        rows = self.rows(points)
        return np.where(np.isfinite(rows).all(axis=1), -0.5 * (rows**2).sum(axis=1), -np.inf)

    def jacobian(self, points: Array) -> tuple[Array, Array]:
        """Rows [points, rows] and their derivatives [points, parameters, rows], all in one batch."""
        n, params = points.shape
        signs = np.where(points > 0.5, -1.0, 1.0)
        moved = points[:, None] + NUDGE * signs[:, :, None] * np.eye(params)
        rows = self.rows(np.concatenate([points, moved.reshape(-1, params)]))
        changed = rows[n:].reshape(n, params, -1) - rows[:n, None]
        return rows[:n], changed / (NUDGE * signs[:, :, None])

    def gradients(self, points: Array) -> Array:
        """Slope of the log posterior at each point [points, parameters]; none where it diverged."""
        rows, slopes = self.jacobian(points)
        out = -np.einsum("pkr,pr->pk", np.nan_to_num(slopes), np.nan_to_num(rows))
        sound = np.asarray(np.isfinite(slopes).reshape(len(points), -1).all(axis=1))
        return np.where(sound[:, None], out, 0.0)


def likelihood(found: Fit) -> Likelihood:
    """The likelihood of the recordings a fit was made from."""
    residual = found.point.residual / found.problem.scale
    variance = float((residual**2).mean()) * freedom_factor(found) if residual.size else 1.0
    problem = replace(found.problem, robust=0.0, shooter=replace(found.problem.shooter, worlds=0))
    return Likelihood(problem, max(variance, 1e-12) * correlation_time(residual), _turned(found, problem))


def _turned(found: Fit, problem: Problem) -> tuple[Array, Array]:
    """The singular vectors and values of G, window by window."""
    windows, sigma = len(found.windows), problem.sigma_start
    free = np.flatnonzero(sigma > 0)
    if not len(free):
        return np.zeros((windows, 0, 0)), np.zeros((windows, 0))
    starts = np.repeat(found.point.starts[None], len(free) + 1, axis=0)
    for row, direction in enumerate(free, 1):
        starts[row, :, direction] += 0.1 * sigma[direction]
    points = evaluate(problem, np.repeat(found.x[None], len(starts), axis=0), starts)
    moved = np.stack([p.residual for p in points[1:]]) - points[0].residual
    moved = np.nan_to_num(moved / problem.scale / 0.1).reshape(len(free), windows, -1)
    basis, size, _ = np.linalg.svd(np.moveaxis(moved, 0, -1), full_matrices=False)
    return basis, size


def widened_laplace(found: Fit, factor: float) -> GaussianBelief:
    """The Laplace posterior with its variance times a factor, never wider than the box."""
    covariance = np.where(np.isfinite(found.covariance), found.covariance, 0.0)
    blind = ~np.isfinite(np.diag(found.covariance))
    covariance[blind, blind] = 1 / 12 / factor
    limit = np.sqrt(np.minimum(1.0, 1 / 12 / np.maximum(np.diag(covariance) * factor, 1e-300)))
    return GaussianBelief(found.params, found.x, factor * covariance * np.outer(limit, limit))


def _npe(found: Fit, *, seed: int = 0, sims: int = 1000) -> SampleBelief:
    from .neural_posterior import npe

    return npe(found, seed=seed, sims=sims)


def whitener(found: Fit) -> Array:
    """A matrix that takes round deviations to those of the Laplace posterior [parameters, parameters]."""
    covariance = widened_laplace(found, 1.0).covariance
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 1e-12))
