"""The gates of an identification, in order, each with a verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Simulator

from .cma_search import CmaOptions, CmaResult, search
from .fit import Fit, Prior, ShootingOptions, correlation_time, fit
from .held_out import HeldOutComparison, compare
from .identifiability import UNIFORM, Identifiability, identifiability
from .least_squares import Watch, cost_of, evaluate
from .parameter_recovery import recover_parameters, some
from .recording_checks import recording_problems, recording_warnings
from .shooting import Shooter
from .windows import cut

SEARCHED = 120
"""Windows with contact that are searched over."""
GENERATIONS = 70
"""Of such a search; a dozen parameters that begin a third of their ranges away need as many."""
DIRECTIONS = ("vx", "vy", "vz", "wx", "wy", "wz")
"""Endings of the directions of a free body."""
AROUND = 0.5
"""Share of each range, around the end of the first look, in which the other searches begin."""
GOLDEN = (np.sqrt(5) - 1) / 2
"""The golden section."""
COARSE = 64
"""Windows used while searching; the best search is finished over all of them."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """One check of a run."""

    name: str
    passed: bool
    words: str
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """What a run found, and whether it may be trusted."""

    fit: Fit
    gates: tuple[GateResult, ...]
    weak: Identifiability
    comparison: HeldOutComparison
    start: Mapping[str, float]
    """Where the parameters stood before."""
    left: Mapping[str, float] = field(default_factory=dict[str, float])
    """Where the parameters that could not be told were left."""

    @property
    def passed(self) -> bool:
        """Whether the settings may be promoted: all gates but the advice on residual colour were passed."""
        return all(gate.passed for gate in self.gates if gate.name != "whiteness")

    @property
    def settings(self) -> dict[str, float]:
        """The identified values, and those of the parameters that could not be told."""
        return {**self.left, **self.fit.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """How much work each gate does."""

    seeds: int = 4
    """Independent searches whose answers must agree."""
    draws: int = 10
    """Planted truths in the recovery gate; 0 leaves it out, and says so."""
    seed: int = 0


def tune(
    sim: Simulator,
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    params: Sequence[Param],
    options: ShootingOptions,
    gates: GateOptions | None = None,
    *,
    watch: Watch | None = None,
) -> Tuned:
    """Run all gates on recordings to fit and recordings held out; nothing is solved before the data are checked."""
    gates = gates or GateOptions()
    fitted, held_out = episodes
    passed = [_telemetry([*fitted, *held_out])]
    given, stopped = options.start, False
    if _contact_alone(params):
        looked = contact_search(sim, fitted, params, options, watch=watch)
        options, gates, stopped = from_there(options, looked), replace(gates, seeds=1), looked.stopped
    look = replace(_coarse(options), iterations=min(12, options.iterations), starts=min(2, options.starts))
    first = fit(sim, fitted, params, look, watch=watch)
    first = replace(first, stopped=first.stopped or stopped)
    weak = identifiability(first, first.problem.prior_sigma)
    passed.append(_identifiability(weak))
    if not weak.identifiable:
        raise BadInput(
            f"None of the {len(params)} parameters can be identified from these recordings: {weak.weak[0].words}."
        )
    kept = [param for param in params if param.address not in weak.unobservable]
    frozen = _left(first, weak.unobservable, options)
    held = sim.tuned(frozen) if frozen else sim
    begun = _only(_tied(options, params, weak), kept, first)
    solved = None if first.stopped else _solve(held, fitted, kept, begun, gates, watch)
    if solved is None:
        # The first look turned all parameters, so none was left.
        words, frozen = "Stopped by hand; the best settings of the first look are kept.", dict[str, float]()
        solved = replace(first, stopped=True), GateResult("solve", False, words)
    found, agreed = solved
    passed.append(agreed)
    passed.append(_recovery(found, gates))
    passed.append(_whiteness(found))
    # Against the scene as it was given: parameters that cannot be told may have been moved as well.
    before = {param.address: given.get(param.address, float(param.from_unit(0.5))) for param in params}
    after = {**frozen, **found.settings}
    comparison = compare(sim, held_out, before, after, window=options.window, seed=gates.seed)
    passed.append(_held_out(comparison))
    return Tuned(found, tuple(passed), weak, comparison, dict(given), frozen)


def _contact_alone(params: Sequence[Param]) -> bool:
    """Whether what is sought shows in impacts only, where the cost has steps and no slope to follow."""
    kinds = {param.parts.kind for param in params}
    return "geom" in kinds and kinds <= {"geom", "body", "option"}


def contact_search(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions,
    *,
    watch: Watch | None = None,
) -> CmaResult:
    """Where CMA-ES gets to from the start of the options.

    An error counts by how large errors of its kind are at the start, so that places and turns weigh alike.
    """
    limit = min(options.limit or SEARCHED, SEARCHED)
    windows = cut(sim, episodes, span=max(1, round(options.window / sim.spec.dt)), limit=limit)
    first = np.array([[float(k.to_unit(options.start.get(k.address, float(k.from_unit(0.5))))) for k in params]])
    left = np.abs(np.nan_to_num(Shooter(sim, windows, tuple(params))(np.clip(first, 0.0, 1.0))[0]))
    size = left[windows.inside].mean(axis=0)
    kinds = [label[:-1] if label[-2:] in DIRECTIONS else label for label in windows.tangent.labels]
    scale = {
        label: max(float(np.mean([s for s, other in zip(size, kinds, strict=True) if other == kind])), 1e-9)
        for label, kind in zip(windows.tangent.labels, kinds, strict=True)
    }
    look = CmaOptions(
        window=options.window,
        limit=limit,
        start=dict(options.start),
        scale=scale,
        generations=GENERATIONS,
        seed=options.seed,
    )
    return search(sim, episodes, params, look, watch=watch)


def from_there(options: ShootingOptions, found: CmaResult) -> ShootingOptions:
    """The options with the start that a search found, and no steps to follow from there."""
    return replace(options, start={**options.start, **found.settings}, iterations=0)


def _tied(options: ShootingOptions, params: Sequence[Param], weak: Identifiability) -> ShootingOptions:
    """The options with a prior for parameters that are told only together with others: near where they were.

    Held fast they would spoil the rest: what they were may be wrong, and others would make up for it.
    """
    priors = dict(options.priors)
    for param in params:
        if param.address in weak.confounded and param.address not in priors:
            span = np.log(param.high / param.low) if param.log else param.high - param.low
            value = options.start.get(param.address, float(param.from_unit(0.5)))
            priors[param.address] = Prior(value, UNIFORM * float(span))
    return replace(options, priors=priors)


def _left(first: Fit, names: Sequence[str], options: ShootingOptions) -> dict[str, float]:
    """Where params that cannot be told are left: where they were, or, if that explains the data worse, where they went.

    A damping of a hundredth of what matters has no effect, so it cannot be told; but what it was before may have had.
    """
    left: dict[str, float] = {}
    for i, param in enumerate(first.params):
        if param.address not in names or param.address not in options.start:
            continue
        x = first.x.copy()
        x[i] = float(np.clip(param.to_unit(options.start[param.address]), 0.0, 1.0))
        back = evaluate(first.problem, x[None], first.point.starts[None])[0]
        worse = back.cost > 1.02 * first.cost
        left[param.address] = first.settings[param.address] if worse else options.start[param.address]
    return left


def _telemetry(episodes: Sequence[Episode]) -> GateResult:
    wrong = recording_problems(episodes)
    if wrong:
        raise BadInput(wrong[0] if len(wrong) == 1 else f"{wrong[0]} There are {len(wrong) - 1} more such faults.")
    rows = sum(len(e) for e in episodes)
    noted = recording_warnings(episodes)
    return GateResult(
        "telemetry", True, " ".join([f"{len(episodes)} recordings, {rows} rows, clocks and order fine.", *noted])
    )


def _identifiability(weak: Identifiability) -> GateResult:
    if not weak.weak:
        return GateResult(
            "identifiability", True, f"All {len(weak.identifiable)} parameters are identifiable from these recordings."
        )
    said = "; ".join(direction.words for direction in weak.weak[:4])
    more = f" (and {len(weak.weak) - 4} more directions)" if len(weak.weak) > 4 else ""
    left = f" Left where they were: {', '.join(weak.unobservable)}." if weak.unobservable else ""
    tied = ""
    if weak.confounded:
        tied = f" Hardly identifiable, so a prior holds them near where they were: {', '.join(weak.confounded)}."
    return GateResult("identifiability", bool(weak.identifiable), f"{said}{more}.{left}{tied}")


def _solve(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions,
    gates: GateOptions,
    watch: Watch | None,
) -> tuple[Fit, GateResult] | None:
    """Search from several places over some of the windows, then finish the best search over all of them.

    None where it was stopped before the first search had anything to show.
    """
    fits, stopped = _searches(sim, episodes, params, (_coarse(options), gates), watch)
    if not fits:
        return None
    # Weights differ a little between the searches, so all are judged under those of the first.
    problem = fits[0].problem
    costs = [cost_of(problem, f.point.x, f.point.starts, f.point.residual) for f in fits]
    ranked = sorted(range(len(fits)), key=lambda i: costs[i])
    best = fits[ranked[0]]
    # Fits within one per cent of the best cost count as found; their spread is the doubt of the search.
    good = np.stack([fits[i].x for i in ranked if costs[i] <= 1.01 * costs[ranked[0]]])
    spread = float(np.ptp(good, axis=0).max()) if len(good) > 1 else 0.0
    apart = [k.address for k, s in zip(params, np.ptp(good, axis=0), strict=True) if s > 0.05]
    words = (
        f"{len(good)} of {len(fits)} searches agree to within 1 % of the cost; params differ by at most {spread:.1%} "
        "of their range"
    )
    words += f" ({', '.join(apart)} by more than 5 %)." if apart else "."
    try:
        if not stopped and len(best.windows) < (options.limit or len(best.windows) + 1):
            best = fit(sim, episodes, params, replace(options, start=best.settings, starts=1), watch=watch)
    except KeyboardInterrupt:
        stopped = True
    if stopped or best.stopped:
        best = replace(best, stopped=True)
        words = f"Stopped by hand; the best of {len(fits)} searches is kept. {words}"
    return best, GateResult("solve", len(good) * 2 >= len(fits) and not best.stopped, words)


def _searches(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    how: tuple[ShootingOptions, GateOptions],
    watch: Watch | None,
) -> tuple[list[Fit], bool]:
    """The first search begins where the look ended, the others around it; also whether they were stopped by hand."""
    options, gates = how
    fits: list[Fit] = []
    for seed in range(gates.seeds):
        begun = replace(options, random_starts=True, start_range=AROUND) if seed else options
        try:
            fits.append(fit(sim, episodes, params, replace(begun, seed=gates.seed + seed), watch=watch))
        except KeyboardInterrupt:
            return fits, True
        if fits[-1].stopped:
            return fits, True
    return fits, False


def _coarse(options: ShootingOptions) -> ShootingOptions:
    """The same search over fewer windows, for all but the last one."""
    return replace(options, limit=COARSE if options.limit is None else min(options.limit, COARSE))


def _recovery(found: Fit, gates: GateOptions) -> GateResult:
    if gates.draws == 0 or found.stopped:
        return GateResult("recovery", True, "Recovery of planted truths was not checked.")
    try:
        result = recover_parameters(some(found, COARSE), gates.draws, seed=gates.seed)
    except KeyboardInterrupt:
        return GateResult("recovery", False, "Stopped by hand before planted truths were recovered.")
    total = wilson(int(result.inside.sum()), result.inside.size)
    worst = min(result.share, key=lambda name: result.share[name])
    words = (
        f"Of {len(result.inside)} planted truths on the same excitation, {total.value:.0%} lay inside their 90 % "
        f"intervals; the worst parameter is {worst} with {result.share[worst]:.0%}."
    )
    return GateResult("recovery", total.value >= 0.85, words, {"recovered": total})


def _whiteness(found: Fit) -> GateResult:
    residual = found.point.residual / found.problem.scale
    rows = correlation_time(residual)
    dt = found.problem.shooter.sim.spec.dt
    bounds = found.at_bounds
    white = rows < 2.0 and not bounds
    words = "Residuals are white." if rows < 2.0 else (
        f"Residuals keep their sign for about {1e3 * rows * dt:.0f} ms: something is not in the model, and intervals "
        "count a window as one observation."
    )  # fmt: skip
    if bounds:
        words += f" On a bound of their range: {', '.join(bounds)}."
    return GateResult(
        "whiteness", white, words, {"correlation time": Estimate(rows * dt, rows * dt, rows * dt, 1, "s")}
    )


def _held_out(result: HeldOutComparison) -> GateResult:
    gain = result.improvement
    words = (
        f"On held-out recordings the error fell by {gain.value:.1%} (95 % interval {gain.low:.1%} to {gain.high:.1%}, "
        f"{gain.n} blocks)."
    )
    if result.lost:
        words += f" {result.lost} windows diverged and were left out."
    if not result.better:
        words += " At least 5 %, with an interval above 0, was expected."
    return GateResult(
        "held-out", result.better, words, {"improvement": gain, "before": result.before, "after": result.after}
    )


def _only(options: ShootingOptions, params: Sequence[Param], first: Fit) -> ShootingOptions:
    """The options for the parameters that are left, starting where the first look ended."""
    names = {param.address for param in params}
    priors = {name: prior for name, prior in options.priors.items() if name in names}
    return replace(options, start={n: v for n, v in first.settings.items() if n in names}, priors=priors)


def split(episodes: Sequence[Episode], share: float = 1 / 3) -> tuple[list[Episode], list[Episode]]:
    """Recordings to fit and recordings held out: whole runs, one in three; the end of it where there is one alone.

    Recordings often stand in the order of a plan, motion by motion at each gain, and every third of them would then be
    the same motion each time. Steps of the golden section share no period with any plan.
    """
    if not 0 < share < 1:
        raise BadInput(f"The share of recordings held out must lie between 0 and 1, not {share:g}.")
    if len(episodes) == 1:
        cut = int(len(episodes[0]) * (1 - share))
        return [episodes[0].rows(stop=cut)], [episodes[0].rows(start=cut)]
    count = max(1, int(len(episodes) * share))
    picked = np.zeros(len(episodes), bool)
    picked[np.argsort(np.arange(1, len(episodes) + 1) * GOLDEN % 1.0)[:count]] = True
    return (
        [e for e, out in zip(episodes, picked, strict=True) if not out],
        [e for e, out in zip(episodes, picked, strict=True) if out],
    )
