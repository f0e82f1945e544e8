"""LeRobot datasets of version 2.1: one table and one video per episode, with `modality.json` for GR00T."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.data import file_limits, json_files
from instep.data.file_limits import library
from instep.data.frames import open_video
from instep.data.recorder import atomic as durable
from instep.data.video import facts

from . import arrow_table, feature_stats
from . import features as spec
from .features import WriteOptions, declare, foreign_spec, rate_of, stored_columns, video_info
from .reader_v3 import OWN, LazyEpisodes, finished, noted, notes_of, own_notes, read_info, rows_of
from .shards import Shard, VideoShelf

VERSION = "v2.1"
DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
CHUNK = 1000
"""Episodes per chunk folder."""


def read(folder: Path) -> Sequence[Episode]:
    """The episodes of a dataset. Cameras whose video file is absent are left out and named in `meta["missing"]`."""
    info = read_info(folder, (VERSION, "v2.0"))
    own = own_notes(folder)
    tasks = {int(row["task_index"]): str(row["task"]) for row in json_files.read_lines(folder / "meta/tasks.jsonl")}
    rows = _episode_rows(folder, info)
    described = spec.from_json(own["spec"]) if own and own.get("spec") else foreign_spec(info["features"], info["fps"])
    notes: list[Any] = own["episodes"] if own else []

    def one(k: int) -> Episode:
        index, length = rows[k]["episode_index"], rows[k]["length"]
        columns = _columns(folder, info, index, length)
        meta, own_spec = noted(notes[k] if k < len(notes) else {}, described)
        number = int(columns["task_index"][0]) if len(columns.get("task_index", ())) else 0
        meta.setdefault("task", tasks.get(number, str((rows[k].get("tasks") or [""])[0])))
        return finished(columns, own_spec, {**meta, "index": str(index)}, info["features"])

    return LazyEpisodes(len(rows), one)


def write(episodes: Iterable[Episode], folder: Path, options: WriteOptions | None = None) -> Path:
    """Write episodes as a new dataset, which appears whole or not at all."""
    with json_files.new_folder(folder) as partial:
        writer = _Writer(partial, options or WriteOptions())
        for episode in episodes:
            writer.add(episode)
        writer.close()
    return folder


def modality(features: Mapping[str, Any], groups: Mapping[str, Mapping[str, tuple[int, int]]] | None) -> dict[str, Any]:
    """The `modality.json` of GR00T: slices of state and action by name, cameras, and where the instruction is.

    Without `groups`, state and action are one slice each, named after themselves.
    """
    out: dict[str, Any] = {}
    for name, feature in (("state", "observation.state"), ("action", "action")):
        size = int(features[feature]["shape"][0]) if feature in features else 0
        chosen = dict((groups or {}).get(name, {}) or ({name: (0, size)} if size else {}))
        for group, (start, end) in chosen.items():
            if not 0 <= start < end <= size:
                raise BadInput(f"The slice {group!r} of {name} is {start}:{end}, but {feature!r} has {size} numbers.")
        out[name] = {group: {"start": start, "end": end} for group, (start, end) in chosen.items()}
    cameras = [name for name, entry in features.items() if entry["dtype"] in ("video", "image")]
    out["video"] = {name.removeprefix("observation.images."): {"original_key": name} for name in cameras}
    out["annotation"] = {"human.task_description": {"original_key": "task_index"}}
    return out


class _Writer:
    def __init__(self, root: Path, options: WriteOptions):
        self._root, self._options = root, options
        self._info: dict[str, Any] = {}
        self._tasks: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._parts: list[feature_stats.Stats] = []
        self._own: dict[str, Any] = {"spec": None, "episodes": []}
        self._videos = 0

    def add(self, episode: Episode) -> None:
        pq = library("pyarrow.parquet")
        columns = stored_columns(episode, self._options)
        if not self._info:
            self._begin(episode, columns)
        info, rows, index = self._info, len(episode), len(self._rows)
        task = episode.meta.get("task", "")
        if task not in self._tasks:
            self._tasks.append(task)
        place = (index, info["total_frames"], self._tasks.index(task))
        automatic = arrow_table.automatic_columns(rows, place, info["fps"])
        self._check(episode, columns)
        path = self._root / DATA.format(episode_chunk=index // CHUNK, episode_index=index)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow_table.to_arrow(columns, info["features"], automatic), path)
        self._add_videos(columns, index)
        self._parts.append(feature_stats.of_episode(columns | automatic))
        self._rows.append({"episode_index": index, "tasks": [task], "length": rows})
        self._own["episodes"].append(notes_of(episode, self._own["spec"]))
        info["total_frames"] += rows

    def close(self) -> None:
        if not self._info:
            raise BadInput("A dataset needs at least one episode, and none was given.")
        meta, count = self._root / "meta", len(self._rows)
        self._info |= {
            "total_episodes": count,
            "total_tasks": len(self._tasks),
            "total_videos": self._videos,
            "total_chunks": (count + CHUNK - 1) // CHUNK,
            "splits": {"train": f"0:{count}"},
        }
        _write_lines(meta / "tasks.jsonl", [{"task_index": k, "task": text} for k, text in enumerate(self._tasks)])
        _write_lines(meta / "episodes.jsonl", self._rows)
        parts = [{"episode_index": k, "stats": feature_stats.to_json(part)} for k, part in enumerate(self._parts)]
        _write_lines(meta / "episodes_stats.jsonl", parts)
        durable.write_json(meta / "modality.json", modality(self._info["features"], self._options.modality))
        tables = sorted((self._root / "data").rglob("*.parquet"))
        self._own["sha256"] = {str(path.relative_to(self._root)): durable.sha256(path) for path in tables}
        durable.write_json(self._root / OWN, self._own)
        durable.write_json(meta / "info.json", self._info)

    def _begin(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        features = declare(columns, episode, self._options)
        self._own["spec"] = spec.to_json(episode.spec)
        self._info = {
            "codebase_version": VERSION,
            "robot_type": self._options.robot_type or episode.meta.get("scene"),
            "total_episodes": 0,
            "total_frames": 0,
            "total_tasks": 0,
            "total_videos": 0,
            "total_chunks": 0,
            "chunks_size": CHUNK,
            "fps": rate_of(episode, self._options),
            "splits": {},
            "data_path": DATA,
            "video_path": VIDEO,
            "features": features,
        }

    def _check(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        features = self._info["features"]
        shapes = {name: list(column.shape[1:]) or [1] for name, column in columns.items()}
        wrong = [name for name, shape in shapes.items() if list(features.get(name, {}).get("shape", ())) != shape]
        if wrong:
            raise BadInput(
                f"The columns {wrong} of episode {len(self._rows)} are new or of another shape; all episodes of a "
                "dataset must have the same columns."
            )

    def _add_videos(self, columns: Mapping[str, Any], index: int) -> None:
        for name, entry in self._info["features"].items():
            if entry["dtype"] != "video" or name not in columns:
                continue
            template = VIDEO.replace("{episode_chunk:03d}", f"{index // CHUNK:03d}")
            template = template.replace("{episode_index:06d}", f"{index:06d}")
            shelf = VideoShelf(self._root, template, name, Shard(0, 0), (self._info["fps"], self._options))
            shelf.add(columns[name])
            shelf.close()
            self._videos += 1
            if shelf.last is not None:
                entry.setdefault("info", video_info(facts(shelf.last), self._info["fps"], self._options.video))


def _columns(folder: Path, info: Mapping[str, Any], index: int, length: int) -> dict[str, Any]:
    path = file_limits.under(folder, _filled(info.get("data_path", DATA), index, info))
    columns = arrow_table.from_arrow(rows_of(path, 0, length), info["features"])
    for name, entry in info["features"].items():
        if entry["dtype"] != "video":
            continue
        video = file_limits.under(folder, _filled(info.get("video_path") or VIDEO, index, info, name))
        if video.exists():
            columns[name] = open_video(video, 0, length)
    return columns


def _filled(template: Any, index: int, info: Mapping[str, Any], key: str = "") -> str:
    chunk = index // max(1, int(info.get("chunks_size", CHUNK)))
    text = str(template).replace("{episode_chunk:03d}", f"{chunk:03d}")
    return text.replace("{episode_index:06d}", f"{index:06d}").replace("{video_key}", key)


def _episode_rows(folder: Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = json_files.read_lines(folder / "meta/episodes.jsonl")
    for k, row in enumerate(rows):
        for name in ("episode_index", "length"):
            file_limits.whole_number(row, name, f"Line {k + 1} of episodes.jsonl")
    if len(rows) != info["total_episodes"] or sum(row["length"] for row in rows) != info["total_frames"]:
        raise BadInput(
            f"{str(folder)!r} should hold {info['total_episodes']} episodes of {info['total_frames']} rows, but "
            f"episodes.jsonl lists {len(rows)} of {sum(row['length'] for row in rows)}."
        )
    return rows


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    durable.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
