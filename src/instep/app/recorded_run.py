"""Runs through the crash-safe recorder: however one ends, its rows are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.rollout import run_policy
from instep.core.world import Policy, Watcher, World
from instep.data import Recorder, finish_recording, load_episodes
from instep.data.recorder.recorder import RecorderStatus


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
