"""Identify parameters of a scene from recordings, check the result by gates, and save it as a new scene."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.progress import IterationWatch, Progress
from instep.core.statistics import Estimate
from instep.core.world import Array, Simulator, array_dataclass
from instep.gap.preparation import recorded_at_rate, resampling_notes
from instep.physics.actuators import with_inputs
from instep.physics.delta_model import DeltaCorrected
from instep.physics.engines import without_delta
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_structure import moved_coordinates

from .arm.arm_search import ArmEstimate, estimate_arm
from .arm.motor_estimates import MotorEstimate, estimate_motors
from .fit.least_squares import FitStatus
from .fit.searches import FitTask
from .fit.shooting import Fit, ShootingOptions, fit
from .fit.uncertainty import Identifiability, motion_for, vague_params
from .gated_fit import GatedFit, HeldOutComparison, Traces, gated_fit, held_out_traces, split, window_errors
from .gates import MAX_UNEXPLAINED, MIN_AGREEING, WINDOW_S, FitDetails, GateResult, TuneOptions, scene_details
from .group_params import (
    GroupedWorld,
    grouped_episodes,
    own_params,
    settings_of_group,
    split_by_group,
    typical_settings,
)
from .param_export import GROUP_FOLDER, ExportResult, add_provenance, export_all, promote
from .param_selection import ParamSelection, select_params
from .posterior.beliefs import PosteriorFunction, infer
from .posterior.posterior_checks import PosteriorCheck, check_posterior, first_row
from .recording_checks import (
    Searched,
    ignored_coordinates,
    measured_coordinates,
    plain_world,
    pushed_bodies,
    pushed_note,
    recording_problems,
    refuse,
    scales,
    scene_problems,
    searched,
)
from .scene_gates import check_robot, check_written_scene, with_chatter

PROMOTED, NOT_PROMOTED = "scene", "scene_not_passed"
"""Folder of a new scene that passed all gates, and of one that did not."""
SHORT_WINDOWS_S, SHORT_WINDOWS, SHORT_ITERATIONS = (0.1, 0.5), 96, 12
"""Lengths [s] and number of the windows of the fits that find an initial guess if nothing drives a joint: over short
windows the cost has one minimum, from which longer ones are within reach."""
MANY_PARAMS, FEW_WINDOWS, MANY_WINDOWS = 30, 8, 32
"""Number of parameters above which a search without estimates begins with a fit to few windows, and maximum number of
windows of the searches that follow: a step over all of them costs as much as the whole first fit."""


@array_dataclass
class Identification:
    """Identified parameters of a scene, the gates they went through, and the recordings behind them."""

    scene: Scene
    sim: Simulator
    """The simulator of the scene, with the fixed settings."""
    given: Simulator
    """The simulator of the scene as it was given."""
    selection: ParamSelection
    result: GatedFit
    fitted: Sequence[Episode]
    held_out: Sequence[Episode]
    cost_history: Sequence[Sequence[float]]
    """Cost after each iteration of each search."""
    seed: int = 0
    posterior: PosteriorCheck | None = None
    groups: tuple[str, ...] = ()
    """Groups of recordings that have parameters of their own."""
    window: float = WINDOW_S
    """Length of the held-out windows [s]."""
    left_out: tuple[str, ...] = ()
    """What the search left out, and why, in sentences."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Duration of each stage, in the order in which they began [s]."""

    @property
    def fit(self) -> Fit:
        """The final fit."""
        return self.result.fit

    @property
    def passed(self) -> bool:
        """Whether all required gates were run and passed."""
        return self.result.passed

    @property
    def status(self) -> FitStatus:
        """How the search ended; only a converged one has intervals."""
        return self.fit.status

    @property
    def param_status(self) -> dict[str, FitStatus]:
        """Status of each parameter by address: that of the search, not identifiable, or on a bound.

        If a prior holds one of several that act alike, the others have an interval only as wide as that prior makes it;
        those whose interval spans most of their range are not identifiable either.
        """
        weak = {*self.identifiability.unidentifiable, *vague_params(self.fit)}
        bounds = set(self.fit.at_bounds)
        names = [*self.fit.settings, *self.result.unidentified]
        found = {name: FitStatus.ON_BOUND if name in bounds else self.status for name in names}
        return found | {name: FitStatus.NOT_IDENTIFIABLE for name in names if name in weak}

    @property
    def gates(self) -> tuple[GateResult, ...]:
        """The gates in order."""
        return self.result.gates

    @property
    def identifiability(self) -> Identifiability:
        """Which parameters the recordings identify."""
        return self.result.identifiability

    @property
    def comparison(self) -> HeldOutComparison:
        """Error on held-out recordings, before and after."""
        return self.result.comparison

    @property
    def values(self) -> dict[str, float]:
        """The identified values by address."""
        return self.fit.settings

    @property
    def intervals(self) -> dict[str, Estimate]:
        """The identified values with their 95 % intervals; the ends are NaN unless the search converged."""
        return self.fit.estimates

    @property
    def settings(self) -> dict[str, float]:
        """All settings of the new scene: identified, unobservable and fixed ones."""
        return {**self.selection.fixed, **self.result.settings}

    def with_posterior(
        self, method: str | PosteriorFunction = "laplace", *, truths: int | None = None
    ) -> Identification:
        """The same with a posterior around the fit, checked by planted parameters and held-out recordings."""
        belief, seed = infer(self.fit, method, seed=self.seed), self.seed
        checked = check_posterior(belief, self.fit, self.held_out, method=method, truths=truths, seed=seed)
        return replace(self, posterior=checked)

    def save(self, folder: str | Path, *, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write a copy of the scene with the identified settings into a new folder; check `passed` before using it.

        If groups of recordings have parameters of their own, that scene has the mean of the groups, and
        `group_scenes/NAME` in it is the scene of a group.
        """
        facts = {
            **(provenance or {}),
            "seed": self.seed,
            "status": str(self.status),
            "gates": {gate.name: gate.as_dict() for gate in self.gates},
            "intervals": {name: estimate.as_dict() for name, estimate in self.intervals.items()},
            "unobservable": list(self.identifiability.unobservable),
            "confounded": list(self.identifiability.confounded),
        }
        if self.groups:
            own = sorted({name.partition("@")[0] for name in self.settings if "@" in name})
            facts["groups"] = {"names": list(self.groups), "own": own}
        out = promote(self.scene, typical_settings(self.settings), Path(folder), facts)
        for group in self.groups:
            promote(self.scene, settings_of_group(self.settings, group), out / GROUP_FOLDER / group, facts)
        return out

    def promoted(
        self, folder: str | Path, *, provenance: Mapping[str, Any] | None = None
    ) -> tuple[Identification, Path]:
        """Write the new scene into `folder`/scene if all gates passed, the one of the written scene included.

        That last gate opens the written scene from disk and compares it with the given one. If any gate did not pass,
        the scene is in `folder`/scene_not_passed. Returns the result with that gate added, and the folder.
        """
        out = self.save(Path(folder) / (PROMOTED if self.passed else NOT_PROMOTED), provenance=provenance)
        gate = GateResult("written scene", "not run", "Not checked, since other gates are not passed.")
        if self.passed:
            gate = check_written_scene(
                self.scene, out, self.held_out, self.comparison, window=self.window, seed=self.seed
            )
        found = replace(self, result=replace(self.result, gates=(*self.gates, gate)))
        add_provenance(out, {"gates": {one.name: one.as_dict() for one in found.gates}})
        if self.passed and not found.passed:
            out = out.rename(Path(folder) / NOT_PROMOTED)
        return found, out

    def export(self, folder: str | Path, *, urdf: Path | None = None) -> ExportResult:
        """Write all settings of the new scene for other tools: JSON, MJCF, YAML, URDF, USD."""
        left_out = [f"own values of {group!r}, {GROUP_FOLDER}/{group} of the scene" for group in self.groups]
        settings = typical_settings(self.settings)
        return export_all(Path(folder), self.scene, self.fit, settings, urdf=urdf, left_out=left_out)

    @property
    def traces(self) -> Traces:
        """Measured and predicted motion of held-out windows, `before` and `after`."""
        # The search may have run without contacts and objects; these simulators have them.
        sims = {"before": self.given, "after": self.sim.tuned(self.result.settings)}
        skip = first_row(self.fit.params, self.sim)
        return held_out_traces(sims, self.held_out, self.fit.windows.action.shape[1], skip=skip)

    def motion_for(self, name: str) -> str:
        """The motion that would reveal a parameter, in words."""
        return motion_for([name])

    def as_dict(self) -> dict[str, Any]:
        """Its part of `result.json`, beside the scores."""
        return {
            "passed": self.passed,
            "status": str(self.status),
            "gates": [gate.as_dict() for gate in self.gates],
            "params": {name: str(status) for name, status in self.param_status.items()},
            "unobservable": list(self.identifiability.unobservable),
            "confounded": list(self.identifiability.confounded),
            "at_bounds": self.fit.at_bounds,
            "channels": {name: {"before": b, "after": a} for name, (b, a) in self.comparison.channels.items()},
            "windows": len(self.fit.windows),
            "window_s": self.fit.windows.action.shape[1] * self.sim.spec.dt,
            "worlds": self.fit.worlds,
            "seconds": self.fit.seconds,
            "stage_seconds": {name: round(seconds, 2) for name, seconds in self.stage_seconds.items()},
            "stopped": self.fit.stopped,
            "notes": [*resampling_notes([*self.fitted, *self.held_out]), *self.left_out],
            **({} if self.posterior is None else {"posterior": self.posterior.as_dict()}),
        }


def identify(
    sim_or_scene: SceneSimulator | Scene | str | Path,
    episodes: Sequence[Episode],
    params: str | Sequence[str] | ParamSelection = "auto",
    options: TuneOptions | None = None,
    *,
    details: FitDetails | None = None,
    progress: Progress | None = None,
) -> Identification:
    """Identify parameters of a scene from recordings, and check them on recordings held out.

    `params` are addresses or patterns such as `joint.*.damping` and `action.delay`, `auto`, or a selection. A scene is
    simulated by MuJoCo, without its delta-action model, which belongs to the parameters it was learnt with. `details`
    replaces the table `[tune]` of the scene. `progress` reports stages and sets a budget of time; Ctrl-C, or the end of
    the budget, keeps the best values so far, and gates that were not reached are not run.
    """
    options, progress = options or TuneOptions(), progress or Progress()
    given = _opened(sim_or_scene)
    scene, details = given.scene, details or scene_details(given.scene)
    runs = _split(given, episodes, options)
    selection = params
    if not isinstance(selection, ParamSelection):
        # Held-out recordings must not tell anything, not even where commands are clipped.
        selection = select_params(scene, runs.fitted, selection, options.bounds)
    selection = own_params(selection, options.own, runs.groups) if runs.groups else selection
    history, part = _CostHistory(progress.watch), progress.part(0.0, 1.0)
    part.watch = history
    known = _Estimated(selection)
    if selection.automatic and not runs.groups:
        known = _estimated(given, runs.fitted, selection, options, part)
    selection = known.selection
    sim = given.tuned(selection.fixed) if selection.fixed else given
    sim = GroupedWorld(sim, runs.groups) if runs.groups else sim
    measured = measured_coordinates(sim.spec, runs.fitted)
    pushed = pushed_bodies(scene, selection.params, measured)
    ignored = ignored_coordinates(details.ignore_coordinates, sim.spec.v.labels)
    shooting = _shooting_options(options, details, selection, scene)
    shooting = replace(shooting, scale=scales(ignored, pushed, measured))
    task = _task(sim, runs.fitted, known, shooting, options, part)
    task, to_fit, notes = replace(task, given=given), runs.fitted, list[str]()
    if known.estimate is not None and known.searched is not None:
        to_fit, notes = known.searched.fitted, known.searched.left_out(runs.fitted)
        task = replace(task, sim=known.searched.sim.tuned(selection.fixed), full=sim)
    # Estimates and brief fits have taken the first part of the time.
    rest = part if task.shooting.initial is selection.initial else part.part(0.3, 1.0)
    result = gated_fit(task, to_fit, runs.held_out, options, progress=rest)
    # A user who names some parameters leaves what the others explain.
    most = MAX_UNEXPLAINED if selection.automatic else math.inf
    sims = given, sim.tuned(result.settings)
    match = check_robot(scene, sims, (runs.fitted, runs.held_out), window=shooting.window, most=most)
    result = result if match is None else replace(result, gates=(*result.gates, match))
    result = with_chatter(result, sims[1], runs.held_out)
    progress.leave_stage()
    left_out = (*selection.kept_values(), *([pushed_note(pushed)] if pushed else []), *notes)
    return Identification(
        scene, sim, given, selection, result, runs.fitted, runs.held_out, history.searches, options.seed,
        groups=runs.groups, window=shooting.window, left_out=left_out, stage_seconds=dict(progress.spent),
    )  # fmt: skip


def _opened(sim_or_scene: SceneSimulator | Scene | str | Path) -> SceneSimulator:
    """The simulator to fit, without a delta-action model."""
    if isinstance(sim_or_scene, str | Path):
        sim_or_scene = Scene.load(sim_or_scene)
    if isinstance(sim_or_scene, Scene):
        return without_delta(sim_or_scene)
    inside = cast(Any, sim_or_scene).world if isinstance(sim_or_scene, DeltaCorrected) else sim_or_scene
    return cast(SceneSimulator, inside)


@array_dataclass
class _Recordings:
    """Recordings to fit and held out, and the names of their groups."""

    fitted: Sequence[Episode]
    held_out: Sequence[Episode]
    groups: tuple[str, ...] = ()


def _split(sim: SceneSimulator, episodes: Sequence[Episode], options: TuneOptions) -> _Recordings:
    """The recordings at the rate of the scene; groups are split one by one."""
    if bool(options.own) != bool(options.group):
        raise BadInput("--own and --group go together: which parameters each group has of its own, and the groups.")
    episodes, _ = recorded_at_rate(with_inputs(sim.scene, episodes), sim.spec.dt)
    refuse(scene_problems(sim.scene, episodes))
    refuse(recording_problems(episodes))
    groups: tuple[str, ...] = ()
    if options.own:
        episodes, groups = grouped_episodes(episodes, options.group)
    parts = [split(some, options.held_out) for some in (split_by_group(episodes, groups) if groups else [episodes])]
    return _Recordings([e for part in parts for e in part[0]], [e for part in parts for e in part[1]], groups)


@array_dataclass
class _Estimated:
    """Direct estimates of a robot, where there are any."""

    selection: ParamSelection
    estimate: ArmEstimate | MotorEstimate | None = None
    searched: Searched | None = None
    """The world and the recordings of the estimate."""
    guesses: tuple[Mapping[str, float], ...] = ()
    """Values that only begin a search."""


def _estimated(
    sim: SceneSimulator, fitted: Sequence[Episode], selection: ParamSelection, options: TuneOptions, progress: Progress
) -> _Estimated:
    """Direct estimates of an arm with servos or motors, and the selection that goes with them."""
    plain = plain_world(sim)
    if plain is None:
        return _Estimated(selection)
    part = progress.part(0.0, 0.3, of_time_left=0.4)
    inside = searched(plain, fitted, [p for p in selection.params if p.address not in selection.listed])
    estimate = estimate_motors(inside.sim, inside.fitted, selection, part, window=options.window)
    estimate = estimate or estimate_arm(inside.sim, inside.fitted, part)
    if isinstance(estimate, ArmEstimate) and estimate.explains:
        selection = selection.without_listed()
    elif estimate is not None and plain is not sim:
        # The actuator models may explain what the joints alone do not.
        return _Estimated(selection, guesses=(estimate.settings,))
    if estimate is None:
        return _Estimated(selection)
    return _Estimated(_with_estimate(selection, estimate, options.bounds), estimate, inside)


def _with_estimate(
    selection: ParamSelection, estimate: ArmEstimate | MotorEstimate, bounds: Mapping[str, tuple[float, float]]
) -> ParamSelection:
    """The selection without parameters that an arm's recordings do not show, with ranges around the estimates.

    The user's own bounds hold, wherever the estimates lie.
    """
    found, params = estimate.settings, list[Param]()
    for param in selection.params:
        if not estimate.free(param.address):
            continue
        if param.address in found and not any(fnmatchcase(param.address, pattern) for pattern in bounds):
            value = found[param.address]
            margin = abs(value) / 2
            low, high = (value / 4, value * 4) if param.log else (value - margin, value + margin)
            param = replace(param, low=min(param.low, low), high=max(param.high, high))
        params.append(param)
    stiffness = {f"joint.{joint}.friction_stiffness" for joint in estimate.joint_names}
    fixed = {name: value for name, value in selection.fixed.items() if name not in stiffness}
    initial = {param.address: selection.initial[param.address] for param in params}
    return replace(selection, params=tuple(params), initial=initial, fixed={**fixed, **estimate.friction_stiffness})


def _task(
    sim: Simulator, fitted: Sequence[Episode], known: _Estimated, shooting: ShootingOptions, options: TuneOptions,
    progress: Progress,
) -> FitTask:  # fmt: skip
    """Where the searches begin, and with which method: at direct estimates, or after a brief fit."""
    selection, guesses = known.selection, (*known.guesses, *([options.initial] if options.initial else []))
    task = FitTask(sim, selection.params, shooting, guesses, selection.initial)
    if known.estimate is not None:
        found = {name: value for name, value in known.estimate.settings.items() if name in selection.initial}
        shooting = replace(shooting, initial={**selection.initial, **found})
        return replace(task, shooting=shooting, method=known.estimate, hold_unseen=True, most_searches=MIN_AGREEING)
    many = selection.automatic and len(selection.params) >= MANY_PARAMS
    if not (selection.undriven or many):
        return task
    lengths = [(window, SHORT_WINDOWS) for window in SHORT_WINDOWS_S if window < shooting.window]
    stages = lengths if selection.undriven else [(shooting.window, FEW_WINDOWS)]
    quick = progress.part(0.0, 0.3, of_time_left=0.3 if selection.undriven else 0.6)
    shooting = replace(shooting, initial=_brief_fit(task, fitted, stages, quick))
    if many:
        shooting = replace(shooting, limit=min(shooting.limit or MANY_WINDOWS, MANY_WINDOWS))
    return replace(task, shooting=shooting, guesses=())


def _brief_fit(
    task: FitTask, episodes: Sequence[Episode], stages: Sequence[tuple[float, int]], progress: Progress
) -> dict[str, float]:
    """Values from fits over short or few windows, or the best guess if that predicts windows better.

    `stages` has the length [s] and the number of windows of each fit.
    """
    options = task.shooting

    def error(settings: Mapping[str, float]) -> float:
        errors, _ = window_errors(task.sim, episodes, settings, options.window, SHORT_WINDOWS)
        return float(np.nanmedian(errors.sum(axis=1)))

    own = task.scene_values
    guesses = [own, *({n: guess.get(n, v) for n, v in own.items()} for guess in task.guesses)]
    first = dict(min(guesses, key=error) if task.guesses else own)
    found, brief = first, replace(options, iterations=SHORT_ITERATIONS)
    for i, (window, limit) in enumerate(stages):
        if progress.ended:
            break
        part = progress.part(i / len(stages), (i + 1) / len(stages), of_time_left=1 / (len(stages) - i))
        part.advance("short windows" if window < options.window else "few windows", 0.0)
        chosen = replace(brief, window=window, limit=limit, initial=found)
        found = fit(task.sim, episodes, task.params, chosen, progress=part).settings
    return found if error(found) < error(first) else first


def _shooting_options(
    options: TuneOptions, details: FitDetails, selection: ParamSelection, scene: Scene
) -> ShootingOptions:
    joints = {k.parts.name for k in selection.params if k.parts.kind in ("joint", "actuator")}
    return ShootingOptions(
        window=options.window or WINDOW_S,
        limit=options.windows,
        initial=selection.initial,
        guesses=details.guesses,
        local=len(joints) >= 4,  # number of joints above which derivatives are taken joint by joint
        moves=moved_coordinates(scene.model),
        drop_unpredictable=details.drop_unpredictable or selection.undriven,
        fixed_start=details.fixed_start,
        seed=options.seed,
    )


@dataclass(slots=True)
class _CostHistory:
    """Collects the cost of every iteration of every search, and passes it on."""

    watch: IterationWatch | None
    searches: list[list[float]] = field(default_factory=list[list[float]])

    def __call__(self, iteration: int, cost: float, x: Array) -> None:
        if iteration == 0 or not self.searches:
            self.searches.append([])
        self.searches[-1].append(cost)
        if self.watch is not None:
            self.watch(iteration, cost, x)
