"""The page of a run: a video, whether the task was done, what was measured, and what makes it doubtful.

The part of a run's page that is about its twin: how far it can be trusted, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from instep.app.recorded_run import (
    IMAGES,
    RecordedRun,
    TaskOutcome,
    image_ages,
    of_twin,
    rate_share,
    run_problems,
    stale_images,
    task_outcome,
)
from instep.app.viewer.report_view import report_viewer
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, array_dataclass
from instep.physics.mujoco_cameras import MAX_WIDTH, playback, render_trajectory, shrunk, write_small_video
from instep.scene.folder import Scene

from .figures import lines_figure
from .page import Figure, FigureRow, FigureTabs, Headline, HtmlReport, Number, ReportVideo, Section, Table, score_table

if TYPE_CHECKING:
    from instep.twin import TrackedRecording


VIDEO = "video.mp4"
"""The video beside the page."""
MAX_JOINTS = 12
"""Joints that get a figure of their own."""
MAX_EPISODES = 4
"""Episodes whose joints are shown."""


@array_dataclass
class RunSummary:
    """What is known of a run after it: outcomes, problems, scores, and its page."""

    outcomes: Sequence[TaskOutcome]
    """One per episode."""
    problems: Sequence[str]
    """What makes its numbers doubtful, each in one sentence."""
    scores: dict[str, Estimate]
    report: HtmlReport

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json keeps beside the scores."""
        tasks = [{"done": outcome.done, "words": outcome.words} for outcome in self.outcomes]
        return {"task": self.outcomes[0].task, "tasks": tasks, "problems": list(self.problems)}


def summarize_run(
    run: RecordedRun, scene: Scene | None, *, title: str, folder: Path, doubts: Sequence[str] = ()
) -> RunSummary:
    """Judge a run by its recorded rows and make its page; the video is written into `folder`.

    `doubts` are further sentences about what makes its numbers doubtful.
    """
    outcomes = [task_outcome(scene, episode) for episode in run.episodes]
    problems = [
        *dict.fromkeys(words for episode in run.episodes for words in run_problems(episode)),
        *run.losses,
        *doubts,
    ]
    if run.status.dropped:
        problems.append(f"{run.status.dropped} rows were dropped: {run.status.error or 'the disk was too slow'}.")
    scores = _scores(run, outcomes)
    report = HtmlReport(
        title,
        outcomes[0].task or _episodes(run),
        run_headline(run, outcomes, problems),
        _numbers(run, scores),
        _sections(run.episodes, outcomes),
        {"data": str(run.folder), "rows": str(run.rows), "ended": run.cause or run.ending or "after all steps"},
        run_video(folder, run.episodes[0], scene),
        report_viewer(scene, run.episodes[0], title),
    )
    return RunSummary(outcomes, problems, scores, report)


def announce_run(run: RecordedRun, report: HtmlReport, page: Path) -> int:
    """Say the conclusion of a run, print the path of its page last, and raise the error that ended it, if one did.

    Returns the exit code: 0, or 130 after Ctrl-C.
    """
    console, verdict = Console(stderr=True), report.verdict
    colour = {"good": "green", "bad": "red", "plain": ""}[verdict.status]
    console.print(verdict.headline, style=colour, highlight=False, markup=False)
    if verdict.status == "bad":
        console.print(verdict.because, style=colour, highlight=False, markup=False)
    console.print(f"{run.rows} rows are in {run.folder}.", highlight=False, markup=False)
    print(page, flush=True)
    if run.error is None or isinstance(run.error, KeyboardInterrupt):
        return 0 if run.error is None else 130
    raise run.error


def run_headline(run: RecordedRun, outcomes: Sequence[TaskOutcome], problems: Sequence[str]) -> Headline:
    """The conclusion: how it ended where that was before its time, else what makes it doubtful, else the task."""
    judged = _task_words(outcomes)
    known = [outcome.done for outcome in outcomes if outcome.done is not None]
    if run.error is not None:
        return Headline("bad", run.ending, " ".join([run.cause, judged, *problems]).strip())
    if problems:
        return Headline("bad", problems[0], " ".join([judged, *problems[1:]]))
    if not known:
        return Headline("plain", f"It ran for {run.seconds:.1f} s, {run.rows} rows.", judged)
    return Headline("good" if all(known) else "bad", judged, f"{run.rows} rows, {run.seconds:.1f} s.")


def run_video(folder: Path, episode: Episode, scene: Scene | None) -> ReportVideo | str:
    """The video of an episode: its recorded images, else a rendering of its positions, else why there is none."""
    shown = playback(episode.t)
    cameras = [name for name in episode.columns if name.startswith(IMAGES) and not name.endswith(".stamp")]
    if cameras:
        listed = ", ".join(name.removeprefix(IMAGES) for name in cameras[:3])
        write_small_video(folder / VIDEO, _beside(episode, cameras[:3], shown.rows))
        return ReportVideo((folder / VIDEO).read_bytes(), f"Recorded images of {listed}, {shown.words}.")
    if scene is None:
        return "No video: the world gave no images, and no scene to render it by; name one with --scene."
    if episode.spec.q.labels != scene.spec.q.labels:
        return f"No video: the world gave no images, and does not report all positions of scene {scene.name!r}."
    if not scene.model.ngeom:
        return f"No video: the robot file of scene {scene.name!r} has no shapes."
    try:
        render_trajectory(scene, episode.q[shown.rows], folder / VIDEO)
    except Unsupported as error:
        return f"No video: {error}"
    return ReportVideo((folder / VIDEO).read_bytes(), f"Rendered from the recorded positions, {shown.words}.", True)


def _beside(episode: Episode, cameras: Sequence[str], rows: Array) -> Iterator[Array]:
    """Images of some cameras side by side, all as high as the lowest."""
    for row in rows:
        images = [shrunk(np.asarray(episode[name][int(row)]), MAX_WIDTH) for name in cameras]
        height = min(len(image) for image in images)
        yield np.concatenate([image[:height] for image in images], axis=1)


def _episodes(run: RecordedRun) -> str:
    return "1 episode" if len(run.episodes) == 1 else f"{len(run.episodes)} episodes"


def _task_words(outcomes: Sequence[TaskOutcome]) -> str:
    if len(outcomes) == 1 or outcomes[0].done is None:
        return outcomes[0].words
    done = sum(outcome.done is True for outcome in outcomes)
    return f"The task was done in {done} of {len(outcomes)} episodes."


def _scores(run: RecordedRun, outcomes: Sequence[TaskOutcome]) -> dict[str, Estimate]:
    scores: dict[str, Estimate] = {}

    def add(name: str, unit: str, value: Callable[[Episode], float]) -> None:
        scores[name] = bootstrap([value(episode) for episode in run.episodes], unit=unit)

    for name, (rows, columns, unit) in _tracked(run.episodes[0]).items():
        add(name, unit, lambda e, r=rows, c=columns: float(np.sqrt(np.mean((e.action[:, r] - e.q[:, c]) ** 2))))
    add("share of control steps made", "", rate_share)
    for camera in image_ages(run.episodes[0]):
        add(f"age of images, {camera}", "s", lambda e, c=camera: image_ages(e).get(c, float("nan")))
    ends = [float(outcome.score[-1]) for outcome in outcomes if outcome.score is not None]
    if ends:
        scores["score at the end"] = bootstrap(ends)
        scores["task done"] = wilson(sum(outcome.done is True for outcome in outcomes), len(ends))
    return scores


def _tracked(episode: Episode) -> dict[str, tuple[list[int], list[int], str]]:
    """Positions that are commanded, by unit: name of the error -> columns of the action, of q, and the unit."""
    places = {label: i for i, label in enumerate(episode.spec.q.labels)}
    found: dict[str, tuple[list[int], list[int], str]] = {}
    for i, (label, unit) in enumerate(zip(episode.spec.action.labels, episode.spec.action.units, strict=True)):
        if label in places and unit in ("rad", "m"):
            rows, columns, _ = found.setdefault(f"tracking error [{unit}]", ([], [], unit))
            rows.append(i)
            columns.append(places[label])
    return found


def _numbers(run: RecordedRun, scores: dict[str, Estimate]) -> list[Number]:
    several = f"mean of {len(run.episodes)} episodes" if len(run.episodes) > 1 else ""
    shown = [Number("recorded", f"{run.rows} rows", f"{run.seconds:.1f} s in {_episodes(run)}")]
    if "task done" in scores:
        shown.insert(0, Number("score at the end", f"{scores['score at the end'].value:.2f}", several or "of 1"))
    for name, estimate in scores.items():
        if name.startswith("tracking error"):
            value = f"{1e3 * estimate.value:.3g} m{estimate.unit}"
            shown.append(Number("tracking error", value, "measured less commanded, root mean square"))
    wanted = 1 / run.episodes[0].spec.dt
    share = scores["share of control steps made"].value
    shown.append(Number("control rate", f"{share * wanted:.3g} Hz", f"of {wanted:.3g} Hz"))
    ages = [estimate.value for name, estimate in scores.items() if name.startswith("age of images")]
    if ages:
        shown.append(Number("age of images", f"{1e3 * max(ages):.0f} ms", "median, of the slowest camera"))
    return shown


def _sections(episodes: Sequence[Episode], outcomes: Sequence[TaskOutcome]) -> list[Section]:
    sections: list[Section] = []
    lines = {
        f"episode {i + 1}" if len(episodes) > 1 else "score": (episode.t - episode.t[0], outcome.score)
        for i, (episode, outcome) in enumerate(zip(episodes, outcomes, strict=True))
        if outcome.score is not None and i < MAX_EPISODES
    }
    if lines:
        figure = lines_figure(lines, title="Progress of the task", x="time [s]", y="score, 0 to 1")
        lead = "The last event of the task is its success; the score says how near each moment was to it."
        if of_twin(episodes[0]):
            lead += " Both are judged by the state of the twin: the robot does not measure where objects are."
        sections.append(Section("The task", lead, [figure]))
    if len(outcomes) > 1:
        rows = [(str(i + 1), e.meta.get("seed", ""), f"{e.t[-1] - e.t[0]:.1f} s", e.meta.get("ended", ""), o.words)
                for i, (e, o) in enumerate(zip(episodes, outcomes, strict=True))]  # fmt: skip
        sections.append(Section("Episodes", "", [Table(("episode", "seed", "length", "ended by", "task"), rows)]))
    shown = {f"episode {i + 1}": _joints(episode) for i, episode in enumerate(episodes[:MAX_EPISODES])}
    if any(shown.values()):
        lead = "Positions as measured, and as commanded where a position is commanded."
        sections.append(Section("Joints", lead, _blocks(shown)))
    return sections


def _blocks(shown: dict[str, list[Figure]]) -> list[Figure | FigureRow | FigureTabs]:
    if len(shown) > 1:
        return [FigureTabs({name: FigureRow(figures) for name, figures in shown.items()})]
    [figures] = shown.values()
    return [FigureRow(figures)] if len(figures) > 1 else list(figures)


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
        figure = lines_figure(lines, title=label, x="time [s]", y=f"position{unit}")
        figures.append({**figure, "layout": figure["layout"] | {"yaxis": {"title": f"position{unit}"}, "height": 280}})
    return figures


MAX_INVALID_SHARE, MAX_LOST_SHARE, MAX_FAULT_SHARE = 0.1, 0.01, 0.01
"""Share of rows without a valid joint reading, in which no camera shows the body, or in which a camera is at fault,
above which a twin is doubtful."""

MAX_GAP_S = 0.3
"""Time without values over which a line is not drawn [s]; slow cameras give several images in it."""

Lines = dict[str, tuple[Array, Array]]


def twin_problems(episode: Episode, held_out: Sequence[str] = ()) -> list[str]:
    """What makes a twin doubtful, each in one sentence; cameras in `held_out` are not used on purpose."""
    from instep.twin import FAULT_WORDS, ImageFault, TrustStage, correction_log, trust_events

    if "twin.correction" not in episode:
        return []
    log, problems = correction_log(episode), list[str]()
    for camera, codes in _ending(log, "fault").items():
        for fault in ImageFault:
            count = int(np.sum(codes == fault)) if fault else 0
            if count > MAX_FAULT_SHARE * len(episode) and camera not in held_out:
                problems.append(f"{camera} gave {FAULT_WORDS[fault]} in {count} of {len(episode)} rows.")
    lost = _lost(log)
    if lost > MAX_LOST_SHARE * len(episode):
        problems.append(f"In {lost} of {len(episode)} rows no camera showed the body.")
    excluded = [name for name, values in _ending(log, "excluded").items() if values[-1] > 0]
    if excluded:
        problems.append(f"Excluded, for disagreeing with the others: {', '.join(excluded)}.")
    latency = _ending(log, "latency")
    problems += stale_images({n: float(np.nanmedian(v)) for n, v in latency.items() if np.isfinite(v).any()})
    for camera, values in latency.items():
        if camera not in held_out and not np.isfinite(values).any():
            problems.append(f"No image of {camera} came.")
    problems += [event.words for event in trust_events(episode) if event.stage >= TrustStage.HOLD]
    invalid = _count(episode, "dropouts")
    if invalid > MAX_INVALID_SHARE * len(episode):
        problems.append(f"{invalid} of {len(episode)} rows had no valid joint reading.")
    return problems


def _lost(log: Mapping[str, Array]) -> int:
    """In how many rows no camera showed the body."""
    return max((int(np.sum(v > 0)) for n, v in log.items() if n.endswith(".frames_lost")), default=0)


def tracking_page(title: str, tracked: TrackedRecording, scores: Mapping[str, Estimate], folder: Path) -> HtmlReport:
    """The page of a recording that a twin tracked: its cameras with the twin's outline, and what was measured."""
    from instep.twin import correction_log, shipped_trust

    run, shown = tracked.run, playback(tracked.run.t)
    problems = twin_problems(run, tracked.options.held_out)
    lost = _lost(correction_log(run)) if "twin.correction" in run else 0
    seen = f"in all but {lost} of {len(run)} rows" if lost else "in every row"
    fine = Headline("good", "The twin kept in step.", f"The body was seen {seen}, and no camera was excluded.")
    write_small_video(folder / "video.mp4", (tracked.overlay(int(row)) for row in shown.rows))
    caption = f"The recorded images with the outline of the twin's body, {shown.words}."
    return HtmlReport(
        title,
        f"{len(run)} rows, {run.t[-1] - run.t[0]:.1f} s",
        Headline("bad", "The twin did not keep in step.", " ".join(problems)) if problems else fine,
        twin_numbers(run, scores),
        [
            Section("Scores by the recorded images", "", [score_table(scores)]),
            *twin_sections(run, tracked.options.trust or shipped_trust()),
        ],
        {"rows": str(len(run))},
        ReportVideo((folder / "video.mp4").read_bytes(), caption),
        report_viewer(tracked.scene, run, title),
    )


def twin_numbers(episode: Episode, scores: Mapping[str, Estimate]) -> list[Number]:
    """The key numbers of a twin; none where it was not corrected."""
    from instep.twin import correction_log

    if "twin.correction" not in episode:
        return []
    log = correction_log(episode)
    nis, late = list(_ending(log, "nis").values()), list(_ending(log, "latency").values())
    overruns = f"median; {_count(episode, 'overruns')} of {len(episode)} rows took longer than a control period"
    shown = [Number("work per frame", f"{1e3 * np.median(_work(episode)):.1f} ms", overruns)]
    if nis:
        mean = f"{np.nanmean(np.concatenate(nis)):.1f}"
        shown.insert(0, Number("mean NIS", mean, "3 is expected for a body on a table"))
    if late:
        shown.append(Number("latency of images", f"{1e3 * np.nanmedian(np.concatenate(late)):.0f} ms", "median"))
    if "trust" in scores:
        shown.insert(0, Number("lowest trust", f"{scores['trust'].value:.2f}", f"{scores['trust'].n} nominal runs"))
    return shown


def twin_sections(episode: Episode, trust: Any = None) -> list[Section]:
    """Trust and residuals, cameras, and timing of a run through a twin; none where it was not corrected."""
    from instep.twin import correction_log

    if "twin.correction" not in episode:
        return []
    log, t = correction_log(episode), episode.t - episode.t[0]
    return [_trusting(t, log, trust), *_stages(t, episode), _seeing(t, log), _keeping(t, episode)]


def _stages(t: Array, episode: Episode) -> list[Section]:
    """What the twin did for want of trust; none where it was not supervised."""
    from instep.twin import trust_events
    from instep.twin.trust_stages import CHANNEL, LABELS

    if CHANNEL not in episode:
        return []
    rows, events = np.asarray(episode[CHANNEL], float), trust_events(episode)
    level, stage = rows[:, LABELS.index("level")], rows[:, LABELS.index("stage")]
    lead = (
        "Stages: 0 normal, 1 slow, 2 coast (images correct nothing), 3 hold, 4 handed over to the operator. "
        f"{'The twin was trusted throughout.' if not events else ' '.join(event.words for event in events)}"
    )
    figures = _figures(
        ("Stage of trust", "stage, 0 to 4", {"stage": (t, stage)}),
        ("Level against nominal runs", "level, 1 is the largest nominal one", {"level": (t, level)}),
    )
    return [Section("Stages of trust", lead, figures)]


def _trusting(t: Array, log: Mapping[str, Array], trust: Any) -> Section:
    residuals = _lines(t, log, "residual")
    lead = "The mean NIS of a body on a table is 3 where the covariance of the filter is right."
    level: Lines = {}
    if trust is not None:
        level = {"trust": (t, np.asarray(trust.of(trust.frames(log)), float))}
        lead += " Trust is the share of nominal runs with a level at least as large."
    figures = _figures(
        ("Trust", "trust, 0 to 1", level),
        ("Innovation against its covariance (NIS)", "NIS", _lines(t, log, "nis")),
        ("Residuals of silhouettes", "residual, share of pixels", residuals),
    )
    return Section("Trust and residuals", lead, figures)


def _seeing(t: Array, log: Mapping[str, Array]) -> Section:
    spread = {**_lines(t, log, "sigma", "", 1e3), **_lines(t, log, "weakest_sigma", ", weakest direction", 1e3)}
    figures = _figures(
        ("Standard deviation of the pose", "standard deviation [mm]", spread),
        ("Overlap of silhouettes", "overlap, 0 to 1", _lines(t, _seen_overlaps(log), "overlap")),
        ("Latency of images", "age [ms]", _lines(t, log, "latency", "", 1e3)),
    )
    return Section("Cameras", "The weakest direction is the least observable one.", figures)


def _seen_overlaps(log: Mapping[str, Array]) -> dict[str, Array]:
    """The overlaps of each camera, without rows in which it shows no image of the body."""
    seen = {f"{camera}.overlap": share > 0 for camera, share in _ending(log, "visible_share").items()}
    return {name: np.where(rows, np.asarray(log[name], float), np.nan) for name, rows in seen.items()}


def _keeping(t: Array, episode: Episode) -> Section:
    stages, labels = episode["twin.stages"], episode.spec.observation["twin.stages"].labels
    times = {name: (t, 1e3 * stages[:, i]) for i, name in enumerate(labels) if name != "follow"}
    errors: Lines = {}
    if "twin.joint_error" in episode:
        joints = episode.spec.observation["twin.joint_error"].labels
        errors = {name: (t, 1e3 * episode["twin.joint_error"][:, i]) for i, name in enumerate(joints)}
    figures = _figures(
        ("Time of each stage", "time [ms]", times),
        ("Joint errors: measured less simulated", "error [mm or mrad]", errors),
    )
    return Section("Timing", _left_out_words(episode), figures)


def _left_out_words(episode: Episode) -> str:
    """What the correction left out to be in time; empty where it had all the time that it wanted."""
    from instep.twin import correction_log
    from instep.twin.camera_frames import LEFT_OUT, left_out

    found = left_out(correction_log(episode))
    if not found:
        return ""
    begin = f"The correction kept to a deadline, {1e3 * found['given']:.1f} ms after a measurement in the median."
    if not found["frames"]:
        return f"{begin} Nothing was left out."
    parts = ", ".join(f"{word} {found[word]:.0f}" for word in LEFT_OUT if found[word])
    return f"{begin} In {found['frames']:.0f} of {len(episode)} rows something was left out: {parts}."


def _figures(*asked: tuple[str, str, Lines]) -> list[Figure]:
    """A figure over time for each title, unit and lines; those without lines are left out."""
    return [lines_figure(lines, title=title, x="time [s]", y=unit) for title, unit, lines in asked if lines]


def _work(episode: Episode) -> Array:
    stages, labels = episode["twin.stages"], episode.spec.observation["twin.stages"].labels
    return stages.sum(axis=1) - stages[:, labels.index("follow")]


def _count(episode: Episode, name: str) -> int:
    return int(episode["twin.counts"][-1, episode.spec.observation["twin.counts"].labels.index(name)])


def _ending(log: Mapping[str, Array], word: str) -> dict[str, Array]:
    """One number over the run, by the body or the camera that it is about."""
    found = {n: np.asarray(v, float) for n, v in log.items() if f".{n}".endswith(f".{word}")}
    return {n.removesuffix(word).removesuffix(".") or word: values for n, values in found.items()}


def _lines(t: Array, log: Mapping[str, Array], word: str, more: str = "", factor: float = 1.0) -> Lines:
    """The lines of one number; those without any value are left out."""
    return {n + more: _joined(t, factor * v) for n, v in _ending(log, word).items() if np.isfinite(v).any()}


def _joined(t: Array, values: Array) -> tuple[Array, Array]:
    """A line through its values, which only rows with an image have, that is broken where none come for a while."""
    known = np.flatnonzero(np.isfinite(values))
    breaks = np.flatnonzero(np.diff(t[known]) > MAX_GAP_S) + 1
    times = np.insert(t[known], breaks, t[known][breaks - 1])
    return times, np.insert(values[known], breaks, np.nan)
