"""Runs through the crash-safe recorder: however one ends, its rows are kept.

Checks of a recorded run: whether its task was done, its rate was kept, its images were fresh, its channels alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import run_policy
from instep.core.world import Array, Policy, Watcher, World, array_dataclass
from instep.data import Recorder, finish_recording, load_episodes
from instep.data.recorder.recorder import RecorderStatus
from instep.robot import Recording
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Task, Tasked


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


MIN_RATE_SHARE = 0.9
"""A run that makes fewer of its control steps than this share was too slow."""
MAX_IMAGE_AGE_S = 0.25
"""Images whose median age is above this are stale [s]."""
IMAGES = "observation.images."


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
