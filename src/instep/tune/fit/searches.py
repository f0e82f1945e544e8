"""Independent searches for the same parameters: from the scene's values, from given points, and from spread ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

import numpy as np
from scipy import stats

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.world import Array, Simulator, array_dataclass
from instep.tune.posterior.inference import freedom_factor

from .contact_search import contact_search
from .identifiability import UNIFORM, Identifiability, motion_for, vague_params
from .least_squares import MAX_DIFFERENCE_STEP, UNCERTAINTY_STEPS, FitStatus, cost_of, evaluate
from .shooting import Fit, Prior, ShootingOptions, fit, start_value
from .uncertainty import correlation_time

RESTART_RANGE = 0.5
"""Share of each range, around the first fit, in which the other searches begin."""
COARSE_WINDOWS, MOST_WINDOWS = 64, 512
"""Most windows of all searches but the last, and of that one where the options name no number."""
LEAST_ITERATIONS = 2
"""Iterations below which another search is not worth its time."""
FIRST_ITERATIONS = 12
"""Most iterations of the first fit, which assesses identifiability."""
MIN_AGREEING = 3
"""Searches from different starts that must end in the same place where derivatives do not show that one converged."""
SAME_COST, SAME_PLACE = 1.01, 0.01
"""Searches that end within this factor of the best cost, or within this share of each range, agree with the best."""
MAX_RISE = 10.0
"""Rise of the cost, whose rows count about one each, from which on a given value explains the recordings worse."""
MAX_OVER_NOISE, MAX_CORRELATION = 1.25, 2.0
"""Residuals over the noise of the measurements, and their correlation time in rows, up to which nothing is left over
that other values could explain."""
LEAST_WEIGHT = 1e-2
"""Residuals over their scale below which a coordinate is taken to have no weight."""
SAME_PREDICTION = 1.0
"""So do those whose predictions differ from those of the best by at most this share of what the best leaves over."""


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
        """The best parameters, from the start that the options give."""
        ...


@array_dataclass
class SearchPlan:
    """How many searches there are, how they search, and where they begin."""

    shooting: ShootingOptions
    seeds: int = 4
    """Searches whose results are compared."""
    starts: tuple[Mapping[str, float], ...] = ()
    """Further points from which searches begin, beside the start of the shooting options."""
    given: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values of the scene, which parameters keep that turn out to be unidentifiable."""
    seed: int = 0
    method: SearchMethod = fit
    hold_unseen: bool = False
    """Whether a broad prior holds all parameters, rather than that those without effect are fixed: one without effect
    here, an armature near zero, may have one at other values, which the intervals of the others must know."""


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
    """What ended the searches before they were done; None where they are."""

    explained: bool = False
    """Whether the best converged and leaves nothing over but noise: no other search can be better, so none was done."""


def first_fit(
    sim: Simulator, episodes: Sequence[Episode], params: Sequence[Param], options: SearchPlan, progress: Progress
) -> Fit:
    """Brief fits of all parameters over some of the windows from each given start; the best of them."""
    options = replace(options, shooting=_with_priors(options, params, None)) if options.hold_unseen else options
    method, brief = _method(params, options), _coarse(options.shooting)
    if method is not contact_fit:
        brief = replace(brief, iterations=min(FIRST_ITERATIONS, brief.iterations), starts=min(2, brief.starts))
    names = {param.address for param in params}
    begun = [{}, *({n: v for n, v in start.items() if n in names} for start in options.starts)]
    fits: list[Fit] = []
    for i, start in enumerate(begun):
        if fits and progress.ended:
            break
        part = progress.part(i / len(begun), (i + 1) / len(begun), of_time_left=1 / (len(begun) - i))
        part.advance("first fit", 0.0)
        fits.append(method(sim, episodes, params, replace(brief, start={**brief.start, **start}), progress=part))
        if fits[-1].stopped:
            progress.stop()
    return fits[int(np.argmin(_costs(fits)))]


def search(
    sim: Simulator, episodes: Sequence[Episode], first: Fit, weak: Identifiability, options: SearchPlan,
    progress: Progress,
) -> Searches:  # fmt: skip
    """Search from several starts over some of the windows, then finish the best search over all of them.

    Parameters about which the recordings say nothing are held at their given values, or by a prior where the options
    say so, and those that are confounded by a prior. Where one search leaves nothing over but noise, there are no
    others. Interrupted or out of time, the best so far is kept.
    """
    if first.stopped or not _affords(progress, first, options.shooting):
        # The first fit estimated all parameters, so none was fixed.
        return Searches(first, ended=_ended(progress) or FitStatus.BUDGET_SPENT)
    unseen = () if options.hold_unseen else weak.unobservable
    fixed = fixed_values(first, unseen, options.given)
    kept = [param for param in first.params if param.address not in unseen]
    priors = _with_priors(options, first.params, None if options.hold_unseen else weak)
    shooting = _continued(priors, kept, first)
    begun = replace(options, shooting=shooting, method=_method(first.params, options))
    tuned = sim.tuned(fixed) if fixed else sim
    # A first fit that is whole, as that of contact parameters, or that converged need not be done twice.
    settled = begun.method is contact_fit or first.status is FitStatus.CONVERGED
    known = first if settled and not fixed and (options.hold_unseen or not shooting.priors) else None
    fits, whole = _searches(tuned, episodes, known, kept, begun, progress.part(0.0, 0.6, of_time_left=0.6))
    if not fits:
        return Searches(first, ended=_ended(progress))
    costs = _costs(fits)
    # One that leaves nothing over but noise ended the searches; another that stalled may fit that noise better.
    best = next(iter(_at_noise(fits, options)), fits[int(np.argmin(costs))])
    agreeing = [f.x for f, c, w in zip(fits, costs, whole, strict=True) if w and _agrees(f, c, best, min(costs))]
    best, finished = _finished(tuned, episodes, best, begun, progress.part(0.6, 0.9, of_time_left=0.7))
    cut = _ended(progress) or (None if finished else FitStatus.BUDGET_SPENT)
    ended = tuple(cost for cost, w in zip(costs, whole, strict=True) if w)
    at_noise = bool(_at_noise([best], options))
    best = best if at_noise else _settled(best, np.array(agreeing).reshape(-1, len(kept)), len(ended))
    found = Searches(best, fixed, ended, np.array(agreeing).reshape(-1, len(kept)), (), cut, at_noise)
    return found if options.hold_unseen else _without_vague(sim, episodes, found, begun, progress.part(0.9, 1.0))


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
    found = contact_search(sim, episodes, params, options, progress=progress)
    # Impacts make the cost rough: derivatives over short steps, and intervals from them, would mean nothing.
    settled = replace(
        options, start=found.settings, iterations=0, starts=1, random_starts=False, difference_step=MAX_DIFFERENCE_STEP
    )
    return replace(fit(sim, episodes, params, settled, progress=progress), status=found.status)


def fixed_values(found: Fit, names: Sequence[str], given: Mapping[str, float]) -> dict[str, float]:
    """Values of unobservable parameters: as given, or as fitted where the given value explains the data worse.

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
    form, residual = found.windows.tangent, np.nan_to_num(found.point.residual)
    if found.status is not FitStatus.CONVERGED:
        return False
    size = np.sqrt((residual**2).sum(axis=(0, 1)) / max(1, int(found.windows.inside.sum())) * freedom_factor(found))
    counts = size > LEAST_WEIGHT * found.problem.scale
    quiet = size[counts] <= MAX_OVER_NOISE * found.windows.noise_q[form.measured][counts]
    return bool(quiet.all()) and correlation_time(residual / found.problem.scale) < MAX_CORRELATION


def _at_noise(fits: Sequence[Fit], options: SearchPlan) -> list[Fit]:
    """Those fits after which no other search is needed; none where so few are asked for that none can be compared."""
    return [one for one in fits if explained(one)] if options.seeds >= MIN_AGREEING else []


def _method(params: Sequence[Param], options: SearchPlan) -> SearchMethod:
    """The method that was given, or that for contacts where all parameters act through impacts only."""
    kinds = {param.parts.kind for param in params}
    return contact_fit if "geom" in kinds and kinds <= {"geom", "body", "option"} else options.method


def _searches(
    sim: Simulator,
    episodes: Sequence[Episode],
    known: Fit | None,
    kept: Sequence[Param],
    options: SearchPlan,
    progress: Progress,
) -> tuple[list[Fit], list[bool]]:
    """Fits from the first fit and from points around it, while there is time; and which ended by themselves.

    `known` is the first of them where it was done before.
    """
    coarse, fits, whole = _coarse(options.shooting), list[Fit](), list[bool]()
    if known is not None:
        fits, whole = [known], [known.status in (FitStatus.CONVERGED, FitStatus.STALLED)]
    for seed in range(len(fits), options.seeds):
        if _at_noise(fits, options):
            break
        begun = replace(coarse, random_starts=True, start_range=RESTART_RANGE) if seed else coarse
        share = 1 / (options.seeds - seed)
        part = progress.part(seed / options.seeds, (seed + 1) / options.seeds, of_time_left=share)
        if fits and not _affords(part, fits[-1], coarse):
            break
        part.advance(f"search {seed + 1} of {options.seeds}", 0.0)
        try:
            fits.append(options.method(sim, episodes, kept, replace(begun, seed=options.seed + seed), progress=part))
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


def _finished(
    sim: Simulator, episodes: Sequence[Episode], best: Fit, options: SearchPlan, progress: Progress
) -> tuple[Fit, bool]:
    """The best search continued over all windows, where it had only some of them or did not converge.

    And whether that was done; False where there was no time for it.
    """
    limit = options.shooting.limit
    some = len(best.windows) == COARSE_WINDOWS and (limit is None or limit > COARSE_WINDOWS)
    contact = options.method is contact_fit
    done = not (some or best.status is not FitStatus.CONVERGED)
    if done or contact or not _affords(progress, best, options.shooting):
        return best, done or contact
    progress.advance("last search", 0.0)
    begun = replace(options.shooting, start=best.settings, starts=1)
    try:
        again = options.method(sim, episodes, best.params, begun, progress=progress)
    except KeyboardInterrupt:
        progress.stop()
        return replace(best, status=FitStatus.STOPPED), False
    if again.stopped:
        progress.stop()
    no_better = not some and again.status is not FitStatus.CONVERGED and np.argmin(_costs([best, again])) == 0
    return best if no_better else again, True


def _settled(best: Fit, agreeing: Array, searches: int) -> Fit:
    """The best fit as converged where it stalled, but three searches from different starts agree with it.

    Contact, stick-slip and motors at their limit make the cost rough, so that derivatives at its end promise more than
    any step gains. How far the searches end apart, few as they are, then adds to the uncertainty. Where most searches
    end elsewhere the best is one of many local minima, and has no interval.
    """
    if best.status is FitStatus.CONVERGED and searches >= MIN_AGREEING and 2 * len(agreeing) < searches:
        return replace(best, status=FitStatus.STALLED)
    if best.status is not FitStatus.STALLED or len(agreeing) < MIN_AGREEING:
        return best
    few = stats.t.ppf(0.975, len(agreeing) - 1) / stats.norm.ppf(0.975)
    scatter = np.diag(few**2 * agreeing.var(axis=0, ddof=1))
    return replace(best, status=FitStatus.CONVERGED, covariance=best.covariance + scatter)


def _without_vague(
    sim: Simulator, episodes: Sequence[Episode], found: Searches, options: SearchPlan, progress: Progress
) -> Searches:
    """The same without parameters whose final interval spans most of their range: they keep their given values."""
    vague = vague_params(found.fit, tuple(options.shooting.priors))
    if not vague or not _affords(progress, found.fit, options.shooting):
        return found
    kept = [param for param in found.fit.params if param.address not in vague]
    if not kept:
        raise BadInput(
            "None of the parameters is identifiable from these recordings: their intervals span most of their ranges. "
            f"{motion_for(vague)}"
        )
    fixed = {**found.fixed, **fixed_values(found.fit, vague, options.given)}
    shooting = replace(_continued(options.shooting, kept, found.fit), starts=1)
    progress.advance("last search without unidentifiable parameters", 0.0)
    again = options.method(sim.tuned(fixed), episodes, kept, shooting, progress=progress)
    columns = [i for i, param in enumerate(found.fit.params) if param.address not in vague]
    return replace(found, fit=again, fixed=fixed, agreeing=found.agreeing[:, columns], late=vague)


def _with_priors(options: SearchPlan, params: Sequence[Param], weak: Identifiability | None) -> ShootingOptions:
    """The options with a Gaussian prior at the scene's value of each confounded parameter, or of all where None.

    Fixing them instead would bias the others, which would compensate for a wrong value.
    """
    priors = dict(options.shooting.priors)
    for param in params:
        held = weak is None or param.address in weak.confounded
        if held and param.address not in priors:
            span = np.log(param.high / param.low) if param.log else param.high - param.low
            priors[param.address] = Prior(start_value(param, options.given), UNIFORM * float(span))
    return replace(options.shooting, priors=priors)


def _continued(options: ShootingOptions, params: Sequence[Param], first: Fit) -> ShootingOptions:
    """The options for the remaining parameters, starting at an earlier fit."""
    names = {param.address for param in params}
    priors = {name: prior for name, prior in options.priors.items() if name in names}
    return replace(options, start={n: v for n, v in first.settings.items() if n in names}, priors=priors)


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
