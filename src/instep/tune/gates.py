"""Gated identification: check recordings, fit, and check the fit; each gate is passed, failed or not run.

The gates in order: telemetry, identifiability, solve (independent searches agree), recovery (of planted parameters),
whiteness (of residuals, advice only) and held-out (error on recordings that were not fitted).

The gate that asks whether a scene is of the robot that was recorded: does it explain how its servos move?

Gains, friction and a delay can be fitted to any motion, and often predict it better than before, also where link
lengths, masses or the order of the joints are those of another robot. What such a scene leaves unexplained is large.

Motors that jump from one limit to the other between physics steps: a simulation that chatters, which no robot does.

A stiff, strongly damped servo at its limit overshoots within one step of the integrator, which then sees the opposite
limit. The motion that follows depends on values to many digits, so that fits end in one of many minima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from typing import Literal

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.rollout import aligned
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass, options_dataclass
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.folder import Scene

from .fit.identifiability import Identifiability, assess_fit, motion_for
from .fit.least_squares import FitStatus
from .fit.searches import COARSE_WINDOWS, MIN_AGREEING, Searches, SearchMethod, SearchPlan, first_fit, search
from .fit.shooting import Fit, ShootingOptions, fit, start_value
from .fit.uncertainty import correlation_time
from .held_out import MIN_IMPROVEMENT, HeldOutComparison, compare, window_errors
from .posterior.posterior_checks import MIN_RECOVERED, planted_sets, recover_parameters, subset
from .recording_checks import Pairs, recording_problems, recording_warnings, refuse, servo_pairs

GateState = Literal["passed", "failed", "not run"]
GOLDEN_SECTION = (np.sqrt(5) - 1) / 2


@frozen_dataclass
class GateResult:
    """The verdict of one gate."""

    name: str
    state: GateState
    message: str
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    remedy: str = ""
    """What to do where it is not passed, with the option that does it."""

    @property
    def passed(self) -> bool:
        """Whether it was run and passed."""
        return self.state == "passed"

    @property
    def required(self) -> bool:
        """Whether promotion needs it; whiteness of residuals is advice."""
        return self.name != "whiteness"

    def as_dict(self) -> dict[str, str | bool]:
        """What `result.json` and `tuned.json` hold of it, beside the scores."""
        entry = {"name": self.name, "state": self.state, "passed": self.passed, "message": self.message}
        return {**entry, **({"remedy": self.remedy} if self.remedy else {})}


@array_dataclass
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
        """Whether all required gates were run and passed."""
        return all(gate.passed for gate in self.gates if gate.required)

    @property
    def settings(self) -> dict[str, float]:
        """The identified values, and those of the unobservable parameters."""
        return {**self.unidentified, **self.fit.settings}


@options_dataclass
class GateOptions:
    """How much work each gate does."""

    seeds: int = 4
    """Independent searches whose results must agree; fewer than three leave that gate not run."""
    draws: int | None = None
    """Planted parameter sets in the recovery gate; enough for about forty values where None; 0 leaves it not run."""
    seed: int = 0
    given: Simulator | None = None
    """The simulator of the scene as it was given, which held-out recordings compare with; where None, the simulator
    that is fitted, at the initial values."""
    full: Simulator | None = None
    """The simulator that predicts held-out recordings, where the one that is fitted leaves out contacts."""
    starts: tuple[Mapping[str, float], ...] = ()
    """Further points from which searches begin, beside the initial values: direct estimates, or an earlier result."""
    scene_values: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values of the parameters in the scene, where the initial values are others."""
    search: SearchMethod = fit
    """What searches; another for a kind of robot has the same signature as `fit`."""
    hold_unseen: bool = False
    """Whether a broad prior holds all parameters, rather than that those without effect are fixed."""


def gated_fit(
    sim: Simulator,
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    params: Sequence[Param],
    options: ShootingOptions,
    gates: GateOptions | None = None,
    *,
    progress: Progress | None = None,
) -> GatedFit:
    """Identify parameters from recordings to fit, and check them on recordings held out.

    Where the time ends or somebody stops it, the best so far is kept, and gates that were not reached are not run.
    """
    gates, progress = gates or GateOptions(), progress or Progress()
    fitted, held_out = episodes
    results = [_telemetry([*fitted, *held_out])]
    values = {**options.start, **gates.scene_values}
    searching = SearchPlan(
        options, gates.seeds, gates.starts, values, gates.seed, gates.search, hold_unseen=gates.hold_unseen
    )
    first = first_fit(sim, fitted, params, searching, progress.part(0.0, 0.2, of_time_left=0.3))
    weak = assess_fit(first, first.problem.prior_sigma)
    results.append(_identifiability(weak, by_prior=gates.hold_unseen))
    if not weak.identifiable:
        raise BadInput(
            f"None of the {len(params)} parameters is identifiable from these recordings: {weak.weak[0].message}. "
            f"{motion_for([param.address for param in params])}"
        )
    found = search(sim, fitted, first, weak, searching, progress.part(0.2, 0.7, of_time_left=0.75))
    if found.late:
        weak = weak.without(found.late)
        results[-1] = _identifiability(weak, by_prior=gates.hold_unseen)
    recovery = _recovery(found.fit, gates, progress.part(0.7, 0.95, of_time_left=0.8))
    results += [_solve(found), recovery, _whiteness(found.fit)]
    progress.advance("held-out recordings", 0.95)
    # Initial values may be far worse than the scene: a fit that only beats those must not be promoted.
    before = gates.given or sim.tuned({param.address: start_value(param, values) for param in params})
    after = (gates.full or sim).tuned({**found.fixed, **found.fit.settings})
    comparison = compare(before, after, held_out, window=options.window, seed=gates.seed)
    results.append(_held_out(comparison))
    return GatedFit(found.fit, tuple(results), weak, comparison, values, found.fixed)


def _telemetry(episodes: Sequence[Episode]) -> GateResult:
    refuse(recording_problems(episodes))
    rows = sum(len(e) for e in episodes)
    notes = recording_warnings(episodes)
    return GateResult(
        "telemetry", "passed", " ".join([f"{len(episodes)} recordings, {rows} rows, clocks and order fine.", *notes])
    )


def _identifiability(weak: Identifiability, *, by_prior: bool) -> GateResult:
    state: GateState = "passed" if weak.identifiable else "failed"
    if not weak.weak and not weak.unidentifiable:
        message = f"All {len(weak.identifiable)} parameters are identifiable from these recordings."
        return GateResult("identifiability", state, message)
    message = "; ".join(direction.message for direction in weak.weak[:4])
    message += f" (and {len(weak.weak) - 4} more directions)." if len(weak.weak) > 4 else "." if message else ""
    if weak.unobservable:
        kept = "so a prior holds them near their initial values" if by_prior else "values kept"
        message += f" Not identifiable, {kept}: {', '.join(weak.unobservable)}."
    if weak.confounded:
        message += f" Confounded, so a prior holds them near their initial values: {', '.join(weak.confounded)}."
    return GateResult("identifiability", state, message.strip(), remedy=motion_for(weak.unidentifiable))


def _solve(found: Searches) -> GateResult:
    """Whether the search converged, and whether independent searches end in the same place."""
    last, total = found.fit, len(found.costs)
    if found.explained and found.ended is None:
        message = (
            "What the search leaves over is white and about as small as the noise of the measurements, so that other "
            f"values could hardly explain the recordings better. The last search: {last.status}."
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
    message = f"{len(agree)} of {total} searches agree in cost, parameters or predictions; "
    spread = np.ptp(agree, axis=0) if len(agree) > 1 else np.zeros(len(last.params))
    message += f"parameters differ by at most {float(spread.max(initial=0.0)):.1%} of their range"
    apart = [p.address for p, s in zip(last.params, spread, strict=True) if s > 0.05]
    message += f" ({', '.join(apart)} by more than 5 %)." if apart else "."
    message += f" The last search: {last.status}."
    if last.stopped or found.ended is not None:
        return GateResult("solve", "not run", message, remedy="Continue with --resume OUT, or give a longer --budget.")
    state: GateState = "passed" if len(agree) * 2 >= total and last.status is FitStatus.CONVERGED else "failed"
    remedy = "Try shorter windows (--window), more starting points (--starts 3) or narrower ranges (--bounds)."
    return GateResult("solve", state, message, remedy="" if state == "passed" else remedy)


def _recovery(found: Fit, gates: GateOptions, progress: Progress) -> GateResult:
    name, draws = "recovery", planted_sets(len(found.params)) if gates.draws is None else gates.draws
    if draws == 0:
        return GateResult(name, "not run", "No parameters were planted (--draws 0).", remedy="Leave out --draws 0.")
    if found.status is not FitStatus.CONVERGED:
        message = f"There are no intervals to check: the search did not converge ({found.status})."
        return GateResult(name, "not run", message)
    try:
        result = recover_parameters(subset(found, COARSE_WINDOWS), draws, seed=gates.seed, progress=progress)
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
    good = rows < 2.0 and not bounds
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


def _lower(share: float) -> str:
    return f"{share:.1%} lower" if share >= 0 else f"{-share:.1%} higher"


def comparison_words(result: HeldOutComparison) -> str:
    """What held-out recordings say of the new settings, in sentences."""
    gain, whole = result.improvement, result.open_loop
    words = (
        f"On held-out recordings the error is {_lower(gain.value)} than that of the scene as given (95 % interval "
        f"{_lower(gain.low)} to {_lower(gain.high)}, {gain.n} blocks)."
    )
    if whole is not None:
        words += f" Over whole runs, open loop, it is {_lower(whole.value)}."
    if result.lost:
        words += f" {result.lost} windows diverged and were left out."
    if result.diverged:
        words += f" In {result.diverged} of them the scene as given did not diverge."
    if not (gain.value >= MIN_IMPROVEMENT and gain.low > 0):
        words += f" At least {100 * MIN_IMPROVEMENT:.0f} %, with an interval above 0, was expected."
    elif not result.better:
        words += " Whole runs must not become worse."
    return words


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


NAME = "robot match"
MAX_UNEXPLAINED = 0.15
"""Error of the identified scene over windows, as a share of the motion in them, above which it is of another robot."""
SUSPECT_SHARE = 0.02
"""Share from which on the joints are tried in another order."""
MAX_EXCHANGED = 0.6
"""Error of the scene as given with two joints exchanged, over that as recorded, which shows a wrong order."""
MIN_NOISE_RATIO = 5.0
"""Error over the noise of the measured positions below which motion is too small to say anything."""
WINDOWS = 40


@array_dataclass
class _Unexplained:
    """Errors of a simulator over windows, and the motion in them, of the joints that follow commands."""

    errors: Array
    """Root mean square error [joints]."""
    motion: Array
    """Standard deviation of the motion since the start of a window [joints]."""
    noise: Array
    """Of the measured positions [joints]."""

    @property
    def error(self) -> float:
        """Over all joints."""
        return float(np.linalg.norm(self.errors))

    @property
    def share(self) -> float:
        """Of the motion, all joints together; 0 where it is hidden by noise."""
        if self.error <= MIN_NOISE_RATIO * float(np.linalg.norm(self.noise)):
            return 0.0
        return self.error / max(float(np.linalg.norm(self.motion)), 1e-300)


def check_robot(
    scene: Scene,
    sims: tuple[Simulator, Simulator],
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    *,
    window: float,
    most: float,
) -> GateResult | None:
    """Whether the scene explains the motion of its servos, in the order of joints as recorded; None without servos.

    `sims` are the scene as given and as identified, `episodes` those that were fitted and those held out. The
    identified scene may leave `most` of the motion unexplained, held out or in all of them: a few slow recordings in
    which friction sticks say nothing of the robot.
    """
    given, found = sims
    fitted, held_out = episodes
    pairs = servo_pairs(scene, held_out[0])
    names = [held_out[0].spec.q.labels[q] for _, q in pairs]
    if not pairs:
        return None
    left = _unexplained(found, held_out, names, window)
    if left.share > most:
        left = min(left, _unexplained(found, [*fitted, *held_out], names, window), key=lambda part: part.share)
    if left.share > SUSPECT_SHARE:
        order = _wrong_order(given, held_out, pairs, window)
        if order:
            remedy = "Name the columns of the recordings in a mapping (--map FILE.toml)."
            return GateResult(NAME, "failed", order, remedy=remedy)
    message = f"Of the motion of the servos over {window:g} s, {left.share:.1%} is left unexplained."
    if left.share <= most:
        return GateResult(NAME, "passed", message)
    worst = names[int(np.argmax(left.errors))]
    remedy = (
        "Check that the scene is of this robot and carries what it carried: link lengths, masses and payloads are "
        "taken from the scene, and those of another robot are not corrected."
    )
    cause = f"Most of it is in {worst!r}: the scene is of another robot, or lacks what moves this one most."
    return GateResult(NAME, "failed", f"{message} {cause}", {}, remedy)


def _unexplained(sim: Simulator, episodes: Sequence[Episode], names: Sequence[str], window: float) -> _Unexplained:
    errors, windows = window_errors(sim, episodes, {}, window, WINDOWS)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.measured][windows.inside]
    at = [form.measured_labels.index(name) for name in names]
    # A window in which the simulator diverged explains nothing of it.
    errors = np.where(np.isfinite(errors), errors, motion.var(axis=0))
    noise = windows.noise_q[form.measured]
    return _Unexplained(np.sqrt(errors.mean(axis=0))[at], motion.std(axis=0)[at], noise[at])


def _wrong_order(given: Simulator, episodes: Sequence[Episode], pairs: Pairs, window: float) -> str:
    """Two joints with which exchanged the scene as given predicts the recordings far better; empty where none are."""
    spec = episodes[0].spec
    names = [spec.q.labels[q] for _, q in pairs]
    units = [(spec.action.units[a], spec.q.units[q]) for a, q in pairs]
    as_recorded = _unexplained(given, episodes, names, window).error
    errors: dict[tuple[int, int], float] = {}
    for i, j in combinations(range(len(pairs)), 2):
        if units[i] == units[j]:
            exchanged = [_exchanged(episode, pairs[i], pairs[j]) for episode in episodes]
            errors[i, j] = _unexplained(given, exchanged, names, window).error
    if not errors:
        return ""
    i, j = min(errors, key=lambda both: errors[both])
    if errors[i, j] > MAX_EXCHANGED * as_recorded:
        return ""
    return (
        f"With {names[i]!r} and {names[j]!r} exchanged in the recordings, the error of the scene as given falls by "
        f"{1 - errors[i, j] / as_recorded:.0%}: the order of the joints differs."
    )


def _exchanged(episode: Episode, one: tuple[int, int], other: tuple[int, int]) -> Episode:
    """The recording with commands and positions of two joints exchanged."""
    columns: dict[str, Array] = {}
    for name, (a, b) in {"action": (one[0], other[0]), "q": (one[1], other[1]), "v": (one[1], other[1])}.items():
        if name in episode.columns:
            values = episode[name].copy()
            values[:, [a, b]] = values[:, [b, a]]
            columns[name] = values
    return episode.with_columns(columns)


_ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT)
MAX_CHATTER = 1e-3
"""Share of the physics steps in which a motor may jump from one limit to the other."""


def chattering(sim: Simulator, episodes: Sequence[Episode]) -> dict[str, float]:
    """The motors that chatter in a replay of recordings, and in which share of the physics steps; the worst first.

    Empty for engines that do not report the forces of motors; from where a replay diverges on, nothing counts.
    """
    if not isinstance(sim, MujocoWorld):
        return {}
    jumps, steps = np.zeros(sim.model.nu), 0
    for episode in episodes:
        run = aligned(episode, sim)
        begin = sim.place(run.q[:1], run.v[:1], 0.0, run.past[:1])
        force = sim.physics_steps(begin, run.action[:-1, None, : sim.model.nu]).actuator[0]
        steps += len(force)
        jumps += _jumps(sim, force)
    shares = jumps / max(1, steps)
    worst = [int(a) for a in np.argsort(-shares) if shares[a] > MAX_CHATTER]
    return {str(sim.model.actuator(a).name): float(shares[a]) for a in worst}


def with_chatter(result: GatedFit, sim: Simulator, episodes: Sequence[Episode]) -> GatedFit:
    """The result whose solve gate names motors that chatter in recordings, and what to do where it is not passed."""
    shares = chattering(sim, episodes)
    if not shares:
        return result
    some = ", ".join(f"{name} in {share:.1%}" for name, share in list(shares.items())[:3])
    more = f" and {len(shares) - 3} more" if len(shares) > 3 else ""
    words = (
        f" Motors jump from one limit to the other between physics steps ({some}{more} of the steps): there the "
        "simulation chatters, as no robot does, and its motion depends on values to many digits."
    )
    advice = "Record smaller or slower motion, which the motors can follow, or soften the scene's servos (kp, kv)."

    def noted(gate: GateResult) -> GateResult:
        remedy = gate.remedy if gate.passed else f"{advice} {gate.remedy}".strip()
        return replace(gate, message=gate.message + words, remedy=remedy) if gate.name == "solve" else gate

    return replace(result, gates=tuple(noted(gate) for gate in result.gates))


def _jumps(sim: MujocoWorld, force: Array) -> Array:
    """How often each motor is at one limit, its own or that of its joint, after it was at the other [nu]."""
    low, high = _limits(sim.model)
    side = (force >= high).astype(int) - (force <= low).astype(int)
    return (side[1:] * side[:-1] < 0).sum(axis=0)


def _limits(model: mujoco.MjModel) -> tuple[Array, Array]:
    """Least and largest force of each actuator, by its own limit and by that of the joint it drives [nu]."""
    low, high = np.where(model.actuator_forcelimited[:, None], model.actuator_forcerange, (-np.inf, np.inf)).T
    for a in np.flatnonzero(model.actuator_trntype == _ON_JOINT):
        joint, gear = int(model.actuator_trnid[a, 0]), float(model.actuator_gear[a, 0])
        if model.jnt_actfrclimited[joint] and gear != 0:
            own = sorted(model.jnt_actfrcrange[joint] / gear)
            low[a], high[a] = max(low[a], own[0]), min(high[a], own[1])
    return low, high
