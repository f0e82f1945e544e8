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
from instep.core.world import Array, Simulator, array_dataclass, options_dataclass
from instep.gap.preparation import recorded_at_rate, resampling_notes
from instep.physics.actuators import with_inputs
from instep.physics.delta_model import DELTA_FILE, DeltaCorrected
from instep.physics.engines import without_delta
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_structure import moved_coordinates

from .arm.arm_search import ArmEstimate, estimate_arm
from .arm.motor_estimates import MotorEstimate, estimate_motors
from .delta_action import DeltaEvaluation, learn_and_evaluate
from .fit.identifiability import Identifiability, motion_for, vague_params
from .fit.least_squares import FitStatus
from .fit.searches import MIN_AGREEING
from .fit.shooting import Fit, ShootingOptions, fit
from .gates import MAX_UNEXPLAINED, GatedFit, GateOptions, GateResult, check_robot, gated_fit, split, with_chatter
from .group_params import (
    GroupedWorld,
    grouped_episodes,
    own_params,
    settings_of_group,
    split_by_group,
    typical_settings,
)
from .held_out import HeldOutComparison, Traces, held_out_traces, window_errors
from .param_export import GROUP_FOLDER, ExportResult, add_provenance, export_all, promote
from .param_selection import ParamSelection, select_params
from .posterior.inference import Method, infer
from .posterior.posterior_checks import PosteriorCheck, check_posterior, first_row
from .recording_checks import (
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
from .written_scene import check_written_scene, written_scene_not_run

PROMOTED, NOT_PROMOTED = "scene", "scene_not_passed"
"""Folder of a new scene that passed all gates, and of one that did not."""
WINDOW_S = 1.0
"""Length of windows where none is given [s]."""
SHORT_WINDOWS_S, SHORT_WINDOWS, SHORT_ITERATIONS = (0.1, 0.5), 96, 12
"""Lengths [s] and number of the windows of the fits that find a start where nothing drives a joint: over short ones the
cost has one minimum, from which longer ones are within reach."""
MANY_PARAMS, FEW_WINDOWS, MANY_WINDOWS = 30, 8, 32
"""Parameters from which on a search without estimates begins with a fit to few windows, and the most windows of the
searches that follow: a step over all of them costs as much as the whole first fit."""
LOCAL_JOINTS = 4
"""Joints from which on derivatives are taken joint by joint."""


@options_dataclass
class IdentifyOptions:
    """Options of an identification."""

    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Bounds of the parameters, by address or pattern; those of the scene where none are given."""
    window: float | None = None
    """Length of the windows that are simulated [s]; shorter for chaotic motion. Where None, 1 s, and for arms with
    motors as long as the motion stays predictable."""
    windows: int = 200
    """Most windows used, spread over all recordings."""
    held_out: float = 1 / 3
    """Share of the recordings that is held out."""
    ignore_coordinates: tuple[str, ...] = ()
    """Measured coordinates without weight in the fit, by label or pattern."""
    fixed_start: bool = False
    """Whether start states of windows are taken as measured, rather than estimated within their noise."""
    drop_unpredictable: bool = False
    """Whether rows are left out whose prediction is dominated by noise of the start state; with automatic parameters
    they always are where nothing drives a joint."""
    starts: int = 1
    """Starting points per search, the first of all at the scene's own values."""
    seeds: int = 4
    """Independent searches whose results must agree; with fewer than three nothing is promoted."""
    draws: int | None = None
    """Planted parameter sets in the recovery gate; enough for about forty values where None. With 0 the gate is not
    run, and nothing is promoted."""
    own: tuple[str, ...] = ()
    """Parameters, by address or pattern, of which each group of recordings has its own; the others are shared."""
    groups: tuple[str, ...] = ()
    """Rules of the groups: a metadata field, `folder`, or PATTERN=NAME."""
    begin: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values from which a search begins, beside the scene's own: those of an earlier run, say."""
    seed: int = 0

    def __post_init__(self) -> None:
        if bool(self.own) != bool(self.groups):
            raise BadInput("--own and --group go together: which parameters each group has of its own, and the groups.")
        few = self.windows < 2 or min(self.starts, self.seeds) < 1 or (self.draws is not None and self.draws < 0)
        window = WINDOW_S if self.window is None else self.window
        if few or not 0 < window < math.inf:
            raise BadInput(
                "--window must be above 0 s, --windows at least 2, --starts and --seeds at least 1 and --draws at "
                f"least 0, not {window:g}, {self.windows}, {self.starts}, {self.seeds} and {self.draws or 0}."
            )


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
    delta: DeltaEvaluation | None = None
    groups: tuple[str, ...] = ()
    """Groups of recordings that have parameters of their own."""
    window: float = WINDOW_S
    """Length of the held-out windows [s]."""
    left_out: tuple[str, ...] = ()
    """What the search left out, and why, in sentences."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """How long each stage took, in the order in which they began [s]."""

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
        """How the search ended; there are intervals only where it converged."""
        return self.fit.status

    @property
    def stopped(self) -> bool:
        """Whether the search was interrupted; the values are the best until then."""
        return self.fit.stopped

    @property
    def param_status(self) -> dict[str, FitStatus]:
        """Status of each parameter by address: that of the search, not identifiable, or on a bound.

        Where a prior holds one of several that act alike, the others have an interval only as wide as that prior
        makes it; those whose interval spans most of their range are not identifiable either.
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

    def with_posterior(self, method: Method = "laplace") -> Identification:
        """The same with a posterior around the fit, checked by planted parameters and held-out recordings."""
        belief = infer(self.fit, method, seed=self.seed)
        return replace(self, posterior=check_posterior(belief, self.fit, self.held_out, method=method, seed=self.seed))

    def with_delta(self) -> Identification:
        """The same with a delta-action model of what the parameters leave over, evaluated on held-out recordings."""
        sim = self.sim.tuned(self.result.settings)
        return replace(self, delta=learn_and_evaluate(sim, self.fitted, self.held_out, seed=self.seed))

    def save(self, folder: str | Path, *, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write a copy of the scene with the identified settings into a new folder; check `passed` before using it.

        Where groups of recordings have parameters of their own, that scene has the mean of the groups, and
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
        if self.delta is not None and self.delta.kept:
            self.delta.model.save(out / DELTA_FILE)
        return out

    def promoted(
        self, folder: str | Path, *, provenance: Mapping[str, Any] | None = None
    ) -> tuple[Identification, Path]:
        """Write the new scene into `folder`/scene where all gates were passed and what is on disk holds what they said.

        Last of all the written scene is opened from disk and compared with the one that was given; where that fails, or
        another gate was not passed, the scene is in `folder`/scene_not_passed. Returns the result with that gate added.
        """
        place = Path(folder) / (PROMOTED if self.passed else NOT_PROMOTED)
        out = self.save(place, provenance=provenance)
        gate = written_scene_not_run() if not self.passed else self._checked_on_disk(out)
        found = replace(self, result=replace(self.result, gates=(*self.gates, gate)))
        add_provenance(out, {"gates": {one.name: one.as_dict() for one in found.gates}})
        if self.passed and not found.passed:
            out = out.rename(Path(folder) / NOT_PROMOTED)
        return found, out

    def _checked_on_disk(self, folder: Path) -> GateResult:
        expected = self.comparison
        return check_written_scene(self.scene, folder, self.held_out, expected, window=self.window, seed=self.seed)

    def export(self, folder: str | Path, *, urdf: Path | None = None) -> ExportResult:
        """Write all settings of the new scene for other tools: JSON, MJCF, YAML, URDF, USD."""
        left_out = [f"the delta-action model, {DELTA_FILE} of the scene"] if self.delta and self.delta.kept else []
        left_out += [f"own values of {group!r}, {GROUP_FOLDER}/{group} of the scene" for group in self.groups]
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
        """What `result.json` holds of it, beside the scores."""
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
            "stopped": self.stopped,
            "notes": [*resampling_notes([*self.fitted, *self.held_out]), *self.left_out],
            **({} if self.posterior is None else {"posterior": self.posterior.as_dict()}),
            **({} if self.delta is None else {"delta": self.delta.as_dict()}),
        }


def identify(
    sim_or_scene: SceneSimulator | Scene | str | Path,
    episodes: Sequence[Episode],
    params: str | Sequence[str] | ParamSelection = "auto",
    options: IdentifyOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Identification:
    """Identify parameters of a scene from recordings, and check them on recordings held out.

    `params` are addresses or patterns such as `joint.*.damping` and `action.delay`, `auto`, or a selection. A scene is
    simulated by MuJoCo; the delta-action model of a scene or simulator is left out, since it belongs to the parameters
    it was learnt with. `progress` reports stages and sets a budget of time; Ctrl-C, or the end of the budget, keeps
    the best values so far, and gates that were not reached are not run.
    """
    options = options or IdentifyOptions()
    if isinstance(sim_or_scene, str | Path | Scene):
        scene = sim_or_scene if isinstance(sim_or_scene, Scene) else Scene.load(sim_or_scene)
        sim: Simulator = without_delta(scene)
    else:
        scene = sim_or_scene.scene
        inside = cast(Any, sim_or_scene).world if isinstance(sim_or_scene, DeltaCorrected) else sim_or_scene
        sim = cast(Simulator, inside)
    episodes, _ = recorded_at_rate(with_inputs(scene, episodes), sim.spec.dt)
    refuse(scene_problems(scene, episodes))
    refuse(recording_problems(episodes))
    given, groups = sim, ()
    if options.own:
        episodes, groups = grouped_episodes(episodes, options.groups)
    parts = [split(some, options.held_out) for some in (split_by_group(episodes, groups) if groups else [episodes])]
    fitted, held_out = ([e for part in parts for e in part[side]] for side in (0, 1))
    selection = params
    if not isinstance(selection, ParamSelection):
        # Recordings held out must not tell anything, not even where commands are clipped.
        selection = select_params(scene, fitted, selection, options.bounds)
    selection = own_params(selection, options.own, groups) if groups else selection
    progress = progress or Progress()
    history, part = _CostHistory(progress.watch), progress.part(0.0, 1.0)
    part.watch = history
    estimate, found_in, begun = None, None, list[Mapping[str, float]]()
    plain = plain_world(sim)
    if selection.automatic and not groups and plain is not None:
        first = part.part(0.0, 0.3, of_time_left=0.4)
        found_in = searched(plain, fitted, [p for p in selection.params if p.address not in selection.listed])
        estimate = estimate_motors(found_in.sim, found_in.fitted, selection, first, window=options.window)
        estimate = estimate or estimate_arm(found_in.sim, found_in.fitted, first)
        if estimate is not None and isinstance(estimate, ArmEstimate) and estimate.explains:
            selection = selection.without_listed()
        elif estimate is not None and plain is not sim:
            # What the joints alone do not explain may be what the actuator models do.
            estimate, begun = None, [estimate.settings]
        selection = selection if estimate is None else _with_estimate(selection, estimate, options.bounds)
    sim = sim.tuned(selection.fixed) if selection.fixed else sim
    sim = GroupedWorld(cast(SceneSimulator, sim), groups) if groups else sim
    measured = measured_coordinates(sim.spec, fitted)
    pushed = pushed_bodies(scene, selection.params, measured)
    ignored = ignored_coordinates(options.ignore_coordinates, sim.spec.v.labels)
    shooting = _shooting_options(options, selection, scene, scales(ignored, pushed, measured))
    starts = (*begun, options.begin) if options.begin else tuple(begun)
    many = selection.automatic and len(selection.params) >= MANY_PARAMS
    gates = GateOptions(seeds=options.seeds, draws=options.draws, seed=options.seed, given=given, starts=starts)
    if estimate is not None:
        found = {name: value for name, value in estimate.settings.items() if name in selection.start}
        shooting = replace(shooting, start={**selection.start, **found})
        seeds = min(options.seeds, MIN_AGREEING)
        gates = replace(gates, seeds=seeds, search=estimate, scene_values=selection.start, hold_unseen=True, full=sim)
    elif selection.undriven or many:
        lengths = [(window, SHORT_WINDOWS) for window in SHORT_WINDOWS_S if window < shooting.window]
        stages = lengths if selection.undriven else [(shooting.window, FEW_WINDOWS)]
        quick = part.part(0.0, 0.3, of_time_left=0.3 if selection.undriven else 0.6)
        shooting = replace(shooting, start=_quick_start(sim, fitted, (selection, starts), shooting, stages, quick))
        gates = replace(gates, scene_values=selection.start, starts=())
        shooting = replace(shooting, limit=min(options.windows, MANY_WINDOWS)) if many else shooting
    found_by, to_fit = sim, fitted
    left_out = [*selection.kept_values(), *([pushed_note(pushed)] if pushed else [])]
    if estimate is not None and found_in is not None:
        found_by, to_fit = found_in.sim.tuned(selection.fixed), found_in.fitted
        left_out += found_in.left_out(fitted)
    result = gated_fit(
        found_by,
        (to_fit, held_out),
        selection.params,
        shooting,
        gates,
        progress=part.part(0.3, 1.0) if estimate is not None or selection.undriven or many else part,
    )
    # A user who names some parameters leaves what the others explain.
    most = MAX_UNEXPLAINED if selection.automatic else math.inf
    sims = given, sim.tuned(result.settings)
    match = check_robot(scene, sims, (fitted, held_out), window=shooting.window, most=most)
    result = result if match is None else replace(result, gates=(*result.gates, match))
    result = with_chatter(result, sims[1], held_out)
    progress.leave_stage()
    return Identification(
        scene, sim, given, selection, result, fitted, held_out, history.searches, options.seed, groups=groups,
        window=shooting.window, left_out=tuple(left_out), stage_seconds=dict(progress.spent),
    )  # fmt: skip


def _quick_start(
    sim: Simulator,
    episodes: Sequence[Episode],
    begin: tuple[ParamSelection, Sequence[Mapping[str, float]]],
    options: ShootingOptions,
    stages: Sequence[tuple[float, int]],
    progress: Progress,
) -> dict[str, float]:
    """Values from fits over short or few windows, or those begun with where these predict windows better.

    `begin` has the parameters with the scene's values, and further values to begin with; `stages` the length [s] and
    the number of windows of each fit.
    """
    selection, others = begin

    def error(settings: Mapping[str, float]) -> float:
        return float(np.nanmedian(window_errors(sim, episodes, settings, options.window, SHORT_WINDOWS)[0].sum(axis=1)))

    begun = [selection.start, *({n: found.get(n, v) for n, v in selection.start.items()} for found in others)]
    first = dict(min(begun, key=error) if others else selection.start)
    found, brief = first, replace(options, iterations=SHORT_ITERATIONS)
    for i, (window, limit) in enumerate(stages):
        if progress.ended:
            break
        part = progress.part(i / len(stages), (i + 1) / len(stages), of_time_left=1 / (len(stages) - i))
        part.advance("short windows" if window < options.window else "few windows", 0.0)
        chosen = replace(brief, window=window, limit=limit, start=found)
        found = fit(sim, episodes, selection.params, chosen, progress=part).settings
    return found if error(found) < error(first) else first


def _with_estimate(
    selection: ParamSelection, estimate: ArmEstimate | MotorEstimate, bounds: Mapping[str, tuple[float, float]]
) -> ParamSelection:
    """The selection without what the recordings of an arm say nothing about, and with ranges around its estimates.

    Bounds that a user gave hold, wherever the estimates lie.
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
    start = {param.address: selection.start[param.address] for param in params}
    return replace(selection, params=tuple(params), start=start, fixed={**fixed, **estimate.friction_stiffness})


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


def _shooting_options(
    options: IdentifyOptions, selection: ParamSelection, scene: Scene, scale: Mapping[str, float]
) -> ShootingOptions:
    joints = {k.parts.name for k in selection.params if k.parts.kind in ("joint", "actuator")}
    return ShootingOptions(
        window=options.window or WINDOW_S,
        limit=options.windows,
        start=selection.start,
        starts=options.starts,
        local=len(joints) >= LOCAL_JOINTS,
        moves=moved_coordinates(scene.model),
        drop_unpredictable=options.drop_unpredictable or selection.undriven,
        fixed_start=options.fixed_start,
        scale=scale,
        seed=options.seed,
    )
