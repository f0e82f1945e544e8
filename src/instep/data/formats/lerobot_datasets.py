"""LeRobot datasets as a format: episodes as raw columns in, datasets of one rate out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import Channel
from instep.data.formats import Format, Writer
from instep.data.lerobot.features import WriteOptions, is_image
from instep.data.lerobot.reader import INFO, read_lerobot
from instep.data.lerobot.writer import write_dataset, write_dataset_v21
from instep.data.mapping import RawRun


def _read(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """The episodes of a dataset; headers `names:COLUMN` hold the names that it declares."""
    for episode in read_lerobot(path):
        spec = episode.spec
        channels = {"action": spec.action, **spec.observation}
        labels = {f"names:{name}": json.dumps(channel.labels) for name, channel in channels.items() if channel.labels}
        header = {**labels, "rate": repr(1.0 / spec.dt), **episode.meta}
        yield RawRun(f"episode {episode.meta['index']}", episode.columns, header)


def _writer(write: Callable[..., Path]) -> Writer:
    def to_lerobot(episodes: Sequence[Episode], folder: Path) -> tuple[str, ...]:
        write(alike(episodes), folder, WriteOptions(float32=True))
        return ()

    return to_lerobot


LEROBOT = Format("a LeRobot dataset", _read, contents=(INFO,), isolated=False)
LEROBOT_V30 = Format("LeRobot v3.0", write=_writer(write_dataset))
LEROBOT_V21 = Format("LeRobot v2.1", write=_writer(write_dataset_v21))


def alike(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """The episodes with the columns they all have; what only some have is left out and noted.

    A dataset has one rate, so episodes of several are refused. Cameras are kept where only some episodes have them: the
    others declare them as missing, with no time of capture.
    """
    rates = sorted({round(1.0 / episode.spec.dt, 1) for episode in episodes})
    if rates[-1] > 1.05 * rates[0]:
        listed = ", ".join(f"{rate:g}" for rate in rates)
        raise BadInput(
            f"These episodes have different rates ({listed} Hz), and a LeRobot dataset has one; give a rate to "
            "resample to, or choose a part of them."
        )
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
