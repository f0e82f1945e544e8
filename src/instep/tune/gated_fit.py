"""Gated identification: check recordings, fit, and check the fit by gates in the order of `gates`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import nan

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.progress import Progress
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, Simulator, array_dataclass

from .fit.least_squares import FitStatus
from .fit.searches import COARSE_WINDOWS, FitTask, Searches, first_fit, search
from .fit.shooting import Fit, initial_value
from .fit.uncertainty import Identifiability, assess_fit, correlation_time, motion_for
from .fit.windows import Shooter, Windows, cut_windows
from .gates import (
    MAX_CORRELATED_ROWS,
    MAX_PREDICTABLE_ERROR,
    MIN_AGREEING,
    MIN_IMPROVEMENT,
    MIN_RECOVERED,
    GateResult,
    GateState,
    TuneOptions,
)
from .posterior.posterior_checks import planted_sets, recover_parameters, subset
from .recording_checks import recording_problems, recording_warnings, refuse

GOLDEN_SECTION = (np.sqrt(5) - 1) / 2
MOST_DIRECTIONS = 4
"""Weak directions that a message lists."""


@array_dataclass
class GatedFit:
    """A fit and the gates it went through."""

    fit: Fit
    gates: tuple[GateResult, ...]
    identifiability: Identifiability
    comparison: HeldOutComparison
    before: Mapping[str, float]
    """Values of the parameters before."""
    unidentified: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values at which unobservable parameters were held."""

    @property
    def passed(self) -> bool:
        """Whether all required gates were run and passed."""
        return all(gate.passed for gate in self.gates if gate.required)

    @property
    def settings(self) -> dict[str, float]:
        """The identified values, and those of the unobservable parameters."""
        return {**self.unidentified, **self.fit.settings}


def gated_fit(
    task: FitTask, fitted: Sequence[Episode], held_out: Sequence[Episode], options: TuneOptions | None = None,
    *, progress: Progress | None = None,
) -> GatedFit:  # fmt: skip
    """Identify parameters from recordings, and check them on recordings held out.

    Out of time or interrupted, it keeps the best so far; gates that were not reached are not run.
    """
    options, progress = options or TuneOptions(), progress or Progress()
    recorded = [*fitted, *held_out]
    refuse(recording_problems(recorded))
    sound = f"{len(recorded)} recordings, {sum(map(len, recorded))} rows, clocks and order fine."
    results = [GateResult("telemetry", "passed", " ".join([sound, *recording_warnings(recorded)]))]
    first = first_fit(task, fitted, progress.part(0.0, 0.2, of_time_left=0.3))
    weak = assess_fit(first, first.problem.prior_sigma)
    if not weak.identifiable:
        raise BadInput(
            f"None of the {len(task.params)} parameters is identifiable from these recordings: {weak.weak[0].message}. "
            f"{motion_for([param.address for param in task.params])}"
        )
    found = search(task, fitted, first, weak, options, progress.part(0.2, 0.7, of_time_left=0.75))
    weak = weak.without(found.late) if found.late else weak
    recovery = _recovery(found.fit, options, progress.part(0.7, 0.95, of_time_left=0.8))
    results += [_identifiability(weak, by_prior=task.hold_unseen), _solve(found), recovery, _whiteness(found.fit)]
    progress.advance("held-out recordings", 0.95)
    # Initial guesses may be far worse than the scene: a fit that only beats those must not be promoted.
    given = {param.address: initial_value(param, task.before) for param in task.params}
    after = (task.full or task.sim).tuned({**found.fixed, **found.fit.settings})
    before = task.given or task.sim.tuned(given)
    comparison = compare(before, after, held_out, window=task.shooting.window, seed=options.seed)
    results.append(_held_out(comparison))
    return GatedFit(found.fit, tuple(results), weak, comparison, task.before, found.fixed)


def _identifiability(weak: Identifiability, *, by_prior: bool) -> GateResult:
    state: GateState = "passed" if weak.identifiable else "failed"
    if not weak.weak and not weak.unidentifiable:
        message = f"All {len(weak.identifiable)} parameters are identifiable from these recordings."
        return GateResult("identifiability", state, message)
    message, more = "; ".join(one.message for one in weak.weak[:MOST_DIRECTIONS]), len(weak.weak) - MOST_DIRECTIONS
    message += f" (and {more} more directions)." if more > 0 else "." if message else ""
    if weak.unobservable:
        kept = "held near the initial values by a prior" if by_prior else "kept at the scene's values"
        message += f" Not identifiable from these recordings, {kept}: {', '.join(weak.unobservable)}."
    if weak.confounded:
        message += f" Confounded, held near the initial values by a prior: {', '.join(weak.confounded)}."
    return GateResult("identifiability", state, message.strip(), remedy=motion_for(weak.unidentifiable))


def _solve(found: Searches) -> GateResult:
    """Whether the search converged, and whether independent searches end in the same place."""
    last, total = found.fit, len(found.costs)
    if found.explained and found.ended is None:
        message = (
            "The residuals are white and about as small as the noise of the measurements; other values could hardly "
            f"explain the recordings better. The last search: {last.status}."
        )
        return GateResult("solve", "passed", message)
    if total < MIN_AGREEING:
        why = {
            FitStatus.STOPPED: "Interrupted; the best so far is kept.",
            FitStatus.BUDGET_SPENT: "The budget was spent; the best so far is kept.",
        }.get(found.ended or last.status, "")
        message = f"{total} searches ended, and agreement needs {MIN_AGREEING}. {why}".strip()
        remedy = "Run at least three searches (--seeds 4)." if not why else "Continue with --resume OUT."
        return GateResult("solve", "not run", message, remedy=remedy)
    agree = found.agreeing
    spread = np.ptp(agree, axis=0) if len(agree) > 1 else np.zeros(len(last.params))
    apart = [p.address for p, s in zip(last.params, spread, strict=True) if s > 0.05]
    message = (
        f"{len(agree)} of {total} searches agree in cost, parameters or predictions; parameters differ by at most "
        f"{float(spread.max(initial=0.0)):.1%} of their range"
    )
    message += f" ({', '.join(apart)} by more than 5 %)." if apart else "."
    message += f" The last search: {last.status}."
    if last.stopped or found.ended is not None:
        return GateResult("solve", "not run", message, remedy="Continue with --resume OUT, or give a longer --budget.")
    if len(agree) * 2 >= total and last.status is FitStatus.CONVERGED:
        return GateResult("solve", "passed", message)
    remedy = "Try shorter windows (--window), other initial guesses (--initial) or narrower ranges (--bounds)."
    return GateResult("solve", "failed", message, remedy=remedy)


def _recovery(found: Fit, options: TuneOptions, progress: Progress) -> GateResult:
    name, draws = "recovery", planted_sets(len(found.params)) if options.draws is None else options.draws
    if draws == 0:
        return GateResult(name, "not run", "No parameters were planted (--draws 0).", remedy="Leave out --draws 0.")
    if found.status is not FitStatus.CONVERGED:
        message = f"There are no intervals to check: the search did not converge ({found.status})."
        return GateResult(name, "not run", message)
    try:
        result = recover_parameters(subset(found, COARSE_WINDOWS), draws, seed=options.seed, progress=progress)
    except KeyboardInterrupt:
        progress.stop()
        return GateResult(name, "not run", "Interrupted before planted parameters were recovered.")
    if result is None:
        message = "The time ended before enough planted parameters were recovered."
        return GateResult(name, "not run", message, remedy="Give a longer --budget.")
    total = wilson(int(result.inside.sum()), result.inside.size)
    worst = min(result.share, key=lambda name: result.share[name])
    message = (
        f"Of {len(result.inside)} planted parameter sets on the same excitation, {total.value:.0%} of the values lay "
        f"inside their 90 % intervals; the worst parameter is {worst} with {result.share[worst]:.0%}."
    )
    good = total.value >= MIN_RECOVERED
    remedy = "" if good else f"Fit fewer parameters (--params without {worst}) or record more motion."
    return GateResult(name, "passed" if good else "failed", message, {"recovered": total}, remedy)


def _whiteness(found: Fit) -> GateResult:
    rows, bounds = correlation_time(found.point.residual / found.problem.scale), found.at_bounds
    seconds = rows * found.problem.shooter.sim.spec.dt
    message = "Residuals are white."
    if rows >= MAX_CORRELATED_ROWS:
        message = (
            f"Residuals are correlated over about {1e3 * seconds:.0f} ms: the model lacks something, and intervals "
            "count a window as one observation."
        )
    if bounds:
        message += f" On a bound of their range: {', '.join(bounds)}."
    good = rows < MAX_CORRELATED_ROWS and not bounds
    scores = {"correlation time": Estimate(seconds, seconds, seconds, 1, "s")}
    return GateResult("whiteness", "passed" if good else "failed", message, scores)


def _held_out(result: HeldOutComparison) -> GateResult:
    scores = {"improvement": result.improvement, "before": result.before, "after": result.after}
    if result.open_loop is not None:
        scores["open-loop improvement"] = result.open_loop
    if result.better:
        return GateResult("held-out", "passed", comparison_words(result), scores)
    remedy = (
        "Look for the cause (instep gap DATA SCENE) and fit other parameters (--params), or check that the scene is of "
        "this robot: link lengths and masses are taken from it, and those of another robot are not corrected."
    )
    return GateResult("held-out", "failed", comparison_words(result), scores, remedy)


def comparison_words(result: HeldOutComparison) -> str:
    """The verdict of held-out recordings on the new settings, in sentences."""

    def lower(share: float) -> str:
        return f"{share:.1%} lower" if share >= 0 else f"{-share:.1%} higher"

    gain, whole = result.improvement, result.open_loop
    words = (
        f"On held-out recordings the error is {lower(gain.value)} than that of the scene as given (95 % interval "
        f"{lower(gain.low)} to {lower(gain.high)}, {gain.n} blocks)."
    )
    if whole is not None:
        words += f" Over whole runs, open loop, it is {lower(whole.value)}."
    if result.lost:
        words += f" {result.lost} windows diverged and were left out."
    if result.diverged:
        words += f" In {result.diverged} of them the scene as given did not diverge."
    if not (gain.value >= MIN_IMPROVEMENT and gain.low > 0):
        words += f" At least {100 * MIN_IMPROVEMENT:.0f} %, with an interval above 0, was expected."
    elif not result.better:
        words += " Whole runs must not become worse."
    return words


@array_dataclass
class HeldOutComparison:
    """Errors of two simulators over the same windows and over whole runs, in pairs."""

    before: Estimate
    """Root mean square error of the first simulator, channels scaled to unit error."""
    after: Estimate
    improvement: Estimate
    """Relative reduction of the error, by a paired block bootstrap."""
    channels: Mapping[str, tuple[float, float]]
    """Root mean square error by coordinate, before and after."""
    lost: int
    """Windows in which a simulator diverged, left out."""
    diverged: int = 0
    """Windows and whole runs in which the second simulator diverged and the first did not."""
    open_loop: Estimate | None = None
    """Relative reduction of the error over whole runs; None where neither simulator predicts them."""

    @property
    def better(self) -> bool:
        """Whether the error fell by at least 5 % with an interval above 0, and is not larger over whole runs."""
        return self.improvement.value >= MIN_IMPROVEMENT and self.improvement.low > 0 and not self.worse_over_whole_runs

    @property
    def worse_over_whole_runs(self) -> bool:
        """Whether the second simulator predicts whole runs worse than the first, or diverged where it did not."""
        return self.diverged > 0 or (self.open_loop is not None and not self.open_loop.value >= 0)


def split(episodes: Sequence[Episode], share: float = 1 / 3) -> tuple[list[Episode], list[Episode]]:
    """Recordings to fit and recordings held out: whole runs, one in three; of a single run its end.

    Recordings often follow a plan, motion by motion at each gain, so that every third would be the same motion each
    time. Steps of the golden section share no period with a plan.
    """
    if not 0 < share < 1:
        raise BadInput(f"The share of recordings held out must lie between 0 and 1, not {share:g}.")
    if len(episodes) == 1:
        cut = int(len(episodes[0]) * (1 - share))
        return [episodes[0].rows(stop=cut)], [episodes[0].rows(start=cut)]
    count = max(1, int(len(episodes) * share))
    picked = set(np.argsort(np.arange(1, len(episodes) + 1) * GOLDEN_SECTION % 1.0)[:count].tolist())
    parts = ([e for i, e in enumerate(episodes) if (i in picked) is out] for out in (False, True))
    return next(parts), next(parts)


def window_errors(
    sim: Simulator, episodes: Sequence[Episode], settings: Mapping[str, float], window: float, limit: int | None = 2000
) -> tuple[Array, Windows]:
    """Mean square error of each window and channel [windows, channels], from starts as measured; NaN if it diverged."""
    span = max(1, round(window / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, limit=limit)
    tuned = sim.tuned(settings) if settings else sim
    residual = Shooter(tuned, windows, ())(np.zeros((1, 0)))[0][..., windows.tangent.measured]
    count = windows.inside.sum(axis=1)[:, None]
    return np.where(windows.inside[..., None], residual**2, 0.0).sum(axis=1) / count, windows


def compare(
    before: Simulator, after: Simulator, episodes: Sequence[Episode], *, window: float = 1.0, seed: int = 0
) -> HeldOutComparison:
    """Replay held-out recordings in two simulators, in windows and in whole runs, and bootstrap blocks of windows."""
    rows = max(len(e) for e in episodes) - 1
    span = min(rows, max(1, round(window / before.spec.dt)))
    windows, whole = (_errors(before, after, episodes, n * before.spec.dt) for n in (span, rows))
    first, second, run = windows.first[windows.sound], windows.second[windows.sound], windows.run[windows.sound]
    names, lost = windows.names, int((~windows.sound).sum())
    if len(windows.run) < 2:
        raise BadInput(
            "Recordings held out give one window only; use a shorter --window or hold out more (--held-out)."
        )
    diverged = windows.diverged + whole.diverged
    if not len(run):
        unknown = Estimate(nan, nan, nan, 0, "1")
        return HeldOutComparison(unknown, unknown, unknown, dict.fromkeys(names, (nan, nan)), lost, diverged)
    # Channels in different units weigh alike: each is scaled by its own error under the first setting.
    scale = np.maximum(first.mean(axis=0), 1e-300)
    blocks = _blocks(run)
    pairs = np.array([[(part[b] / scale).mean(axis=1).sum() for part in (first, second)] for b in blocks])
    sizes = np.array([len(b) for b in blocks], float)
    channels = {
        name: (float(np.sqrt(first[:, i].mean())), float(np.sqrt(second[:, i].mean()))) for i, name in enumerate(names)
    }
    return HeldOutComparison(
        bootstrap(pairs[:, 0] / sizes, lambda d: np.sqrt(d.mean(axis=-1)), unit="1", seed=seed),
        bootstrap(pairs[:, 1] / sizes, lambda d: np.sqrt(d.mean(axis=-1)), unit="1", seed=seed),
        relative_reduction(pairs, sizes, seed),
        channels,
        lost,
        diverged,
        _open_loop(whole, seed),
    )


@array_dataclass
class _PairedErrors:
    """Mean square errors of two simulators over the same windows [windows, channels]."""

    first: Array
    second: Array
    run: Array
    motion: Array
    """Variance of the measured motion since the start of a window [channels]."""
    names: tuple[str, ...]

    @property
    def sound(self) -> Array:
        """Windows in which neither simulator diverged."""
        return np.asarray(np.isfinite(np.concatenate([self.first, self.second], axis=1)).all(axis=1))

    @property
    def diverged(self) -> int:
        """Windows in which only the second simulator diverged."""
        return int((np.isfinite(self.first).all(axis=1) & ~np.isfinite(self.second).all(axis=1)).sum())


def _errors(before: Simulator, after: Simulator, episodes: Sequence[Episode], window: float) -> _PairedErrors:
    first, windows = window_errors(before, episodes, {}, window)
    second, _ = window_errors(after, episodes, {}, window)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.measured][windows.inside]
    return _PairedErrors(first, second, windows.run, motion.var(axis=0), form.measured_labels)


def relative_reduction(pairs: Array, sizes: Array, seed: int) -> Estimate:
    """Relative reduction of the root mean square error from one column to the other, whole blocks resampled."""
    rng = np.random.default_rng((seed, 0xB10C))
    picks = rng.integers(0, len(pairs), (2000, len(pairs)))
    resampled = np.sqrt(pairs[picks].sum(axis=1) / sizes[picks].sum(axis=1)[:, None])
    low, high = np.quantile(1 - resampled[:, 1] / resampled[:, 0], [0.025, 0.975])
    point = np.sqrt(pairs.sum(axis=0) / sizes.sum())
    return Estimate(float(1 - point[1] / point[0]), float(low), float(high), len(pairs), "1")


def _open_loop(whole: _PairedErrors, seed: int) -> Estimate | None:
    """Relative reduction of the error over whole runs, in the channels that either simulator predicts; None without.

    Open loop, a chaotic motion is lost after a while under any parameters: then only windows compare.
    """
    first, second = whole.first[whole.sound], whole.second[whole.sound]
    if not len(first):
        return None
    least = np.minimum(first.mean(axis=0), second.mean(axis=0))
    predicted = least < MAX_PREDICTABLE_ERROR**2 * whole.motion
    if not predicted.any():
        return None
    first, second = first[:, predicted], second[:, predicted]
    scale = np.maximum(first.mean(axis=0), 1e-300)
    pairs = np.stack([(first / scale).mean(axis=1), (second / scale).mean(axis=1)], axis=1)
    return relative_reduction(pairs, np.ones(len(pairs)), seed)


def _blocks(run: Array) -> list[Array]:
    """Whole runs where there are at least five, else groups of neighbouring windows."""
    runs = [np.flatnonzero(run == r) for r in np.unique(run)]
    if len(runs) >= 5:
        return runs
    return [part for r in runs for part in np.array_split(r, max(1, min(len(r), 10 // len(runs)))) if len(part)]


@array_dataclass
class Traces:
    """Windows of held-out recordings, all as motion since the start of the window [windows, span, channels]."""

    names: tuple[str, ...]
    """Of the channels."""
    units: tuple[str, ...]
    measured: Array
    predicted: Mapping[str, Array]
    """By the name of the simulator; NaN after a divergence."""
    inside: Array
    """Which rows exist [windows, span]."""
    dt: float

    def errors(self, name: str) -> Array:
        """Root mean square error of each window under a setting, channels scaled by their motion [windows]."""
        scale = np.maximum(np.sqrt((self.measured**2).mean(axis=(0, 1))), 1e-12)
        square = ((self.predicted[name] - self.measured) / scale) ** 2
        rows = np.where(self.inside, square.mean(axis=-1), 0.0)
        return np.sqrt(rows.sum(axis=1) / np.maximum(self.inside.sum(axis=1), 1))


def held_out_traces(
    sims: Mapping[str, Simulator], episodes: Sequence[Episode], span: int, *, skip: int = 0, limit: int = 64
) -> Traces:
    """Replay windows of recordings in each of some simulators, by name, from starts as measured."""
    sim = next(iter(sims.values()))
    windows = cut_windows(sim, episodes, span=span, skip=skip, limit=limit)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.measured]
    predicted = {
        name: motion + Shooter(one, windows, ())(np.zeros((1, 0)))[0][..., form.measured] for name, one in sims.items()
    }
    names = form.measured_labels
    units = {label: unit.removesuffix("/s") for label, unit in zip(sim.spec.v.labels, sim.spec.v.units, strict=True)}
    return Traces(names, tuple(units[name] for name in names), motion, predicted, windows.inside, sim.spec.dt)
