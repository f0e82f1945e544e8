"""Formats of plain files and array stores: CSV, NPZ, JSON and text logs, lists of cameras, HDF5 (ALOHA), zarr.

Images stay in their file until they are used. Episodes are written to CSV, NPZ and HDF5 in ALOHA's layout.
"""

from __future__ import annotations

import gzip
import json
import math
import mmap
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import check_inside, check_regular, inside, parsing, read_json_table, read_text
from instep.core.world import Array, frozen_dataclass
from instep.data.files import (
    ALLOWED_KINDS,
    MAX_COMPRESSION_RATIO,
    MAX_DECODED,
    MAX_RECORDING,
    check_members,
    library,
    read_npz,
)
from instep.data.formats import Format, mapping_text, write_files
from instep.data.frames import Frames, VideoFile, decode_image, open_video
from instep.data.lerobot import CAMERA_PREFIX, is_image
from instep.data.mapping import RawRun
from instep.data.resample import latest
from instep.data.video import check_pixels

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
    with suppress(ValueError):
        _ = [float(cell) for cell in cells]
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
    """The text of a file, unpacked where it is gzipped; a small file cannot fill the memory."""
    if path.suffix != ".gz":
        return read_text(path, MAX_TEXT)
    check_regular(path, MAX_TEXT)
    most = min(MAX_TEXT, MAX_COMPRESSION_RATIO * path.stat().st_size + (1 << 20))
    with parsing(path, "text"), gzip.open(path, "rb") as packed:
        content = packed.read(most + 1)
        if len(content) > most:
            raise BadInput(f"{str(path)!r} unpacks to more than {most >> 20} MiB of text, which is refused.")
        return content.decode("utf-8-sig")


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


def _write_csv(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
    def write(path: Path, episode: Episode) -> list[str]:
        flat: dict[str, Array] = {"timestamp": episode.t}
        for name, column in episode.columns.items():
            if name != "timestamp" and not is_image(column):
                values = np.asarray(column).reshape(len(column), -1)
                flat |= {label: values[:, k] for k, label in enumerate(_flat_names(name, column))}
        write_columns(path, flat)
        return [name for name, column in episode.columns.items() if is_image(column)]

    return write_files(episodes, folder, ".csv", write, mapping_text(episodes[0], "csv", _flat_names))


def _flat_names(name: str, column: Any) -> list[str]:
    return [name] if column.ndim == 1 else [f"{name}.{k}" for k in range(math.prod(column.shape[1:]))]


def _write_npz(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
    def write(path: Path, episode: Episode) -> list[str]:
        columns: dict[str, Any] = {
            name: np.asarray(c) for name, c in episode.columns.items() if not is_image(c) and c.size
        }
        columns["timestamp"] = episode.t
        np.savez_compressed(path, **columns)
        return [name for name, column in episode.columns.items() if is_image(column)]

    mapping = mapping_text(episodes[0], "npz", lambda name, column: [name])
    return write_files(episodes, folder, ".npz", write, mapping)


ALOHA_NAMES = {
    "q": "observations/qpos", "v": "observations/qvel", "observation.effort": "observations/effort",
    "action": "action", "timestamp": "timestamp",
}  # fmt: skip
"""Where ALOHA keeps the columns of an episode."""
BLOSC_VERSION = 2
"""First byte of a chunk that Blosc compressed."""
HEAP = b"GCOL\x01\x00\x00\x00"
"""How a heap begins in which HDF5 keeps texts of any length; its size follows, then its objects."""


def read_hdf5(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: every array of the file under its path, `observations/qpos`; attributes become the header."""
    h5py = library("h5py")
    check_regular(path, MAX_RECORDING)
    columns: dict[str, Any] = {}
    _check_heaps(path)
    with parsing(path, "HDF5"), h5py.File(path, "r") as file:
        header = {str(name): str(value) for name, value in file.attrs.items()}
        for name in _names(file, ""):
            columns[name] = _column(path, name, file[name], header)
    if not columns:
        raise BadInput(f"{str(path)!r} holds no arrays.")
    yield RawRun(path.name, columns, header)


def _check_heaps(path: Path) -> None:
    """Refuse a file with a heap whose free space is empty: the HDF5 library would look for its end forever.

    Free space counts its own 16 bytes, and heaps do not overlap, so that there is an object per 16 bytes at most.
    """
    if path.stat().st_size == 0:
        return
    objects = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin = data.find(HEAP)
        while begin >= 0:
            (size,) = struct.unpack_from("<Q", data, begin + len(HEAP)) if begin + 16 <= len(data) else (0,)
            at, end = begin + 16, begin + size
            while end <= len(data) and at + 16 <= end:
                number, length = struct.unpack_from("<H6xQ", data, at)
                objects += 1
                if (number == 0 and length < 16) or objects > len(data) // 16:
                    raise BadInput(f"{str(path)!r} cannot be read as HDF5: its heap of texts is damaged.")
                at += 16 + -(-length // 8) * 8 if number else length
            begin = data.find(HEAP, begin + 1)


def hdf5_name(column: str) -> str:
    """Where a column of an episode stands in ALOHA's layout; what that has no place for is below `columns`."""
    if column in ALOHA_NAMES:
        return ALOHA_NAMES[column]
    if column.startswith(CAMERA_PREFIX) and not column.endswith(".stamp"):
        return f"observations/images/{column.removeprefix(CAMERA_PREFIX)}"
    return f"columns/{column}"


def write_hdf5(path: Path, episode: Episode) -> None:
    """Write one episode: every column an array, images one compressed block each, rate and notes as attributes."""
    h5py = library("h5py")
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = episode.meta.get("world") == "sim"
        file.attrs["rate"] = 1.0 / episode.spec.dt
        for key in sorted(set(episode.meta) - set(file.attrs)):
            file.attrs[key] = episode.meta[key]
        for name, column in {"timestamp": episode.t, **episode.columns}.items():
            if not is_image(column):
                if column.dtype.kind not in "fiub":
                    raise BadInput(f"The column {name!r} holds text; leave it out with --columns, HDF5 holds numbers.")
                file[hdf5_name(name)] = np.asarray(column)
                continue
            shape = (len(column), *column.shape[1:])
            images = file.create_dataset(
                hdf5_name(name), shape, np.uint8, chunks=(1, *shape[1:]), compression="gzip", compression_opts=1
            )
            for row in range(len(column)):
                images[row] = np.asarray(column[row])


def _names(group: Any, prefix: str, depth: int = 0) -> Iterator[str]:
    h5py = library("h5py")
    if depth > 16:
        raise BadInput(f"The groups of an HDF5 file are nested more than 16 deep at {prefix!r}; that is refused.")
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise BadInput(f"{prefix + name!r} of an HDF5 file is a link to elsewhere, which is refused.")
        if isinstance(group[name], h5py.Group):
            yield from _names(group[name], f"{prefix}{name}/", depth + 1)
        else:
            yield prefix + name


def _column(path: Path, name: str, dataset: Any, header: dict[str, str]) -> Any:
    if dataset.is_virtual or dataset.external:
        raise BadInput(f"{name!r} of {str(path)!r} lies in other files, which is refused.")
    if dataset.dtype.kind not in ALLOWED_KINDS:
        raise BadInput(f"{name!r} of {str(path)!r} holds {dataset.dtype}, but only numbers are read.")
    if dataset.ndim == 0:
        header[name] = str(dataset[()])
        return np.zeros(0)
    if dataset.ndim == 4 and dataset.shape[3] == 3 and dataset.dtype == np.uint8:
        check_pixels(int(dataset.shape[2]), int(dataset.shape[1]), f"{name} of {path}")
        source = StoredImages(path, name, (int(dataset.shape[1]), int(dataset.shape[2])))
        return Frames(source, np.arange(int(dataset.shape[0])))
    if dataset.ndim == 2 and dataset.dtype == np.uint8 and header.get("compress") in ("True", "1"):
        first = decode_image(bytes(np.asarray(dataset[0])))
        return Frames(StoredImages(path, name, (first.shape[0], first.shape[1])), np.arange(int(dataset.shape[0])))
    stored = path.stat().st_size
    if dataset.nbytes > min(MAX_DECODED, MAX_COMPRESSION_RATIO * stored + (1 << 20)):
        raise BadInput(
            f"{name!r} of {str(path)!r} would take {dataset.nbytes / 2**20:.3g} MiB, and the file has "
            f"{stored / 2**20:.3g}; that is refused."
        )
    return np.asarray(dataset[()])


@frozen_dataclass
class StoredImages:
    """Images that stay in an HDF5 file or a zarr store: plain, compressed one by one, or floats from 0 to 255."""

    file: Path
    name: str
    size: tuple[int, int]
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        with ExitStack() as stack, parsing(self.file, "an array store"):
            if self.file.is_dir() or zipfile.is_zipfile(self.file):
                array = _zarr_images(self.file, self.name)
            else:
                array = stack.enter_context(library("h5py").File(self.file, "r"))[self.name]
            for number in numbers:
                stored = np.asarray(array[int(number)])
                if stored.ndim != 3:
                    stored = decode_image(bytes(stored))
                yield stored if stored.dtype == np.uint8 else np.clip(np.round(stored), 0, 255).astype(np.uint8)


def read_zarr(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run per episode: the arrays under `data`, cut at `meta/episode_ends`; images stay in the store."""
    zarr = library("zarr")
    with parsing(path, "zarr"):
        group: Any = zarr.open_group(_store(path), mode="r")
        arrays = {str(name): group["data"][name] for name in group["data"]}
        ends = [int(end) for end in np.asarray(_zarr_column("episode_ends", group["meta/episode_ends"], path))]
        columns = {name: _zarr_column(name, array, path) for name, array in arrays.items()}
    if not columns or not ends or min(len(column) for column in columns.values()) < ends[-1]:
        raise BadInput(f"{str(path)!r} should hold arrays under 'data' as long as 'meta/episode_ends' says.")
    start = 0
    for number, stop in enumerate(ends):
        if stop <= start:
            raise BadInput(f"The ends of episodes in {str(path)!r} do not ascend at {number}.")
        part = {name: column[start:stop] for name, column in columns.items()}
        yield RawRun(path.name, part, {"run": str(number)})
        start = stop


def _store(path: Path) -> Any:
    if path.is_dir():
        for file in path.rglob("*"):
            check_inside(path, file)
            if not file.is_dir():
                check_regular(file, MAX_DECODED)
                with file.open("rb") as stream:
                    _check_blosc(f"{path}/{file.relative_to(path)}", stream.read(16), file.stat().st_size)
        return str(path)
    check_members(path)
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                _check_blosc(f"{member.filename} of {path}", stream.read(16), member.file_size)
    return library("zarr.storage").ZipStore(path, mode="r")


def _check_blosc(name: str, head: bytes, size: int) -> None:
    """Refuse a chunk that was cut off: the decoder of Blosc reads as many bytes as its header says, there or not."""
    if len(head) == 16 and head[0] == BLOSC_VERSION and int.from_bytes(head[12:16], "little") > size:
        raise BadInput(f"The chunk {name!r} has {size} bytes and announces more, so it was cut off.")


def _zarr_column(name: str, array: Any, path: Path) -> Any:
    if array.dtype.kind not in ALLOWED_KINDS:
        raise BadInput(f"{name!r} of {str(path)!r} holds {array.dtype}, but only numbers are read.")
    if array.ndim == 4 and array.shape[3] == 3:
        source = StoredImages(path, name, (int(array.shape[1]), int(array.shape[2])))
        return Frames(source, np.arange(int(array.shape[0])))
    largest = max(math.prod(array.chunks), math.prod(array.shape)) * array.dtype.itemsize
    if min(array.shape, default=0) < 0 or min(array.chunks, default=1) < 1 or largest > MAX_DECODED:
        raise BadInput(f"{name!r} of {str(path)!r} would take {largest / 2**30:.3g} GiB, which is refused.")
    return np.asarray(array[:])


@lru_cache(maxsize=64)
def _zarr_images(path: Path, name: str) -> Any:
    with parsing(path, "zarr"):
        return library("zarr").open_group(_store(path), mode="r")["data"][name]


def _write_hdf5_files(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
    mapping = mapping_text(episodes[0], "hdf5", lambda name, column: [hdf5_name(name)], images=True)
    return write_files(episodes, folder, ".hdf5", write_hdf5, mapping)


CSV = Format("CSV", read_csv, _write_csv, (".csv", ".tsv", ".csv.gz", ".txt", ".gz"), options=csv_options,
             isolated=False)  # fmt: skip
NPZ = Format("NPZ", read_npz_runs, _write_npz, (".npz",), isolated=False)
JSON = Format("a JSON log", read_json_log, isolated=False)
LINES = Format("lines of a word and numbers", read_text_log, isolated=False)
CAMERAS = Format("a list of cameras", read_cameras, images=lambda path, name, size: VideoFile(Path(name), size))
HDF5 = Format("HDF5", read_hdf5, _write_hdf5_files, (".hdf5", ".h5"), mapping="aloha", images=StoredImages)
ZARR = Format("a zarr store", read_zarr, suffixes=(".zarr", ".zarr.zip"), contents=(".zgroup", "zarr.json"),
              mapping="diffusion_policy", images=StoredImages)  # fmt: skip
