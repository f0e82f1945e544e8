"""HDF5 files, such as ALOHA's: arrays by path, images left in the file until looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .frames import Frames, decode_image
from .guard import ALLOWED_KINDS, MAX_DECODED
from .raw import Raw
from .untyped import library


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """One run: every array of the file under its path, `observations/qpos`; attributes become the header."""
    h5py = library("h5py")
    columns: dict[str, Any] = {}
    try:
        with h5py.File(path, "r") as file:
            header = {str(name): str(value) for name, value in file.attrs.items()}
            for name in _names(file, ""):
                columns[name] = _column(path, name, file[name], header)
    except FileNotFoundError:
        raise BadInput(f"There is no file {str(path)!r}.") from None
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as HDF5 ({str(error).splitlines()[0][:100]}).") from None
    if not columns:
        raise BadInput(f"{str(path)!r} holds no arrays.")
    yield Raw(path.name, columns, header)


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
        source = _Stored(path, name, (int(dataset.shape[1]), int(dataset.shape[2])))
        return Frames(source, np.arange(int(dataset.shape[0])))
    if dataset.ndim == 2 and dataset.dtype == np.uint8 and header.get("compress") in ("True", "1"):
        first = decode_image(bytes(np.asarray(dataset[0])))
        return Frames(_Stored(path, name, (first.shape[0], first.shape[1])), np.arange(int(dataset.shape[0])))
    if dataset.size * dataset.dtype.itemsize > MAX_DECODED:
        raise BadInput(f"{name!r} of {str(path)!r} would take {dataset.nbytes / 2**30:.3g} GiB, which is refused.")
    return np.asarray(dataset[()])


@dataclass(frozen=True, slots=True)
class _Stored:
    """Images that stay in an HDF5 file, plain or compressed one by one."""

    file: Path
    name: str
    size: tuple[int, int]
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        h5py = library("h5py")
        with h5py.File(self.file, "r") as file:
            dataset = file[self.name]
            for number in numbers:
                stored = np.asarray(dataset[int(number)])
                yield stored if stored.ndim == 3 else decode_image(bytes(stored))
