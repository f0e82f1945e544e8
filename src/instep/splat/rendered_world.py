"""A world that is seen: photoreal camera pictures among the observations of any world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput
from instep.core.world import Array, Channel, Observation, Spec, State, take
from instep.core.wrapper import Layer, W
from instep.scene.camera import Camera
from instep.splat.raster.layers import Layers

from .camera_effects import Sensor, Shutter, carried_on, expose, sense
from .image import Backdrop, Region

Poses: TypeAlias = Callable[[State], Array]
"""Where bodies are in a state, [..., bodies, 7], or how they move, [..., bodies, 6]; in the order of the names."""
Occluder: TypeAlias = Callable[[State, Camera], Backdrop]
"""What else stands before a camera in a state of one world, as a robot drawn from its meshes."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen(Layer[W]):
    """A world with cameras: adds `observation.images.<camera>` to what is observed, for one world or a batch."""

    layers: Layers
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
            out[world] = sense(colour, self.sensor, int(counter_rng.uniform(keys[world], 1 + number)[-1] * 2**53))
        return out

    def _exposed(self, camera: Camera, poses: Array, speeds: Array | None, before: Backdrop | None) -> Array:
        def draw(t: float, region: Region) -> Array:
            there = poses if speeds is None else carried_on(poses, speeds, t)
            return self.layers.render(camera, there, before=before, region=region).colour

        return expose(draw, camera, self.shutter)


def _one(state: State, world: tuple[int, ...]) -> State:
    for index in world:
        state = take(state, index)
    return state
