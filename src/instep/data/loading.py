"""Load episodes: own recordings (also after a crash), LeRobot v3.0 and v2.1, and any format that a mapping reads."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.reading import parsing
from instep.core.world import Array

from . import sandbox
from .formats.mcap_files import own_episode
from .formats.readers import runs
from .formats.tabular import read_columns
from .lerobot.reader import INFO, OWN, read_lerobot
from .mapped_episode import episode_of
from .mapping import DataMapping, RawRun, from_file, shipped, shipped_mappings
from .recorder.recorder import JOURNAL
from .recorder.recovery import pending_episodes

MappingSource: TypeAlias = "str | Path | DataMapping | Sequence[DataMapping]"
"""The name of a mapping that comes with instep, a mapping file (.toml), or mappings themselves."""
SUFFIXES = {
    ".mcap": "mcap",
    ".bag": "bag",
    ".db3": "bag",
    ".hdf5": "aloha",
    ".h5": "aloha",
    ".zarr": "diffusion_policy",
    ".zarr.zip": "diffusion_policy",
}
"""Mappings of self-describing formats by the suffix of the name."""
FOLDER_CONTENTS = {
    "metadata.yaml": "bag",
    "*/metadata.yaml": "bag",
    ".zgroup": "diffusion_policy",
    "zarr.json": "diffusion_policy",
    "*.mcap": "mcap",
    "*.hdf5": "aloha",
    "*.h5": "aloha",
    "*.bag": "bag",
}
"""The same by what a folder contains."""


def load_episodes(source: str | Path, mapping: MappingSource | None = None, *, scene: str = "") -> Sequence[Episode]:
    """The episodes of a dataset or of recordings; BadInput where there are none.

    A LeRobot dataset (v3.0, v2.1, v2.0) is read as it is, with the episodes that a recorder left in journals when it
    was cut off. Other recordings need a mapping; without one it is found by the name of the folder, or by the format
    where that describes itself (MCAP, ROS bag, ALOHA HDF5, zarr). A set of several machines is named with its part, at
    the end of the path (`.../quanser_wam/furuta`) or of the mapping (`"quanser_wam/furuta"`); `scene` picks the part
    that belongs to a scene.
    """
    source, mapping = _with_part(Path(source), mapping, scene)
    folder, part = _located(source)
    if mapping is None and _is_dataset(folder):
        episodes = _read_dataset(folder)
    else:
        maps = _maps(mapping if mapping is not None else _mapping_name(folder, part))
        if folder.is_file():
            folder = folder.resolve() if folder.is_symlink() else folder  # whoever names a link means its file
            maps = tuple(replace(data_map, files=(glob.escape(folder.name),)) for data_map in maps)
            folder = folder.parent
        sandbox.check_recordings(folder, maps)
        episodes = _mapped(folder, maps)
    if not len(episodes):
        raise BadInput(f"{str(source)!r} holds no episodes.")
    return episodes


def load_table(source: str | Path, mapping: MappingSource | None = None) -> dict[str, Array]:
    """The columns of a recording that is a plain table, by name."""
    folder, part = _located(Path(source))
    data_map = _maps(mapping if mapping is not None else _mapping_name(folder, part))[0]
    if data_map.kind != "table":
        raise BadInput(f"{str(folder)!r} holds episodes, not a table; open it with load_episodes.")
    return read_columns(folder / data_map.files[0], data_map.options)


def _maps(mapping: MappingSource) -> tuple[DataMapping, ...]:
    if isinstance(mapping, DataMapping):
        return (mapping,)
    if isinstance(mapping, Path) or (isinstance(mapping, str) and mapping.endswith(".toml")):
        return from_file(Path(mapping))
    return shipped(mapping) if isinstance(mapping, str) else tuple(mapping)


def _with_part(source: Path, mapping: MappingSource | None, scene: str) -> tuple[Path, MappingSource | None]:
    """The source and mapping with the part that belongs to a scene, where the mapping has one."""
    if scene and isinstance(mapping, str) and f"{mapping}/{scene}" in shipped_mappings():
        return source, f"{mapping}/{scene}"
    if scene and mapping is None and f"{source.resolve().name}/{scene}" in shipped_mappings():
        return source / scene, None
    return source, mapping


def is_readable(source: Path) -> bool:
    """Whether recordings describe themselves, or a shipped mapping goes by their name."""
    if not source.exists():
        return any(name.startswith(f"{source.parent.name}/") for name in shipped_mappings())
    return _is_dataset(source) or source.resolve().name in _known_names() or bool(_by_format(source))


def is_foreign_dataset(source: Path) -> bool:
    """Whether a folder is a LeRobot dataset that other software wrote and no shipped mapping describes."""
    return (source / INFO).exists() and not (source / OWN).exists() and source.resolve().name not in _known_names()


def _known_names() -> set[str]:
    return {name.partition("/")[0] for name in shipped_mappings()}


def _is_dataset(folder: Path) -> bool:
    return (folder / INFO).exists() or (folder / JOURNAL).is_dir()


def _read_dataset(folder: Path) -> Sequence[Episode]:
    """Stored episodes and those still in journals; with the units of the mapping of its name, where there is one."""
    pending = pending_episodes(folder)
    if not (folder / INFO).exists():
        return pending
    sandbox.check_dataset(folder)
    foreign = not (folder / OWN).exists() and folder.name in shipped_mappings()
    maps = shipped(folder.name) if foreign else ()
    stored = _mapped(folder, maps) if maps and maps[0].format == "lerobot" else read_lerobot(folder)
    return [*stored, *pending] if pending else stored


def _mapped(folder: Path, maps: Sequence[DataMapping]) -> Sequence[Episode]:
    """The episodes of a folder, by one mapping or by one per part."""
    episodes: list[Episode] = []
    for data_map in maps:
        if data_map.kind != "episodes":
            raise BadInput(f"{str(folder)!r} holds a {data_map.kind}, not episodes; read it with load_table.")
        made = [_episode(raw, data_map) for raw in runs(folder, data_map)]
        episodes += _numbered(made) if data_map.repeats else made
    return tuple(episodes)


def _episode(raw: RawRun, data_map: DataMapping) -> Episode:
    with parsing(raw.name, f"what the mapping {data_map.name!r} describes"):
        return own_episode(raw) or episode_of(raw, data_map)


def _located(source: Path) -> tuple[Path, str]:
    """The folder, and the part of its mapping that the last name of the path stands for."""
    if source.exists():
        return source, ""
    if source.parent.is_dir() and any(n.startswith(f"{source.parent.name}/") for n in shipped_mappings()):
        return source.parent, source.name
    raise BadInput(f"There is no folder {str(source)!r}.")


def _mapping_name(folder: Path, part: str) -> str:
    name = f"{folder.resolve().name}/{part}" if part else folder.resolve().name
    if name not in shipped_mappings():
        if part:
            known = [n.partition("/")[2] for n in shipped_mappings() if n.startswith(f"{folder.name}/")]
            raise UnknownName(f"part of {folder.name!r}", part, known)
        if _by_format(folder):
            return _by_format(folder)
        raise BadInput(
            f"{str(folder)!r} is not a LeRobot dataset, and no mapping is called {name!r}; give --map, a file of your "
            f"own, or --as, one that comes with instep ({', '.join(shipped_mappings())})."
        )
    return name


def _by_format(path: Path) -> str:
    """The mapping of a self-describing file or folder; empty where its format is not one."""
    for suffix, name in SUFFIXES.items():
        if path.name.endswith(suffix):
            return name
    if path.is_dir():
        for inside, name in FOLDER_CONTENTS.items():
            if next(path.glob(inside), None) is not None:
                return name
    return ""


def _numbered(episodes: Sequence[Episode]) -> list[Episode]:
    """Episodes numbered within their group: the spread of repeats is the noise floor of any model."""
    seen: Counter[str] = Counter()
    out: list[Episode] = []
    for episode in episodes:
        group = episode.meta.get("group", "")
        out.append(episode.with_columns({}, repeat=str(seen[group])))
        seen[group] += 1
    return out
