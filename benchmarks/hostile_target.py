"""A target of hostile files: a reader of something from outside, and a sound sample of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Channel, Spec, frozen_dataclass, vector

CAMERA = "observation.images.top"
JOINTS = ["shoulder", "elbow"]
ROWS = 12


@frozen_dataclass
class Target:
    """A reader, and a sample of what it reads."""

    name: str
    sample: Callable[[Path], None]
    """Writes sound files into an empty folder."""
    read: Callable[[Path], object]
    """Reads that folder; what it raises is what a user would meet."""
    files: tuple[str, ...]
    """Files of the sample that are spoilt, the main one first."""
    command: tuple[str, ...] = ()
    """Words of a command that reads the folder, {folder} in place of its path; none where no verb takes it alone."""
    needs: str = ""
    """Library without which nothing is read."""

    @property
    def folder(self) -> str:
        """Name of the folder of its sample."""
        return self.name.replace(" ", "_")

    @property
    def installed(self) -> bool:
        """Whether its library is installed here."""
        return not self.needs or find_spec(self.needs) is not None


def episode(cameras: bool = True, seed: int = 0) -> Episode:
    """A short run of an arm with two joints."""
    rng = np.random.default_rng(seed)
    observation: dict[str, Channel] = {"observation.state": vector(JOINTS, "rad")}
    columns: dict[str, Any] = {
        "timestamp": np.arange(ROWS) / 50,
        "q": rng.normal(size=(ROWS, 2)),
        "v": rng.normal(size=(ROWS, 2)),
        "action": rng.normal(size=(ROWS, 2)),
        "observation.state": rng.normal(size=(ROWS, 2)).astype(np.float32),
    }
    if cameras:
        observation[CAMERA] = Channel((), "", (16, 24, 3), "uint8")
        columns[CAMERA] = np.full((ROWS, 16, 24, 3), 90, np.uint8)
        columns[f"{CAMERA}.stamp"] = columns["timestamp"]
    spec = Spec(0.02, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "rad"), observation)
    return Episode(spec, columns, {"task": "wave"})


def writer(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Writes one file."""
    return lambda folder: (
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content) and None
    )
