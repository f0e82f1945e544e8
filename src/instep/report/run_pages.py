"""Pages of runs: video, task, joints, and the log of a twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import Array, array_dataclass

from .figures import Lines, band_traces, line_trace, lines_figure, plot, series_color
from .gap_page import horizon_figure, runs_figure
from .page import (
    Figure,
    FigureRow,
    FigureTabs,
    Headline,
    HtmlReport,
    Number,
    ReportImage,
    ReportVideo,
    ReportViewer,
    Section,
    Table,
    formatted,
    score_table,
)

if TYPE_CHECKING:
    from instep.app.recorded_run import RunSummary
    from instep.app.verbs.demo import DemoResult, TwinRun
    from instep.gap.gap_result import Curve

MAX_JOINTS = 12
"""Most joints with a figure of their own."""
MAX_EPISODES = 4
"""Most episodes whose joints are shown."""
MAX_GAP_S = 0.3
"""Longest time without values over which a line is drawn [s]; slow cameras give several images in it."""


@array_dataclass
class TwinLog:
    """The log of a twin in a run, as its page shows it."""

    episode: Episode
    log: Mapping[str, Array]
    """The correction in each row, by name."""
    trust: Array | None = None
    """Trust in each row, 0 to 1; None without a calibration."""
    levels: Mapping[str, Array] | None = None
    """`level` and `stage` of the trust monitor in each row; None without one."""
    events: Sequence[str] = ()
    """Changes of the stage, each in a sentence."""
    left_out: str = ""
    """What the correction left out to meet its deadline, in words; empty without one."""

    def ending(self, word: str) -> dict[str, Array]:
        """One number over the run, by the body or the camera that it is about."""
        found = {n: np.asarray(v, float) for n, v in self.log.items() if f".{n}".endswith(f".{word}")}
        return {n.removesuffix(word).removesuffix(".") or word: values for n, values in found.items()}

    def count(self, name: str) -> int:
        """A counter of the twin at the end of the run."""
        labels = self.episode.spec.observation["twin.counts"].labels
        return int(self.episode["twin.counts"][-1, labels.index(name)])

    @property
    def lost(self) -> int:
        """Rows in which no camera showed the body."""
        return max((int(np.sum(v > 0)) for n, v in self.log.items() if n.endswith(".frames_lost")), default=0)


def run_page(title: str, run: RunSummary, video: ReportVideo | str, viewer: ReportViewer | None) -> HtmlReport:
    """The page of recorded episodes: whether the task was done, what was measured, and what makes it doubtful."""
    facts = {"data": str(run.run.folder), "rows": str(run.run.rows), "ended": run.run.cause or run.run.ending}
    return HtmlReport(
        title, run.outcomes[0].task or run.counted, run_headline(run), [*_numbers(run), *run.numbers],
        [*_sections(run), *run.sections], {**facts, "ended": facts["ended"] or "after all steps"}, video, viewer,
    )  # fmt: skip


def run_headline(summary: RunSummary) -> Headline:
    """The conclusion: how a run ended before its time, else what makes it doubtful, else the outcome of its task."""
    run, problems, judged = summary.run, summary.problems, summary.task_words
    known = [outcome.done for outcome in summary.outcomes if outcome.done is not None]
    if run.error is not None:
        return Headline("bad", run.ending, " ".join([run.cause, judged, *problems]).strip())
    if problems:
        return Headline("bad", problems[0], " ".join([judged, *problems[1:]]))
    if not known:
        return Headline("plain", f"It ran for {run.seconds:.1f} s, {run.rows} rows.", judged)
    return Headline("good" if all(known) else "bad", judged, f"{run.rows} rows, {run.seconds:.1f} s.")


def tracking_page(
    title: str, twin: TwinLog, problems: Sequence[str], scores: Mapping[str, Estimate],
    shown: tuple[ReportVideo, ReportViewer | None],
) -> HtmlReport:  # fmt: skip
    """The page of a tracked recording: its cameras with the twin's outline, and the scores by its images."""
    run = twin.episode
    seen = f"in all but {twin.lost} of {len(run)} rows" if twin.lost else "in every row"
    fine = Headline("good", "The twin kept in step.", f"The body was seen {seen}, and no camera was excluded.")
    verdict = Headline("bad", "The twin did not keep in step.", " ".join(problems)) if problems else fine
    sections = [Section("Scores by the recorded images", "", [score_table(scores)]), *twin_sections(twin)]
    subtitle = f"{len(run)} rows, {run.t[-1] - run.t[0]:.1f} s"
    facts = {"rows": str(len(run))}
    return HtmlReport(title, subtitle, verdict, twin_numbers(twin, scores), sections, facts, *shown)


def twin_numbers(twin: TwinLog, scores: Mapping[str, Estimate]) -> list[Number]:
    """The key numbers of a twin."""
    nis, late = list(twin.ending("nis").values()), list(twin.ending("latency").values())
    rows = len(twin.episode)
    overruns = f"median; {twin.count('overruns')} of {rows} rows took longer than a control period"
    stages, labels = twin.episode["twin.stages"], twin.episode.spec.observation["twin.stages"].labels
    work = stages.sum(axis=1) - stages[:, labels.index("follow")]
    shown = [Number("work per frame", f"{1e3 * np.median(work):.1f} ms", overruns)]
    if nis:
        mean = f"{np.nanmean(np.concatenate(nis)):.1f}"
        shown.insert(0, Number("mean NIS", mean, "3 is expected for a body on a table"))
    if late:
        shown.append(Number("latency of images", f"{1e3 * np.nanmedian(np.concatenate(late)):.0f} ms", "median"))
    if "trust" in scores:
        shown.insert(0, Number("lowest trust", f"{scores['trust'].value:.2f}", f"{scores['trust'].n} nominal runs"))
    return shown


def twin_sections(twin: TwinLog) -> list[Section]:
    """Trust and residuals, cameras, and timing of a run through a twin."""
    t = twin.episode.t - twin.episode.t[0]
    lead = "The mean NIS of a body on a table is 3 if the covariance of the filter is right."
    if twin.trust is not None:
        lead += " Trust is the share of nominal runs with a level at least as large."
    trusting = _figures(
        ("Trust", "trust, 0 to 1", {} if twin.trust is None else {"trust": (t, twin.trust)}),
        ("Innovation against its covariance (NIS)", "NIS", _lines(t, twin, "nis")),
        ("Residuals of silhouettes", "residual, share of pixels", _lines(t, twin, "residual")),
    )
    spread = {**_lines(t, twin, "sigma", "", 1e3), **_lines(t, twin, "weakest_sigma", ", weakest direction", 1e3)}
    cameras = _figures(
        ("Standard deviation of the pose", "standard deviation [mm]", spread),
        ("Overlap of silhouettes", "overlap, 0 to 1", _seen_overlaps(t, twin)),
        ("Latency of images", "age [ms]", _lines(t, twin, "latency", "", 1e3)),
    )
    timing = _figures(
        ("Time of each stage", "time [ms]", _columns(t, twin.episode, "twin.stages", without="follow")),
        ("Joint errors: measured less simulated", "error [mm or mrad]", _columns(t, twin.episode, "twin.joint_error")),
    )
    return [
        Section("Trust and residuals", lead, trusting),
        *_stages(t, twin),
        Section("Cameras", "The weakest direction is the least observable one.", cameras),
        Section("Timing", twin.left_out, timing),
    ]


def _stages(t: Array, twin: TwinLog) -> list[Section]:
    """The stages of trust; none without a monitor."""
    if twin.levels is None:
        return []
    lead = (
        "Stages: 0 normal, 1 slow, 2 coast (images correct nothing), 3 hold, 4 handed over to the operator. "
        f"{' '.join(twin.events) or 'The twin was trusted throughout.'}"
    )
    figures = _figures(
        ("Stage of trust", "stage, 0 to 4", {"stage": (t, twin.levels["stage"])}),
        ("Level against nominal runs", "level, 1 is the largest nominal one", {"level": (t, twin.levels["level"])}),
    )
    return [Section("Stages of trust", lead, figures)]


def _seen_overlaps(t: Array, twin: TwinLog) -> Lines:
    """The overlaps of each camera, without rows in which it shows no image of the body."""
    shown = {f"{camera}.overlap": share > 0 for camera, share in twin.ending("visible_share").items()}
    overlaps = {n.removesuffix(".overlap"): np.where(rows, twin.log[n], np.nan) for n, rows in shown.items()}
    return {n: _joined(t, v) for n, v in overlaps.items() if np.isfinite(v).any()}


def _columns(t: Array, episode: Episode, name: str, without: str = "") -> Lines:
    """The columns of an observation in thousandths; none if the run lacks it."""
    if name not in episode:
        return {}
    labels = episode.spec.observation[name].labels
    return {label: (t, 1e3 * episode[name][:, i]) for i, label in enumerate(labels) if label != without}


def _figures(*asked: tuple[str, str, Lines]) -> list[Figure]:
    """A figure over time for each title, unit and lines; those without lines are left out."""
    return [lines_figure(lines, title=title, x="time [s]", y=unit) for title, unit, lines in asked if lines]


def _lines(t: Array, twin: TwinLog, word: str, more: str = "", factor: float = 1.0) -> Lines:
    """The lines of one number; those without any value are left out."""
    return {n + more: _joined(t, factor * v) for n, v in twin.ending(word).items() if np.isfinite(v).any()}


def _joined(t: Array, values: Array) -> tuple[Array, Array]:
    """A line through the finite values (only rows with an image have one), broken at long gaps."""
    known = np.flatnonzero(np.isfinite(values))
    breaks = np.flatnonzero(np.diff(t[known]) > MAX_GAP_S) + 1
    times = np.insert(t[known], breaks, t[known][breaks - 1])
    return times, np.insert(values[known], breaks, np.nan)


def _numbers(summary: RunSummary) -> list[Number]:
    run, scores = summary.run, summary.scores
    several = f"mean of {len(run.episodes)} episodes" if len(run.episodes) > 1 else ""
    shown = [Number("recorded", f"{run.rows} rows", f"{run.seconds:.1f} s in {summary.counted}")]
    if "task done" in scores:
        shown.insert(0, Number("score at the end", f"{scores['score at the end'].value:.2f}", several or "of 1"))
    for name, estimate in scores.items():
        if name.startswith("tracking error"):
            value = f"{1e3 * estimate.value:.3g} m{estimate.unit}"
            shown.append(Number("tracking error", value, "measured less commanded, root mean square"))
    wanted, share = 1 / run.episodes[0].spec.dt, scores["share of control steps made"].value
    shown.append(Number("control rate", f"{share * wanted:.3g} Hz", f"of {wanted:.3g} Hz"))
    ages = [estimate.value for name, estimate in scores.items() if name.startswith("age of images")]
    if ages:
        shown.append(Number("age of images", f"{1e3 * max(ages):.0f} ms", "median, of the slowest camera"))
    return shown


def _sections(summary: RunSummary) -> list[Section]:
    sections: list[Section] = []
    episodes, outcomes = summary.run.episodes, summary.outcomes
    lines = {
        f"episode {i + 1}" if len(episodes) > 1 else "score": (episode.t - episode.t[0], outcome.score)
        for i, (episode, outcome) in enumerate(zip(episodes, outcomes, strict=True))
        if outcome.score is not None and i < MAX_EPISODES
    }
    if lines:
        figure = lines_figure(lines, title="Progress of the task", x="time [s]", y="score, 0 to 1")
        lead = "The last event of the task is its success; the score is the progress towards it."
        if any(name.startswith("twin.") for name in episodes[0].columns):
            lead += " Both are judged by the state of the twin: the robot does not measure where objects are."
        sections.append(Section("The task", lead, [figure]))
    if len(outcomes) > 1:
        rows = [(str(i + 1), e.meta.get("seed", ""), f"{e.t[-1] - e.t[0]:.1f} s", e.meta.get("ended", ""), o.words)
                for i, (e, o) in enumerate(zip(episodes, outcomes, strict=True))]  # fmt: skip
        sections.append(Section("Episodes", "", [Table(("episode", "seed", "length", "ended by", "task"), rows)]))
    shown = {f"episode {i + 1}": FigureRow(_joints(e)) for i, e in enumerate(episodes[:MAX_EPISODES])}
    if any(row.figures for row in shown.values()):
        lead = "Measured positions, and commanded ones of position servos."
        blocks = [FigureTabs(shown)] if len(shown) > 1 else list(shown.values())
        sections.append(Section("Joints", lead, blocks))
    return sections


def _joints(episode: Episode) -> list[Figure]:
    t, commanded = episode.t - episode.t[0], {n: i for i, n in enumerate(episode.spec.action.labels)}
    units, figures = episode.spec.q.units, list[Figure]()
    for j, label in enumerate(episode.spec.q.labels):
        if "." in label or len(figures) >= MAX_JOINTS:
            continue  # coordinates of free bodies, such as tee.x, are shown by the video and the score
        lines = {"measured": (t, episode.q[:, j])}
        if label in commanded and episode.spec.action.units[commanded[label]] == units[j]:
            lines["commanded"] = (t, episode.action[:, commanded[label]])
        unit = f" [{units[j]}]" if units[j] else ""
        figure = lines_figure(lines, title=label, x="time [s]", y=f"position{unit}", height=280)
        figures.append({**figure, "layout": figure["layout"] | {"yaxis": {"title": f"position{unit}"}}})
    return figures


NEXT_COMMANDS = (
    ("instep start ROBOT.urdf LOGS", "goes from your robot's file and its logs to a report like this one"),
    ("instep gap DATA SCENE", "measures how far a simulator is from recordings, and why"),
    ("instep tune DATA SCENE", "identifies its parameters, and writes a scene with them"),
    ("instep twin pusht --policy expert --real robot:ADDRESS", "acts through a twin of a robot behind a link"),
    ("instep runs", "lists this and later runs; instep runs --open N shows a page"),
)


def demo_page(loop: DemoResult, viewer: ReportViewer | None) -> HtmlReport:
    """The steps of the demo in order."""
    before, after = (gap.curves["all m"] for gap in (loop.before, loop.after))
    drop = 1 - after.at(inf).value / before.at(inf).value
    took = f"Two fitted parameters took {100 * drop:.0f} % off the open-loop gap of runs they were not fitted to."
    failed = "Two fitted parameters did not make the simulator better on runs they were not fitted to."
    because = "Error of the pusher's joints, root mean square over held-out runs."
    verdict = Headline("good", took, because) if drop > 0 else Headline("bad", failed, because)
    named = {"one step ahead": 0.0, "half a second ahead": 0.5, "over the whole run": inf}
    numbers = [
        Number(name, f"{1e3 * before.at(h).value:.3g} → {1e3 * after.at(h).value:.2g} mm", formatted(after.at(h)))
        for name, h in named.items()
    ]
    robot = (
        "Another program stands for the real robot: it runs in its own process, in another physics engine (rapier), "
        f"and answers over the link that a real robot uses. {len(loop.truth)} parameters are hidden in it, such as the "
        "delay of commands and the stiffness of servos; its sensors are noisy and one control step late."
    )
    gap = (
        "The simulator is placed in the robot's state, given the recorded commands, and compared some time later: it "
        f"is {formatted(before.at(0.0))} off after one control step, {formatted(before.at(0.5))} after half a second, "
        f"and {formatted(before.at(inf))} over whole runs. The figure shows one run from start to end."
    )
    pair = runs_figure(loop.before.pairs[0], list(loop.scene.robot), title="")
    sections = [
        Section("1. A simulated robot", robot),
        _demo_recorded(loop),
        Section("3. Measure the gap", gap, [pair]),
        _demo_fitted(loop, before, after),
        *([] if loop.twin is None else [_demo_twin(loop.twin)]),
        Section("What next", "The same steps with your robot:", [Table(("command", "what it does"), NEXT_COMMANDS)]),
    ]
    about = f"{loop.scene.about} The simulated robot runs in another process and another engine."
    return HtmlReport("instep demo", about, verdict, numbers, sections, {"scene": loop.scene.name}, loop.video, viewer)


def _demo_recorded(loop: DemoResult) -> Section:
    data: list[dict[str, Any]] = []
    goal = loop.scene.model.body("goal").pos[:2]
    for i, (name, episodes) in enumerate((("simulated robot", loop.real), ("simulator", loop.virtual))):
        places = np.stack([e.q[:, e.spec.q.labels.index("tee.x") :][:, :2] for e in episodes])
        distances, t = 1e3 * np.linalg.norm(places - goal, axis=-1), episodes[0].t
        data += band_traces(t, distances.min(axis=0), distances.max(axis=0), series=i, name=f"{name}, all runs")
        data.append(line_trace(f"{name}, mean", t, distances.mean(axis=0), color=series_color(i), width=2))
    lead = (
        "The same policy ran on the simulated robot, and from some of the starts in the simulator. Contact makes small "
        f"differences grow: at the end the blocks are {formatted(loop.apart)} apart."
    )
    up = {"title": "distance [mm]", "rangemode": "tozero"}
    return Section("2. Record", lead, [plot(data, title="Distance of the block to its goal", x="time [s]", y=up)])


def _demo_fitted(loop: DemoResult, before: Curve, after: Curve) -> Section:
    rows: list[tuple[str, ...]] = []
    for name, estimate in loop.fitted.estimates.items():
        shipped, hidden = (f"{value:.4g}" for value in loop.shipped(name))
        interval = f"{estimate.low:.4g} to {estimate.high:.4g}"
        rows.append((name, shipped, f"{estimate.value:.4g}", interval, hidden, estimate.unit))
    lead = (
        f"Two parameters, found by least squares in {loop.fitted.seconds:.1f} s from other runs. The robot's sensors "
        "are one control step late on top of its commands; the fit sees the sum of both as one delay. The figure shows "
        "runs that were not used for the fit."
    )
    head = ("parameter", "as shipped", "fitted", "95 % interval", "hidden in the robot", "unit")
    named = {"as shipped": before, "two parameters fitted": after}
    curves = {name: replace(curve, name=name) for name, curve in named.items()}
    title = "How wrong the simulator is, by how far ahead it predicts"
    return Section("4. Identify", lead, [Table(head, rows), horizon_figure(curves, {}, list(curves), title)])


def _demo_twin(twin: TwinRun) -> Section:
    t, scores, end = twin.run.t, twin.scores(), 1e3 * twin.to_goal(twin.robot)[-1]
    goal = {"the robot's T": (t, 1e3 * twin.to_goal(twin.robot)), "the twin's T": (t, 1e3 * twin.to_goal(twin.run))}
    apart = {"T: twin against robot": twin.blocks, "pusher: robot against twin": twin.pushers}
    errors = {name: (t[10:], 1e3 * values[10:]) for name, values in apart.items()}
    lead = (
        "The policy observes and commands the twin only. The robot follows the twin's joints, and three cameras of the "
        f"robot correct the pose of the twin's T. At the end the robot's T is {end:.1f} mm "
        f"from its goal; on the way the two Ts were {formatted(scores['twin: distance of the two Ts'])} apart, the two "
        f"pushers {formatted(scores['twin: distance of the two pushers'])}."
    )
    frames = [twin.frames[i] for i in sorted({0, len(twin.frames) // 2, len(twin.frames) - 1})]
    caption = "The robot's cameras, with the outline of the twin's T"
    figures = _figures(
        ("Distance of the T to its goal", "distance [mm]", goal),
        ("Distance between twin and robot", "distance [mm]", errors),
    )
    images = [[ReportImage.of(frame, caption)] for frame in frames]
    return Section("5. Act through the twin", lead, [*figures, *images])
