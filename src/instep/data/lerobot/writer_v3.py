"""LeRobot datasets of version 3.0, written and appended to without the lerobot package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.data import file_limits, json_files
from instep.data.file_limits import library
from instep.data.recorder import atomic as durable
from instep.data.video import facts

from . import arrow_table, feature_stats
from . import features as spec
from .features import AUTOMATIC, WriteOptions, declare, rate_of, stored_columns, video_info
from .reader_v3 import (
    CHUNK,
    DATA,
    EPISODES,
    OWN,
    VERSION,
    VIDEO,
    all_groups,
    episode_rows,
    notes_of,
    own_notes,
    read_info,
    read_tasks,
)
from .shards import Shard, TableShelf, VideoShelf


def write(episodes: Iterable[Episode], folder: Path, options: WriteOptions | None = None) -> Path:
    """Write episodes as a new dataset, which appears whole or not at all."""
    with json_files.new_folder(folder) as partial:
        _fill(Writer(partial, options or WriteOptions()), episodes)
    return folder


def append(episodes: Iterable[Episode], folder: Path, options: WriteOptions | None = None) -> Path:
    """Add episodes to a dataset that is there; `info.json`, replaced last, is what makes them count."""
    if not folder.exists():
        return write(episodes, folder, options)
    if not (folder / "meta/info.json").exists():
        # An export that never counted has left these behind.
        for name in ("data", "videos", "meta"):
            shutil.rmtree(folder / name, ignore_errors=True)
    _fill(Writer(folder, options or WriteOptions()), episodes)
    return folder


def _fill(writer: Writer, episodes: Iterable[Episode]) -> None:
    try:
        for episode in episodes:
            writer.add(episode)
        writer.close()
    finally:
        writer.release()


class Writer:
    """A dataset being written; nothing counts before `close`."""

    def __init__(self, root: Path, options: WriteOptions):
        self._root, self._options = root, options
        self._rows: list[dict[str, Any]] = []
        self._parts: list[feature_stats.Stats] = []
        self._info: dict[str, Any] = {}
        self._own: dict[str, Any] = {"spec": None, "episodes": []}
        self._tasks: list[str] = []
        self._before: feature_stats.Stats | None = None
        self._videos: dict[str, VideoShelf] = {}
        if (root / "meta/info.json").exists():
            self._resume()
        self._data = TableShelf(root, DATA, self._next_file("data"), options.data_mb)

    @property
    def count(self) -> int:
        """Episodes so far, with those that were there before."""
        return int(self._info.get("total_episodes", 0))

    def add(self, episode: Episode) -> None:
        """Append one episode."""
        columns = stored_columns(episode, self._options)
        if not self._info:
            self._begin(episode, columns)
        self._check(episode, columns)
        info, rows, index = self._info, len(episode), self.count
        task = self._task(episode.meta.get("task", ""))
        automatic = arrow_table.automatic_columns(rows, (index, info["total_frames"], task), info["fps"])
        shard = self._data.add(arrow_table.to_arrow(columns, info["features"], automatic), rows)
        row: dict[str, Any] = {"episode_index": index, "tasks": [self._tasks[task]], "length": rows}
        row |= {"data/chunk_index": shard.chunk, "data/file_index": shard.file}
        row |= {"dataset_from_index": info["total_frames"], "dataset_to_index": info["total_frames"] + rows}
        row |= self._add_videos(columns)
        part = feature_stats.of_episode(columns | automatic)
        self._parts.append(part)
        row |= {f"stats/{name}/{key}": v.tolist() for name, entry in part.items() for key, v in entry.items()}
        self._rows.append(row)
        self._own["episodes"].append(notes_of(episode, self._own["spec"]))
        info["total_episodes"], info["total_frames"] = index + 1, info["total_frames"] + rows

    def close(self) -> None:
        """Finish all files; `info.json` comes last."""
        if not self._info:
            raise BadInput("A dataset needs at least one episode, and none was given.")
        self._data.close()
        for key, shelf in self._videos.items():
            shelf.close()
            if shelf.last is not None:
                entry = self._info["features"][key]
                entry.setdefault("info", video_info(facts(shelf.last), self._info["fps"], self._options.video))
        if self._rows:
            self._write_episodes()
        old = [self._before] if self._before else []
        durable.write_json(
            self._root / "meta/stats.json", feature_stats.to_json(feature_stats.together([*old, *self._parts]))
        )
        self._write_tasks()
        self._info |= {"total_tasks": len(self._tasks), "splits": {"train": f"0:{self.count}"}}
        self._own["sha256"] = self._checksums()
        durable.write_json(self._root / OWN, self._own)
        durable.write_json(self._root / "meta/info.json", self._info)

    def _checksums(self) -> dict[str, str]:
        """SHA-256 of every table; those that were there before keep the one they have."""
        before: dict[str, str] = self._own.get("sha256") or {}
        before.pop("meta/tasks.parquet", None)
        tables = sorted(path for part in ("data", "meta") for path in (self._root / part).rglob("*.parquet"))
        names = [str(path.relative_to(self._root)) for path in tables]
        return {n: before.get(n) or durable.sha256(path) for n, path in zip(names, tables, strict=True)}

    def release(self) -> None:
        """Let go of files that are still open, after a failure."""
        self._data.close()
        for shelf in self._videos.values():
            shelf.close()

    def _begin(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        fps = rate_of(episode, self._options)
        features = declare(columns, episode, self._options)
        has_video = any(entry["dtype"] == "video" for entry in features.values())
        self._info = {
            "codebase_version": VERSION,
            "robot_type": self._options.robot_type or episode.meta.get("scene"),
            "total_episodes": 0,
            "total_frames": 0,
            "total_tasks": 0,
            "chunks_size": CHUNK,
            "data_files_size_in_mb": self._options.data_mb,
            "video_files_size_in_mb": self._options.video_mb,
            "fps": fps,
            "splits": {},
            "data_path": DATA,
            "video_path": VIDEO if has_video else None,
            "features": features,
        }
        self._own["spec"] = spec.to_json(episode.spec)
        self._open_videos()

    def _resume(self) -> None:
        info = read_info(self._root)
        self._info = {**info, "features": dict(info["features"])}
        self._tasks = read_tasks(self._root)
        own = own_notes(self._root)
        self._own = own or {"spec": None, "episodes": [{} for _ in range(self.count)]}
        stored = self._root / "meta/stats.json"
        self._before = feature_stats.from_json(json_files.read_json(stored)) if stored.exists() else None
        _sweep(self._root, self.count)
        self._open_videos()

    def _open_videos(self) -> None:
        for key, entry in self._info["features"].items():
            if entry["dtype"] == "video":
                first = self._next_file(f"videos/{key}")
                self._videos[key] = VideoShelf(self._root, VIDEO, key, first, (self._info["fps"], self._options))

    def _check(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        info, dt = self._info, 1.0 / self._info["fps"]
        if abs(episode.spec.dt / dt - 1) > 0.05 and self._options.fps is None:
            raise BadInput(
                f"Episode {self.count} has rows every {episode.spec.dt * 1e3:.4g} ms, but this dataset one every "
                f"{dt * 1e3:.4g} ms; a LeRobot dataset has one rate, so resample it or write it apart."
            )
        missing = [n for n in info["features"] if n not in columns and n not in AUTOMATIC]
        missing = [name for name in missing if info["features"][name]["dtype"] != "video"]
        extra = [name for name in columns if name not in info["features"]]
        if missing or extra:
            raise BadInput(
                f"Episode {self.count} lacks {missing or 'nothing'} and adds {extra or 'nothing'}; all episodes of a "
                "dataset must have the same columns."
            )
        for name, column in columns.items():
            wanted = info["features"][name]
            shape = list(column.shape[1:]) or [1]
            if shape != list(wanted["shape"]):
                raise BadInput(
                    f"The column {name!r} of episode {self.count} has shape {shape}, but the dataset {wanted['shape']}."
                )

    def _add_videos(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for key, shelf in self._videos.items():
            place: Shard | None = shelf.add(columns[key]) if key in columns and len(columns[key]) else None
            row[f"videos/{key}/chunk_index"] = place.chunk if place else None
            row[f"videos/{key}/file_index"] = place.file if place else None
            row[f"videos/{key}/from_timestamp"] = place.start / self._info["fps"] if place else None
            row[f"videos/{key}/to_timestamp"] = place.stop / self._info["fps"] if place else None
        return row

    def _task(self, text: str) -> int:
        if text not in self._tasks:
            self._tasks.append(text)
        return self._tasks.index(text)

    def _next_file(self, below: str) -> Shard:
        found = sorted((self._root / below).glob("chunk-*/file-*.*"))
        if not found:
            return Shard(0, 0)
        chunk, file = int(found[-1].parent.name[6:]), int(found[-1].stem[5:])
        return Shard(chunk, file).following(CHUNK)

    def _write_episodes(self) -> None:
        pq = library("pyarrow.parquet")

        place = self._next_file("meta/episodes")
        for row in self._rows:
            row |= {"meta/episodes/chunk_index": place.chunk, "meta/episodes/file_index": place.file}
        path = self._root / EPISODES.format(chunk_index=place.chunk, file_index=place.file)
        with durable.new_file(path) as partial:
            pq.write_table(_episode_table(self._rows, list(self._videos)), partial, compression="snappy")

    def _write_tasks(self) -> None:
        pq = library("pyarrow.parquet")

        with durable.new_file(self._root / "meta/tasks.parquet") as partial:
            pq.write_table(_task_table(self._tasks), partial)


def _episode_table(rows: Sequence[Mapping[str, Any]], videos: Sequence[str]) -> Any:
    pa = library("pyarrow")

    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({n: pa.array([row.get(n) for row in rows], _episode_type(n, videos)) for n in names})


def _episode_type(name: str, videos: Sequence[str]) -> Any:
    pa = library("pyarrow")

    if name.startswith("stats/"):
        if name.endswith("/count"):
            return pa.list_(pa.int64())
        nested = name.split("/")[1] in videos
        return pa.list_(pa.list_(pa.list_(pa.float64()))) if nested else None
    if name == "tasks":
        return pa.list_(pa.string())
    return pa.float64() if name.endswith("_timestamp") else pa.int64()


def _task_table(tasks: Sequence[str]) -> Any:
    """The table pandas would write for a frame with the index `task` and the column `task_index`."""
    pa = library("pyarrow")

    described = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [
            {"name": n, "field_name": n, "pandas_type": p, "numpy_type": k, "metadata": None} for n, p, k in described
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    out = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    return out.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _sweep(root: Path, episodes: int) -> None:
    """Remove files that an append left behind when it was cut off before it counted."""
    for path in sorted((root / "meta/episodes").glob("chunk-*/file-*.parquet")):
        file = file_limits.open_parquet(path)
        numbers = file_limits.read_groups(file, all_groups(file), path).column("episode_index").to_pylist()
        if numbers and min(numbers) >= episodes:
            path.unlink()
    rows = episode_rows(root, {"total_episodes": episodes})
    used = {DATA.format(chunk_index=r["data/chunk_index"], file_index=r["data/file_index"]) for r in rows}
    for path in (root / "data").glob("chunk-*/file-*.parquet"):
        if str(path.relative_to(root)) not in used:
            path.unlink()
