"""Gated identification: check recordings, fit, and check the fit; each gate has a verdict and a message.

The gates in order: telemetry, identifiability, solve (independent searches agree), recovery (of planted parameters),
whiteness (of residuals, advice only) and held-out (error on recordings that were not fitted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Simulator

from .cma import contact_search
from .held_out import HeldOutComparison, compare
from .identifiability import UNIFORM, Identifiability, assess_fit
from .least_squares import Watch, cost_of, evaluate
from .parameter_recovery import recover_parameters, subset
from .shooting import Fit, Prior, ShootingOptions, correlation_time, fit, start_value

RESTART_RANGE = 0.5
"""Share of each range, around the first fit, in which the other searches begin."""
COARSE_WINDOWS = 64
"""Most windows of all searches but the last."""
MIN_RECOVERED = 0.85
"""Share of planted parameters that must lie inside their 90 % intervals."""
GOLDEN_SECTION = (np.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict of one gate."""

    name: str
    passed: bool
    message: str
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])

    @property
    def required(self) -> bool:
        """Whether promotion needs it; whiteness of residuals is advice."""
        return self.name != "whiteness"


@dataclass(frozen=True, slots=True, eq=False)
class GatedFit:
    """A fit and the gates it went through."""

    fit: Fit
    gates: tuple[GateResult, ...]
    identifiability: Identifiability
    comparison: HeldOutComparison
    start: Mapping[str, float]
    """Values of the parameters before."""
    unidentified: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values at which unobservable parameters were held."""

    @property
    def passed(self) -> bool:
        """Whether all required gates were passed."""
        return all(gate.passed for gate in self.gates if gate.required)

    @property
    def settings(self) -> dict[str, float]:
        """The identified values, and those of the unobservable parameters."""
        return {**self.unidentified, **self.fit.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """How much work each gate does."""

    seeds: int = 4
    """Independent searches whose results must agree."""
    draws: int = 10
    """Planted parameter sets in the recovery gate; 0 skips it."""
    seed: int = 0
    given: Simulator | None = None
    """The simulator of the scene as it was given, which held-out recordings compare with; where None, the simulator
    that is fitted, at the initial values."""


def gated_fit(
    sim: Simulator,
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    params: Sequence[Param],
    options: ShootingOptions,
    gates: GateOptions | None = None,
    *,
    watch: Watch | None = None,
) -> GatedFit:
    """Identify parameters from recordings to fit, and check them on recordings held out."""
    gates = gates or GateOptions()
    fitted, held_out = episodes
    results = [_telemetry([*fitted, *held_out])]
    given, stopped = options.start, False
    if _contact_only(params):
        found = contact_search(sim, fitted, params, options, watch=watch)
        options = replace(options, start={**options.start, **found.settings}, iterations=0)
        gates, stopped = replace(gates, seeds=1), found.stopped
    brief = replace(_coarse(options), iterations=min(12, options.iterations), starts=min(2, options.starts))
    first = fit(sim, fitted, params, brief, watch=watch)
    first = replace(first, stopped=first.stopped or stopped)
    weak = assess_fit(first, first.problem.prior_sigma)
    results.append(_identifiability(weak))
    if not weak.identifiable:
        raise BadInput(
            f"None of the {len(params)} parameters can be identified from these recordings: {weak.weak[0].message}."
        )
    kept = [param for param in params if param.address not in weak.unobservable]
    fixed = _fixed_values(first, weak.unobservable, options)
    solved = None
    if not first.stopped:
        begun = _continued(_with_priors(options, params, weak), kept, first)
        solved = _solve(sim.tuned(fixed) if fixed else sim, fitted, kept, begun, gates, watch)
    if solved is None:
        # The first fit estimated all parameters, so none was fixed.
        message, fixed = "Interrupted; the best settings of the first fit are kept.", dict[str, float]()
        solved = replace(first, stopped=True), GateResult("solve", False, message)
    result, agreed = solved
    results += [agreed, _recovery(result, gates), _whiteness(result)]
    # Initial values may be far worse than the scene: a fit that only beats those must not be promoted.
    before = gates.given or sim.tuned({param.address: start_value(param, given) for param in params})
    after = sim.tuned({**fixed, **result.settings})
    comparison = compare(before, after, held_out, window=options.window, seed=gates.seed)
    results.append(_held_out(comparison))
    return GatedFit(result, tuple(results), weak, comparison, dict(given), fixed)


def _contact_only(params: Sequence[Param]) -> bool:
    """Whether all parameters act through impacts only, where the cost has steps and no useful gradient."""
    kinds = {param.parts.kind for param in params}
    return "geom" in kinds and kinds <= {"geom", "body", "option"}


def _with_priors(options: ShootingOptions, params: Sequence[Param], weak: Identifiability) -> ShootingOptions:
    """The options with a Gaussian prior at the initial value of each confounded parameter.

    Fixing them instead would bias the others, which would compensate for a wrong value.
    """
    priors = dict(options.priors)
    for param in params:
        if param.address in weak.confounded and param.address not in priors:
            span = np.log(param.high / param.low) if param.log else param.high - param.low
            priors[param.address] = Prior(start_value(param, options.start), UNIFORM * float(span))
    return replace(options, priors=priors)


def _fixed_values(first: Fit, names: Sequence[str], options: ShootingOptions) -> dict[str, float]:
    """Values of unobservable parameters: as given, or as fitted where the given value explains the data worse.

    A damping of a hundredth of what matters has no effect, so it is unobservable; its value before may have had one.
    """
    fixed: dict[str, float] = {}
    for i, param in enumerate(first.params):
        if param.address not in names or param.address not in options.start:
            continue
        x = first.x.copy()
        x[i] = float(np.clip(param.to_unit(options.start[param.address]), 0.0, 1.0))
        given = evaluate(first.problem, x[None], first.point.starts[None])[0]
        worse = given.cost > 1.02 * first.cost
        fixed[param.address] = first.settings[param.address] if worse else options.start[param.address]
    return fixed


def _continued(options: ShootingOptions, params: Sequence[Param], first: Fit) -> ShootingOptions:
    """The options for the remaining parameters, starting at the first fit."""
    names = {param.address for param in params}
    priors = {name: prior for name, prior in options.priors.items() if name in names}
    return replace(options, start={n: v for n, v in first.settings.items() if n in names}, priors=priors)


def _solve(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions,
    gates: GateOptions,
    watch: Watch | None,
) -> tuple[Fit, GateResult] | None:
    """Search from several starts over some of the windows, then finish the best search over all of them.

    None where it was interrupted before the first search had a result.
    """
    fits, stopped = _searches(sim, episodes, params, (_coarse(options), gates), watch)
    if not fits:
        return None
    # Weights differ a little between the searches, so all are compared under those of the first.
    problem = fits[0].problem
    costs = [cost_of(problem, f.point.x, f.point.starts, f.point.residual) for f in fits]
    ranked = sorted(range(len(fits)), key=lambda i: costs[i])
    best = fits[ranked[0]]
    # Fits within one per cent of the best cost agree with it; their spread is the uncertainty of the search.
    good = np.stack([fits[i].x for i in ranked if costs[i] <= 1.01 * costs[ranked[0]]])
    spread = float(np.ptp(good, axis=0).max()) if len(good) > 1 else 0.0
    apart = [k.address for k, s in zip(params, np.ptp(good, axis=0), strict=True) if s > 0.05]
    message = (
        f"{len(good)} of {len(fits)} searches agree to within 1 % of the cost; parameters differ by at most "
        f"{spread:.1%} of their range"
    )
    message += f" ({', '.join(apart)} by more than 5 %)." if apart else "."
    try:
        if not stopped and len(best.windows) < (options.limit or len(best.windows) + 1):
            best = fit(sim, episodes, params, replace(options, start=best.settings, starts=1), watch=watch)
    except KeyboardInterrupt:
        stopped = True
    if stopped or best.stopped:
        best = replace(best, stopped=True)
        message = f"Interrupted; the best of {len(fits)} searches is kept. {message}"
    return best, GateResult("solve", len(good) * 2 >= len(fits) and not best.stopped, message)


def _searches(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: tuple[ShootingOptions, GateOptions],
    watch: Watch | None,
) -> tuple[list[Fit], bool]:
    """Fits from the first fit and from points around it; also whether they were interrupted."""
    shooting, gates = options
    fits: list[Fit] = []
    for seed in range(gates.seeds):
        begun = replace(shooting, random_starts=True, start_range=RESTART_RANGE) if seed else shooting
        try:
            fits.append(fit(sim, episodes, params, replace(begun, seed=gates.seed + seed), watch=watch))
        except KeyboardInterrupt:
            return fits, True
        if fits[-1].stopped:
            return fits, True
    return fits, False


def _coarse(options: ShootingOptions) -> ShootingOptions:
    """The same options with fewer windows."""
    return replace(options, limit=COARSE_WINDOWS if options.limit is None else min(options.limit, COARSE_WINDOWS))


def _telemetry(episodes: Sequence[Episode]) -> GateResult:
    wrong = recording_problems(episodes)
    if wrong:
        raise BadInput(wrong[0] if len(wrong) == 1 else f"{wrong[0]} There are {len(wrong) - 1} more such problems.")
    rows = sum(len(e) for e in episodes)
    notes = recording_warnings(episodes)
    return GateResult(
        "telemetry", True, " ".join([f"{len(episodes)} recordings, {rows} rows, clocks and order fine.", *notes])
    )


def _identifiability(weak: Identifiability) -> GateResult:
    if not weak.weak:
        message = f"All {len(weak.identifiable)} parameters are identifiable from these recordings."
        return GateResult("identifiability", True, message)
    message = "; ".join(direction.message for direction in weak.weak[:4])
    message += f" (and {len(weak.weak) - 4} more directions)." if len(weak.weak) > 4 else "."
    if weak.unobservable:
        message += f" Not identifiable, values kept: {', '.join(weak.unobservable)}."
    if weak.confounded:
        message += f" Confounded, so a prior holds them near their initial values: {', '.join(weak.confounded)}."
    return GateResult("identifiability", bool(weak.identifiable), message)


def _recovery(found: Fit, gates: GateOptions) -> GateResult:
    if gates.draws == 0 or found.stopped:
        return GateResult("recovery", True, "Recovery of planted parameters was not checked.")
    try:
        result = recover_parameters(subset(found, COARSE_WINDOWS), gates.draws, seed=gates.seed)
    except KeyboardInterrupt:
        return GateResult("recovery", False, "Interrupted before planted parameters were recovered.")
    total = wilson(int(result.inside.sum()), result.inside.size)
    worst = min(result.share, key=lambda name: result.share[name])
    message = (
        f"Of {len(result.inside)} planted parameter sets on the same excitation, {total.value:.0%} of the values lay "
        f"inside their 90 % intervals; the worst parameter is {worst} with {result.share[worst]:.0%}."
    )
    return GateResult("recovery", total.value >= MIN_RECOVERED, message, {"recovered": total})


def _whiteness(found: Fit) -> GateResult:
    rows = correlation_time(found.point.residual / found.problem.scale)
    seconds = rows * found.problem.shooter.sim.spec.dt
    bounds = found.at_bounds
    message = "Residuals are white."
    if rows >= 2.0:
        message = (
            f"Residuals are correlated over about {1e3 * seconds:.0f} ms: the model lacks something, and intervals "
            "count a window as one observation."
        )
    if bounds:
        message += f" On a bound of their range: {', '.join(bounds)}."
    scores = {"correlation time": Estimate(seconds, seconds, seconds, 1, "s")}
    return GateResult("whiteness", rows < 2.0 and not bounds, message, scores)


def _held_out(result: HeldOutComparison) -> GateResult:
    gain = result.improvement
    message = (
        f"On held-out recordings the error is {gain.value:.1%} lower than that of the scene as given (95 % interval "
        f"{gain.low:.1%} to {gain.high:.1%}, {gain.n} blocks)."
    )
    if result.lost:
        message += f" {result.lost} windows diverged and were left out."
    if not result.better:
        message += " At least 5 %, with an interval above 0, was expected."
    scores = {"improvement": gain, "before": result.before, "after": result.after}
    return GateResult("held-out", result.better, message, scores)


def split(episodes: Sequence[Episode], share: float = 1 / 3) -> tuple[list[Episode], list[Episode]]:
    """Recordings to fit and recordings held out: whole runs, one in three; the end of the run where there is only one.

    Recordings often follow a plan, motion by motion at each gain, so that every third would be the same motion each
    time. Steps of the golden section share no period with a plan.
    """
    if not 0 < share < 1:
        raise BadInput(f"The share of recordings held out must lie between 0 and 1, not {share:g}.")
    if len(episodes) == 1:
        cut = int(len(episodes[0]) * (1 - share))
        return [episodes[0].rows(stop=cut)], [episodes[0].rows(start=cut)]
    count = max(1, int(len(episodes) * share))
    picked = np.zeros(len(episodes), bool)
    picked[np.argsort(np.arange(1, len(episodes) + 1) * GOLDEN_SECTION % 1.0)[:count]] = True
    return (
        [e for e, out in zip(episodes, picked, strict=True) if not out],
        [e for e, out in zip(episodes, picked, strict=True) if out],
    )


def recording_problems(episodes: Sequence[Episode]) -> list[str]:
    """What makes a fit meaningless, one sentence each; empty where nothing is wrong."""
    found = [sentence for i, episode in enumerate(episodes) for sentence in _problems(episode, i)]
    return found + _mislabelled_joints(episodes)


def recording_warnings(episodes: Sequence[Episode]) -> list[str]:
    """What a reader should know before trusting a fit, one sentence each."""
    found: list[str] = []
    gaps = [g for e in episodes if (g := _longest_gap(e)) > 1.5]
    if gaps:
        found.append(f"{len(gaps)} recordings have gaps of up to {max(gaps):.1f} periods in their clock.")
    motionless = _motionless(episodes)
    if motionless:
        found.append(f"{', '.join(motionless)} never moved, so their parameters cannot be identified.")
    return found


def _problems(episode: Episode, number: int) -> list[str]:
    name = episode.meta.get("name", f"episode {number}")
    found: list[str] = []
    for column in ("q", "action"):
        values = episode[column][: len(episode) - (column == "action")]
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0, 0])
            found.append(f"{name}: row {row} of {column!r} is not a finite number.")
    steps = np.diff(episode.t)
    if len(steps) and not (steps > 0).all():
        found.append(f"{name}: the clock runs backwards or stands still at row {int(np.argmin(steps > 0)) + 1}.")
    return found


def _longest_gap(episode: Episode) -> float:
    steps = np.diff(episode.t)
    return float(steps.max() / np.median(steps)) if len(steps) and np.median(steps) > 0 else 1.0


def _motionless(episodes: Sequence[Episode]) -> list[str]:
    labels = episodes[0].spec.q.labels
    moved = np.max([np.ptp(e.q, axis=0) for e in episodes], axis=0)
    return [label for label, m in zip(labels, moved, strict=True) if m < 1e-9]


def _mislabelled_joints(episodes: Sequence[Episode]) -> list[str]:
    """Position commands whose response appears in another joint, or with the other sign."""
    spec = episodes[0].spec
    pairs = [(a, spec.q.labels.index(label)) for a, label in enumerate(spec.action.labels) if label in spec.q.labels]
    position = [(a, q) for a, q in pairs if spec.action.units[a] == spec.q.units[q]]
    if not position:
        return []
    commands = np.concatenate([_centred(e.action[:-1, [a for a, _ in position]]) for e in episodes])
    answers = np.concatenate([_centred(e.q[1:, [q for _, q in position]]) for e in episodes])
    size = np.linalg.norm(commands, axis=0)[:, None] * np.linalg.norm(answers, axis=0)[None]
    alike = commands.T @ answers / np.where(size > 0, size, np.inf)
    found: list[str] = []
    for row, (a, _) in enumerate(position):
        label = spec.action.labels[a]
        best = int(np.argmax(np.abs(alike[row])))
        if best != row and abs(alike[row, best]) > 0.9 and abs(alike[row, row]) < 0.5:
            other = spec.q.labels[position[best][1]]
            found.append(f"The command of {label!r} is answered by {other!r}: the order of the joints differs.")
        elif alike[row, row] < -0.5:
            found.append(f"{label!r} moves against its command: its sign differs.")
    return found


def _centred(values: Array) -> Array:
    return values - values.mean(axis=0)
