"""The cameras of a twin: frames by their stamps, and the segmented crops of a body in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.records import array_dataclass
from instep.core.world import Array, Observation
from instep.scene.camera import Camera, moves, standing
from instep.scene.folder import Scene
from instep.splat.image import Region

from .projection import Outline, calibrated, silhouette
from .segmentation import (
    MIN_PURITY,
    NO_COLOUR,
    ColourMask,
    background_of,
    colour_mask,
    colour_of,
    initial_strength,
    is_coloured,
    segment,
)
from .silhouette_kernels import MaskPixels

IMAGES = "observation.images."
MAX_MARGIN_PX = 30
"""Pixels around the predicted body that are segmented, at most."""
MIN_MARGIN_PX = 14
"""Pixels that are segmented around a certain prediction."""
MARGIN_PX_PER_M = 2000.0
"""Further pixels per standard deviation [1/m]: a camera half a metre away shows 500 pixels per metre."""
BACKGROUND_SAMPLES = 48
"""Frames per camera from which its background is estimated."""


@array_dataclass
class CameraFrame:
    """One image and when it was taken."""

    camera: Camera
    pixels: Array
    stamp: float
    fingerprint: float
    """A hash of the pixels: two different images hardly ever share it."""


@array_dataclass
class PointTracks:
    """Points of a body's texture that one image shows."""

    places: Array
    """In the body's frame [n, 3] [m]."""
    measured: Array
    """In the image [n, 2] [pixels]."""
    slots: Array
    """Where they are remembered [n]."""
    missed: Array
    """Where those are remembered that should be visible and were not found."""
    sigma: float = 0.8
    """Standard deviation of a measured point, that of its place on the body included [pixels]."""

    @property
    def followed(self) -> int:
        """Points that should be visible, found or not."""
        return len(self.slots) + len(self.missed)


@array_dataclass
class MaskCrop:
    """The segmented pixels around one body in one camera."""

    camera: Camera
    mask: Array
    """Share of each pixel that shows the body [height, width], of the pixels of `region`."""
    weight: Array
    """Weight of each pixel [height, width]: 0 where something occludes it."""
    region: Region
    world_from_body: Array
    """The predicted transform of the body when the image was taken (4 x 4)."""
    chroma: float = 0.0
    """Chroma of the body in this light [grey levels]."""
    background: Array | None = None
    """The background of these pixels [height, width, 3] [grey levels]; None where it is not known."""
    points: PointTracks | None = None
    """Points of the body's texture in this image; None where none are followed."""

    @property
    def pixels(self) -> MaskPixels:
        """Mask, weight and region, as the kernels take them."""
        return self.mask, self.weight, self.region


@array_dataclass
class CameraRig:
    """Cameras, the backgrounds of those that are fixed, and the colour of the tracked body."""

    cameras: tuple[Camera, ...]
    mask: ColourMask
    backgrounds: Mapping[str, Array] = field(default_factory=dict[str, Array])

    @classmethod
    def of(cls, scene: Scene, cameras: tuple[Camera, ...] | None = None) -> CameraRig:
        """The cameras of a scene (all where none are given), for the first object of the scene."""
        known = tuple(scene.cameras.values()) if cameras is None else cameras
        return cls(known, colour_mask(colour_of(scene, scene.objects[0])))

    @classmethod
    def automatic(cls, scene: Scene, cameras: tuple[Camera, ...]) -> CameraRig:
        """Cameras that know the colour of the scene's only body, where it has one to segment it by."""
        if len(scene.objects) != 1 or scene.jointed or not is_coloured(colour_of(scene, scene.objects[0])):
            return cls.unnamed(cameras)
        return cls.of(scene, cameras)

    @property
    def coloured(self) -> bool:
        """Whether the colour of the tracked body is known."""
        return bool(self.mask.chroma.any())

    @classmethod
    def unnamed(cls, cameras: tuple[Camera, ...]) -> CameraRig:
        """Cameras of bodies whose colours are learned."""
        return cls(cameras, NO_COLOUR)

    def frames(self, observation: Observation, t: float) -> list[CameraFrame | None]:
        """The newest frame of each camera; None where there is none, or where it has another size."""
        return [self._frame(camera, observation, t) for camera in self.cameras]

    def crop(
        self, frame: CameraFrame, outline: Outline, world_from_body: Array, strength: float, margin: int = MAX_MARGIN_PX
    ) -> MaskCrop | None:
        """The pixels around a body, segmented; None where the camera cannot see that place."""
        camera = frame.camera
        region: Region = silhouette.body_region(outline.corners, world_from_body, calibrated(camera), margin)
        left, top, right, bottom = region
        if right - left <= 2 or bottom - top <= 2:
            return None
        pixels = frame.pixels[top:bottom, left:right]
        whole = self.backgrounds.get(camera.name)
        background = None if whole is None else whole[top:bottom, left:right]
        mask, weight = segment(self.mask, pixels, strength, background)
        chroma = float(silhouette.median_chroma(pixels, self.mask.chroma, float(strength), 1.6 * MIN_PURITY))
        return MaskCrop(camera, mask, weight, region, world_from_body, chroma, background)

    def _frame(self, camera: Camera, observation: Observation, t: float) -> CameraFrame | None:
        name = IMAGES + camera.name
        if name not in observation:
            return None
        pixels = np.asarray(observation[name])
        if pixels.shape != (camera.height, camera.width, 3) or pixels.dtype != np.uint8:
            return None
        stamp = float(observation[name + ".stamp"]) if name + ".stamp" in observation else t
        if not np.isfinite(stamp):
            return None
        sampled = pixels[5::16, 7::16].astype(np.int64).ravel()
        return CameraFrame(camera, pixels, stamp, float(sampled @ _HASH_WEIGHTS[: sampled.size]))


_HASH_WEIGHTS = np.random.default_rng(7).integers(1, 1 << 30, 1 << 16)


def segmented_margin(covariance: Array) -> int:
    """Pixels around a predicted pose that are segmented: more, the larger its covariance [6, 6]."""
    sigma = float(np.sqrt(np.max(np.diag(covariance)[:3])))
    return min(max(round(MIN_MARGIN_PX + MARGIN_PX_PER_M * sigma), MIN_MARGIN_PX), MAX_MARGIN_PX)


def recorded_rig(scene: Scene, episode: Episode) -> CameraRig:
    """The cameras of a scene that a recording holds, each with its background, for a body of a known colour."""
    cameras = recorded_cameras(scene, episode)
    if len(scene.objects) != 1:
        raise BadInput(f"The twin tracks one coloured body, and scene {scene.name!r} has {len(scene.objects)}.")
    mask = colour_mask(colour_of(scene, scene.objects[0]))
    rows = np.unique(np.linspace(0, len(episode) - 1, min(BACKGROUND_SAMPLES, len(episode))).astype(int))
    backgrounds: dict[str, Array] = {}
    for camera in cameras:
        images = np.asarray(episode[IMAGES + camera.name][rows])
        backgrounds[camera.name] = background_of(images, mask, recorded_strength(mask, images))
    return CameraRig(cameras, mask, backgrounds)


def recorded_cameras(scene: Scene, episode: Episode) -> tuple[Camera, ...]:
    """The cameras of a scene that a recording holds, under the names of the recording.

    A scene may be built from files that are named by the serial number of a camera, `220422302296`, and a recording may
    call the same camera `cam_220422302296`: names are the same where one ends in the other.
    """
    shown = [c.removeprefix(IMAGES) for c in episode.columns if c.startswith(IMAGES) and not c.endswith(".stamp")]
    cameras: list[Camera] = []
    for name, camera in scene.cameras.items():
        alike = [label for label in shown if _same_camera(name, label)] if name not in shown else [name]
        if len(alike) == 1 and (alike[0] == name or alike[0] not in scene.cameras):
            cameras.append(replace(camera, name=alike[0]))
    if not cameras:
        raise UnknownName("camera of the scene", shown[0] if shown else "any", scene.cameras)
    for camera in cameras:
        if moves(scene.model, camera):
            raise BadInput(
                f"Camera {camera.name!r} moves with {camera.body!r}, and a recording is tracked without the joints of "
                "the robot; leave its images out: instep data export, with --cameras and the names of the others."
            )
    return standing(scene.model, cameras)


def _same_camera(one: str, other: str) -> bool:
    """Whether one name is the other with something before it, such as `cam_`."""
    short, long = sorted((one, other), key=len)
    before = long.removesuffix(short)
    return before != long and before[-1:] in ("_", "-", ".", "/")


def recorded_frames(rig: CameraRig, episode: Episode, row: int) -> list[CameraFrame]:
    """The frames of one row of a recording."""
    out: list[CameraFrame] = []
    for camera in rig.cameras:
        name = IMAGES + camera.name
        stamp = float(episode[name + ".stamp"][row]) if name + ".stamp" in episode else float(episode.t[row])
        out.append(CameraFrame(camera, np.asarray(episode[name][row]), stamp, 0.0))
    return out


def recorded_strength(mask: ColourMask, images: Any) -> float:
    """The chroma of the body in this light: the median over five images."""
    rows = np.linspace(0, len(images) - 1, 5).astype(int)
    return float(np.median([initial_strength(mask, np.asarray(images[int(row)])) for row in rows]))


def align_stamps(episode: Episode) -> Episode:
    """The episode with its image stamps on the clock of its rows.

    Rows are counted from the start of the episode, stamps of some recordings from the start of their clock. Where the
    stamps lie nearer to the rows after the start is subtracted, it is subtracted.
    """
    start, columns = float(episode.meta.get("start", 0.0)), dict[str, Array]()
    for name in episode.columns:
        if name.endswith(".stamp"):
            stamps = np.asarray(episode[name], float)
            ahead = float(np.median(stamps - episode.t))
            columns[name] = stamps - start if abs(ahead - start) < abs(ahead) else stamps
    return episode.with_columns(columns)
