"""Readers of recording formats by name, and the runs of a folder that a mapping selects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import find_inside, inside, parsing
from instep.data.lerobot.reader import read_lerobot
from instep.data.mapping import DataMapping, RawRun

from . import array_stores, image_sets, mcap_files, ros_logs, tabular

BAG_INDEX = "metadata.yaml"
"""The file that makes a folder a ROS 2 bag."""
Reader: TypeAlias = Callable[[Path, Mapping[str, Any]], Iterator[RawRun]]
"""Reads the runs of one file, given the options of a mapping."""


def read_lerobot_runs(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The episodes of a LeRobot dataset as raw columns; headers `names:COLUMN` hold the names that it declares."""
    for episode in read_lerobot(path):
        spec = episode.spec
        channels = {"action": spec.action, **spec.observation}
        labels = {f"names:{name}": json.dumps(channel.labels) for name, channel in channels.items() if channel.labels}
        header = {**labels, "rate": repr(1.0 / spec.dt), **episode.meta}
        yield RawRun(f"episode {episode.meta['index']}", episode.columns, header)


READERS: Mapping[str, Reader] = {
    "npz": tabular.read_npz_runs,
    "csv": tabular.read_csv,
    "json": tabular.read_json_log,
    "lines": tabular.read_text_log,
    "cameras": image_sets.read_cameras,
    "stills": image_sets.read_stills,
    "hdf5": array_stores.read_hdf5,
    "zarr": array_stores.read_zarr,
    "mcap": mcap_files.read_mcap,
    "rosbag": ros_logs.read_rosbag,
    "lerobot": read_lerobot_runs,
}


TITLES = {"hdf5": "HDF5", "mcap": "MCAP", "npz": "NPZ", "csv": "CSV", "rosbag": "a ROS bag", "lerobot": "a dataset"}
"""Formats by the names that users know."""


def reader_of(data_map: DataMapping) -> Reader:
    """The reader of a mapping's format."""
    if data_map.format not in READERS:
        raise UnknownName("format", data_map.format, READERS)
    return READERS[data_map.format]


def raw_runs(path: Path, form: str, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The runs of one file; whatever the reader of its format raises becomes one sentence."""
    with parsing(path, TITLES.get(form, form)):
        yield from READERS[form](path, options)


def runs(folder: Path, data_map: DataMapping) -> Iterator[RawRun]:
    """The runs of the files that a mapping selects, in the order of their names."""
    reader_of(data_map)

    def read(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
        return raw_runs(path, data_map.format, options)

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
            yield from _split(RawRun(name, joined.columns, header), data_map)


def matching(folder: Path, data_map: DataMapping) -> list[Path]:
    """The files of a folder that a mapping reads."""
    if data_map.files == (".",):
        inside = sorted(path.parent for path in folder.glob(f"*/{BAG_INDEX}")) if data_map.format == "rosbag" else []
        return inside if inside and not (folder / BAG_INDEX).exists() else [folder]
    found = {path for pattern in data_map.files for path in find_inside(folder, pattern)}
    found -= {path for pattern in data_map.exclude for path in find_inside(folder, pattern)}
    if not found:
        wanted = ", ".join(data_map.files)
        raise BadInput(f"{str(folder)!r} holds no files like {wanted}, which the mapping {data_map.name!r} reads.")
    return sorted(found)


def _with_companions(raw: RawRun, path: Path, data_map: DataMapping, read: Reader) -> RawRun:
    columns, header = dict(raw.columns), dict(raw.header)
    for prefix, (ending, other) in data_map.also.items():
        companion = inside(path.parent, path.name.removesuffix(ending) + other)
        for extra in read(companion, data_map.options):
            columns |= {f"{prefix}.{name}": column for name, column in extra.columns.items()}
            header |= {f"{prefix}.{name}": value for name, value in extra.header.items()}
    return RawRun(raw.name, columns, header)


def _split(raw: RawRun, data_map: DataMapping) -> Iterator[RawRun]:
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
        yield RawRun(f"{raw.name}:{k}", part, {**raw.header, "number": str(k)})
