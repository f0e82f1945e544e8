"""A world that is seen: photoreal camera pictures among the observations of any world.

Align the colours of a renderer with those of a real camera.

One quadratic across channels, c_real = A [c^2; c] + b with A 3 x 6, fitted to pixel pairs by least squares with Tukey's
weights, so that moving things and highlights in one of the two pictures do not bend it.

What a real camera does to a picture: shutter, exposure, noise. (Distortion is part of the Camera itself.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput
from instep.core.poses import quat_exp, quat_mul
from instep.core.world import Array, Channel, Observation, Spec, State, W, Wrapper, take
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import LayeredRasterizer

from .image import Backdrop, Region, full_region

Poses: TypeAlias = Callable[[State], Array]
"""Where bodies are in a state, [..., bodies, 7], or how they move, [..., bodies, 6]; in the order of the names."""
Occluder: TypeAlias = Callable[[State, Camera], Backdrop]
"""What else stands before a camera in a state of one world, as a robot drawn from its meshes."""


RenderRegion: TypeAlias = Callable[[float, Region], Array]
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


def expose_image(draw: RenderRegion, camera: Camera, shutter: Shutter, t: float = 0.0) -> Array:
    """The picture of a shutter whose middle row is halfway through its exposure at time t.

    Rolling shutters are drawn in bands of rows, each at its own time; blur is the mean over samples of the exposure.
    """
    left, top, right, bottom = full_region(camera)
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


def apply_sensor(colour: Array, sensor: Sensor, seed: int = 0) -> Array:
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


def extrapolate_poses(poses: Array, twists: Array, dt: float) -> Array:
    """Poses [..., 7] after a time, with velocities [..., 6] (m/s, then rad/s, along the world's axes)."""
    return np.concatenate(
        [poses[..., :3] + dt * twists[..., :3], quat_mul(quat_exp(dt * twists[..., 3:]), poses[..., 3:])], axis=-1
    )


@dataclass(frozen=True, slots=True, eq=False)
class Seen(Wrapper[W]):
    """A world with cameras: adds `observation.images.<camera>` to what is observed, for one world or a batch."""

    layers: LayeredRasterizer
    """The Gaussians, on bodies."""
    cameras: tuple[Camera, ...]
    """Fixed in the world, or mounted on a body."""
    poses: Poses
    """Where the bodies are; an engine's kinematics."""
    velocities: Poses | None = None
    """How they move, for shutters that are not instant."""
    shutter: Shutter = field(default_factory=Shutter)
    sensor: Sensor = field(default_factory=Sensor)
    occluder: Occluder | None = None
    """The robot, where it is not made of Gaussians."""

    def __post_init__(self) -> None:
        if (self.shutter.readout or self.shutter.exposure) and self.velocities is None:
            raise BadInput(
                "A shutter that is not instant needs the bodies' velocities; give Seen(..., velocities=...)."
            )

    @property
    def spec(self) -> Spec:
        """What the numbers mean, pictures included."""
        inner, axes = self.world.spec, ("height", "width", "channels")
        shown = {
            f"observation.images.{c.name}": Channel(axes, "", (c.height, c.width, 3), "uint8") for c in self.cameras
        }
        return replace(inner, observation={**inner.observation, **shown})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start the stream of random numbers."""
        return state.with_hidden(self.key, np.broadcast_to(counter_rng.key(seed, self.key), state.batch).copy())

    def step(self, state: State, action: Array) -> State:
        """Draw anew for the next state."""
        return self.world.step(state, action).with_hidden(self.key, counter_rng.following(state.hidden[self.key]))

    def observe(self, state: State) -> Observation:
        """What is observed, pictures included."""
        seen = dict(self.world.observe(state))
        poses = np.asarray(self.poses(state), float)
        wanted = (*state.batch, len(self.layers.gaussians.names), 7)
        if poses.shape != wanted:
            raise BadInput(
                f"The poses of the seen bodies have the shape {poses.shape}; {wanted}, one xyz + wxyz for each of "
                f"{', '.join(self.layers.gaussians.names)}, was expected."
            )
        for number, camera in enumerate(self.cameras):
            seen[f"observation.images.{camera.name}"] = self._pictures(state, poses, camera, number)
        return seen

    def _pictures(self, state: State, poses: Array, camera: Camera, number: int) -> Array:
        plain = self.sensor == Sensor() and self.shutter == Shutter() and self.occluder is None
        if plain and state.batch:
            flat = self.layers.render_batch(camera, poses.reshape(-1, *poses.shape[-2:]))
            return flat.reshape(*state.batch, *flat.shape[1:])
        out = np.empty((*state.batch, camera.height, camera.width, 3), np.uint8)
        keys = np.asarray(state.hidden[self.key])
        speeds = None if self.velocities is None else np.asarray(self.velocities(state), float)
        for world in np.ndindex(*state.batch):
            before = None if self.occluder is None else self.occluder(_one(state, world), camera)
            colour = self._exposed(camera, poses[world], None if speeds is None else speeds[world], before)
            out[world] = apply_sensor(
                colour, self.sensor, int(counter_rng.uniform(keys[world], 1 + number)[-1] * 2**53)
            )
        return out

    def _exposed(self, camera: Camera, poses: Array, speeds: Array | None, before: Backdrop | None) -> Array:
        def draw(t: float, region: Region) -> Array:
            there = poses if speeds is None else extrapolate_poses(poses, speeds, t)
            return self.layers.render(camera, there, before=before, region=region).colour

        return expose_image(draw, camera, self.shutter)


def _one(state: State, world: tuple[int, ...]) -> State:
    for index in world:
        state = take(state, index)
    return state
