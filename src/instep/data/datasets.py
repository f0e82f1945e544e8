"""Datasets: import, export, selection of a part, and a summary as numbers and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Channel, Spec, frozen_dataclass
from instep.report.figures import panels_figure
from instep.report.page import FigureTabs, Headline, HtmlReport, ReportImage, Section, Table

from .formats import formats
from .frames import encode_png
from .lerobot import CAMERA_PREFIX, NOMINAL, WriteOptions, channel_of, is_image
from .lerobot.writer import alike, write_dataset
from .loading import MappingSource, load_episodes
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
    return import_episodes(load_episodes(source, mapping), folder, rate=rate, options=options)


def import_episodes(
    episodes: Sequence[Episode], folder: Path, *, rate: float | None = None, options: WriteOptions | None = None
) -> ExchangeResult:
    """Write episodes as a new LeRobot v3.0 dataset; `rate` [Hz] resamples the rows."""
    if rate is not None:
        episodes = [resampled(episode, rate) for episode in episodes]
    write_dataset(alike(episodes), folder, options)
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
    """Write the episodes of a dataset in another format, by its name in `instep.data.formats`.

    `selection` takes some episodes, cameras and columns; `robot_type` is what LeRobot metadata call the robot. LeRobot
    exports hold observations and actions in single precision, as training code expects. CSV, NPZ and HDF5 come with a
    mapping by which they can be imported again; the former two hold no images.
    """
    writers = {name: known.write for name, known in formats().items() if known.write is not None}
    if form not in writers:
        raise UnknownName("export format", form, writers)
    episodes = (selection or Selection()).of(load_episodes(source, mapping))
    if robot_type:
        episodes = [episode.with_columns({}, robot_type=robot_type) for episode in episodes]
    left_out = writers[form](episodes, folder)
    return ExchangeResult(folder, len(episodes), sum(len(episode) for episode in episodes), left_out)


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
SHOWN_EPISODES, SHOWN_FRAMES, SHOWN_CURVES = 4, 6, 12
"""Most episodes on a page, evenly chosen, frames of a camera in each, and curves in a figure."""


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


def describe_dataset(episodes: Sequence[Episode], source: str | Path = "") -> DatasetInfo:
    """What is in a dataset or in recordings; `source` is their path."""
    channels: list[ChannelInfo] = []
    for name in dict.fromkeys(name for episode in episodes for name in episode.columns):
        some = [episode for episode in episodes if name in episode]
        if is_image(some[0][name]):
            kind = f"image {'x'.join(str(n) for n in some[0][name].shape[1:])}"
            channels.append(ChannelInfo(name, "", "", kind, 0.0, 255.0, len(some) / len(episodes)))
        elif some[0][name].dtype.kind in "fiub":
            channels += _number_channels(name, some)
    described = tuple(_episode(k, episode) for k, episode in enumerate(episodes))
    return DatasetInfo(str(source), episodes[0].meta.get("scene", ""), described, tuple(channels))


def dataset_page(info: DatasetInfo, episodes: Sequence[Episode]) -> HtmlReport:
    """A page of a dataset: images over time, positions and commands of some episodes, and its channels."""
    numbers = np.unique(np.linspace(0, len(episodes) - 1, SHOWN_EPISODES).round().astype(int))
    chosen = {int(k): episodes[int(k)] for k in numbers}
    strips = [
        ReportImage(_strip(column), f"episode {k}, {name.removeprefix(CAMERA_PREFIX)}")
        for k, episode in chosen.items()
        for name, column in episode.columns.items()
        if is_image(column)
    ]
    curves = {f"episode {k}": panels_figure(_curves(episode), title=f"episode {k}") for k, episode in chosen.items()}
    head = ("channel", "label", "unit", "kind", "low", "high")
    rows = [(c.name, c.label, c.unit, c.kind, f"{c.low:.4g}", f"{c.high:.4g}") for c in info.channels]
    images = [Section("Cameras", "Images at even times.", strips)] if strips else []
    sections = [*images, Section("Positions and commands", "", [FigureTabs(curves)])]
    total = f"{len(info.episodes)} episodes, {info.rows} rows, {info.seconds:.1f} s"
    channels = Section("Channels", "", [Table(head, rows)], folded=True)
    title = Path(info.source).name or "dataset"
    return HtmlReport(title, info.scene, Headline("plain", total), sections=[*sections, channels])


def _episode(index: int, episode: Episode) -> EpisodeInfo:
    steps = np.diff(episode.t) if len(episode) > 1 else np.array([episode.spec.dt])
    period = float(np.median(steps)) or episode.spec.dt
    nominal = episode.meta.get("clock") == NOMINAL
    notes = [episode.meta[name] for name in ("lost", "missing", "skipped", "absent") if episode.meta.get(name)]
    return EpisodeInfo(
        index=index, rows=len(episode), seconds=float(steps.sum()) if len(episode) > 1 else 0.0, rate=1.0 / period,
        jitter_ms=float("nan") if nominal else float(steps.std()) * 1e3, longest_ms=float(steps.max()) * 1e3,
        gaps=int((steps > GAP_PERIODS * period).sum()), complete=episode.meta.get("complete", "yes") == "yes",
        task=episode.meta.get("task", ""), note="; ".join(notes),
    )  # fmt: skip


def _number_channels(name: str, episodes: Sequence[Episode]) -> list[ChannelInfo]:
    first = episodes[0]
    values = np.concatenate([np.asarray(episode[name], float).reshape(len(episode), -1) for episode in episodes])
    channel, width, sound = channel_of(name, first.spec), values.shape[1], np.isfinite(values)
    fits = channel is not None and len(channel.labels) == width
    labels = channel.labels if channel and fits else tuple(str(k) for k in range(width))
    units = channel.units if channel and fits else ("",) * width
    low = np.where(sound, values, np.inf).min(axis=0, initial=np.inf).tolist()
    high = np.where(sound, values, -np.inf).max(axis=0, initial=-np.inf).tolist()
    shares, kind = (sound.sum(axis=0) / max(len(values), 1)).tolist(), str(first[name].dtype)
    return [ChannelInfo(name, labels[k], units[k], kind, low[k], high[k], shares[k]) for k in range(width)]


def _strip(column: Any) -> bytes:
    """Images of a camera side by side, as PNG."""
    numbers = np.linspace(0, len(column) - 1, SHOWN_FRAMES).round().astype(int)
    images = [np.asarray(column[int(k)]) for k in numbers]
    step = max(1, images[0].shape[1] // 320)
    return encode_png(np.concatenate([image[::step, ::step] for image in images], axis=1))


def _curves(episode: Episode) -> dict[str, dict[str, tuple[Array, Array]]]:
    """Positions and commands over time: one panel per joint, with the command of the same label."""
    panels: dict[str, dict[str, tuple[Array, Array]]] = {}
    for name, channel in (("q", episode.spec.q), ("action", episode.spec.action)):
        for k, label in enumerate(channel.labels if name in episode else ()):
            words = "position" if name == "q" else "command"
            panels.setdefault(label, {})[words] = (episode.t, np.asarray(episode[name])[:, k])
    return dict(list(panels.items())[:SHOWN_CURVES])
