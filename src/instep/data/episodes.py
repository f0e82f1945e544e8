"""Open recordings: a dataset of our own, a LeRobot folder, or anything a mapping can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array

from . import lerobot3, lerobot21, sandbox
from .apply import episode_of
from .atomic import read_object
from .csv_io import read_columns
from .finish import pending_episodes
from .formats import runs
from .mapping import DataMap, from_file, shipped, shipped_names
from .mcap_io import own_episode
from .recorder import JOURNAL

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
    own = (folder / lerobot3.OWN).exists()
    if not own and folder.name in shipped_names() and shipped(folder.name)[0].format == "lerobot":
        return mapped(folder, shipped(folder.name))
    if version == lerobot3.VERSION:
        return lerobot3.read(folder)
    if version.startswith("v2."):
        return lerobot21.read(folder)
    raise BadInput(f"{str(folder)!r} is a LeRobot dataset of version {version!r}; v2.0, v2.1 and v3.0 are read.")


def mapped(folder: Path, maps: Sequence[DataMap]) -> Sequence[Episode]:
    """The episodes of a folder, by one mapping or by one per part."""
    episodes: list[Episode] = []
    for data_map in maps:
        if data_map.kind != "episodes":
            raise BadInput(
                f"{str(folder)!r} holds a {data_map.kind}, not episodes; read it with instep.data.episodes.table."
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
