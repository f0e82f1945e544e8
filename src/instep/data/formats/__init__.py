"""Formats of recordings: how each is recognised, read and written; files of others are parsed in another process.

A format is one `Format` in one module. Ours are in the table `BUILT_IN`; others register under the entry-point group
`instep.formats` with the same spelling, `name = "module:OBJECT"`.

C and C++ libraries parse parquet, HDF5, zarr, MCAP and bags, and some of them crash on a single flipped bit. Their
process has limits of memory and time, is started once for all files, and hands over columns as Arrow buffers. Images
stay in their files; each video is opened there before it is decoded here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.imports import extension, extension_names
from instep.core.processes import Job, ReaderProcess
from instep.core.reading import parse_json, parsing
from instep.core.world import Array, frozen_dataclass
from instep.data.files import ALLOWED_KINDS, library, new_folder, read_table, write_text
from instep.data.frames import CompressedImages, Frames, ImageSource, open_stills, open_video
from instep.data.lerobot import channel_of, is_image
from instep.data.mapping import RawRun

BUILT_IN = {
    "lerobot": "instep.data.lerobot.writer:LEROBOT", "lerobot-v3.0": "instep.data.lerobot.writer:LEROBOT_V30",
    "lerobot-v2.1": "instep.data.lerobot.writer:LEROBOT_V21", "rosbag": "instep.data.formats.ros_logs:ROSBAG",
    "zarr": "instep.data.formats.table_formats:ZARR", "csv": "instep.data.formats.table_formats:CSV",
    "npz": "instep.data.formats.table_formats:NPZ", "json": "instep.data.formats.table_formats:JSON",
    "lines": "instep.data.formats.table_formats:LINES", "cameras": "instep.data.formats.table_formats:CAMERAS",
    "mcap": "instep.data.formats.ros_logs:MCAP", "hdf5": "instep.data.formats.table_formats:HDF5",
    "rerun": "instep.data.formats.ros_logs:RERUN",
}  # fmt: skip
"""The formats that come with instep, in the order in which a folder is searched for them."""

Reader: TypeAlias = Callable[[Path, Mapping[str, Any]], Iterator[RawRun]]
"""Reads the runs of one file, given the options of a mapping."""
Writer: TypeAlias = Callable[[Sequence[Episode], Path], tuple[str, ...]]
"""Writes episodes into a new folder; returns the columns that the format cannot hold."""


@frozen_dataclass
class Format:
    """A format of recordings."""

    title: str
    """The name that users know, with an article where it needs one."""
    read: Reader | None = None
    write: Writer | None = None
    suffixes: tuple[str, ...] = ()
    """Endings of its files, the usual one first."""
    contents: tuple[str, ...] = ()
    """Files by which a folder is one recording of this format."""
    mapping: str = ""
    """The shipped mapping that reads such recordings; empty where their columns must be described or guessed."""
    options: Callable[[Path], dict[str, Any]] = lambda path: {}
    """Options of the reader that the first file of a log shows."""
    isolated: bool = True
    """Whether files are parsed in a process of their own: for C libraries, which some files crash."""
    images: Callable[[Path, str, tuple[int, int]], ImageSource] | None = None
    """Opens images that stay in a file, by name and size."""


@cache
def formats() -> Mapping[str, Format]:
    """All formats by name: ours, then those of other packages."""
    found = {name: extension("formats", name, BUILT_IN) for name in extension_names("formats", BUILT_IN)}
    for name, form in found.items():
        if not isinstance(form, Format):
            raise BadInput(f"{name!r} of the entry points 'instep.formats' is a {type(form).__name__}, not a Format.")
    return found


def readable(name: str) -> Format:
    """A format that can be read, by its name in a mapping."""
    known = {key: form for key, form in formats().items() if form.read is not None}
    if name not in known:
        raise UnknownName("format", name, known)
    return known[name]


def located(path: Path) -> tuple[str, tuple[str, ...]]:
    """The format of a file or folder and the patterns of its recordings; empty where it is none that is known.

    A folder is one recording, or holds files or folders that are.
    """
    known = [(name, form) for name, form in formats().items() if form.read is not None]
    name = next((name for name, form in known if path.name.lower().endswith(form.suffixes)), "")
    if path.is_file() or name:
        return name, ((path.name if path.is_file() else "."),) if name else ()
    for prefix in ("", "*/"):
        for name, form in known:
            pattern = next((f"{prefix}{c}" for c in form.contents if next(path.glob(prefix + c), None)), "")
            if pattern:
                return name, (pattern if prefix else ".",)
        # The usual suffix of each format comes first: a folder of NPZ files may hold a text file beside them.
        for rank in range(max(len(form.suffixes) for _, form in known) if not prefix else 0):
            for name, form in known:
                if len(form.suffixes) > rank and next(path.glob(f"*{form.suffixes[rank]}"), None) is not None:
                    return name, (f"*{form.suffixes[rank]}",)
    return "", ()


def write_files(
    episodes: Sequence[Episode],
    folder: Path,
    suffix: str,
    write: Callable[[Path, Episode], Iterable[str] | None],
    mapping: str = "",
) -> tuple[str, ...]:
    """Write one file per episode into a new folder, with a mapping by which they can be imported again."""
    left_out: dict[str, None] = {}
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            left_out |= dict.fromkeys(write(partial / f"episode_{k:06d}{suffix}", episode) or ())
        if mapping:
            write_text(partial / "map.toml", mapping)
    return tuple(left_out)


def mapping_text(episode: Episode, form: str, names: Callable[[str, Array], list[str]], *, images: bool = False) -> str:
    """The mapping of exported files; `names` are those of a column in them."""
    lines = [f'format = "{form}"', f'files = ["*.{form}"]', 'time = "timestamp"', f"rate = {1.0 / episode.spec.dt!r}"]
    lines += [f"scene = {json.dumps(episode.meta['scene'])}"] if "scene" in episode.meta else []
    for name, column in episode.columns.items():
        if name == "timestamp" or (is_image(column) and not images) or 0 in column.shape:
            continue
        channel = channel_of(name, episode.spec)
        table = name if name in ("q", "v", "action") else f"observation.{json.dumps(name)}"
        lines += ["", f"[{table}]", f"from = {json.dumps(names(name, column))}"]
        if channel is not None and channel.labels:
            lines += [f"labels = {json.dumps(list(channel.labels))}", f"unit = {json.dumps(channel.unit)}"]
    return "\n".join(lines) + "\n"


MAX_MEMORY = 8 << 30
"""Most address space of the process [bytes]; libraries map far more than they use."""
MAX_CPU_S = 600.0
"""Most processor time for one file [s]."""
_PROCESS = ReaderProcess("instep.data.formats", cpu_s=MAX_CPU_S, memory=MAX_MEMORY)


def raw_runs(path: Path, name: str, options: Mapping[str, Any]) -> list[RawRun]:
    """The runs of one file in a format; whatever its reader raises becomes one sentence."""
    form = readable(name)
    for marker in form.contents:
        if path.match(marker) and path.is_file():
            path = path.parents[marker.count("/")]
    if not form.isolated:
        return _read(form, path, options)
    job = {"format": name, "path": str(path.absolute()), "options": dict(options)}
    return [_run_from(table, path, form) for table in _tables_of(job, path)]


def isolated_table(path: Path, start: int = 0, count: int | None = None) -> Any:
    """The same as `files.read_table`."""
    [table] = _tables_of({"parquet": str(path.absolute()), "path": str(path), "start": start, "count": count}, path)
    return table


def check_video(path: Path) -> None:
    """Refuse a video that the other process cannot open, or of which it cannot decode the first frame."""
    stat = path.stat()
    _check_video(path, stat.st_size, stat.st_mtime_ns)


def read_job(job: Job) -> None:
    """Do a job of the process: parse a file and write what it holds as Arrow streams, or open a video."""
    path = Path(job["path"])
    if "video" in job:
        next(iter(open_video(path, 0, 1)))
        return
    if "parquet" in job:
        tables = [read_table(Path(job["parquet"]), job["start"], job["count"])]
    else:
        tables = [_table_of(run) for run in _read(readable(job["format"]), path, job["options"])]
    with open(job["out"], "wb") as sink:
        for table in tables:
            with library("pyarrow.ipc").new_stream(sink, table.schema) as stream:
                stream.write_table(table)


@lru_cache(maxsize=4096)
def _check_video(path: Path, size: int, changed_ns: int) -> None:
    _PROCESS.check({"video": True, "path": str(path.absolute())}, str(path))


def _read(form: Format, path: Path, options: Mapping[str, Any]) -> list[RawRun]:
    with parsing(path, form.title):
        return list(form.read(path, options)) if form.read else []


def _tables_of(job: Job, path: Path) -> list[Any]:
    """The tables that the process wrote for a job; their buffers are mapped, not copied."""
    pa = library("pyarrow")
    with tempfile.TemporaryDirectory(prefix="instep-") as folder:
        out = os.path.join(folder, "columns.arrow")
        _PROCESS.check({**job, "out": out}, str(path))
        source, tables = pa.memory_map(out), list[Any]()
        with parsing(path, "columns"):
            while source.tell() < source.size():
                tables.append(library("pyarrow.ipc").open_stream(source).read_all())
                tables[-1].validate(full=True)
    return tables


def _table_of(run: RawRun) -> Any:
    """One run as a table of one row: each column a list of numbers, texts or compressed images."""
    pa = library("pyarrow")
    fields, arrays = list[Any](), list[Any]()
    for name, column in run.columns.items():
        note: dict[str, Any] = {"shape": list(column.shape), "dtype": column.dtype.str}
        values: Any = []
        if not isinstance(column, Frames):
            flat = np.asarray(column).ravel()
            values = flat.tolist() if flat.dtype.kind == "U" else flat.astype(flat.dtype.newbyteorder("="))
        elif isinstance(column.source, CompressedImages):
            kept, note["numbers"] = (part.tolist() for part in np.unique(column.numbers, return_inverse=True))
            values = [column.source.read(k) for k in kept]
        else:
            if len(column):
                next(iter(column[:1]))
            note |= {"images": getattr(column.source, "name", ""), "numbers": column.numbers.tolist()}
        array = pa.array(values, pa.large_binary() if "numbers" in note and "images" not in note else None)
        arrays.append(pa.LargeListArray.from_arrays([0, len(array)], array))
        fields.append(pa.field(name, arrays[-1].type, metadata={"column": json.dumps(note)}))
    head = {"name": run.name, "header": json.dumps(dict(run.header))}
    return pa.table(arrays, schema=pa.schema(fields, metadata=head))


def _run_from(table: Any, path: Path, form: Format) -> RawRun:
    head = table.schema.metadata
    columns: dict[str, Any] = {}
    for field, chunked in zip(table.schema, table.columns, strict=True):
        note = parse_json(field.metadata[b"column"], f"column {field.name!r} of {path}")
        if "images" in note and form.images is not None:
            source = form.images(path, note["images"], tuple(note["shape"][1:3]))
            columns[field.name] = Frames(source, np.array(note["numbers"], int))
            continue
        values = chunked.chunk(0).values
        if "numbers" in note:
            stills = open_stills(lambda k, values=values: values[k].as_py(), len(values))
            columns[field.name] = stills[np.array(note["numbers"], int)]
            continue
        kind = np.dtype(note["dtype"])
        if kind.kind not in ALLOWED_KINDS:
            raise BadInput(f"The column {field.name!r} of {str(path)!r} holds {kind}; numbers and text are read.")
        text = kind.kind == "U"
        flat = np.array(values.to_pylist(), np.str_) if text else values.to_numpy(zero_copy_only=False)
        columns[field.name] = flat.reshape(note["shape"])
    return RawRun(head[b"name"].decode(), columns, parse_json(head[b"header"], f"header of {path}"))
