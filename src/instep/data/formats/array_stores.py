"""Array stores: HDF5 files (ALOHA) by path, and zarr stores (diffusion policy) cut at `meta/episode_ends`.

Images stay in their file until they are used. Episodes are written to HDF5 in ALOHA's layout.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import check_inside, check_regular, parsing
from instep.core.world import Array, frozen_dataclass
from instep.data.files import ALLOWED_KINDS, MAX_COMPRESSION_RATIO, MAX_DECODED, MAX_RECORDING, check_members, library
from instep.data.formats import Format, mapping_text, write_files
from instep.data.frames import Frames, decode_image
from instep.data.lerobot import CAMERA_PREFIX, is_image
from instep.data.mapping import RawRun
from instep.data.video import check_pixels

ALOHA_NAMES = {
    "q": "observations/qpos",
    "v": "observations/qvel",
    "observation.effort": "observations/effort",
    "action": "action",
    "timestamp": "timestamp",
}
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
        source = Hdf5Images(path, name, (int(dataset.shape[1]), int(dataset.shape[2])))
        return Frames(source, np.arange(int(dataset.shape[0])))
    if dataset.ndim == 2 and dataset.dtype == np.uint8 and header.get("compress") in ("True", "1"):
        first = decode_image(bytes(np.asarray(dataset[0])))
        return Frames(Hdf5Images(path, name, (first.shape[0], first.shape[1])), np.arange(int(dataset.shape[0])))
    stored = path.stat().st_size
    if dataset.nbytes > min(MAX_DECODED, MAX_COMPRESSION_RATIO * stored + (1 << 20)):
        raise BadInput(
            f"{name!r} of {str(path)!r} would take {dataset.nbytes / 2**20:.3g} MiB, and the file has "
            f"{stored / 2**20:.3g}; that is refused."
        )
    return np.asarray(dataset[()])


@frozen_dataclass
class Hdf5Images:
    """Images that stay in an HDF5 file, plain or compressed one by one."""

    file: Path
    name: str
    size: tuple[int, int]
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        h5py = library("h5py")
        with parsing(self.file, "HDF5"), h5py.File(self.file, "r") as file:
            dataset = file[self.name]
            for number in numbers:
                stored = np.asarray(dataset[int(number)])
                yield stored if stored.ndim == 3 else decode_image(bytes(stored))


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
        source = ZarrImages(path, name, (int(array.shape[1]), int(array.shape[2])))
        return Frames(source, np.arange(int(array.shape[0])))
    largest = max(math.prod(array.chunks), math.prod(array.shape)) * array.dtype.itemsize
    if min(array.shape, default=0) < 0 or min(array.chunks, default=1) < 1 or largest > MAX_DECODED:
        raise BadInput(f"{name!r} of {str(path)!r} would take {largest / 2**30:.3g} GiB, which is refused.")
    return np.asarray(array[:])


@frozen_dataclass
class ZarrImages:
    """Images that stay in a zarr store, as integers or as floats from 0 to 255."""

    file: Path
    name: str
    size: tuple[int, int]
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        array = _zarr_images(self.file, self.name)
        for number in numbers:
            stored = np.asarray(array[int(number)])
            yield stored if stored.dtype == np.uint8 else np.clip(np.round(stored), 0, 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _zarr_images(path: Path, name: str) -> Any:
    with parsing(path, "zarr"):
        return library("zarr").open_group(_store(path), mode="r")["data"][name]


def _write_hdf5_files(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
    mapping = mapping_text(episodes[0], "hdf5", lambda name, column: [hdf5_name(name)], images=True)
    return write_files(episodes, folder, ".hdf5", write_hdf5, mapping)


HDF5 = Format("HDF5", read_hdf5, _write_hdf5_files, (".hdf5", ".h5"), mapping="aloha", images=Hdf5Images)
ZARR = Format("a zarr store", read_zarr, suffixes=(".zarr", ".zarr.zip"), contents=(".zgroup", "zarr.json"),
              mapping="diffusion_policy", images=ZarrImages)  # fmt: skip
