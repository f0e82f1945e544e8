"""Align the colours of a renderer with those of a real camera.

One quadratic across channels, c_real = A [c^2; c] + b with A 3 x 6, fitted to pixel pairs by least squares with Tukey's
weights, so that moving things and highlights in one of the two pictures do not bend it.

What a real camera does to a picture: shutter, exposure, noise. (Distortion is part of the Camera itself.)
"""

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

_TUKEY = 4.685
"""Residuals beyond this many standard deviations do not count."""


@dataclass(frozen=True, slots=True, eq=False)
class ColourMap:
    """A map of colours 0 to 1."""

    matrix: Array
    """[3, 6], of the squares and then the values of red, green, blue."""
    offset: Array
    """[3]."""

    def __call__(self, colour: Array) -> Array:
        """The colours [..., 3] as the real camera would show them."""
        colour = np.asarray(colour, float)
        features = np.concatenate([colour**2, colour], axis=-1)
        return np.clip(features @ self.matrix.T + self.offset, 0.0, 1.0)


def unchanged() -> ColourMap:
    """The map that changes nothing."""
    return ColourMap(np.hstack([np.zeros((3, 3)), np.eye(3)]), np.zeros(3))


def align_colours(rendered: Array, real: Array, mask: Array | None = None, *, rounds: int = 50) -> ColourMap:
    """Fit the map from rendered to real colours [..., 3], 0 to 1, over the pixels of a mask."""
    chosen = np.ones(rendered.shape[:-1], bool) if mask is None else mask
    x, y = np.asarray(rendered, float)[chosen], np.asarray(real, float)[chosen]
    if len(x) < 100:
        raise BadInput(f"Aligning colours needs at least 100 pairs of pixels, and {len(x)} were given.")
    features = np.column_stack([x**2, x, np.ones(len(x))])
    bright = np.linalg.norm(y, axis=1)
    weight = bright / max(float(bright.max()), 1e-6)
    ridge = 1e-6 * len(x) * np.eye(7)
    solution = np.zeros((7, 3))
    for channel in range(3):
        robust, last, now = np.ones(len(x)), np.zeros(7), np.zeros(7)
        for _ in range(rounds):
            scaled = features * (weight * robust)[:, None]
            now = np.linalg.solve(scaled.T @ features + ridge, scaled.T @ y[:, channel] + ridge @ _IDENTITY[channel])
            residual = y[:, channel] - features @ now
            spread = max(1.4826 * float(np.median(np.abs(residual - np.median(residual)))), 1e-6)
            robust = np.maximum(1 - (residual / (_TUKEY * spread)) ** 2, 0.0) ** 2
            if np.abs(now - last).max() < 1e-6:
                break
            last = now
        solution[:, channel] = now
    return ColourMap(solution[:6].T, solution[6])


_IDENTITY = np.eye(7)[3:6]
"""Where the ridge pulls to when the pixels cannot tell: the map that changes nothing."""


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
