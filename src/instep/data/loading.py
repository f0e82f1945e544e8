"""Load episodes: own recordings (also after a crash), LeRobot v3.0 and v2.1, and any format that a mapping reads.

Readers of recording formats by name, and the runs of a folder that a mapping selects.

Sandbox: untrusted files are read in another process first, so that a crash of a parser becomes an error.

Parquet, HDF5, video and compressed logs are parsed by C and C++ libraries, some of which crash on a single flipped bit;
the process has limits of memory and time, and is started once for all files.
"""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.processes import Job, ReaderProcess
from instep.core.reading import check_inside, check_regular, find_inside, inside, parsing
from instep.core.world import Array

from .files import MAX_RECORDING
from .formats import array_stores, mcap_files
from .formats import ros_messages as ros_logs
from .formats import table_formats as image_sets
from .formats import table_formats as tabular
from .formats.mcap_files import own_episode
from .formats.table_formats import read_columns
from .lerobot.features import is_image
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
        check_recordings(folder, maps)
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
    check_dataset(folder)
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


MAX_MEMORY = 8 << 30
"""Most address space a reader may take [bytes]; libraries map far more than they use."""
MAX_CPU_S = 600.0
"""Most processor time that a reader may take for one file or dataset [s]."""
_READER = ReaderProcess("instep.data.loading", cpu_s=MAX_CPU_S, memory=MAX_MEMORY)
_CHECKED: set[tuple[str, int, int]] = set()
_UNCHECKED_FORMATS = ("npz", "csv", "json", "lines", "stills")
"""Formats whose readers are Python and NumPy, and are bounded by themselves."""


def check_dataset(folder: Path) -> None:
    """Make sure a LeRobot dataset can be read: by its checksums where we wrote them, else in a process of its own."""
    key = _key(folder)
    if key in _CHECKED:
        return
    if not _verified(folder):
        _READER.check({"dataset": str(folder.absolute())}, str(folder))
    _CHECKED.add(key)


def check_recordings(folder: Path, maps: Sequence[DataMapping]) -> None:
    """Make sure recordings can be read by their mappings."""
    for data_map in maps:
        reader_of(data_map)
        if data_map.format in _UNCHECKED_FORMATS:
            continue
        for path in matching(folder, data_map):
            key = _key(path)
            if key not in _CHECKED:
                job = {"format": data_map.format, "path": str(path.absolute()), "options": dict(data_map.options)}
                _READER.check(job, str(path))
                _CHECKED.add(key)


def read_job(job: Job) -> None:
    """What the process does with a job: read all of a dataset or of one file."""
    if "dataset" in job:
        folder = Path(job["dataset"])
        from .lerobot.reader import read_lerobot

        for episode in read_lerobot(folder):
            _touch(episode.columns)
        return

    for raw in raw_runs(Path(job["path"]), job["format"], job["options"]):
        _touch(raw.columns)


def _touch(columns: Any) -> None:
    for column in columns.values():
        if is_image(column):
            np.asarray(column[0])
        else:
            np.asarray(column)


def _verified(folder: Path) -> bool:
    """Whether a dataset has checksums of all its tables; one that differs is named."""
    from .lerobot.reader import own_notes
    from .recorder.atomic import sha256

    known = (own_notes(folder) or {}).get("sha256")
    tables = [path for part in ("data", "meta") for path in (folder / part).rglob("*.parquet")]
    names = [str(path.relative_to(folder)) for path in tables]
    if not isinstance(known, dict) or any(name not in known for name in names):
        return False
    for path, name in zip(tables, names, strict=True):
        check_regular(check_inside(folder, path), MAX_RECORDING)
        if sha256(path) != known[name]:
            raise BadInput(f"{str(path)!r} is not as it was written: its SHA-256 differs, so it is damaged.")
    return True


def _key(path: Path) -> tuple[str, int, int]:
    """A file or folder as it stands now: a change of any file gives another key."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    stats = [file.stat() for file in files]
    return str(path.absolute()), sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0)
