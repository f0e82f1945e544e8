"""Dataset information: episodes, rates, jitter, gaps, channels with units and ranges, and a contact sheet as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.records import frozen_dataclass

from .files import library
from .lerobot.features import NOMINAL, channel_of, is_image
from .loading import MappingSource, load_episodes
from .recorder.atomic import new_file
from .resample import resampled

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
            out += _numbers(name, some)
    return out


def _numbers(name: str, episodes: Sequence[Episode]) -> list[ChannelInfo]:
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
