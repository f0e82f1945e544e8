"""Formats of recordings: how each is recognised, read and written.

A format is one `Format` in one module. Ours are in the table `BUILT_IN`; others register under the entry-point group
`instep.formats` with the same spelling, `name = "module:OBJECT"`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.imports import extension, extension_names
from instep.core.world import Array, frozen_dataclass
from instep.data.files import new_folder
from instep.data.frames import ImageSource
from instep.data.lerobot.features import channel_of, is_image
from instep.data.mapping import RawRun
from instep.data.recorder.atomic import write_text

BUILT_IN = {
    "lerobot": "instep.data.formats.lerobot_datasets:LEROBOT",
    "lerobot-v3.0": "instep.data.formats.lerobot_datasets:LEROBOT_V30",
    "lerobot-v2.1": "instep.data.formats.lerobot_datasets:LEROBOT_V21",
    "rosbag": "instep.data.formats.ros_bags:ROSBAG",
    "zarr": "instep.data.formats.array_stores:ZARR",
    "csv": "instep.data.formats.table_formats:CSV",
    "npz": "instep.data.formats.table_formats:NPZ",
    "json": "instep.data.formats.table_formats:JSON",
    "lines": "instep.data.formats.table_formats:LINES",
    "cameras": "instep.data.formats.table_formats:CAMERAS",
    "stills": "instep.data.formats.table_formats:STILLS",
    "mcap": "instep.data.formats.mcap_files:MCAP",
    "hdf5": "instep.data.formats.array_stores:HDF5",
    "rerun": "instep.data.formats.mcap_files:RERUN",
}
"""The formats that come with instep, in the order in which a folder is searched for them."""

Reader: TypeAlias = Callable[[Path, Mapping[str, Any]], Iterator[RawRun]]
"""Reads the runs of one file, given the options of a mapping."""
Writer: TypeAlias = Callable[[Sequence[Episode], Path], tuple[str, ...]]
"""Writes episodes into a new folder; returns the columns that the format cannot hold."""


@frozen_dataclass
class Format:
    """A format of recordings."""

    title: str
    """The name that users know, with an article where it needs one."""
    read: Reader | None = None
    write: Writer | None = None
    suffixes: tuple[str, ...] = ()
    """Endings of its files, the usual one first."""
    contents: tuple[str, ...] = ()
    """Files by which a folder is one recording of this format."""
    mapping: str = ""
    """The shipped mapping that reads such recordings; empty where their columns must be described or guessed."""
    options: Callable[[Path], dict[str, Any]] = lambda path: {}
    """Options of the reader that the first file of a log shows."""
    isolated: bool = True
    """Whether files are parsed in a process of their own: for C libraries, which some files crash."""
    images: Callable[[Path, str, tuple[int, int]], ImageSource] | None = None
    """Opens images that stay in a file, by name and size."""


@cache
def formats() -> Mapping[str, Format]:
    """All formats by name: ours, then those of other packages."""
    found = {name: extension("formats", name, BUILT_IN) for name in extension_names("formats", BUILT_IN)}
    for name, form in found.items():
        if not isinstance(form, Format):
            raise BadInput(f"{name!r} of the entry points 'instep.formats' is a {type(form).__name__}, not a Format.")
    return found


def readable(name: str) -> Format:
    """A format that can be read, by its name in a mapping."""
    known = {key: form for key, form in formats().items() if form.read is not None}
    if name not in known:
        raise UnknownName("format", name, known)
    return known[name]


def located(path: Path) -> tuple[str, tuple[str, ...]]:
    """The format of a file or folder and the patterns of its recordings; empty where it is none that is known.

    A folder is one recording, or holds files or folders that are.
    """
    known = [(name, form) for name, form in formats().items() if form.read is not None]
    name = next((name for name, form in known if path.name.lower().endswith(form.suffixes)), "")
    if path.is_file() or name:
        return name, ((path.name if path.is_file() else "."),) if name else ()
    for prefix in ("", "*/"):
        for name, form in known:
            pattern = next((f"{prefix}{c}" for c in form.contents if next(path.glob(prefix + c), None)), "")
            if pattern:
                return name, (pattern if prefix else ".",)
        # The usual suffix of each format comes first: a folder of NPZ files may hold a text file beside them.
        for rank in range(max(len(form.suffixes) for _, form in known) if not prefix else 0):
            for name, form in known:
                if len(form.suffixes) > rank and next(path.glob(f"*{form.suffixes[rank]}"), None) is not None:
                    return name, (f"*{form.suffixes[rank]}",)
    return "", ()


def write_files(
    episodes: Sequence[Episode],
    folder: Path,
    suffix: str,
    write: Callable[[Path, Episode], Iterable[str] | None],
    mapping: str = "",
) -> tuple[str, ...]:
    """Write one file per episode into a new folder, with a mapping by which they can be imported again."""
    left_out: dict[str, None] = {}
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            left_out |= dict.fromkeys(write(partial / f"episode_{k:06d}{suffix}", episode) or ())
        if mapping:
            write_text(partial / "map.toml", mapping)
    return tuple(left_out)


def mapping_text(episode: Episode, form: str, names: Callable[[str, Array], list[str]], *, images: bool = False) -> str:
    """The mapping of exported files; `names` are those of a column in them."""
    lines = [f'format = "{form}"', f'files = ["*.{form}"]', 'time = "timestamp"', f"rate = {1.0 / episode.spec.dt!r}"]
    lines += [f"scene = {json.dumps(episode.meta['scene'])}"] if "scene" in episode.meta else []
    for name, column in episode.columns.items():
        if name == "timestamp" or (is_image(column) and not images) or 0 in column.shape:
            continue
        channel = channel_of(name, episode.spec)
        table = name if name in ("q", "v", "action") else f"observation.{json.dumps(name)}"
        lines += ["", f"[{table}]", f"from = {json.dumps(names(name, column))}"]
        if channel is not None and channel.labels:
            lines += [f"labels = {json.dumps(list(channel.labels))}", f"unit = {json.dumps(channel.unit)}"]
    return "\n".join(lines) + "\n"
