"""Levenberg-Marquardt for multiple shooting, one batch of simulations per evaluation.

The unknowns are the parameters x, in unit coordinates inside [0, 1], and a shift s_w of the start state of each window
w. The cost is

    sum_w |r_w(x, s_w)|^2_W + n |s_w / sigma_0|^2 + n |(x - m) / sigma_x|^2,

with n rows that count as one observation, the correlation time of the residuals. Since a shift acts in its own window
only, one perturbed simulation per direction differentiates all of them; they are eliminated window by window (a Schur
complement), which leaves a system of the size of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np

from instep.core.progress import Progress
from instep.core.world import Array, array_dataclass

from .sensitivities import sensitivities
from .windows import Shooter

DIFFERENCE_STEP = 1e-3
"""Step of finite differences, as a share of a parameter's range."""
FIRST_DAMPING, NEAR_DAMPING = 1e-3, 1e-7
"""Levenberg-Marquardt damping of the first step, as a share of the curvature; and where the minimum is near, so that
parameters which are known as a sum only move their whole way at once."""
MAX_DIFFERENCE_STEP = 0.05
"""Longest step of finite differences, for a cost that contacts make rough: differences span the roughness."""
NO_WEIGHT = 1e3
"""Scale of the residuals of a coordinate that is ignored [rad or m]."""
NEGLIGIBLE = 1e-2
"""Change of the cost, whose rows count about one each, below which a search has converged, however small the cost is:
recordings without noise can be fitted ever better."""
UNCERTAINTY_STEPS = 2.0
"""Time that the uncertainty at the end of a search takes, in its iterations."""
ROUGHNESS_SAMPLES = 12
"""Points at which a rough cost is sampled to estimate its noise."""


@array_dataclass
class Problem:
    """Residuals, their scales, and the priors of a least-squares problem."""

    shooter: Shooter
    scale: Array
    """Scale of the residuals per measured direction [channels]; infinite where it has no weight."""
    sigma_start: Array
    """Standard deviation of start states, positions then velocities [2 nv]; 0 where they are taken as measured."""
    prior_mean: Array
    """Mean of the prior, in unit coordinates [parameters]."""
    prior_sigma: Array
    """Its standard deviation; infinite where there is no prior [parameters]."""
    robust: float = 0.0
    """Residuals beyond this many scales count linearly (soft L1); 0 for plain squares."""
    affected: tuple[Array, Array] | None = None
    """Channels that each parameter [params, channels] and each start direction [2 nv, channels] affects; the rest is
    neglected in derivatives, and unknowns that share no channel are perturbed together. All where None."""
    contacts: bool = False
    """Whether there are free bodies, which move by contact: only then may the cost be rough."""
    linearised: bool = False
    """Whether derivatives come from the equations of motion, linearised (`sensitivities`), where those know them."""
    rows_per_observation: float = 1.0
    """How many rows of a window count as one observation against priors: the correlation time of the residuals. What a
    model lacks is alike in neighbouring rows; counted as independent they would outweigh any knowledge of starts."""

    @property
    def weighing(self) -> int:
        """How many measured directions have weight, at least 1."""
        return max(1, int((self.scale < NO_WEIGHT).sum()))

    @property
    def free_starts(self) -> int:
        """Degrees of freedom that the start state of a window takes: no more than directions with weight have."""
        return min(int((self.sigma_start > 0).sum()), 2 * self.weighing)

    @property
    def start_precision(self) -> Array:
        """Weight of the squared shifts of start states that are estimated [free]."""
        free = self.sigma_start > 0
        return self.rows_per_observation * self.sigma_start[free] ** -2.0

    @property
    def prior_precision(self) -> Array:
        """Weight of the squared distance from the mean of the prior; 0 where there is no prior [parameters]."""
        return self.rows_per_observation * self.prior_sigma**-2.0


@array_dataclass
class Point:
    """Parameters, start states, residuals and cost."""

    x: Array
    """Parameters in unit coordinates [parameters]."""
    starts: Array
    """Shift of each window's start [windows, 2 nv]."""
    residual: Array
    """Predicted minus measured [windows, span, channels]."""
    cost: float
    difference_step: float = DIFFERENCE_STEP
    """Step of the finite differences that led here; longer than `DIFFERENCE_STEP` where the cost is rough."""


@array_dataclass
class QuadraticModel:
    """The quadratic model of the cost near a point, in the parameters alone."""

    curvature: Array
    """Half the second derivative of the cost of the data [parameters, parameters]."""
    gradient: Array
    """Half its gradient, priors included [parameters]."""
    scores: Array
    """Each window's share of the gradient of the data [windows, parameters]."""
    jacobians: tuple[Array, Array]
    """Derivative of the residuals by parameter [parameters, windows, span, channels] and by start [free, ...]."""
    eliminated: tuple[Array, Array]
    """Start states as a function of the parameters: offset [windows, free] and gradient [windows, free, params]."""
    free: Array
    """Directions of the start state that are estimated."""


class FitStatus(StrEnum):
    """How a search ended; only a converged one has intervals."""

    CONVERGED = "converged"
    """The cost no longer falls, and the quadratic model predicts no further reduction."""
    STALLED = "stalled"
    """No step reduces the cost although the quadratic model predicts that one should."""
    BUDGET_SPENT = "budget spent"
    """The time or the iterations were used up on the way."""
    STOPPED = "stopped"
    """It was interrupted by hand."""
    NOT_IDENTIFIABLE = "not identifiable"
    """The recordings do not determine the value."""
    ON_BOUND = "on a bound"
    """The best value lies outside the range that was searched, so that there is no interval."""


@array_dataclass
class Descent:
    """Where a search ended, and how."""

    point: Point
    status: FitStatus


def descend(
    problem: Problem, point: Point, iterations: int, tolerance: float, progress: Progress | None = None,
    damping: float = FIRST_DAMPING,
) -> Descent:  # fmt: skip
    """Minimise until the relative change of the cost is below `tolerance`, or `iterations` or the time are used up.

    `damping` is that of the first step; near a minimum little is needed (`NEAR_DAMPING`).

    In contact, where the predicted reduction is large and the actual one small, the cost may be rough: then finite
    differences are taken over longer steps. Elsewhere the cost is only curved, and longer steps would mislead.
    """
    at = [point]
    try:
        status = _descend(problem, at, iterations, tolerance, damping, progress or Progress())
    except KeyboardInterrupt as stop:
        raise Interrupted(at[0]) from stop
    return Descent(at[0], status)


class Interrupted(KeyboardInterrupt):
    """A search was interrupted (Ctrl-C); it carries the best point until then."""

    def __init__(self, point: Point) -> None:
        super().__init__("interrupted")
        self.point = point


def _descend(
    problem: Problem, at: list[Point], iterations: int, tolerance: float, damping: float, progress: Progress
) -> FitStatus:
    """Replace the one point of a list by better ones, so that it holds the best at any interrupt."""
    point = at[0]
    flat, jacobians, moved = 0, None, 0.0
    for iteration in range(iterations):
        if progress.interrupted or not progress.affords(1 + UNCERTAINTY_STEPS):
            return FitStatus.STOPPED if progress.interrupted else FitStatus.BUDGET_SPENT
        began = progress.clock()
        # Derivatives taken within one difference step of here still hold.
        known = jacobians is not None and moved < DIFFERENCE_STEP
        normal = quadratic_model(problem, point, jacobians) if jacobians and known else linearise(problem, point)
        jacobians, moved = normal.jacobians, moved if known else 0.0
        before, predicted = point.cost, _predicted_reduction(problem, point, normal, damping)
        # Where no step can reduce the cost noticeably, only one is tried.
        little = max(tolerance * before, NEGLIGIBLE)
        # The largest reduction of the cost that the quadratic model allows.
        done = float(-normal.gradient @ _free_step(problem, point, normal, 0.0)) <= little
        trial, damping = _tried(problem, point, normal, damping, once=done)
        if trial is not None:
            moved += float(np.abs(trial.x - point.x).max(initial=0.0))
            point = at[0] = trial
        progress.iterated(iteration, point.cost, point.x)
        progress.advance(progress.stage or "search", (iteration + 1) / iterations)
        progress.stepped(progress.clock() - began)
        gained = before - point.cost
        # Two small steps in a row end the search, or one where derivatives taken here predicted no more.
        flat = flat + 1 if gained <= little else 0
        if flat and done and (not known or not problem.contacts):
            return FitStatus.CONVERGED
        missed = gained < 0.1 * predicted and gained <= 0.01 * before and predicted > 10 * little
        wider = _with_longer_differences(problem, point, normal) if missed and problem.contacts else point
        if wider.difference_step > point.difference_step:
            point, damping, flat, jacobians = wider, FIRST_DAMPING, 0, None
            at[0] = point
        elif flat >= 2 or gained == 0:
            if not known:
                return FitStatus.STALLED
            jacobians, damping = None, FIRST_DAMPING  # derivatives from elsewhere lead no further; those taken here may
    return FitStatus.BUDGET_SPENT


def _tried(
    problem: Problem, point: Point, normal: QuadraticModel, damping: float, *, once: bool
) -> tuple[Point | None, float]:
    """The first of ever shorter steps that reduces the cost, None where none does; and the damping of the next."""
    for _ in range(1 if once else 7):
        x, starts = _step(problem, point, normal, damping)
        trial = replace(evaluate(problem, x[None], starts[None])[0], difference_step=point.difference_step)
        if trial.cost < point.cost:
            return trial, max(damping / 5, 1e-9)
        damping *= 10.0
    return None, damping


def evaluate(problem: Problem, xs: Array, starts: Array | None = None) -> list[Point]:
    """Simulate some settings; a setting that diverges costs infinity."""
    shooter = problem.shooter
    n, size = len(shooter.windows), len(problem.sigma_start)
    moved = np.zeros((len(xs), n, size)) if starts is None else starts
    residuals = _measured(shooter, shooter(xs, moved if problem.sigma_start.any() else None))
    return [Point(x, s, r, cost_of(problem, x, s, r)) for x, s, r in zip(np.array(xs), moved, residuals, strict=True)]


def linearise(problem: Problem, point: Point, *, both_sides: bool = False) -> QuadraticModel:
    """The normal equations at a point; `both_sides` takes central differences, exact to second order, for twice the
    work.

    Where the cost is rough, `both_sides` also counts its roughness as noise, or intervals would be far too narrow.
    """
    free = np.flatnonzero(problem.sigma_start > 0)
    # Step away from the nearer bound, so that the perturbed setting is inside.
    signs = np.where(point.x > 0.5, -1.0, 1.0)
    inner = (point.x > point.difference_step) & (point.x < 1 - point.difference_step)
    sides = [signs, np.where(inner, -signs, signs)] if both_sides else [signs]
    normal = quadratic_model(problem, point, _differences(problem, point, free, sides))
    if not both_sides or not rough(point):
        return normal
    # Roughness counts as noise, so that the inverse of the curvature is the sandwich covariance.
    share = normal.curvature @ np.linalg.pinv(normal.curvature + _roughness(problem, point, normal))
    curvature = share @ normal.curvature
    return replace(normal, curvature=(curvature + curvature.T) / 2, scores=normal.scores @ share.T)


def derivative_candidates(problem: Problem) -> int:
    """Candidates that are simulated over all windows for derivatives; 0 where linearised equations give them."""
    if problem.linearised:
        return 0
    free = np.flatnonzero(problem.sigma_start > 0)
    if problem.affected is None:
        return len(problem.shooter.params) + len(free)
    affected, affected_start = problem.affected
    return len(_together(affected)) + len(_together(affected_start[free]))


def rough(point: Point) -> bool:
    """Whether finite differences over short steps turned out to be dominated by roughness of the cost."""
    return point.difference_step > DIFFERENCE_STEP


def _differences(problem: Problem, point: Point, free: Array, sides: Sequence[Array]) -> tuple[Array, Array]:
    """Derivatives of the residuals by parameter and by start state, all perturbed worlds in one batch.

    Each side holds the sign of every parameter's step; the derivatives are the mean over the sides.
    """
    shooter, params, channels = problem.shooter, len(point.x), point.residual.shape[-1]
    if problem.linearised:
        return _linearised_differences(problem, point, free, sides)
    affected, affected_start = problem.affected or (
        np.ones((params, channels), bool),
        np.ones((len(free), channels), bool),
    )
    if problem.affected is not None:
        affected_start = affected_start[free]
    groups, start_groups = _together(affected), _together(affected_start)
    each = len(groups) + len(start_groups)
    xs = np.repeat(point.x[None], len(sides) * each, axis=0)
    starts = np.repeat(point.starts[None], len(xs), axis=0)
    sizes = min(1.0, 0.1 * point.difference_step / DIFFERENCE_STEP) * problem.sigma_start[free]
    for side, signs in enumerate(sides):
        for row, group in enumerate(groups, side * each):
            xs[row, group] += signs[group] * point.difference_step
        for row, group in enumerate(start_groups, side * each + len(groups)):
            starts[row][:, free[group]] += (1 - 2 * side) * sizes[group]
    changes = _measured(shooter, shooter(xs, starts if len(free) else None)) - point.residual
    changes = np.nan_to_num(changes, nan=0.0, posinf=0.0, neginf=0.0)
    jacobian, by_start = np.zeros((params, *changes.shape[1:])), np.zeros((len(free), *changes.shape[1:]))
    for side, signs in enumerate(sides):
        for row, group in enumerate(groups, side * each):
            for i in group:
                jacobian[i] += changes[row] * affected[i] / (signs[i] * point.difference_step * len(sides))
        for row, group in enumerate(start_groups, side * each + len(groups)):
            for i in group:
                by_start[i] += changes[row] * affected_start[i] / ((1 - 2 * side) * sizes[i] * len(sides))
    return jacobian, by_start


def _linearised_differences(
    problem: Problem, point: Point, free: Array, sides: Sequence[Array]
) -> tuple[Array, Array]:  # fmt: skip
    """Derivatives from linearised equations of motion, and from finite differences for parameters not in them."""
    shooter = problem.shooter
    found = sensitivities(shooter, point.x, point.starts)
    jacobian, by_start = _measured(shooter, found.params), _measured(shooter, found.starts[free])
    for i in np.flatnonzero(~found.known):
        xs = np.repeat(point.x[None], len(sides), axis=0)
        xs[:, i] += [signs[i] * point.difference_step for signs in sides]
        starts = np.repeat(point.starts[None], len(sides), axis=0)
        changes = _measured(shooter, shooter(xs, starts if len(free) else None)) - point.residual
        steps = (xs[:, i] - point.x[i])[:, None, None, None]
        jacobian[i] = np.nan_to_num(changes / steps, nan=0.0, posinf=0.0, neginf=0.0).mean(axis=0)
    return jacobian, by_start


def _roughness(problem: Problem, point: Point, normal: QuadraticModel) -> Array:
    """Covariance of the gradient due to what the linear model leaves of the residuals nearby [params, params]."""
    params, (jacobian, by_start) = len(point.x), normal.jacobians
    rng = np.random.default_rng(ROUGHNESS_SAMPLES)
    away = point.difference_step / 2 * rng.uniform(-1, 1, (ROUGHNESS_SAMPLES, params))
    xs = np.clip(point.x + away, 0.0, 1.0)
    away = xs - point.x
    moved = np.einsum("nfk,pk->pnf", normal.eliminated[1], away)
    starts = np.repeat(point.starts[None], ROUGHNESS_SAMPLES, axis=0)
    starts[..., normal.free] += moved
    found = np.stack([p.residual for p in evaluate(problem, xs, starts)]) - point.residual
    straight = np.einsum("pk,knsc->pnsc", away, jacobian) + np.einsum("pnf,fnsc->pnsc", moved, by_start)
    left = np.nan_to_num(found - straight, nan=0.0, posinf=0.0, neginf=0.0)
    left = (left - left.mean(axis=0)) * _weights(problem, point.residual)
    pull = np.einsum("knsc,pnsc->pnk", jacobian, left)
    pull += np.einsum("nfk,fnsc,pnsc->pnk", normal.eliminated[1], by_start, left, optimize=True)
    # Once for the roughness of the simulation at this point, once for that of the recording.
    return 2 * np.einsum("pnk,pnj->kj", pull, pull) / (ROUGHNESS_SAMPLES - 1)


def _together(affected: Array) -> list[list[int]]:
    """Groups of unknowns that share no channel, each put into the first group it fits."""
    groups: list[list[int]] = []
    taken: list[Array] = []
    for i, channels in enumerate(affected):
        for group, used in zip(groups, taken, strict=True):
            if not (used & channels).any():
                group.append(i)
                used |= channels
                break
        else:
            groups.append([i])
            taken.append(channels.copy())
    return groups


def quadratic_model(problem: Problem, point: Point, jacobians: tuple[Array, Array]) -> QuadraticModel:
    """The normal equations at a point with derivatives that are known, start states eliminated."""
    jacobian, by_start = jacobians
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
    offset, gradient = np.zeros((n, 0)), np.zeros((n, 0, params))
    if len(free):
        weighed_s = flat_s * weight.reshape(n, 1, -1)
        own = weighed_s @ np.swapaxes(flat_s, 1, 2) + np.diag(problem.start_precision)
        cross = weighed_s @ np.swapaxes(flat, 1, 2)  # [windows, free, parameters]
        pull = np.einsum("nfr,nr->nf", weighed_s, residual) + point.starts[:, free] * problem.start_precision
        solved = np.linalg.solve(own, np.concatenate([pull[..., None], cross], axis=2))
        offset, gradient = -solved[..., 0], -solved[..., 1:]
        scores = scores + np.einsum("nfk,nf->nk", cross, offset)
        curvature = curvature + np.einsum("nfk,nfj->kj", cross, gradient)
    prior = (x - problem.prior_mean) * problem.prior_precision
    return QuadraticModel(curvature, scores.sum(axis=0) + prior, scores, jacobians, (offset, gradient), free)


def cost_of(problem: Problem, x: Array, starts: Array, residual: Array) -> float:
    """The cost of a point whose residuals are known; infinite where it diverged."""
    if not np.isfinite(residual).all():
        return np.inf
    squares = (residual / problem.scale) ** 2
    if problem.robust > 0:
        squares = 2 * problem.robust**2 * (np.sqrt(1 + squares / problem.robust**2) - 1)
    free = problem.sigma_start > 0
    moved = (starts[:, free] ** 2 * problem.start_precision).sum()
    away = ((x - problem.prior_mean) ** 2 * problem.prior_precision).sum()
    return float(squares.sum() + moved + away)


def _step(problem: Problem, point: Point, normal: QuadraticModel, damping: float) -> tuple[Array, Array]:
    x = point.x
    after = np.clip(x + _free_step(problem, point, normal, damping), 0.0, 1.0)
    starts = point.starts.copy()
    offset, gradient = normal.eliminated
    # Start states are damped like parameters: their full step can be too long however short that of the parameters is.
    starts[:, normal.free] += offset / (1 + damping) + gradient @ (after - x)
    return after, starts


def _free_step(problem: Problem, point: Point, normal: QuadraticModel, damping: float) -> Array:
    """The step of the parameters, ignoring all bounds but those that are active."""
    full = normal.curvature + np.diag(problem.prior_precision)
    x, gradient = point.x, normal.gradient
    # A parameter whose step would leave its active bound stays; the others move as if it were fixed.
    moving = ~(((x <= 0) & (gradient > 0)) | ((x >= 1) & (gradient < 0)))
    moving &= np.diag(full) > 1e-12 * max(np.diag(full).max(initial=0.0), 1e-300)
    step = np.zeros_like(x)
    if moving.any():
        small = full[np.ix_(moving, moving)]
        small = small + damping * np.diag(np.diag(small))
        step[moving] = -np.linalg.lstsq(small, gradient[moving], rcond=1e-14)[0]
    return step


def newton_decrement(problem: Problem, point: Point, normal: QuadraticModel) -> float:
    """The reduction of the cost that an undamped Gauss-Newton step inside the bounds promises, at least 0."""
    return max(0.0, _predicted_reduction(problem, point, normal, 0.0))


def _predicted_reduction(problem: Problem, point: Point, normal: QuadraticModel, damping: float) -> float:
    """The reduction of the cost by the next step under the quadratic model."""
    after, _ = _step(problem, point, normal, damping)
    step = after - point.x
    full = normal.curvature + np.diag(problem.prior_precision)
    return float(-2 * normal.gradient @ step - step @ full @ step)


def _with_longer_differences(problem: Problem, point: Point, normal: QuadraticModel) -> Point:
    """The point with a longer difference step, if derivatives over that step differ: then the cost is rough."""
    wider = replace(point, difference_step=min(5 * point.difference_step, MAX_DIFFERENCE_STEP))
    if wider.difference_step == point.difference_step:
        return point
    weight = np.sqrt(_weights(problem, point.residual))
    short, long = normal.jacobians[0] * weight, linearise(problem, wider).jacobians[0] * weight
    size, apart = ((part**2).sum(axis=(1, 2, 3)) for part in (long, short - long))
    return wider if (apart > 0.1 * size).any() else point


def _measured(shooter: Shooter, residuals: Array) -> Array:
    kept = residuals[..., shooter.windows.tangent.measured]
    return np.where(shooter.windows.inside[..., None], kept, 0.0)


def _weights(problem: Problem, residual: Array) -> Array:
    weight = np.broadcast_to(problem.scale**-2.0, residual.shape)
    if problem.robust > 0:
        share = np.nan_to_num(residual) / (problem.scale * problem.robust)
        weight = weight / np.sqrt(1.0 + share**2)
    return weight * np.isfinite(residual)
