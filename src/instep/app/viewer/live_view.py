"""What runs, in the browser while it runs: a watcher that costs its loop a copy of one row.

Positions and channels go into shared memory; kinematics, images and the server are another process, of low priority.
The loop never waits for it, nor for whoever watches.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array, Observation, Spec, State
from instep.evaluate.episode_batch import OUTCOMES
from instep.scene.folder import Scene

from .camera_images import IMAGES
from .shapes import scene_message
from .shared_row import RowLayout, SharedRow
from .tracks import channel_names

END_TIMEOUT_S = 1.0
MAX_WORLDS = 64
"""Most worlds of a batch that are shown."""


@array_dataclass
class LiveSetup:
    """What the viewer's process needs to know."""

    scene: bytes
    """The scene, as a message."""
    model: mujoco.MjModel
    start: Array
    """Positions [nq] of what is not reported."""
    places: Sequence[tuple[int, int]]
    """Coordinates of the scene and where the row holds them."""
    width: int
    """Positions of one world in the row."""
    worlds: int | None
    """Worlds of a grid; None where one world is shown with its channels."""
    channels: Sequence[dict[str, str]]
    layout: RowLayout
    block: Path
    """File of the shared row."""
    title: str
    port: int


class LiveView:
    """A watcher that shows a run in the browser; of a batch, `worlds` are shown as a grid."""

    def __init__(self, scene: Scene, spec: Spec, title: str, *, worlds: int | None = None, port: int = 0):
        places = {label: i for i, label in enumerate(spec.q.labels)}
        shared = [(i, places[label]) for i, label in enumerate(scene.spec.q.labels) if label in places]
        if not shared:
            raise BadInput(f"The world reports no position of scene {scene.name!r}; give the --scene of this robot.")
        self._worlds = None if worlds is None else min(worlds, MAX_WORLDS)
        self._observed = [
            name for name, channel in spec.observation.items() if channel.labels and len(channel.shape) == 1
        ] if worlds is None else []  # fmt: skip
        self._images = _image_shapes(spec) if worlds is None else {}
        self._last: dict[str, Any] = {}
        channels = _channels(spec, self._observed) if worlds is None else []
        width = len(spec.q.labels)
        self._grid = np.full((self._worlds or 0, width + 1), np.nan)
        self._layout = RowLayout(len(channels) if worlds is None else self._grid.size, self._images)
        self._row = SharedRow(self._layout)
        setup = LiveSetup(
            scene_message(scene), scene.model, scene.start(0)[0], shared, width, self._worlds, channels, self._layout,
            self._row.path, title, port,
        )  # fmt: skip
        self._process, self.url = _started(setup)

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Copy one row into shared memory."""
        if self._worlds is not None:
            self._write_grid(state, observation)
            return
        parts = [state.q, np.asarray(action), *(np.asarray(observation[name]) for name in self._observed)]
        self._row.write(float(state.t), parts)
        for camera in self._images:
            image = observation.get(IMAGES + camera)
            if image is not None and image is not self._last.get(camera):
                self._last[camera] = image
                self._row.write_image(camera, np.asarray(image))

    def _write_grid(self, state: State, observation: Observation) -> None:
        """Positions of each world and its outcome; a world whose episode has ended stays where it ended."""
        grid, count = self._grid, min(len(self._grid), len(state.q))
        outcomes = observation.get(OUTCOMES)
        if state.t == 0:
            grid[:] = np.nan  # worlds that a smaller batch does not have are not shown
        ended = grid[:count, -1] ** 2 == 1
        grid[:count, :-1] = np.where(ended[:, None], grid[:count, :-1], state.q[:count])
        grid[:count, -1] = 0 if outcomes is None else outcomes[:count]
        self._row.write(float(state.t), [grid])

    @property
    def pid(self) -> int:
        """The number of the viewer's process."""
        return self._process.pid

    def close(self) -> None:
        """Let the viewer's process end, without waiting long for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()  # it ends with its input
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        self._row.close()

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _started(setup: LiveSetup) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-m", "instep.app.viewer.live_process"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
    assert process.stdin is not None and process.stdout is not None  # noqa: S101
    data = pickle.dumps(setup)
    process.stdin.write(len(data).to_bytes(8, "little") + data)
    process.stdin.flush()
    url = process.stdout.readline().decode().strip()
    if not url:
        process.wait(10)
        raise BadInput("The viewer's process did not start; 'instep doctor' says whether the web viewer was built.")
    return process, url


def _channels(spec: Spec, observed: Sequence[str]) -> list[dict[str, str]]:
    listed = [("", spec.q), ("action", spec.action), *((name, spec.observation[name]) for name in observed)]
    return [name for group, channel in listed for name in channel_names(channel, group)]


def _image_shapes(spec: Spec) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for name, channel in spec.observation.items():
        if name.startswith(IMAGES) and len(channel.shape) == 3 and channel.dtype == "uint8":
            found[name.removeprefix(IMAGES)] = (channel.shape[0], channel.shape[1], channel.shape[2])
    return found
