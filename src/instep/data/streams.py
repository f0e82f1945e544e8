"""Sensors with a clock of their own, kept beside a dataset at the rate they came in.

A LeRobot table has one rate; on its rows stands the newest value of such a sensor. All of its values, with their
stamps, are in `streams/episode_NUMBER.npz`, under the number the episode was recorded by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array
from instep.data.recorder.atomic import new_file

from .file_limits import read_npz

FOLDER = "streams"


def keep(folder: Path, number: int, streams: Mapping[str, tuple[Array, Array]]) -> None:
    """Store the streams of one episode."""
    if not streams:
        return
    arrays: dict[str, Any] = {}
    for name, (stamps, values) in streams.items():
        arrays |= {f"{name}.stamp": stamps, f"{name}.value": values}
    with new_file(_path(folder, number)) as partial:
        np.savez(partial, **arrays)


def streams_of(folder: Path, episode: Episode) -> dict[str, tuple[Array, Array]]:
    """The streams of an episode of a dataset: name -> stamps [n] and values [n, ...]; empty where there are none."""
    path = _path(folder, int(episode.meta.get("recorded", -1)))
    if not path.exists():
        return {}
    arrays = read_npz(path)
    names = [name.removesuffix(".stamp") for name in arrays if name.endswith(".stamp")]
    return {name: (arrays[f"{name}.stamp"], arrays[f"{name}.value"]) for name in names}


def _path(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"episode_{number:06d}.npz"
