"""The page of a run: a video, whether the task was done, what was measured, and what makes it doubtful."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array
from instep.physics.trajectory_video import MAX_WIDTH, playback, render_trajectory, shrunk, write_small_video
from instep.report.figures import lines_figure
from instep.report.page import (
    Figure,
    FigureRow,
    FigureTabs,
    Headline,
    HtmlReport,
    Number,
    ReportVideo,
    Section,
    Table,
)
from instep.scene.folder import Scene

from .recorded_run import RecordedRun
from .run_checks import IMAGES, TaskOutcome, image_ages, of_twin, rate_share, run_problems, task_outcome
from .viewer.report_view import report_viewer

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
