"""Films of a simulated robot in a file, without loss, for machines that cannot render.

From one picture to the next a few hundred pixels change; their places and new colours are kept.
"""

from __future__ import annotations

import lzma
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array
from instep.physics.mujoco_cameras import Studio
from instep.physics.open_world import open_world
from instep.scene.folder import Scene
from instep.twin.warmup import Taken

PICTURE = "picture."


def pack(path: Path, scene: Scene, episode: Episode) -> None:
    """Keep an episode and the clean pictures of all cameras of its scene."""
    kept: dict[str, Any] = {f"column.{name}": column for name, column in episode.columns.items()}
    studio = Studio(scene)
    try:
        for name, camera in scene.cameras.items():
            pictures = np.stack([studio.picture(q, camera) for q in episode.q]).reshape(len(episode), -1, 3)
            changed = [np.flatnonzero((b != a).any(axis=-1)) for a, b in pairwise(pictures)]
            gaps = np.concatenate([np.diff(where, prepend=0) for where in changed]).astype(np.uint32)
            colours = np.concatenate([pictures[k + 1][where] for k, where in enumerate(changed)])
            kept[f"{PICTURE}{name}.first"] = pictures[0].reshape(camera.height, camera.width, 3)
            kept[f"{PICTURE}{name}.counts"] = np.array([len(where) for where in changed])
            for part, values in (("gaps", gaps), ("colours", colours)):
                kept[f"{PICTURE}{name}.{part}"] = np.frombuffer(lzma.compress(values.tobytes()), np.uint8)
    finally:
        studio.close()
    np.savez_compressed(path, **kept)


def unpack(path: Path, scene: Scene) -> tuple[Episode, Taken]:
    """The episode, and its pictures."""
    with np.load(path, allow_pickle=False) as file:
        parts = {name: file[name] for name in file.files}
    columns = {name.removeprefix("column."): part for name, part in parts.items() if name.startswith("column.")}
    episode = Episode(replace(open_world(scene).spec, dt=scene.dt), columns)
    films: dict[str, Array] = {}

    def taken(name: str, row: int) -> Array:
        if name not in films:
            films.clear()  # one camera at a time
            films[name] = _pictures(parts, name)
        return films[name][row]

    return episode, taken


def _pictures(parts: dict[str, Array], name: str) -> Array:
    first, counts = parts[f"{PICTURE}{name}.first"], parts[f"{PICTURE}{name}.counts"]
    gaps = np.frombuffer(lzma.decompress(parts[f"{PICTURE}{name}.gaps"].tobytes()), np.uint32)
    colours = np.frombuffer(lzma.decompress(parts[f"{PICTURE}{name}.colours"].tobytes()), np.uint8).reshape(-1, 3)
    out = np.empty((len(counts) + 1, *first.shape), np.uint8)
    out[0], at = first, 0
    for k, n in enumerate(counts.tolist()):
        out[k + 1] = out[k]
        out[k + 1].reshape(-1, 3)[np.cumsum(gaps[at : at + n])] = colours[at : at + n]
        at += n
    return out
