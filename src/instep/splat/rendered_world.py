"""Camera images rendered from Gaussians, as observations of a world.

`Seen` wraps any world and adds images; `RenderedCameras` is the set of cameras, Gaussians and kinematics of one scene,
read from a TOML file by `load_rendered_cameras`. It renders the body poses that the world's sensors report, with their
noise and delay: on a robot nothing else is known. Sensor gain, colour and noise can be randomised like any parameter.

Rendered cameras as they might be mounted, ground and lit elsewhere: place, direction, lens and texture at random.

The amounts come from a belief (`view.shift`, `.turn`, `.zoom`, `.lens`, `.texture`), directions from a seed, so that
one recording becomes images of many cameras; light, colour and noise are those of the `Sensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from instep.core import counter_rng
from instep.core.episode import Episode, by_label
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, normalized, quat_exp
from instep.core.reading import is_list, is_table, read_toml
from instep.core.world import (
    Array,
    Channel,
    Observation,
    Settings,
    Spec,
    State,
    W,
    Wrapper,
    array_dataclass,
    options_dataclass,
)
from instep.scene.camera import Camera, aimed_place, pinhole
from instep.scene.camera_files import load_calibration
from instep.scene.folder import Scene

from .gaussians import C0, concatenate
from .raster.rasterizer import Device, LayeredRasterizer
from .rendering import is_static, scene_gaussians, scene_poses

IMAGES = "observation.images."
POSE_CHANNELS = ("observation.state", "observation.environment_state")
"""RenderChannels that report positions of joints and bodies."""
_FILE_KEYS = ("gaussians", "calibration")
_CAMERA_KEYS = ("body", "at", "towards", "up", "angle", "size")
_MAX_SIDE_PX = 4096

Poses: TypeAlias = Callable[[State, Observation], Array]
"""Body poses [..., bodies, 7] of a state, in the order of the Gaussians' names."""
Amount: TypeAlias = float | Array
"""A number, or an array of one per world of a batch."""


@options_dataclass
class Sensor:
    """How light becomes pixel values."""

    gain: float = 1.0
    """Factor of brightness."""
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors of red, green, blue."""
    offset: float = 0.0
    """Black level, 0 to 1."""
    gamma: float = 1.0
    """Exponent after the gain; 1 is linear."""
    shot: float = 0.0
    """Standard deviation of shot noise at full brightness (0 to 1); it grows with the root of brightness."""
    read: float = 0.0
    """Standard deviation of read noise (0 to 1)."""

    @property
    def noisy(self) -> bool:
        """Whether two images of the same scene differ."""
        return self.shot > 0 or self.read > 0

    def adjusted(self, appearance: Settings) -> Sensor:
        """The sensor in another appearance: `appearance.brightness`, `.red`, `.green`, `.blue`, `.noise`."""

        def value(name: str, usual: float) -> float:
            return float(np.ravel(appearance.get(f"appearance.{name}", usual))[0])

        r, g, b = self.tint
        return replace(
            self,
            gain=self.gain * value("brightness", 1.0),
            tint=(r * value("red", 1.0), g * value("green", 1.0), b * value("blue", 1.0)),
            read=float(np.hypot(self.read, value("noise", 0.0) / 255.0)),
        )


@array_dataclass
class Seen(Wrapper[W]):
    """A world with rendered cameras: adds `observation.images.<camera>`, for one world or a batch.

    An image is rendered when it is first read from the observation.
    """

    layers: LayeredRasterizer
    """The Gaussians, on bodies."""
    cameras: tuple[Camera, ...]
    """Fixed in the world, or mounted on a body."""
    poses: Poses
    sensor: Sensor = field(default_factory=Sensor)
    brightness: Amount = 1.0
    """Factor on top of the sensor's gain."""
    red: Amount = 1.0
    green: Amount = 1.0
    blue: Amount = 1.0
    noise: Amount = 0.0
    """Standard deviation of further read noise [grey levels of 255]."""
    params: ClassVar[Mapping[str, str]] = {
        f"appearance.{name}": name for name in ("brightness", "red", "green", "blue", "noise")
    }

    @property
    def spec(self) -> Spec:
        """The world's spec, with the images."""
        return spec_with_images(self.world.spec, self.cameras)

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Seed the sensor noise."""
        return state.with_hidden(self.key, np.broadcast_to(counter_rng.key(seed, self.key), state.batch).copy())

    def step(self, state: State, action: Array) -> State:
        """Step the world, and the stream of sensor noise."""
        return self.world.step(state, action).with_hidden(self.key, counter_rng.next_key(state.hidden[self.key]))

    def observe(self, state: State) -> Observation:
        """The world's observation, with images that are rendered when they are read."""
        observed = self.world.observe(state)

        def image(number: int) -> Callable[[], Array]:
            return lambda: self._images(state, observed, number)

        return _LazyImages(observed, {IMAGES + c.name: image(i) for i, c in enumerate(self.cameras)})

    def _images(self, state: State, observed: Observation, number: int) -> Array:
        camera, poses = self.cameras[number], np.asarray(self.poses(state, observed), float)
        expected = (*state.batch, len(self.layers.gaussians.names), 7)
        if poses.shape != expected:
            raise BadInput(
                f"The poses of the rendered bodies have the shape {poses.shape}; {expected}, one xyz + wxyz for each "
                f"of {', '.join(self.layers.gaussians.names)}, was expected."
            )
        sensors = self._sensors(state.batch)
        if all(sensor == Sensor() for sensor in set(sensors)):
            return self.layers.render_batch(camera, poses)
        out = np.empty((*state.batch, camera.height, camera.width, 3), np.uint8)
        flat = poses.reshape(-1, *expected[-2:])
        keys = np.asarray(state.hidden[self.key])
        for world, sensor, colour in zip(
            np.ndindex(*state.batch), sensors, self.layers.render_colours(camera, flat), strict=True
        ):
            seed = int(counter_rng.uniform(keys[world], 1 + number)[-1] * 2**53)
            out[world] = apply_sensor(colour, sensor, seed)
        return out

    def _sensors(self, batch: tuple[int, ...]) -> list[Sensor]:
        """The sensor of every world; made once where all are alike."""
        if any(np.ndim(getattr(self, name)) for name in self.params.values()):
            return [self._sensor(world) for world in np.ndindex(*batch)]
        return [self._sensor(())] * int(np.prod(batch, dtype=int))

    def _sensor(self, world: tuple[int, ...]) -> Sensor:
        amounts = {address: getattr(self, name) for address, name in self.params.items()}
        chosen = {name: np.asarray(amount)[world] if np.ndim(amount) else amount for name, amount in amounts.items()}
        return self.sensor.adjusted(chosen)


@array_dataclass
class RenderedCameras:
    """Cameras that render the Gaussians of a scene: made once, used for every world of the scene."""

    scene: Scene
    layers: LayeredRasterizer
    cameras: tuple[Camera, ...]

    def on(self, world: W) -> Seen[W]:
        """The world with these cameras."""
        return Seen(world, self.layers, self.cameras, lambda state, observed: self.poses(observed, world.spec))

    def poses(self, observation: Observation, spec: Spec) -> Array:
        """Body poses [..., bodies, 7] by forward kinematics of what the sensors report."""
        reported = [name for name in POSE_CHANNELS if name in observation]
        if not reported:
            raise BadInput(f"Rendered cameras need the positions of joints and bodies: {' or '.join(POSE_CHANNELS)}.")
        values = np.concatenate([np.asarray(observation[name], float) for name in reported], axis=-1)
        labels = [label for name in reported for label in spec.observation[name].labels]
        q = by_label(values, labels, self.scene.spec.q.labels, self.scene.start(0)[0])
        return scene_poses(self.scene, self.layers.gaussians.names, q)

    def add_images(self, episode: Episode, sensor: Sensor | None = None, seed: int = 0) -> Episode:
        """The episode with the images that the cameras would have taken; sensor noise is that of the seed."""
        reported = {name: episode[name] for name in POSE_CHANNELS if name in episode}
        poses = self.poses(reported, episode.spec)
        images: dict[str, Array] = {}
        for number, camera in enumerate(self.cameras):
            if sensor is None or sensor == Sensor():
                images[IMAGES + camera.name] = self.layers.render_batch(camera, poses)
                continue
            colours = self.layers.render_colours(camera, poses)
            seeds = range((seed * len(self.cameras) + number) << 32, 1 << 63)
            frames = [apply_sensor(colour, sensor, frame) for colour, frame in zip(colours, seeds, strict=False)]
            images[IMAGES + camera.name] = np.stack(frames)
        return replace(episode.with_columns(images), spec=spec_with_images(episode.spec, self.cameras))


def spec_with_images(spec: Spec, cameras: Sequence[Camera]) -> Spec:
    """A spec whose observations hold an image of every camera."""
    axes = ("height", "width", "channels")
    images = {IMAGES + c.name: Channel(axes, "", (c.height, c.width, 3), "uint8") for c in cameras}
    return replace(spec, observation={**spec.observation, **images})


def apply_sensor(colour: Array, sensor: Sensor, seed: int = 0) -> Array:
    """Colours 0 to 1 as a sensor reads them, uint8; its noise is that of the seed."""
    light = np.asarray(colour, np.float32) * (np.float32(sensor.gain) * np.asarray(sensor.tint, np.float32))
    if sensor.noisy:
        rng = np.random.default_rng((seed, 0x5E15E))
        sigma = np.sqrt(sensor.read**2 + sensor.shot**2 * np.clip(light, 0.0, None)).astype(np.float32)
        light = light + sigma * rng.standard_normal(light.shape, np.float32)
    light = np.clip(light + np.float32(sensor.offset), 0.0, 1.0)
    if sensor.gamma != 1.0:
        light = light ** np.float32(sensor.gamma)
    return (light * 255.0 + 0.5).astype(np.uint8)


class _LazyImages(Mapping[str, Array]):
    """An observation whose images are rendered when they are first read."""

    def __init__(self, observed: Observation, render: Mapping[str, Callable[[], Array]]):
        self._observed, self._render = observed, render
        self._images: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._render:
            return self._observed[name]
        if name not in self._images:
            self._images[name] = self._render[name]()
        return self._images[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._observed, *self._render))

    def __len__(self) -> int:
        return len(self._observed) + len(self._render)

    def __contains__(self, name: object) -> bool:
        return name in self._observed or name in self._render


def load_rendered_cameras(
    path: Path, scene: Scene, only: Sequence[str] = (), *, threads: int | None = None, device: Device = "cpu"
) -> RenderedCameras:
    """The rendered cameras of a TOML file, some of them where they are named; see docs/formats/policy_map.md."""
    table = read_toml(path)
    bodies = [scene.model.body(b).name for b in range(scene.model.nbody)]
    file = table.get("calibration")
    known = {} if file is None else dict(load_calibration(path.parent / str(file)).cameras)
    for camera in known.values():
        if camera.body not in bodies:
            raise UnknownName(f"body for camera {camera.name!r}", camera.body, bodies)
    known |= {name: _camera(name, given, bodies, path) for name, given in table.items() if name not in _FILE_KEYS}
    for name in only:
        if name not in known:
            raise UnknownName(f"camera in {path.name}", name, known)
    cameras = tuple(known[name] for name in (only or known))
    if not cameras:
        raise BadInput(f"{path.name} describes no camera; a table such as [static] with at and towards was expected.")
    scan = table.get("gaussians")
    gaussians = scene_gaussians(scene, None if scan is None else path.parent / str(scan))
    # A camera's body needs a pose even where it carries no Gaussians.
    names = tuple(dict.fromkeys([*gaussians.names, *(c.body for c in cameras)]))
    static = [name for name in names if is_static(scene, name)]
    layers = LayeredRasterizer(concatenate([gaussians], names), static, threads=threads, device=device)
    return RenderedCameras(scene, layers, cameras)


def _camera(name: str, given: Any, bodies: list[str], path: Path) -> Camera:
    if not is_table(given):
        raise BadInput(f"{name!r} in {path.name} is no camera; a table with at and towards was expected.")
    for key in given:
        if key not in _CAMERA_KEYS:
            raise UnknownName(f"entry of camera {name!r} in {path.name}", key, _CAMERA_KEYS)
    body = str(given.get("body", "world"))
    if body not in bodies:
        raise UnknownName("body", body, bodies)
    at, towards = (_point(given.get(key), f"{key} of camera {name!r} in {path.name}") for key in ("at", "towards"))
    up = _point(given.get("up", [0.0, 0.0, 1.0]), f"up of camera {name!r} in {path.name}")
    size, angle = given.get("size", [96, 96]), given.get("angle", 60.0)
    if not (is_list(size) and len(size) == 2 and all(type(n) is int and 8 <= n <= _MAX_SIDE_PX for n in size)):
        raise BadInput(f"size of camera {name!r} in {path.name} must be [width, height] in pixels, not {size!r}.")
    if not isinstance(angle, int | float) or not 1 <= angle <= 150:
        raise BadInput(f"angle of camera {name!r} in {path.name} must be 1 to 150 degrees across, not {angle!r}.")
    place = aimed_place(name, at, towards, up)
    return replace(pinhole(name, (size[0], size[1]), angle), body=body, body_from_camera=place)


def _point(given: Any, what: str) -> Array:
    try:
        point = np.asarray(given, float)
    except (TypeError, ValueError):
        point = np.zeros(0)
    if point.shape != (3,) or not np.isfinite(point).all():
        raise BadInput(f"{what} must be a point [x, y, z] in metres, not {given!r}.")
    return point


PATCH_M = 0.03
"""Size of the patches of a surface that change their colour together [m]."""


def randomized_views(
    cameras: RenderedCameras, amounts: Settings, seed: int = 0, *, device: Device = "cpu"
) -> RenderedCameras:
    """The cameras moved by `view.shift` [m] and `view.turn` [rad] in random directions, with focal lengths times
    `view.zoom`, the radial distortion `view.lens` added, and surfaces recoloured by the share `view.texture`."""
    rng = np.random.default_rng((seed, 0x71E3))
    moved = tuple(_moved(camera, amounts, rng) for camera in cameras.cameras)
    texture, layers = _amount(amounts, "texture", 0.0), cameras.layers
    if texture > 0:
        # The colours of each patch of a body times factors of its own.
        cells = np.floor(layers.gaussians.means / PATCH_M).astype(int)
        _, patch = np.unique(np.column_stack([layers.gaussians.body, cells]), axis=0, return_inverse=True)
        factors = np.exp(texture * rng.standard_normal((int(patch.max()) + 1, 3)))[np.ravel(patch)]
        sh = layers.gaussians.sh.copy()
        sh[:, 0] = (layers.gaussians.colours * factors - 0.5) / C0
        painted = replace(layers.gaussians, sh=sh.astype(layers.gaussians.sh.dtype))
        static = [name for name in painted.names if is_static(cameras.scene, name)]
        layers = LayeredRasterizer(painted, static, device=device)
    return replace(cameras, layers=layers, cameras=moved)


def _amount(amounts: Settings, name: str, usual: float) -> float:
    return float(np.ravel(amounts.get(f"view.{name}", usual))[0])


def _moved(camera: Camera, amounts: Settings, rng: np.random.Generator) -> Camera:
    aside, axis = normalized(rng.standard_normal((2, 3)))
    place = np.eye(4)
    place[:3, 3] = _amount(amounts, "shift", 0.0) * aside
    place[:3, :3] = matrix_from_quat(quat_exp(_amount(amounts, "turn", 0.0) * axis))
    zoom, lens = _amount(amounts, "zoom", 1.0), _amount(amounts, "lens", 0.0)
    bent = ((*camera.distortion, 0.0)[0] + lens, *camera.distortion[1:]) if lens else camera.distortion
    focal = (camera.focal[0] * zoom, camera.focal[1] * zoom)
    return replace(camera, body_from_camera=camera.body_from_camera @ place, focal=focal, distortion=bent)
