"""A simulated robot that was filmed: its pictures are taken beforehand, so that a twin can be rehearsed on them.

The pictures have the simulated robot's own light and noise, and come late, as those of cameras do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array, Channel, Simulator, State
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer
from instep.physics.open_world import rest_action
from instep.scene.folder import Scene

from .camera_rig import IMAGES
from .initialization import colour_of
from .projection import model_of, outline, place_of, sight
from .twin import Correction

Taken = Callable[[str, int], Array]
"""What a camera shows of a row through a perfect eye: name and row in, picture out."""
BANK = 4
"""Pictures of noise that are drawn; each frame takes one of them from another place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shooting:
    """How a simulated robot is filmed."""

    look: ImageEffects = field(default_factory=lambda: ImageEffects(0.9, (1.05, 0.95, 0.97), 3.0))
    late: int = 1
    """Rows by which pictures are late."""
    seed: int = 0
    """Seed of the noise."""


def film(scene: Scene, episode: Episode, shooting: Shooting | None = None, cameras: Sequence[str] = ()) -> Episode:
    """The episode of a scene with pictures of the scene's cameras (all where none are named), each with its stamp."""
    renderer = MujocoRenderer(scene)
    try:

        def taken(name: str, row: int) -> Array:
            return renderer.render(episode.q[row], scene.cameras[name])

        return developed(scene, episode, taken, shooting, cameras)
    finally:
        renderer.close()


def developed(
    scene: Scene, episode: Episode, taken: Taken, shooting: Shooting | None = None, cameras: Sequence[str] = ()
) -> Episode:
    """The episode with pictures that were taken already, in the simulated robot's own light and as late as it says."""
    shooting = shooting or Shooting()
    then = np.maximum(np.arange(len(episode)) - shooting.late, 0)
    columns: dict[str, Array] = {}
    shown: dict[str, Channel] = {}
    for number, name in enumerate(cameras or scene.cameras):
        camera = scene.cameras[name]
        exposure = _Exposure(shooting.look, (camera.height, camera.width, 3), (shooting.seed, number))
        pictures = np.empty((len(episode), camera.height, camera.width, 3), np.uint8)
        for row in range(len(episode)):
            pictures[row] = exposure.of(taken(name, int(then[row])), row)
        pictures.flags.writeable = False
        columns[IMAGES + name], columns[IMAGES + name + ".stamp"] = pictures, episode.t[then]
        shown[IMAGES + name] = Channel(("height", "width", "channels"), "", pictures.shape[1:], "uint8")
    spec = replace(episode.spec, observation={**episode.spec.observation, **shown})
    return replace(episode.with_columns(columns), spec=spec)


def warm(scene: Scene, sim: Simulator, correct: Correction) -> None:
    """Take a step and a correction on painted pictures, so that all that is compiled is ready before a robot waits.

    A robot stops when it hears nothing for half a second; a kernel that is loaded for the first time takes longer.
    """
    state = sim.step(sim.reset(0), rest_action(sim))
    found = correct.begin(state, painted(scene, state, state.t))
    for k in (1, 2):
        t = state.t + k * scene.dt
        found = correct(found.memory, state, painted(scene, state, t), t)
    sim.place(found.q, found.v, state.t)


def painted(scene: Scene, state: State, t: float) -> dict[str, Array]:
    """Flat pictures of a scene's first object as it stands, without any renderer: its silhouette in its own colour."""
    model, name = model_of(scene), scene.objects[0]
    shape, place = outline(model, name), place_of(scene.spec, name).transform(state.q)
    colour = (255 * colour_of(scene, name)[:3]).astype(np.uint8)
    seen: dict[str, Array] = {}
    for camera in scene.cameras.values():
        picture = np.full((camera.height, camera.width, 3), 100 + round(t / scene.dt) % 20, np.uint8)
        view = sight(shape, camera, place, place[:3, 3])
        if view.visible:
            left, top, right, bottom = view.region
            picture[top:bottom, left:right][view.coverage() > 0.5] = colour
        seen[IMAGES + camera.name], seen[IMAGES + camera.name + ".stamp"] = picture, np.asarray(t)
    return seen


class _Exposure:
    """Light and noise of one camera; noise is drawn once and shifted from frame to frame."""

    def __init__(self, look: ImageEffects, shape: tuple[int, ...], seed: tuple[int, ...]):
        self._look, self._shape = look, shape
        rng = np.random.default_rng(seed)
        size = int(np.prod(shape))
        self._bank = np.rint(rng.normal(0.0, look.sigma, BANK * size)).astype(np.int16)
        self._offsets = rng.integers(0, (BANK - 1) * size, 4096)
        # Light is linear in what is seen, so a table of all grey levels stands for it.
        levels = np.arange(256)[:, None] * (look.gain * np.asarray(look.tint))
        self._table = np.clip(np.rint(levels), 0, 255).astype(np.int16)

    def of(self, picture: Array, row: int) -> Array:
        """The picture as this camera shows it."""
        lit = np.stack([self._table[:, c][picture[..., c]] for c in range(3)], axis=-1)
        start = int(self._offsets[row % len(self._offsets)])
        noise = self._bank[start : start + lit.size].reshape(self._shape)
        return np.clip(lit + noise, 0, 255).astype(np.uint8)
