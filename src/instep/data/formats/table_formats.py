"""Formats of plain files: tables (CSV, JSON, text, NPZ), and images listed in JSON or described in YAML."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
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
from instep.data.files import MAX_COMPRESSION_RATIO, library, read_npz
from instep.data.formats import Format, mapping_text, write_files
from instep.data.frames import MAX_IMAGE, Frames, VideoFile, open_stills, open_video
from instep.data.lerobot import is_image
from instep.data.mapping import RawRun
from instep.data.resample import latest

MAX_TEXT = 512 << 20
"""Longest text of a log [bytes]."""
HEAD = 1 << 20
"""Bytes of a table that hold its first line."""


def read_csv(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The columns of a CSV file; `columns` names them where the file does not, `delimiter` separates them.

    A column holds numbers where every value is one, else text.
    """
    given = [str(name) for name in cast(list[Any], options.get("columns", []))]
    table = _csv_table(path, _text(path).encode(), given, str(options.get("delimiter", ",")))
    if not table.num_rows:
        raise BadInput(f"{str(path)!r} has no rows of numbers.")
    names = [name.strip() for name in table.column_names]
    yield RawRun(path.name, {name: _values(table.column(k)) for k, name in enumerate(names)})


def csv_options(path: Path) -> dict[str, Any]:
    """The delimiter of a CSV file, and names for its columns where it has none."""
    check_regular(path, MAX_TEXT)
    with parsing(path, "text"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(HEAD).decode("utf-8-sig", errors="ignore")
    first = next((line for line in head.splitlines() if line.strip()), "").strip()
    delimiter = max((",", ";", "\t", " "), key=first.count)
    options: dict[str, Any] = {} if delimiter == "," else {"delimiter": delimiter}
    cells = first.split(delimiter)
    if all(_is_number(cell) for cell in cells):
        options["columns"] = [f"column_{k}" for k in range(len(cells))]
    return options


def _csv_table(path: Path, data: bytes, names: Sequence[str], delimiter: str) -> Any:
    """The cells of a CSV file: columns of numbers as numbers, all others as text."""
    pa, csv = library("pyarrow"), library("pyarrow.csv")
    wrong: list[Any] = []

    def note(row: Any) -> str:
        wrong.append(row)
        return "error"

    # One block holds the whole file, so that a long row is never cut; without threads rows have numbers.
    reading = csv.ReadOptions(use_threads=False, block_size=max(len(data), 1 << 16), column_names=names or None)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note)
    plain: dict[str, Any] = {"null_values": [], "true_values": [], "false_values": []}
    try:
        with parsing(path, "CSV"):
            found = csv.read_csv(pa.BufferReader(data), reading, parse, csv.ConvertOptions(**plain))
            text = {field.name: pa.string() for field in found.schema if str(field.type) not in ("int64", "double")}
            if all(str(field.type) in ("int64", "double", "string") for field in found.schema):
                return found
            return csv.read_csv(pa.BufferReader(data), reading, parse, csv.ConvertOptions(**plain, column_types=text))
    except BadInput:
        if not wrong:
            raise
        row, count, wanted = wrong[0].number, wrong[0].actual_columns, wrong[0].expected_columns
        raise BadInput(f"Line {row} of {str(path)!r} has {count} values, but there are {wanted} columns.") from None


def _values(cells: Any) -> Array:
    if str(cells.type) != "string":
        return cells.to_numpy().astype(float)
    texts = [text.strip() for text in cells.to_pylist()]
    try:
        return np.array([float(text) for text in texts])  # Python reads more spellings, such as +1 and infinity
    except ValueError:
        return np.array(texts, dtype=np.str_)


def write_columns(path: Path, columns: Mapping[str, Array]) -> None:
    """Write columns [rows] as CSV with a line of names; numbers keep all their digits."""
    pa, csv = library("pyarrow"), library("pyarrow.csv")
    table = pa.table({name: np.asarray(column) for name, column in columns.items()})
    csv.write_csv(table, path, csv.WriteOptions(quoting_style="needed"))


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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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


def _write_csv(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
    def write(path: Path, episode: Episode) -> list[str]:
        flat: dict[str, Array] = {"timestamp": episode.t}
        for name, column in episode.columns.items():
            if name != "timestamp" and not is_image(column):
                values = np.asarray(column).reshape(len(column), -1)
                flat |= {label: values[:, k] for k, label in enumerate(_flat_names(name, column))}
        write_columns(path, flat)
        return _images(episode)

    return write_files(episodes, folder, ".csv", write, mapping_text(episodes[0], "csv", _flat_names))


def _flat_names(name: str, column: Any) -> list[str]:
    return [name] if column.ndim == 1 else [f"{name}.{k}" for k in range(math.prod(column.shape[1:]))]


def _write_npz(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
    def write(path: Path, episode: Episode) -> list[str]:
        columns: dict[str, Any] = {"timestamp": episode.t}
        columns |= {name: np.asarray(c) for name, c in episode.columns.items() if not is_image(c) and c.size}
        np.savez_compressed(path, **columns)
        return _images(episode)

    mapping = mapping_text(episodes[0], "npz", lambda name, column: [name])
    return write_files(episodes, folder, ".npz", write, mapping)


def _images(episode: Episode) -> list[str]:
    return [name for name, column in episode.columns.items() if is_image(column)]


CSV = Format("CSV", read_csv, _write_csv, (".csv", ".tsv", ".csv.gz", ".txt", ".gz"), options=csv_options,
             isolated=False)  # fmt: skip
NPZ = Format("NPZ", read_npz_runs, _write_npz, (".npz",), isolated=False)
JSON = Format("a JSON log", read_json_log, isolated=False)
LINES = Format("lines of a word and numbers", read_text_log, isolated=False)
CAMERAS = Format("a list of cameras", read_cameras, images=lambda path, name, size: VideoFile(Path(name), size))
STILLS = Format("images with poses", read_stills, isolated=False)
