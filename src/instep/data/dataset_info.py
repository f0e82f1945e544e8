"""What is in a dataset: episodes, rates, jitter, gaps, and each channel with its unit and range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.data.lerobot.features import NOMINAL, channel_of, is_image

from .datasets import load

GAP = 1.5
"""A step longer than this many periods is a gap."""


@dataclass(frozen=True, slots=True)
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
    """What is missing or lost, in words."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


def describe(source: str | Path, as_: str | None = None) -> DatasetInfo:
    """What is in a dataset or a folder of recordings: the verb `instep data info`."""
    episodes = load(source, as_)
    if not episodes:
        raise BadInput(f"{str(source)!r} holds no episodes.")
    return DatasetInfo(
        str(source),
        episodes[0].meta.get("scene", ""),
        tuple(_episode(k, episode) for k, episode in enumerate(episodes)),
        tuple(_channels(episodes)),
    )


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
        gaps=int((steps > GAP * period).sum()),
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
