"""Runs of a policy in a world: one pipeline that runs, records, judges the rows, and writes the result and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress, TaskID, TextColumn

from instep.core.episode import Episode
from instep.core.errors import BadInput, Unsupported
from instep.core.rollout import run_policy
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import (
    Array,
    Observation,
    Policy,
    State,
    Watcher,
    World,
    array_dataclass,
    inner_with,
    options_dataclass,
)
from instep.data import Recorder, finish_recording, load_episodes
from instep.data.recorder import RecorderStatus
from instep.physics.mujoco_cameras import MAX_WIDTH, playback, render_trajectory, shrunk, write_small_video
from instep.policy import AsyncChunked
from instep.report.page import Headline, HtmlReport, Number, ReportVideo, Section, Table
from instep.report.run_pages import run_page
from instep.robot import Recording, realtime_priority
from instep.scene.folder import Scene
from instep.scene.model_limits import bounds_of
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Task, Tasked

from .arguments import Expert, OutFolder, TokenFile
from .output import Output, new_output, progress_bar, say
from .reidentified_run import LiveReidentification
from .side_process import RunPart, Shadow
from .viewer.live_view import live_view
from .viewer.replay_view import report_viewer

VIDEO = "video.mp4"
"""The video beside the page."""
MIN_RATE_SHARE = 0.9
"""Least share of its control steps that a run must make."""
MAX_IMAGE_AGE_S = 0.25
"""Largest median age of fresh images [s]."""
IMAGES = "observation.images."
MAX_LATE_SHARE = 0.01
"""A run in which more than this share of the actions came too late is doubtful."""
WORDS = {
    "executed": "actions carried out",
    "limited_position": "actions changed by the limits of position",
    "limited_velocity": "actions changed by the limits of velocity",
    "limited_acceleration": "actions changed by the limits of acceleration",
    "limited_jerk": "actions changed by the limits of jerk",
    "limited_obstacle": "actions changed by an obstacle nearby",
    "slowed": "control periods in which it was slowed down",
    "invalid": "actions refused: wrong size or not finite",
    "stale": "actions refused: for a state that was too old",
    "future": "actions refused: for a state that had not been yet",
    "invalid_readings": "readings refused: not finite",
    "doubtful": "readings refused: no sensor of this robot can show them",
    "backwards": "readings refused: older than the last",
    "holds": "holds, for want of commands or readings",
    "stops": "stops, until a reset",
    "stop_failures": "failed attempts to stop its motors",
    "overruns": "control periods that began late",
}
"""Counters of a robot that are shown, in words."""


@options_dataclass
class LoopArgs:
    """Options of a policy that runs in a world or through a twin."""

    steps: int = 300
    """control steps of an episode."""
    seed: int = 0
    """seed of the (first) start."""
    token: TokenFile = None
    view: bool = False
    """show the run in the browser while it runs; a simulation is then held to real time."""
    out: OutFolder = None


@options_dataclass
class BesideArgs:
    """Options of what works beside a run."""

    shadow: str = ""
    """a second policy that sees the same observations; its actions are compared, and never sent."""
    background: Expert[bool] = False
    """infer in a background thread while the last chunk is executed; for policies that infer chunks of actions."""
    reidentify: Expert[tuple[str, ...]] = ()
    """parameters to estimate during the run (patterns), or auto: carried mass and friction. A twin takes better values
    once they pass a gate; of a robot (--scene) they are only shown."""


@array_dataclass
class PreparedRun:
    """A policy and its world, ready to run."""

    world: Any
    policy: Policy
    title: str
    """POLICY in WORLD."""
    scene: Scene | None
    loop: LoopArgs
    beside: BesideArgs = BesideArgs()
    data: Path | None = None
    """The dataset that the run is to make or add to; None for one in the output folder."""
    task: str = ""
    """What the episodes show, in words; the title where it is empty."""
    episodes: int = 1
    watch: Callable[[Progress, TaskID], Watcher] | None = None
    """Gives the watcher that moves the progress bar on; None for one that counts."""
    operator: Watcher | None = None
    reidentified: LiveReidentification | None = None
    """The process that estimates parameters, outside the loop."""
    judge: Callable[[Episode], RunPart] | None = None
    """What a twin adds to the result."""

    @property
    def where(self) -> str:
        """The world, as on the command line."""
        return self.title.rpartition(" in ")[2]


def run_beside(prepared: PreparedRun, output: Output) -> tuple[RecordedRun, list[RunPart]]:
    """Run through the recorder, with everything that is asked for beside the loop."""
    world, policy, loop, beside = prepared.world, prepared.policy, prepared.loop, prepared.beside
    data, where, reidentified = prepared.data or output.folder / "data", prepared.where, prepared.reidentified
    if prepared.data is None:
        output.kept = f"the rows are kept in {data}, from which any command that reads data recovers them"
    with ExitStack() as stack:
        if beside.background:
            policy = stack.enter_context(closing(AsyncChunked.of(policy, world.spec)))
        shadow = stack.enter_context(Shadow(beside.shadow, world, seed=loop.seed)) if beside.shadow else None
        before, paced = _robot_counts(world), where.startswith(("sim:", "recording:"))
        live = stack.enter_context(live_view(loop.view, prepared.scene, world.spec, prepared.title, paced=paced))
        recorder = Recorder(data, world.spec, meta={"task": prepared.task or prepared.title, "world": where})
        if where.startswith(("twin:", "robot:")):
            stack.enter_context(realtime_priority())
        progress = stack.enter_context(progress_bar(TextColumn("{task.fields[state]}")))
        bar = progress.add_task(prepared.title, total=prepared.episodes * loop.steps, state="")
        shown = _Advance(progress, bar) if prepared.watch is None else prepared.watch(progress, bar)
        watched = reidentified if where.startswith("robot:") else None
        watchers: list[Watcher] = [
            w for w in (shown, prepared.operator, shadow, *live, watched, bounds_of(world)) if w is not None
        ]
        seeds = range(loop.seed, loop.seed + prepared.episodes)
        found = record_run(world, policy, recorder, seeds=seeds, steps=loop.steps, watch=watchers)
        progress.stop()
        parts = [_robot_part({name: n - before.get(name, 0) for name, n in _robot_counts(world).items()})]
        if shadow is not None:
            part = shadow.answers().part(found.episodes[0], output.folder, dropped=found.status.dropped)
            parts.insert(0, part)
        if reidentified is not None:
            parts.insert(0, reidentified.part(output.folder))
        if prepared.judge is not None:
            parts.insert(0, prepared.judge(found.episodes[0]))
    return found, parts


def finish_run(prepared: PreparedRun, found: RecordedRun, parts: Sequence[RunPart], output: Output) -> int:
    """Judge a run, write result.json and the page, say what came out, and raise the error that ended it."""
    scene, recording = prepared.scene, prepared.data is not None
    summary, verb = summarize_run(found, scene, parts), "record " if recording else ""
    say(*(part.words for part in parts if part.words))
    more: dict[str, Any] = {"data": str(prepared.data), "episodes": len(found.episodes)} if recording else {}
    more |= {"tasks": [{"done": o.done, "words": o.words} for o in summary.outcomes]}
    more |= {name: value for part in parts for name, value in part.facts.items()}
    about = {"rows": found.rows, "ended": found.ended, "task": summary.outcomes[0].task}
    output.write(summary.scores, **about, problems=list(summary.problems), **more)
    report = page_of_run(summary, scene, f"{verb}{prepared.title}", output.folder)
    if recording and found.error is None and not summary.problems:
        # An episode may fail its task; the recording is still what was asked for.
        whole = f"{found.rows} rows of {found.seconds:.1f} s in {len(found.episodes)} episodes were recorded."
        report = replace(report, verdict=Headline("good", whole, report.verdict.headline))
    return announce_run(found, report, output.page(report))


@dataclass(frozen=True, slots=True)
class _Advance:
    """A watcher that moves a progress bar on."""

    progress: Progress
    bar: TaskID

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        self.progress.advance(self.bar)


def _robot_counts(world: World) -> Mapping[str, int]:
    """The counts of the robot behind a world; none where it is no robot."""
    inner = inner_with(world, "real")
    robot: Any = inner_with(world if inner is None else inner.real, "newest_counts")
    return {} if robot is None else robot.newest_counts()


def _robot_part(counts: Mapping[str, int]) -> RunPart:
    """What a robot counted during a run: every command it changed or refused."""
    if not counts:
        return RunPart()
    done, doubts = counts.get("executed", 0), list[str]()
    if counts.get("stale", 0) > MAX_LATE_SHARE * max(done, 1):
        doubts.append(
            f"{counts['stale']} actions came too late and were not carried out ({done} were); use a faster "
            f"policy, or --background."
        )
    if refused := counts.get("invalid", 0) + counts.get("future", 0):
        doubts.append(f"The robot refused {refused} actions that it could not carry out.")
    if wrong := counts.get("invalid_readings", 0) + counts.get("doubtful", 0):
        doubts.append(f"The robot refused {wrong} readings of its own sensors.")
    rows = [(words, f"{counts[name]}") for name, words in WORDS.items() if counts.get(name)]
    lead = "The robot keeps every command inside its limits, and counts what it changed or refused."
    table = [Section("Commands, as the robot took them", lead, [Table(("what", "how often"), rows)])] if rows else []
    facts = {"robot": {name: n for name, n in counts.items() if n and name in WORDS}}
    return RunPart(facts=facts, sections=table, doubts=doubts)


def new_run_output(verb: str, out: Path | None, seed: int) -> Output:
    """The folder of a run, checked before anything moves: it can be written, and holds no earlier run."""
    if out is not None and (out / "data").exists():
        raise BadInput(f"The folder {str(out)!r} holds the data of an earlier run; give another --out.")
    return new_output(verb, out, seed=seed)


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
        """Number of rows that are kept."""
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


def with_goal(world: Any, scene: Scene | None) -> Any:
    """The world with the goal of its task among the observations, if the task has one."""
    task = _scene_task(scene)
    if task is None or scene is None or not task.goal_channel.labels or world.spec.q.labels != scene.spec.q.labels:
        return world
    return Tasked(world, task)


def _scene_task(scene: Scene | None) -> Task | None:
    """The task of a scene; None where it has none."""
    try:
        return None if scene is None else task_of(scene)
    except BadInput:
        return None


def task_outcome(scene: Scene | None, episode: Episode) -> TaskOutcome:
    """Judge an episode by the task of a scene: events in order, each held as long as the task asks."""
    task = _scene_task(scene)
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
    times, failure = tasked.event_times(state), int(tasked.failure(state))

    def clock(when: float) -> str:
        row = min(round(when / episode.spec.dt), len(episode) - 1)
        return f"{episode.t[row] - episode.t[0]:.1f} s"

    judge = ", by the state of the twin" if any(name.startswith("twin.") for name in episode.columns) else ""
    done = bool(np.isfinite(times[-1]))
    if done:
        words = f"The task was done after {clock(times[-1])}"
    else:
        reached = [i for i, when in enumerate(times) if np.isfinite(when)]
        far = f"{task.events[reached[-1]]!r} was reached after {clock(times[reached[-1]])}" if reached else ""
        span = f" within {episode.t[-1] - episode.t[0]:.1f} s"
        why = f"The task was not done{f': {task.failures[failure]}' if failure >= 0 else span}"
        words = "; ".join(part for part in (why, far, f"score {score[-1]:.2f} of 1 at the end") if part)
    return TaskOutcome(task.text, done, f"{words}{judge}.", np.array(score))


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
                found[name.removeprefix("observation.").replace("_", " ")] = f"no value of {listed} ever came"
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


def announce_run(run: RecordedRun, report: HtmlReport, page: Path) -> int:
    """Say the conclusion of a run, print the path of its page last, and raise the error that ended it, if one did.

    Returns the exit code: 0, or 130 after Ctrl-C.
    """
    verdict = report.verdict
    words = [verdict.headline, *([verdict.because] if verdict.status == "bad" else [])]
    say(*words, style={"good": "green", "bad": "red", "plain": ""}[verdict.status])
    say(f"{run.rows} rows are in {run.folder}.")
    print(page, flush=True)
    if run.error is None or isinstance(run.error, KeyboardInterrupt):
        return 0 if run.error is None else 130
    raise run.error


def run_video(folder: Path, episode: Episode, scene: Scene | None) -> ReportVideo | str:
    """The video of an episode: its recorded images, else a rendering of its positions, else why there is none."""
    shown, path = playback(episode.t), folder / VIDEO
    cameras = [name for name in episode.columns if name.startswith(IMAGES) and not name.endswith(".stamp")][:3]
    if cameras:
        write_small_video(path, (_side_by_side(episode, cameras, int(row)) for row in shown.rows))
        listed = ", ".join(name.removeprefix(IMAGES) for name in cameras)
        return ReportVideo(path.read_bytes(), f"Recorded images of {listed}, {shown.words}.")
    if scene is None:
        return "No video: the world gave no images, and no scene to render it by; name one with --scene."
    if episode.spec.q.labels != scene.spec.q.labels:
        return f"No video: the world gave no images, and does not report all positions of scene {scene.name!r}."
    if not scene.model.ngeom:
        return f"No video: the robot file of scene {scene.name!r} has no shapes."
    try:
        render_trajectory(scene, episode.q[shown.rows], path)
    except Unsupported as error:
        return f"No video: {error}"
    return ReportVideo(path.read_bytes(), f"Rendered from the recorded positions, {shown.words}.", True)


def _side_by_side(episode: Episode, cameras: Sequence[str], row: int) -> Array:
    """Images of some cameras side by side, all as high as the lowest."""
    images = [shrunk(np.asarray(episode[name][row]), MAX_WIDTH) for name in cameras]
    height = min(len(image) for image in images)
    return np.concatenate([image[:height] for image in images], axis=1)


def _scores(run: RecordedRun, outcomes: Sequence[TaskOutcome]) -> dict[str, Estimate]:
    first, values = run.episodes[0], dict[tuple[str, str], Callable[[Episode], float]]()
    for unit in ("rad", "m"):
        # Positions that are commanded: their places in the action and in q.
        pairs = [
            (i, first.spec.q.labels.index(label))
            for i, label in enumerate(first.spec.action.labels)
            if label in first.spec.q.labels and first.spec.action.units[i] == unit
        ]
        if pairs:
            rows, columns = map(list, zip(*pairs, strict=True))
            values[f"tracking error [{unit}]", unit] = lambda e, r=rows, c=columns: float(
                np.sqrt(np.mean((e.action[:, r] - e.q[:, c]) ** 2))
            )
    values["share of control steps made", ""] = rate_share
    for camera in image_ages(first):
        values[f"age of images, {camera}", "s"] = lambda e, c=camera: image_ages(e).get(c, float("nan"))
    scores = {name: bootstrap([of(e) for e in run.episodes], unit=unit) for (name, unit), of in values.items()}
    ends = [float(outcome.score[-1]) for outcome in outcomes if outcome.score is not None]
    if ends:
        scores["score at the end"] = bootstrap(ends)
        scores["task done"] = wilson(sum(outcome.done is True for outcome in outcomes), len(ends))
    return scores
