"""The cameras of a twin: frames with stamps, and crops of a body segmented by a known colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Observation, array_dataclass
from instep.scene.camera import Camera, moves, standing
from instep.scene.folder import Scene
from instep.splat.image import Region

from .body_outlines import Outline, calibrated, silhouette_kernels, visible_geoms
from .silhouette_kernels import MaskPixels

region_kernels: Any = import_module("instep.twin.region_kernels")

IMAGES = "observation.images."
MAX_MARGIN_PX = 30
"""Largest margin around the predicted body that is segmented [pixels]."""
MIN_MARGIN_PX = 14
"""Margin around a certain prediction [pixels]."""
MARGIN_PX_PER_M = 2000.0
"""Additional margin per standard deviation: a camera half a metre away shows 500 pixels per metre [1/m]."""
BACKGROUND_SAMPLES = 48
"""Frames of a recording that give the background of a camera."""


@array_dataclass
class CameraFrame:
    """One image with its time stamp."""

    camera: Camera
    pixels: Array
    stamp: float
    fingerprint: float
    """A hash of the pixels."""


Shown: TypeAlias = Sequence[tuple[int, CameraFrame]]
"""Images with the index of their camera."""


@array_dataclass
class PointTracks:
    """Texture points of a body in one image."""

    places: Array
    """In the body's frame [n, 3] [m]."""
    measured: Array
    """In the image [n, 2] [pixels]."""
    slots: Array
    """Their slots [n]."""
    missed: Array
    """Slots of points that should be visible and were not found."""
    sigma: float = 0.8
    """Standard deviation of a measured point, including its place on the body [pixels]."""

    @property
    def followed(self) -> int:
        """The number of points that should be visible."""
        return len(self.slots) + len(self.missed)


@array_dataclass
class MaskCrop:
    """The segmented pixels around one body in one camera."""

    camera: Camera
    mask: Array
    """Share of each pixel of the region that shows the body [height, width]."""
    weight: Array
    """Weight of each pixel [height, width]; 0 if occluded."""
    region: Region
    world_from_body: Array
    """The predicted transform of the body at the stamp of the image (4 x 4)."""
    chroma: float = 0.0
    """Chroma of the body in this light [grey levels]."""
    points: PointTracks | None = None
    """Texture points of the body in this image."""

    @property
    def pixels(self) -> MaskPixels:
        """Mask, weight and region for the kernels."""
        return self.mask, self.weight, self.region


def body_region(outline: Outline, camera: Camera, world_from_body: Array, margin: int) -> Region | None:
    """The pixels around a body; None if it is out of view."""
    region: Region = silhouette_kernels.body_region(outline.corners, world_from_body, calibrated(camera), margin)
    left, top, right, bottom = region
    return region if right - left > 2 and bottom - top > 2 else None


FULL_CHROMA_SHARE = 0.9
"""Share of the median chroma that counts as wholly the body, for its darker faces."""
MIN_PURITY = 0.24
"""Chroma over brightness below which a pixel reflects warm light."""
MIN_CHROMA = 0.1
"""Least distance from grey of a colour that segments a body [0 to 1]."""
SHADING = (0.5, 1.3)
"""Range of brightness factors of light and shadow."""
OVEREXPOSED_LEVEL = 225
"""Level of all channels from which a pixel is overexposed [grey levels]."""
MAX_BACKGROUND_ERROR = 30.0
"""Difference from the shaded background from which something is in front of it [grey levels]."""


@array_dataclass
class ColourMask:
    """Segments a coloured body in a grey world by the chroma of pixels.

    A pixel that shows a share m of the body and 1 - m of something grey has m times the body's chroma.
    """

    chroma: Array
    """Unit vector in colour space, orthogonal to grey [3]."""

    def strength(self, pixels: Array, expected: float) -> float:
        """The chroma of the body in this light: the median of pixels that are clearly coloured."""
        return float(region_kernels.median_chroma(pixels, self.chroma, float(expected), 1.6 * MIN_PURITY))

    def initial_strength(self, image: Array) -> float:
        """The chroma of a body somewhere in an image, estimated from the strongest pixels."""
        along = np.sort((image[::2, ::2].astype(np.float32) @ self.chroma.astype(np.float32)).ravel())
        return self.strength(image, max(float(np.median(along[-100:])), 20.0))

    def recorded_strength(self, images: Any) -> float:
        """The chroma of the body in the light of a recording: the median over five images."""
        rows = np.linspace(0, len(images) - 1, 5).astype(int)
        return float(np.median([self.initial_strength(np.asarray(images[int(row)])) for row in rows]))

    def segment(self, pixels: Array, strength: float, background: Array | None, halo: int = 2) -> tuple[Array, Array]:
        """Mask and weight of pixels [height, width].

        A pixel is occluded if it shows neither the body nor the background in any shading, or is overexposed; so are
        `halo` pixels around it. Pale reflections of warm light do not show the body.
        """
        behind = np.zeros((0, 0, 3), np.float32) if background is None else background
        limits = (FULL_CHROMA_SHARE, MIN_PURITY, float(OVEREXPOSED_LEVEL), MAX_BACKGROUND_ERROR, *SHADING)
        return region_kernels.segment_pixels(pixels, self.chroma, float(strength), behind, limits, halo)


NO_COLOUR = ColourMask(np.zeros(3))
"""The mask of bodies whose colours are learned."""


def colour_mask(rgb: Array) -> ColourMask:
    """The mask of a body of this colour (0 to 1)."""
    colour = np.asarray(rgb, float)[:3]
    if not is_coloured(colour):
        raise BadInput(
            f"The colour {colour.round(2).tolist()} is nearly grey, so a twin cannot segment the body by it; "
            "give the body's material a colour, or learn its colours with --residual learned."
        )
    chroma = colour - colour.mean()
    return ColourMask(chroma / np.linalg.norm(chroma))


def is_coloured(rgb: Array) -> bool:
    """Whether a colour (0 to 1) is far enough from grey to segment a body by it."""
    colour = np.asarray(rgb, float)[:3]
    return float(np.linalg.norm(colour - colour.mean())) >= MIN_CHROMA


def colour_of(scene: Scene, body: str) -> Array:
    """The colour of a body: that of its first visible geom."""
    model = scene.model
    for g in visible_geoms(model, model.body(body).id):
        material = int(model.geom_matid[g])
        return np.array(model.mat_rgba[material] if material >= 0 else model.geom_rgba[g], float)
    raise BadInput(f"The body {body!r} has no visible geom, so it has no colour to segment it by.")


@array_dataclass
class CameraRig:
    """Cameras, backgrounds of fixed ones, and the colour of the tracked body."""

    cameras: tuple[Camera, ...]
    mask: ColourMask = NO_COLOUR
    """That of the body's colour; by default colours are learned."""
    backgrounds: Mapping[str, Array] = field(default_factory=dict[str, Array])

    @classmethod
    def of(cls, scene: Scene, cameras: tuple[Camera, ...] | None = None) -> CameraRig:
        """Cameras (by default all of the scene) and the colour of the scene's first object."""
        known = tuple(scene.cameras.values()) if cameras is None else cameras
        return cls(known, colour_mask(colour_of(scene, scene.objects[0])))

    @classmethod
    def automatic(cls, scene: Scene, cameras: tuple[Camera, ...]) -> CameraRig:
        """Cameras, and the colour of the scene's only body if it is saturated."""
        named = len(scene.objects) == 1 and not scene.jointed and is_coloured(colour_of(scene, scene.objects[0]))
        return cls.of(scene, cameras) if named else cls(cameras)

    @property
    def coloured(self) -> bool:
        """Whether the colour of the tracked body is known."""
        return bool(self.mask.chroma.any())

    def frames(self, observation: Observation, t: float) -> list[CameraFrame | None]:
        """The newest frame of each camera; None if there is none, or if its size, type or stamp is wrong."""
        out: list[CameraFrame | None] = []
        for camera in self.cameras:
            name = IMAGES + camera.name
            pixels = np.asarray(observation[name]) if name in observation else np.zeros(0)
            stamp = float(observation.get(name + ".stamp", t))
            good = pixels.shape == (camera.height, camera.width, 3) and pixels.dtype == np.uint8 and np.isfinite(stamp)
            sampled = pixels[5::16, 7::16].astype(np.int64).ravel() if good else pixels
            hashed = float(sampled @ _HASH_WEIGHTS[: sampled.size]) if good else 0.0
            out.append(CameraFrame(camera, pixels, stamp, hashed) if good else None)
        return out

    def crop(
        self, frame: CameraFrame, outline: Outline, world_from_body: Array, strength: float, margin: int = MAX_MARGIN_PX
    ) -> MaskCrop | None:
        """The segmented pixels around a body; None if it is out of view."""
        region = body_region(outline, frame.camera, world_from_body, margin)
        if region is None:
            return None
        left, top, right, bottom = region
        pixels, whole = frame.pixels[top:bottom, left:right], self.backgrounds.get(frame.camera.name)
        mask, weight = self.mask.segment(pixels, strength, None if whole is None else whole[top:bottom, left:right])
        return MaskCrop(frame.camera, mask, weight, region, world_from_body, self.mask.strength(pixels, strength))


_HASH_WEIGHTS = np.random.default_rng(7).integers(1, 1 << 30, 1 << 16)


def segmented_margin(covariance: Array) -> int:
    """Margin around a predicted pose with a covariance [6, 6] [pixels]."""
    sigma = float(np.sqrt(np.max(np.diag(covariance)[:3])))
    return min(max(round(MIN_MARGIN_PX + MARGIN_PX_PER_M * sigma), MIN_MARGIN_PX), MAX_MARGIN_PX)


def recorded_rig(scene: Scene, episode: Episode) -> CameraRig:
    """The cameras of a recording with their backgrounds, for a body of a known colour."""
    if len(scene.objects) != 1:
        raise BadInput(f"The twin tracks one coloured body, and scene {scene.name!r} has {len(scene.objects)}.")
    rig = CameraRig.of(scene, recorded_cameras(scene, episode))
    rows = np.unique(np.linspace(0, len(episode) - 1, min(BACKGROUND_SAMPLES, len(episode))).astype(int))
    sampled = {camera.name: np.asarray(episode[IMAGES + camera.name][rows]) for camera in rig.cameras}
    return replace(rig, backgrounds={name: _background(images, rig.mask) for name, images in sampled.items()})


def _background(images: Array, mask: ColourMask) -> Array:
    """The background of a fixed camera [height, width, 3].

    The lower quartile over images in which the pixel neither shows the body nor is overexposed, since an arm may stand
    in one place for half of the time. Pixels that were never free take the median of the others.
    """
    strength = mask.recorded_strength(images)
    shown = np.stack([mask.segment(np.ascontiguousarray(image), strength, None)[0] for image in images])
    frames = images.astype(np.float32)
    frames[(shown > 0.1) | (images.max(axis=-1) > OVEREXPOSED_LEVEL)] = np.nan
    ordered = np.sort(frames, axis=0)  # NaN goes to the end
    known = np.sum(~np.isnan(frames[..., 0]), axis=0)
    quartile = np.maximum((known - 1) // 4, 0)[None, ..., None]
    out = np.take_along_axis(ordered, np.broadcast_to(quartile, (1, *images.shape[1:])), axis=0)[0]
    free = known >= max(2, len(images) // 10)
    out[~free] = np.median(out[free], axis=0) if free.any() else 0.0
    return out


def recorded_cameras(scene: Scene, episode: Episode) -> tuple[Camera, ...]:
    """The cameras of a scene that a recording holds, under the names of the recording.

    Names match if one ends in the other, such as the serial number `220422302296` and `cam_220422302296`.
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
    names = [f"{IMAGES}{camera.name}{end}" for camera in rig.cameras for end in ("", ".stamp")]
    shown = {name: np.asarray(episode[name][row]) for name in names if name in episode}
    return [frame for frame in rig.frames(shown, float(episode.t[row])) if frame is not None]


def align_stamps(episode: Episode) -> Episode:
    """The episode with its image stamps on the clock of its rows.

    Some recordings count stamps from the start of their clock; it is subtracted if stamps are then nearer to rows.
    """
    start, columns = float(episode.meta.get("start", 0.0)), dict[str, Array]()
    for name in episode.columns:
        if name.endswith(".stamp"):
            stamps = np.asarray(episode[name], float)
            ahead = float(np.median(stamps - episode.t))
            columns[name] = stamps - start if abs(ahead - start) < abs(ahead) else stamps
    return episode.with_columns(columns)
