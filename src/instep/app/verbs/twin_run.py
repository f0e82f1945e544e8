"""The twin on the command line: the status line of a run, the files of a tracked recording, the trust of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import Progress, TextColumn

from instep.app.output import Output, progress_bar
from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import Array, Observation, Spec, State

if TYPE_CHECKING:
    from instep.twin import TrackedRecording, Trust, Twin, TwinOptions


STATUS_EVERY = 6
"""Rows from one status line to the next: ten a second at 60 Hz, so that showing it costs the loop little."""
STATUS_ROWS = 24
"""Rows that a status line summarises."""


def status_bar() -> Progress:
    """A progress bar with a status field."""
    return progress_bar(TextColumn("{task.fields[state]}"))


class TwinStatus:
    """A watcher that keeps the last rows of a twin's log and shows them as a status line."""

    def __init__(self, progress: Progress, task: Any, spec: Spec, trust: Trust | None = None):
        self._progress, self._task, self._trust = progress, task, trust
        logged = spec.observation.get("twin.correction")
        self._labels = logged.labels if logged is not None else ()
        counts, stages = spec.observation.get("twin.counts"), spec.observation.get("twin.stages")
        self._overruns = counts.labels.index("overruns") if counts is not None else -1
        self._follow = stages.labels.index("follow") if stages is not None else -1
        self._rows: deque[Array] = deque(maxlen=STATUS_ROWS)
        self._errors: deque[float] = deque(maxlen=STATUS_ROWS)
        self._count = 0

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; every few rows the line is renewed."""
        self._count += 1
        if self._labels:
            self._rows.append(np.asarray(observation["twin.correction"], float))
            error = np.asarray(observation.get("twin.joint_error", np.zeros(1)), float)
            self._errors.append(float(np.abs(error).max(initial=0.0)))
        if self._count % STATUS_EVERY == 0:
            self._progress.update(self._task, advance=STATUS_EVERY, state=self._line(observation))

    def log(self) -> Mapping[str, Array]:
        """The last rows by name, as `correction_log` gives those of a whole run."""
        rows = np.stack(self._rows)
        return {**{n: rows[:, i] for i, n in enumerate(self._labels)}, "joints.error": np.array(self._errors)}

    def _line(self, observation: Observation) -> str:
        if not self._rows:
            return ""
        log = self.log()
        words = [] if self._trust is None else [f"trust {float(self._trust.of(self._trust.frames(log))[-1]):.2f}"]
        words += [_stage_words(observation), status_line(log)]
        if self._follow >= 0:
            stages = np.asarray(observation["twin.stages"], float)
            words.append(f"work {1e3 * (stages.sum() - stages[self._follow]):.1f} ms")
            words.append(f"overruns {int(observation['twin.counts'][self._overruns])}")
        return "  ".join(filter(None, words))


def _stage_words(observation: Observation) -> str:
    """The stage of a twin that is not trusted; empty where it is."""
    from instep.twin.trust_stages import CHANNEL, LABELS, STAGE_WORDS, TrustStage

    if CHANNEL not in observation:
        return ""
    stage = TrustStage(int(np.asarray(observation[CHANNEL])[LABELS.index("stage")]))
    return f"[red]{STAGE_WORDS[stage]}[/]" if stage else ""


def status_line(log: Mapping[str, Array]) -> str:
    """The last numbers of a log, those of the last image where rows come between images."""

    def last(ending: str) -> float:
        rows = [v[np.isfinite(v)] for n, v in log.items() if n.endswith("." + ending)]
        return max((float(v[-1]) for v in rows if len(v)), default=float("nan"))

    words = ["[red]lost[/]"] if last("frames_lost") > 0 else []
    words.append(f"NIS {last('nis'):.1f}")
    words.append(f"residual {last('residual'):.2f}")
    words.append(f"sigma {1e3 * last('sigma'):.1f} mm")
    words.append(f"weakest {1e3 * last('weakest_sigma'):.1f} mm")
    words.append(f"latency {1e3 * last('latency'):.0f} ms")
    excluded = sum(float(v[-1]) > 0 for n, v in log.items() if n.endswith(".excluded"))
    return "  ".join([*words, *([f"[red]{excluded} excluded[/]"] if excluded else [])])


@contextmanager
def twin_of(
    scene: str, real: AbstractContextManager[Any], options: TwinOptions, *, images: bool = False, in_time: bool = False
) -> Generator[Twin]:
    """A twin of a real world, which is closed on leaving; `in_time` keeps it to the period of a robot's own clock.

    A robot that waits for each command, and a recording, set no time: their runs are repeatable.
    """
    from instep.twin import open_twin

    with real as world:
        if in_time and getattr(world, "pace", "step") == "real":
            options = replace(options, budget=world.spec.dt)
        yield open_twin(scene, world, options, images=images)


def write_tracking(tracked: TrackedRecording, output: Output) -> dict[str, Estimate]:
    """Write poses, cameras and the overlay, and return the scores of a run."""
    found = tracked.overlaps()
    _write_parquet(output.folder / "poses.parquet", tracked.columns(found))
    tracked.calibration.save(output.folder / "cameras.json")
    # A video of all cameras side by side with the twin's silhouette.
    path = output.folder / "overlay.mp4"
    from instep.data.video import VideoWriter

    with VideoWriter(path, round(1 / tracked.episode.spec.dt)) as video:
        for row in range(len(tracked.run)):
            video.add(tracked.overlay(row))
    return tracked.scores(found)


def calibrated_on(nominal: Path) -> Trust:
    """Trust, calibrated on a dataset of nominal runs of this twin."""
    from instep.data import load_episodes
    from instep.twin import calibrate_trust, correction_log

    return calibrate_trust([correction_log(one) for one in load_episodes(nominal)])


def chosen_trust(nominal: Path | None) -> Trust:
    """Trust by the shipped calibration, or by nominal runs where there are some."""
    from instep.twin import shipped_trust

    return shipped_trust() if nominal is None else calibrated_on(nominal)


def trust_facts(episode: Episode) -> dict[str, Any]:
    """What result.json keeps of trust: every change of stage, and how long each stage lasted [s]."""
    from instep.twin.trust_stages import CHANNEL, STAGE_WORDS, stage_seconds, trust_events

    if CHANNEL not in episode:
        return {}
    seconds = {STAGE_WORDS[stage]: round(took, 3) for stage, took in stage_seconds(episode).items() if took}
    return {"trust stages": seconds, "trust events": [event.words for event in trust_events(episode)]}


def budget_facts(episode: Episode) -> dict[str, Any]:
    """What result.json keeps of the time budget of a correction: what was given, and what was left out of how many."""
    from instep.twin import correction_log
    from instep.twin.camera_frames import left_out

    found = left_out(correction_log(episode)) if "twin.correction" in episode else {}
    return {"left out": found} if found else {}


def trust_scores(episode: Episode, trust: Trust) -> dict[str, Estimate]:
    """The lowest and the last trust of a run; none where it ended before trust is judged."""
    from instep.twin import correction_log

    frames = trust.frames(correction_log(episode))[trust.skip :]
    if not len(frames):
        return {}
    levels = trust.of(frames)
    low, last, n = float(np.min(levels)), float(levels[-1]), len(trust.scores)
    return {"trust": Estimate(low, low, low, n), "trust at the end": Estimate(last, last, last, n)}


def _write_parquet(path: Path, columns: dict[str, Array]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({name: np.asarray(c) for name, c in columns.items()}), path)
