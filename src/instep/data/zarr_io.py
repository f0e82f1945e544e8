"""Zarr stores, such as diffusion policy's: arrays under `data`, and where episodes end under `meta`."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .frames import Frames
from .guard import ALLOWED_KINDS, MAX_DECODED, check_members
from .raw import Raw
from .untyped import library


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """One run per episode: the arrays under `data`, cut at `meta/episode_ends`; images stay in the store."""
    zarr = library("zarr")
    try:
        group: Any = zarr.open_group(_store(path), mode="r")
        arrays = {str(name): group["data"][name] for name in group["data"]}
        ends = [int(end) for end in group["meta/episode_ends"][:]]
        columns = {name: _column(name, array, path) for name, array in arrays.items()}
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(f"{str(path)!r} cannot be read as zarr ({text[0][:100]}).") from None
    if not columns or not ends or min(len(column) for column in columns.values()) < ends[-1]:
        raise BadInput(f"{str(path)!r} should hold arrays under 'data' as long as 'meta/episode_ends' says.")
    start = 0
    for number, stop in enumerate(ends):
        if stop <= start:
            raise BadInput(f"The ends of episodes in {str(path)!r} do not ascend at {number}.")
        part = {name: column[start:stop] for name, column in columns.items()}
        yield Raw(path.name, part, {"run": str(number)})
        start = stop


def _store(path: Path) -> Any:
    if path.is_dir():
        return str(path)
    check_members(path)
    return library("zarr.storage").ZipStore(path, mode="r")


def _column(name: str, array: Any, path: Path) -> Any:
    if array.dtype.kind not in ALLOWED_KINDS:
        raise BadInput(f"{name!r} of {str(path)!r} holds {array.dtype}, but only numbers are read.")
    if array.ndim == 4 and array.shape[3] == 3:
        source = _Stored(array, (int(array.shape[1]), int(array.shape[2])))
        return Frames(source, np.arange(int(array.shape[0])))
    if array.size * array.dtype.itemsize > MAX_DECODED:
        raise BadInput(f"{name!r} of {str(path)!r} would take {array.nbytes / 2**30:.3g} GiB, which is refused.")
    return np.asarray(array[:])


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """Images that stay in a zarr store, as whole numbers or as floats from 0 to 255."""

    array: Any
    size: tuple[int, int]
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        for number in numbers:
            stored = np.asarray(self.array[int(number)])
            yield stored if stored.dtype == np.uint8 else np.clip(np.round(stored), 0, 255).astype(np.uint8)
