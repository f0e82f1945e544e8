"""Foreign formats by name, and the runs of a folder read in one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from instep.core.errors import BadInput, UnknownName
from instep.data.file_limits import under
from instep.data.json_files import read_object
from instep.data.lerobot import reader_v3, version21
from instep.data.mapping import DataMap

from . import array_stores, image_sets, mcap_files, ros_bags, tabular
from .raw_run import Raw

Reader: TypeAlias = Callable[[Path, Mapping[str, Any]], Iterator[Raw]]
"""Reads the runs of one file, given the options of a mapping."""


def read_lerobot(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """The episodes of a LeRobot dataset of either version, as raw columns."""
    version = str(read_object(path / "meta/info.json").get("codebase_version"))
    for episode in reader_v3.read(path) if version == reader_v3.VERSION else version21.read(path):
        yield Raw(f"episode {episode.meta['index']}", episode.columns, episode.meta)


READERS: Mapping[str, Reader] = {
    "npz": tabular.read_npz_columns,
    "csv": tabular.read,
    "json": tabular.read_json_log,
    "lines": tabular.read_lines_log,
    "cameras": image_sets.read,
    "stills": image_sets.read_stills,
    "hdf5": array_stores.read,
    "zarr": array_stores.read_zarr,
    "mcap": mcap_files.read,
    "rosbag": ros_bags.read,
    "lerobot": read_lerobot,
}


def reader_of(data_map: DataMap) -> Reader:
    """The reader of a mapping's format."""
    if data_map.format not in READERS:
        raise UnknownName("format", data_map.format, READERS)
    return READERS[data_map.format]


def runs(folder: Path, data_map: DataMap) -> Iterator[Raw]:
    """The runs of a folder that a mapping speaks of, in the order of their names."""
    read = reader_of(data_map)
    for path in matching(folder, data_map):
        for raw in read(path, data_map.options):
            joined = _with_companions(raw, path, data_map, read)
            header = {
                "stem": path.name.split(".")[0],
                "parent": path.parent.name,
                "grandparent": path.parent.parent.name,
                "folder": folder.name,
                **joined.header,
            }
            name = str(path.relative_to(folder)) if path != folder else raw.name
            name = f"{name}:{raw.header['run']}" if "run" in raw.header else name
            yield from _split(Raw(name, joined.columns, header), data_map)


def matching(folder: Path, data_map: DataMap) -> list[Path]:
    """The files of a folder that a mapping reads."""
    if data_map.files == (".",):
        return [folder]
    found = {path for pattern in data_map.files for path in folder.glob(pattern) if path.is_file()}
    found -= {path for pattern in data_map.exclude for path in folder.glob(pattern)}
    if not found:
        wanted = ", ".join(data_map.files)
        raise BadInput(f"{str(folder)!r} holds no files like {wanted}, which the mapping {data_map.name!r} reads.")
    return sorted(found)


def _with_companions(raw: Raw, path: Path, data_map: DataMap, read: Reader) -> Raw:
    columns, header = dict(raw.columns), dict(raw.header)
    for prefix, (ending, other) in data_map.also.items():
        companion = under(path.parent, path.name.removesuffix(ending) + other)
        for extra in read(companion, data_map.options):
            columns |= {f"{prefix}.{name}": column for name, column in extra.columns.items()}
            header |= {f"{prefix}.{name}": value for name, value in extra.header.items()}
    return Raw(raw.name, columns, header)


def _split(raw: Raw, data_map: DataMap) -> Iterator[Raw]:
    if not data_map.split:
        yield raw
        return
    offsets = [int(x) for x in raw.column(data_map.split)]
    rows = {name: column for name, column in raw.columns.items() if name != data_map.split}
    if offsets and offsets[0] != 0:
        offsets = [0, *offsets]
    for k, (start, stop) in enumerate(pairwise(offsets)):
        if not 0 <= start < stop:
            raise BadInput(f"The offsets {data_map.split!r} of {raw.name!r} do not ascend at {k}.")
        part = {name: column[start:stop] for name, column in rows.items()}
        yield Raw(f"{raw.name}:{k}", part, {**raw.header, "number": str(k)})
