"""Camera images of a scene rendered by MuJoCo, with exposure, lens distortion and noise.

Small videos for pages: which rows are shown how fast, and images of a scene along a trajectory.
"""

from __future__ import annotations

import ctypes.util
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar

import mujoco
import mujoco.rendering.classic.gl_context
import numpy as np

from instep.core import counter_rng
from instep.core.errors import UnknownName, Unsupported
from instep.core.reading import first_line
from instep.core.world import Array, Channel, Observation, Spec, State, W, Wrapper, array_dataclass, frozen_dataclass
from instep.data.video import VideoOptions, VideoWriter, encoder
from instep.scene.camera import Camera, distort
from instep.scene.folder import Scene

INSTALL = "apt-get install libegl1 libgl1 libgles2 libgl1-mesa-dri"
"""Packages for rendering without a screen on Debian."""


@frozen_dataclass
class ImageEffects:
    """Imperfections of a camera: exposure, colour cast, noise."""

    gain: float = 1.0
    """Brightness, as a factor."""
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Colour cast: factors of red, green and blue."""
    sigma: float = 0.0
    """Standard deviation of white noise [grey levels of 255]."""


class MujocoRenderer:
    """Renders a scene through its cameras: positions in, images out."""

    def __init__(self, scene: Scene):
        self.scene = scene
        self._data = mujoco.MjData(scene.model)
        # Render geom groups 0 to 2, or all groups if no link has a shape in these (a robot without visual meshes).
        option: Any = getattr(mujoco, "MjvOption")()  # noqa: B009 - not in the library's types
        links = scene.model.body_weldid[scene.model.geom_bodyid] != 0
        if links.any() and not (scene.model.geom_group[links] <= 2).any():
            option.geomgroup[:] = 1
        self._option = option
        self._renderers: dict[tuple[int, int], Any] = {}
        self._maps: dict[str, Array] = {}
        self._last: dict[str, tuple[Array, Array]] = {}
        self._lock = threading.Lock()

    def render(self, q: Array, camera: Camera, effects: ImageEffects | None = None, seed: int = 0) -> Array:
        """The image of a camera at positions q [nq], through its lens [height, width, 3]; `seed` is for the noise."""
        frame = self._clean(q, camera)
        return frame if effects is None or effects == ImageEffects() else _exposed(frame, effects, seed)

    def overview(self, q: Array, height: int = 360, width: int = 480) -> Array:
        """The image of MuJoCo's free camera at positions q [nq], which shows the whole model [height, width, 3]."""
        with self._lock:
            return self._render(q, (height, width), -1)

    def beside(self, q: Array, point: Array, distance: float, height: int = 320, width: int = 320) -> Array:
        """The image of a camera behind and to the right of a point [3], at a distance [m]."""
        eye: Any = getattr(mujoco, "MjvCamera")()  # noqa: B009 - the type stubs lack it
        eye.distance, eye.azimuth, eye.elevation = distance, 125.0, -14.0
        eye.lookat[:] = point
        with self._lock:
            return self._render(q, (height, width), eye)

    def close(self) -> None:
        """Give the graphics memory back."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _clean(self, q: Array, camera: Camera) -> Array:
        with self._lock:
            last = self._last.get(camera.name)
            if last is None or not np.array_equal(last[0], q):
                frame = self._render(q, (camera.height, camera.width), camera.name)
                if any(camera.distortion):
                    if camera.name not in self._maps:
                        self._maps[camera.name] = _undistorted_pixels(camera)
                    frame = _sample(frame, self._maps[camera.name])
                last = (q.copy(), frame)
                self._last[camera.name] = last
        return last[1].copy()

    def _render(self, q: Array, size: tuple[int, int], camera: Any) -> Array:
        self._data.qpos[:] = q
        mujoco.mj_forward(self.scene.model, self._data)
        if size not in self._renderers:
            self._renderers[size] = _new_renderer(self.scene.model, *size)
        renderer = self._renderers[size]
        renderer.update_scene(self._data, camera, self._option)
        return renderer.render().copy()


@array_dataclass
class WithCameras(Wrapper[W]):
    """A world with cameras: adds `observation.images.<camera>` to its observations."""

    renderer: MujocoRenderer
    cameras: tuple[Camera, ...] = ()
    effects: ImageEffects = field(default_factory=ImageEffects)
    every: int = 1
    """Control steps per image; in between, the last image is repeated with its time stamp."""
    brightness: float | Array = 1.0
    """Factor on the brightness; one number, or one per world of a batch (likewise the fields below)."""
    red: float | Array = 1.0
    green: float | Array = 1.0
    blue: float | Array = 1.0
    noise: float | Array = 0.0
    params: ClassVar[Mapping[str, str]] = {
        f"appearance.{name}": name for name in ("brightness", "red", "green", "blue", "noise")
    }

    @property
    def spec(self) -> Spec:
        """Description of the numbers, images included."""
        axes = ("height", "width", "channels")
        shown = {
            f"observation.images.{c.name}": Channel(axes, "", (c.height, c.width, 3), "uint8") for c in self.cameras
        }
        return self.world.spec.with_observations(shown)

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Expose the first image."""
        key = np.broadcast_to(counter_rng.key(seed, self.key), state.batch).copy()
        return state.with_hidden(self.key, self._exposure(state, key, np.zeros(state.batch, int)))

    def step(self, state: State, action: Array) -> State:
        """Expose an image when one is due."""
        old, after = state.hidden[self.key], self.world.step(state, action)
        age = old["age"] + 1
        if int(age.flat[0] if age.ndim else age) >= self.every:
            return after.with_hidden(
                self.key, self._exposure(after, counter_rng.next_key(old["noise"]), np.zeros(state.batch, int))
            )
        return after.with_hidden(self.key, {**old, "age": age})

    def observe(self, state: State) -> Observation:
        """The observation with images; worlds of a batch are rendered one after the other."""
        seen, memory = dict(self.world.observe(state)), state.hidden[self.key]
        for index, camera in enumerate(self.cameras):
            frames = np.empty((*state.batch, camera.height, camera.width, 3), np.uint8)
            for world in np.ndindex(*state.batch):
                seed = int(counter_rng.uniform(memory["noise"][world], 1 + index)[-1] * 2**53)
                frames[world] = self.renderer.render(memory["q"][world], camera, self._effects(world), seed)
            frames.flags.writeable = False
            seen[f"observation.images.{camera.name}"] = frames
            if self.every > 1:
                seen[f"observation.images.{camera.name}.stamp"] = memory["stamp"]
        return seen

    def _effects(self, world: tuple[int, ...]) -> ImageEffects:
        amounts = (self.brightness, self.red, self.green, self.blue, self.noise)
        brightness, red, green, blue, noise = (float(np.asarray(a)[world] if np.ndim(a) else a) for a in amounts)
        r, g, b = self.effects.tint
        sigma = float(np.hypot(self.effects.sigma, noise))
        return ImageEffects(self.effects.gain * brightness, (r * red, g * green, b * blue), sigma)

    def _exposure(self, state: State, key: Array, age: Array) -> dict[str, Array]:
        return {"noise": key, "q": state.q, "age": age, "stamp": np.full(state.batch, float(state.t))}


def render_cameras(
    world: W, scene: Scene, cameras: Sequence[str] | None = None, effects: ImageEffects | None = None, every: int = 1
) -> WithCameras[W]:
    """A world with some of the scene's cameras (default: all)."""
    for name in cameras or ():
        if name not in scene.cameras:
            raise UnknownName("camera", name, scene.cameras)
    chosen = tuple(scene.cameras[name] for name in (cameras if cameras is not None else scene.cameras))
    return WithCameras(world, MujocoRenderer(scene), chosen, effects or ImageEffects(), every)


def _exposed(frame: Array, effects: ImageEffects, seed: int) -> Array:
    light = frame * (effects.gain * np.asarray(effects.tint))
    if effects.sigma:
        # A generator seeded by the state is fast for millions of pixels and still a function of the state.
        light += np.random.default_rng(seed).normal(0.0, effects.sigma, frame.shape)
    return np.clip(np.rint(light), 0, 255).astype(np.uint8)


def graphics_library() -> str:
    """The OpenGL library that renders on this machine; raises `Unsupported` with the packages to install."""
    renderer = _new_renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8)
    renderer.close()
    return os.environ.get("MUJOCO_GL", "default")


def _new_renderer(model: mujoco.MjModel, height: int, width: int) -> Any:
    _choose_library()
    screen = model.vis.global_
    screen.offwidth, screen.offheight = max(width, screen.offwidth), max(height, screen.offheight)
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:  # noqa: BLE001 - each graphics library fails in its own way
        raise Unsupported(
            f"Rendering needs a working OpenGL library ({type(error).__name__}: {first_line(error)}). "
            f"Install one with: {INSTALL}"
        ) from None


def _choose_library() -> None:
    """Render off-screen without a display; MuJoCo reads its choice from the environment once, at import."""
    if sys.platform != "linux" or "MUJOCO_GL" in os.environ or os.environ.get("DISPLAY"):
        return
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            importlib.reload(mujoco.rendering.classic.gl_context)
            return


def _undistorted_pixels(camera: Camera) -> Array:
    """The undistorted position of each pixel, by fixed-point iteration."""
    x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    measured = (np.stack([x, y], -1) - camera.centre) / camera.focal
    ideal = measured.copy()
    for _ in range(20):  # converges by a factor of the distortion per round; ample for the lenses of robots
        ideal = np.clip(measured - (distort(ideal, camera.distortion) - ideal), -100.0, 100.0)
    seen = np.abs(distort(ideal, camera.distortion) - measured).max(axis=-1, keepdims=True) < 1e-3
    # No ray reaches a pixel where the polynomial folds back; it stays black.
    return np.where(seen, ideal * camera.focal + camera.centre - 0.5, -1.0)


def _sample(frame: Array, at: Array) -> Array:
    """An image sampled bilinearly between its pixels; black outside."""
    from scipy.ndimage import map_coordinates

    where = [at[..., 1], at[..., 0]]
    colours = [map_coordinates(frame[..., c].astype(float), where, order=1) for c in range(frame.shape[2])]
    return np.rint(np.stack(colours, axis=-1)).astype(np.uint8)


VIDEO_FPS = 15
"""Frames per second of videos on pages."""
MAX_FRAMES = 240
"""Maximum number of frames of a video; longer runs are sped up."""
MAX_WIDTH = 480
"""Maximum width of one camera in a video [pixels]."""


@array_dataclass
class Playback:
    """The rows of a run in a video, and its speed."""

    rows: Array
    """Numbers of the rows, one per frame."""
    speed: float
    """Seconds of the run per second of the video."""

    @property
    def words(self) -> str:
        """The speed, in words."""
        return "in real time" if abs(self.speed - 1) < 0.05 else f"at {self.speed:.2g} times its speed"


def playback(times: Array) -> Playback:
    """The rows of a run whose times [s] are given, evenly spaced in time."""
    begin, end = float(times[0]), float(times[-1])
    frames = int(np.clip(round((end - begin) * VIDEO_FPS) + 1, 1, MAX_FRAMES))
    at = np.searchsorted(times, np.linspace(begin, end, frames) - 1e-9)
    speed = (end - begin) * VIDEO_FPS / (frames - 1) if frames > 1 else 1.0
    return Playback(np.minimum(at, len(times) - 1), speed)


def write_small_video(path: Path, images: Iterable[Array]) -> Path:
    """Write images [height, width, 3] as a small MP4 for browsers."""
    with VideoWriter(path, VIDEO_FPS, browser_video()) as writer:
        for image in images:
            writer.add(shrunk(image))
    return path


def browser_video() -> VideoOptions:
    """H.264 if this build of PyAV has it, else AV1."""
    options = VideoOptions(codec="libx264", crf=27, g=30)
    try:
        encoder(options)
    except Unsupported:
        return VideoOptions(crf=40, g=30)
    return options


def shrunk(image: Array, width: int = 2 * MAX_WIDTH) -> Array:
    """An image of at most `width` columns with even sides, by the mean of square blocks."""
    k = -(-image.shape[1] // width)
    high, wide = (2 * (side // (2 * k)) for side in image.shape[:2])
    blocks = image[: high * k, : wide * k].reshape(high, k, wide, k, 3)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)


def render_trajectory(scene: Scene, trajectory: Array, path: Path) -> Path:
    """A video of positions [frames, nq] by the scene's first camera, or MuJoCo's default view without one."""
    renderer = MujocoRenderer(scene)
    camera = next(iter(scene.cameras.values()), None)
    if camera is not None:
        scale = min(1.0, MAX_WIDTH / camera.width)
        width, height = (max(2, 2 * round(side * scale / 2)) for side in (camera.width, camera.height))
        camera = replace(camera, width=width, height=height, distortion=())
    try:
        images = (renderer.render(q, camera) if camera is not None else renderer.overview(q) for q in trajectory)
        return write_small_video(path, images)
    finally:
        renderer.close()
