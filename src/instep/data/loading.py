"""Load episodes: own recordings (also after a crash), LeRobot v3.0 and v2.1, and any format that a mapping reads."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.reading import find_inside, inside, parsing
from instep.core.world import array_dataclass

from .formats import formats, located, raw_runs, readable
from .formats.ros_logs import own_episode
from .lerobot.reader import INFO, OWN, read_lerobot
from .mapping import DataMapping, RawRun, episode_of, from_file, shipped, shipped_mappings
from .recorder import JOURNAL
from .recovery import pending_episodes

MappingSource: TypeAlias = "str | Path | DataMapping | Sequence[DataMapping]"
"""The name of a mapping that comes with instep, a mapping file (.toml), or mappings themselves."""
RunReader: TypeAlias = Callable[[Path, str, Mapping[str, Any]], Iterable[RawRun]]
"""Gives the runs of one file, by its format and the options of a mapping."""


def load_episodes(source: str | Path, mapping: MappingSource | None = None, *, scene: str = "") -> Sequence[Episode]:
    """The episodes of a dataset or of recordings; BadInput where there are none.

    A LeRobot dataset (v3.0, v2.1, v2.0) is read as it is, with the episodes that a recorder left in journals when it
    was cut off. Other recordings need a mapping; without one it is found by the name of the folder, or by the format
    where that describes itself (MCAP, ROS bag, ALOHA HDF5, zarr). A set of several machines is named with its part, at
    the end of the path (`.../quanser_wam/furuta`) or of the mapping (`"quanser_wam/furuta"`); `scene` picks the part
    that belongs to a scene.
    """
    source = Path(source)
    if scene and isinstance(mapping, str) and f"{mapping}/{scene}" in shipped_mappings():
        mapping = f"{mapping}/{scene}"
    elif scene and mapping is None and f"{source.resolve().name}/{scene}" in shipped_mappings():
        source = source / scene
    folder, part = source, ""
    if not source.exists():
        if not is_readable(source):
            raise BadInput(f"There is no folder {str(source)!r}.")
        folder, part = source.parent, source.name
    if mapping is None and _is_dataset(folder):
        episodes = _read_dataset(folder)
    else:
        maps = _maps(mapping if mapping is not None else _mapping_name(folder, part))
        if folder.is_file():
            folder = folder.resolve() if folder.is_symlink() else folder  # whoever names a link means its file
            maps = tuple(replace(data_map, files=(glob.escape(folder.name),)) for data_map in maps)
            folder = folder.parent
        episodes = _mapped(folder, maps)
    if not len(episodes):
        raise BadInput(f"{str(source)!r} holds no episodes.")
    return episodes


@array_dataclass
class Logs:
    """Logs that no mapping describes yet: files of one format, each parsed at most once."""

    folder: Path
    files: tuple[str, ...]
    """Patterns below the folder."""
    format: str
    options: Mapping[str, Any]
    _runs: dict[Path, list[RawRun]] = field(default_factory=dict[Path, list[RawRun]])

    def first_runs(self, most: int = 8) -> list[RawRun]:
        """The first runs as they are stored."""
        found: list[RawRun] = []
        for path in _matching(self.folder, DataMapping("logs", self.format, self.files)):
            found += self._read(path, self.format, self.options)
            if len(found) >= most:
                break
        return found[:most]

    def episodes(self, mapping: DataMapping) -> tuple[Episode, ...]:
        """The episodes of all runs, by a mapping of the same files."""
        return _mapped(self.folder, (mapping,), self._read)

    def _read(self, path: Path, name: str, options: Mapping[str, Any]) -> list[RawRun]:
        if path not in self._runs:
            self._runs[path] = list(raw_runs(path, name, options))
        return self._runs[path]


def find_logs(logs: Sequence[str | Path]) -> Logs:
    """The format of logs, and how they are read: one file, one folder, or several files."""
    paths, found = [Path(log) for log in logs], dict[Path, str]()
    for path in paths:
        if not path.exists():
            raise BadInput(f"There is no log {str(path)!r}.")
        name, patterns = located(path)
        if not name or (len(paths) > 1 and path.is_dir() and patterns != (".",)):
            known = ", ".join(suffix for form in formats().values() if form.read for suffix in form.suffixes)
            what = "holds no log of a known format" if path.is_dir() else "is no log of a known format"
            raise BadInput(f"{str(path)!r} {what}; expected one folder of logs, or files that end in {known}.")
        found[path] = name
    if len(set(found.values())) > 1:
        raise BadInput(
            f"The logs are of different formats ({', '.join(sorted(set(found.values())))}); give one format."
        )
    form = formats()[found[paths[0]]]
    if len(paths) == 1 and paths[0].is_dir():
        folder, files = paths[0], located(paths[0])[1]
    else:
        # A folder that is one recording goes by the file that marks it.
        marked = [next((path / c for c in form.contents if (path / c).is_file()), path).resolve() for path in paths]
        folder = marked[0].parent
        while not all(path.is_relative_to(folder) for path in marked):
            folder = folder.parent
        files = tuple(glob.escape(str(path.relative_to(folder))) for path in marked)
    first = _matching(folder, DataMapping("logs", found[paths[0]], files))[0]
    return Logs(folder, files, found[paths[0]], form.options(first))


def _maps(mapping: MappingSource) -> tuple[DataMapping, ...]:
    if isinstance(mapping, DataMapping):
        return (mapping,)
    if isinstance(mapping, Path) or (isinstance(mapping, str) and mapping.endswith(".toml")):
        return from_file(Path(mapping))
    return shipped(mapping) if isinstance(mapping, str) else tuple(mapping)


def is_readable(source: Path) -> bool:
    """Whether recordings describe themselves, or a shipped mapping goes by their name."""
    if not source.exists():
        set_name = f"{source.parent.name}/"
        return source.parent.is_dir() and any(name.startswith(set_name) for name in shipped_mappings())
    return _is_dataset(source) or source.resolve().name in _known_names() or bool(_own_mapping(source))


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
    foreign = not (folder / OWN).exists() and folder.name in shipped_mappings()
    maps = shipped(folder.name) if foreign else ()
    stored = _mapped(folder, maps) if maps and maps[0].format == "lerobot" else read_lerobot(folder)
    return [*stored, *pending] if pending else stored


def _mapped(folder: Path, maps: Sequence[DataMapping], read: RunReader = raw_runs) -> tuple[Episode, ...]:
    """The episodes of a folder, by one mapping or by one per part."""
    episodes: list[Episode] = []
    for data_map in maps:
        seen: Counter[str] = Counter()
        for raw in _runs(folder, data_map, read):
            with parsing(raw.name, f"what the mapping {data_map.name!r} describes"):
                episode = own_episode(raw) or episode_of(raw, data_map)
            if data_map.repeats:  # numbered within their group: the spread of repeats is the noise floor of any model
                group = episode.meta.get("group", "")
                episode = episode.with_columns({}, repeat=str(seen[group]))
                seen[group] += 1
            episodes.append(episode)
    return tuple(episodes)


def _mapping_name(folder: Path, part: str) -> str:
    name = f"{folder.resolve().name}/{part}" if part else folder.resolve().name
    if name not in shipped_mappings():
        if part:
            known = [n.partition("/")[2] for n in shipped_mappings() if n.startswith(f"{folder.name}/")]
            raise UnknownName(f"part of {folder.name!r}", part, known)
        if own := _own_mapping(folder):
            return own
        raise BadInput(
            f"{str(folder)!r} is not a LeRobot dataset, and no mapping is called {name!r}; give --map, a file of your "
            f"own, or --as, one that comes with instep ({', '.join(shipped_mappings())})."
        )
    return name


def _own_mapping(path: Path) -> str:
    """The shipped mapping of recordings that describe themselves; empty where these do not."""
    name = located(path)[0]
    return formats()[name].mapping if name else ""


def _runs(folder: Path, data_map: DataMapping, read: RunReader) -> Iterator[RawRun]:
    """The runs of the files that a mapping selects, in the order of their names."""
    readable(data_map.format)
    for path in _matching(folder, data_map):
        for raw in read(path, data_map.format, data_map.options):
            joined = _with_companions(raw, path, data_map, read)
            header = {
                "stem": path.name.split(".")[0], "parent": path.parent.name, "grandparent": path.parent.parent.name,
                "folder": folder.name, **joined.header,
            }  # fmt: skip
            name = str(path.relative_to(folder)) if path != folder else raw.name
            name = f"{name}:{raw.header['run']}" if "run" in raw.header else name
            yield from _split(RawRun(name, joined.columns, header), data_map)


def _matching(folder: Path, data_map: DataMapping) -> list[Path]:
    """The files of a folder that a mapping reads."""
    files = data_map.files
    if files == (".",):
        name, patterns = located(folder)
        if name != data_map.format or patterns == files:
            return [folder]
        files = patterns
    found = {path for pattern in files for path in find_inside(folder, pattern)}
    found -= {path for pattern in data_map.exclude for path in find_inside(folder, pattern)}
    if not found:
        wanted = ", ".join(files)
        raise BadInput(f"{str(folder)!r} holds no files like {wanted}, which the mapping {data_map.name!r} reads.")
    return sorted(found)


def _with_companions(raw: RawRun, path: Path, data_map: DataMapping, read: RunReader) -> RawRun:
    columns, header = dict(raw.columns), dict(raw.header)
    for prefix, (ending, other) in data_map.also.items():
        companion = inside(path.parent, path.name.removesuffix(ending) + other)
        for extra in read(companion, data_map.format, data_map.options):
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
