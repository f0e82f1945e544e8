"""Write LeRobot datasets without the lerobot package: version 3.0, and 2.1 with `modality.json` for GR00T.

`LEROBOT` and its versions are these datasets as formats: episodes of one rate in, raw columns out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import content_hash, read_json
from instep.core.world import Channel, frozen_dataclass
from instep.data import files, video
from instep.data.files import library
from instep.data.formats import Format
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
    spec_to_json,
    stats_from_json,
    stats_to_json,
    stored_columns,
)
from instep.data.mapping import RawRun

from .reader import (
    CHUNK,
    EPISODES,
    INFO,
    LAYOUT,
    OWN,
    V21,
    V30,
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


def write_dataset(
    episodes: Iterable[Episode], folder: str | Path, options: WriteOptions | None = None, *, version: str = V30
) -> Path:
    """Write episodes as a new LeRobot dataset, v3.0 or v2.1, which appears whole or not at all."""
    folder = Path(folder)
    with files.new_folder(folder) as partial:
        _fill(DatasetWriter(partial, options or WriteOptions(), version), episodes)
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


def modality(features: Mapping[str, Any]) -> dict[str, Any]:
    """The `modality.json` of GR00T: state and action as one slice each, cameras, and where the instruction is."""
    out: dict[str, Any] = {"state": {}, "action": {}}
    for name, feature in (("state", "observation.state"), ("action", "action")):
        if feature in features:
            out[name] = {name: {"start": 0, "end": int(features[feature]["shape"][0])}}
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
    """A dataset being written; nothing counts before `close`. Version 3.0 has many episodes in a file, 2.1 one."""

    def __init__(self, root: Path, options: WriteOptions, version: str = V30):
        self._root, self._options, self._v3 = root, options, version == V30
        self._info: dict[str, Any] = {}
        self._tasks: list[str] = []
        self._stats: list[Stats] = []
        self._own: dict[str, Any] = {"spec": None, "episodes": []}
        """The notes LeRobot has no place for."""
        self._rows: list[dict[str, Any]] = []
        self._before: Stats | None = None
        self._videos: dict[str, VideoFiles] = {}
        self._layout = LAYOUT[self._v3]
        if (root / INFO).exists():
            self._resume()
        self._data = TableFiles(root, self._layout["data_path"], self._next_file("data"), options.data_mb)

    def add(self, episode: Episode) -> None:
        """Append one episode."""
        columns = stored_columns(episode, self._options)
        if not self._info:
            self._begin(episode, columns)
        info, rows, task = self._info, len(episode), episode.meta.get("task", "")
        self._check(episode, columns)
        if task not in self._tasks:
            self._tasks.append(task)
        index, start = info["total_episodes"], info["total_frames"]
        automatic = automatic_columns(rows, (index, start, self._tasks.index(task)), info["fps"])
        self._stats.append(episode_stats(columns | automatic))
        self._own["episodes"].append(notes_of(episode, self._own["spec"]))
        info["total_episodes"], info["total_frames"] = index + 1, start + rows
        row: dict[str, Any] = {"episode_index": index, "tasks": [task], "length": rows}
        if not self._v3:
            for open_files in (self._data, *self._videos.values()):
                open_files.begin(Shard(index // CHUNK, index))
        shard = self._data.add(to_arrow(columns, info["features"], automatic), rows)
        videos = self._add_videos(columns)
        if self._v3:
            row |= {"data/chunk_index": shard.chunk, "data/file_index": shard.file}
            row |= {"dataset_from_index": start, "dataset_to_index": start + rows, **videos}
            stats = self._stats[-1].items()
            row |= {f"stats/{name}/{key}": v.tolist() for name, entry in stats for key, v in entry.items()}
        else:
            info["total_videos"] += sum(f"videos/{key}/file_index" in videos for key in self._videos)
        self._rows.append(row)

    def close(self) -> None:
        """Finish all files; `info.json`, which makes the dataset count, comes last."""
        info, meta = self._info, self._root / "meta"
        if not info:
            raise BadInput("A dataset needs at least one episode, and none was given.")
        self.release()
        for key, camera in self._videos.items():
            if camera.last is not None:
                info["features"][key].setdefault("info", self._described(video.facts(camera.last)))
        if self._v3:
            if self._rows:
                self._write_episodes()
            old = [self._before] if self._before else []
            files.write_json(meta / "stats.json", stats_to_json(merged_stats([*old, *self._stats])))
            with new_file(meta / "tasks.parquet") as partial:
                library("pyarrow.parquet").write_table(_task_table(self._tasks), partial)
        else:
            _write_lines(meta / "tasks.jsonl", [{"task_index": k, "task": text} for k, text in enumerate(self._tasks)])
            _write_lines(meta / "episodes.jsonl", self._rows)
            stats = [{"episode_index": k, "stats": stats_to_json(part)} for k, part in enumerate(self._stats)]
            _write_lines(meta / "episodes_stats.jsonl", stats)
            files.write_json(meta / "modality.json", modality(info["features"]))
            info["total_chunks"] = -(-info["total_episodes"] // CHUNK)
        info |= {"total_tasks": len(self._tasks), "splits": {"train": f"0:{info['total_episodes']}"}}
        # Tables that were there before keep the checksum they have; the table of tasks is written anew.
        before: dict[str, str] = {**(self._own.get("sha256") or {}), "meta/tasks.parquet": ""}
        tables = sorted(path for part in ("data", "meta") for path in (self._root / part).rglob("*.parquet"))
        names = {str(path.relative_to(self._root)): path for path in tables}
        self._own["sha256"] = {name: before.get(name) or content_hash(path) for name, path in names.items()}
        files.write_json(self._root / OWN, self._own)
        files.write_json(self._root / INFO, info)

    def release(self) -> None:
        """Close the files that are open."""
        for open_files in (self._data, *self._videos.values()):
            open_files.close()

    def _begin(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        """Describe the dataset by its first episode."""
        fps = self._options.fps or round(1.0 / episode.spec.dt)
        if fps < 1:
            raise BadInput(
                f"Rows every {episode.spec.dt:.3g} s are fewer than one per second, which LeRobot cannot hold; "
                "resample."
            )
        features = declare(columns, episode, self._options)
        self._info |= {
            "codebase_version": V30 if self._v3 else V21,
            "robot_type": self._options.robot_type or episode.meta.get("robot_type") or episode.meta.get("scene"),
            "total_episodes": 0, "total_frames": 0, "total_tasks": 0, "chunks_size": CHUNK, "fps": fps, "splits": {},
            "features": features, **self._layout,
        }  # fmt: skip
        if self._v3:
            sizes = {"data_files_size_in_mb": self._options.data_mb, "video_files_size_in_mb": self._options.video_mb}
            shown = any(entry["dtype"] == "video" for entry in features.values())
            self._info |= {**sizes, "video_path": self._layout["video_path"] if shown else None}
        else:
            self._info["total_videos"] = 0
        self._own["spec"] = spec_to_json(episode.spec)
        self._open_videos()

    def _check(self, episode: Episode, columns: Mapping[str, Any]) -> None:
        """Refuse an episode of another rate or with other columns than the dataset's."""
        features, dt, count = self._info["features"], 1.0 / self._info["fps"], self._info["total_episodes"]
        if abs(episode.spec.dt / dt - 1) > 0.05 and self._options.fps is None:
            raise BadInput(
                f"Episode {count} has rows every {episode.spec.dt * 1e3:.4g} ms, but this dataset one every "
                f"{dt * 1e3:.4g} ms; a LeRobot dataset has one rate, so resample it or write it apart."
            )
        missing = [n for n, e in features.items() if not (n in columns or n in AUTOMATIC or e["dtype"] == "video")]
        extra = [name for name in columns if name not in features]
        if missing or extra:
            raise BadInput(
                f"Episode {count} lacks {missing or 'nothing'} and adds {extra or 'nothing'}; all episodes of a "
                "dataset must have the same columns."
            )
        for name, column in columns.items():
            shape, stored = list(column.shape[1:]) or [1], list(features[name]["shape"])
            if shape != stored:
                raise BadInput(f"The column {name!r} of episode {count} has shape {shape}, but the dataset {stored}.")

    def _resume(self) -> None:
        info = read_info(self._root)
        if info["codebase_version"] != V30:
            raise BadInput(
                f"{str(self._root)!r} is a LeRobot dataset of version {info['codebase_version']}, and episodes are "
                f"appended to {V30} only; import it into a new dataset first."
            )
        self._info = {**info, "features": dict(info["features"])}
        self._tasks = [text for _, text in sorted(read_tasks(self._root, info, FileAccess()).items())]
        self._own = own_notes(self._root) or {"spec": None, "episodes": [{} for _ in range(info["total_episodes"])]}
        stored = self._root / "meta/stats.json"
        self._before = stats_from_json(read_json(stored)) if stored.exists() else None
        _remove_uncounted(self._root, info)
        self._open_videos()

    def _open_videos(self) -> None:
        for key, entry in self._info["features"].items():
            if entry["dtype"] == "video":
                first, how = self._next_file(f"videos/{key}"), (self._info["fps"], self._options)
                self._videos[key] = VideoFiles(self._root, self._layout["video_path"], key, first, how)

    def _add_videos(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Append the images of an episode; where they went, as entries of its row."""
        row, fps = dict[str, Any](), self._info["fps"]
        for key, camera in self._videos.items():
            if key in columns and len(columns[key]):
                place = camera.add(columns[key])
                row |= {f"videos/{key}/chunk_index": place.chunk, f"videos/{key}/file_index": place.file}
                row |= {
                    f"videos/{key}/from_timestamp": place.start / fps, f"videos/{key}/to_timestamp": place.stop / fps
                }  # fmt: skip
        return row

    def _described(self, facts: video.VideoFacts) -> dict[str, Any]:
        """What `info.json` says of a video feature."""
        options = self._options.video
        return {
            "video.height": facts.height, "video.width": facts.width, "video.codec": facts.codec,
            "video.pix_fmt": facts.pix_fmt, "video.fps": self._info["fps"], "video.channels": 3, "has_audio": False,
            "is_depth_map": False, "video.g": options.g, "video.crf": options.crf,
        }  # fmt: skip

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
        with new_file(self._root / place.path(EPISODES)) as partial:
            library("pyarrow.parquet").write_table(table, partial, compression="snappy")


def _episode_table(rows: Sequence[Mapping[str, Any]], videos: Sequence[str]) -> Any:
    pa = library("pyarrow")
    ends = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    names = [*(name for row in rows for name in row), *(f"videos/{key}/{end}" for key in videos for end in ends)]
    return pa.table({n: pa.array([row.get(n) for row in rows], _episode_type(n, videos)) for n in dict.fromkeys(names)})


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


def _remove_uncounted(root: Path, info: Mapping[str, Any]) -> None:
    """Remove files that an append left behind when it was cut off before it counted."""
    for path in sorted((root / "meta/episodes").glob("chunk-*/file-*.parquet")):
        numbers = files.read_table(path).column("episode_index").to_pylist()
        if numbers and min(numbers) >= info["total_episodes"]:
            path.unlink()
    rows = episode_rows(root, info, FileAccess())
    places = {Shard(row["data/chunk_index"], row["data/file_index"]) for row in rows}
    used = {place.path(LAYOUT[True]["data_path"]) for place in places}
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

    def path(self, template: str, camera: str = "") -> str:
        """Its name below the folder of the dataset; in version 2.1 its number is that of its episode."""
        chunk, file = self.chunk, self.file
        return template.format(
            chunk_index=chunk, file_index=file, episode_chunk=chunk, episode_index=file, video_key=camera
        )


class TableFiles:
    """Parquet files of many episodes, one row group each."""

    def __init__(self, root: Path, template: str, first: Shard, limit_mb: int):
        self._root, self._template, self._place = root, template, first
        self._limit, self._used = limit_mb << 20, 0
        self._writer: Any = None

    def begin(self, place: Shard) -> None:
        """Go on in another file."""
        self.close()
        self._place, self._used = place, 0

    def add(self, table: Any, rows: int) -> Shard:
        """Append the rows of one episode and say where they went."""
        if self._writer is not None and self._used + table.nbytes > self._limit:
            self.begin(self._place.following())
        if self._writer is None:
            path = self._root / self._place.path(self._template)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq = library("pyarrow.parquet")
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

    def begin(self, place: Shard) -> None:
        """Go on in another file."""
        self.close()
        self._place, self._fresh = place, True

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
        self.last = self._root / self._place.path(self._template, self._key)
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


def _write(episodes: Sequence[Episode], folder: Path, version: str = V30) -> tuple[str, ...]:
    write_dataset(alike(episodes), folder, WriteOptions(float32=True), version=version)
    return ()


LEROBOT = Format("a LeRobot dataset", _read, contents=(INFO,), isolated=False)
LEROBOT_V30 = Format("LeRobot v3.0", write=_write)
LEROBOT_V21 = Format("LeRobot v2.1", write=partial(_write, version=V21))


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
