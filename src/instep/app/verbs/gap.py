"""The verb gap: how far a simulator is from recordings, or two sets of recordings from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from rich.console import Console

from instep.app.arguments import Expert, Options, OutFolder, Positional, RecordingsArg
from instep.app.output import Output, broken_limits, new_output, progress_bar, say
from instep.app.viewer.replay_view import pair_viewer
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import array_dataclass, options_dataclass
from instep.diagnose.diagnosis import DiagnoseOptions, diagnose_gap
from instep.diagnose.failure_modes import image_sensitivity
from instep.gap.events import EventRule, read_event_rules
from instep.gap.gap_result import Gap
from instep.gap.horizon import HorizonOptions, planned_steps
from instep.gap.joint_error import joint_ranges
from instep.gap.measure import measure_gap, measure_pairs, measure_recordings
from instep.gap.preparation import DataChecks, check_data, recorded_at_rate
from instep.physics.actuators import with_inputs
from instep.policy.policy_specs import policy_from_spec
from instep.report.gap_page import checks_section, diagnosis_section, gap_page
from instep.report.page import Headline, Section
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_structure import with_joint_labels

from .data import DataArgs, is_scene, located, open_scene, read_runs, spread_runs


@options_dataclass
class GapArgs:
    """Options of `instep gap`."""

    source: Options[DataArgs] = DataArgs()
    runs: int = 0
    """measure only so many runs, spread over all; 0 is all."""
    every: Expert[float] = 0.5
    """distance between the recorded states at which the simulator is placed [s]."""
    allow: Expert[tuple[str, ...]] = ()
    """checks that may fail: finite stamps rate units frozen gain order offset."""
    limit: tuple[str, ...] = ()
    """largest allowed scores, as 'elbow@0.5 s=0.02' or 'headline@full=0.02'; exit code 1 if one is broken."""
    scene: str = ""
    """scene of two datasets, for the errors of arms, tips and events that need a model."""
    events: Expert[Path | None] = None
    """a TOML file of [[event]] rules; by default grippers, bodies and the start are watched."""
    causes: str = ""
    """a fitted scene; the gap is shared among the components that it changes."""
    policy: Expert[str] = ""
    """the policy that was recorded, as instep eval takes it. With a scene it is run in closed loop from the recorded
    starts; with a second dataset its actions on the images of both worlds are compared."""
    plain: bool = False
    """measure only, without a search for causes."""
    out: OutFolder = None

    @property
    def rules(self) -> list[EventRule] | None:
        """The event rules of the file, if one was given."""
        return read_event_rules(self.events) if self.events else None


def gap(
    data: RecordingsArg,
    against: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE|DATA")]] = "",
    /,
    args: Options[GapArgs] = GapArgs(),
) -> int:
    """Measure how far a simulator is from recordings, or two sets of recordings from each other.

    With a scene, its simulator is placed where the robot was and given the recorded commands: the error one step, some
    steps and a whole run ahead. With a second dataset, runs are compared in pairs. With one dataset alone, positions
    are compared with their commands, or the clocks of its streams with each other. Writes report.html, result.json
    and parquet files of all curves; exits 1 if a limit is broken.

    Args:
        against: a scene (name, folder, MJCF, SCENE@rapier for another engine) or a second dataset.

    """
    scene = against.partition("@")[0] if against and is_scene(against) else ""
    return measured(read_runs(data, args.source, scene), data, against, args)


def measured(episodes: Sequence[Episode], data: str, against: str, args: GapArgs) -> int:
    """Measure the gap of recordings that were read from `data`, and write everything."""
    if not args.every > 0:
        raise BadInput(f"--every takes seconds above 0, not {args.every:g}.")
    episodes = spread_runs(episodes, args.runs)
    output = new_output("gap", args.out)
    output.read(located(data))
    if not against:
        found = _recordings(episodes, data, args)
    elif is_scene(against):
        found = _with_scene(episodes, data, open_scene(against, episodes, args.source.rate), args, output)
    else:
        output.read(located(against))
        found = _with_data(episodes, data, against, args)
    return _written(found, args, output)


@array_dataclass
class GapResult:
    """A measured gap with the sections of its report that come from outside."""

    gap: Gap
    title: str
    subtitle: str
    checks: DataChecks | None = None
    causes: Sequence[Section] = ()
    scene: Scene | None = None
    """The scene of the 3D view."""
    cause_words: Sequence[str] = ()
    """The probable causes in a sentence, and which of them cannot be separated."""


def write_curves(folder: Path, gap: Gap) -> None:
    """Write curves.parquet: kind (gap, floor), channel, unit, horizon [s], its name, value, low, high, n."""
    rows: list[dict[str, object]] = []
    for kind, curves in (("gap", gap.curves), ("floor", gap.floor)):
        for curve in curves.values():
            for horizon, name, e in zip(curve.horizons, curve.names(), curve.estimates, strict=True):
                row = {"kind": kind, "channel": curve.name, "unit": curve.unit, "seconds": horizon, "horizon": name}
                rows.append({**row, "value": e.value, "low": e.low, "high": e.high, "n": e.n})
    if rows:
        pq.write_table(pa.Table.from_pylist(rows), folder / "curves.parquet")


def write_runs(folder: Path, gap: Gap) -> None:
    """Write runs.parquet: run, time [s], and each channel as measured (real.NAME) and as replayed (sim.NAME)."""
    if not gap.pairs:
        return
    codes = np.repeat(np.arange(len(gap.pairs), dtype=np.int32), [len(pair.real) for pair in gap.pairs])
    names = [pair.name or str(i) for i, pair in enumerate(gap.pairs)]
    columns: dict[str, Any] = {"run": pa.DictionaryArray.from_arrays(codes, names)}
    columns["time"] = np.concatenate([np.asarray(pair.real.t, np.float32) for pair in gap.pairs])
    for i, label in enumerate(gap.pairs[0].real.spec.q.labels):
        for side in ("real", "sim"):
            parts = [getattr(pair, side).q[:, i].astype(np.float32) for pair in gap.pairs]
            columns[f"{side}.{label}"] = np.concatenate(parts)
    # Floats of sensors do not repeat: dictionaries would cost time and save nothing.
    path = folder / "runs.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd", compression_level=1)


def _with_scene(
    episodes: Sequence[Episode], data: str, sim: SceneSimulator, args: GapArgs, output: Output
) -> GapResult:
    scene = sim.scene
    output.read(scene)
    # Clocks are checked as they were recorded, before anything is resampled.
    checks = check_data(
        with_joint_labels(scene.model, with_inputs(scene, episodes)), limits=joint_ranges(scene), allow=args.allow
    )
    checks.require()
    fitting, resampled = recorded_at_rate(episodes, sim.spec.dt)
    say(*resampled)
    options = HorizonOptions(every=args.every)
    with progress_bar() as progress:
        task = progress.add_task(f"replaying {len(fitting)} runs", total=planned_steps(fitting, options, sim.spec.dt))
        gap = measure_gap(
            sim, fitting, options=options, events=args.rules, watch=lambda steps: progress.advance(task, steps)
        )
    subtitle = f"{len(fitting)} recorded runs of {data} replayed in the scene {scene.name!r}"
    found = GapResult(gap, f"Gap of {scene.name}", subtitle, checks, scene=scene)
    if args.plain:
        return found
    # Ctrl-C stops the search for causes and keeps the measurement.
    fitted = Scene.load(args.causes) if args.causes else None
    policy = policy_from_spec(args.policy, sim) if args.policy else None
    options = DiagnoseOptions(fitted=fitted, policy=policy, allow=args.allow)
    with Console(stderr=True).status("searching for causes") as status:
        try:
            diagnosis = diagnose_gap(sim, fitting, gap=found.gap, options=options, watch=status.update)
        except KeyboardInterrupt:
            return replace(found, gap=found.gap.with_scores({}, ["The search for causes was stopped."]))
    words = [str(diagnosis), *diagnosis.ties]
    return replace(found, gap=diagnosis.gap, causes=[diagnosis_section(diagnosis)], cause_words=words)


def _with_data(episodes: Sequence[Episode], data: str, against: str, args: GapArgs) -> GapResult:
    others = spread_runs(read_runs(against), args.runs)
    checks, other_checks = (check_data(side, allow=args.allow) for side in (episodes, others))
    checks.require()
    other_checks.require()
    scene = Scene.load(args.scene) if args.scene else None
    gap = measure_pairs(episodes, others, scene=scene, options=HorizonOptions(every=args.every), events=args.rules)
    subtitle = f"{len(gap.pairs)} runs of {data} beside their counterparts in {against}"
    if args.policy:
        from instep.robot.driver import Recording

        policy = policy_from_spec(args.policy, Recording(episodes[0]))
        mode = image_sensitivity(policy, episodes, gap.pairs)
        gap = gap.with_scores({mode.name: mode.strength}, [mode.evidence])
    return GapResult(gap, "Gap of paired runs", subtitle, checks, scene=scene)


def _recordings(episodes: Sequence[Episode], data: str, args: GapArgs) -> GapResult:
    """One dataset alone: positions against commands, or the clocks of streams against each other."""
    checks = None
    if not any("stream" in e.meta for e in episodes):
        checks = check_data(episodes, allow=args.allow)
        checks.require()
    gap = measure_recordings(episodes)
    if gap.kind == "clocks":
        return GapResult(gap, "Clocks of streams", f"{len(gap.streams)} pairs of streams of {data}")
    subtitle = f"{len(episodes)} recorded runs of {data}, positions against their commands"
    return GapResult(gap, "Command following", subtitle, checks)


def _written(result: GapResult, args: GapArgs, output: Output) -> int:
    """Apply the limits to a gap and write everything; the exit code is 1 if a limit is broken."""
    gap = result.gap
    main = gap.headline if gap.curves else None
    named = {f"headline@{n}": e for n, e in zip(main.names(), main.estimates, strict=True)} if main is not None else {}
    broken = broken_limits({**gap.scores, **named}, args.limit)
    checks = [checks_section(result.checks)] if result.checks is not None else []
    report = gap_page(gap, title=result.title, subtitle=result.subtitle, causes=result.causes, checks=checks)
    verdict = report.verdict
    if broken:
        verdict = Headline("bad", "A limit is broken: " + "; ".join(broken), verdict.headline)
    elif args.limit:
        verdict = replace(verdict, status="good")
    write_curves(output.folder, gap)
    write_runs(output.folder, gap)
    causes = {name: e.as_dict() for name, e in gap.causes.items()}
    output.write(gap.scores, causes=causes, notes=list(gap.notes), broken=broken, title=result.title)
    viewer = pair_viewer(result.scene, gap.pairs)
    path = output.page(replace(report, verdict=verdict, facts=output.hashes, viewer=viewer))
    for sentence in (verdict.headline, verdict.because, *result.cause_words):
        if sentence:
            print(sentence)
    print(path)
    return 1 if broken else 0
