"""Least squares with multiple shooting: Levenberg and Marquardt's method, one batch of simulations per question.

The unknowns are the knobs x, in unit coordinates inside [0, 1], and a shift s_w of the start state of each window w.
The cost is

    sum_w |r_w(x, s_w)|^2_W + |s_w / sigma_0|^2 + |(x - m) / sigma_x|^2,

and since a shift is felt in its own window only, one perturbed simulation per direction differentiates all of them;
they are then eliminated window by window (a Schur complement), so that the system solved is as small as the number of
knobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

from .shoot import Shooter

NUDGE = 1e-3
"""Step of finite differences, as a share of a knob's range."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is weighed against what."""

    shooter: Shooter
    scale: Array
    """Size of a residual that counts as one, per seen direction [channels]; infinite where it does not count."""
    sigma_start: Array
    """How far start states may move, positions then velocities [2 nv]; 0 where they are taken as measured."""
    prior_mean: Array
    """Where the knobs are expected, in unit coordinates [knobs]."""
    prior_sigma: Array
    """How well that is known; infinite where nothing is [knobs]."""
    robust: float = 0.0
    """Residuals beyond this many scales count linearly (soft L1); 0 for plain squares."""
    reach: tuple[Array, Array] | None = None
    """Channels each knob [knobs, channels] and each start direction [2 nv, channels] moves, the rest being neglected in
    derivatives; unknowns that share no channel are then perturbed together. All where None."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A setting, the start states that go with it, and what it costs."""

    x: Array
    """Knobs in unit coordinates [knobs]."""
    starts: Array
    """Shift of each window's start [windows, 2 nv]."""
    residual: Array
    """Predicted minus measured [windows, span, channels]."""
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Normal:
    """The cost near a point, as a quadratic in the knobs alone."""

    curvature: Array
    """Half the second derivative of the cost of the data [knobs, knobs]."""
    gradient: Array
    """Half its gradient, priors included [knobs]."""
    scores: Array
    """Each window's share of the gradient of the data [windows, knobs]."""
    jacobian: Array
    """Derivative of the residuals [knobs, windows, span, channels]."""
    eliminated: tuple[Array, Array]
    """What a step of the knobs does to the starts: offset [windows, free] and slope [windows, free, knobs]."""
    free: Array
    """Directions of the start state that move."""


Watch = Callable[[int, float, Array], None]
"""Told the iteration, the cost and the knobs in unit coordinates."""


def descend(problem: Problem, point: Point, iterations: int, tolerance: float, watch: Watch | None = None) -> Point:
    """Go downhill until the cost changes by less than `tolerance` of itself, or `iterations` are over."""
    damping, flat = 1e-3, 0
    for iteration in range(iterations):
        normal = linearise(problem, point)
        before = point.cost
        for _ in range(7):
            trial = _tried(problem, _step(problem, point, normal, damping))
            if trial.cost < point.cost:
                point, damping = trial, max(damping / 5, 1e-9)
                break
            damping *= 10.0
        if watch is not None:
            watch(iteration, point.cost, point.x)
        # One small step can be a bad one; two in a row are the end.
        flat = flat + 1 if before - point.cost <= tolerance * before else 0
        if flat >= 2 or point.cost == before:
            break
    return point


def evaluate(problem: Problem, xs: Array, starts: Array | None = None) -> list[Point]:
    """Simulate some settings; a setting that diverges costs infinity."""
    shooter = problem.shooter
    n, size = len(shooter.windows), len(problem.sigma_start)
    moved = np.zeros((len(xs), n, size)) if starts is None else starts
    residuals = _seen(shooter, shooter(xs, moved if problem.sigma_start.any() else None))
    return [Point(x, s, r, cost_of(problem, x, s, r)) for x, s, r in zip(np.array(xs), moved, residuals, strict=True)]


def linearise(problem: Problem, point: Point, *, both_sides: bool = False) -> Normal:
    """The cost near a point; `both_sides` makes the differences central, exact to second order, for twice the work."""
    free = np.flatnonzero(problem.sigma_start > 0)
    # Step away from the nearer bound, so that the perturbed setting is legal.
    signs = np.where(point.x > 0.5, -1.0, 1.0)
    jacobian, by_start = _differences(problem, point, free, signs)
    if both_sides:
        inner = (point.x > NUDGE) & (point.x < 1 - NUDGE)
        other, other_start = _differences(problem, point, free, np.where(inner, -signs, signs))
        jacobian, by_start = (jacobian + other) / 2, (by_start + other_start) / 2
    return _normal(problem, point, free, jacobian, by_start)


def _differences(problem: Problem, point: Point, free: Array, signs: Array) -> tuple[Array, Array]:
    """Derivatives of the residuals by knob and by start state, all perturbed worlds in one batch."""
    shooter, x, knobs = problem.shooter, point.x, len(point.x)
    channels = point.residual.shape[-1]
    reach, reach_start = problem.reach or (np.ones((knobs, channels), bool), np.ones((len(free), channels), bool))
    if problem.reach is not None:
        reach_start = reach_start[free]
    groups, start_groups = _together(reach), _together(reach_start)
    xs = np.repeat(x[None], len(groups) + len(start_groups), axis=0)
    starts = np.repeat(point.starts[None], len(xs), axis=0)
    sizes = 0.1 * problem.sigma_start[free]
    for row, group in enumerate(groups):
        xs[row, group] += signs[group] * NUDGE
    for row, group in enumerate(start_groups, len(groups)):
        starts[row][:, free[group]] += sizes[group]
    changes = _seen(shooter, shooter(xs, starts if len(free) else None)) - point.residual
    changes = np.nan_to_num(changes, nan=0.0, posinf=0.0, neginf=0.0)
    jacobian, by_start = np.zeros((knobs, *changes.shape[1:])), np.zeros((len(free), *changes.shape[1:]))
    for row, group in enumerate(groups):
        for i in group:
            jacobian[i] = changes[row] * reach[i] / (signs[i] * NUDGE)
    for row, group in enumerate(start_groups, len(groups)):
        for i in group:
            by_start[i] = changes[row] * reach_start[i] / sizes[i]
    return jacobian, by_start


def _together(reach: Array) -> list[list[int]]:
    """Unknowns in groups whose reaches do not overlap, each put into the first group it fits."""
    groups: list[list[int]] = []
    taken: list[Array] = []
    for i, channels in enumerate(reach):
        for group, used in zip(groups, taken, strict=True):
            if not (used & channels).any():
                group.append(i)
                used |= channels
                break
        else:
            groups.append([i])
            taken.append(channels.copy())
    return groups


def _normal(problem: Problem, point: Point, free: Array, jacobian: Array, by_start: Array) -> Normal:
    x, n, knobs = point.x, len(problem.shooter.windows), len(point.x)
    weight = _weights(problem, point.residual)
    rows = point.residual[0].size
    flat = np.moveaxis(jacobian, 0, 1).reshape(n, knobs, rows)
    flat_s = np.moveaxis(by_start, 0, 1).reshape(n, len(free), rows)
    weighed = flat * weight.reshape(n, 1, -1)
    residual = np.nan_to_num(point.residual).reshape(n, -1)
    scores = np.einsum("npr,nr->np", weighed, residual)
    curvature = np.einsum("npr,nqr->pq", weighed, flat, optimize=True)
    offset, slope = np.zeros((n, 0)), np.zeros((n, 0, knobs))
    if len(free):
        weighed_s = flat_s * weight.reshape(n, 1, -1)
        own = weighed_s @ np.swapaxes(flat_s, 1, 2) + np.diag(problem.sigma_start[free] ** -2.0)
        cross = weighed_s @ np.swapaxes(flat, 1, 2)  # [windows, free, knobs]
        pull = np.einsum("nfr,nr->nf", weighed_s, residual) + point.starts[:, free] / problem.sigma_start[free] ** 2
        solved = np.linalg.solve(own, np.concatenate([pull[..., None], cross], axis=2))
        offset, slope = -solved[..., 0], -solved[..., 1:]
        scores = scores + np.einsum("nfk,nf->nk", cross, offset)
        curvature = curvature + np.einsum("nfk,nfj->kj", cross, slope)
    prior = np.where(np.isfinite(problem.prior_sigma), (x - problem.prior_mean) / problem.prior_sigma**2, 0.0)
    return Normal(curvature, scores.sum(axis=0) + prior, scores, jacobian, (offset, slope), free)


def cost_of(problem: Problem, x: Array, starts: Array, residual: Array) -> float:
    """The cost of a point whose residuals are known; infinite where it diverged."""
    if not np.isfinite(residual).all():
        return np.inf
    squares = (residual / problem.scale) ** 2
    if problem.robust > 0:
        squares = 2 * problem.robust**2 * (np.sqrt(1 + squares / problem.robust**2) - 1)
    free = problem.sigma_start > 0
    moved = ((starts[:, free] / problem.sigma_start[free]) ** 2).sum()
    away = np.where(np.isfinite(problem.prior_sigma), (x - problem.prior_mean) / problem.prior_sigma, 0.0)
    return float(squares.sum() + moved + (away**2).sum())


def _step(problem: Problem, point: Point, normal: Normal, damping: float) -> tuple[Array, Array]:
    full = normal.curvature + np.diag(problem.prior_sigma**-2.0)
    x, gradient = point.x, normal.gradient
    # A knob at its bound that wants to go beyond it stays; the others move as if it were fixed.
    moving = ~(((x <= 0) & (gradient > 0)) | ((x >= 1) & (gradient < 0)))
    moving &= np.diag(full) > 1e-12 * max(np.diag(full).max(initial=0.0), 1e-300)
    step = np.zeros_like(x)
    if moving.any():
        small = full[np.ix_(moving, moving)]
        small = small + damping * np.diag(np.diag(small))
        step[moving] = -np.linalg.lstsq(small, gradient[moving], rcond=1e-14)[0]
    after = np.clip(x + step, 0.0, 1.0)
    starts = point.starts.copy()
    offset, slope = normal.eliminated
    starts[:, normal.free] += offset + slope @ (after - x)
    return after, starts


def _tried(problem: Problem, step: tuple[Array, Array]) -> Point:
    return evaluate(problem, step[0][None], step[1][None])[0]


def _seen(shooter: Shooter, residuals: Array) -> Array:
    kept = residuals[..., shooter.windows.tangent.seen]
    return np.where(shooter.windows.inside[..., None], kept, 0.0)


def _weights(problem: Problem, residual: Array) -> Array:
    weight = np.broadcast_to(problem.scale**-2.0, residual.shape)
    if problem.robust > 0:
        share = np.nan_to_num(residual) / (problem.scale * problem.robust)
        weight = weight / np.sqrt(1.0 + share**2)
    return weight * np.isfinite(residual)
