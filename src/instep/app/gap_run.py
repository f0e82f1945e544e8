"""One run of the verb gap: read, look, measure, judge, write.

The tables a gap leaves behind: every curve and every compared run, as parquet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
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
from instep.core.world import Simulator
from instep.data import load_episodes
from instep.diagnose.data_checks import DataChecks, check_data
from instep.evaluate.agreement import rank_agreements, read_rates
from instep.gap.arm_kinematics import Arm, arms_of, continuous_joints, joint_ranges
from instep.gap.command_following import CommandFollowing, command_following, position_servos
from instep.gap.error_growth import crossing, growth, time_to_threshold
from instep.gap.events import default_event_rules, event_agreement, find_events, match_events, read_event_rules
from instep.gap.gap_result import Curve, Gap
from instep.gap.horizon import HorizonOptions, error_over_time, measure_horizon, planned_steps, scores_of
from instep.gap.image_scores import camera_scores
from instep.gap.joint_error import JointErrorProfile, joint_error_profile, metric_notes, profile_scores
from instep.gap.noise_floor import noise_floors, repeated_runs, with_noise_floor
from instep.gap.paired_runs import compare_runs
from instep.gap.preparation import prepare
from instep.gap.stream_alignment import Timing, align_all_streams, stream_groups, timing
from instep.physics.actuators import with_inputs
from instep.physics.engines import Engine, open_world
from instep.report.page import Headline, HtmlReport, Number, Section, write_report
from instep.scene.folder import Scene, shipped

from . import gap_page
from .eval_page import agreement_report, agreement_scores
from .gap_causes import attributed, search, with_causes
from .output import Output, new_output


def write_curves(folder: Path, gap: Gap) -> Path:
    """curves.parquet: kind (gap, floor), channel, unit, horizon [s], its name, value, low, high, n."""
    rows: list[dict[str, object]] = []
    for kind, curves in (("gap", gap.curves), ("floor", gap.floor)):
        for curve in curves.values():
            for horizon, name, e in zip(curve.horizons, curve.names(), curve.estimates, strict=True):
                place = {"kind": kind, "channel": curve.name, "unit": curve.unit, "seconds": horizon, "horizon": name}
                rows.append({**place, "value": e.value, "low": e.low, "high": e.high, "n": e.n})
    path = folder / "curves.parquet"
    if not rows:
        return path
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_runs(folder: Path, gap: Gap) -> Path | None:
    """runs.parquet: run, time [s], and each channel as measured (real.NAME) and as replayed (sim.NAME)."""
    if not gap.pairs:
        return None
    path = folder / "runs.parquet"
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
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd", compression_level=1)
    return path


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for."""

    data: str
    against: str
    mapping: str
    runs: int
    every: float
    allow: tuple[str, ...]
    max_rmse: float | None
    at: str
    limits: Mapping[str, float]
    scene: str
    events: Path | None
    causes: str
    plain: bool
    seed: int
    out: Path | None


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a measurement found, ready to be judged and written."""

    gap: Gap
    title: str
    subtitle: str
    verdict: Headline
    numbers: Sequence[Number]
    sections: Sequence[Section]


def run(asked: Asked) -> int:
    """Measure, judge, write; the exit code is 1 where a limit is broken."""
    if not asked.data:
        raise BadInput("Nothing to measure: give recordings (instep gap DATA SCENE), or --agreement TABLE.csv.")
    if not asked.every > 0:
        raise BadInput(f"--every takes seconds above 0, not {asked.every:g}.")
    episodes = picked(read(asked.data, asked.mapping, asked.against.partition("@")[0]), asked.runs)
    output = new_output("gap", asked.out, seed=asked.seed)
    output.read(_located(asked.data))
    if not asked.against:
        found = _alone(asked, episodes)
    elif is_scene(asked.against):
        found = _with_scene(asked, episodes, output)
    else:
        output.read(_located(asked.against))
        found = _with_data(asked, episodes)
    return finish(found, asked, output)


def finish(found: Found, asked: Asked, output: Output) -> int:
    """Judge a gap by its limits and write everything."""
    gap = found.gap
    broken, limits = judge(gap, asked)
    report = HtmlReport(
        found.title,
        found.subtitle,
        gap_page.judged(found.verdict, broken, limits),
        found.numbers,
        found.sections,
        {**{f"input {k}": v for k, v in output.inputs.items()}, "seed": str(asked.seed)},
    )
    write_curves(output.folder, gap)
    write_runs(output.folder, gap)
    causes = {name: e.as_dict() for name, e in gap.causes.items()}
    output.write(gap.scores, causes=causes, notes=list(gap.notes), broken=broken, title=found.title)
    path = write_report(output.folder, report)
    console = Console()
    console.print(report.verdict.headline, highlight=False, markup=False)
    if report.verdict.because:
        console.print(report.verdict.because, style="dim", highlight=False, markup=False)
    print(path)
    return 1 if broken else 0


def judge(gap: Gap, asked: Asked) -> tuple[list[str], int]:
    """The limits that are broken, in words, and how many were given."""
    limits = dict(asked.limits)
    if asked.max_rmse is not None:
        limits[f"{gap_page.headline(gap.curves).name}@{asked.at}"] = asked.max_rmse
    broken: list[str] = []
    for name, most in limits.items():
        if name not in gap.scores:
            raise UnknownName("score", name, gap.scores)
        estimate = gap.scores[name]
        # A score that could not be taken is no proof that the limit holds.
        if not estimate.value <= most:
            broken.append(f"{name} is {estimate}, more than {most:g}.")
    return broken, len(limits)


def read(path: str, mapping: str = "", scene: str = "") -> Sequence[Episode]:
    """The episodes of a dataset or of recordings, each with a name."""
    return [named(e, i) for i, e in enumerate(load_episodes(path, mapping or None, scene=scene))]


def named(episode: Episode, place: int) -> Episode:
    """The episode with a name a reader can find it by."""
    if "name" in episode.meta:
        return episode
    group, count = episode.meta.get("group", ""), episode.meta.get("repeat", "")
    name = f"{group} {count}".strip() if group and (count or group != episode.meta.get("task")) else f"episode {place}"
    return episode.with_columns({}, name=name)


def picked(episodes: Sequence[Episode], runs: int) -> Sequence[Episode]:
    """So many runs, spread over all of them; all where `runs` is 0."""
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


def open_scene(words: str) -> tuple[Scene, Simulator]:
    """A scene and its simulator; SCENE@rapier runs it in another engine."""
    name, _, which = words.partition("@")
    engines: dict[str, Engine] = {"": "mujoco", "mujoco": "mujoco", "rapier": "rapier", "dart": "dart"}
    if which not in engines:
        raise UnknownName("engine", which, [e for e in engines if e])
    scene = Scene.load(name)
    return scene, open_world(scene, engines[which])


@contextmanager
def bar(words: str, total: int) -> Iterator[Progress]:
    """A progress bar on the error stream, gone when it is done."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        progress.add_task(words, total=total)
        yield progress


def _with_scene(asked: Asked, episodes: Sequence[Episode], output: Output) -> Found:
    scene, sim = open_scene(asked.against)
    output.read(scene.root)
    fitting, notes = at_rate(episodes, sim.spec.dt)
    fitting = with_inputs(scene, fitting)
    looked = check_data(fitting, limits=joint_ranges(scene), allow=asked.allow)
    looked.require()
    ready = prepare(fitting, [n for n in continuous_joints(scene) if n in fitting[0].spec.q.labels])
    options = HorizonOptions(every=asked.every, wrapping=ready.wrapping)
    with bar(f"replaying {len(fitting)} runs", planned_steps(ready.episodes, options, sim.spec.dt)) as progress:
        gap = measure_horizon(
            sim, ready.episodes, options=options, watch=lambda n: progress.advance(progress.task_ids[0], n)
        )
    gap = with_noise_floor(gap, ready.episodes, options=options)
    gap = replace(gap, notes=(*gap.notes, *ready.notes, *notes))
    following = _following(ready.episodes)
    gap = gap.with_scores(_following_scores(following))
    gap, profiles = _with_arms(gap, arms_in(scene, gap))
    gap, grown = _with_growth(gap, options)
    gap, happened = _with_events(gap, asked, arms_in(scene, gap))
    gap, blamed = _with_causes(asked, scene, sim, ready.episodes, gap)
    sections = sections_of(gap, following, looked, profiles, [*blamed, *grown, *happened])
    groups = noise_floors(repeated_runs(ready.episodes), options=options)
    if groups:
        sections.insert(1, gap_page.floors_section(groups))
        gap = gap.with_scores(_floor_scores(groups))
    subtitle = f"{len(fitting)} recorded runs of {asked.data} replayed in the scene {scene.name!r}"
    verdict = gap_page.verdict(gap, "The simulator is")
    return Found(gap, f"Gap of {scene.name}", subtitle, verdict, gap_page.numbers(gap), sections)


def _with_data(asked: Asked, episodes: Sequence[Episode]) -> Found:
    others = picked(read(asked.against), asked.runs)
    for side in (episodes, others):
        check_data(side, allow=asked.allow).require()
    looked = check_data(episodes, allow=asked.allow)
    wrapping = prepare(episodes).wrapping
    options = HorizonOptions(every=asked.every, wrapping=wrapping)
    gap = with_noise_floor(compare_runs(episodes, others, options=options), episodes, options=options)
    subtitle = f"{len(gap.pairs)} runs of {asked.data} beside their counterparts in {asked.against}"
    verdict = gap_page.verdict(gap, "The two worlds are")
    gap, profiles = _with_arms(gap, arms_between(gap, asked.scene))
    gap, grown = _with_growth(gap, options)
    gap, happened = _with_events(gap, asked, arms_between(gap, asked.scene))
    gap, seen = _with_looks(gap)
    happened += seen
    sections = sections_of(gap, None, looked, profiles, [*grown, *happened])
    return Found(gap, "Gap of paired runs", subtitle, verdict, gap_page.numbers(gap), sections)


def _alone(asked: Asked, episodes: Sequence[Episode]) -> Found:
    """One dataset alone: positions against commands, or the clocks of streams against each other."""
    groups = stream_groups(episodes)
    if groups:
        return _clocks(asked, groups)
    looked = check_data(episodes, allow=asked.allow)
    looked.require()
    following = command_following(episodes)
    curves = {name: Curve(name, e.unit, (inf,), (e,), episodes[0].spec.dt) for name, e in following.rmse.items()}
    gap = Gap(curves, scores_of(curves) | _following_scores(following))
    verdict, numbers = gap_page.following_page(following)
    sections = [gap_page.following_section(following), gap_page.details_section(gap, looked)]
    subtitle = f"{len(episodes)} recorded runs of {asked.data}, positions against their commands"
    return Found(gap, "Commands and answers", subtitle, verdict, numbers, sections)


def _clocks(asked: Asked, groups: Mapping[str, Sequence[Episode]]) -> Found:
    found = align_all_streams(groups)
    scores = {f"clock offset: {name}": pair.offset.seconds for name, pair in found.items()}
    spreads = [f"The offset of {n} scatters by {1e3 * p.offset.spread:.1f} ms over windows." for n, p in found.items()]
    gap = Gap({}, scores, notes=tuple(spreads))
    verdict, numbers, section = gap_page.clocks_page(found)
    subtitle = f"{len(found)} pairs of streams of {asked.data}"
    return Found(gap, "Clocks of streams", subtitle, verdict, numbers, [section, gap_page.details_section(gap, None)])


def sections_of(
    gap: Gap,
    following: CommandFollowing | None,
    looked: DataChecks | None,
    profiles: Sequence[JointErrorProfile],
    grown: Sequence[Section],
) -> list[Section]:
    """The page below the verdict."""
    sections = [gap_page.horizon_section(gap, following), gap_page.runs_section(gap)]
    sections += grown
    if profiles:
        sections.append(gap_page.arms_section(profiles, gap.scores))
    actions = gap_page.commands_section(gap)
    if actions is not None:
        sections.append(actions)
    if following is not None:
        sections.append(gap_page.following_section(following))
    return [*sections, gap_page.details_section(gap, looked)]


def arms_in(scene: Scene, gap: Gap) -> list[Arm]:
    """The arms of a scene whose every joint was compared."""
    return [arm for arm in arms_of(scene) if all(label in gap.curves for label in arm.labels)]


def arms_between(gap: Gap, scene: str) -> list[Arm]:
    """The arms of the scene that paired runs were said to belong to, where any was named."""
    return arms_in(Scene.load(scene), gap) if scene else []


def _with_arms(gap: Gap, arms: Sequence[Arm]) -> tuple[Gap, list[JointErrorProfile]]:
    if not arms:
        return gap, []
    profiles = [joint_error_profile(pair, arms) for pair in gap.pairs]
    return gap.with_scores(profile_scores(profiles), metric_notes(arms)), profiles


def _with_growth(gap: Gap, options: HorizonOptions) -> tuple[Gap, list[Section]]:
    """The gap with how fast its error grows and when it crosses three times the floor, where it grows at all."""
    errors = error_over_time(gap.pairs, options=options)
    scores = _timing_scores(timing(gap.pairs, options=options))
    floor = gap.floor["overall"].at(inf).value if "overall" in gap.floor else None
    if floor:
        scores["time to 3 x floor"] = time_to_threshold([crossing(t, e, 3 * floor) for t, e in errors])
    try:
        grown = growth([t for t, _ in errors], [e for _, e in errors])
    except BadInput as none:
        return gap.with_scores(scores, [str(none)]), []
    name = "growth exponent" if grown.shape == "power" else "growth rate"
    scores |= {name: grown.rate} | ({"doubling time": grown.doubling} if grown.shape != "power" else {})
    return gap.with_scores(scores), [gap_page.growth_section(grown, errors, floor)]


def _with_events(gap: Gap, asked: Asked, arms: Sequence[Arm]) -> tuple[Gap, list[Section]]:
    """The gap with its events, where the rules find any in either world."""
    grippers = {arm.gripper: arm.ranges[arm.gripper] for arm in arms if arm.gripper}
    rules = read_event_rules(asked.events) if asked.events else default_event_rules(gap.pairs[0].real, grippers)
    sound = [pair for pair in gap.pairs if np.isfinite(pair.sim.q).all()]
    runs = [match_events(find_events(p.real, rules), find_events(p.sim, rules), run=p.name) for p in sound]
    found = event_agreement(runs)
    if found is None:
        return gap, []
    scores = {"events later by": found.delay, "events missing": found.missing, "events extra": found.extra}
    gap = replace(gap, events=tuple(m for run in runs for m in run))
    return gap.with_scores(scores | {"event order edits": found.order}), [gap_page.events_section(runs, found, sound)]


def _with_causes(
    asked: Asked, scene: Scene, sim: Simulator, episodes: Sequence[Episode], gap: Gap
) -> tuple[Gap, list[Section]]:
    """The gap with what may be behind it; Ctrl-C leaves the search and keeps what was measured."""
    if asked.plain:
        return gap, []
    with Console(stderr=True).status("looking for causes") as status:
        try:
            if asked.causes:
                causes = attributed(sim, episodes, Scene.load(asked.causes), gap, say=status.update)
            else:
                causes = search(scene, sim, episodes, gap, say=status.update)
        except KeyboardInterrupt:
            return gap.with_scores({}, ["The search for causes was stopped."]), []
    section = gap_page.causes_section(causes.modes, causes.owned, causes.results)
    return with_causes(gap, causes), [section]


def _with_looks(gap: Gap) -> tuple[Gap, list[Section]]:
    found = camera_scores(gap.pairs)
    for look in found:
        gap = gap.with_scores(look.scores)
    return gap, [gap_page.looks_section(found)] if found else []


def _timing_scores(found: Timing | None) -> dict[str, Estimate]:
    if found is None:
        return {}
    return {"lag of the second world": found.lag, "overall, as timed": found.before, "overall, lag off": found.after}


def at_rate(episodes: Sequence[Episode], dt: float) -> tuple[list[Episode], list[str]]:
    """The runs recorded at the simulator's rate, and a note about those that were not."""
    fitting = [e for e in episodes if abs(e.spec.dt / dt - 1) <= 0.02]
    if not fitting:
        rates = sorted({round(1 / e.spec.dt) for e in episodes})
        raise BadInput(
            f"The runs were recorded at {', '.join(str(r) for r in rates)} Hz, but the scene steps at {1 / dt:.4g} Hz; "
            "give the scene that rate (rate = ... in scene.toml) or resample the recording."
        )
    if len(fitting) == len(episodes):
        return fitting, []
    left = sorted({round(1 / e.spec.dt) for e in episodes if e not in fitting})
    words = ", ".join(str(r) for r in left)
    note = f"{len(episodes) - len(fitting)} runs at {words} Hz were left out: the scene steps at {1 / dt:.4g} Hz."
    return fitting, [note]


def _following(episodes: Sequence[Episode]) -> CommandFollowing | None:
    return command_following(episodes) if position_servos(episodes) else None


def _following_scores(following: CommandFollowing | None) -> dict[str, Estimate]:
    if following is None:
        return {}
    return {f"told = done: {name}": estimate for name, estimate in following.rmse.items()} | {
        f"lag: {name}": estimate for name, estimate in following.lag.items()
    }


def _floor_scores(groups: Mapping[str, Mapping[str, Curve]]) -> dict[str, Estimate]:
    return {f"floor: {group}: {n}": curve.at(inf) for group, curves in groups.items() for n, curve in curves.items()}


def _located(words: str) -> Path:
    """The folder of a dataset whose last word may name a part of it."""
    path = Path(words)
    return path if path.exists() else path.parent


def agree(table: Path, out: Path | None, seed: int) -> int:
    """Judge a virtual evaluation by a table of success rates."""
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
    path = write_report(output.folder, report)
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
