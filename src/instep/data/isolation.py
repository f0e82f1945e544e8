"""Parse files of others in another process, so that a crash of a parser becomes an error.

Parquet, HDF5, zarr, MCAP and bags are parsed by C and C++ libraries, some of which crash on a single flipped bit. The
process has limits of memory and time, is started once for all files, and hands over columns as Arrow buffers, so each
file is parsed once. Images stay in their files; each video is opened there before it is decoded here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.processes import Job, ReaderProcess
from instep.core.reading import parse_json, parsing

from .files import ALLOWED_KINDS, library, read_table
from .formats import Format, readable
from .frames import CompressedImages, Frames, open_stills, open_video
from .mapping import RawRun

MAX_MEMORY = 8 << 30
"""Most address space of the process [bytes]; libraries map far more than they use."""
MAX_CPU_S = 600.0
"""Most processor time for one file [s]."""
_PROCESS = ReaderProcess("instep.data.isolation", cpu_s=MAX_CPU_S, memory=MAX_MEMORY)


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
