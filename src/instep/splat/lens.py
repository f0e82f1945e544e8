"""What a real camera does to a picture: shutter, exposure, noise. (Distortion is part of the Camera itself.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import quat_exp, quat_mul
from instep.core.world import Array
from instep.scene.camera import Camera

from .image import Region, whole

Draw: TypeAlias = Callable[[float, Region], Array]
"""A function that gives the colours of a region [height, width, 3] as seen at a time [s]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shutter:
    """When the rows of an image collect light."""

    readout: float = 0.0
    """Time from the first row to the last [s]; 0 for a global shutter."""
    exposure: float = 0.0
    """How long each row collects light [s]; 0 for an instant."""
    bands: int = 8
    """Groups of rows that are taken to be read at once."""
    samples: int = 4
    """Instants the exposure is made of."""

    def __post_init__(self) -> None:
        if self.readout < 0 or self.exposure < 0 or self.bands < 1 or self.samples < 1:
            raise BadInput("A shutter needs times of 0 or above, and at least one band and one sample.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensor:
    """How light becomes numbers."""

    gain: float = 1.0
    """Factor of brightness."""
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors of red, green, blue."""
    offset: float = 0.0
    """Black level, 0 to 1."""
    gamma: float = 1.0
    """Exponent after the gain; 1 is linear."""
    shot: float = 0.0
    """Standard deviation of noise that grows with the root of brightness, at full brightness (0 to 1)."""
    read: float = 0.0
    """Standard deviation of noise everywhere (0 to 1)."""

    @property
    def noisy(self) -> bool:
        """Whether two pictures of the same scene differ."""
        return self.shot > 0 or self.read > 0


def expose(draw: Draw, camera: Camera, shutter: Shutter, t: float = 0.0) -> Array:
    """The picture of a shutter whose middle row is halfway through its exposure at time t.

    Rolling shutters are drawn in bands of rows, each at its own time; blur is the mean over samples of the exposure.
    """
    left, top, right, bottom = whole(camera)
    bands = min(shutter.bands, camera.height) if shutter.readout > 0 else 1
    samples = shutter.samples if shutter.exposure > 0 else 1
    edges = np.linspace(top, bottom, bands + 1).round().astype(int)
    out = np.empty((camera.height, camera.width, 3), np.float32)
    for first, last in pairwise(edges):
        middle = t + shutter.readout * ((first + last) / (2 * camera.height) - 0.5)
        light = np.zeros((last - first, camera.width, 3), np.float32)
        for sample in range(samples):
            instant = middle + shutter.exposure * ((sample + 0.5) / samples - 0.5)
            light += draw(float(instant), (left, int(first), right, int(last)))
        out[first:last] = light / samples
    return out


def sense(colour: Array, sensor: Sensor, seed: int = 0) -> Array:
    """The picture a sensor gives, uint8; its noise is that of the seed."""
    light = np.asarray(colour, np.float32) * (np.float32(sensor.gain) * np.asarray(sensor.tint, np.float32))
    if sensor.noisy:
        rng = np.random.default_rng((seed, 0x5E15E))
        spread = np.sqrt(sensor.read**2 + sensor.shot**2 * np.clip(light, 0.0, None)).astype(np.float32)
        light = light + spread * rng.standard_normal(light.shape, np.float32)
    light = np.clip(light + np.float32(sensor.offset), 0.0, 1.0)
    if sensor.gamma != 1.0:
        light = light ** np.float32(sensor.gamma)
    return (light * 255.0 + 0.5).astype(np.uint8)


def carried_on(poses: Array, twists: Array, dt: float) -> Array:
    """Poses [..., 7] after a time, with velocities [..., 6] (m/s, then rad/s, along the world's axes)."""
    return np.concatenate(
        [poses[..., :3] + dt * twists[..., :3], quat_mul(quat_exp(dt * twists[..., 3:]), poses[..., 3:])], axis=-1
    )
