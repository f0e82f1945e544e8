"""One run of the verb gap: read, check, measure, diagnose, apply limits, write."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.statistics import Estimate
from instep.core.world import array_dataclass, options_dataclass
from instep.diagnose.diagnosis import DiagnoseOptions, diagnose_gap
from instep.diagnose.failure_modes import image_sensitivity
from instep.evaluate.agreement import agreement_report, agreement_scores, rank_agreements, read_rates
from instep.gap.events import EventRule, read_event_rules
from instep.gap.gap_result import Gap
from instep.gap.horizon import HorizonOptions, planned_steps
from instep.gap.joint_error import joint_ranges
from instep.gap.measure import measure_gap, measure_pairs, measure_recordings, recorded_at_rate
from instep.gap.preparation import DataChecks, check_data
from instep.physics.actuators import with_inputs
from instep.physics.engines import open_world, scene_and_engine
from instep.report.gap_page import gap_page
from instep.report.page import Headline, Section
from instep.scene.folder import Scene, SceneSimulator, scene_for, shipped
from instep.scene.robot_structure import with_joint_labels

from .data_args import DataArgs, read_data
from .output import Output, new_output
from .viewer.report_view import pair_viewer
from .world_specs import policy_from_spec


@options_dataclass
class GapRequest:
    """The arguments of the verb gap."""

    data: str
    against: str
    source: DataArgs
    runs: int
    every: float
    allow: tuple[str, ...]
    limits: Mapping[str, float]
    """Score -> its largest allowed value."""
    max_rmse: tuple[str, float] | None
    """Horizon and largest allowed value of the headline curve."""
    scene: str
    events: Path | None
    causes: str
    policy: str
    plain: bool
    seed: int
    out: Path | None
    episodes: Sequence[Episode] = ()
    """The recordings, where they were read already."""

    @property
    def rules(self) -> list[EventRule] | None:
        """The event rules, where a file was given."""
        return read_event_rules(self.events) if self.events else None


@array_dataclass
class GapResult:
    """A measured gap with the sections of its report that come from outside."""

    gap: Gap
    title: str
    subtitle: str
    checks: DataChecks | None = None
    causes: Sequence[Section] = ()
    scene: Scene | None = None
    """What shows the runs in 3D."""
    cause_words: Sequence[str] = ()
    """The probable causes in a sentence, and which of them cannot be separated."""


def run(args: GapRequest) -> int:
    """Measure, apply limits, write; the exit code is 1 where a limit is broken."""
    if not args.data:
        raise BadInput("Nothing to measure: give recordings (instep gap DATA SCENE), or --agreement TABLE.csv.")
    if not args.every > 0:
        raise BadInput(f"--every takes seconds above 0, not {args.every:g}.")
    recorded = list(args.episodes) or read_runs(args.data, args.source, _scene_name(args.against))
    episodes = spread_runs(recorded, args.runs)
    output = new_output("gap", args.out, seed=args.seed)
    output.read(located(args.data))
    if not args.against:
        result = _recordings(args, episodes)
    elif is_scene(args.against):
        result = _with_scene(args, episodes, output)
    else:
        output.read(located(args.against))
        result = _with_data(args, episodes)
    return finish(result, args, output)


def finish(result: GapResult, args: GapRequest, output: Output) -> int:
    """Apply the limits to a gap and write everything."""
    gap = result.gap
    broken, limits = broken_limits(gap, args)
    checks = [result.checks.section()] if result.checks is not None else []
    report = gap_page(gap, title=result.title, subtitle=result.subtitle, causes=result.causes, checks=checks)
    headline = report.verdict
    if broken:
        headline = Headline("bad", "A limit is broken: " + "; ".join(broken), headline.headline)
    elif limits:
        headline = replace(headline, status="good")
    facts = {**{f"input {k}": v for k, v in output.inputs.items()}, "seed": str(args.seed)}
    write_curves(output.folder, gap)
    write_runs(output.folder, gap)
    causes = {name: e.as_dict() for name, e in gap.causes.items()}
    output.write(gap.scores, causes=causes, notes=list(gap.notes), broken=broken, title=result.title)
    viewer = pair_viewer(result.scene, gap.pairs)
    path = output.page(replace(report, verdict=headline, facts=facts, viewer=viewer))
    console = Console()
    console.print(headline.headline, highlight=False, markup=False)
    if headline.because:
        console.print(headline.because, style="dim", highlight=False, markup=False)
    for sentence in result.cause_words:
        console.print(sentence, highlight=False, markup=False)
    print(path)
    return 1 if broken else 0


def broken_limits(gap: Gap, args: GapRequest) -> tuple[list[str], int]:
    """The limits that are broken, in words, and the number of limits given."""
    limits = dict(args.limits)
    if args.max_rmse is not None:
        limits[f"{gap.headline.name}@{args.max_rmse[0]}"] = args.max_rmse[1]
    return broken_scores(gap.scores, limits), len(limits)


def broken_scores(scores: Mapping[str, Estimate], limits: Mapping[str, float]) -> list[str]:
    """The limits that scores break, in words."""
    broken: list[str] = []
    for name, most in limits.items():
        if name not in scores:
            raise UnknownName("score", name, scores)
        # A score that could not be measured does not show that the limit holds.
        if not scores[name].value <= most:
            broken.append(f"{name} is {scores[name]}, more than {most:g}.")
    return broken


def read_runs(path: str, source: DataArgs | None = None, scene: str = "") -> list[Episode]:
    """The episodes of a dataset or of recordings, each with a name."""
    return [named_run(e, i) for i, e in enumerate(read_data(path, source or DataArgs(), scene))]


def _scene_name(words: str) -> str:
    """The scene among the words of an argument; empty where they name a dataset."""
    return words.partition("@")[0] if words and is_scene(words) else ""


def named_run(episode: Episode, place: int) -> Episode:
    """The episode with a name: its own, that of its group and repeat, or its place."""
    if "name" in episode.meta:
        return episode
    group, count = episode.meta.get("group", ""), episode.meta.get("repeat", "")
    name = f"{group} {count}".strip() if group and (count or group != episode.meta.get("task")) else f"episode {place}"
    return episode.with_columns({}, name=name)


def spread_runs(episodes: Sequence[Episode], runs: int) -> list[Episode]:
    """A number of runs, spread over all of them; all where `runs` is 0."""
    if runs < 0:
        raise BadInput(f"--runs takes a number of runs, not {runs}.")
    if runs == 0 or runs >= len(episodes):
        return list(episodes)
    return [episodes[i * len(episodes) // runs] for i in range(runs)]


def is_scene(words: str) -> bool:
    """Whether the second argument names a scene rather than a dataset."""
    name = words.partition("@")[0]
    path = Path(name)
    return name in shipped() or path.suffix in (".xml", ".urdf", ".mjcf") or (path / "scene.toml").is_file()


def open_scene(words: str, episodes: Sequence[Episode] = (), rate: float | None = None) -> SceneSimulator:
    """The simulator of a scene to replay recordings in; SCENE@rapier runs it in another engine."""
    scene, engine = scene_and_engine(words)
    return open_world(scene_for(scene, episodes, rate=rate), engine)


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
    labels = gap.pairs[0].real.spec.q.labels
    names = pa.array([pair.name or str(i) for i, pair in enumerate(gap.pairs)])
    counts = [len(pair.real) for pair in gap.pairs]
    codes = pa.array(np.repeat(np.arange(len(gap.pairs), dtype=np.int32), counts))
    columns = {"run": pa.DictionaryArray.from_arrays(codes, names)}
    columns["time"] = pa.array(np.concatenate([np.asarray(pair.real.t, np.float32) for pair in gap.pairs]))
    for i, label in enumerate(labels):
        for side in ("real", "sim"):
            values = np.concatenate([getattr(pair, side).q[:, i].astype(np.float32) for pair in gap.pairs])
            columns[f"{side}.{label}"] = pa.array(values)
    # Floats of sensors do not repeat: dictionaries would cost time and save nothing.
    path = folder / "runs.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd", compression_level=1)


def judge_agreement(table: Path, out: Path | None, seed: int) -> int:
    """Compare the success rates of a virtual evaluation with real ones, from a table."""
    rates = read_rates(table)
    found = rank_agreements(rates, seed=seed)
    output = new_output("gap", out, seed=seed)
    output.read(table)
    rows = [
        {"task": r.task, "policies": len(r.policies), "pearson": r.correlation.value, "mmrv": r.violation.value}
        for r in found
    ]
    output.write(agreement_scores(found), tasks=rows, words=[f"{r.task}: {r.words}" for r in found])
    report = agreement_report(rates, found, f"{len(rates)} pairs of success rates from {table}")
    path = output.page(report)
    listed = Table("task", box=None)
    for head in ("n", "Pearson", "95 %", "Spearman", "MMRV", "perfect"):
        listed.add_column(head, justify="right", no_wrap=True)
    for r in found:
        c = r.correlation
        numbers = (f"{c.value:.3f}", f"{c.low:.2f} to {c.high:.2f}", f"{r.rank_correlation.value:.3f}")
        task = r.task.replace("_", " ")  # so that a narrow window may break it
        listed.add_row(task, str(len(r.policies)), *numbers, f"{r.violation.value:.3f}", f"{r.null.value:.3f}")
    listed.caption = "n policies; 'perfect' is the MMRV that a perfect simulator would show with so few trials"
    console = Console()
    console.print(listed)
    console.print(report.verdict.headline, highlight=False, markup=False)
    print(path)
    return 0


def _with_scene(args: GapRequest, episodes: Sequence[Episode], output: Output) -> GapResult:
    sim = open_scene(args.against, episodes, args.source.rate)
    scene = sim.scene
    output.read_scene(scene)
    # Clocks are checked as they were recorded, before anything is resampled.
    commanded = with_joint_labels(scene.model, with_inputs(scene, episodes))
    checks = check_data(commanded, limits=joint_ranges(scene), allow=args.allow)
    checks.require()
    fitting, resampled = recorded_at_rate(episodes, sim.spec.dt)
    for sentence in resampled:
        Console(stderr=True).print(sentence, highlight=False, markup=False)
    options = HorizonOptions(every=args.every)
    with _bar(f"replaying {len(fitting)} runs", planned_steps(fitting, options, sim.spec.dt)) as progress:
        task = progress.task_ids[0]
        gap = measure_gap(
            sim, episodes, options=options, events=args.rules, watch=lambda steps: progress.advance(task, steps)
        )
    gap, causes, words = _diagnosed(args, sim, episodes, gap)
    subtitle = f"{len(fitting)} recorded runs of {args.data} replayed in the scene {scene.name!r}"
    return GapResult(gap, f"Gap of {scene.name}", subtitle, checks, causes, scene, words)


def _diagnosed(
    args: GapRequest, sim: SceneSimulator, episodes: Sequence[Episode], gap: Gap
) -> tuple[Gap, Sequence[Section], Sequence[str]]:
    """The gap with its causes, their section and sentences; Ctrl-C leaves the search and keeps what was measured."""
    if args.plain:
        return gap, (), ()
    fitted = Scene.load(args.causes) if args.causes else None
    policy = policy_from_spec(args.policy, sim) if args.policy else None
    options = DiagnoseOptions(fitted=fitted, policy=policy, allow=args.allow)
    with Console(stderr=True).status("searching for causes") as status:
        try:
            diagnosis = diagnose_gap(sim, episodes, gap=gap, options=options, watch=status.update)
        except KeyboardInterrupt:
            return gap.with_scores({}, ["The search for causes was stopped."]), (), ()
    return diagnosis.gap, [diagnosis.section()], [str(diagnosis), *diagnosis.ties]


def _with_data(args: GapRequest, episodes: Sequence[Episode]) -> GapResult:
    others = spread_runs(read_runs(args.against), args.runs)
    checks, other_checks = (check_data(side, allow=args.allow) for side in (episodes, others))
    checks.require()
    other_checks.require()
    scene = Scene.load(args.scene) if args.scene else None
    options = HorizonOptions(every=args.every)
    gap = measure_pairs(episodes, others, scene=scene, options=options, events=args.rules)
    subtitle = f"{len(gap.pairs)} runs of {args.data} beside their counterparts in {args.against}"
    if args.policy:
        from instep.robot.driver import Recording

        policy = policy_from_spec(args.policy, Recording(episodes[0]))
        mode = image_sensitivity(policy, episodes, gap.pairs, seed=args.seed)
        gap = gap.with_scores({mode.name: mode.strength}, [mode.evidence])
    return GapResult(gap, "Gap of paired runs", subtitle, checks, scene=scene)


def _recordings(args: GapRequest, episodes: Sequence[Episode]) -> GapResult:
    """One dataset alone: positions against commands, or the clocks of streams against each other."""
    checks = None
    if not any("stream" in e.meta for e in episodes):
        checks = check_data(episodes, allow=args.allow)
        checks.require()
    gap = measure_recordings(episodes)
    if gap.kind == "clocks":
        return GapResult(gap, "Clocks of streams", f"{len(gap.streams)} pairs of streams of {args.data}")
    subtitle = f"{len(episodes)} recorded runs of {args.data}, positions against their commands"
    return GapResult(gap, "Command following", subtitle, checks)


@contextmanager
def _bar(words: str, total: int) -> Generator[Progress]:
    """A transient progress bar on the error stream."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        progress.add_task(words, total=total)
        yield progress


def located(words: str) -> Path:
    """The folder of a dataset whose last word may name a part of it."""
    path = Path(words)
    return path if path.exists() else path.parent
