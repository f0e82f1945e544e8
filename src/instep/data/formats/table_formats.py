"""Tables: CSV (plain or gzipped), JSON logs with a list of rows, text logs with one measurement per line, and NPZ.

Image sets: several cameras listed in a JSON file with a stamped video each, and still images with a pose each.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import (
    check_regular,
    find_inside,
    first_line,
    inside,
    parsing,
    read_file,
    read_json_table,
    read_text,
)
from instep.core.world import Array
from instep.data.files import MAX_COMPRESSION_RATIO, read_npz
from instep.data.frames import MAX_IMAGE, Frames, open_stills, open_video
from instep.data.mapping import RawRun
from instep.data.resample import latest

MAX_TEXT = 512 << 20
"""Longest text of a log [bytes]."""


def read_csv(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The columns of a CSV file; `columns` names them where the file does not, `delimiter` separates them."""
    yield RawRun(path.name, read_columns(path, options))


def read_columns(path: Path, options: Mapping[str, Any]) -> dict[str, Array]:
    """Columns by name: numbers where every value is one, else text."""
    text = _text(path)
    with parsing(path, "CSV"):
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=str(options.get("delimiter", ","))) if row]
    names = [str(name) for name in cast(list[Any], options.get("columns", []))]
    if not names and rows:
        names, rows = [cell.strip() for cell in rows[0]], rows[1:]
    if not rows:
        raise BadInput(f"{str(path)!r} has no rows of numbers.")
    for k, row in enumerate(rows):
        if len(row) != len(names):
            raise BadInput(f"Row {k + 1} of {str(path)!r} has {len(row)} values, but there are {len(names)} columns.")
    return {name: _values([row[k] for row in rows]) for k, name in enumerate(names)}


def first_row(path: Path) -> str:
    """The first line of a text file that is not empty."""
    return next((line for line in _text(path).splitlines() if line.strip()), "")


def write_columns(path: Path, columns: Mapping[str, Array]) -> None:
    """Write columns [rows] with a line of names; numbers keep all their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(
            zip(
                *(
                    [repr(float(x)) if column.dtype.kind == "f" else str(x) for x in column]
                    for column in columns.values()
                ),
                strict=True,
            )
        )


def _text(path: Path) -> str:
    check_regular(path, MAX_TEXT)
    try:
        if path.suffix == ".gz":
            return _unpacked(path).decode("utf-8-sig")
        return read_text(path, MAX_TEXT)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as text ({first_line(error)}).") from None


def _unpacked(path: Path) -> bytes:
    """The content of a gzipped file, read in pieces, so that a small file cannot fill the memory."""
    most = min(MAX_TEXT, MAX_COMPRESSION_RATIO * path.stat().st_size + (1 << 20))
    count = 0
    with gzip.open(path, "rb") as packed:
        while piece := packed.read(1 << 20):
            count += len(piece)
            if count > most:
                raise BadInput(f"{str(path)!r} unpacks to more than {most >> 20} MiB of text, which is refused.")
    with gzip.open(path, "rb") as packed:
        return packed.read(count)


def _values(cells: list[str]) -> Array:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array([cell.strip() for cell in cells], dtype=np.str_)


def read_json_log(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The rows of a JSON log, found under the key `rows`; other single values become its header."""
    key = str(options.get("rows", "entries"))
    top = read_json_table(path, MAX_TEXT)
    rows = top.get(key)
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        raise BadInput(f"{str(path)!r} should hold a list of rows under {key!r}.")
    table = cast(list[dict[str, Any]], rows)
    names = list(table[0])
    try:
        columns = {name: np.array([float(row[name]) for row in table]) for name in names}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"The rows of {str(path)!r} are not all alike ({type(error).__name__}: {error}).") from None
    header = {name: str(value) for name, value in top.items() if isinstance(value, str | int | float)}
    yield RawRun(path.name, columns, header)


def read_text_log(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One column [rows, numbers] for each kind of line."""
    found: dict[str, list[list[float]]] = {}
    for number, line in enumerate(read_text(path, MAX_TEXT).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            found.setdefault(words[0], []).append([float(word) for word in words[1:]])
        except ValueError as error:
            raise BadInput(f"Line {number} of {str(path)!r} is not a word and numbers ({error}).") from None
    for kind, rows in found.items():
        if len({len(row) for row in rows}) > 1:
            raise BadInput(f"The lines of kind {kind!r} in {str(path)!r} have different numbers of values.")
    yield RawRun(path.name, {kind: np.array(rows) for kind, rows in found.items()})


def read_npz_runs(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The runs of an NPZ file. With `each = "array"` every array is a run, under the column name `run`."""
    arrays = read_npz(path)
    single = {name: str(array.item()) for name, array in arrays.items() if array.ndim == 0}
    columns = {name: array for name, array in arrays.items() if array.ndim > 0}
    if not columns:
        raise BadInput(f"{str(path)!r} holds no columns, only {len(single)} single values.")
    if options.get("each") == "array":
        for name, array in sorted(columns.items()):
            yield RawRun(f"{path.name}:{name}", {"run": array}, {**single, "run": name})
        return
    yield RawRun(path.name, columns, single)


def read_cameras(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: rows at the stamps of the first camera, for each other camera its last frame at that time."""
    streams: dict[str, tuple[Array, Frames]] = {}
    header: dict[str, str] = {}
    prefix = str(options.get("prefix", "cam_"))
    for name, entry in read_json_table(path).items():
        meta = read_json_table(inside(path.parent, str(entry["metadata_path"])))
        stamps = np.asarray(meta["timestamps"], float)
        frames = open_video(inside(path.parent, str(entry["video_path"])))
        if len(frames) != len(stamps):
            raise BadInput(f"Camera {name!r} has {len(frames)} frames, but {len(stamps)} stamps: they disagree.")
        streams[prefix + name] = (stamps, frames)
        header[f"camera.{prefix}{name}"] = json.dumps({"K": meta["K"], "world_from_camera": entry["X_WC"]})
    if not streams:
        raise BadInput(f"{str(path)!r} lists no cameras.")
    # Rows begin when every camera has a frame, so that none is seen before it was there.
    begin = max(stamps[0] for stamps, _ in streams.values())
    first = next(iter(streams.values()))[0]
    rows = first[first >= begin - 1e-9]
    columns: dict[str, Any] = {"time": rows}
    for name, (stamps, frames) in streams.items():
        which = latest(rows, stamps)
        columns[name], columns[f"{name}.stamp"] = frames[which], stamps[which]
    yield RawRun(path.name, columns, header)


def read_stills(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: the images of a folder in the order of their numbers, with the flat YAML file of each beside them.

    `path` is the folder; `images` and `poses` are patterns below it, the latter with {stem}.
    """
    files = sorted(find_inside(path, str(options.get("images", "images/*.jpg"))), key=_number)
    if not files:
        raise BadInput(f"There are no images in {str(path)!r}.")
    pattern = str(options.get("poses", "poses/{stem}.yaml"))
    poses = [_read_flat_yaml(inside(path, pattern.replace("{stem}", file.stem))) for file in files]
    names = list(poses[0])
    for file, pose in zip(files, poses, strict=True):
        if set(pose) != set(names):
            raise BadInput(f"The pose of {file.name!r} has the entries {sorted(pose)}, but others {sorted(names)}.")
    columns: dict[str, Any] = {name: np.array([pose[name] for pose in poses]) for name in names}
    columns["number"] = np.array([_number(file) for file in files], float)
    columns["image"] = open_stills(lambda k: read_file(files[k], MAX_IMAGE), len(files))
    yield RawRun(path.name, columns)


def _read_flat_yaml(path: Path) -> dict[str, float]:
    """The numbers of a YAML file that is no more than `name: number` lines."""
    try:
        lines = [line.split("#", 1)[0] for line in read_text(path).splitlines()]
        pairs = [line.split(":", 1) for line in lines if line.strip()]
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        raise BadInput(f"{str(path)!r} should hold lines of 'name: number' ({error}).") from None


def _number(path: Path) -> int:
    digits = "".join(c for c in path.stem if c.isdigit())
    return int(digits) if digits else 0
