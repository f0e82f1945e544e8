"""Write LeRobot datasets without the lerobot package: version 3.0, and 2.1 with `modality.json` for GR00T.

`LEROBOT` and its versions are these datasets as formats: episodes of one rate in, raw columns out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import read_json
from instep.core.world import Channel, frozen_dataclass
from instep.data import files, video
from instep.data.files import library
from instep.data.formats import Format, Writer
from instep.data.frames import consecutive
from instep.data.journal import new_file
from instep.data.lerobot import (
    AUTOMATIC,
    Stats,
    WriteOptions,
    declare,
    episode_stats,
    is_image,
    merged_stats,
    rate_of,
    spec_to_json,
    stats_from_json,
    stats_to_json,
    stored_columns,
    video_info,
)
from instep.data.mapping import RawRun
from instep.data.video import facts

from .reader import (
    CHUNK,
    DATA,
    DATA_V21,
    EPISODES,
    INFO,
    OWN,
    V21,
    V30,
    VIDEO,
    VIDEO_V21,
    FileAccess,
    automatic_columns,
    episode_rows,
    notes_of,
    own_notes,
    read_info,
    read_lerobot,
    read_tasks,
    to_arrow,
)


def write_dataset(episodes: Iterable[Episode], folder: str | Path, options: WriteOptions | None = None) -> Path:
    """Write episodes as a new LeRobot dataset (v3.0), which appears whole or not at all."""
    folder = Path(folder)
    with files.new_folder(folder) as partial:
        _fill(DatasetWriter(partial, options or WriteOptions()), episodes)
    return folder


def append_episodes(episodes: Iterable[Episode], folder: Path, options: WriteOptions | None = None) -> Path:
    """Add episodes to a dataset that is there; `info.json`, replaced last, is what makes them count."""
    if not folder.exists():
        return write_dataset(episodes, folder, options)
    if not (folder / INFO).exists():
        # An export that never counted has left these behind.
        for name in ("data", "videos", "meta"):
            shutil.rmtree(folder / name, ignore_errors=True)
    _fill(DatasetWriter(folder, options or WriteOptions()), episodes)
    return folder


def write_dataset_v21(episodes: Iterable[Episode], folder: Path, options: WriteOptions | None = None) -> Path:
    """Write episodes as a new dataset of version 2.1, which appears whole or not at all."""
    with files.new_folder(folder) as partial:
        writer = _WriterV21(partial, options or WriteOptions())
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


def _fill(writer: DatasetWriter, episodes: Iterable[Episode]) -> None:
    try:
        for episode in episodes:
            writer.add(episode)
        writer.close()
    finally:
        writer.release()


class DatasetWriter:
    """A dataset of version 3.0 being written; nothing counts before `close`."""

    def __init__(self, root: Path, options: WriteOptions):
        self._root, self._options, self._meta = root, options, _Meta(options)
        self._rows: list[dict[str, Any]] = []
        self._before: Stats | None = None
        self._videos: dict[str, VideoFiles] = {}
        if (root / INFO).exists():
            self._resume()
        self._data = TableFiles(root, DATA, self._next_file("data"), options.data_mb)

    def add(self, episode: Episode) -> None:
        """Append one episode."""
        begun, info = bool(self._meta.info), self._meta.info
        columns, automatic, row = self._meta.add(episode, V30)
        if not begun:
            video = any(entry["dtype"] == "video" for entry in info["features"].values())
            sizes = {"data_files_size_in_mb": self._options.data_mb, "video_files_size_in_mb": self._options.video_mb}
            info |= {**sizes, "data_path": DATA, "video_path": VIDEO if video else None}
            self._open_videos()
        stop, rows = info["total_frames"], len(episode)
        shard = self._data.add(to_arrow(columns, info["features"], automatic), rows)
        row |= {"data/chunk_index": shard.chunk, "data/file_index": shard.file}
        row |= {"dataset_from_index": stop - rows, "dataset_to_index": stop}
        row |= self._add_videos(columns)
        stats = self._meta.stats[-1]
        row |= {f"stats/{name}/{key}": v.tolist() for name, entry in stats.items() for key, v in entry.items()}
        self._rows.append(row)

    def close(self) -> None:
        """Finish all files; `info.json` comes last."""
        meta = self._meta
        meta.require_episodes()
        self._data.close()
        for key, camera in self._videos.items():
            camera.close()
            meta.describe_video(key, camera)
        if self._rows:
            self._write_episodes()
        old = [self._before] if self._before else []
        stats = merged_stats([*old, *meta.stats])
        files.write_json(self._root / "meta/stats.json", stats_to_json(stats))
        with new_file(self._root / "meta/tasks.parquet") as partial:
            library("pyarrow.parquet").write_table(_task_table(meta.tasks), partial)
        meta.write(self._root)

    def release(self) -> None:
        """Close files that are still open, after a failure."""
        for open_files in (self._data, *self._videos.values()):
            open_files.close()

    def _resume(self) -> None:
        info, meta = read_info(self._root), self._meta
        if info["codebase_version"] != V30:
            raise BadInput(
                f"{str(self._root)!r} is a LeRobot dataset of version {info['codebase_version']}, and episodes are "
                f"appended to {V30} only; import it into a new dataset first."
            )
        meta.info = {**info, "features": dict(info["features"])}
        meta.tasks = [text for _, text in sorted(read_tasks(self._root, FileAccess()).items())]
        meta.own = own_notes(self._root) or {"spec": None, "episodes": [{} for _ in range(meta.count)]}
        stored = self._root / "meta/stats.json"
        self._before = stats_from_json(read_json(stored)) if stored.exists() else None
        _remove_uncounted(self._root, meta.count)
        self._open_videos()

    def _open_videos(self) -> None:
        for key, entry in self._meta.info["features"].items():
            if entry["dtype"] == "video":
                first = self._next_file(f"videos/{key}")
                self._videos[key] = VideoFiles(self._root, VIDEO, key, first, (self._meta.info["fps"], self._options))

    def _add_videos(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        row, fps = dict[str, Any](), self._meta.info["fps"]
        for key, camera in self._videos.items():
            place = camera.add(columns[key]) if key in columns and len(columns[key]) else None
            row[f"videos/{key}/chunk_index"] = place.chunk if place else None
            row[f"videos/{key}/file_index"] = place.file if place else None
            row[f"videos/{key}/from_timestamp"] = place.start / fps if place else None
            row[f"videos/{key}/to_timestamp"] = place.stop / fps if place else None
        return row

    def _next_file(self, below: str) -> Shard:
        found = sorted((self._root / below).glob("chunk-*/file-*.*"))
        if not found:
            return Shard(0, 0)
        return Shard(int(found[-1].parent.name[6:]), int(found[-1].stem[5:])).following()

    def _write_episodes(self) -> None:
        place = self._next_file("meta/episodes")
        for row in self._rows:
            row |= {"meta/episodes/chunk_index": place.chunk, "meta/episodes/file_index": place.file}
        table = _episode_table(self._rows, list(self._videos))
        with new_file(self._root / EPISODES.format(chunk_index=place.chunk, file_index=place.file)) as partial:
            library("pyarrow.parquet").write_table(table, partial, compression="snappy")


class _WriterV21:
    """A dataset of version 2.1 being written."""

    def __init__(self, root: Path, options: WriteOptions):
        self._root, self._options, self._meta = root, options, _Meta(options)
        self._rows: list[dict[str, Any]] = []
        self._videos = 0

    def add(self, episode: Episode) -> None:
        index = self._meta.count
        columns, automatic, row = self._meta.add(episode, V21)
        path = self._root / DATA_V21.format(episode_chunk=index // CHUNK, episode_index=index)
        path.parent.mkdir(parents=True, exist_ok=True)
        table = to_arrow(columns, self._meta.info["features"], automatic)
        library("pyarrow.parquet").write_table(table, path)
        for name, entry in self._meta.info["features"].items():
            if entry["dtype"] == "video" and name in columns:
                images = columns[name]
                template = VIDEO_V21.replace("{episode_chunk:03d}", f"{index // CHUNK:03d}")
                template = template.replace("{episode_index:06d}", f"{index:06d}")
                camera = VideoFiles(self._root, template, name, Shard(0, 0), (self._meta.info["fps"], self._options))
                camera.add(images)
                camera.close()
                self._videos += 1
                self._meta.describe_video(name, camera)
        self._rows.append(row)

    def close(self) -> None:
        meta, folder, count = self._meta, self._root / "meta", self._meta.count
        meta.require_episodes()
        chunks = (count + CHUNK - 1) // CHUNK
        paths = {"data_path": DATA_V21, "video_path": VIDEO_V21}
        meta.info |= {"total_videos": self._videos, "total_chunks": chunks, **paths}
        _write_lines(folder / "tasks.jsonl", [{"task_index": k, "task": text} for k, text in enumerate(meta.tasks)])
        _write_lines(folder / "episodes.jsonl", self._rows)
        stats = [{"episode_index": k, "stats": stats_to_json(part)} for k, part in enumerate(meta.stats)]
        _write_lines(folder / "episodes_stats.jsonl", stats)
        files.write_json(folder / "modality.json", modality(meta.info["features"], self._options.modality))
        meta.write(self._root)


class _Meta:
    """What both versions keep of a dataset: `info.json`, tasks, statistics, and the notes LeRobot has no place for."""

    def __init__(self, options: WriteOptions):
        self._options = options
        self.info: dict[str, Any] = {}
        self.tasks: list[str] = []
        self.stats: list[Stats] = []
        self.own: dict[str, Any] = {"spec": None, "episodes": []}

    @property
    def count(self) -> int:
        """Episodes so far, with those that were there before."""
        return int(self.info.get("total_episodes", 0))

    def require_episodes(self) -> None:
        """Refuse to finish a dataset without episodes."""
        if not self.info:
            raise BadInput("A dataset needs at least one episode, and none was given.")

    def add(self, episode: Episode, version: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Take one episode: its stored columns, its automatic columns, and its row of the table of episodes."""
        columns = stored_columns(episode, self._options)
        if not self.info:
            self._begin(episode, columns, version)
        self._check(episode, columns)
        info, rows, index, task = self.info, len(episode), self.count, episode.meta.get("task", "")
        if task not in self.tasks:
            self.tasks.append(task)
        place = (index, info["total_frames"], self.tasks.index(task))
        automatic = automatic_columns(rows, place, info["fps"])
        self.stats.append(episode_stats(columns | automatic))
        self.own["episodes"].append(notes_of(episode, self.own["spec"]))
        info["total_episodes"], info["total_frames"] = index + 1, info["total_frames"] + rows
        return columns, automatic, {"episode_index": index, "tasks": [task], "length": rows}

    def describe_video(self, name: str, camera: VideoFiles) -> None:
        """Note the size and codec of a camera's video, once."""
        if camera.last is not None:
            described = video_info(facts(camera.last), self.info["fps"], self._options.video)
            self.info["features"][name].setdefault("info", described)

    def write(self, root: Path) -> None:
        """Write checksums and notes; `info.json`, which makes the dataset count, comes last."""
        self.info |= {"total_tasks": len(self.tasks), "splits": {"train": f"0:{self.count}"}}
        # Tables that were there before keep the checksum they have; the table of tasks is written anew.
        before: dict[str, str] = {**(self.own.get("sha256") or {}), "meta/tasks.parquet": ""}
        tables = sorted(path for part in ("data", "meta") for path in (root / part).rglob("*.parquet"))
        names = {str(path.relative_to(root)): path for path in tables}
        self.own["sha256"] = {name: before.get(name) or files.sha256(path) for name, path in names.items()}
        files.write_json(root / OWN, self.own)
        files.write_json(root / INFO, self.info)

    def _begin(self, episode: Episode, columns: Mapping[str, Any], version: str) -> None:
        self.info |= {
            "codebase_version": version,
            "robot_type": self._options.robot_type or episode.meta.get("robot_type") or episode.meta.get("scene"),
            "total_episodes": 0,
            "total_frames": 0,
            "total_tasks": 0,
            "chunks_size": CHUNK,
            "fps": rate_of(episode, self._options),
            "splits": {},
            "features": declare(columns, episode, self._options),
        }
        self.own["spec"] = spec_to_json(episode.spec)

    def _check(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        """Refuse an episode of another rate or with other columns than the dataset's."""
        features, dt = self.info["features"], 1.0 / self.info["fps"]
        if abs(episode.spec.dt / dt - 1) > 0.05 and self._options.fps is None:
            raise BadInput(
                f"Episode {self.count} has rows every {episode.spec.dt * 1e3:.4g} ms, but this dataset one every "
                f"{dt * 1e3:.4g} ms; a LeRobot dataset has one rate, so resample it or write it apart."
            )
        missing = [n for n, e in features.items() if not (n in columns or n in AUTOMATIC or e["dtype"] == "video")]
        extra = [name for name in columns if name not in features]
        if missing or extra:
            raise BadInput(
                f"Episode {self.count} lacks {missing or 'nothing'} and adds {extra or 'nothing'}; all episodes of a "
                "dataset must have the same columns."
            )
        for name, column in columns.items():
            shape = list(column.shape[1:]) or [1]
            if shape != list(features[name]["shape"]):
                raise BadInput(
                    f"The column {name!r} of episode {self.count} has shape {shape}, but the dataset "
                    f"{features[name]['shape']}."
                )


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


def _remove_uncounted(root: Path, episodes: int) -> None:
    """Remove files that an append left behind when it was cut off before it counted."""
    for path in sorted((root / "meta/episodes").glob("chunk-*/file-*.parquet")):
        numbers = files.read_table(path).column("episode_index").to_pylist()
        if numbers and min(numbers) >= episodes:
            path.unlink()
    rows = episode_rows(root, episodes, FileAccess())
    used = {DATA.format(chunk_index=r["data/chunk_index"], file_index=r["data/file_index"]) for r in rows}
    for path in (root / "data").glob("chunk-*/file-*.parquet"):
        if str(path.relative_to(root)) not in used:
            path.unlink()


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    files.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@frozen_dataclass
class Shard:
    """A file by chunk and number, and which of its frames are meant."""

    chunk: int
    file: int
    start: int = 0
    stop: int = 0

    def following(self) -> Shard:
        """The next file."""
        full = self.file + 1 >= CHUNK
        return Shard(self.chunk + 1, 0) if full else Shard(self.chunk, self.file + 1)


class TableFiles:
    """Parquet files of many episodes, one row group each."""

    def __init__(self, root: Path, template: str, first: Shard, limit_mb: int):
        self._root, self._template, self._place = root, template, first
        self._limit, self._used = limit_mb << 20, 0
        self._writer: Any = None

    def add(self, table: Any, rows: int) -> Shard:
        """Append the rows of one episode and say where they went."""
        pq = library("pyarrow.parquet")

        if self._writer is not None and self._used + table.nbytes > self._limit:
            self.close()
            self._place, self._used = self._place.following(), 0
        if self._writer is None:
            name = self._template.format(chunk_index=self._place.chunk, file_index=self._place.file)
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, table.schema, compression="snappy", use_dictionary=True)
        if rows:
            self._writer.write_table(table, row_group_size=rows)
        self._used += table.nbytes
        return self._place

    def close(self) -> None:
        """Finish the open file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class VideoFiles:
    """Video files of many episodes of one camera; frames that are in a video file already are copied, not encoded."""

    def __init__(self, root: Path, template: str, key: str, first: Shard, how: tuple[int, WriteOptions]):
        self._root, self._template, self._key, self._place = root, template, key, first
        self._fps, self._options = how
        self._writer: video.VideoWriter | None = None
        self._copier: video.PacketWriter | None = None
        self._fresh = True
        self.last: Path | None = None
        """The last file that was finished or begun."""

    def add(self, images: Any) -> Shard:
        """Append the images of one episode and say where they went."""
        source = getattr(getattr(images, "source", None), "path", None)
        if source is not None and consecutive(images.numbers):
            start, count = int(images.numbers[0]), len(images.numbers)
            if video.can_copy(source, start, count):
                return self._copy(source, start, count)
        if self._writer is None or self._full(self._writer.size):
            self._next_file()
            self._writer = video.VideoWriter(self._path(), self._fps, self._options.video)
        begin = self._writer.frames
        for image in images:
            self._writer.add(image)
        return Shard(self._place.chunk, self._place.file, begin, self._writer.frames)

    def close(self) -> None:
        """Finish the open file."""
        for writer in (self._writer, self._copier):
            if writer is not None:
                writer.close()
        self._writer = self._copier = None

    def _copy(self, source: Path, start: int, count: int) -> Shard:
        if self._copier is None or self._copier.kind != video.stream_kind(source) or self._full(self._copier.size):
            self._next_file()
            self._copier = video.PacketWriter(self._path(), self._fps, source)
        begin = self._copier.frames
        self._copier.add(source, start, count)
        return Shard(self._place.chunk, self._place.file, begin, begin + count)

    def _next_file(self) -> None:
        self.close()
        self._place = self._place if self._fresh else self._place.following()
        self._fresh = False

    def _path(self) -> Path:
        name = self._template.format(video_key=self._key, chunk_index=self._place.chunk, file_index=self._place.file)
        self.last = self._root / name
        return self.last

    def _full(self, size: int) -> bool:
        return size > self._options.video_mb << 20


def _read(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The episodes of a dataset; headers `names:COLUMN` hold the names that it declares."""
    for episode in read_lerobot(path):
        spec = episode.spec
        channels = {"action": spec.action, **spec.observation}
        labels = {f"names:{name}": json.dumps(channel.labels) for name, channel in channels.items() if channel.labels}
        header = {**labels, "rate": repr(1.0 / spec.dt), **episode.meta}
        yield RawRun(f"episode {episode.meta['index']}", episode.columns, header)


def _writer(write: Callable[..., Path]) -> Writer:
    def to_lerobot(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
        write(alike(episodes), folder, WriteOptions(float32=True))
        return ()

    return to_lerobot


LEROBOT = Format("a LeRobot dataset", _read, contents=(INFO,), isolated=False)
LEROBOT_V30 = Format("LeRobot v3.0", write=_writer(write_dataset))
LEROBOT_V21 = Format("LeRobot v2.1", write=_writer(write_dataset_v21))


def alike(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """The episodes with the columns they all have; what only some have is left out and noted.

    A dataset has one rate, so episodes of several are refused. Cameras are kept where only some episodes have them: the
    others declare them as missing, with no time of capture.
    """
    rates = sorted({round(1.0 / episode.spec.dt, 1) for episode in episodes})
    if rates[-1] > 1.05 * rates[0]:
        listed = ", ".join(f"{rate:g}" for rate in rates)
        raise BadInput(
            f"These episodes have different rates ({listed} Hz), and a LeRobot dataset has one; give a rate to "
            "resample to, or choose a part of them."
        )
    common = {name for name in episodes[0].columns if all(name in episode for episode in episodes)}
    cameras = {n: Channel((), "", c.shape[1:], "uint8") for e in episodes for n, c in e.columns.items() if is_image(c)}
    stamps = {name for camera in cameras if (name := f"{camera}.stamp") not in common}
    kept = common | set(cameras)
    if all(set(episode.columns) <= kept and cameras.keys() <= episode.columns.keys() for episode in episodes):
        return episodes
    stamps = {name for name in stamps if any(name in episode for episode in episodes)}
    return [_with_cameras(episode, kept, cameras, stamps) for episode in episodes]


def _with_cameras(episode: Episode, kept: set[str], cameras: Mapping[str, Channel], stamps: set[str]) -> Episode:
    absent = {name: channel for name, channel in cameras.items() if name not in episode}
    extra = sorted(set(episode.columns) - kept - stamps)
    columns: dict[str, Any] = {name: column for name, column in episode.columns.items() if name not in extra}
    columns |= {name: np.full(len(episode), np.nan) for name in stamps if name not in columns}
    meta = {**episode.meta, "left out": ", ".join(extra)} if extra else dict(episode.meta)
    meta |= {"missing": ", ".join(sorted(absent))} if absent else {}
    return Episode(episode.spec.with_observations(absent), columns, meta)
