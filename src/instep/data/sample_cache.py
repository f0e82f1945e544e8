"""Training samples at the speed of memory: numbers in arrays, images decoded once into a memory map.

Decoding video for every sample costs more than training on it. Here each video is decoded once, into a file of plain
bytes named by the hash of what it was made from; the next run finds it there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.data.lerobot.features import is_image
from instep.data.recorder.atomic import new_file, write_json

from .datasets import load
from .frames import consecutive


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """All rows of a dataset, ready to be drawn from."""

    columns: Mapping[str, Array]
    """Numbers in memory, images in memory maps [rows, height, width, 3], each as long as all episodes together."""
    starts: Array
    """First row of each episode."""
    stops: Array
    """Row after the last of each episode."""
    built: float
    """Time it took to decode what was not there yet [s]."""

    def __len__(self) -> int:
        return int(self.stops[-1]) if len(self.stops) else 0

    def batch(self, rows: Array, names: Sequence[str], horizon: Mapping[str, int] | None = None) -> dict[str, Array]:
        """The values of some rows [rows, ...]; `horizon` asks for the next n rows of a column [rows, n, ...].

        Horizons that reach past the end of their episode repeat its last row.
        """
        out: dict[str, Array] = {}
        for name in names:
            if name not in self.columns:
                raise UnknownName("column", name, self.columns)
            steps = (horizon or {}).get(name, 0)
            out[name] = self.columns[name][self._ahead(rows, steps)] if steps else self.columns[name][rows]
        return out

    def _ahead(self, rows: Array, steps: int) -> Array:
        last = self.stops[np.searchsorted(self.stops, rows, side="right")] - 1
        return np.minimum(np.asarray(rows)[:, None] + np.arange(steps), last[:, None])


def training_samples(source: str | Path, cache: Path, *, stride: int = 1, as_: str | None = None) -> Samples:
    """All rows of a dataset; images are decoded once into `cache`, every `stride`-th pixel each way."""
    episodes = load(source, as_)
    if not episodes:
        raise BadInput(f"{str(source)!r} holds no episodes to train on.")
    begun = time.monotonic()
    columns: dict[str, Array] = {}
    for name in episodes[0].columns:
        if any(name not in episode for episode in episodes):
            continue
        if is_image(episodes[0][name]):
            columns[name] = _images(episodes, name, cache, stride)
        elif episodes[0][name].dtype.kind in "fiub":
            columns[name] = np.concatenate([np.asarray(episode[name]) for episode in episodes])
    lengths = np.array([len(episode) for episode in episodes])
    stops = np.cumsum(lengths)
    return Samples(columns, stops - lengths, stops, time.monotonic() - begun)


def _images(episodes: Sequence[Episode], name: str, cache: Path, stride: int) -> Array:
    """The images of one camera as a memory map, decoded if this is the first time."""
    height, width = episodes[0][name][0][::stride, ::stride].shape[:2]
    shape = (sum(len(episode) for episode in episodes), height, width, 3)
    path = cache / f"{_digest(episodes, name, stride)}.bytes"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with new_file(path) as partial:
            out = np.memmap(partial, np.uint8, "w+", shape=shape)
            row = 0
            for episode in episodes:
                for image in episode[name]:
                    out[row] = image[::stride, ::stride]
                    row += 1
            out.flush()
            del out
        write_json(path.with_suffix(".json"), {"column": name, "shape": shape, "stride": stride})
    if path.stat().st_size != int(np.prod(shape)):
        raise BadInput(f"The cached images {str(path)!r} have the wrong size; remove the file so that it is made anew.")
    return np.memmap(path, np.uint8, "r", shape=shape)


def _digest(episodes: Sequence[Episode], name: str, stride: int) -> str:
    """A name for decoded images: the hash of the files they come from and of which frames of them are meant."""
    digest = hashlib.sha256(json.dumps([name, stride]).encode())
    files: dict[Path, bytes] = {}
    for episode in episodes:
        column: Any = episode[name]
        path = getattr(getattr(column, "source", None), "path", None)
        if path is None:
            digest.update(np.ascontiguousarray(np.asarray(column)).data)
            continue
        if path not in files:
            with path.open("rb") as file:
                files[path] = hashlib.file_digest(file, "sha256").digest()
        numbers = column.numbers
        told = f"{numbers[0]}+{len(numbers)}" if consecutive(numbers) else np.array2string(numbers, threshold=1 << 31)
        digest.update(files[path] + told.encode())
    return digest.hexdigest()[:32]
