"""Open recordings: a dataset of our own, a LeRobot folder, or anything a mapping can read.

Recordings in, datasets out: the verbs `instep data import` and `instep data export`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.data.formats.mcap_files import own_episode
from instep.data.formats.readers import runs
from instep.data.formats.tabular import read_columns, write_columns
from instep.data.lerobot.features import WriteOptions, channel_of, is_image
from instep.data.recorder.atomic import write_text
from instep.data.recorder.finishing import pending_episodes
from instep.data.recorder.recorder import JOURNAL

from . import json_files, sandbox
from .formats import mcap_files
from .json_files import read_object
from .lerobot import reader_v3, version21, writer_v3
from .mapped_episode import episode_of
from .mapping import DataMap, from_file, shipped, shipped_names
from .resample import resampled
from .streams import streams_of

ENDINGS = {
    ".mcap": "mcap",
    ".bag": "bag",
    ".db3": "bag",
    ".hdf5": "aloha",
    ".h5": "aloha",
    ".zarr": "diffusion_policy",
    ".zarr.zip": "diffusion_policy",
}
"""Mappings of formats that say themselves what they hold, by the ending of the name."""
MARKS = {
    "metadata.yaml": "bag",
    ".zgroup": "diffusion_policy",
    "zarr.json": "diffusion_policy",
    "*.mcap": "mcap",
    "*.hdf5": "aloha",
    "*.h5": "aloha",
    "*.bag": "bag",
}
"""The same by what lies in a folder."""


def load(source: str | Path, as_: str | None = None, *, map_file: Path | None = None) -> Sequence[Episode]:
    """The episodes of a folder.

    A LeRobot dataset (v3.0, v2.1) is read as it is. Other recordings need a mapping: `map_file` gives one, `as_` names
    one that comes with instep, and without either it is found by the folder's name. A set that holds several
    machines is named with its part, at the end of the path (`.../quanser_wam/furuta`) or as `as_="quanser_wam/furuta"`.
    """
    folder, part = _located(Path(source))
    if as_ is None and map_file is None and _is_dataset(folder):
        return read_dataset(folder)
    maps = from_file(map_file) if map_file else shipped(as_ or _name_of(folder, part))
    if folder.is_file():
        maps = tuple(replace(data_map, files=(folder.name,)) for data_map in maps)
        folder = folder.parent
    sandbox.check_recordings(folder, maps)
    return mapped(folder, maps)


def read_dataset(folder: Path) -> Sequence[Episode]:
    """The episodes of a dataset folder, with those that a recorder left in journals when it was cut off."""
    pending = pending_episodes(folder)
    if not (folder / "meta/info.json").exists():
        return pending
    stored = _read_lerobot(folder)
    return [*stored, *pending] if pending else stored


def _is_dataset(folder: Path) -> bool:
    return (folder / "meta/info.json").exists() or (folder / JOURNAL).is_dir()


def _read_lerobot(folder: Path) -> Sequence[Episode]:
    """The episodes of a LeRobot dataset of either version; where a mapping has its name, with the units it adds."""
    version = str(read_object(folder / "meta/info.json").get("codebase_version"))
    sandbox.check_dataset(folder)
    own = (folder / reader_v3.OWN).exists()
    if not own and folder.name in shipped_names() and shipped(folder.name)[0].format == "lerobot":
        return mapped(folder, shipped(folder.name))
    if version == reader_v3.VERSION:
        return reader_v3.read(folder)
    if version.startswith("v2."):
        return version21.read(folder)
    raise BadInput(f"{str(folder)!r} is a LeRobot dataset of version {version!r}; v2.0, v2.1 and v3.0 are read.")


def mapped(folder: Path, maps: Sequence[DataMap]) -> Sequence[Episode]:
    """The episodes of a folder, by one mapping or by one per part."""
    episodes: list[Episode] = []
    for data_map in maps:
        if data_map.kind != "episodes":
            raise BadInput(
                f"{str(folder)!r} holds a {data_map.kind}, not episodes; read it with instep.data.datasets.table."
            )
        made = [own_episode(raw) or episode_of(raw, data_map) for raw in runs(folder, data_map)]
        episodes += _numbered(made) if data_map.repeats else made
    return tuple(episodes)


def table(source: str | Path, as_: str | None = None) -> dict[str, Array]:
    """The columns of a recording that is a plain table, by name."""
    folder, part = _located(Path(source))
    data_map = shipped(as_ or _name_of(folder, part))[0]
    if data_map.kind != "table":
        raise BadInput(f"{str(folder)!r} holds episodes, not a table; open it with load.")
    return read_columns(folder / data_map.files[0], data_map.options)


def scene_of(source: str | Path, as_: str | None = None) -> str:
    """The name of the scene that recordings belong to; empty where no scene is shipped for them."""
    episodes = load(source, as_)
    return episodes[0].meta.get("scene", "") if episodes else ""


def _located(source: Path) -> tuple[Path, str]:
    """The folder, and the part of it that its last word names where no such folder is there."""
    if source.exists():
        return source, ""
    if source.parent.is_dir() and any(n.startswith(f"{source.parent.name}/") for n in shipped_names()):
        return source.parent, source.name
    raise BadInput(f"There is no folder {str(source)!r}.")


def _guessed(path: Path) -> str:
    """The mapping that fits a file or folder by what it is; empty where that cannot be told."""
    for ending, name in ENDINGS.items():
        if path.name.endswith(ending):
            return name
    if path.is_dir():
        for inside, name in MARKS.items():
            if next(path.glob(inside), None) is not None:
                return name
    return ""


def _name_of(folder: Path, part: str) -> str:
    name = f"{folder.resolve().name}/{part}" if part else folder.resolve().name
    if name not in shipped_names():
        if part:
            known = [n.partition("/")[2] for n in shipped_names() if n.startswith(f"{folder.name}/")]
            raise UnknownName(f"part of {folder.name!r}", part, known)
        if _guessed(folder):
            return _guessed(folder)
        raise BadInput(
            f"{str(folder)!r} is not a LeRobot dataset, and no mapping is called {name!r}; name one of the shipped "
            f"mappings with --as ({', '.join(shipped_names())}) or give your own with --map."
        )
    return name


def _numbered(episodes: Sequence[Episode]) -> list[Episode]:
    """Episodes of one group, counted: their spread is the floor below which no model can be expected to get."""
    seen: Counter[str] = Counter()
    out: list[Episode] = []
    for episode in episodes:
        group = episode.meta.get("group", "")
        out.append(episode.with_columns({}, repeat=str(seen[group])))
        seen[group] += 1
    return out


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an import or export wrote."""

    folder: Path
    episodes: int
    rows: int
    left_out: tuple[str, ...] = ()
    """Columns that the format cannot hold."""


def import_recordings(
    source: str | Path,
    folder: Path,
    *,
    as_: str | None = None,
    map_file: Path | None = None,
    rate: float | None = None,
    options: WriteOptions | None = None,
) -> Exchanged:
    """Read recordings in any known format and write them as a new LeRobot v3.0 dataset.

    `as_` names a shipped mapping, `map_file` gives one's own, `rate` [Hz] evens the rows out; a LeRobot dataset has one
    rate, so recordings of several need it. The folder appears whole or not at all.
    """
    episodes = load(source, as_, map_file=map_file)
    if not episodes:
        raise BadInput(f"{str(source)!r} holds no episodes.")
    if rate is not None:
        episodes = [resampled(episode, rate) for episode in episodes]
    _check_one_rate(episodes)
    writer_v3.write(_alike(episodes), folder, options)
    return Exchanged(folder, len(episodes), sum(len(episode) for episode in episodes))


def export(source: str | Path, form: str, folder: Path, *, as_: str | None = None) -> Exchanged:
    """Write the episodes of a dataset in another format: lerobot-v3.0, lerobot-v2.1, mcap, csv or npz.

    LeRobot exports hold observations and actions in single precision, as training code expects. CSV and NPZ hold no
    images; they come with a mapping by which they can be imported again.
    """
    if form not in FORMS:
        raise UnknownName("export format", form, FORMS)
    episodes = load(source, as_)
    if not episodes:
        raise BadInput(f"{str(source)!r} holds no episodes.")
    left_out = FORMS[form](episodes, folder, Path(source))
    return Exchanged(folder, len(episodes), sum(len(episode) for episode in episodes), left_out)


def _to_version_3(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    _check_one_rate(episodes)
    writer_v3.write(_alike(episodes), folder, WriteOptions(float32=True))
    return ()


def _to_version_21(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    _check_one_rate(episodes)
    version21.write(_alike(episodes), folder, WriteOptions(float32=True))
    return ()


def _to_mcap(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with json_files.new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            mcap_files.write(episode, partial / f"episode_{k:06d}.mcap", streams_of(source, episode))
    return ()


def _to_csv(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with json_files.new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            write_columns(partial / f"episode_{k:06d}.csv", _flat(episode))
        write_text(partial / "map.toml", _mapping(episodes[0], "csv", _flat_names))
    return _images(episodes[0])


def _to_npz(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with json_files.new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            columns: dict[str, Any] = {"timestamp": episode.t}
            columns |= {name: np.asarray(c) for name, c in episode.columns.items() if not is_image(c) and c.size}
            np.savez_compressed(partial / f"episode_{k:06d}.npz", **columns)
        write_text(partial / "map.toml", _mapping(episodes[0], "npz", lambda name, column: [name]))
    return _images(episodes[0])


_Exporter: TypeAlias = Callable[[Sequence[Episode], Path, Path], tuple[str, ...]]
FORMS: Mapping[str, _Exporter] = {
    "lerobot-v3.0": _to_version_3,
    "lerobot-v2.1": _to_version_21,
    "mcap": _to_mcap,
    "csv": _to_csv,
    "npz": _to_npz,
}


def _check_one_rate(episodes: Sequence[Episode]) -> None:
    rates = sorted({round(1.0 / episode.spec.dt, 1) for episode in episodes})
    if rates[-1] > 1.05 * rates[0]:
        listed = ", ".join(f"{rate:g}" for rate in rates)
        raise BadInput(
            f"These episodes have different rates ({listed} Hz), and a LeRobot dataset has one; give a rate to "
            "resample to, or choose a part of them."
        )


def _alike(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """The episodes with the columns they all have; what only some have is left out and noted."""
    common = {name for name in episodes[0].columns if all(name in episode for episode in episodes)}
    cameras = {n for e in episodes for n, c in e.columns.items() if is_image(c)}
    if all(set(episode.columns) <= common | cameras for episode in episodes):
        return episodes
    out: list[Episode] = []
    for episode in episodes:
        extra = sorted(set(episode.columns) - common - cameras)
        columns = {name: column for name, column in episode.columns.items() if name not in extra}
        meta = {**episode.meta, "left out": ", ".join(extra)} if extra else episode.meta
        out.append(Episode(episode.spec, columns, meta))
    return out


def _images(episode: Episode) -> tuple[str, ...]:
    return tuple(name for name, column in episode.columns.items() if is_image(column))


def _flat(episode: Episode) -> dict[str, Array]:
    out: dict[str, Array] = {"timestamp": episode.t}
    for name, column in episode.columns.items():
        if name == "timestamp" or is_image(column):
            continue
        values = np.asarray(column).reshape(len(column), -1)
        for k, label in enumerate(_flat_names(name, column)):
            out[label] = values[:, k]
    return out


def _flat_names(name: str, column: Any) -> list[str]:
    width = math.prod(column.shape[1:])
    return [name] if column.ndim == 1 else [f"{name}.{k}" for k in range(width)]


def _mapping(episode: Episode, form: str, names: Callable[[str, Any], list[str]]) -> str:
    """The mapping by which exported files are imported again."""
    lines = [f'format = "{form}"', f'files = ["*.{form}"]', 'time = "timestamp"', f"rate = {1.0 / episode.spec.dt!r}"]
    lines += [f"scene = {json.dumps(episode.meta['scene'])}"] if "scene" in episode.meta else []
    for name, column in episode.columns.items():
        if name == "timestamp" or is_image(column) or not column.size:
            continue
        channel = channel_of(name, episode.spec)
        table = name if name in ("q", "v", "action") else f"observation.{json.dumps(name)}"
        lines += ["", f"[{table}]", f"from = {json.dumps(names(name, column))}"]
        if channel is not None:
            lines += [f"labels = {json.dumps(list(channel.labels))}", f"unit = {json.dumps(channel.unit)}"]
    return "\n".join(lines) + "\n"
