"""Runs of a policy through the crash-safe recorder: the loop, checks of its rows, its result and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn

from instep.core.episode import Episode
from instep.core.errors import BadInput, Unsupported
from instep.core.rollout import run_policy
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, Policy, Watcher, World, array_dataclass, options_dataclass
from instep.data import Recorder, finish_recording, load_episodes
from instep.data.recorder import RecorderStatus
from instep.physics.mujoco_cameras import MAX_WIDTH, playback, render_trajectory, shrunk, write_small_video
from instep.policy import AsyncChunked
from instep.report.page import HtmlReport, Number, ReportVideo, Section
from instep.report.run_pages import run_page
from instep.robot import Recording, realtime_priority
from instep.scene.folder import Scene
from instep.scene.model_limits import bounds_of
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Task, Tasked

from .arguments import Expert, OutFolder, TokenFile
from .output import Output, new_output, progress_bar
from .reidentified_run import LiveReidentification, live_facts, live_numbers, live_sections
from .robot_events import EventCounter
from .shadow import Shadow, summarize_shadow
from .viewer.live_view import live_view
from .viewer.replay_view import report_viewer

VIDEO = "video.mp4"
"""The video beside the page."""
MIN_RATE_SHARE = 0.9
"""Least share of its control steps that a run must make."""
MAX_IMAGE_AGE_S = 0.25
"""Largest median age of fresh images [s]."""
IMAGES = "observation.images."


@options_dataclass
class LoopArgs:
    """Options of a policy that runs in a world or through a twin."""

    steps: int = 300
    """control steps to run."""
    seed: int = 0
    """seed of the start."""
    token: TokenFile = None
    shadow: str = ""
    """a second policy that sees the same observations; its actions are compared, and never sent."""
    background: Expert[bool] = False
    """infer in a background thread while the last chunk is executed; for policies that infer chunks of actions."""
    reidentify: Expert[tuple[str, ...]] = ()
    """parameters to estimate during the run (patterns), or auto: carried mass and friction. A twin takes better values
    once they pass a gate; of a robot (--scene) they are only shown."""
    view: bool = False
    """show the run in the browser while it runs; a simulation is then held to real time."""
    out: OutFolder = None


@array_dataclass
class RecordedRun:
    """The episodes of a run as they lie on the disk, and how it ended."""

    folder: Path
    """The dataset."""
    episodes: Sequence[Episode]
    """Those of this run, read back."""
    status: RecorderStatus
    losses: tuple[str, ...] = ()
    """What was lost, each in one sentence."""
    ended: str = "steps"
    """How it ended: "steps", "until", "error" or "interrupted"; it is known even where the disk did not take it."""
    error: BaseException | None = None
    """What ended it before its time: an error, or KeyboardInterrupt; None where all steps were made."""

    @property
    def rows(self) -> int:
        """How many rows are kept."""
        return sum(len(episode) for episode in self.episodes)

    @property
    def seconds(self) -> float:
        """How long the episodes are together [s]."""
        return sum(float(episode.t[-1] - episode.t[0]) for episode in self.episodes)

    @property
    def ending(self) -> str:
        """How it ended, in a sentence; empty where all steps were made."""
        if self.error is None:
            return ""
        how = "Stopped by Ctrl-C" if isinstance(self.error, KeyboardInterrupt) else "Ended by an error"
        return f"{how} after {self.seconds:.1f} s; {self.rows} rows are kept."

    @property
    def cause(self) -> str:
        """The error that ended it, in one line; empty where none did."""
        if self.error is None or isinstance(self.error, KeyboardInterrupt):
            return ""
        return (str(self.error).strip().splitlines() or [type(self.error).__name__])[0]


def record_run(
    world: World, policy: Policy, recorder: Recorder, *, seeds: Sequence[int], steps: int, watch: Sequence[Watcher] = ()
) -> RecordedRun:
    """Run a policy once per seed and record it; an interrupt or an error ends the run and keeps its rows.

    Where it ended before the first row, what ended it is raised.
    """
    error: BaseException | None = None
    seed, ended = seeds[0], "steps"
    try:
        for seed in seeds:
            ended = run_policy(world, policy, steps=steps, seed=seed, watch=[recorder, *watch])
            recorder.commit(seed=str(seed), ended=ended)
    except (Exception, KeyboardInterrupt) as caught:  # noqa: BLE001  # raised again by the caller, after its page
        error = caught
        ended = "interrupted" if isinstance(caught, KeyboardInterrupt) else "error"
        recorder.commit(seed=str(seed), ended=ended, error=str(caught))
    status = recorder.stop()
    finished = finish_recording(recorder.folder)
    if not finished.episodes:
        raise error or BadInput(f"Nothing was recorded into {str(recorder.folder)!r}: {status.error or 'no row came'}.")
    episodes = load_episodes(recorder.folder)[-finished.episodes :]
    return RecordedRun(recorder.folder, episodes, recorder.status(), finished.losses, ended, error)


@array_dataclass
class TaskOutcome:
    """Whether a task was done in an episode, by the recorded states."""

    task: str
    """Its instruction; empty where there is none."""
    done: bool | None
    """None where it cannot be known."""
    words: str
    """The outcome in a sentence."""
    score: Array | None = None
    """Progress in each row, 0 to 1 [rows]."""


def scene_task(scene: Scene | None) -> Task | None:
    """The task of a scene; None where it has none."""
    try:
        return None if scene is None else task_of(scene)
    except BadInput:
        return None


def task_outcome(scene: Scene | None, episode: Episode) -> TaskOutcome:
    """Judge an episode by the task of a scene: events in order, each held as long as the task asks."""
    task = scene_task(scene)
    if scene is None or task is None:
        why = "no scene with a task was given (--scene)" if scene is None else f"scene {scene.name!r} has no task"
        return TaskOutcome("", None, f"Whether a task was done is not known: {why}.")
    absent = [label for label in scene.spec.q.labels if label not in episode.spec.q.labels]
    if absent or episode.spec.q.labels != scene.spec.q.labels:
        named = f"it does not report {', '.join(absent[:4])}" if absent else "its positions are in another order"
        return TaskOutcome(task.text, None, f"Whether the task was done is not known: {named}.")
    tasked: Tasked[Recording] = Tasked(Recording(episode), task)
    state = tasked.reset(int(episode.meta.get("seed", 0)))
    score = [float(tasked.score(state))]
    for action in episode.action[:-1]:
        state = tasked.step(state, action)
        score.append(float(tasked.score(state)))
    times = tasked.event_times(state)
    return _judged(task, episode, times, int(tasked.failure(state)), np.array(score))


def _judged(task: Task, episode: Episode, times: Array, failure: int, score: Array) -> TaskOutcome:
    def clock(when: float) -> str:
        row = min(round(when / episode.spec.dt), len(episode) - 1)
        return f"{episode.t[row] - episode.t[0]:.1f} s"

    judge = ", by the state of the twin" if of_twin(episode) else ""
    if np.isfinite(times[-1]):
        return TaskOutcome(task.text, True, f"The task was done after {clock(times[-1])}{judge}.", score)
    reached = [i for i, when in enumerate(times) if np.isfinite(when)]
    far = f"{task.events[reached[-1]]!r} was reached after {clock(times[reached[-1]])}" if reached else ""
    span = f"within {episode.t[-1] - episode.t[0]:.1f} s"
    why = f"The task was not done: {task.failures[failure]}" if failure >= 0 else f"The task was not done {span}"
    words = "; ".join(part for part in (why, far, f"score {score[-1]:.2f} of 1 at the end") if part)
    return TaskOutcome(task.text, False, f"{words}{judge}.", score)


def of_twin(episode: Episode) -> bool:
    """Whether the positions of an episode are those of a twin, not what a robot measured."""
    return any(name.startswith("twin.") for name in episode.columns)


def rate_share(episode: Episode) -> float:
    """The share of its control steps that a run made, by the clock of the world: 1 where none was missed."""
    span = float(episode.t[-1] - episode.t[0])
    return episode.spec.dt * (len(episode) - 1) / span if span > 0 else 1.0


def image_ages(episode: Episode) -> dict[str, float]:
    """The median age of each camera's images [s], where they carry the time they were taken at."""
    stamps = {n.removeprefix(IMAGES).removesuffix(".stamp"): n for n in episode.columns if n.startswith(IMAGES)}
    return {
        camera: float(np.nanmedian(episode.t - np.asarray(episode[name], float).reshape(len(episode))))
        for camera, name in stamps.items()
        if name.endswith(".stamp") and np.isfinite(np.asarray(episode[name], float)).any()
    }


def dead_channels(episode: Episode) -> dict[str, str]:
    """Observations that say nothing, and why: no value in any row, or images of one colour."""
    found: dict[str, str] = {}
    for name in episode.spec.observation:
        if name not in episode or name.startswith("twin."):
            continue
        column = episode[name]
        if name.startswith(IMAGES):
            shown = [np.asarray(column[i]) for i in np.linspace(0, len(episode) - 1, 5).astype(int)]
            if all(np.ptp(image) == 0 for image in shown):
                found[name.removeprefix(IMAGES)] = "all of its images are blank"
        elif np.asarray(column).dtype.kind == "f":
            labels = episode.spec.observation[name].labels or (name,)
            known: Array = np.isfinite(np.asarray(column).reshape(len(episode), -1))
            missing = [not values.any() for values in known.T]
            if len(labels) == len(missing) and any(missing):
                listed = ", ".join(label for label, gone in zip(labels, missing, strict=True) if gone)
                found[channel_name(name)] = f"no value of {listed} ever came"
    return found


def run_problems(episode: Episode) -> list[str]:
    """What makes the numbers of a run doubtful, each in one sentence."""
    problems: list[str] = []
    if (share := rate_share(episode)) < MIN_RATE_SHARE:
        wanted = 1 / episode.spec.dt
        missed = f"{1 - share:.0%} of its control steps were missed"
        problems.append(f"It ran at {share * wanted:.3g} Hz instead of {wanted:.3g} Hz: {missed}.")
    return problems + stale_images(image_ages(episode)) + [f"{n}: {why}." for n, why in dead_channels(episode).items()]


def stale_images(ages: Mapping[str, float]) -> list[str]:
    """A sentence for each camera whose images came late, by the median ages [s]."""
    return [
        f"Images of {camera} were {1e3 * age:.0f} ms old, which is above {1e3 * MAX_IMAGE_AGE_S:.0f} ms."
        for camera, age in ages.items()
        if age > MAX_IMAGE_AGE_S
    ]


def channel_name(column: str) -> str:
    """A column in words: 'observation.environment_state' is 'environment state'."""
    return column.removeprefix(IMAGES).removeprefix("observation.").replace("_", " ")


@array_dataclass
class RunPart:
    """What something beside the loop adds to the result and the page: a twin, a shadow policy, the robot itself."""

    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For result.json."""
    numbers: Sequence[Number] = ()
    sections: Sequence[Section] = ()
    doubts: Sequence[str] = ()
    """What makes the run doubtful, each in one sentence."""
    words: str = ""
    """A sentence for the terminal."""


@array_dataclass
class RunSummary:
    """A run with its outcomes, problems and scores."""

    run: RecordedRun
    outcomes: Sequence[TaskOutcome]
    """One per episode."""
    problems: Sequence[str]
    """What makes its numbers doubtful, each in one sentence."""
    scores: Mapping[str, Estimate]
    parts: Sequence[RunPart] = ()

    @property
    def numbers(self) -> list[Number]:
        """The key numbers of the parts."""
        return [number for part in self.parts for number in part.numbers]

    @property
    def sections(self) -> list[Section]:
        """The sections of the parts."""
        return [section for part in self.parts for section in part.sections]

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json holds beside the scores."""
        tasks = [{"done": outcome.done, "words": outcome.words} for outcome in self.outcomes]
        facts = {"task": self.outcomes[0].task, "tasks": tasks, "problems": list(self.problems)}
        return {**facts, **{name: value for part in self.parts for name, value in part.facts.items()}}

    @property
    def counted(self) -> str:
        """The number of episodes in words."""
        return "1 episode" if len(self.run.episodes) == 1 else f"{len(self.run.episodes)} episodes"

    @property
    def task_words(self) -> str:
        """The outcome of the task in a sentence."""
        if len(self.outcomes) == 1 or self.outcomes[0].done is None:
            return self.outcomes[0].words
        done = sum(outcome.done is True for outcome in self.outcomes)
        return f"The task was done in {done} of {len(self.outcomes)} episodes."


@array_dataclass
class PreparedRun:
    """A policy and its world, ready to run."""

    world: Any
    policy: Policy
    title: str
    """POLICY in WORLD."""
    scene: Scene | None
    watch: Callable[[Progress, Any], Sequence[Watcher]]
    """Gives watchers that use the progress bar."""
    reidentified: LiveReidentification | None = None
    """The process that estimates parameters, outside the loop."""


def run_beside(prepared: PreparedRun, output: Output, args: LoopArgs) -> tuple[RecordedRun, list[RunPart]]:
    """Run a policy through the recorder with everything that `args` asks for beside the loop."""
    world, policy, title, reidentified = prepared.world, prepared.policy, prepared.title, prepared.reidentified
    data, where = output.folder / "data", title.rpartition(" in ")[2]
    output.kept = f"the rows are kept in {data}, from which any command that reads data recovers them"
    with ExitStack() as stack:
        if args.background:
            policy = stack.enter_context(closing(AsyncChunked.of(policy, world.spec)))
        shadow = stack.enter_context(Shadow(args.shadow, world, seed=args.seed)) if args.shadow else None
        counter, paced = EventCounter(world), where.startswith(("sim:", "recording:"))
        live = stack.enter_context(live_view(args.view, prepared.scene, world.spec, title, paced=paced))
        recorder = Recorder(data, world.spec, meta={"task": title, "world": where})
        stack.enter_context(realtime_priority() if where.startswith(("twin:", "robot:")) else nullcontext())
        progress = stack.enter_context(progress_bar(TextColumn("{task.fields[state]}")))
        bar = progress.add_task(title, total=args.steps, state="")
        watchers = [*prepared.watch(progress, bar), *([shadow] if shadow else []), *live]
        watchers += [reidentified] if reidentified is not None and where.startswith("robot:") else []
        watchers += [bounds] if (bounds := bounds_of(world)) is not None else []
        found = record_run(world, policy, recorder, seeds=[args.seed], steps=args.steps, watch=watchers)
        progress.stop()
        events = counter.events()
        parts = [RunPart(facts=events.facts, sections=events.sections, doubts=events.doubts)]
        if shadow is not None:
            seen = summarize_shadow(shadow.answers(), found.episodes[0], output.folder, dropped=found.status.dropped)
            parts.insert(0, RunPart(seen.scores, seen.facts, sections=seen.sections, words=seen.words))
        if reidentified is not None:
            reidentified.finish()
            facts, sections = live_facts(reidentified, output.folder), live_sections(reidentified)
            parts.insert(0, RunPart(facts=facts, numbers=live_numbers(reidentified), sections=sections))
    return found, parts


def new_run_output(verb: str, out: Path | None, seed: int) -> Output:
    """The folder of a run, checked before anything moves: it can be written, and holds no earlier run."""
    if out is not None and (out / "data").exists():
        raise BadInput(f"The folder {str(out)!r} holds the data of an earlier run; give another --out.")
    return new_output(verb, out, seed=seed)


def summarize_run(run: RecordedRun, scene: Scene | None, parts: Sequence[RunPart] = ()) -> RunSummary:
    """Judge a run by its recorded rows."""
    outcomes = [task_outcome(scene, episode) for episode in run.episodes]
    problems = [*dict.fromkeys(words for episode in run.episodes for words in run_problems(episode)), *run.losses]
    problems += [doubt for part in parts for doubt in part.doubts]
    if run.status.dropped:
        problems.append(f"{run.status.dropped} rows were dropped: {run.status.error or 'the disk was too slow'}.")
    scores = _scores(run, outcomes)
    for part in parts:
        scores |= part.scores
    return RunSummary(run, outcomes, problems, scores, parts)


def page_of_run(summary: RunSummary, scene: Scene | None, title: str, folder: Path) -> HtmlReport:
    """The page of a run; its video is written into the folder."""
    first = summary.run.episodes[0]
    return run_page(title, summary, run_video(folder, first, scene), report_viewer(scene, first, title))


def finish_run(summary: RunSummary, scene: Scene | None, title: str, output: Output) -> int:
    """Write the result and the page of a run, say what came out, and raise the error that ended it."""
    for part in summary.parts:
        if part.words:
            Console(stderr=True).print(part.words, highlight=False, markup=False)
    output.write(summary.scores, rows=summary.run.rows, ended=summary.run.ended, **summary.facts)
    report = page_of_run(summary, scene, title, output.folder)
    return announce_run(summary.run, report, output.page(report))


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
