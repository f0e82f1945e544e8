"""Episodes that are read from disk when looked at.

LeRobot datasets of version 3.0, read without the lerobot package.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import Spec
from instep.data import file_limits, json_files
from instep.data.frames import open_video
from instep.data.video import frame_at

from . import arrow_table
from . import features as spec
from .features import AUTOMATIC, MEASURED, NOMINAL, check_features, foreign_spec

KEPT = 256
"""How many episodes stay in memory; their images never do."""


class LazyEpisodes(Sequence[Episode]):
    """A sequence of episodes, each read at its first use."""

    def __init__(self, count: int, read: Callable[[int], Episode]):
        self._numbers, self._read = range(count), read
        self._kept: OrderedDict[int, Episode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> LazyEpisodes: ...
    def __getitem__(self, index: int | slice) -> Episode | LazyEpisodes:
        if isinstance(index, slice):
            part = LazyEpisodes(0, self._read)
            part._numbers, part._kept = self._numbers[index], self._kept
            return part
        number = self._numbers[index]
        if number not in self._kept:
            self._kept[number] = self._read(number)
        self._kept.move_to_end(number)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[number]


VERSION = "v3.0"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
CHUNK = 1000
"""Files per chunk folder."""
OWN = "meta/instep.json"
"""What LeRobot has no place for: units, exact period, the notes of each episode."""
PERIOD = "instep.dt"
"""The note that keeps the control period [s] of an episode that differs from the dataset's."""


def read(folder: Path) -> Sequence[Episode]:
    """The episodes of a dataset; tables are read when an episode is looked at, images when a frame is."""
    return LazyEpisodes(*_reader(folder))


def _reader(folder: Path) -> tuple[int, Any]:
    info = read_info(folder)
    own = own_notes(folder)
    where = _Rows(folder, info)
    tasks = read_tasks(folder)
    described = spec.from_json(own["spec"]) if own and own.get("spec") else foreign_spec(info["features"], info["fps"])
    notes: list[Any] = own["episodes"] if own else []

    def one(index: int) -> Episode:
        columns, row = where.columns(index)
        meta, own_spec = noted(notes[index] if index < len(notes) else {}, described)
        number = int(columns["task_index"][0]) if len(columns.get("task_index", ())) else 0
        meta.setdefault("task", tasks[number] if number < len(tasks) else (row.get("tasks") or [""])[0])
        return finished(columns, own_spec, {**meta, "index": str(index)}, info["features"])

    return len(where), one


def notes_of(episode: Episode, stored: Mapping[str, Any] | None) -> dict[str, str]:
    """What is kept of an episode in words, and its control period where it is not exactly the dataset's."""
    differs = stored is not None and episode.spec.dt != stored["dt"]
    return {**episode.meta, PERIOD: repr(episode.spec.dt)} if differs else dict(episode.meta)


def noted(stored: Mapping[str, Any], described: Spec) -> tuple[dict[str, str], Spec]:
    """The notes of an episode, and the dataset's spec with the episode's own period."""
    notes = {str(name): str(value) for name, value in stored.items()}
    period = notes.pop(PERIOD, None)
    return notes, described if period is None else replace(described, dt=float(period))


def finished(columns: dict[str, Any], described: Spec, meta: dict[str, str], features: Mapping[str, Any]) -> Episode:
    """An episode of the columns of a LeRobot table: automatic columns become time, positions are found."""
    rows = len(next(iter(columns.values())))
    if MEASURED in columns:
        time = columns.pop(MEASURED)
    else:
        time = np.arange(rows) * described.dt
        stored = columns.get("timestamp")
        exact = stored is None or bool((np.abs(np.asarray(stored, float) - time) < 1e-3 * described.dt + 1e-4).all())
        time = time if exact else np.asarray(stored, float)
        meta = {**meta, "clock": NOMINAL} if exact else meta
    out: dict[str, Any] = {"timestamp": time}
    out |= {name: column for name, column in columns.items() if name not in AUTOMATIC}
    for name, source in (("q", "observation.state"), ("v", "observation.velocity")):
        channel = described.q if name == "q" else described.v
        if name not in out and source in out and out[source].shape[1:] == (len(channel.labels),):
            out[name] = np.asarray(out[source], float)
            meta = {**meta, f"{name}.from": source}
        elif name not in out and not channel.labels:
            out[name] = np.zeros((rows, 0))
    if "action" not in out and not described.action.labels:
        out["action"] = np.zeros((rows, 0))
    absent = [name for name, entry in features.items() if entry["dtype"] == "video" and name not in out]
    if absent:
        meta = {**meta, "missing": ", ".join(absent)}
    return Episode(described, out, meta)


class _Rows:
    """Where the rows and frames of each episode are."""

    def __init__(self, folder: Path, info: Mapping[str, Any]):
        self._folder, self._info = folder, info
        self._episodes = episode_rows(folder, info)
        firsts: dict[tuple[int, int], int] = {}
        for row in self._episodes:
            key = (row["data/chunk_index"], row["data/file_index"])
            firsts[key] = min(firsts.get(key, row["dataset_from_index"]), row["dataset_from_index"])
        self._firsts = firsts

    def __len__(self) -> int:
        return len(self._episodes)

    def columns(self, index: int) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """The columns of one episode, video still in its files."""
        row, features = self._episodes[index], self._info["features"]
        key = (row["data/chunk_index"], row["data/file_index"])
        path = file_limits.under(self._folder, _filled(self._info["data_path"], *key))
        start = row["dataset_from_index"] - self._firsts[key]
        part = rows_of(path, start, row["dataset_to_index"] - row["dataset_from_index"])
        columns = arrow_table.from_arrow(part, features)
        if "episode_index" in columns and not (columns["episode_index"] == index).all():
            raise BadInput(f"{str(path)!r} does not hold episode {index} where its table of episodes says it does.")
        for name, entry in features.items():
            if entry["dtype"] == "video" and row.get(f"videos/{name}/file_index") is not None:
                columns[name] = self._video(name, row)
        return columns, row

    def _video(self, name: str, row: Mapping[str, Any]) -> Any:
        place = (row[f"videos/{name}/chunk_index"], row[f"videos/{name}/file_index"])
        path = file_limits.under(self._folder, _filled(self._info["video_path"], *place, name))
        if not path.exists():
            raise BadInput(f"The video {str(path)!r} of episode {row['episode_index']} is missing.")
        return open_video(path, frame_at(path, row[f"videos/{name}/from_timestamp"]), row["length"])


def rows_of(path: Path, start: int, count: int) -> Any:
    """Some rows of a parquet file, reading only the row groups they are in."""
    file = file_limits.open_parquet(path)
    sizes = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
    ends = np.cumsum(sizes) if sizes else np.zeros(0, int)
    if not 0 <= start <= start + count <= (int(ends[-1]) if len(ends) else 0):
        raise BadInput(f"{str(path)!r} should hold {count} rows from row {start}, but it has {sum(sizes)} rows.")
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, start + count, side="left"))
    part = file_limits.read_groups(file, list(range(first, min(last + 1, len(sizes)))) if count else [], path)
    return part.slice(start - int(ends[first] - sizes[first]) if count else 0, count)


def read_info(folder: Path, versions: Sequence[str] = (VERSION,)) -> dict[str, Any]:
    """The checked `info.json` of a dataset of one of these versions."""
    path = folder / "meta/info.json"
    info = json_files.read_object(path)
    if info.get("codebase_version") not in versions:
        raise BadInput(
            f"{str(path)!r} is of version {info.get('codebase_version')!r}, but this reads {' and '.join(versions)}."
        )
    check_features(info.get("features"), str(path))
    for name in ("total_episodes", "total_frames", "fps"):
        file_limits.whole_number(info, name, str(path))
    if info["fps"] < 1:
        raise BadInput(f"{str(path)!r} gives a rate of {info['fps']} rows per second, but it must be at least 1.")
    return info


def own_notes(folder: Path) -> dict[str, Any] | None:
    """What instep wrote beside the LeRobot files, where it did."""
    path = folder / OWN
    value = json_files.read_object(path) if path.exists() else None
    if value is not None and not isinstance(value.get("episodes"), list):
        raise BadInput(f"{str(path)!r} is damaged: it should hold a spec and a list of episodes.")
    return value


def read_tasks(folder: Path) -> list[str]:
    """The tasks of a dataset by number."""
    path = folder / "meta/tasks.parquet"
    if not path.exists():
        return []
    stored = file_limits.plain_text(
        file_limits.read_groups(file := file_limits.open_parquet(path), all_groups(file), path)
    )
    name = "task" if "task" in stored.column_names else "__index_level_0__"
    if name not in stored.column_names or "task_index" not in stored.column_names:
        raise BadInput(f"{str(path)!r} should have the columns task and task_index, but has {stored.column_names}.")
    pairs = sorted(zip(stored.column("task_index").to_pylist(), stored.column(name).to_pylist(), strict=True))
    return [str(text) for _, text in pairs]


def episode_rows(folder: Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checked table of episodes, without its statistics."""
    rows: list[dict[str, Any]] = []
    for path in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
        file = file_limits.open_parquet(path)
        stored = file_limits.read_groups(file, all_groups(file), path)
        kept = [name for name in stored.column_names if not name.startswith("stats/")]
        rows += file_limits.plain_text(stored.select(kept)).to_pylist()
    rows = sorted(rows, key=lambda row: row.get("episode_index", 0))[: info["total_episodes"]]
    needed = (
        "episode_index",
        "length",
        "data/chunk_index",
        "data/file_index",
        "dataset_from_index",
        "dataset_to_index",
    )
    for k, row in enumerate(rows):
        for name in needed:
            file_limits.whole_number(row, name, f"Episode {k} of {str(folder)!r}")
        if row["dataset_to_index"] - row["dataset_from_index"] != row["length"] or row["episode_index"] != k:
            raise BadInput(f"The table of episodes of {str(folder)!r} contradicts itself at episode {k}.")
    if len(rows) != info["total_episodes"]:
        raise BadInput(
            f"{str(folder)!r} should hold {info['total_episodes']} episodes, but its table lists {len(rows)}."
        )
    return rows


def all_groups(file: Any) -> list[int]:
    """The numbers of all row groups of a parquet file."""
    return list(range(file.metadata.num_row_groups))


def _filled(template: Any, chunk: int, file: int, key: str = "") -> str:
    """A file's name from its template; only the three known fields are filled in."""
    text = str(template).replace("{chunk_index:03d}", f"{chunk:03d}").replace("{file_index:03d}", f"{file:03d}")
    return text.replace("{video_key}", key)
