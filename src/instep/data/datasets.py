"""Import recordings as LeRobot datasets, and export datasets to other formats.

Selection: some episodes, cameras and columns of a dataset.

Dataset information: episodes, rates, jitter, gaps, channels with units and ranges, and a contact sheet as PNG.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Channel, Spec, frozen_dataclass

from .files import library, new_folder
from .formats.array_stores import hdf5_name, write_hdf5
from .formats.mcap_files import write_mcap, write_rerun
from .formats.ros_bags import write_rosbag
from .formats.table_formats import write_columns
from .lerobot.features import CAMERA_PREFIX, NOMINAL, WriteOptions, channel_of, is_image
from .lerobot.writer import write_dataset, write_dataset_v21
from .loading import MappingSource, load_episodes
from .recorder.atomic import new_file, write_text
from .recorder.recovery import streams_of
from .resample import resampled


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


NO_CAMERAS = "none"
"""In place of the names of cameras: all of them are left out."""


@frozen_dataclass
class Selection:
    """Which episodes, cameras and columns to take; what is empty takes all."""

    episodes: str = ""
    """Numbers and ranges from 0 on, separated by commas: `0,3,5:8` takes 0, 3, 5, 6 and 7."""
    cameras: tuple[str, ...] = ()
    """Names of cameras, with or without `observation.images.`; `none` takes no camera."""
    columns: tuple[str, ...] = ()
    """Names of columns that are not images; the time of each row is always taken."""
    rate: float | None = None
    """Rows per second to resample to [Hz]; as they are where None."""

    def of(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """The chosen part of some episodes; an episode that lacks a chosen camera or column is named."""
        if self.rate is not None:
            episodes = [resampled(episode, self.rate) for episode in episodes]
        numbers = _numbers(self.episodes, len(episodes)) if self.episodes else range(len(episodes))
        if not self.cameras and not self.columns:
            return [episodes[k] for k in numbers] if self.episodes else episodes
        return [self._part(episodes[k], k) for k in numbers]

    def _part(self, episode: Episode, number: int) -> Episode:
        cameras = {name for name, column in episode.columns.items() if is_image(column)}
        wanted = {name if name in cameras else CAMERA_PREFIX + name for name in self.cameras if name != NO_CAMERAS}
        for name in sorted(wanted - cameras):
            known = ", ".join(sorted(c.removeprefix(CAMERA_PREFIX) for c in cameras)) or "none"
            raise BadInput(
                f"Episode {number} has no camera {name.removeprefix(CAMERA_PREFIX)!r} (its cameras: {known}); choose "
                "other cameras with --cameras, or episodes that have it with --episodes."
            )
        numbers = [name for name in episode.columns if name not in cameras]
        for name in self.columns:
            if name not in numbers:
                raise UnknownName(f"column of numbers in episode {number}", name, numbers)
        kept = cameras if not self.cameras else wanted
        chosen = set(self.columns or numbers) | kept | {"timestamp"}
        stamps = {f"{name}.stamp": name for name in cameras}
        chosen = {name for name in chosen if stamps.get(name, name) in chosen}
        return _with_columns(episode, chosen | {stamp for stamp, name in stamps.items() if name in chosen})


def _numbers(text: str, count: int) -> list[int]:
    """The numbers of a list such as `0,3,5:8`, in its order."""
    out: list[int] = []
    for part in text.split(","):
        first, colon, last = (word.strip() for word in part.partition(":"))
        try:
            start = int(first or 0) if colon else int(first)
            stop = (int(last) if last else count) if colon else start + 1
        except ValueError:
            raise BadInput(f"--episodes {text!r} is not a list of numbers and ranges such as 0,3,5:8.") from None
        if not 0 <= start < stop <= count:
            raise BadInput(f"--episodes {text!r} asks for {part.strip()!r}, but there are episodes 0 to {count - 1}.")
        out += range(start, stop)
    if len(set(out)) < len(out):
        raise BadInput(f"--episodes {text!r} names an episode twice.")
    return out


def _with_columns(episode: Episode, names: set[str]) -> Episode:
    """The episode with some of its columns, and a spec that describes no others."""
    columns = {name: column for name, column in episode.columns.items() if name in names}
    spec, none = episode.spec, Channel(shape=(0,))
    meta = {
        key: text for key, text in episode.meta.items() if key.removesuffix(".from") in columns or ".from" not in key
    }
    missing = [name for name in meta.pop("missing", "").split(", ") if name in names]
    parts: dict[str, Channel] = {name: getattr(spec, name) for name in ("q", "v", "action", "inputs")}
    parts = {name: channel if name in columns else none for name, channel in parts.items()}
    state = spec.observation.get("observation.state")
    if "q" not in columns and "observation.state" in columns and state is not None:
        # Positions are then what other software takes them for.
        parts["q"] = replace(state, dtype="float64")
    observation = {name: channel for name, channel in spec.observation.items() if name in names}
    noted = {**meta, "missing": ", ".join(missing)} if missing else meta
    return Episode(Spec(spec.dt, observation=observation, **parts), columns, noted)


GAP_PERIODS = 1.5
"""A step longer than this many periods is a gap."""
SHEET_EPISODES = 4
"""Episodes on a contact sheet, evenly chosen."""
SHEET_FRAMES = 6
"""Frames of each camera on a contact sheet."""
SHEET_CURVES = 12
"""Most curves of one panel of a contact sheet."""
CURVES = {"q": "positions", "action": "commands"}
"""Columns of a contact sheet, in words."""


@frozen_dataclass
class EpisodeInfo:
    """One episode in numbers."""

    index: int
    rows: int
    seconds: float
    rate: float
    """Rows per second, by the median step."""
    jitter_ms: float
    """Standard deviation of the steps [ms]; NaN where times are nominal."""
    longest_ms: float
    """The longest step [ms]."""
    gaps: int
    """Steps longer than one and a half periods."""
    complete: bool
    task: str
    note: str
    """What is missing or lost."""


@frozen_dataclass
class ChannelInfo:
    """One number or image of the dataset, over all episodes."""

    name: str
    label: str
    unit: str
    kind: str
    low: float
    high: float
    finite: float
    """Share of values that are finite numbers."""


@frozen_dataclass
class DatasetInfo:
    """What is in a dataset."""

    source: str
    scene: str
    episodes: tuple[EpisodeInfo, ...]
    channels: tuple[ChannelInfo, ...]

    @property
    def rows(self) -> int:
        """Rows of all episodes."""
        return sum(episode.rows for episode in self.episodes)

    @property
    def seconds(self) -> float:
        """Length of all episodes [s]."""
        return sum(episode.seconds for episode in self.episodes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `result.json`."""
        return {**asdict(self), "rows": self.rows, "seconds": self.seconds}


def describe_dataset(
    source: str | Path, mapping: MappingSource | None = None, *, rate: float | None = None
) -> DatasetInfo:
    """What is in a dataset or a folder of recordings; resampled to `rate` [Hz] where it is given."""
    episodes = load_episodes(source, mapping)
    episodes = episodes if rate is None else [resampled(episode, rate) for episode in episodes]
    return DatasetInfo(
        str(source),
        episodes[0].meta.get("scene", ""),
        tuple(_episode(k, episode) for k, episode in enumerate(episodes)),
        tuple(_channels(episodes)),
    )


def contact_sheet(episodes: Sequence[Episode], path: Path, title: str = "") -> Path:
    """Write a PNG with images over time, positions and actions of a few episodes."""
    backend, figures = library("matplotlib.backends.backend_agg"), library("matplotlib.figure")
    chosen = _spread(episodes)
    with_images = [episode for episode in episodes if any(is_image(c) for c in episode.columns.values())]
    strips = [(e, n) for e in _spread(with_images) for n, c in e.columns.items() if is_image(c)][: 2 * SHEET_EPISODES]
    curves = [name for name in CURVES if any(name in e and e[name].shape[1] for e in chosen)]
    figure: Any = figures.Figure(figsize=(12, 0.7 + 1.35 * len(strips) + 2.6 * len(curves)), layout="constrained")
    backend.FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(strips) + len(curves), 1, height_ratios=[1.0] * len(strips) + [2.0] * len(curves))
    for k, (episode, name) in enumerate(strips):
        _strip(figure.add_subplot(grid[k]), episode, name)
    for k, name in enumerate(curves):
        _curves(figure, grid[len(strips) + k], chosen, name)
    figure.suptitle(title or f"{len(episodes)} episodes")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=100, format="png")
    return path


def _episode(index: int, episode: Episode) -> EpisodeInfo:
    steps = np.diff(episode.t) if len(episode) > 1 else np.array([episode.spec.dt])
    period = float(np.median(steps)) or episode.spec.dt
    nominal = episode.meta.get("clock") == NOMINAL
    notes = [episode.meta[name] for name in ("lost", "missing", "skipped", "absent") if episode.meta.get(name)]
    return EpisodeInfo(
        index=index,
        rows=len(episode),
        seconds=float(steps.sum()) if len(episode) > 1 else 0.0,
        rate=1.0 / period,
        jitter_ms=float("nan") if nominal else float(steps.std()) * 1e3,
        longest_ms=float(steps.max()) * 1e3,
        gaps=int((steps > GAP_PERIODS * period).sum()),
        complete=episode.meta.get("complete", "yes") == "yes",
        task=episode.meta.get("task", ""),
        note="; ".join(notes),
    )


def _channels(episodes: Sequence[Episode]) -> list[ChannelInfo]:
    out: list[ChannelInfo] = []
    for name in dict.fromkeys(name for episode in episodes for name in episode.columns):
        some = [episode for episode in episodes if name in episode]
        if is_image(some[0][name]):
            shape = "x".join(str(n) for n in some[0][name].shape[1:])
            shown = len(some) / len(episodes)
            out.append(ChannelInfo(name, "", "", f"image {shape}", 0.0, 255.0, shown))
        elif some[0][name].dtype.kind in "fiub":
            out += _numbers_2(name, some)
    return out


def _numbers_2(name: str, episodes: Sequence[Episode]) -> list[ChannelInfo]:
    first = episodes[0]
    channel = channel_of(name, first.spec)
    width = int(np.prod(first[name].shape[1:], dtype=int))
    labels = channel.labels if channel and len(channel.labels) == width else tuple(str(k) for k in range(width))
    units = channel.units if channel and len(channel.labels) == width else ("",) * width
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    finite, total = 0, 0
    for episode in episodes:
        values = np.asarray(episode[name], float).reshape(len(episode), -1)
        sound = np.isfinite(values)
        low = np.minimum(low, np.where(sound, values, np.inf).min(axis=0, initial=np.inf))
        high = np.maximum(high, np.where(sound, values, -np.inf).max(axis=0, initial=-np.inf))
        finite, total = finite + sound.sum(axis=0), total + len(values)
    shares: Mapping[int, float] = dict(enumerate(np.asarray(finite) / max(total, 1)))
    kind = str(first[name].dtype)
    return [
        ChannelInfo(name, labels[k], units[k], kind, float(low[k]), float(high[k]), float(shares[k]))
        for k in range(width)
    ]


def _spread(episodes: Sequence[Episode]) -> list[Episode]:
    if not episodes:
        return []
    return [episodes[int(k)] for k in np.unique(np.linspace(0, len(episodes) - 1, SHEET_EPISODES).round())]


def _strip(axes: Any, episode: Episode, name: str) -> None:
    column = episode.columns[name]
    numbers = np.linspace(0, len(column) - 1, SHEET_FRAMES).round().astype(int)
    images = [np.asarray(column[int(k)]) for k in numbers]
    step = max(1, images[0].shape[1] // 320)
    axes.imshow(np.concatenate([image[::step, ::step] for image in images], axis=1))
    axes.set_axis_off()
    axes.set_title(", ".join(filter(None, (_name(episode), name.removeprefix("observation.images.")))), fontsize=8)


def _name(episode: Episode) -> str:
    return f"episode {episode.meta['index']}" if "index" in episode.meta else ""


def _curves(figure: Any, cell: Any, episodes: Sequence[Episode], name: str) -> None:
    part = cell.subgridspec(1, len(episodes))
    for k, episode in enumerate(episodes):
        axes = figure.add_subplot(part[k])
        values = np.asarray(episode.columns[name]) if name in episode else np.zeros((len(episode), 0))
        every = max(1, len(values) // 2000)
        channel = episode.spec.q if name == "q" else episode.spec.action
        shown = min(values.shape[1], SHEET_CURVES)
        for j in range(shown):
            axes.plot(episode.t[::every], values[::every, j], linewidth=0.8, label=channel.labels[j])
        if k == 0 and shown:
            axes.legend(fontsize=6, ncols=1 + shown // 7, framealpha=0.7)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(_name(episode), fontsize=8)
        axes.set_xlabel("time [s]", fontsize=7)
        units = ", ".join(filter(None, dict.fromkeys(channel.units[:shown])))
        axes.set_ylabel(f"{CURVES[name]} [{units}]" if units else CURVES[name], fontsize=7)
