"""Uncertainty and identifiability of parameters at the end of a search, and whether it converged.

If two parameters act alike, such as an inertia and an armature, a valley of constant cost leads through the optimum.
Dry friction and contact make trajectories a little rough; finite differences read the roughness as information, and
intervals would be narrow and wrong. Where parameters are known far better alone than together, simulations follow the
valley for some way: the information along it is what the cost says (`checked_curvature`).

A motor at its torque limit makes the cost rough along single parameters too. An interval is then widened until it holds
every place with a cost as low as the optimum's (`profiled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from instep.core.param import Address
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.tune.gates import MAX_INTERVAL_SHARE, MIN_RELATIVE_INFORMATION

from .least_squares import (
    NEGLIGIBLE,
    Descent,
    FitStatus,
    Point,
    Problem,
    QuadraticModel,
    evaluate,
    linearise,
    newton_decrement,
    quadratic_model,
    rough,
)

if TYPE_CHECKING:
    from .shooting import Fit

UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of a uniform prior over the bounds, in unit coordinates."""
MAX_DECREMENT, MAX_ROUGH_DECREMENT = 2e-4, 1e-2
"""Share of the cost that a full Gauss-Newton step may still promise where a search has converged, smooth or rough."""
STAIRCASE_STEP = 1e-2
"""Share of each range over which the roughness of the cost of an arm is sampled where its search stalled."""
MAX_STEP = 0.5
"""Or the length of that step per parameter, in standard deviations that count all rows as independent."""
MAX_CONFOUNDED = 0.05
"""Eigenvalue of the correlations of the curvature below which a direction is checked: deviations about five times as
large together as alone."""
PROBE_DEVIATIONS, PROBE_SPAN = 3.0, (0.01, 0.1)
"""How far a valley is followed: in standard deviations, and least and most as a share of the ranges."""
CORRECTIONS = 4
"""Steps back into the valley, with derivatives taken at the optimum."""
LEAST_RISE = 1e-8
"""Smallest share of the curvature that is left of a direction along which the cost does not rise."""
PROFILE_DEVIATIONS = (2.0, 5.0, 12.0, 30.0)
"""Where the cost is compared with that of the optimum, in standard deviations of a parameter to either side."""
MOTIONS = {
    "frictionloss": "dry friction shows in slow reversals",
    "dead_band": "backlash shows in slow reversals",
    "damping": "damping shows at high and at low speed",
    "armature": "armature and inertia show in fast accelerations",
    "delay": "a delay shows in fast changes of the command",
    "kp": "stiffness shows under load or in fast changes of the command",
    "kv": "servo damping shows in fast changes of the command",
    "gear": "the torque of a motor shows in accelerations under a known load",
    "bias": "an offset shows while holding still in varied poses",
    "mass": "masses and centres of mass show in varied poses and with a known payload",
    "friction": "friction of contacts shows while the object slides",
}
"""Which motion reveals a parameter, by the last part of its address."""
SAME_MOTION = {"com_x": "mass", "com_y": "mass", "com_z": "mass", "gravcomp": "mass", "gravity": "mass"}


def judged(
    problem: Problem, ended: Descent, widening: Array | None = None
) -> tuple[Point, Uncertainty, FitStatus]:  # fmt: skip
    """Where a search ended, how well the parameters are known there, and how it ended, given what derivatives promise.

    `widening` is that of `uncertainty`.
    """
    point = ended.point
    known = uncertainty(problem, point, widening)
    if problem.linearised and judged_status(ended, known.remaining) is FitStatus.STALLED:
        # A motor that flips between its limits makes the cost a staircase: derivatives promise what no step gains.
        point = replace(point, difference_step=STAIRCASE_STEP)
        known = uncertainty(problem, point, widening)
    return point, known, judged_status(ended, known.remaining)


def judged_status(ended: Descent, remaining: float) -> FitStatus:
    """How a search ended, given what derivatives at its end still promise (`uncertainty`)."""
    if ended.status is FitStatus.STOPPED:
        return FitStatus.STOPPED
    if remaining <= 1:
        return FitStatus.CONVERGED
    return FitStatus.STALLED if ended.status is FitStatus.CONVERGED else ended.status


@array_dataclass
class Uncertainty:
    """How well the parameters are known at the end of a search."""

    covariance: Array
    """Of the parameters in unit coordinates [parameters, parameters]."""
    information: Array
    """Fisher information of the data alone [parameters, parameters]."""
    remaining: float
    """Reduction of the cost by an undamped Gauss-Newton step, over what a converged search may leave: at most 1."""
    widening: Array
    """Standard deviations over those that derivatives give, 1 where the cost is smooth [parameters]."""


def uncertainty(problem: Problem, point: Point, widening: Array | None = None) -> Uncertainty:
    """How well the parameters are known at a point.

    Directions in which parameters are confounded are checked by simulation, see `weak_directions`; so are the intervals
    themselves, unless how much wider they must be is known from the same recordings (`widening`).

    Rows of one window are correlated, so a window counts as one observation: the sandwich estimator, or, where windows
    are few, the usual one with the correlation time of the residuals. Parameters and start states both count as
    degrees of freedom.
    """
    normal = linearise(problem, point, both_sides=True)
    prior = np.diag(problem.prior_precision)
    residual = np.nan_to_num(point.residual) / problem.scale
    rows = max(1, int(problem.shooter.windows.inside.sum()) * problem.weighing)
    taken = len(point.x) + len(point.starts) * problem.free_starts
    variance = float((residual**2).sum()) / max(1, rows - taken, rows / 2)
    curvature = checked_curvature(problem, point, normal, variance)
    information = curvature / max(variance, 1e-300) / correlation_time(residual)
    n, params = normal.scores.shape
    inverse = _inverse(curvature + prior)
    covariance = inverse * variance * correlation_time(residual)
    if by_scatter(n, params):
        safe = np.where(np.isfinite(inverse), inverse, 0.0)
        scatter = np.diag(safe @ (normal.scores.T @ normal.scores * n / (n - params)) @ safe)
        covariance = _with_diagonal(covariance, np.maximum(np.diag(covariance), scatter))
    if widening is None:
        widening = profiled(problem, point, normal, covariance, variance * correlation_time(residual))
    covariance = _with_diagonal(covariance, widening**2 * np.diag(covariance))
    allowed = (MAX_ROUGH_DECREMENT if rough(point) else MAX_DECREMENT) * point.cost
    allowed = max(allowed, MAX_STEP**2 * params * variance, NEGLIGIBLE)
    return Uncertainty(covariance, information, newton_decrement(problem, point, normal) / allowed, widening)


def by_scatter(windows: int, params: int) -> bool:
    """Whether there are enough windows to estimate the covariance from the scatter between them."""
    return windows >= 5 * params


def correlation_time(residual: Array) -> float:
    """The correlation time of the residuals, in rows: how many rows of a window count as one."""
    span = residual.shape[1]
    if span < 4:
        return float(span)
    power = float((residual**2).mean())
    if power == 0:
        return 1.0
    total = 1.0
    for lag in range(1, span - 1):
        rho = float((residual[:, lag:] * residual[:, :-lag]).mean()) / power
        if rho < 0.05:
            break
        total += 2 * rho * (1 - lag / span)
    return min(total, float(span))


def _inverse(matrix: Array) -> Array:
    """The inverse, infinite along directions without information."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    blind = values <= 1e-12 * max(float(values.max(initial=0.0)), 1e-300)
    if not blind.any():
        return (vectors / values) @ vectors.T
    safe = (vectors[:, ~blind] / values[~blind]) @ vectors[:, ~blind].T
    touched = (np.abs(vectors[:, blind]) > 1e-3).any(axis=1)
    safe[touched, touched] = np.inf
    return safe


def _with_diagonal(matrix: Array, diagonal: Array) -> Array:
    """The matrix with the same correlations and another diagonal."""
    old = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    ratio = np.sqrt(np.maximum(diagonal, 0)) / np.where(np.isfinite(old), old, 1.0)
    with np.errstate(invalid="ignore"):
        out = matrix * np.outer(ratio, ratio)
    out[np.diag_indices_from(out)] = diagonal
    return out


def checked_curvature(problem: Problem, point: Point, model: QuadraticModel, variance: float) -> Array:
    """The curvature of a quadratic model, along weak directions as simulations say, never larger [params, params].

    Derivatives from linearised equations of motion are exact: of two parameters that act alike, they are alike.
    """
    if problem.linearised:
        return model.curvature
    size = np.sqrt(np.maximum(np.diag(model.curvature), 0.0))
    known = size > 1e-12 * max(float(size.max(initial=0.0)), 1e-300)
    if known.sum() < 2:
        return model.curvature
    scale = size[known]
    values, vectors = np.linalg.eigh(model.curvature[np.ix_(known, known)] / np.outer(scale, scale))
    weak = np.flatnonzero(values < MAX_CONFOUNDED)
    if not len(weak):
        return model.curvature
    lowered = values.copy()
    for i in weak:
        direction = np.zeros(len(size))
        direction[known] = vectors[:, i] / scale
        share = _rise_share(problem, point, model, direction / np.linalg.norm(direction), variance)
        if share < 0.25:  # rise of the cost over the predicted one below which derivatives are not believed
            lowered[i] = max(values[i], LEAST_RISE) * max(share, LEAST_RISE)
    curvature = model.curvature.copy()
    curvature[np.ix_(known, known)] = (vectors * lowered) @ vectors.T * np.outer(scale, scale)
    return curvature


def profiled(problem: Problem, point: Point, model: QuadraticModel, covariance: Array, unit: float) -> Array:
    """By how much intervals must be wider to hold every place that explains the recordings as the optimum does.

    Two deviations away the cost should have risen by four times `unit`. Where it has not risen by one, that place is
    one deviation away at most, however narrow derivatives made the interval. The other parameters and the start states
    follow as the quadratic model says.
    """
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    xs, away = list[Array](), list[tuple[int, float]]()
    for i in np.flatnonzero(np.isfinite(sigma) & (sigma > 0)):
        direction = np.where(np.isfinite(covariance[i]), covariance[i], 0.0) / covariance[i, i]
        for length in (sign * k * sigma[i] for k in PROFILE_DEVIATIONS for sign in (1.0, -1.0)):
            x = point.x + length * direction
            if abs(length) <= 0.25 and ((x >= 0) & (x <= 1)).all():  # farthest such point, as a share of the range
                xs.append(x)
                away.append((int(i), abs(float(length))))
    factors = np.ones(len(sigma))
    if not xs or problem.linearised:
        return factors
    starts = np.stack([_moved(point.starts, model, x - point.x) for x in xs])
    for (i, length), found in zip(away, evaluate(problem, np.array(xs), starts), strict=True):
        if found.cost < point.cost + unit:
            factors[i] = max(factors[i], length / sigma[i])
    return factors


def _rise_share(problem: Problem, point: Point, model: QuadraticModel, direction: Array, variance: float) -> float:
    """How much the cost rises some way along a valley, over the rise that the model predicts."""
    predicted = max(float(direction @ model.curvature @ direction), 1e-300)
    step = float(np.clip(PROBE_DEVIATIONS * np.sqrt(variance / predicted), *PROBE_SPAN))
    # How far a step may lead until a bound, either way.
    moving = direction != 0
    rooms = [
        float((np.where(d > 0, 1 - point.x, point.x)[moving] / np.abs(d[moving])).min())
        for d in (direction, -direction)
    ]
    both = min(rooms) >= PROBE_SPAN[0]
    length = min(step, *rooms) if both else min(step, max(rooms))
    if length < 1e-4:  # shortest way that is followed, as a share of the ranges; bounds may leave no more
        return 1.0  # in a corner of the ranges no way leads along the valley
    signs = [0.0, 1.0, -1.0] if both else [0.0, 1.0 if rooms[0] > rooms[1] else -1.0]
    costs = _valley_costs(problem, point, model, direction, length * np.array(signs))
    if not np.isfinite(costs).all():
        return 1.0
    return max(float(costs[1:].mean() - costs[0]), 0.0) / (predicted * length**2)


def _valley_costs(problem: Problem, point: Point, model: QuadraticModel, direction: Array, steps: Array) -> Array:
    """The least cost of the data found beside points along a direction [steps], the component along it held."""
    across = np.linalg.svd(direction[None])[2][1:].T
    data = replace(problem, prior_sigma=np.full(len(point.x), np.inf))
    xs = point.x + steps[:, None] * direction
    starts = np.stack([_moved(point.starts, model, step * direction) for step in steps])
    least = np.full(len(steps), np.inf)
    for _ in range(CORRECTIONS):
        found = evaluate(data, xs, starts)
        least = np.minimum(least, [at.cost for at in found])
        for i, at in enumerate(found):
            if np.isfinite(at.cost):
                near = quadratic_model(data, at, model.jacobians)
                normal, pull = across.T @ near.curvature @ across, -across.T @ near.gradient
                back = np.clip(at.x + across @ np.linalg.lstsq(normal, pull, rcond=1e-12)[0], 0.0, 1.0) - at.x
                xs[i], starts[i] = at.x + back, _moved(at.starts, near, back)
                starts[i][:, near.free] += near.eliminated[0]
    return least


def _moved(starts: Array, model: QuadraticModel, step: Array) -> Array:
    """Start states that follow a step of the parameters."""
    out = starts.copy()
    out[:, model.free] += model.eliminated[1] @ step
    return out


@frozen_dataclass
class WeakDirection:
    """A combination of parameters about which the data hold less information than the prior."""

    information: float
    """Information of the data over that of the prior."""
    parts: tuple[tuple[str, float], ...]
    """Parameters and their shares, the largest first."""

    @property
    def message(self) -> str:
        """The direction in words."""
        names = [name for name, _ in self.parts]
        if len(names) == 1:
            return f"the recordings hold no information about {names[0]!r}"
        signs = {np.sign(share) for _, share in self.parts}
        how = "rise together" if len(signs) == 1 else "trade against each other"
        listed = ", ".join(f"{share:+.2f} {name}" for name, share in self.parts)
        return f"these {how} without an effect on the recordings: {listed}"


@frozen_dataclass
class Identifiability:
    """Which parameters can be identified, and which must be fixed or held by a prior so that the rest can."""

    weak: tuple[WeakDirection, ...]
    """Directions in which the data say less than the prior, weakest first."""
    unidentifiable: tuple[str, ...]
    """The smallest subset to fix so that all others are identifiable."""
    identifiable: tuple[str, ...]
    """Parameters that are identifiable once those are fixed."""
    unobservable: tuple[str, ...] = ()
    """Of the unidentifiable ones those about which the data hold no information at all."""

    @property
    def confounded(self) -> tuple[str, ...]:
        """Of the unidentifiable ones those identifiable only in combination with others."""
        return tuple(name for name in self.unidentifiable if name not in self.unobservable)

    def without(self, names: Sequence[str]) -> Identifiability:
        """The same with some parameters that later turned out to be unobservable."""
        known = set(names)
        return Identifiability(
            self.weak,
            (*self.unidentifiable, *(name for name in names if name not in self.unidentifiable)),
            tuple(name for name in self.identifiable if name not in known),
            (*self.unobservable, *(name for name in names if name not in self.unobservable)),
        )


def vague_params(found: Fit, confounded: Sequence[str] = ()) -> tuple[str, ...]:
    """Parameters whose 95 % interval spans most of their range, so that the recordings say almost nothing of them.

    Those confounded with others, which a prior holds, count as known here: their own width is that of the prior.
    """
    names = [param.address for param in found.params]
    held = [i for i, name in enumerate(names) if name in confounded]
    rest = [i for i in range(len(names)) if i not in held]
    if found.status is not FitStatus.CONVERGED or not rest:
        return ()
    variance = np.diag(found.covariance)[rest]
    if held and np.isfinite(found.covariance).all():
        cross = found.covariance[np.ix_(rest, held)]
        explained = cross @ np.linalg.pinv(found.covariance[np.ix_(held, held)]) @ cross.T
        variance = np.maximum(variance - np.diag(explained), 0.0)
    x, half = found.x[rest], found.deviations(0.95) * np.sqrt(variance)
    width = np.minimum(x + half, 1.0) - np.maximum(x - half, 0.0)
    return tuple(names[i] for i, w in zip(rest, width, strict=True) if w > MAX_INTERVAL_SHARE)


def motion_for(names: Sequence[str]) -> str:
    """Which motion would reveal some parameters, and the command that designs it; empty for no parameters."""
    if not names:
        return ""
    fields = [Address.parse(name.partition("@")[0]).field for name in names]
    fields = ["armature" if field.startswith("inertia") else SAME_MOTION.get(field, field) for field in fields]
    reasons = list(dict.fromkeys(MOTIONS[field] for field in fields if field in MOTIONS))
    words = f"To identify them, record another motion ({'; '.join(reasons)})" if reasons else "Record another motion"
    listed = " ".join(repr(name) if "*" in name else name for name in names[:6])
    return f"{words}; design one with: instep excite SCENE --params {listed}"


def assess_fit(found: Fit, prior_sigma: Array | None = None) -> Identifiability:
    """Identifiability of the parameters of a fit from F = S J^T Sigma^-1 J S, with S the prior standard deviations."""
    sigma = np.minimum(UNIFORM, prior_sigma) if prior_sigma is not None else np.full(len(found.params), UNIFORM)
    return assess(found.information * np.outer(sigma, sigma), [param.address for param in found.params])


def assess(information: Array, names: Sequence[str]) -> Identifiability:
    """Identifiability from a scaled information matrix: fix parameters until no weak direction is left."""
    strongest = float(np.linalg.eigvalsh(information).max(initial=0.0))
    threshold = max(1.0, MIN_RELATIVE_INFORMATION * strongest)
    weak = directions(information, names, threshold)
    kept = list(range(len(names)))
    frozen: list[int] = []
    while kept:
        values, vectors = np.linalg.eigh(information[np.ix_(kept, kept)])
        if values[0] >= threshold:
            break
        # The largest component, the later one if two are about equal.
        size = np.abs(vectors[:, 0])
        frozen.append(kept.pop(int(np.flatnonzero(size > 0.9 * size.max())[-1])))
    unobservable = tuple(names[i] for i in sorted(frozen) if information[i, i] < threshold)
    return Identifiability(weak, tuple(names[i] for i in sorted(frozen)), tuple(names[i] for i in kept), unobservable)


def directions(information: Array, names: Sequence[str], threshold: float) -> tuple[WeakDirection, ...]:
    """The directions with less information than the threshold, weakest first."""
    values, vectors = np.linalg.eigh(information)
    out: list[WeakDirection] = []
    for value, vector in zip(values, vectors.T, strict=True):
        if value >= threshold:
            break
        signed = vector * np.sign(vector[np.argmax(np.abs(vector))])
        order = [int(i) for i in np.argsort(-np.abs(signed)) if abs(signed[i]) > 0.2]
        out.append(WeakDirection(float(value), tuple((names[i], float(signed[i])) for i in order)))
    return tuple(out)
