"""Cameras of a simulated robot at a rate of their own, rendered by another process outside the control loop.

Rendering without a graphics card takes longer than a control period. The loop hands over a state and goes on; a
finished image carries the stamp of the state it shows, so it is as late as a real camera's. Lens distortion, light and
sensor noise are applied in one compiled pass, so that the cameras keep their rate.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, BinaryIO

import numpy as np
from numba import njit

from instep.core.errors import LinkLost
from instep.core.processes import main_thread_ended
from instep.core.world import Array, Channel, Spec, array_dataclass, options_dataclass
from instep.evaluate.perturbed_robot import distorted
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer
from instep.robot import Driver, Reading, WrappedDriver
from instep.scene.camera import Camera, distort
from instep.scene.camera_files import calibrated_scene
from instep.scene.folder import Scene

# pyright: basic, reportUnknownParameterType=false
# Numba compiles the pass; its decorators have no types.


BANK = 4
"""Noise images that are sampled beforehand; each frame uses one, shifted."""
ROUNDS = 20
"""Rounds of the search for a pixel's ideal place; each gains a factor of the distortion."""


class Lens:
    """Lens distortion, light and sensor noise of a camera, applied to a rendered image."""

    def __init__(self, camera: Camera, effects: ImageEffects, seed: int):
        x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
        measured = (np.stack([x, y], -1) - camera.centre) / camera.focal
        ideal = measured.copy()
        for _ in range(ROUNDS if any(camera.distortion) else 0):
            ideal = np.clip(measured - (distort(ideal, camera.distortion) - ideal), -100.0, 100.0)
        self._at: Array = (ideal * camera.focal + camera.centre - 0.5).astype(np.float32)
        rng, size = np.random.default_rng((seed, 0x1E)), camera.height * camera.width * 3
        self._noise: Array = rng.normal(0.0, effects.sigma, BANK * size).astype(np.float32)
        self._starts: Array = rng.integers(0, (BANK - 1) * size, 4096)
        self._light: Array = np.asarray(effects.gain * np.asarray(effects.tint), np.float32)

    def apply(self, image: Array, number: int) -> Array:
        """The image as this camera shows it [height, width, 3]; the noise is that of the number."""
        start = int(self._starts[number % len(self._starts)])
        return _apply_lens(image, self._at, self._light, self._noise, start)


@njit(cache=True, nogil=True, error_model="numpy")
def _apply_lens(image, at, light, noise, start):  # pragma: no cover - compiled
    height, width = image.shape[:2]
    out = np.empty_like(image)
    for i in range(height):
        for j in range(width):
            x, y = at[i, j, 0], at[i, j, 1]
            inside = x >= 0 and y >= 0 and x <= width - 1 and y <= height - 1
            x0, y0 = min(max(int(x), 0), width - 2), min(max(int(y), 0), height - 2)
            fx, fy = x - x0, y - y0
            for c in range(3):
                value = 0.0
                if inside:
                    top = image[y0, x0, c] * (1 - fx) + image[y0, x0 + 1, c] * fx
                    bottom = image[y0 + 1, x0, c] * (1 - fx) + image[y0 + 1, x0 + 1, c] * fx
                    value = top * (1 - fy) + bottom * fy
                value = value * light[c] + noise[start + (i * width + j) * 3 + c]
                out[i, j, c] = np.uint8(min(max(value + 0.5, 0.0), 255.0))
    return out


IMAGES = "observation.images."
IMAGE_TIMEOUT_S = 60.0
"""How long the first image may take [s]: a renderer is loaded for it."""


ENDED = "The process that renders the simulated robot's cameras has ended."


@options_dataclass
class RenderJob:
    """What is rendered: cameras of a scene, their lens distortion and light."""

    scene: str
    """Name of a shipped scene, a scene folder, or a model file."""
    words: tuple[str, ...]
    """What --cameras was given: names of cameras, and a calibration file perhaps."""
    cameras: tuple[str, ...]
    """The cameras that these stand for."""
    effects: ImageEffects
    distortion: float = 0.0
    """Barrel distortion of lenses that the scene takes for perfect."""
    rate: float = 10.0
    """Images per second, at most."""


@array_dataclass
class CameraImages:
    """What all cameras showed at one time."""

    stamp: float
    shown: Mapping[str, Array]


class RenderProcess:
    """A process that renders; `ask` never waits, `wait` does."""

    def __init__(self, crew: RenderJob, cameras: Mapping[str, Camera]):
        self._crew, self._cameras = crew, cameras
        self._latest: CameraImages | None = None
        self._busy, self._round = False, 0
        self._ready = threading.Condition()
        command = [sys.executable, "-m", "instep.app.simulated_cameras", json.dumps(asdict(crew))]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
        self._reader = threading.Thread(target=self._read, name="instep-cameras", daemon=True)
        self._reader.start()

    @property
    def latest(self) -> CameraImages | None:
        """The newest images since the last `wait`; raises where the process has ended."""
        if self.ended:
            raise LinkLost(ENDED)
        return self._latest

    @property
    def ended(self) -> bool:
        """Whether the process has ended, however it did."""
        return self._child.poll() is not None or main_thread_ended(self._child.pid)

    def ask(self, t: float, q: Array) -> bool:
        """Have images taken of a state, unless the last ones are still being made; says whether they are."""
        with self._ready:
            if self._busy:
                return False
            self._send(t, q)
            return True

    def wait(self, t: float, q: Array) -> None:
        """Forget all images and take new ones, however long that takes."""
        with self._ready:
            self._round += 1
            self._latest = None
            if not self._ready.wait_for(lambda: not self._busy or self.ended, IMAGE_TIMEOUT_S) or self.ended:
                self._child.kill()  # the next reset starts another one
                raise LinkLost(ENDED)
            self._send(t, q)
            if not self._ready.wait_for(lambda: self._latest is not None or self.ended, IMAGE_TIMEOUT_S) or self.ended:
                raise LinkLost(
                    "The process that renders the simulated robot's cameras gave no image; try `instep doctor`."
                )

    def close(self) -> None:
        """End the process."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:  # it was stopped, or hangs in a graphics library
            self._child.kill()
            self._child.wait()
        self._reader.join(1.0)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _send(self, t: float, q: Array) -> None:
        assert self._child.stdin is not None  # noqa: S101  # asked for above
        self._busy = True
        try:
            self._child.stdin.write(struct.pack("<qd", self._round, t) + np.asarray(q, "<f8").tobytes())
        except BrokenPipeError:
            raise LinkLost(ENDED) from None

    def _read(self) -> None:
        stream: Any = self._child.stdout
        sizes = {name: camera.height * camera.width * 3 for name, camera in self._cameras.items()}
        while head := _exactly(stream, 16):
            number, stamp = struct.unpack("<qd", head)
            shown: dict[str, Array] = {}
            for name, camera in self._cameras.items():
                data = _exactly(stream, sizes[name])
                if not data:
                    break
                shown[name] = np.frombuffer(data, np.uint8).reshape(camera.height, camera.width, 3)
            with self._ready:
                self._busy = False
                if number == self._round and len(shown) == len(sizes):
                    self._latest = CameraImages(stamp, shown)
                self._ready.notify_all()
        with self._ready:
            self._ready.notify_all()


class CameraDriver(WrappedDriver):
    """A driver with cameras at their own rate, rendered in another process from the true state of the inner driver."""

    def __init__(self, inner: Driver, crew: RenderJob, cameras: Mapping[str, Camera]):
        super().__init__(inner)
        self._crew, self._cameras = crew, {name: cameras[name] for name in crew.cameras}
        self._filming = RenderProcess(crew, self._cameras)
        self._asked = -np.inf
        self._begun = False

    def __enter__(self) -> CameraDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self._filming.close()

    @property
    def spec(self) -> Spec:
        """What the numbers mean, images included."""
        axes = ("height", "width", "channels")
        shown = {IMAGES + n: Channel(axes, "", (c.height, c.width, 3), "uint8") for n, c in self._cameras.items()}
        return self._inner.spec.with_observations(shown)

    def read(self) -> Reading:
        """The newest state, and the newest images with the time they were taken at."""
        reading = self._inner.read()
        if not self._begun:
            self._filming.wait(reading.t, reading.q)
            self._begun, self._asked = True, reading.t
        elif reading.t - self._asked >= 1 / self._crew.rate - 1e-9 and self._filming.ask(reading.t, reading.q):
            self._asked = reading.t
        latest = self._filming.latest
        if latest is None:
            return reading
        seen = {**reading.seen, **{IMAGES + name: image for name, image in latest.shown.items()}}
        stamps = {**reading.stamps, **{IMAGES + name: latest.stamp for name in latest.shown}}
        return replace(reading, seen=seen, stamps=stamps)

    def reset(self, seed: int) -> None:
        """Begin anew, with new images; a process of cameras that has ended is started again."""
        self._inner.reset(seed)
        if self._filming.ended:
            self._filming.close()
            self._filming = RenderProcess(self._crew, self._cameras)
        self._begun = False


def _exactly(stream: BinaryIO, size: int) -> bytes:
    """So many bytes of a pipe; none at its end."""
    parts, left = list[bytes](), size
    while left:
        part = stream.read(left)
        if not part:
            return b""
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def render_requests(words: str) -> None:
    """Render what is asked for on the standard input until that ends."""
    table = json.loads(words)
    scene, _ = calibrated_scene(Scene.load(table["scene"]), table["words"])
    effects = ImageEffects(table["effects"]["gain"], tuple(table["effects"]["tint"]), table["effects"]["sigma"])
    cameras = [scene.cameras[name] for name in table["cameras"]]
    lenses = [Lens(distorted(camera, table["distortion"]), effects, index) for index, camera in enumerate(cameras)]
    renderer, number = MujocoRenderer(scene), 0
    # sys.stdout.buffer writes a part only where PYTHONUNBUFFERED is set and a signal comes; and what a library prints
    # must not come between images.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    size = 16 + 8 * scene.model.nq
    while request := _exactly(sys.stdin.buffer, size):
        q = np.frombuffer(request[16:], "<f8")
        parts = [request[:16]]
        for camera, lens in zip(cameras, lenses, strict=True):
            clean = renderer.render(q, replace(camera, distortion=()))
            parts.append(lens.apply(clean, number).tobytes())
        number += 1
        out.write(b"".join(parts))
        out.flush()


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the one who asks
    render_requests(sys.argv[1])
