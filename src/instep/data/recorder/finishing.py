"""Make LeRobot files of the journals of a recorder, check them, and only then let the journals go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import Ending, rollout
from instep.core.world import Policy, World, vector
from instep.data import streams
from instep.data.lerobot import reader_v3, writer_v3
from instep.data.lerobot.features import WriteOptions
from instep.data.resample import with_stream

from .recorder import JOURNAL, Recorder, RecorderStatus, recorded_numbers
from .recovery import Recovered, recover


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a recording."""

    folder: Path
    episodes: int
    """Episodes added to the dataset."""
    rows: int
    losses: tuple[str, ...]
    """What was lost, each in one sentence; empty where all is there."""
    status: RecorderStatus | None = None


def finish(folder: Path, options: WriteOptions | None = None, *, keep: bool = False) -> Finished:
    """Add the episodes of a folder's journals to its LeRobot dataset; `keep` leaves the journals there.

    Works the same after a crash as after a clean end. An episode of which nothing is left is reported, and the
    others keep the number they were recorded under in `meta["recorded"]`.
    """
    done = set(recorded_numbers(folder))
    pending = [found for found in recover(folder) if found.index not in done]
    usable = [_with_streams(found) for found in pending if found.episode is not None and len(found.episode)]
    for found in pending:
        streams.keep(folder, found.index, found.streams)
    if usable:
        writer_v3.append(usable, folder, options)
        _check(folder, usable)
    if not keep:
        _remove_journals(folder)
    losses = tuple(f"Episode {loss.episode}: {loss.what}." for found in pending for loss in found.losses)
    return Finished(folder, len(usable), sum(len(episode) for episode in usable), losses)


def pending_episodes(folder: Path) -> list[Episode]:
    """Episodes that are in journals and not yet in LeRobot files."""
    done = set(recorded_numbers(folder))
    found = [found for found in recover(folder) if found.index not in done]
    return [_with_streams(one) for one in found if one.episode is not None and len(one.episode)]


def record(
    world: World,
    policy: Policy,
    recorder: Recorder,
    *,
    seeds: Sequence[int],
    steps: int,
    until: Ending | None = None,
) -> Finished:
    """Run a policy in a world once per seed, record it, and finish the dataset: the verb `instep record`."""
    with recorder:
        for seed in seeds:
            episode = rollout(world, policy, steps=steps, seed=seed, until=until, watch=[recorder])
            recorder.commit(seed=str(seed), ended=episode.meta["ended"])
    return replace(finish(recorder.folder), status=recorder.status())


def _with_streams(found: Recovered) -> Episode:
    """The episode with sensors of another clock laid onto its rows, newest value at each."""
    episode = found.episode
    assert episode is not None  # noqa: S101  # chosen so by the callers
    for name, (stamps, values) in found.streams.items():
        if len(stamps):
            flat = values.reshape(len(values), -1)
            channel = vector([f"{name}_{k}" for k in range(flat.shape[1])])
            episode = with_stream(episode, name, stamps, flat, "hold", channel)
    return episode.with_columns({}, recorded=str(found.index))


def _check(folder: Path, given: Sequence[Episode]) -> None:
    """Compare what was written with what the journals hold, before these are removed."""
    read = reader_v3.read(folder)
    for episode, stored in zip(given, read[len(read) - len(given) :], strict=True):
        same = len(episode) == len(stored) and np.array_equal(episode.t, stored.t)
        frames = all(len(stored[n]) == len(episode) for n in episode.columns if n in stored)
        if not (same and frames):
            raise BadInput(
                f"Episode {episode.meta['recorded']} of {str(folder)!r} reads back with {len(stored)} rows instead of "
                f"{len(episode)}; its journal is kept, so export it again."
            )


def _remove_journals(folder: Path) -> None:
    here = folder / JOURNAL
    for path in here.glob("*.*"):
        if path.stem.isdigit():
            path.unlink()
    (here / "reserve").unlink(missing_ok=True)
    if here.exists() and not any(here.iterdir()):
        here.rmdir()
