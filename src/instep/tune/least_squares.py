"""Least squares with multiple shooting: Levenberg and Marquardt's method, one batch of simulations per question.

The unknowns are the params x, in unit coordinates inside [0, 1], and a shift s_w of the start state of each window w.
The cost is

    sum_w |r_w(x, s_w)|^2_W + |s_w / sigma_0|^2 + |(x - m) / sigma_x|^2,

and since a shift is felt in its own window only, one perturbed simulation per direction differentiates all of them;
they are then eliminated window by window (a Schur complement), so that the system solved is as small as the number of
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from instep.core.world import Array

from .shooting import Shooter

NUDGE = 1e-3
"""Step of finite differences, as a share of a parameter's range."""
WIDEST = 0.05
"""Longest step of differences: where contacts make a cost rough, only differences across its ripples are slopes."""
RIPPLES = 12
"""Points at which the ripples of a rough cost are sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is weighed against what."""

    shooter: Shooter
    scale: Array
    """Size of a residual that counts as one, per seen direction [channels]; infinite where it does not count."""
    sigma_start: Array
    """How far start states may move, positions then velocities [2 nv]; 0 where they are taken as measured."""
    prior_mean: Array
    """Where the parameters are expected, in unit coordinates [parameters]."""
    prior_sigma: Array
    """How well that is known; infinite where nothing is [parameters]."""
    robust: float = 0.0
    """Residuals beyond this many scales count linearly (soft L1); 0 for plain squares."""
    reach: tuple[Array, Array] | None = None
    """Channels each param [params, channels] and each start direction [2 nv, channels] moves, the rest neglected in
    derivatives; unknowns that share no channel are then perturbed together. All where None."""
    contacts: bool = False
    """Whether bodies move freely, and so by touching others: only there is a cost taken to have ripples."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A setting, the start states that go with it, and what it costs."""

    x: Array
    """Parameters in unit coordinates [parameters]."""
    starts: Array
    """Shift of each window's start [windows, 2 nv]."""
    residual: Array
    """Predicted minus measured [windows, span, channels]."""
    cost: float
    nudge: float = NUDGE
    """Step of the differences whose slopes led here; wider than `NUDGE` where the cost is rough."""


@dataclass(frozen=True, slots=True, eq=False)
class NormalEquations:
    """The cost near a point, as a quadratic in the parameters alone."""

    curvature: Array
    """Half the second derivative of the cost of the data [parameters, parameters]."""
    gradient: Array
    """Half its gradient, priors included [parameters]."""
    scores: Array
    """Each window's share of the gradient of the data [windows, parameters]."""
    slopes: tuple[Array, Array]
    """Derivative of the residuals by parameter [parameters, windows, span, channels] and by start [free, ...]."""
    eliminated: tuple[Array, Array]
    """What a step of the params does to the starts: offset [windows, free] and slope [windows, free, params]."""
    free: Array
    """Directions of the start state that move."""


Watch = Callable[[int, float, Array], None]
"""Told the iteration, the cost and the parameters in unit coordinates."""


def descend(problem: Problem, point: Point, iterations: int, tolerance: float, watch: Watch | None = None) -> Point:
    """Go downhill until the cost changes by less than `tolerance` of itself, or `iterations` are over.

    In contact, slopes that promise much and keep little may be those of ripples: then differences are taken over longer
    steps. Elsewhere they are only curved, and longer steps would lead astray.
    """
    at = [point]
    try:
        _descend(problem, at, iterations, tolerance, watch)
    except KeyboardInterrupt as stop:
        raise Interrupted(at[0]) from stop
    return at[0]


class Interrupted(KeyboardInterrupt):
    """A search was stopped by hand; it carries the best point until then."""

    def __init__(self, point: Point) -> None:
        super().__init__("stopped by hand")
        self.point = point


def _descend(problem: Problem, at: list[Point], iterations: int, tolerance: float, watch: Watch | None) -> None:
    """Replace the one point of a list by better ones, so that it is the best whenever this is stopped."""
    point = at[0]
    damping, flat, slopes, moved = 1e-3, 0, None, 0.0
    for iteration in range(iterations):
        # Slopes taken within a step of differences from here still hold.
        known = slopes is not None and moved < NUDGE
        normal = _normal(problem, point, slopes) if slopes and known else linearise(problem, point)
        slopes, moved = normal.slopes, moved if known else 0.0
        before, promised = point.cost, _promise(problem, point, normal, damping)
        # Where no step could gain anything, one is tried and no more.
        done = _most(problem, point, normal) <= tolerance * before
        for _ in range(7):
            trial = _tried(problem, point, _step(problem, point, normal, damping))
            if trial.cost < point.cost:
                moved += float(np.abs(trial.x - point.x).max(initial=0.0))
                point, damping = trial, max(damping / 5, 1e-9)
                at[0] = point
                break
            damping *= 10.0
            if done:
                break
        if watch is not None:
            watch(iteration, point.cost, point.x)
        gained = before - point.cost
        # One small step can be a bad one; two in a row are the end, or one where slopes taken here promised no more.
        flat = flat + 1 if gained <= tolerance * before else 0
        if flat and done and (not known or not problem.contacts):
            break
        vain = gained < 0.1 * promised and gained <= 0.01 * before and promised > 10 * tolerance * before
        wider = _wider(problem, point, normal) if vain and problem.contacts else point
        if wider.nudge > point.nudge:
            point, damping, flat, slopes = wider, 1e-3, 0, None
            at[0] = point
        elif flat >= 2 or gained == 0:
            if not known:
                break
            slopes, damping = None, 1e-3  # slopes from elsewhere lead no further; those taken here may


def evaluate(problem: Problem, xs: Array, starts: Array | None = None) -> list[Point]:
    """Simulate some settings; a setting that diverges costs infinity."""
    shooter = problem.shooter
    n, size = len(shooter.windows), len(problem.sigma_start)
    moved = np.zeros((len(xs), n, size)) if starts is None else starts
    residuals = _seen(shooter, shooter(xs, moved if problem.sigma_start.any() else None))
    return [Point(x, s, r, cost_of(problem, x, s, r)) for x, s, r in zip(np.array(xs), moved, residuals, strict=True)]


def linearise(problem: Problem, point: Point, *, both_sides: bool = False) -> NormalEquations:
    """The cost near a point; `both_sides` makes the differences central, exact to second order, for twice the work.

    Where the cost is rough, `both_sides` also counts its ripples as noise, or intervals would be far too narrow.
    """
    free = np.flatnonzero(problem.sigma_start > 0)
    # Step away from the nearer bound, so that the perturbed setting is legal.
    signs = np.where(point.x > 0.5, -1.0, 1.0)
    inner = (point.x > point.nudge) & (point.x < 1 - point.nudge)
    sides = [signs, np.where(inner, -signs, signs)] if both_sides else [signs]
    normal = _normal(problem, point, _differences(problem, point, free, sides))
    return _less_sure(normal, _ripples(problem, point, normal)) if both_sides and rough(point) else normal


def rough(point: Point) -> bool:
    """Whether slopes over short steps turned out to be those of ripples."""
    return point.nudge > NUDGE


def _differences(problem: Problem, point: Point, free: Array, sides: Sequence[Array]) -> tuple[Array, Array]:
    """Derivatives of the residuals by parameter and by start state, all perturbed worlds in one batch.

    Each side holds the sign of every parameter's step; the derivatives are the mean over the sides.
    """
    shooter, params, channels = problem.shooter, len(point.x), point.residual.shape[-1]
    reach, reach_start = problem.reach or (np.ones((params, channels), bool), np.ones((len(free), channels), bool))
    if problem.reach is not None:
        reach_start = reach_start[free]
    groups, start_groups = _together(reach), _together(reach_start)
    each = len(groups) + len(start_groups)
    xs = np.repeat(point.x[None], len(sides) * each, axis=0)
    starts = np.repeat(point.starts[None], len(xs), axis=0)
    sizes = min(1.0, 0.1 * point.nudge / NUDGE) * problem.sigma_start[free]
    for side, signs in enumerate(sides):
        for row, group in enumerate(groups, side * each):
            xs[row, group] += signs[group] * point.nudge
        for row, group in enumerate(start_groups, side * each + len(groups)):
            starts[row][:, free[group]] += (1 - 2 * side) * sizes[group]
    changes = _seen(shooter, shooter(xs, starts if len(free) else None)) - point.residual
    changes = np.nan_to_num(changes, nan=0.0, posinf=0.0, neginf=0.0)
    jacobian, by_start = np.zeros((params, *changes.shape[1:])), np.zeros((len(free), *changes.shape[1:]))
    for side, signs in enumerate(sides):
        for row, group in enumerate(groups, side * each):
            for i in group:
                jacobian[i] += changes[row] * reach[i] / (signs[i] * point.nudge * len(sides))
        for row, group in enumerate(start_groups, side * each + len(groups)):
            for i in group:
                by_start[i] += changes[row] * reach_start[i] / ((1 - 2 * side) * sizes[i] * len(sides))
    return jacobian, by_start


def _ripples(problem: Problem, point: Point, normal: NormalEquations) -> Array:
    """Covariance of the gradient of the data that is due to what slopes leave of the cost nearby [params, params]."""
    params, (jacobian, by_start) = len(point.x), normal.slopes
    rng = np.random.default_rng(RIPPLES)
    away = point.nudge / 2 * rng.uniform(-1, 1, (RIPPLES, params))
    xs = np.clip(point.x + away, 0.0, 1.0)
    away = xs - point.x
    moved = np.einsum("nfk,pk->pnf", normal.eliminated[1], away)
    starts = np.repeat(point.starts[None], RIPPLES, axis=0)
    starts[..., normal.free] += moved
    found = np.stack([p.residual for p in evaluate(problem, xs, starts)]) - point.residual
    straight = np.einsum("pk,knsc->pnsc", away, jacobian) + np.einsum("pnf,fnsc->pnsc", moved, by_start)
    left = np.nan_to_num(found - straight, nan=0.0, posinf=0.0, neginf=0.0)
    left = (left - left.mean(axis=0)) * _weights(problem, point.residual)
    pull = np.einsum("knsc,pnsc->pnk", jacobian, left)
    pull += np.einsum("nfk,fnsc,pnsc->pnk", normal.eliminated[1], by_start, left, optimize=True)
    # Once for the ripples of the simulator where it stopped, once for those of what was recorded.
    return 2 * np.einsum("pnk,pnj->kj", pull, pull) / (RIPPLES - 1)


def _less_sure(normal: NormalEquations, ripples: Array) -> NormalEquations:
    """The same with ripples counted as noise of unit size, so that the inverse of the curvature is the sandwich's."""
    share = normal.curvature @ np.linalg.pinv(normal.curvature + ripples)
    curvature = share @ normal.curvature
    return replace(normal, curvature=(curvature + curvature.T) / 2, scores=normal.scores @ share.T)


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


def _normal(problem: Problem, point: Point, slopes: tuple[Array, Array]) -> NormalEquations:
    jacobian, by_start = slopes
    free = np.flatnonzero(problem.sigma_start > 0)
    x, n, params = point.x, len(problem.shooter.windows), len(point.x)
    weight = _weights(problem, point.residual)
    rows = point.residual[0].size
    flat = np.moveaxis(jacobian, 0, 1).reshape(n, params, rows)
    flat_s = np.moveaxis(by_start, 0, 1).reshape(n, len(free), rows)
    weighed = flat * weight.reshape(n, 1, -1)
    residual = np.nan_to_num(point.residual).reshape(n, -1)
    scores = np.einsum("npr,nr->np", weighed, residual)
    curvature = np.einsum("npr,nqr->pq", weighed, flat, optimize=True)
    offset, slope = np.zeros((n, 0)), np.zeros((n, 0, params))
    if len(free):
        weighed_s = flat_s * weight.reshape(n, 1, -1)
        own = weighed_s @ np.swapaxes(flat_s, 1, 2) + np.diag(problem.sigma_start[free] ** -2.0)
        cross = weighed_s @ np.swapaxes(flat, 1, 2)  # [windows, free, parameters]
        pull = np.einsum("nfr,nr->nf", weighed_s, residual) + point.starts[:, free] / problem.sigma_start[free] ** 2
        solved = np.linalg.solve(own, np.concatenate([pull[..., None], cross], axis=2))
        offset, slope = -solved[..., 0], -solved[..., 1:]
        scores = scores + np.einsum("nfk,nf->nk", cross, offset)
        curvature = curvature + np.einsum("nfk,nfj->kj", cross, slope)
    prior = np.where(np.isfinite(problem.prior_sigma), (x - problem.prior_mean) / problem.prior_sigma**2, 0.0)
    return NormalEquations(curvature, scores.sum(axis=0) + prior, scores, slopes, (offset, slope), free)


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


def _step(problem: Problem, point: Point, normal: NormalEquations, damping: float) -> tuple[Array, Array]:
    x = point.x
    after = np.clip(x + _free_step(problem, point, normal, damping), 0.0, 1.0)
    starts = point.starts.copy()
    offset, slope = normal.eliminated
    # Starts are damped like parameters: a whole step of theirs can be too long however short that of the parameters is.
    starts[:, normal.free] += offset / (1 + damping) + slope @ (after - x)
    return after, starts


def _free_step(problem: Problem, point: Point, normal: NormalEquations, damping: float) -> Array:
    """The step of the parameters as if there were no bounds but those they stand at."""
    full = normal.curvature + np.diag(problem.prior_sigma**-2.0)
    x, gradient = point.x, normal.gradient
    # A parameter at its bound that wants to go beyond it stays; the others move as if it were fixed.
    moving = ~(((x <= 0) & (gradient > 0)) | ((x >= 1) & (gradient < 0)))
    moving &= np.diag(full) > 1e-12 * max(np.diag(full).max(initial=0.0), 1e-300)
    step = np.zeros_like(x)
    if moving.any():
        small = full[np.ix_(moving, moving)]
        small = small + damping * np.diag(np.diag(small))
        step[moving] = -np.linalg.lstsq(small, gradient[moving], rcond=1e-14)[0]
    return step


def _most(problem: Problem, point: Point, normal: NormalEquations) -> float:
    """The most that any step of the parameters could lower the cost if it were what its slopes say."""
    return float(-normal.gradient @ _free_step(problem, point, normal, 0.0))


def _promise(problem: Problem, point: Point, normal: NormalEquations, damping: float) -> float:
    """By how much the cost would fall with the next step if it were what its slopes say."""
    after, _ = _step(problem, point, normal, damping)
    step = after - point.x
    full = normal.curvature + np.diag(problem.prior_sigma**-2.0)
    return float(-2 * normal.gradient @ step - step @ full @ step)


def _wider(problem: Problem, point: Point, normal: NormalEquations) -> Point:
    """The point with a longer step of differences, if slopes over that step are others: then there are ripples."""
    wider = replace(point, nudge=min(5 * point.nudge, WIDEST))
    if wider.nudge == point.nudge:
        return point
    weight = np.sqrt(_weights(problem, point.residual))
    short, long = normal.slopes[0] * weight, linearise(problem, wider).slopes[0] * weight
    size, apart = ((part**2).sum(axis=(1, 2, 3)) for part in (long, short - long))
    return wider if (apart > 0.1 * size).any() else point


def _tried(problem: Problem, point: Point, step: tuple[Array, Array]) -> Point:
    return replace(evaluate(problem, step[0][None], step[1][None])[0], nudge=point.nudge)


def _seen(shooter: Shooter, residuals: Array) -> Array:
    kept = residuals[..., shooter.windows.tangent.seen]
    return np.where(shooter.windows.inside[..., None], kept, 0.0)


def _weights(problem: Problem, residual: Array) -> Array:
    weight = np.broadcast_to(problem.scale**-2.0, residual.shape)
    if problem.robust > 0:
        share = np.nan_to_num(residual) / (problem.scale * problem.robust)
        weight = weight / np.sqrt(1.0 + share**2)
    return weight * np.isfinite(residual)
