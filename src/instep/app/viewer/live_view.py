"""One row in shared memory: a control loop writes it, the viewer's process reads the newest.

The writer never waits: a counter is odd while a row is written, and a reader that meets it, or that sees it change,
tries again.

What runs, in the browser while it runs: a watcher that costs its loop a copy of one row.

Positions and channels go into shared memory; kinematics, images and the server are another process, of low priority.
The loop never waits for it, nor for whoever watches.

`--view` of commands that run something: a live view beside the run, opened in the browser where there is one.

The viewer's process beside a run: reads the newest row, poses the bodies, and serves the page.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from rich.console import Console

from instep.app.verbs.runs import has_display
from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Spec, State, W, Watcher, Wrapper, array_dataclass, frozen_dataclass
from instep.evaluate.episode_batch import OUTCOMES
from instep.scene.folder import Scene

from .contents import IMAGES
from .messages import encode, image_message
from .tracks import channel_names, scene_message
from .view_server import LiveRow, Outcome, ViewServer

TRIES = 100
"""How often a reader tries to get a whole row."""


@frozen_dataclass
class RowLayout:
    """What a row holds, in this order: a counter, the time, numbers, then images."""

    numbers: int
    images: Mapping[str, tuple[int, int, int]]
    """Camera -> shape of its images."""

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return 16 + 8 * self.numbers + sum(8 + _room(shape) for shape in self.images.values())


class SharedRow:
    """The block, on either side."""

    def __init__(self, layout: RowLayout, path: Path | None = None):
        self.layout = layout
        self._owned = path is None
        self.path = _new_file(layout.size) if path is None else path
        """The file that the other process maps."""
        with self.path.open("r+b") as file:
            buffer = mmap.mmap(file.fileno(), layout.size)
        self._counter = np.frombuffer(buffer, np.int64, 1)
        self._t = np.frombuffer(buffer, np.float64, 1, 8)
        self._numbers = np.frombuffer(buffer, np.float64, layout.numbers, 16)
        at = 16 + 8 * layout.numbers
        self._images: dict[str, tuple[Array, Array]] = {}
        for camera, shape in layout.images.items():
            count = int(np.prod(shape))
            pixels = np.frombuffer(buffer, np.uint8, count, at + 8).reshape(shape)
            self._images[camera] = np.frombuffer(buffer, np.int64, 1, at), pixels
            at += 8 + _room(shape)

    def write(self, t: float, parts: Sequence[Array]) -> None:
        """Write the time and the numbers, given as parts that follow each other."""
        self._counter[0] += 1
        self._t[0] = t
        at = 0
        for part in parts:
            self._numbers[at : at + part.size] = part.reshape(-1)
            at += part.size
        self._counter[0] += 1

    def write_image(self, camera: str, image: Array) -> None:
        """Write an image; its own counter says that it is new."""
        counter, pixels = self._images[camera]
        counter[0] += 1
        pixels[:] = image
        counter[0] += 1

    def read(self, seen: int) -> tuple[int, float, Array] | None:
        """Counter, time and numbers of a row that is newer than `seen`; None where there is none."""
        for _ in range(TRIES):
            before = int(self._counter[0])
            if before % 2 or before == seen:
                if before == seen:
                    return None
                continue
            t, numbers = float(self._t[0]), self._numbers.copy()
            if int(self._counter[0]) == before:
                return before, t, numbers
        return None

    def read_image(self, camera: str, seen: int) -> tuple[int, Array] | None:
        """Counter and pixels of an image that is newer than `seen`; None where there is none."""
        counter, pixels = self._images[camera]
        for _ in range(TRIES):
            before = int(counter[0])
            if before == seen or before % 2:
                return None
            image = pixels.copy()
            if int(counter[0]) == before:
                return before, image
        return None

    def close(self) -> None:
        """Remove the file, where this side made it; the mapping goes with its last user."""
        if self._owned:
            self.path.unlink(missing_ok=True)


def _new_file(size: int) -> Path:
    """A file of zeros in memory where the system offers that: a disk could make a writer wait."""
    memory = Path("/dev/shm")  # noqa: S108 - the file is made by mkstemp
    descriptor, name = tempfile.mkstemp(prefix="instep-view-", dir=memory if memory.is_dir() else None)
    os.close(descriptor)
    os.truncate(name, size)
    return Path(name)


def _room(shape: tuple[int, int, int]) -> int:
    return -(-int(np.prod(shape)) // 8) * 8


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
    command = [sys.executable, "-m", "instep.app.viewer.live_view"]
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


@contextmanager
def live_view(
    wanted: bool, scene: Scene | None, spec: Spec, title: str, *, paced: bool = False, worlds: int | None = None
) -> Generator[list[Watcher]]:
    """The watchers that show a run: one where it is wanted, else none. A `paced` run is held to real time.

    Of a batch, `worlds` are shown as a grid.
    """
    if not wanted:
        yield []
        return
    if scene is None:
        raise BadInput("--view shows a scene, and this world names none; give it with --scene.")
    with LiveView(scene, spec, title, worlds=worlds) as live:
        open_in_browser(live.url)
        yield [live, Pace()] if paced else [live]


def open_in_browser(url: str) -> None:
    """Print an address, and open it where there is a display."""
    Console(stderr=True, highlight=False).print(f"In the browser: {url}", soft_wrap=True, markup=False)
    if sys.stderr.isatty() and has_display():
        webbrowser.open(url)


class Pace:
    """A watcher that holds a simulation to real time, so that it can be seen."""

    def __init__(self) -> None:
        self._begin: float | None = None

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Sleep until the wall clock has come as far as the simulation."""
        now = time.monotonic()
        if self._begin is None or state.t == 0:
            self._begin = now - float(state.t)
        time.sleep(max(0.0, self._begin + float(state.t) - now))


@array_dataclass
class Viewed(Wrapper[W]):
    """A world whose every step is shown to watchers."""

    watchers: list[Watcher]

    def step(self, state: State, action: Array) -> State:
        """The state one control period later, shown."""
        after = self.world.step(state, action)
        observation = self.world.observe(after)
        for watcher in self.watchers:
            watcher(after, observation, action)
        return after


RATE = 60.0
"""Most rows per second that are shown [Hz]."""
IMAGE_RATE = 10.0
"""Most images per second and camera [Hz]."""
NICENESS = 5
"""It gives way to the loop that it watches."""
OUTCOME_NAMES: dict[int, Outcome] = {0: "", 1: "success", -1: "failure"}


class LiveContent:
    """The scene and its live tracks; rows are published by the server."""

    gaussians = False

    def __init__(self, setup: LiveSetup):
        count = setup.worlds or 1
        side, spacing = math.ceil(math.sqrt(count)), 2.6 * max(0.1, float(setup.model.stat.extent) / 2)
        self._messages = [setup.scene]
        info = {"title": setup.title, "subtitle": "live", "images": list(setup.layout.images)}
        self._messages.append(encode("info", info))
        for world in range(count):
            offset = [spacing * (world % side), -spacing * (world // side), 0.0]
            header: dict[str, Any] = {
                "id": f"world {world + 1}", "label": f"world {world + 1}", "role": "main", "live": True,
                "channels": list(setup.channels) if world == 0 else [], "offset": offset,
            }  # fmt: skip
            self._messages.append(encode("track", header))

    def opening(self) -> Sequence[bytes]:
        """The scene and the tracks, still empty."""
        return self._messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Nothing can be asked of what is live."""
        return ()


def main() -> int:
    """Serve until the input ends."""
    os.nice(NICENESS)
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    setup = pickle.loads(sys.stdin.buffer.read(size))  # noqa: S301 - from the process that started this one
    server = ViewServer(LiveContent(setup), port=setup.port)
    row = SharedRow(setup.layout, setup.block)
    over = threading.Event()
    print(server.start(), flush=True)
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    data, seen = mujoco.MjData(setup.model), 0
    images, next_image = dict.fromkeys(setup.layout.images, 0), 0.0
    while not over.wait(1 / RATE):
        found = row.read(seen)
        if found is None:
            continue
        seen, t, numbers = found
        shown: dict[str, bytes] = {}
        if time.monotonic() >= next_image:
            next_image = time.monotonic() + 1 / IMAGE_RATE
            shown = _new_images(row, images, t)
        server.publish(_rows(setup, data, t, numbers), shown)
    server.close()
    row.close()
    return 0


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()


def _rows(setup: LiveSetup, data: mujoco.MjData, t: float, numbers: Array) -> dict[str, LiveRow]:
    if setup.worlds is None:
        return {"world 1": LiveRow(t, _poses(setup, data, numbers[: setup.width]), numbers)}
    found: dict[str, LiveRow] = {}
    for world, row in enumerate(numbers.reshape(setup.worlds, setup.width + 1)):
        shown = np.isfinite(row).all()
        poses = _poses(setup, data, row[:-1]) if shown else np.zeros((0, 7))
        outcome = OUTCOME_NAMES[int(row[-1])] if shown else "absent"
        found[f"world {world + 1}"] = LiveRow(t, poses, np.zeros(0), outcome)
    return found


def _poses(setup: LiveSetup, data: mujoco.MjData, q: Array) -> Array:
    data.qpos[:] = setup.start
    data.qpos[[i for i, _ in setup.places]] = q[[k for _, k in setup.places]]
    mujoco.mj_kinematics(setup.model, data)
    return np.concatenate([data.xpos, data.xquat], axis=1)


def _new_images(row: SharedRow, seen: dict[str, int], t: float) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for camera, counter in seen.items():
        if (new := row.read_image(camera, counter)) is not None:
            seen[camera], image = new
            found[camera] = image_message(camera, camera, t, image)
    return found


if __name__ == "__main__":
    sys.exit(main())
