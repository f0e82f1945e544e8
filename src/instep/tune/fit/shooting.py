"""Identification of parameters by multiple shooting: estimates and their uncertainty.

Along a delay the cost has jumps: an engine applies a command at the physics step after its delay. A delay is therefore
scanned before a search, and stepped over the next jumps after it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
from scipy import stats
from scipy.stats import qmc

from instep.core.episode import Episode
from instep.core.errors import BadInput, Diverged, UnknownName
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.statistics import Estimate
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass, options_dataclass

from .least_squares import (
    DIFFERENCE_STEP,
    NO_WEIGHT,
    UNCERTAINTY_STEPS,
    Descent,
    FitStatus,
    Interrupted,
    Point,
    Problem,
    cost_of,
    derivative_candidates,
    descend,
    evaluate,
    linearise,
)
from .uncertainty import by_scatter, correlation_time, judged
from .windows import Shooter, Windows, check_window_count, cut_windows, predictable_windows

MAX_REWEIGHTS, SAME_SCALE = 4, 0.8
"""How often a search goes on under new weights, and the ratio of residuals above which the old ones are good enough."""
MIN_CORRELATED_ROWS = 2.0
"""Correlation time of residuals, in rows, below which they count as independent."""
LEAST_NOISE = 1e-6
"""Share of the motion of a coordinate that is taken for its noise where recordings have none."""
MAX_DELAY_STEPS = 3
"""How often a search that ended is continued on the other side of a jump of the cost along a delay."""
SCAN_WINDOWS = 16
"""Most windows of a scan before a search."""
SCAN_PERIODS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0)
"""Delays that are scanned, in control periods."""
STEP_PERIODS = (-1.0, -0.5, -0.25, -0.1, -0.03, 0.03, 0.1, 0.25, 0.5, 1.0)
"""Changes of a delay that are tried after a search, in control periods."""
SUBSTEPS = (1, 2, 4, 5, 10)
"""Physics steps per control period at whose multiples, a kink of the cost, a delay is tried too."""
MIN_GAIN = 1e-3
"""Share of the cost that a changed delay must save."""


@frozen_dataclass
class Prior:
    """A Gaussian prior of a parameter."""

    value: float
    spread: float
    """Standard deviation; a ratio (0.3 is about 30 %) for a param that spans decades, else in the param's unit."""


@options_dataclass
class ShootingOptions:
    """Options of a multiple-shooting fit; the defaults suit smooth problems of up to thirty parameters."""

    window: float = 1.0
    """Length of a window [s]."""
    stride: float | None = None
    """Time between starts of windows [s]; the window's length where None."""
    skip: float | None = None
    """Rows left out at the beginning of each recording [s]; where None, the upper bound of a delay to be identified,
    since the commands before the first row are unknown."""
    settle: float = 0.0
    """Start of each window that does not count [s], where the error of its start state dies away by itself."""
    limit: int | None = 512
    """Most windows used, evenly spaced; all where None."""
    initial: Mapping[str, float] = field(default_factory=dict[str, float])
    """Where the first search begins, by address; the middle of the range where none is given."""
    guesses: int = 3
    """Searches: one from `initial`, the rest from the best of many points spread evenly (Sobol)."""
    random_guesses: bool = False
    """Whether every search begins at the best of the Sobol points, and none at `initial`."""
    guess_range: float = 1.0
    """Share of each range, around `initial`, that the Sobol points cover; all of it where 1."""
    fixed_start: bool = False
    """Whether start states of windows are taken as measured, rather than estimated within their noise."""
    drop_unpredictable: bool = False
    """Whether rows are left out whose prediction is dominated by noise of the start state (an upright pendulum)."""
    priors: Mapping[str, Prior] = field(default_factory=dict[str, Prior])
    """Priors by address."""
    scale: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scale of the residuals by coordinate; estimated from the data where none is given."""
    local: bool = False
    """Whether derivatives take a parameter of a joint or its actuator to move that joint alone, which needs far fewer
    simulations for arms with high gear ratios; the cost itself neglects nothing."""
    moves: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """For `local`: by joint or actuator (`actuator.grip`) the coordinates that move with it, where they are not that of
    its own name."""
    linearised: bool = False
    """Whether derivatives come from the linearised equations of motion of an arm, which are exact for motors that move
    each other, for a fraction of the simulations of finite differences. Delays are then not scanned."""
    robust: float = 3.0
    """Residuals beyond this many scales count linearly; 0 for plain squares."""
    difference_step: float = DIFFERENCE_STEP
    """Step of finite differences, as a share of the ranges; longer where the cost is known to be rough."""
    iterations: int = 40
    """Most iterations of one search."""
    tolerance: float = 1e-4
    """Relative change of the cost below which a search has converged."""
    seed: int = 0
    """Seed of the Sobol points."""


@array_dataclass
class Fit:
    """Estimated parameters, their uncertainty, and the residuals that are left."""

    params: tuple[Param, ...]
    problem: Problem
    """The least-squares problem that was solved."""
    point: Point
    """The best point, with its residuals and start states."""
    covariance: Array
    """Of the parameters in unit coordinates [parameters, parameters], from the windows' own scatter."""
    information: Array
    """Fisher information of the data alone, correlated rows counted once [parameters, parameters]."""
    worlds: int
    """Windows simulated altogether."""
    seconds: float
    """Wall time."""
    seed: int = 0
    status: FitStatus = FitStatus.CONVERGED
    """How the search ended; there are intervals only where it converged."""
    widening: Array = field(default_factory=lambda: np.ones(()))
    """Standard deviations over those that derivatives give, 1 where the cost is smooth [parameters]."""
    step: float = 0.0
    """Longest iteration, by the clock of its progress [s]."""

    @property
    def stopped(self) -> bool:
        """Whether the search was interrupted by hand; the values are the best until then."""
        return self.status is FitStatus.STOPPED

    @property
    def x(self) -> Array:
        """The best values in unit coordinates [parameters]."""
        return self.point.x

    @property
    def cost(self) -> float:
        """The cost of the best point."""
        return self.point.cost

    @property
    def windows(self) -> Windows:
        """The windows that were fitted."""
        return self.problem.shooter.windows

    @property
    def settings(self) -> dict[str, float]:
        """The best values by address."""
        return {param.address: float(param.from_unit(self.x[i])) for i, param in enumerate(self.params)}

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The best values with their 95 % intervals."""
        return {name: self.interval(name, 0.95) for name in self.settings}

    def interval(self, address: str, level: float = 0.9) -> Estimate:
        """A parameter's value with its interval at a level, cut off at the parameter's bounds.

        The ends are NaN unless the search converged, and where the value lies on a bound: elsewhere than at a minimum
        the curvature says nothing.
        """
        index = [param.address for param in self.params].index(address)
        n, param = len(self.windows), self.params[index]
        if self.status is not FitStatus.CONVERGED or address in self.at_bounds:
            return Estimate(float(param.from_unit(self.x[index])), np.nan, np.nan, n, param.unit)
        half = self.deviations(level) * np.sqrt(self.covariance[index, index])
        ends = np.clip(self.x[index] + np.array([-half, half]), 0.0, 1.0) if np.isfinite(half) else np.array([0.0, 1.0])
        low, high = sorted(float(e) for e in param.from_unit(ends))
        return Estimate(float(param.from_unit(self.x[index])), low, high, n, param.unit)

    def deviations(self, level: float) -> float:
        """Half the width of an interval at a level, in standard deviations, by Student's t distribution."""
        return float(stats.t.ppf(0.5 + level / 2, self.degrees_of_freedom))

    @property
    def degrees_of_freedom(self) -> float:
        """Observations behind the covariance less the parameters, at least 1.

        Windows where there are enough of them for the scatter between them; else rows over their correlation time,
        less start states.
        """
        n, params = len(self.windows), len(self.params)
        if by_scatter(n, params):
            return float(n - params)
        residual = np.nan_to_num(self.point.residual) / self.problem.scale
        rows = int(self.windows.inside.sum()) * self.problem.weighing
        taken = params + n * self.problem.free_starts
        return max(1.0, max(rows - taken, rows / 2) / correlation_time(residual) - params)

    @property
    def freedom_factor(self) -> float:
        """Rows over the degrees of freedom left by parameters and start states; at most 2."""
        rows = max(int(self.windows.inside.sum()) * self.problem.weighing, 1 + len(self.params))
        taken = len(self.params) + len(self.windows) * self.problem.free_starts
        return rows / max(rows - taken, rows / 2)

    @property
    def at_bounds(self) -> list[str]:
        """Parameters that ended on a bound of their range."""
        return [k.address for k, x in zip(self.params, self.x, strict=True) if min(x, 1 - x) < 1e-6]

    @property
    def rms(self) -> dict[str, float]:
        """Root mean square residual over the windows, by coordinate."""
        form = self.windows.tangent
        names = form.measured_labels
        count = max(1, int(self.windows.inside.sum()))
        return dict(zip(names, np.sqrt((self.point.residual**2).sum(axis=(0, 1)) / count).tolist(), strict=True))


def fit(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Fit:
    """Find the parameters with which the simulator best predicts the recordings, window by window.

    Every candidate setting runs over every window in one native call per control interval; nothing is recompiled. An
    interrupt (Ctrl-C) or the end of the time ends the search and returns the best point found so far.
    """
    options = options or ShootingOptions()
    _check(params, options)
    began = time.perf_counter()
    dt = sim.spec.dt
    span = max(1, round(options.window / dt))
    stride = None if options.stride is None else max(1, round(options.stride / dt))
    delays = [param.high for param in params if param.parts.field == "delay"]
    skip = options.skip if options.skip is not None else max(delays, default=0.0)
    windows = cut_windows(sim, episodes, span=span, stride=stride, skip=round(skip / dt), limit=options.limit)
    check_window_count(windows)
    if options.settle > 0:
        counted = windows.inside.copy()
        counted[:, : round(options.settle / dt)] = False
        windows = replace(windows, inside=counted)
    if options.drop_unpredictable:
        windows = predictable_windows(sim, windows)
    shooter = Shooter(sim, windows, tuple(params))
    progress = progress or Progress()
    best, problem = _search(shooter, options, progress)
    point, known, status = judged(problem, best)
    return Fit(
        tuple(params), problem, point, known.covariance, known.information, shooter.worlds,
        time.perf_counter() - began, options.seed, status, known.widening, progress.step,
    )  # fmt: skip


def _search(shooter: Shooter, options: ShootingOptions, progress: Progress) -> tuple[Descent, Problem]:
    """Where the best search ended, and the problem under its final weights."""
    # A search can stall on a bound, so its guess is moved inside.
    given = [float(k.to_unit(initial_value(k, options.initial))) for k in shooter.params]
    given = np.clip(np.array(given), 0.01, 0.99)
    problem = _problem(shooter, options, np.ones(int(shooter.windows.tangent.measured.sum())))
    begun = progress.clock()
    points = _candidates(problem, given, options)
    # An iteration simulates at least as many candidates as its derivatives need.
    progress.stepped(derivative_candidates(problem) * (progress.clock() - begun) / _tried(options))
    scale, residual = _scale(shooter, options, points[0]), np.nan_to_num(points[0].residual)
    problem = replace(problem, scale=scale, rows_per_observation=correlation_time(residual / scale))
    if problem.contacts:
        # Far from the truth the cost of contacts is rough, and start states that move freely smooth it.
        problem = replace(problem, rows_per_observation=1.0)
    ended: list[Point] = points[:1]
    status = FitStatus.STOPPED
    try:
        # Where there are several searches each is short, and only the best is finished.
        brief, loose = (max(4, options.iterations // 4), 10.0) if options.guesses > 1 else (options.iterations, 1.0)
        ended = [_reweighted(problem, p) for p in ended]
        for point in points[: options.guesses]:
            begun = _reweighted(problem, point)
            begun = begun if problem.linearised else with_scanned_delay(problem, begun)
            ended.append(descend(problem, begun, brief, loose * options.tolerance, progress).point)
        ended.sort(key=lambda p: p.cost)
        # The scale of the residuals is known only now: finish the best search under the final weights.
        last = Descent(ended[0], FitStatus.BUDGET_SPENT)
        if progress.affords(2 + UNCERTAINTY_STEPS):
            problem = _reweighed_problem(problem, ended[0], options)
            last = descend(problem, _reweighted(problem, ended[0]), options.iterations, options.tolerance, progress)
        for _ in range(MAX_REWEIGHTS):
            if last.status is FitStatus.BUDGET_SPENT or not progress.affords(1 + UNCERTAINTY_STEPS):
                break
            again = _reweighed_problem(problem, last.point, options)
            as_many = again.rows_per_observation > SAME_SCALE * problem.rows_per_observation
            if as_many and (again.scale > SAME_SCALE * problem.scale).all():  # residuals weigh about as much as before
                break
            problem = again
            last = descend(problem, _reweighted(problem, last.point), options.iterations, options.tolerance, progress)
        for _ in range(0 if problem.linearised else MAX_DELAY_STEPS):
            if not progress.affords(1 + UNCERTAINTY_STEPS):
                break
            better = with_stepped_delay(problem, last.point)
            if better is last.point or progress.ended:
                break
            last = descend(problem, better, options.iterations, options.tolerance, progress)
        ended, status = [last.point, *ended[1:]], last.status
    except KeyboardInterrupt as stop:
        ended += [stop.point] if isinstance(stop, Interrupted) else []
        ended = sorted((_reweighted(problem, p) for p in ended), key=lambda p: p.cost)
    return Descent(_reweighted(problem, ended[0]), status), problem


def _tried(options: ShootingOptions) -> int:
    """Points whose cost is looked at before the first search."""
    return 1 + 8 * (options.guesses - 1 + options.random_guesses)


def _candidates(problem: Problem, given: Array, options: ShootingOptions) -> list[Point]:
    """The given start, then the Sobol points within the bounds by their cost."""
    many = _tried(options) - 1
    points_of = qmc.Sobol(len(given), rng=np.random.default_rng((options.seed, 0x50B01)))
    spread = points_of.random_base2(max(many - 1, 0).bit_length())  # a power of two, of which `many` are used
    middle = np.clip(given, options.guess_range / 2, 1 - options.guess_range / 2)
    spread = middle + options.guess_range * (spread - 0.5)
    points = evaluate(problem, np.concatenate([given[None], spread[:many]]))
    points = [replace(point, difference_step=options.difference_step) for point in points]
    if not np.isfinite([p.cost for p in points]).any():
        raise Diverged(
            f"All {len(points)} settings tried diverged within {options.window:g} s; use shorter windows, narrower "
            "bounds or a start that does not diverge."
        )
    others = sorted((p for p in points[1:] if np.isfinite(p.cost)), key=lambda p: p.cost)
    if options.random_guesses and others:
        return others
    first = points[0] if np.isfinite(points[0].cost) else others[0]
    return [first, *others]


def _reweighted(problem: Problem, point: Point) -> Point:
    """The same point under other weights."""
    return replace(point, cost=cost_of(problem, point.x, point.starts, point.residual))


def _problem(shooter: Shooter, options: ShootingOptions, scale: Array) -> Problem:
    windows, params = shooter.windows, shooter.params
    motion = np.abs(windows.tangent.minus(windows.target, windows.q[:, None])).max(axis=(0, 1))
    noise = np.concatenate([windows.noise_q, windows.noise_v])
    # A start state without noise is not estimated.
    moves = noise > LEAST_NOISE * np.concatenate([motion, motion / shooter.sim.spec.dt])
    # Nothing but their noise would hold the start states of bodies of which no coordinate has weight.
    labels = windows.tangent.labels
    ignored = {label for label in labels if options.scale.get(label, 0.0) >= NO_WEIGHT}
    counting = {label.rpartition(".")[0] for label in labels if label not in ignored}
    free = [not (x in ignored and "." in x and x.rpartition(".")[0] not in counting) for x in labels]
    moves &= np.tile(windows.tangent.measured & np.array(free), 2)
    moves &= not options.fixed_start
    mean, sigma = np.full(len(params), 0.5), np.full(len(params), np.inf)
    for i, param in enumerate(params):
        if param.address in options.priors:
            prior = options.priors[param.address]
            mean[i] = param.to_unit(prior.value)
            span = np.log(param.high / param.low) if param.log else param.high - param.low
            sigma[i] = prior.spread / span
    affected = _affected(params, windows, options.moves) if options.local else None
    contacts = len(windows.tangent.quat_q) > 0
    start = np.where(moves, noise, 0.0)
    return Problem(shooter, scale, start, mean, sigma, options.robust, affected, contacts, options.linearised)


def _affected(params: Sequence[Param], windows: Windows, moves: Mapping[str, Sequence[str]]) -> tuple[Array, Array]:
    """A joint's or actuator's parameter moves the coordinate of that name, or those named; any other moves all."""
    form = windows.tangent
    names = np.array(form.labels)[form.measured]
    affected = np.ones((len(params), len(names)), bool)
    for i, param in enumerate(params):
        at = param.parts
        moved = np.isin(names, moves.get(f"{at.kind}.{at.name}", (at.name,)))
        if at.kind in ("joint", "actuator") and moved.any():
            affected[i] = moved
    return affected, np.tile(np.array(form.labels)[:, None] == names[None], (2, 1))


def _scale(shooter: Shooter, options: ShootingOptions, point: Point) -> Array:
    """Scale of the residuals per channel: their root mean square, outliers clipped, never below the noise."""
    form = shooter.windows.tangent
    names = form.measured_labels
    for name in options.scale:
        if name not in names:
            raise UnknownName("coordinate", name, names)
    count = max(1, int(shooter.windows.inside.sum()))
    size = np.sqrt(np.nansum(point.residual**2, axis=(0, 1)) / count)
    for _ in range(4 if options.robust else 0):
        size = np.sqrt(np.nansum(np.minimum(point.residual**2, (3 * size) ** 2), axis=(0, 1)) / count)
    motion = np.abs(form.minus(shooter.windows.target, shooter.windows.q[:, None])).max(axis=(0, 1))[form.measured]
    floor = np.maximum(shooter.windows.noise_q[form.measured], np.maximum(LEAST_NOISE * motion, 1e-12))
    size = np.maximum(size, floor)
    return np.array([options.scale.get(name, float(s)) for name, s in zip(names, size, strict=True)])


def _reweighed_problem(problem: Problem, point: Point, options: ShootingOptions) -> Problem:
    """The problem with the scale of the residuals at a point, and start states as uncertain as their shifts there.

    Velocities are often derived from positions, and are wrong by more than their noise where the motion is fast. Held
    to it, they would leave large residuals, which weigh less than they should, and bias delays and friction.
    """
    shift = np.sqrt((point.starts**2).mean(axis=0))
    sigma = np.where(problem.sigma_start > 0, np.maximum(problem.sigma_start, shift), 0.0)
    again = replace(problem, sigma_start=sigma, scale=_scale(problem.shooter, options, point), rows_per_observation=1.0)
    return replace(again, rows_per_observation=_correlated_rows(again, point))


def _correlated_rows(problem: Problem, point: Point) -> float:
    """The correlation time, in rows, of what residuals keep where start states are free within their noise.

    Errors of start states leave residuals that are alike over many rows too; those a fit explains by start states.
    """
    residual = np.nan_to_num(point.residual)
    rows = correlation_time(residual / problem.scale)
    if rows < MIN_CORRELATED_ROWS or not problem.sigma_start.any():
        return rows
    normal = linearise(problem, point)
    moved = np.einsum("fnsc,nf->nsc", normal.jacobians[1], normal.eliminated[0])
    return correlation_time((residual + moved) / problem.scale)


def initial_value(param: Param, given: Mapping[str, float]) -> float:
    """The given start of a parameter, or the middle of its range."""
    return given.get(param.address, float(param.from_unit(0.5)))


def _check(params: Sequence[Param], options: ShootingOptions) -> None:
    names = [param.address for param in params]
    if not names:
        raise BadInput("Identification needs at least one parameter, and none was given.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"The parameter {twice!r} was given twice; give it once.")
    for given in (options.initial, options.priors):
        for name in given:
            if name not in names:
                raise UnknownName("parameter among those to fit", name, names)
    if options.window <= 0 or options.guesses < 1:
        raise BadInput(
            f"A window must be longer than 0 s and there must be at least one start, not {options.window:g} s and "
            f"{options.guesses}."
        )


def with_scanned_delay(problem: Problem, point: Point) -> Point:
    """The point with the best of many delays, the same for all delays that are sought; itself where it is best."""
    at = _delays(problem)
    if not at:
        return point
    values = np.array(SCAN_PERIODS) * problem.shooter.sim.spec.dt
    xs = np.repeat(point.x[None], len(values), axis=0)
    for i in at:
        xs[:, i] = np.clip(problem.shooter.params[i].to_unit(values), 0.01, 0.99)
    shooter, n = problem.shooter, len(problem.shooter.windows)
    index = np.unique(np.linspace(0, n - 1, min(n, SCAN_WINDOWS)).round().astype(int))
    few = replace(problem, shooter=replace(shooter, windows=shooter.windows.subset(index)))
    costs = np.array([p.cost for p in evaluate(few, np.concatenate([point.x[None], xs]))])
    best = int(np.nanargmin(np.where(np.isfinite(costs), costs, np.inf)))
    return point if best == 0 else evaluate(problem, xs[best - 1 : best])[0]


def with_stepped_delay(problem: Problem, point: Point) -> Point:
    """The point with one delay changed so that the cost is lower, or the point itself where no change lowers it."""
    at = _delays(problem)
    if not at:
        return point
    dt, xs = problem.shooter.sim.spec.dt, list[Array]()
    for i in at:
        param = problem.shooter.params[i]
        delay = float(param.from_unit(point.x[i]))
        multiples = [dt / n * round(delay * n / dt) for n in SUBSTEPS]
        values = np.array([*(delay + dt * np.array(STEP_PERIODS)), *multiples])
        changed = np.repeat(point.x[None], len(values), axis=0)
        changed[:, i] = np.clip(param.to_unit(values), 0.0, 1.0)
        xs.append(changed)
    tried = np.concatenate(xs)
    # Start states were estimated with the old delay, so each is also tried as measured.
    starts = np.repeat(point.starts[None], len(tried), axis=0)
    found = evaluate(problem, np.concatenate([tried, tried]), np.concatenate([starts, np.zeros_like(starts)]))
    best = min(found, key=lambda p: p.cost if np.isfinite(p.cost) else np.inf)
    better = best.cost < (1 - MIN_GAIN) * point.cost
    return replace(best, difference_step=point.difference_step) if better else point


def _delays(problem: Problem) -> list[int]:
    return [i for i, param in enumerate(problem.shooter.params) if param.parts.field == "delay"]
