"""Independent searches for the same parameters: from the scene's values, from given guesses, and from spread ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

import numpy as np
from scipy import stats

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.world import Array, Simulator, array_dataclass
from instep.tune.gates import (
    MAX_CORRELATED_ROWS,
    MAX_OVER_NOISE,
    MIN_AGREEING,
    SAME_COST,
    SAME_PLACE,
    SAME_PREDICTION,
    TuneOptions,
)

from .least_squares import MAX_DIFFERENCE_STEP, UNCERTAINTY_STEPS, FitStatus, cost_of, evaluate
from .shooting import Fit, Prior, ShootingOptions, fit, initial_value
from .uncertainty import UNIFORM, Identifiability, correlation_time, motion_for, vague_params
from .windows import Shooter, check_window_count, cut_windows

RESTART_RANGE = 0.5
"""Share of each range, around the first fit, in which the other searches begin."""
COARSE_WINDOWS, MOST_WINDOWS = 64, 512
"""Maximum number of windows of all searches but the last, and of that one if the options name no number."""
LEAST_ITERATIONS = 2
"""Iterations below which another search is not worth its time."""
FIRST_ITERATIONS = 12
"""Maximum number of iterations of the first fit, which assesses identifiability."""
MAX_RISE = 10.0
"""Rise of the cost, whose rows count about one each, above which a given value explains the recordings worse."""
CONTACT_WINDOWS, CONTACT_SPREAD = 120, 0.2
"""Maximum number of windows of a search for contact parameters, and its initial deviation as a share of the ranges."""
CONTACT_GENERATIONS = 70
"""Generations of such a search; a dozen parameters that begin a third of their ranges away need as many."""
MIN_CONTACT_WINDOWS, SEARCH_SHARE = 24, 0.7
"""Minimum number of windows of such a search, and the share of its time for generations; intervals take the rest."""
NARROW_SPREAD, SETTLED_SPREAD = 0.02, 1e-3
"""Standard deviation of a generation, as a share of the ranges, below which a search has converged, and ends."""
MIN_GENERATIONS = 20
"""Generations before a flat cost counts as convergence."""
FREE_BODY_DIRECTIONS = ("vx", "vy", "vz", "wx", "wy", "wz")
"""Label suffixes of the directions of a free body."""
LEAST_WEIGHT = 1e-2
"""Residuals over their scale below which a coordinate has no weight."""


class SearchMethod(Protocol):
    """One search for parameters: `fit`, or another with the same signature."""

    def __call__(
        self,
        sim: Simulator,
        episodes: Sequence[Episode],
        params: Sequence[Param],
        options: ShootingOptions | None = None,
        *,
        progress: Progress | None = None,
    ) -> Fit:
        """The best parameters, from the initial guess of the options."""
        ...


@array_dataclass
class FitTask:
    """The parameters to find, where searches begin, and which method searches."""

    sim: Simulator
    params: Sequence[Param]
    shooting: ShootingOptions
    guesses: tuple[Mapping[str, float], ...] = ()
    """Further initial guesses, beside that of the shooting options: direct estimates, or an earlier result."""
    scene_values: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values of the scene where the initial guess differs from them."""
    method: SearchMethod = fit
    """The search; a kind of robot may have its own."""
    hold_unseen: bool = False
    """Whether a broad prior holds all parameters; otherwise those without effect are fixed. An armature near zero has
    no effect here, but may have one at other values, which the intervals of the others must include."""
    most_searches: int | None = None
    """Maximum number of searches, where each begins with much work of its own."""
    given: Simulator | None = None
    """The scene as given, with which held-out recordings compare; by default `sim` at the scene's values."""
    full: Simulator | None = None
    """The simulator of held-out recordings, where `sim` leaves out contacts."""

    @property
    def before(self) -> dict[str, float]:
        """Values of the parameters before."""
        return {**self.shooting.initial, **self.scene_values}


@array_dataclass
class Searches:
    """The best of several searches, and how far they agree."""

    fit: Fit
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values at which unobservable parameters were held."""
    costs: tuple[float, ...] = ()
    """Costs of the searches that ended by themselves, under the same weights."""
    agreeing: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Parameters of the searches that agree with the best, in unit coordinates [searches, params]."""
    late: tuple[str, ...] = ()
    """Parameters that only the final intervals showed to be unidentifiable."""
    ended: FitStatus | None = None
    """What ended the searches early; None if nothing did."""
    explained: bool = False
    """Whether the best converged with residuals at the noise: no other search can be better, so none was run."""


def first_fit(task: FitTask, episodes: Sequence[Episode], progress: Progress) -> Fit:
    """Brief fits of all parameters over some of the windows from each guess; the best of them."""
    task = replace(task, shooting=_with_priors(task, task.params, None)) if task.hold_unseen else task
    method, brief = _method(task), _coarse(task.shooting)
    if method is not contact_fit:
        brief = replace(brief, iterations=min(FIRST_ITERATIONS, brief.iterations), guesses=min(2, brief.guesses))
    names = {param.address for param in task.params}
    guesses = [{}, *({n: v for n, v in guess.items() if n in names} for guess in task.guesses)]
    fits: list[Fit] = []
    for i, guess in enumerate(guesses):
        if fits and progress.ended:
            break
        part = progress.part(i / len(guesses), (i + 1) / len(guesses), of_time_left=1 / (len(guesses) - i))
        part.advance("first fit", 0.0)
        begun = replace(brief, initial={**brief.initial, **guess})
        fits.append(method(task.sim, episodes, task.params, begun, progress=part))
        if fits[-1].stopped:
            progress.stop()
    return fits[int(np.argmin(_costs(fits)))]


def search(
    task: FitTask, episodes: Sequence[Episode], first: Fit, weak: Identifiability, options: TuneOptions,
    progress: Progress,
) -> Searches:  # fmt: skip
    """Search from several guesses over some of the windows, then finish the best search over all of them.

    Unobservable parameters are fixed (or held by a prior, see `FitTask.hold_unseen`), confounded ones are held by a
    prior. If one search ends at the noise, the others are skipped. Interrupted or out of time, it returns the best so
    far.
    """
    if first.stopped or not _affords(progress, first, task.shooting):
        # The first fit estimated all parameters, so none was fixed.
        return Searches(first, ended=_ended(progress) or FitStatus.BUDGET_SPENT)
    unseen = () if task.hold_unseen else weak.unobservable
    fixed = fixed_values(first, unseen, task.before)
    kept = [param for param in first.params if param.address not in unseen]
    priors = _with_priors(task, first.params, None if task.hold_unseen else weak)
    shooting = _continued(priors, kept, first)
    sim = task.sim.tuned(fixed) if fixed else task.sim
    begun = replace(task, sim=sim, params=kept, shooting=shooting, method=_method(task))
    # A first fit is not repeated if it was complete, as for contact parameters, or converged.
    settled = begun.method is contact_fit or first.status is FitStatus.CONVERGED
    known = first if settled and not fixed and (task.hold_unseen or not shooting.priors) else None
    fits, whole = _searches(begun, episodes, known, options, progress.part(0.0, 0.6, of_time_left=0.6))
    if not fits:
        return Searches(first, ended=_ended(progress))
    costs = _costs(fits)
    # A search at the noise ended the others; one that stalled may fit that noise better.
    best = next(iter(_at_noise(fits, options)), fits[int(np.argmin(costs))])
    agreeing = [f.x for f, c, w in zip(fits, costs, whole, strict=True) if w and _agrees(f, c, best, min(costs))]
    agreeing = np.array(agreeing).reshape(-1, len(kept))
    best, finished = _finished(begun, episodes, best, progress.part(0.6, 0.9, of_time_left=0.7))
    cut = _ended(progress) or (None if finished else FitStatus.BUDGET_SPENT)
    ended = tuple(cost for cost, w in zip(costs, whole, strict=True) if w)
    at_noise = bool(_at_noise([best], options))
    best = best if at_noise else _settled(best, agreeing, len(ended))
    found = Searches(best, fixed, ended, agreeing, (), cut, at_noise)
    return found if task.hold_unseen else _without_vague(task, begun, episodes, found, progress.part(0.9, 1.0))


def fixed_values(found: Fit, names: Sequence[str], given: Mapping[str, float]) -> dict[str, float]:
    """Values of unobservable parameters: as given, or as fitted if the given value explains the data worse.

    A damping of a hundredth of what matters has no effect, so it is unobservable; its value before may have had one.
    """
    fixed: dict[str, float] = {}
    for i, param in enumerate(found.params):
        if param.address not in names or param.address not in given:
            continue
        x = found.x.copy()
        x[i] = float(np.clip(param.to_unit(given[param.address]), 0.0, 1.0))
        as_given = evaluate(found.problem, x[None], found.point.starts[None])[0]
        worse = as_given.cost > found.cost + MAX_RISE
        fixed[param.address] = found.settings[param.address] if worse else given[param.address]
    return fixed


def explained(found: Fit) -> bool:
    """Whether a fit converged, and its residuals are white and as small as the noise of the measurements.

    That noise is estimated from the recordings alone, from differences of high order.
    """
    if found.status is not FitStatus.CONVERGED:
        return False
    form, residual = found.windows.tangent, np.nan_to_num(found.point.residual)
    rows = max(1, int(found.windows.inside.sum()))
    size = np.sqrt((residual**2).sum(axis=(0, 1)) / rows * found.freedom_factor)
    counts = size > LEAST_WEIGHT * found.problem.scale
    quiet = size[counts] <= MAX_OVER_NOISE * found.windows.noise_q[form.measured][counts]
    return bool(quiet.all()) and correlation_time(residual / found.problem.scale) < MAX_CORRELATED_ROWS


def _at_noise(fits: Sequence[Fit], options: TuneOptions) -> list[Fit]:
    """The fits after which no other search is needed; none if there are too few searches to compare."""
    return [one for one in fits if explained(one)] if options.seeds >= MIN_AGREEING else []


def _method(task: FitTask) -> SearchMethod:
    """The method of the task, or that for contacts if all parameters act through impacts only."""
    kinds = {param.parts.kind for param in task.params}
    return contact_fit if "geom" in kinds and kinds <= {"geom", "body", "option"} else task.method


def _searches(
    task: FitTask, episodes: Sequence[Episode], known: Fit | None, options: TuneOptions, progress: Progress
) -> tuple[list[Fit], list[bool]]:
    """Fits from the first fit and from points around it, while there is time; and which ended by themselves.

    `known` is the first of them if it was run before.
    """
    coarse, fits, whole = _coarse(task.shooting), list[Fit](), list[bool]()
    total = min(options.seeds, task.most_searches or options.seeds)
    if known is not None:
        fits, whole = [known], [known.status in (FitStatus.CONVERGED, FitStatus.STALLED)]
    for seed in range(len(fits), total):
        if _at_noise(fits, options):
            break
        begun = replace(coarse, random_guesses=True, guess_range=RESTART_RANGE) if seed else coarse
        part = progress.part(seed / total, (seed + 1) / total, of_time_left=1 / (total - seed))
        if fits and not _affords(part, fits[-1], coarse):
            break
        part.advance(f"search {seed + 1} of {total}", 0.0)
        begun = replace(begun, seed=options.seed + seed)
        try:
            fits.append(task.method(task.sim, episodes, task.params, begun, progress=part))
        except KeyboardInterrupt:
            progress.stop()
            break
        by_itself = fits[-1].status in (FitStatus.CONVERGED, FitStatus.STALLED)
        whole.append(by_itself or not part.ended)
        if fits[-1].stopped:
            progress.stop()
        if progress.ended:
            break
    return fits, whole


def _agrees(one: Fit, cost: float, best: Fit, least: float) -> bool:
    """Whether a search ended where the best one did: with about its cost, its parameters, or its predictions."""
    if cost <= SAME_COST * least or (np.abs(one.x - best.x) <= SAME_PLACE).all():
        return True
    left, apart = best.point.residual, one.point.residual - best.point.residual
    sizes = [np.sqrt(np.mean(np.nan_to_num(part) ** 2, axis=(0, 1))) for part in (apart, left)]
    return bool((sizes[0] <= SAME_PREDICTION * sizes[1]).all())


def _finished(task: FitTask, episodes: Sequence[Episode], best: Fit, progress: Progress) -> tuple[Fit, bool]:
    """The best search continued over all windows, if it had only some of them or did not converge.

    And whether that is done; False if there was no time for it.
    """
    limit = task.shooting.limit
    some = len(best.windows) == COARSE_WINDOWS and (limit is None or limit > COARSE_WINDOWS)
    contact = task.method is contact_fit
    done = not (some or best.status is not FitStatus.CONVERGED)
    if done or contact or not _affords(progress, best, task.shooting):
        return best, done or contact
    progress.advance("last search", 0.0)
    begun = replace(task.shooting, initial=best.settings, guesses=1)
    try:
        again = task.method(task.sim, episodes, best.params, begun, progress=progress)
    except KeyboardInterrupt:
        progress.stop()
        return replace(best, status=FitStatus.STOPPED), False
    if again.stopped:
        progress.stop()
    no_better = not some and again.status is not FitStatus.CONVERGED and np.argmin(_costs([best, again])) == 0
    return best if no_better else again, True


def _settled(best: Fit, agreeing: Array, searches: int) -> Fit:
    """The best fit as converged if it stalled, but three searches from different guesses agree with it.

    Contact, stick-slip and motors at their limit make the cost rough, so that derivatives at its end promise more than
    any step gains. The scatter of the few searches then adds to the uncertainty. If most searches end elsewhere, the
    best is one of many local minima and has no interval.
    """
    if best.status is FitStatus.CONVERGED and searches >= MIN_AGREEING and 2 * len(agreeing) < searches:
        return replace(best, status=FitStatus.STALLED)
    if best.status is not FitStatus.STALLED or len(agreeing) < MIN_AGREEING:
        return best
    few = stats.t.ppf(0.975, len(agreeing) - 1) / stats.norm.ppf(0.975)
    scatter = np.diag(few**2 * agreeing.var(axis=0, ddof=1))
    return replace(best, status=FitStatus.CONVERGED, covariance=best.covariance + scatter)


def _without_vague(
    task: FitTask, begun: FitTask, episodes: Sequence[Episode], found: Searches, progress: Progress
) -> Searches:
    """The same without parameters whose final interval spans most of their range: they keep their given values."""
    vague = vague_params(found.fit, tuple(begun.shooting.priors))
    if not vague or not _affords(progress, found.fit, begun.shooting):
        return found
    kept = [param for param in found.fit.params if param.address not in vague]
    if not kept:
        raise BadInput(
            "None of the parameters is identifiable from these recordings: their intervals span most of their ranges. "
            f"{motion_for(vague)}"
        )
    fixed = {**found.fixed, **fixed_values(found.fit, vague, task.before)}
    shooting = replace(_continued(begun.shooting, kept, found.fit), guesses=1)
    progress.advance("last search without unidentifiable parameters", 0.0)
    again = begun.method(task.sim.tuned(fixed), episodes, kept, shooting, progress=progress)
    columns = [i for i, param in enumerate(found.fit.params) if param.address not in vague]
    return replace(found, fit=again, fixed=fixed, agreeing=found.agreeing[:, columns], late=vague)


def _with_priors(task: FitTask, params: Sequence[Param], weak: Identifiability | None) -> ShootingOptions:
    """The options with a Gaussian prior at the scene's value of each confounded parameter, or of all if None.

    Fixing them instead would bias the others, which would compensate for a wrong value.
    """
    priors = dict(task.shooting.priors)
    for param in params:
        held = weak is None or param.address in weak.confounded
        if held and param.address not in priors:
            span = np.log(param.high / param.low) if param.log else param.high - param.low
            priors[param.address] = Prior(initial_value(param, task.before), UNIFORM * float(span))
    return replace(task.shooting, priors=priors)


def _continued(options: ShootingOptions, params: Sequence[Param], first: Fit) -> ShootingOptions:
    """The options for the remaining parameters, beginning at an earlier fit."""
    names = {param.address for param in params}
    priors = {name: prior for name, prior in options.priors.items() if name in names}
    return replace(options, initial={n: v for n, v in first.settings.items() if n in names}, priors=priors)


def _coarse(options: ShootingOptions) -> ShootingOptions:
    """The same options with fewer windows."""
    return replace(options, limit=COARSE_WINDOWS if options.limit is None else min(options.limit, COARSE_WINDOWS))


def _affords(progress: Progress, before: Fit, options: ShootingOptions) -> bool:
    """Whether there is time for some iterations of another search over as many windows as the options allow."""
    some = len(before.windows) == COARSE_WINDOWS
    more = (options.limit or MOST_WINDOWS) / COARSE_WINDOWS if some else 1.0
    step = before.step * max(1.0, more)
    return not progress.ended and progress.left >= (LEAST_ITERATIONS + UNCERTAINTY_STEPS) * step


def _ended(progress: Progress) -> FitStatus | None:
    """What ended the searches early, if anything did."""
    if progress.interrupted:
        return FitStatus.STOPPED
    return FitStatus.BUDGET_SPENT if progress.out_of_time else None


def _costs(fits: Sequence[Fit]) -> list[float]:
    """Costs under the weights of the first fit, since each search scales residuals a little differently."""
    problem = fits[0].problem
    return [cost_of(problem, f.point.x, f.point.starts, f.point.residual) for f in fits]


def contact_fit(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Fit:
    """A search without derivatives, for parameters that act through impacts only, where the cost has steps."""
    options = options or ShootingOptions()
    settings, status = contact_search(sim, episodes, params, options, progress=progress)
    # Impacts make the cost rough: derivatives over short steps, and intervals from them, would mean nothing.
    settled = replace(
        options, initial=settings, iterations=0, guesses=1, random_guesses=False, difference_step=MAX_DIFFERENCE_STEP
    )
    return replace(fit(sim, episodes, params, settled, progress=progress), status=status)


def contact_search(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions,
    *,
    generations: int = CONTACT_GENERATIONS,
    progress: Progress | None = None,
) -> tuple[dict[str, float], FitStatus]:
    """The parameters with the least mean error of the predictions by CMA-ES, and how the search ended.

    A sum of squares would be dominated by windows that tumble differently after an impact; here each window counts
    alike. Residuals are scaled by the mean error of their kind at the initial guess, so that positions and rotations
    weigh alike. If time is short, windows are dropped rather than generations. Ctrl-C returns the best so far.
    """
    limit, progress = min(options.limit or CONTACT_WINDOWS, CONTACT_WINDOWS), progress or Progress()
    span = max(1, round(options.window / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, limit=limit)
    first = np.array([float(k.to_unit(initial_value(k, options.initial))) for k in params])
    began = progress.clock()
    residual = np.abs(np.nan_to_num(Shooter(sim, windows, tuple(params))(np.clip(first, 0.0, 1.0)[None])[0]))
    affordable = affordable_windows(len(windows), progress.clock() - began, len(params), SEARCH_SHARE * progress.left)
    labels, size = windows.tangent.labels, residual[windows.inside].mean(axis=0)
    kinds = np.array([label[:-1] if label[-2:] in FREE_BODY_DIRECTIONS else label for label in labels])
    scale = np.array([max(float(size[kinds == kind].mean()), 1e-9) for kind in kinds])[windows.tangent.measured]
    if affordable < len(windows):
        windows = cut_windows(sim, episodes, span=span, limit=affordable)
    check_window_count(windows)
    shooter, first = Shooter(sim, windows, tuple(params)), np.clip(first, 0.01, 0.99)
    best, least = first, float(_mean_errors(shooter, first[None], scale)[0])
    history, status = [least], FitStatus.BUDGET_SPENT
    seed = int(np.random.default_rng((options.seed, 0xC3A)).integers(2**31))
    plan = CmaSearch(spread=CONTACT_SPREAD, generations=generations, seed=seed)
    try:
        for found in cma_generations(lambda points: _mean_errors(shooter, points, scale), first, plan):
            if found.costs[found.best] < least:
                best, least = found.points[found.best], float(found.costs[found.best])
            history.append(least)
            progress.iterated(len(history) - 1, least, best)
            progress.advance(progress.stage or "search", len(history) / generations)
            if progress.ended:
                status = FitStatus.STOPPED if progress.interrupted else status
                break
            spread = float(found.points.std(axis=0).max())
            # Or the best cost fell by less than a hundredth over the last quarter of many generations.
            flat = len(history) >= MIN_GENERATIONS and least >= 0.99 * history[-1 - len(history) // 4]
            status = FitStatus.CONVERGED if spread < NARROW_SPREAD or flat else FitStatus.BUDGET_SPENT
            if spread < SETTLED_SPREAD:
                break
    except KeyboardInterrupt:
        status = FitStatus.STOPPED
    return {param.address: float(param.from_unit(best[i])) for i, param in enumerate(params)}, status


def affordable_windows(windows: int, seconds: float, params: int, left: float) -> int:
    """Windows over which all generations end in the time left [s], if one candidate takes some seconds over all."""
    candidates = CONTACT_GENERATIONS * (4 + int(3 * np.log(params)))
    most = left * windows / max(candidates * seconds, 1e-9)
    return windows if most > windows else max(min(MIN_CONTACT_WINDOWS, windows), int(most))


def _mean_errors(shooter: Shooter, points: Array, scale: Array) -> Array:
    """Mean over windows and rows of the scaled error of each candidate [candidates]; a divergence counts as ten."""
    residual = shooter(points)[..., shooter.windows.tangent.measured] / scale
    size = np.sqrt((residual**2).mean(axis=-1))
    inside = shooter.windows.inside
    each = np.where(inside, np.where(np.isfinite(size), size, 10.0), 0.0).sum(axis=-1) / inside.sum(axis=-1)
    return each.mean(axis=-1)
