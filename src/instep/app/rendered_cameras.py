"""Virtual cameras: pictures for policies, rendered from Gaussians and from what a world's sensors tell.

A twin knows where things are, so it can show them from anywhere: from a stand that nobody built, or from the robot's
own hand. What is rendered is what sensors report, with their noise and delay, not what a simulation knows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode, by_label
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Channel, Observation, Spec, State, W, World, Wrapper
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.scene.model import body_poses
from instep.splat.raster.rasterizer import LayeredRasterizer

from .output import content_hash
from .world_specs import world_from_eval_spec

PLACES = ("observation.state", "observation.environment_state")
"""Channels that tell where things are."""
_KEYS = ("body", "at", "towards", "up", "angle", "size")
_LARGEST = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What is seen by which cameras: made once for a scene, used for every world of it."""

    scene: Scene
    layers: LayeredRasterizer
    cameras: tuple[Camera, ...]

    def look(self, camera: Camera, observation: Observation, spec: Spec) -> Array:
        """Pictures [..., height, width, 3] of a camera where sensors say that things are."""
        told = [name for name in PLACES if name in observation]
        if not told:
            raise BadInput(f"Virtual cameras need to be told where things are, by {' or '.join(PLACES)}.")
        values = np.concatenate([np.asarray(observation[name], float) for name in told], axis=-1)
        labels = [label for name in told for label in spec.observation[name].labels]
        q = by_label(values, labels, self.scene.spec.q.labels, self.scene.start(0)[0])
        poses = self._poses(q.reshape(-1, q.shape[-1]))
        return self.layers.render_batch(camera, poses).reshape(*q.shape[:-1], camera.height, camera.width, 3)

    def develop(self, episode: Episode) -> Episode:
        """The episode with the pictures that the cameras would have taken, from what its sensors told."""
        told = {name: episode[name] for name in PLACES if name in episode}
        taken = {f"observation.images.{c.name}": self.look(c, told, episode.spec) for c in self.cameras}
        return replace(episode.with_columns(taken), spec=self.richer(episode.spec))

    def richer(self, spec: Spec) -> Spec:
        """What the numbers mean, pictures included."""
        axes = ("height", "width", "channels")
        shown = {
            f"observation.images.{c.name}": Channel(axes, "", (c.height, c.width, 3), "uint8") for c in self.cameras
        }
        return replace(spec, observation={**spec.observation, **shown})

    def _poses(self, q: Array) -> Array:
        model = self.scene.model
        still = np.broadcast_to(np.eye(7)[3], (len(q), 1, 7))
        rows = [model.body(name).id for name in self.layers.gaussians.names]
        return np.concatenate([still, body_poses(model, q)], axis=-2)[:, rows]


@dataclass(frozen=True, slots=True, eq=False)
class Virtual(Wrapper[W]):
    """A world with virtual cameras: `observation.images.<camera>` is rendered when a policy looks at it."""

    sight: Sight

    @property
    def spec(self) -> Spec:
        """What the numbers mean, pictures included."""
        return self.sight.richer(self.world.spec)

    def observe(self, state: State) -> Observation:
        """What is observed, with pictures that cost nothing until they are looked at."""
        seen, spec = self.world.observe(state), self.world.spec
        draw = {
            f"observation.images.{c.name}": (lambda c=c: self.sight.look(c, seen, spec)) for c in self.sight.cameras
        }
        return _Pictured(seen, draw)


class _Pictured(Mapping[str, Array]):
    """An observation whose pictures are drawn when they are asked for, once."""

    def __init__(self, seen: Observation, draw: Mapping[str, Callable[[], Array]]):
        self._seen, self._draw = seen, draw
        self._drawn: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._draw:
            return self._seen[name]
        if name not in self._drawn:
            self._drawn[name] = self._draw[name]()
        return self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._seen, *self._draw))

    def __len__(self) -> int:
        return len(self._seen) + len(self._draw)

    def __contains__(self, name: object) -> bool:
        return name in self._seen or name in self._draw


def open_seen(words: str, scene: str, virtual: Path | None, cameras: Sequence[str] = (), every: int = 1) -> World:
    """The world that words stand for, seen by virtual cameras of a file, or by cameras of the scene where none is."""
    if virtual is None:
        return world_from_eval_spec(words, scene, cameras, every)
    world = world_from_eval_spec(words, scene)
    return Virtual(world, read_sight(virtual, Scene.load(words.partition("@")[2] or scene), cameras))


def sight_mark(virtual: Path | None, cameras: Sequence[str], every: int) -> str:
    """What distinguishes results that were seen by these cameras from others."""
    if virtual is None:
        return f"/{','.join(cameras)}/{every}" if cameras else ""
    scan = _table(virtual).get("gaussians")
    files = (virtual,) if scan is None else (virtual, virtual.parent / str(scan))
    return "".join(f"/{content_hash(file)}" for file in files if file.exists()) + f"/{','.join(cameras)}"


def read_sight(path: Path, scene: Scene, only: Sequence[str] = (), threads: int | None = None) -> Sight:
    """The virtual cameras of a file (TOML), some of them where they are named; see docs/policy.md."""
    table = _table(path)
    given = {name: entry for name, entry in table.items() if name != "gaussians"}
    for name in only:
        if name not in given:
            raise UnknownName(f"camera in {path.name}", name, given)
    bodies = [scene.model.body(b).name for b in range(scene.model.nbody)]
    cameras = tuple(_camera(name, given[name], bodies, path) for name in (only or given))
    if not cameras:
        raise BadInput(f"{path.name} describes no camera; a table such as [static] with at and towards was expected.")
    gaussians = _gaussians(table.get("gaussians"), path, scene)
    # A camera's body needs a place among the poses even where it carries nothing that can be seen.
    names = tuple(dict.fromkeys([*gaussians.names, *(c.body for c in cameras)]))
    static = [name for name in names if name == "world" or _fixed(scene, name)]
    return Sight(scene, LayeredRasterizer(_named(gaussians, names), static, threads=threads), cameras)


def _named(gaussians: Any, names: tuple[str, ...]) -> Any:
    from instep.splat.gaussians import concatenate

    return concatenate([gaussians], names)


def _fixed(scene: Scene, name: str) -> bool:
    """Whether a body never moves: nothing between it and the world has a joint."""
    model = scene.model
    return int(model.body_weldid[model.body(name).id]) == 0


def _gaussians(given: Any, path: Path, scene: Scene) -> Any:
    if given is None:
        from instep.splat.gaussians_from_geoms import gaussians_from_geoms

        return gaussians_from_geoms(scene)
    from instep.splat.io import load

    found = load(path.parent / str(given))
    known = [scene.model.body(b).name for b in range(scene.model.nbody)]
    for name in found.names:
        if name not in known:
            raise UnknownName(f"body (named in {given})", name, known)
    return found


def _camera(name: str, given: Any, bodies: list[str], path: Path) -> Camera:
    if not isinstance(given, dict):
        raise BadInput(f"{name!r} in {path.name} is no camera; a table with at and towards was expected.")
    for key in given:
        if key not in _KEYS:
            raise UnknownName(f"entry of camera {name!r} in {path.name}", key, _KEYS)
    body = str(given.get("body", "world"))
    if body not in bodies:
        raise UnknownName("body", body, bodies)
    at, towards = (_point(given.get(key), f"{key} of camera {name!r} in {path.name}") for key in ("at", "towards"))
    up = _point(given.get("up", [0.0, 0.0, 1.0]), f"up of camera {name!r} in {path.name}")
    size, angle = given.get("size", [96, 96]), given.get("angle", 60.0)
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and 8 <= n <= _LARGEST for n in size)):
        raise BadInput(f"size of camera {name!r} in {path.name} must be [width, height] in pixels, not {size!r}.")
    if not isinstance(angle, int | float) or not 1 <= angle <= 150:
        raise BadInput(f"angle of camera {name!r} in {path.name} must be 1 to 150 degrees across, not {angle!r}.")
    focal = size[0] / 2 / np.tan(np.radians(angle) / 2)
    place = _looking(at, towards, up, name)
    return Camera(name, size[0], size[1], (focal, focal), (size[0] / 2, size[1] / 2), body, place)


def _looking(at: Array, towards: Array, up: Array, name: str) -> Array:
    """body_from_camera (4 x 4) of a camera at a point that looks towards another, `up` being upwards in its image."""
    ahead = towards - at
    right = np.cross(ahead, up)
    if np.linalg.norm(ahead) < 1e-9 or np.linalg.norm(right) < 1e-6 * np.linalg.norm(ahead) * np.linalg.norm(up):
        raise BadInput(f"Camera {name!r} looks nowhere, or along its 'up'; a camera that looks down needs another up.")
    ahead, right = ahead / np.linalg.norm(ahead), right / np.linalg.norm(right)
    place = np.eye(4)
    place[:3, :3], place[:3, 3] = np.stack([right, np.cross(ahead, right), ahead], axis=1), at
    return place


def _point(given: Any, what: str) -> Array:
    try:
        point = np.asarray(given, float)
    except (TypeError, ValueError):
        point = np.zeros(0)
    if point.shape != (3,) or not np.isfinite(point).all():
        raise BadInput(f"{what} must be a point [x, y, z] in metres, not {given!r}.")
    return point


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"Virtual cameras {str(path)!r} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path.name} is not valid TOML: {error}.") from None
