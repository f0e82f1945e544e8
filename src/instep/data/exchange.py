"""Import recordings as LeRobot datasets, and export datasets to other formats."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.records import frozen_dataclass
from instep.core.world import Array, Channel

from .files import new_folder
from .formats.array_stores import hdf5_name, write_hdf5
from .formats.mcap_files import write_mcap
from .formats.rerun_files import write_rerun
from .formats.ros_bags import write_rosbag
from .formats.tabular import write_columns
from .lerobot.features import WriteOptions, channel_of, is_image
from .lerobot.writer import write_dataset, write_dataset_v21
from .loading import MappingSource, load_episodes
from .recorder.atomic import write_text
from .recorder.recovery import streams_of
from .resample import resampled
from .selection import Selection


@frozen_dataclass
class ExchangeResult:
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
    mapping: MappingSource | None = None,
    rate: float | None = None,
    options: WriteOptions | None = None,
) -> ExchangeResult:
    """Read recordings in any known format and write them as a new LeRobot v3.0 dataset.

    `mapping` is as for `load_episodes`; `rate` [Hz] resamples the rows. A LeRobot dataset has one rate, so recordings
    of several rates need it. The folder appears whole or not at all.
    """
    episodes = load_episodes(source, mapping)
    if rate is not None:
        episodes = [resampled(episode, rate) for episode in episodes]
    _check_one_rate(episodes)
    write_dataset(_common_columns(episodes), folder, options)
    return ExchangeResult(folder, len(episodes), sum(len(episode) for episode in episodes))


def export_episodes(
    source: str | Path,
    form: str,
    folder: Path,
    *,
    mapping: MappingSource | None = None,
    selection: Selection | None = None,
    robot_type: str = "",
) -> ExchangeResult:
    """Write the episodes of a dataset in another format: one of `EXPORTERS`.

    `selection` takes some episodes, cameras and columns; `robot_type` is what LeRobot metadata call the robot. LeRobot
    exports hold observations and actions in single precision, as training code expects. CSV, NPZ and HDF5 come with a
    mapping by which they can be imported again; the former two hold no images.
    """
    if form not in EXPORTERS:
        raise UnknownName("export format", form, EXPORTERS)
    episodes = (selection or Selection()).of(load_episodes(source, mapping))
    if robot_type:
        episodes = [episode.with_columns({}, robot_type=robot_type) for episode in episodes]
    left_out = EXPORTERS[form](episodes, folder, Path(source))
    return ExchangeResult(folder, len(episodes), sum(len(episode) for episode in episodes), left_out)


def _to_lerobot(write: Callable[..., Path]) -> _Exporter:
    def to_lerobot(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
        _check_one_rate(episodes)
        write(_common_columns(episodes), folder, WriteOptions(float32=True))
        return ()

    return to_lerobot


def _to_mcap(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            write_mcap(episode, partial / f"episode_{k:06d}.mcap", streams_of(source, episode))
    return ()


def _to_csv(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            write_columns(partial / f"episode_{k:06d}.csv", _flat(episode))
        write_text(partial / "map.toml", _mapping_toml(episodes[0], "csv", _flat_names))
    return _images(episodes[0])


def _to_hdf5(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            write_hdf5(partial / f"episode_{k:06d}.hdf5", episode)
        names = _mapping_toml(episodes[0], "hdf5", lambda name, column: [hdf5_name(name)], images=True)
        write_text(partial / "map.toml", names)
    return ()


def _to_bag(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    left_out: dict[str, None] = {}
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            left_out |= dict.fromkeys(write_rosbag(partial / f"episode_{k:06d}", episode))
    return tuple(left_out)


def _to_rerun(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            write_rerun(partial / f"episode_{k:06d}.rrd", episode, f"{folder.name}/{k}")
    return ()


def _to_npz(episodes: Sequence[Episode], folder: Path, source: Path) -> tuple[str, ...]:
    with new_folder(folder) as partial:
        for k, episode in enumerate(episodes):
            columns: dict[str, Any] = {"timestamp": episode.t}
            columns |= {name: np.asarray(c) for name, c in episode.columns.items() if not is_image(c) and c.size}
            np.savez_compressed(partial / f"episode_{k:06d}.npz", **columns)
        write_text(partial / "map.toml", _mapping_toml(episodes[0], "npz", lambda name, column: [name]))
    return _images(episodes[0])


_Exporter: TypeAlias = Callable[[Sequence[Episode], Path, Path], tuple[str, ...]]
EXPORTERS: Mapping[str, _Exporter] = {
    "lerobot-v3.0": _to_lerobot(write_dataset),
    "lerobot-v2.1": _to_lerobot(write_dataset_v21),
    "mcap": _to_mcap,
    "csv": _to_csv,
    "npz": _to_npz,
    "hdf5": _to_hdf5,
    "rosbag": _to_bag,
    "rerun": _to_rerun,
}


def _check_one_rate(episodes: Sequence[Episode]) -> None:
    rates = sorted({round(1.0 / episode.spec.dt, 1) for episode in episodes})
    if rates[-1] > 1.05 * rates[0]:
        listed = ", ".join(f"{rate:g}" for rate in rates)
        raise BadInput(
            f"These episodes have different rates ({listed} Hz), and a LeRobot dataset has one; give a rate to "
            "resample to, or choose a part of them."
        )


def _common_columns(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """The episodes with the columns they all have; what only some have is left out and noted.

    Cameras are kept where only some episodes have them: the others declare them as missing, with no time of capture.
    """
    common = {name for name in episodes[0].columns if all(name in episode for episode in episodes)}
    cameras = {n: Channel((), "", c.shape[1:], "uint8") for e in episodes for n, c in e.columns.items() if is_image(c)}
    stamps = {name for camera in cameras if (name := f"{camera}.stamp") not in common}
    kept = common | set(cameras)
    if all(set(episode.columns) <= kept and cameras.keys() <= episode.columns.keys() for episode in episodes):
        return episodes
    stamps = {name for name in stamps if any(name in episode for episode in episodes)}
    return [_with_cameras(episode, kept, cameras, stamps) for episode in episodes]


def _with_cameras(episode: Episode, kept: set[str], cameras: Mapping[str, Channel], stamps: set[str]) -> Episode:
    absent = {name: channel for name, channel in cameras.items() if name not in episode}
    extra = sorted(set(episode.columns) - kept - stamps)
    columns: dict[str, Any] = {name: column for name, column in episode.columns.items() if name not in extra}
    columns |= {name: np.full(len(episode), np.nan) for name in stamps if name not in columns}
    meta = {**episode.meta, "left out": ", ".join(extra)} if extra else dict(episode.meta)
    meta |= {"missing": ", ".join(sorted(absent))} if absent else {}
    return Episode(episode.spec.with_observations(absent), columns, meta)


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


def _mapping_toml(episode: Episode, form: str, names: Callable[[str, Any], list[str]], *, images: bool = False) -> str:
    """The mapping by which exported files are imported again."""
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
