"""Read LeRobot datasets of versions 3.0, 2.1 and 2.0 without the lerobot package.

Tables are read when an episode is used, images when a frame is. Tables of others are parsed in another process.
pyarrow's objects stay `Any` here.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import check_inside, check_regular, content_hash, inside, parsing, present, read_json_table
from instep.core.world import Array, Spec, frozen_dataclass
from instep.data import files
from instep.data.files import library
from instep.data.formats import check_video, isolated_table
from instep.data.frames import encode_png, open_stills, open_video
from instep.data.lerobot import AUTOMATIC, MEASURED, NOMINAL, check_features, foreign_spec, spec_from_json
from instep.data.video import frame_at

V30, V21, V20 = "v3.0", "v2.1", "v2.0"
INFO = "meta/info.json"
OWN = "meta/instep.json"
"""What LeRobot has no place for: units, exact period, the notes of each episode, checksums."""
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_V21 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_V21 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
LAYOUT = {True: {"data_path": DATA, "video_path": VIDEO}, False: {"data_path": DATA_V21, "video_path": VIDEO_V21}}
"""Where the files of version 3.0 (true) and 2.x lie, if `info.json` does not say it."""
CHUNK = 1000
"""Files (version 3.0) or episodes (2.1) per chunk folder."""
PERIOD = "instep.dt"
"""The note that keeps the control period [s] of an episode that differs from the dataset's."""
CACHED_EPISODES = 256
"""How many episodes stay in memory; their images never do."""
_EPISODE_COLUMNS = (
    "episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index",
)  # fmt: skip


@frozen_dataclass
class FileAccess:
    """How the files of a dataset are opened."""

    table: Callable[[Path, int, int | None], Any] = files.read_table
    check_video: Callable[[Path], None] = lambda path: None


ISOLATED = FileAccess(isolated_table, check_video)
"""Access to files of others."""


class LazyEpisodes(Sequence[Episode]):
    """A sequence of episodes, each read at its first use."""

    def __init__(self, count: int, read: Callable[[int], Episode]):
        self._numbers, self._read = range(count), read
        self._cache: OrderedDict[int, Episode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> LazyEpisodes: ...
    def __getitem__(self, index: int | slice) -> Episode | LazyEpisodes:
        if isinstance(index, slice):
            part = LazyEpisodes(0, self._read)
            part._numbers, part._cache = self._numbers[index], self._cache
            return part
        number = self._numbers[index]
        if number not in self._cache:
            self._cache[number] = self._read(number)
        self._cache.move_to_end(number)
        while len(self._cache) > CACHED_EPISODES:
            self._cache.popitem(last=False)
        return self._cache[number]


def read_lerobot(folder: Path) -> LazyEpisodes:
    """The episodes of a LeRobot dataset. Cameras whose video is absent are named in `meta["missing"]` (v2.x)."""
    with parsing(folder, "a LeRobot dataset"):
        return _lazy_episodes(folder)


def _lazy_episodes(folder: Path) -> LazyEpisodes:
    info, own = read_info(folder), own_notes(folder)
    access = FileAccess() if _is_as_written(folder) else ISOLATED
    where, tasks = _Tables(folder, info, access), read_tasks(folder, info, access)
    spec = spec_from_json(own["spec"]) if own and own.get("spec") else foreign_spec(info["features"], info["fps"])
    notes: list[Any] = own["episodes"] if own else []

    def one(index: int) -> Episode:
        with parsing(folder, f"a LeRobot dataset, at its episode {index}"):
            return read(index)

    def read(index: int) -> Episode:
        row = where.rows[index]
        columns = where.columns(index)
        meta, own_spec = _noted(notes[index] if index < len(notes) else {}, spec)
        robot = info.get("robot_type")
        meta |= {"robot_type": str(robot)} if robot and robot != meta.get("scene") else {}
        number = int(columns["task_index"][0]) if len(columns.get("task_index", ())) else 0
        meta.setdefault("task", tasks[number] if number in tasks else str((row.get("tasks") or [""])[0]))
        return _finished(columns, own_spec, {**meta, "index": str(row["episode_index"])}, info["features"])

    return LazyEpisodes(len(where.rows), one)


def notes_of(episode: Episode, stored: Mapping[str, Any] | None) -> dict[str, str]:
    """The meta of an episode, and its control period where it is not exactly the dataset's."""
    differs = stored is not None and episode.spec.dt != stored["dt"]
    return {**episode.meta, PERIOD: repr(episode.spec.dt)} if differs else dict(episode.meta)


def read_info(folder: Path) -> dict[str, Any]:
    """The checked `info.json` of a dataset."""
    path = folder / INFO
    info = read_json_table(check_inside(folder, path))
    if info.get("codebase_version") not in (V30, V21, V20):
        raise BadInput(
            f"{str(path)!r} is of version {info.get('codebase_version')!r}; LeRobot v2.0, v2.1 and v3.0 are read."
        )
    check_features(info.get("features"), str(path))
    for name in ("total_episodes", "total_frames", "fps"):
        files.whole_number(info, name, str(path))
    if info["fps"] < 1:
        raise BadInput(f"{str(path)!r} gives a rate of {info['fps']} rows per second, but it must be at least 1.")
    return info


def own_notes(folder: Path) -> dict[str, Any] | None:
    """What instep wrote beside the LeRobot files, where it did."""
    path = folder / OWN
    value = read_json_table(check_inside(folder, path)) if present(path) else None
    if value is not None and not isinstance(value.get("episodes"), list):
        raise BadInput(f"{str(path)!r} is damaged: it should hold a spec and a list of episodes.")
    return value


def read_tasks(folder: Path, info: Mapping[str, Any], access: FileAccess) -> dict[int, str]:
    """The tasks of a dataset by number."""
    if info["codebase_version"] != V30:
        rows = files.read_lines(inside(folder, "meta/tasks.jsonl"))
        if len(rows) < int(info.get("total_tasks") or 0):
            raise BadInput(f"tasks.jsonl of {str(folder)!r} lists {len(rows)} of its {info['total_tasks']} tasks.")
        return {int(row["task_index"]): str(row["task"]) for row in rows}
    path = folder / "meta/tasks.parquet"
    if not present(path):
        return {}
    stored = files.plain_text(access.table(check_inside(folder, path), 0, None))
    name = "task" if "task" in stored.column_names else "__index_level_0__"
    if name not in stored.column_names or "task_index" not in stored.column_names:
        raise BadInput(f"{str(path)!r} should have the columns task and task_index, but has {stored.column_names}.")
    pairs = zip(stored.column("task_index").to_pylist(), stored.column(name).to_pylist(), strict=True)
    return {number: str(text) for number, text in pairs}


def episode_rows(folder: Path, info: Mapping[str, Any], access: FileAccess) -> list[dict[str, Any]]:
    """The checked table of episodes of version 3.0, without its statistics."""
    rows, count = list[dict[str, Any]](), info["total_episodes"]
    for path in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
        stored = access.table(check_inside(folder, path), 0, None)
        kept = [name for name in stored.column_names if not name.startswith("stats/")]
        rows += files.plain_text(stored.select(kept)).to_pylist()
    rows = sorted(rows, key=lambda row: row.get("episode_index", 0))[:count]
    for k, row in enumerate(rows):
        for name in _EPISODE_COLUMNS:
            files.whole_number(row, name, f"Episode {k} of {str(folder)!r}")
        if row["dataset_to_index"] - row["dataset_from_index"] != row["length"] or row["episode_index"] != k:
            raise BadInput(f"The table of episodes of {str(folder)!r} contradicts itself at episode {k}.")
    if len(rows) != count:
        raise BadInput(f"{str(folder)!r} should hold {count} episodes, but its table lists {len(rows)}.")
    return rows


class _Tables:
    """Where the rows and frames of each episode are: v3.0 has many in a file, v2.x a table and a video for each."""

    def __init__(self, folder: Path, info: Mapping[str, Any], access: FileAccess):
        self._folder, self._info, self._access = folder, info, access
        self._v3 = info["codebase_version"] == V30
        self.rows = (episode_rows if self._v3 else _episode_lines)(folder, info, access)
        self._firsts: dict[Path, int] = {}
        for row in self.rows if self._v3 else ():
            path = self._path(row)
            self._firsts[path] = min(self._firsts.get(path, row["dataset_from_index"]), row["dataset_from_index"])

    def columns(self, index: int) -> dict[str, Any]:
        """The columns of one episode, video still in its files; cameras of v2.x without a file are left out."""
        row, features = self.rows[index], self._info["features"]
        path = inside(self._folder, str(self._path(row)))
        first = row["dataset_from_index"] - self._firsts[self._path(row)] if self._v3 else 0
        columns = from_arrow(self._access.table(path, first, row["length"]), features)
        if self._v3 and "episode_index" in columns and not (columns["episode_index"] == index).all():
            raise BadInput(f"{str(path)!r} does not hold episode {index} where its table of episodes says it does.")
        for name in (name for name, entry in features.items() if entry["dtype"] == "video"):
            if self._v3 and row.get(f"videos/{name}/file_index") is None:
                continue
            video = inside(self._folder, str(self._path(row, name)))
            if video.exists():
                self._access.check_video(video)
                start = frame_at(video, row[f"videos/{name}/from_timestamp"]) if self._v3 else 0
                columns[name] = open_video(video, start, row["length"])
            elif self._v3:
                raise BadInput(f"The video {str(video)!r} of episode {row['episode_index']} is missing.")
        return columns

    def _path(self, row: Mapping[str, Any], camera: str = "") -> Path:
        """The file of an episode below the folder; only the known fields of its template are filled in."""
        key, place = ("video_path", f"videos/{camera}") if camera else ("data_path", "data")
        text = str(self._info.get(key) or LAYOUT[self._v3][key])
        number = row["episode_index"]
        chunk = number // max(1, int(self._info.get("chunks_size", CHUNK)))
        shard, file = row.get(f"{place}/chunk_index", 0), row.get(f"{place}/file_index", 0)
        for field, value in (
            ("{chunk_index:03d}", f"{shard:03d}"), ("{file_index:03d}", f"{file:03d}"), ("{video_key}", camera),
            ("{episode_chunk:03d}", f"{chunk:03d}"), ("{episode_index:06d}", f"{number:06d}"),
        ):  # fmt: skip
            text = text.replace(field, value)
        return Path(text)


def _episode_lines(folder: Path, info: Mapping[str, Any], access: FileAccess) -> list[dict[str, Any]]:
    """The checked list of episodes of version 2.x."""
    rows = files.read_lines(inside(folder, "meta/episodes.jsonl"))
    for k, row in enumerate(rows):
        for name in ("episode_index", "length"):
            files.whole_number(row, name, f"Line {k + 1} of episodes.jsonl")
    total = sum(row["length"] for row in rows)
    if len(rows) != info["total_episodes"] or total != info["total_frames"]:
        raise BadInput(
            f"{str(folder)!r} should hold {info['total_episodes']} episodes of {info['total_frames']} rows, but "
            f"episodes.jsonl lists {len(rows)} of {total}."
        )
    return rows


def _noted(stored: Mapping[str, Any], described: Spec) -> tuple[dict[str, str], Spec]:
    """The notes of an episode, and the dataset's spec with the episode's own period."""
    notes = {str(name): str(value) for name, value in stored.items()}
    period = notes.pop(PERIOD, None)
    return notes, described if period is None else replace(described, dt=float(period))


def _finished(columns: dict[str, Any], described: Spec, meta: dict[str, str], features: Mapping[str, Any]) -> Episode:
    """An episode of the columns of a LeRobot table: automatic columns become time, positions come from the state."""
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


def _is_as_written(folder: Path) -> bool:
    """Whether we wrote a dataset and noted checksums of all its tables; a table that differs is named."""
    known = (own_notes(folder) or {}).get("sha256")
    tables = [path for part in ("data", "meta") for path in (folder / part).rglob("*.parquet")]
    names = [str(path.relative_to(folder)) for path in tables]
    if not isinstance(known, dict) or any(name not in known for name in names):
        return False
    for path, name in zip(tables, names, strict=True):
        check_regular(check_inside(folder, path), files.MAX_RECORDING)
        stat = path.stat()
        if _checksum(path, stat.st_size, stat.st_mtime_ns) != known[name]:
            raise BadInput(f"{str(path)!r} is not as it was written: its SHA-256 differs, so it is damaged.")
    return True


@lru_cache(maxsize=4096)
def _checksum(path: Path, size: int, changed_ns: int) -> str:
    return content_hash(path)


def to_arrow(columns: Mapping[str, Any], features: Mapping[str, Any], automatic: Mapping[str, Array]) -> Any:
    """One table of columns and automatic columns, in the order of `features`; video features have no column."""
    pa = library("pyarrow")

    arrays: dict[str, Any] = {}
    for name, feature in features.items():
        if feature["dtype"] == "video":
            continue
        arrays[name] = _arrow(np.asarray(automatic[name]) if name in automatic else columns[name], feature)
    schema = pa.schema([pa.field(name, array.type) for name, array in arrays.items()])
    return pa.table(arrays, schema=schema.with_metadata({"huggingface": hugging_face(features)}))


def automatic_columns(rows: int, place: tuple[int, int, int], fps: int) -> dict[str, Array]:
    """The five columns LeRobot adds by itself; `place` is the episode, its first row in the dataset, and its task."""
    episode, start, task = place
    numbers = np.arange(rows, dtype=np.int64)
    return {
        "timestamp": (numbers / fps).astype(np.float32), "frame_index": numbers,
        "episode_index": np.full(rows, episode, np.int64), "index": numbers + start,
        "task_index": np.full(rows, task, np.int64),
    }  # fmt: skip


def hugging_face(features: Mapping[str, Any]) -> str:
    """The schema metadata by which the `datasets` library knows its types.

    Vectors are called Sequence: old and new versions of the library read that name, only new ones read List.
    """
    out: dict[str, Any] = {}
    for name, feature in features.items():
        shape, dtype = list(feature["shape"]), feature["dtype"]
        value = {"dtype": dtype, "_type": "Value"}
        if dtype == "video":
            continue
        if dtype == "image":
            out[name] = {"_type": "Image"}
        elif shape == [1]:
            out[name] = value
        elif len(shape) == 1:
            out[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
        else:
            out[name] = {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
    return json.dumps({"info": {"features": out}})


def from_arrow(table: Any, features: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a table by feature; images stay compressed until they are used."""
    out: dict[str, Any] = {}
    for name, feature in features.items():
        if feature["dtype"] == "video" or name not in table.column_names:
            continue
        out[name] = _column(name, table.column(name).combine_chunks(), feature)
    wanted = [name for name, feature in features.items() if name not in AUTOMATIC and feature["dtype"] != "video"]
    if wanted and not any(name in out for name in wanted):
        raise BadInput(f"A table holds none of the columns {', '.join(wanted[:5])}, so it is not of this dataset.")
    return out


def _arrow(column: Any, feature: Mapping[str, Any]) -> Any:
    pa = library("pyarrow")

    if feature["dtype"] == "image":
        rows = [{"bytes": encode_png(image), "path": None} for image in column]
        return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    values = np.asarray(column)
    if feature["dtype"] == "string":
        return pa.array([str(text) for text in values.ravel()], pa.string())
    kind = pa.from_numpy_dtype(values.dtype)
    array = pa.array(np.ascontiguousarray(values).ravel(), kind)
    shape = [] if list(feature["shape"]) == [1] else list(feature["shape"])
    for size in reversed(shape[1:]):
        # The `datasets` library stores its Array2D..5D as lists of lists.
        array = pa.ListArray.from_arrays(np.arange(0, len(array) + 1, size, dtype=np.int32), array)
    if len(shape) > 1:
        return pa.ListArray.from_arrays(np.arange(0, len(array) + 1, shape[0], dtype=np.int32), array)
    if shape:
        return pa.FixedSizeListArray.from_arrays(array, type=pa.list_(pa.field("element", kind), shape[0]))
    return array


def _column(name: str, array: Any, feature: Mapping[str, Any]) -> Any:
    shape = tuple(int(n) for n in feature["shape"])
    rows = len(array)
    if feature["dtype"] == "image":
        data = array.field("bytes") if hasattr(array, "field") else array
        return open_stills(lambda k: data[k].as_py() or b"", rows)
    if feature["dtype"] == "string" or array.type == "string":
        return np.array(array.to_pylist(), dtype=np.str_)
    scalar = shape == (1,) and (name in AUTOMATIC or not feature.get("names"))
    flat = _flat(array)
    if flat.size != rows * int(np.prod(shape)):
        raise BadInput(
            f"The feature {name!r} is declared with shape {shape}, but its {rows} rows hold {flat.size} numbers; "
            "the table and info.json disagree."
        )
    return flat if scalar else flat.reshape(rows, *shape)


def _flat(array: Any) -> Array:
    pa = library("pyarrow")

    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    if hasattr(array, "storage"):
        return _flat(array.storage)
    return array.to_numpy(zero_copy_only=False).copy()
