"""Files: bounded readers for untrusted input, and folders that are written atomically.

What a file says it holds is checked before it is decoded. `library` is the edge of packages without types (pyarrow,
PyAV, h5py, zarr, mcap, rosbags): what they return is `Any`.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import uuid
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.imports import optional_library
from instep.core.reading import check_regular, parse_json, parsing, read_file, read_text
from instep.core.world import Array

from .journal import new_file, sync

MAX_DECODED = 2 << 30
"""Most bytes one table, archive member or image stack may decode to."""
MAX_COMPRESSION_RATIO = 200
"""Most bytes a member of an archive may unpack to, for each byte stored."""
MAX_RECORDING = 32 << 30
"""Largest file of a recording [bytes]."""
MAX_MEMBERS = 4096
"""Most members of an archive that is read."""
ALLOWED_KINDS = "biufU"
"""NumPy kinds that may come out of a file: booleans, integers, floats, text; never objects."""

_WIDTH = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def library(name: str) -> Any:
    """A module of a library for data, imported when first used."""
    return optional_library(name, "data")


def open_parquet(path: Path) -> Any:
    """A parquet file whose tables, once decoded, are of bounded size; files are checked once.

    Text and image bytes are read as dictionaries, so that one long value repeated a million times stays one value.
    """
    check_regular(path, MAX_RECORDING)
    stat = path.stat()
    return _opened(str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _opened(path: str, mtime: int, size: int) -> Any:
    pq = library("pyarrow.parquet")
    with parsing(path, "parquet"):
        metadata: Any = pq.read_metadata(path)
        columns = [metadata.schema.column(k) for k in range(metadata.num_columns)]
        decoded = 0  # bytes of the numbers, by the file's own count of values
        for group in (metadata.row_group(k) for k in range(metadata.num_row_groups)):
            for chunk in (group.column(k) for k in range(group.num_columns)):
                width = _WIDTH.get(chunk.physical_type, 8)
                decoded += max(chunk.num_values * width, chunk.total_uncompressed_size)
        if decoded > MAX_DECODED:
            raise BadInput(
                f"{path!r} would decode to {decoded / 2**30:.3g} GiB, more than the {MAX_DECODED >> 30} GiB that are "
                "allowed; split it into smaller files."
            )
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        return pq.ParquetFile(path, read_dictionary=texts)


def read_table(path: Path, start: int = 0, count: int | None = None) -> Any:
    """Rows of a parquet file as one table, all of them where `count` is None; only their row groups are read."""
    file = open_parquet(path)
    sizes = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
    ends = np.cumsum([0, *sizes])
    count = int(ends[-1]) - start if count is None else count
    if not 0 <= start <= start + count <= ends[-1]:
        raise BadInput(f"{str(path)!r} should hold {count} rows from row {start}, but it has {ends[-1]} rows.")
    groups = [k for k in range(len(sizes)) if ends[k] < start + count and start < ends[k + 1]]
    with parsing(path, "parquet"):
        table = file.read_row_groups(groups) if groups else file.schema_arrow.empty_table()
        table.validate(full=True)
        return table.slice(start - int(ends[groups[0]]) if groups else 0, count)


def plain_text(table: Any) -> Any:
    """The table with text columns no longer as dictionaries, where that is of bounded size."""
    pa = library("pyarrow")
    pc = library("pyarrow.compute")

    for k, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column = table.column(k)
        total = 0
        for chunk in column.chunks:
            lengths = pc.fill_null(pc.binary_length(chunk.dictionary), 0)
            used = pc.value_counts(chunk.indices.drop_null())
            total += sum(lengths[entry["values"].as_py()].as_py() * entry["counts"].as_py() for entry in used)
        if total > MAX_DECODED:
            raise BadInput(
                f"The column {field.name!r} would decode to {total / 2**30:.3g} GiB of text; that is refused."
            )
        table = table.set_column(k, field.name, pc.cast(column, field.type.value_type))
    return table


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an NPZ file: no objects, no oversized members, nothing unpacked to disk."""
    check_regular(path, MAX_DECODED)
    with parsing(path, "NPZ"):
        check_members(path)
        with zipfile.ZipFile(path) as archive:
            raw = {member.filename: archive.read(member) for member in archive.infolist()}
        return {name.removesuffix(".npy"): _array(data, f"{name!r} of {str(path)!r}") for name, data in raw.items()}


def read_npy(path: Path) -> Array:
    """The array of an NPY file, which holds numbers or text."""
    data = read_file(path, MAX_DECODED)
    with parsing(path, "NPY"):
        return _array(data, f"of {str(path)!r}")


def _array(data: bytes, where: str) -> Array:
    """An array of NPY bytes, whose header is checked against their number before anything is allocated."""
    stream, npy = io.BytesIO(data), np.lib.format
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(stream))
    if read_header is None:
        raise BadInput(f"The array {where} is of an NPY version that is not read; 1.0 and 2.0 are.")
    shape, _, dtype = read_header(stream)
    if dtype.kind not in ALLOWED_KINDS:
        raise BadInput(f"The array {where} holds {dtype}, but only numbers and text are read from files.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > len(data):
        raise BadInput(f"The array {where} announces the shape {shape} and has {len(data)} bytes; it is damaged.")
    stream.seek(0)
    return npy.read_array(stream, allow_pickle=False)


def check_members(path: Path) -> None:
    """Refuse an archive whose members lead out of it or unpack to more than they should."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise BadInput(f"{str(path)!r} has {len(members)} members; an archive of at most {MAX_MEMBERS} is read.")
    for member in members:
        _check_member(member, path)
    total = sum(member.file_size for member in members)
    if total > MAX_DECODED:
        raise BadInput(f"{str(path)!r} would unpack to {total / 2**30:.3g} GiB, which is refused.")


def whole_number(value: Mapping[str, Any], name: str, where: str) -> int:
    """A whole number of a JSON mapping, at least 0."""
    number = value.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise BadInput(f"{where} should give {name!r} as a whole number, not {number!r}.")
    return number


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """A folder to fill that takes its name only when the block ends well, and is removed when it does not."""
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{str(folder)!r} is there already and is not empty; choose a new folder or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    partial.mkdir()
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rmdir()
    for path in partial.rglob("*"):
        if path.is_file():
            sync(path)
    os.rename(partial, folder)
    sync(folder.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file by a temporary file, a rename and a sync of the folder."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=4, ensure_ascii=False) + "\n")


def read_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value per line."""
    lines = enumerate(read_text(path).splitlines(), 1)
    return [parse_json(line, f"line {number} of {path}") for number, line in lines if line.strip()]


def _check_member(member: zipfile.ZipInfo, path: Path) -> None:
    pure = PurePosixPath(member.filename)
    if pure.is_absolute() or ".." in pure.parts or "\\" in member.filename:
        raise BadInput(f"{str(path)!r} names a member {member.filename!r} outside itself, which is refused.")
    if member.file_size > MAX_DECODED or member.file_size > MAX_COMPRESSION_RATIO * max(member.compress_size, 1) + (
        1 << 20
    ):
        raise BadInput(
            f"The member {member.filename!r} of {str(path)!r} would unpack from {member.compress_size} to "
            f"{member.file_size} bytes, which is refused."
        )
