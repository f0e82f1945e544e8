"""The verb robot: a simulated robot behind a real robot's link, with imperfect sensors, and cameras at their own rate.

Rendering without a graphics card takes longer than a control period, so another process renders. The loop hands over a
state and goes on; a finished image carries the stamp of the state it shows, so it is as late as a real camera's. Lens
distortion, light and sensor noise are applied in one compiled pass, so that the cameras keep their rate.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

import numpy as np
from numba import njit

from instep.app.arguments import Expert, Options, SceneArg, kept_token, write_secret
from instep.app.output import say
from instep.app.side_process import SideProcess
from instep.app.viewer.live_view import Viewed, live_view
from instep.core.errors import BadInput, LinkLost, UnknownName
from instep.core.processes import main_thread_ended
from instep.core.world import Array, Channel, Spec, options_dataclass
from instep.evaluate.perturbed_robot import Perturbation, distorted, hidden_appearance, simulate_robot
from instep.physics.engines import Engine
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer
from instep.robot import (
    Driver,
    ObstacleChecks,
    Reading,
    SafetyOptions,
    ServerOptions,
    WorldDriver,
    WrappedDriver,
    scene_limits,
    serve,
)
from instep.scene.camera import Camera, distort
from instep.scene.camera_files import calibrated_scene
from instep.scene.folder import Scene

# pyright: basic, reportUnknownParameterType=false
# Numba compiles the pass; its decorators have no types.

BANK = 4
"""Noise images that are sampled beforehand; each frame uses one, shifted."""
ROUNDS = 20
"""Rounds of the search for a pixel's ideal place; each gains a factor of the distortion."""


IMAGES = "observation.images."
IMAGE_TIMEOUT_S = 60.0
"""How long the first image may take [s]: a renderer is loaded for it."""


@options_dataclass
class RobotArgs:
    """Options of `instep robot`."""

    engine: Engine = "rapier"
    """physics of the simulated robot; another than the simulator's, so that the gap is real."""
    hidden: int = 1
    """seed of the hidden parameters; 0 hides nothing."""
    port: int = 0
    """port on this machine; a free one where 0."""
    pace: Expert[Literal["real", "step"]] = "real"
    """real time, or one control step per command (as fast as it goes, repeatable)."""
    cameras: tuple[str, ...] = ()
    """cameras to render: names, 'all', or a calibration FILE.json whose cameras take the place of the scene's."""
    camera_rate: Expert[float] = 10.0
    """images per second of each camera; in real time fewer where the machine renders fewer."""
    noise: Expert[float] = 2e-4
    """standard deviation of position sensors [rad or m]."""
    late: Expert[int] = 1
    """control steps by which sensors are late."""
    token: Path | None = None
    """file with the token of the link; a fresh one is written to it where there is no such file."""
    ready: Expert[Path | None] = None
    """file to write the address and token to once it listens (readable by you alone)."""
    reveal: Expert[Path | None] = None
    """file to write the hidden parameters to, for judging an identification afterwards."""
    wiggle: Expert[bool] = False
    """test each joint by a small motion after a reset, before any command: order, sign and unit must be right."""
    view: bool = False
    """show the robot in the browser, as it truly is, without the noise and delay of its sensors."""


def robot(scene: SceneArg, /, args: Options[RobotArgs] = RobotArgs()) -> int:
    """Run a simulated robot: another process and engine, hidden params, noise, delay, limits, cameras, its own clock.

    Connect with: instep run POLICY robot:ws://127.0.0.1:PORT --token FILE
    """
    loaded, names = calibrated_scene(Scene.load(scene), args.cameras)
    for name in names:
        if name not in loaded.cameras:
            raise UnknownName("camera", name, loaded.cameras)
    if not 0 < args.camera_rate <= 1 / loaded.dt + 1e-9:
        raise BadInput(f"Cameras take up to {1 / loaded.dt:g} images per second here, not {args.camera_rate:g}.")
    if not loaded.model.nu:
        raise BadInput(f"Scene {loaded.name!r} has no actuators, so it cannot simulate a robot.")
    # In real time rendering must not hold up the control loop.
    inside, every = () if args.pace == "real" else tuple(names), max(1, round(1 / (args.camera_rate * loaded.dt)))
    perturbation = Perturbation(
        engine=args.engine, hidden=args.hidden, noise=args.noise, late=args.late, cameras=inside, image_every=every
    )
    simulated, limits = simulate_robot(loaded, perturbation), scene_limits(loaded)
    if args.reveal is not None:
        args.reveal.write_text(json.dumps(simulated.truth, indent=2) + "\n", encoding="utf-8")

    def announce(address: str, token: str) -> None:
        if args.ready is not None:
            write_secret(args.ready, json.dumps({"address": address, "token": token}))
        where = f"{address} ({args.pace} pace)"
        # The server says which of the limits nobody stated.
        say(f"Limits: {limits}.", f"A simulated robot for {loaded.name!r} in {args.engine} listens at {where}.")
        say(f"INSTEP_TOKEN={token}", "Stop it with Ctrl-C.")

    with ExitStack() as stack:
        live = stack.enter_context(live_view(args.view, loaded, simulated.world.spec, f"simulated robot {loaded.name}"))
        driver: Driver = WorldDriver(Viewed(simulated.world, live) if live else simulated.world)
        if args.pace == "real" and names:
            effects, distortion = hidden_appearance(args.hidden)
            job = RenderJob(
                scene=scene, words=args.cameras, cameras=tuple(names), effects=effects, distortion=distortion,
                rate=args.camera_rate,
            )  # fmt: skip
            driver = stack.enter_context(CameraDriver(driver, job, loaded.cameras))
        safety = SafetyOptions(limits=limits, obstacles=ObstacleChecks(loaded), wiggle=args.wiggle)
        token, options = None if args.token is None else kept_token(args.token), ServerOptions(safety=safety)
        serve(SensorDriver(driver), port=args.port, token=token, pace=args.pace, ready=announce, options=options)
    return 0


class SensorDriver(WrappedDriver):
    """A driver whose q and v are the sensor readings, with their noise and delay, not the true state."""

    def __init__(self, inner: Driver):
        super().__init__(inner)
        spec = inner.spec
        self._q = _sources(spec, spec.q.labels, ("observation.state", "observation.environment_state"))
        self._v = _sources(spec, spec.v.labels, ("observation.velocity",))

    def read(self) -> Reading:
        """The newest reading of the sensors."""
        reading = self._inner.read()
        q, v = reading.q.copy(), reading.v.copy()
        for into, values in ((q, self._q), (v, self._v)):
            for i, (channel, j) in values.items():
                into[i] = reading.seen[channel][j]
        return Reading(reading.t, q, v, reading.seen, reading.stamps, reading.fault)


def _sources(spec: Spec, labels: tuple[str, ...], channels: tuple[str, ...]) -> dict[int, tuple[str, int]]:
    """For each coordinate a sensor shows: where it is shown."""
    found: dict[int, tuple[str, int]] = {}
    for channel in channels:
        for j, label in enumerate(spec.observation[channel].labels if channel in spec.observation else ()):
            if label in labels:
                found[labels.index(label)] = (channel, j)
    return found


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


class RenderProcess:
    """A process that renders; `ask` never waits, `wait` does."""

    def __init__(self, job: RenderJob):
        self.side = SideProcess(_open_cameras, job)
        self._jobs: SimpleQueue[tuple[float, Array] | None] = SimpleQueue()
        self._ready, self._busy = threading.Condition(), False
        self._latest: tuple[float, Mapping[str, Array]] | None = None
        if problem := self.side.open(self._exchange, IMAGE_TIMEOUT_S):
            raise LinkLost(f"The process that renders the simulated robot's cameras did not begin: {problem}")

    @property
    def latest(self) -> tuple[float, Mapping[str, Array]] | None:
        """Time and images of the newest state that was rendered since `wait`; raises where the process has ended."""
        self._check()
        return self._latest

    @property
    def ended(self) -> bool:
        """Whether the process has ended, however it did."""
        return not self.side.process.is_alive() or main_thread_ended(self.side.process.pid or 0)

    def ask(self, t: float, q: Array) -> bool:
        """Have images taken of a state, unless the last ones are still being made; says whether they are."""
        if self._busy:
            return False
        self._busy = True
        self._jobs.put((t, q.copy()))
        return True

    def wait(self, t: float, q: Array) -> None:
        """Forget all images and take new ones, however long that takes."""
        with self._ready:
            self._ready.wait_for(lambda: not self._busy or self.ended, IMAGE_TIMEOUT_S)
            self._latest = None
            self.ask(t, q)
            self._ready.wait_for(lambda: self._latest is not None or self.ended, IMAGE_TIMEOUT_S)
            self._check()
            if self._latest is None:
                self.side.process.kill()  # the next reset starts another one
                raise LinkLost(
                    "The process that renders the simulated robot's cameras gave no image; try `instep doctor`."
                )

    def close(self) -> None:
        """End the process."""
        self._jobs.put(None)
        self.side.close(1.0)

    def _check(self) -> None:
        if self.ended:
            raise LinkLost("The process that renders the simulated robot's cameras has ended.")

    def _exchange(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                images = self.side.ask(job[1])
            except (EOFError, OSError):
                images = None
            with self._ready:
                self._busy = False
                if images is not None:
                    self._latest = job[0], images
                self._ready.notify_all()
            if images is None:
                return


def _open_cameras(job: RenderJob) -> Callable[[Array], dict[str, Array]]:
    """A function that renders the images of all cameras of a state."""
    scene, _ = calibrated_scene(Scene.load(job.scene), job.words)
    cameras = [scene.cameras[name] for name in job.cameras]
    lenses = [Lens(distorted(camera, job.distortion), job.effects, index) for index, camera in enumerate(cameras)]
    renderer, numbers = MujocoRenderer(scene), itertools.count()

    def render(q: Array) -> dict[str, Array]:
        number = next(numbers)
        clean = [renderer.render(q, replace(camera, distortion=())) for camera in cameras]
        shown = zip(cameras, lenses, clean, strict=True)
        return {camera.name: lens.apply(image, number) for camera, lens, image in shown}

    return render


class CameraDriver(WrappedDriver):
    """A driver with cameras at their own rate, rendered in another process from the true state of the inner driver."""

    def __init__(self, inner: Driver, job: RenderJob, cameras: Mapping[str, Camera]):
        super().__init__(inner)
        self._job, self._cameras = job, {name: cameras[name] for name in job.cameras}
        self.filming = RenderProcess(job)
        self._asked = -np.inf

    def __enter__(self) -> CameraDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.filming.close()

    @property
    def spec(self) -> Spec:
        """What the numbers mean, images included."""
        axes = ("height", "width", "channels")
        shown = {IMAGES + n: Channel(axes, "", (c.height, c.width, 3), "uint8") for n, c in self._cameras.items()}
        return self._inner.spec.with_observations(shown)

    def read(self) -> Reading:
        """The newest state, and the newest images with the time they were taken at."""
        reading = self._inner.read()
        if self._asked == -np.inf:
            self.filming.wait(reading.t, reading.q)
            self._asked = reading.t
        elif reading.t - self._asked >= 1 / self._job.rate - 1e-9 and self.filming.ask(reading.t, reading.q):
            self._asked = reading.t
        latest = self.filming.latest
        if latest is None:
            return reading
        seen = {**reading.seen, **{IMAGES + name: image for name, image in latest[1].items()}}
        stamps = {**reading.stamps, **{IMAGES + name: latest[0] for name in latest[1]}}
        return replace(reading, seen=seen, stamps=stamps)

    def reset(self, seed: int) -> None:
        """Begin anew, with new images; a process of cameras that has ended is started again."""
        self._inner.reset(seed)
        if self.filming.ended:
            self.filming.close()
            self.filming = RenderProcess(self._job)
        self._asked = -np.inf
