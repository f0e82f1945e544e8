"""Recovery of recordings: read a recorder's journals after a clean end or a crash, and make a LeRobot dataset of them.

Everything that is whole is read, and what is lost is said exactly. Journals are removed only after the dataset was
checked against them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import check_regular, is_table, parse_json, parsing, present, shown
from instep.core.rollout import run_policy
from instep.core.world import Array, Policy, Watcher, World, array_dataclass, frozen_dataclass
from instep.data import journal

from .files import ALLOWED_KINDS, MAX_RECORDING
from .frames import Frames, IndexedImages
from .journal import Record, Scan
from .lerobot import WriteOptions, spec_from_json
from .lerobot.reader import read_lerobot
from .lerobot.writer import append_episodes
from .recorder import JOURNAL, Recorder, RecorderStatus, recorded_numbers


@frozen_dataclass
class Loss:
    """Something that was recorded, or should have been, and is not there."""

    episode: int
    what: str
    """Which rows or images are lost, and why."""
    rows: int = 0
    """How many rows are lost; -1 where that cannot be known."""


@array_dataclass
class RecoveredEpisode:
    """One episode as it lies in its journals."""

    index: int
    complete: bool
    """Whether it was committed and every row and image that was committed is there."""
    episode: Episode | None
    """Its rows; None where not even the description of its columns is left."""
    losses: tuple[Loss, ...]


def recover(folder: Path) -> list[RecoveredEpisode]:
    """The episodes that still lie in the journals of a dataset folder, by index; damage never raises.

    A journal whose records are whole but are not what a recorder writes is refused, and stays where it is.
    """
    here = folder / JOURNAL
    numbers = sorted({int(path.stem) for path in here.glob("*.*") if path.stem.isdigit()})
    return [recover_episode(here, number) for number in numbers]


def recover_episode(here: Path, number: int) -> RecoveredEpisode:
    """One episode of a folder of journals."""
    with parsing(here / f"{number:06d}.rows", "a journal of a recorder"):
        return _recovered(here, number)


def _recovered(here: Path, number: int) -> RecoveredEpisode:
    rows = _scan(here / f"{number:06d}.rows")
    images = _scan(here / f"{number:06d}.images")
    losses = _damages(number, rows, "row journal") + _damages(number, images, "image journal")
    header = next((one for scan in (rows, images) if (one := _first(scan, journal.BEGIN)) is not None), None)
    if header is None:
        losses.append(Loss(number, "no description of its columns is left, so its rows cannot be read", -1))
        return RecoveredEpisode(number, False, None, tuple(losses))
    fields: list[Any] = [("row", "<u8"), ("t", "<f8"), ("ref", "<i8", (len(header["images"]),))]
    fields += [(f"c{k}", _number_type(kind), tuple(shape)) for k, (_, kind, shape) in enumerate(header["columns"])]
    layout = np.dtype(fields)
    found = [record for record in _of_kind(rows, journal.ROW) if record.length == layout.itemsize]
    table = np.empty(len(found), layout)
    view = table.view(np.uint8).reshape(len(found), layout.itemsize)
    for k, record in enumerate(found):
        view[k] = np.frombuffer(rows.payload(record), np.uint8)
    columns: dict[str, Any] = {"timestamp": table["t"].astype(float)}
    for k, (name, kind, _) in enumerate(header["columns"]):
        columns[str(name)] = np.ascontiguousarray(table[f"c{k}"]).astype(np.dtype(kind).newbyteorder("="))
    columns["clock.monotonic"] = np.array([record.monotonic for record in found], float) * 1e-9
    columns["clock.wall"] = np.array([record.wall for record in found], float) * 1e-9
    kept = _images(images, table, header, columns, (number, losses))
    commits = {"row journal": _first(rows, journal.COMMIT), "image journal": _first(images, journal.COMMIT)}
    commit = commits["row journal"] or commits["image journal"]
    for record in _of_kind(rows, journal.GAP):
        gap = _noted(rows, record)
        count = int(gap["count"])
        many = f"rows {gap['first']} to {gap['first'] + count - 1}" if count > 0 else f"rows from {gap['first']} on"
        losses.append(Loss(number, f"{many} were dropped: {gap['why']}", count))
    losses += _uncommitted(number, kept, commits)
    meta = {**header.get("meta", {}), **(commit or {}).get("meta", {}), "index": str(number)}
    if losses:
        meta["lost"] = "; ".join(loss.what for loss in losses)
    if commit and commit.get("absent"):
        meta["absent"] = ", ".join(f"{name}: {count} rows" for name, count in commit["absent"].items())
    if jumps := [_noted(rows, record) for record in _of_kind(rows, journal.CLOCK)]:
        meta["clock.jumps"] = "; ".join(f"row {j['row']}: {(j['after'] - j['before']) * 1e-9:+.6f} s" for j in jumps)
    complete = commit is not None and not losses
    meta["complete"] = "yes" if complete else "no"
    episode = Episode(spec_from_json(header["spec"]), {name: column[kept] for name, column in columns.items()}, meta)
    return RecoveredEpisode(number, complete, episode, tuple(losses))


@frozen_dataclass
class RecordingResult:
    """What became of a recording."""

    folder: Path
    episodes: int
    """Episodes added to the dataset."""
    rows: int
    losses: tuple[str, ...]
    """What was lost, each in one sentence; empty where all is there."""
    status: RecorderStatus | None = None


def finish_recording(folder: Path, options: WriteOptions | None = None, *, keep: bool = False) -> RecordingResult:
    """Add the episodes of a folder's journals to its LeRobot dataset; `keep` leaves the journals there.

    Works the same after a crash as after a clean end. An episode of which nothing is left is reported, and the
    others keep the number they were recorded under in `meta["recorded"]`.
    """
    pending = _pending(folder)
    usable = [episode for found in pending for episode in _numbered(found)]
    if usable:
        append_episodes(usable, folder, options)
        _check(folder, usable)
    if not keep:
        here = folder / JOURNAL
        for path in here.glob("*.*"):
            if path.stem.isdigit():
                path.unlink()
        (here / "reserve").unlink(missing_ok=True)
        if here.exists() and not any(here.iterdir()):
            here.rmdir()
    losses = tuple(f"Episode {loss.episode}: {loss.what}." for found in pending for loss in found.losses)
    return RecordingResult(folder, len(usable), sum(len(episode) for episode in usable), losses)


def pending_episodes(folder: Path) -> list[Episode]:
    """Episodes that are in journals and not yet in LeRobot files."""
    return [episode for found in _pending(folder) for episode in _numbered(found)]


def record_episodes(
    world: World, policy: Policy, recorder: Recorder, *, seeds: Sequence[int], steps: int, watch: Sequence[Watcher] = ()
) -> RecordingResult:
    """Run a policy in a world once per seed, record it, and finish the dataset."""
    with recorder:
        for seed in seeds:
            ended = run_policy(world, policy, steps=steps, seed=seed, watch=[recorder, *watch])
            recorder.commit(seed=str(seed), ended=ended)
    return replace(finish_recording(recorder.folder), status=recorder.status())


def _pending(folder: Path) -> list[RecoveredEpisode]:
    done = set(recorded_numbers(folder))
    return [found for found in recover(folder) if found.index not in done]


def _numbered(found: RecoveredEpisode) -> list[Episode]:
    """The episode with the number that it was recorded under, where any row is left."""
    return [found.episode.with_columns({}, recorded=str(found.index))] if found.episode and len(found.episode) else []


def _check(folder: Path, given: Sequence[Episode]) -> None:
    """Compare what was written with what the journals hold, before these are removed."""
    read = read_lerobot(folder)
    for episode, stored in zip(given, read[len(read) - len(given) :], strict=True):
        same = len(episode) == len(stored) and np.array_equal(episode.t, stored.t)
        frames = all(len(stored[n]) == len(episode) for n in episode.columns if n in stored)
        if not (same and frames):
            raise BadInput(
                f"Episode {episode.meta['recorded']} of {str(folder)!r} reads back with {len(stored)} rows instead of "
                f"{len(episode)}; its journal is kept, so export it again."
            )


def _scan(path: Path) -> Scan:
    if present(path):
        check_regular(path, MAX_RECORDING)
    try:
        return journal.scan(path)
    except OSError:
        return Scan((), (), b"")


def _damages(number: int, scan: Scan, name: str) -> list[Loss]:
    losses: list[Loss] = []
    for damage in scan.damages:
        first, last = damage.sequence, damage.sequence + damage.count - 1
        said, rows = f"records {first} to {last} are lost", -1
        if damage.count == 0:
            said = f"it is cut off after record {first - 1}"
        elif damage.kind:
            said = f"record {first}, a {journal.NAMES[damage.kind % len(journal.NAMES)]}, is lost"
            rows = int(damage.kind == journal.ROW)
        where = f"{damage.length} bytes at {damage.start} of the {name} are damaged"
        losses.append(Loss(number, f"{where}: {said}", rows))
    return losses


def _first(scan: Scan, kind: int) -> dict[str, Any] | None:
    for record in scan.records:
        if record.kind == kind:
            return _noted(scan, record)
    return None


def _noted(scan: Scan, record: Record) -> dict[str, Any]:
    """What a record says in JSON."""
    name = f"record {record.sequence} of a journal"
    table = parse_json(bytes(scan.payload(record)), name)
    if not is_table(table):
        raise BadInput(f"{name!r} is {shown(table)}; a table was expected.")
    return table


def _number_type(kind: str) -> np.dtype[Any]:
    """A type of numbers that a journal names."""
    found = np.dtype(kind)
    if found.kind not in ALLOWED_KINDS:
        raise BadInput(f"A journal announces values of the type {kind!r}; only numbers are read.")
    return found


def _of_kind(scan: Scan, kind: int) -> list[Record]:
    return [record for record in scan.records if record.kind == kind]


def _images(
    scan: Scan, table: Array, header: Mapping[str, Any], columns: dict[str, Any], losing: tuple[int, list[Loss]]
) -> Array:
    """Add the image columns; returns which rows have all of their images."""
    number, losses = losing
    kept = np.ones(len(table), bool)
    for k, (name, kind, shape) in enumerate(header["images"]):
        size = _number_type(kind).itemsize * math.prod(shape)
        by_number = {r.sequence: r for r in _of_kind(scan, journal.BLOB) if r.stream == k and r.length == size}
        refs = table["ref"][:, k]
        there = np.array([int(ref) in by_number for ref in refs], bool)
        gone = sorted({int(ref) for ref in refs[~there]})
        if gone:
            rows = int((~there).sum())
            losses.append(Loss(number, f"{len(gone)} images of {name!r} are lost, and {rows} rows with them", rows))
        kept &= there

        def read(number: int, records: Mapping[int, Record] = by_number, kind: str = kind, shape: Any = shape) -> Array:
            return np.frombuffer(scan.payload(records[number]), np.dtype(kind)).reshape(shape)

        if np.dtype(kind) == np.uint8 and len(shape) == 3 and shape[2] == 3:
            columns[str(name)] = Frames(IndexedImages(read, (shape[0], shape[1])), refs)
            continue
        # Rows whose image is lost stay zero here and are left out with the others.
        stacked = np.zeros((len(refs), *shape), np.dtype(kind).newbyteorder("="))
        for row in np.flatnonzero(there):
            stacked[row] = read(int(refs[row]))
        columns[str(name)] = stacked
    return np.flatnonzero(kept)


def _uncommitted(number: int, kept: Array, commits: Mapping[str, Mapping[str, Any] | None]) -> list[Loss]:
    commit = next((found for found in commits.values() if found), None)
    if commit is None:
        return [Loss(number, f"it was not committed: {len(kept)} rows are there, how many followed is not known", -1)]
    losses = [Loss(number, f"the {name} has lost its commit") for name, found in commits.items() if found is None]
    missing = int(commit["seen"]) - int(commit["dropped"]) - len(kept)
    if missing > 0:
        losses.append(Loss(number, f"{missing} of its {commit['seen']} rows are lost", missing))
    return losses
