"""Recordings of a simulated robot with rendered images, under light, noise and latency of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array, Channel
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer
from instep.scene.folder import Scene
from instep.twin.camera_rig import IMAGES

NOISE_FRAMES = 4
"""Frames of noise that are sampled; each image takes one from another offset."""
PerfectImage = Callable[[str, int], Array]
"""The perfect image of a camera at a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """How the images of a simulated robot differ from perfect ones."""

    effects: ImageEffects = field(default_factory=lambda: ImageEffects(0.9, (1.05, 0.95, 0.97), 3.0))
    latency_rows: int = 1
    """Rows by which images are late."""
    seed: int = 0
    """Seed of the noise."""


def render_recording(scene: Scene, episode: Episode, options: RenderOptions | None = None) -> Episode:
    """The episode of a scene with images of all cameras of the scene, each with its stamp."""
    renderer, cameras = MujocoRenderer(scene), scene.cameras
    try:
        return with_images(scene, episode, lambda name, row: renderer.render(episode.q[row], cameras[name]), options)
    finally:
        renderer.close()


def with_images(scene: Scene, episode: Episode, image: PerfectImage, options: RenderOptions | None = None) -> Episode:
    """The episode with given perfect images, under the light, noise and latency of the options."""
    options = options or RenderOptions()
    then = np.maximum(np.arange(len(episode)) - options.latency_rows, 0)
    columns: dict[str, Array] = {}
    channels: dict[str, Channel] = {}
    for number, (name, camera) in enumerate(scene.cameras.items()):
        sensor = _Sensor(options.effects, (camera.height, camera.width, 3), (options.seed, number))
        images = np.empty((len(episode), camera.height, camera.width, 3), np.uint8)
        for row in range(len(episode)):
            images[row] = sensor.image(image(name, int(then[row])), row)
        images.flags.writeable = False
        columns[IMAGES + name], columns[IMAGES + name + ".stamp"] = images, episode.t[then]
        channels[IMAGES + name] = Channel(("height", "width", "channels"), "", images.shape[1:], "uint8")
    spec = replace(episode.spec, observation={**episode.spec.observation, **channels})
    return replace(episode.with_columns(columns), spec=spec)


class _Sensor:
    """Light and noise of one camera; noise is sampled once and shifted from frame to frame."""

    def __init__(self, effects: ImageEffects, shape: tuple[int, ...], seed: tuple[int, ...]):
        self._shape = shape
        rng = np.random.default_rng(seed)
        size = int(np.prod(shape))
        self._bank = np.rint(rng.normal(0.0, effects.sigma, NOISE_FRAMES * size)).astype(np.int16)
        self._offsets = rng.integers(0, (NOISE_FRAMES - 1) * size, 4096)
        levels = np.arange(256)[:, None] * (effects.gain * np.asarray(effects.tint))
        self._table = np.clip(np.rint(levels), 0, 255).astype(np.int16)

    def image(self, image: Array, row: int) -> Array:
        lit = np.stack([self._table[:, c][image[..., c]] for c in range(3)], axis=-1)
        start = int(self._offsets[row % len(self._offsets)])
        noise = self._bank[start : start + lit.size].reshape(self._shape)
        return np.clip(lit + noise, 0, 255).astype(np.uint8)
