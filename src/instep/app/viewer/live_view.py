"""Show what runs in the browser while it runs: a watcher that costs its loop the copy of one row.

Positions and channels go into shared memory. Another process of low priority reads the newest row, poses the bodies and
serves the page. The loop never waits for it, nor for a page.
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

import mujoco
import numpy as np
from rich.console import Console

from instep.app.output import has_display
from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Spec, State, W, Watcher, Wrapper, array_dataclass
from instep.evaluate.episode_batch import OUTCOMES
from instep.scene.folder import Scene

from .messages import (
    IMAGES,
    LiveRow,
    Outcome,
    PositionMap,
    all_poses,
    channel_names,
    encode,
    image_message,
    live_track,
    scene_message,
)
from .view_server import FixedContent, ViewServer

TRIES = 100
"""How often a reader tries to get a whole part."""
NUMBERS = "numbers"
"""The part of a row with the time and all numbers; the others are images."""
Shape = tuple[int, ...]


class SharedRow:
    """A row of numbers and images that one process writes and another reads, through a file in memory.

    The writer never waits: the counter of a part is odd while it is written, and a reader that meets it, or that sees
    it change, tries again.
    """

    def __init__(self, shapes: Mapping[str, Shape], path: Path | None = None):
        self.shapes, self._owned = dict(shapes), path is None
        types = {name: np.dtype(float if name == NUMBERS else np.uint8) for name in shapes}
        rooms = {name: -(-math.prod(shape) * types[name].itemsize // 8) * 8 for name, shape in shapes.items()}
        size = sum(8 + room for room in rooms.values())
        self.path = path or _new_file(size)
        """The file that the other process maps."""
        with self.path.open("r+b") as file:
            buffer = mmap.mmap(file.fileno(), size)
        self._parts: dict[str, tuple[Array, Array]] = {}
        at = 0
        for name, shape in shapes.items():
            values = np.frombuffer(buffer, types[name], math.prod(shape), at + 8)
            self._parts[name] = np.frombuffer(buffer, np.int64, 1, at), values
            at += 8 + rooms[name]

    def write(self, name: str, *given: Array) -> None:
        """Write a part, given as arrays that follow each other."""
        counter, values = self._parts[name]
        counter[0] += 1
        at = 0
        for array in given:
            values[at : at + array.size] = array.reshape(-1)
            at += array.size
        counter[0] += 1

    def read(self, name: str, seen: int) -> tuple[int, Array] | None:
        """Counter and values of a part that is newer than `seen`; None where there is none."""
        counter, values = self._parts[name]
        for _ in range(TRIES):
            before = int(counter[0])
            if before == seen:
                return None
            if before % 2 == 0:
                copied = values.copy()
                if int(counter[0]) == before:
                    return before, copied.reshape(self.shapes[name])
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


END_TIMEOUT_S = 1.0
MAX_WORLDS = 64
"""Most worlds of a batch that are shown."""


@array_dataclass
class LiveSetup:
    """What the viewer's process needs to know."""

    messages: Sequence[bytes]
    """The scene and its tracks, still empty."""
    model: mujoco.MjModel
    positions: PositionMap
    width: int
    """Positions of one world in the row."""
    worlds: int | None
    """Worlds of a grid; None where one world is shown with its channels."""
    shapes: Mapping[str, Shape]
    block: Path
    """File of the shared row."""
    port: int


class LiveView:
    """A watcher that shows a run in the browser; of a batch, `worlds` are shown as a grid."""

    def __init__(self, scene: Scene, spec: Spec, title: str, *, worlds: int | None = None, port: int = 0):
        positions = PositionMap.of(scene, spec.q.labels, "The world")
        single, width = worlds is None, len(spec.q.labels)
        vectors = {n: c for n, c in spec.observation.items() if single and c.labels and len(c.shape) == 1}
        channels = [] if worlds else [*channel_names(spec.q, ""), *channel_names(spec.action, "action")]
        channels += [name for group, channel in vectors.items() for name in channel_names(channel, group)]
        images = {
            name.removeprefix(IMAGES): channel.shape
            for name, channel in spec.observation.items()
            if single and name.startswith(IMAGES) and len(channel.shape) == 3 and channel.dtype == "uint8"
        }
        self._worlds = None if worlds is None else min(worlds, MAX_WORLDS)
        self._grid = np.full((self._worlds or 0, width + 1), np.nan)
        self._observed, self._images, self._last = list(vectors), list(images), dict[str, Array]()
        self._row = SharedRow({NUMBERS: (1 + (len(channels) if single else self._grid.size),), **images})
        count = self._worlds or 1
        side, spacing = math.ceil(math.sqrt(count)), 2.6 * max(0.1, float(scene.model.stat.extent) / 2)
        messages = [scene_message(scene)]
        messages.append(encode("info", {"title": title, "subtitle": "live", "images": self._images}))
        for world in range(count):
            offset = [spacing * (world % side), -spacing * (world // side), 0.0]
            name = f"world {world + 1}"
            messages.append(live_track(name, name, [] if world else channels, offset=offset))
        self._process, self.url = _started(
            LiveSetup(messages, scene.model, positions, width, self._worlds, self._row.shapes, self._row.path, port)
        )

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Copy one row into shared memory."""
        if self._worlds is not None:
            self._write_grid(state, observation)
            return
        seen = (np.asarray(observation[name]) for name in self._observed)
        self._row.write(NUMBERS, np.array([state.t]), state.q, np.asarray(action), *seen)
        for camera in self._images:
            image = observation.get(IMAGES + camera)
            if image is not None and image is not self._last.get(camera):
                self._last[camera] = image
                self._row.write(camera, np.asarray(image))

    def _write_grid(self, state: State, observation: Observation) -> None:
        """Positions of each world and its outcome; a world whose episode has ended stays where it ended."""
        grid, count = self._grid, min(len(self._grid), len(state.q))
        outcomes = observation.get(OUTCOMES)
        if state.t == 0:
            grid[:] = np.nan  # worlds that a smaller batch does not have are not shown
        ended = grid[:count, -1] ** 2 == 1
        grid[:count, :-1] = np.where(ended[:, None], grid[:count, :-1], state.q[:count])
        grid[:count, -1] = 0 if outcomes is None else outcomes[:count]
        self._row.write(NUMBERS, np.array([state.t]), grid)

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


def main() -> int:
    """Serve until the input ends."""
    os.nice(NICENESS)
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    setup: LiveSetup = pickle.loads(sys.stdin.buffer.read(size))  # noqa: S301 - from the process that started this one
    server, row = ViewServer(FixedContent(setup.messages), port=setup.port), SharedRow(setup.shapes, setup.block)
    over = threading.Event()
    print(server.start(), flush=True)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), over.set()), daemon=True).start()
    seen, next_image = dict.fromkeys(setup.shapes, 0), 0.0
    while not over.wait(1 / RATE):
        found = row.read(NUMBERS, seen[NUMBERS])
        if found is None:
            continue
        seen[NUMBERS], numbers = found
        images: dict[str, bytes] = {}
        if time.monotonic() >= next_image:
            next_image = time.monotonic() + 1 / IMAGE_RATE
            for camera in setup.shapes.keys() - {NUMBERS}:
                if (new := row.read(camera, seen[camera])) is not None:
                    seen[camera], image = new
                    images[camera] = image_message(camera, camera, float(numbers[0]), image)
        server.publish(_rows(setup, float(numbers[0]), numbers[1:]), images)
    server.close()
    row.close()
    return 0


def _rows(setup: LiveSetup, t: float, numbers: Array) -> dict[str, LiveRow]:
    """The moment of each world."""
    if setup.worlds is None:
        poses = all_poses(setup.model, setup.positions(numbers[: setup.width]))
        return {"world 1": LiveRow(t, poses, numbers)}
    grid, found = numbers.reshape(setup.worlds, setup.width + 1), dict[str, LiveRow]()
    shown = np.asarray(np.isfinite(grid).all(axis=1))
    poses = all_poses(setup.model, setup.positions(np.where(shown[:, None], grid, 0)[:, :-1]))
    for world, row in enumerate(grid):
        outcome = OUTCOME_NAMES[int(row[-1])] if shown[world] else "absent"
        found[f"world {world + 1}"] = LiveRow(t, poses[world][: None if shown[world] else 0], np.zeros(0), outcome)
    return found


if __name__ == "__main__":
    sys.exit(main())
