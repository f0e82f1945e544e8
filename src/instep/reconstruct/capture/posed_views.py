"""Posed images: one image per camera with the frames around it, the table, and checks before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.shape.visual_hull import height_above, projected
from instep.scene.camera import Camera
from instep.scene.camera_files import is_transform
from instep.splat.capture import CameraRecording, Capture
from instep.splat.fitting import pixel_rays, plane_distances

MAX_PIXELS = 64_000_000
"""Pixels of the largest image that is read."""
MAX_SIDE_PX = 1280
"""Images with a longer side are reduced by a whole factor."""
MAX_DISTANCE_M, MIN_DISTANCE_M = 12.0, 0.02
"""Largest and least height of a camera above the table; outside, poses are likely in another unit."""
MAX_EDGE_PX = 8.0
"""Width of the sharpest edges of an image above which it is blurred [pixels]."""
_HALF_ANGLES = (0.01, np.tan(np.radians(80.0)))
"""Range of half an image's side over its focal length; outside, the focal length is not in pixels."""
_SAMPLES = 14
"""Rays along each side of an image for the overlap check."""


@array_dataclass
class PosedView:
    """One image and its camera."""

    camera: Camera
    image: Array
    """[height, width, 3] float32, 0 to 1."""
    frames: Array | None = None
    """Frames of the same fixed camera at other times [frames, height, width, 3] uint8; None for a single image."""
    hidden: Array | None = None
    """Pixels where the robot may occlude the scene [height, width]; None without a robot."""

    @property
    def name(self) -> str:
        """The name of its camera."""
        return self.camera.name

    @property
    def visible(self) -> Array:
        """Pixels where no robot may occlude the scene [height, width]."""
        return np.ones(self.image.shape[:2], bool) if self.hidden is None else ~self.hidden


def views_of(capture: Capture, time: float | None = None) -> list[PosedView]:
    """The views of a capture: of videos, the frame nearest to a time [s] (the first common one if None)."""
    recordings = capture.recordings
    names = [recording.camera.name for recording in recordings]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"Two images are named {name!r}; every image or camera needs a name of its own.")
    for recording in recordings:
        _check(recording)
    starts = [float(recording.stamps[0]) for recording in recordings if len(recording.images) > 1]
    return [_view(recording, max(starts, default=0.0) if time is None else time) for recording in recordings]


def table_of(capture: Capture, given: Array | None = None) -> Array:
    """The plane (nx, ny, nz, d) of the table: the given one, else that of the capture."""
    plane = given if given is not None else None if capture.plane is None else capture.plane.normal
    if plane is None:
        words = '{"plane": [nx, ny, nz, d]}'
        raise BadInput(f"The table is unknown; give --table-height, or ground_plane.json beside the images: {words}.")
    return np.asarray(plane, float)


def smaller_camera(camera: Camera, factor: int) -> Camera:
    """A camera with pixels so many times as large."""
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    width, height = camera.width // factor, camera.height // factor
    focal, centre = (fx / factor, fy / factor), (cx / factor, cy / factor)
    return replace(camera, width=width, height=height, focal=focal, centre=centre)


def shrunk(image: Array, factor: int) -> Array:
    """The means of square blocks of an image [height, width, ...]."""
    height, width = image.shape[0] // factor, image.shape[1] // factor
    part = image[: height * factor, : width * factor]
    blocks = part.reshape(height, factor, width, factor, *image.shape[2:])
    return np.ascontiguousarray(blocks.mean(axis=(1, 3)), image.dtype)


def limited(view: PosedView) -> PosedView:
    """The view with its image reduced by a whole factor to MAX_SIDE_PX or less."""
    factor = int(np.ceil(max(view.camera.width, view.camera.height) / MAX_SIDE_PX))
    if factor == 1:
        return view
    frames = None if view.frames is None else np.stack([shrunk(frame, factor) for frame in view.frames])
    return PosedView(smaller_camera(view.camera, factor), shrunk(view.image, factor), frames)


def check_views(views: Sequence[PosedView], plane: Array) -> None:
    """Refuse unusable views with one sentence about the first problem; a single view passes."""
    cameras = [view.camera for view in views]
    for camera in cameras:
        half = [side / 2 / focal for side, focal in zip((camera.width, camera.height), camera.focal, strict=True)]
        if not all(_HALF_ANGLES[0] < one < _HALF_ANGLES[1] for one in half):
            size = f"{camera.focal[0]:.4g} for {camera.width} pixels of width"
            raise BadInput(
                f"Camera {camera.name!r} has a focal length of {size}; a focal length in pixels was expected."
            )
        _check_place(camera, plane)
    for camera in cameras if len(cameras) > 1 else ():
        points = _table_points(camera, plane)
        shared = 0
        for other in (other for other in cameras if other is not camera):
            pixels, depth = projected(other, points)
            inside = (pixels > 0).all(axis=1) & (pixels < [other.width, other.height]).all(axis=1)
            shared = max(shared, int(((depth > 1e-3) & inside).sum()))
        if shared < 6:  # rays of the image that meet the table inside another image
            words = "shows no part of the table that another camera shows; check its pose, or add views in between."
            raise BadInput(f"Camera {camera.name!r} {words}")
    _check_sharpness(views)


def seen_on_table(camera: Camera, plane: Array) -> Array:
    """The middle of the part of the table that a camera shows [3] [m]; the point below the camera if it shows none."""
    points = _table_points(camera, plane)
    if len(points):
        return np.median(points, axis=0)
    origin = camera.body_from_camera[:3, 3]
    return origin - plane[:3] * (origin @ plane[:3] + plane[3]) / (plane[:3] @ plane[:3])


def edge_width(image: Array) -> float:
    """The width of the sharpest edges of an image [height, width, 3] [pixels]: contrast nearby over largest gradient.

    A step within a pixel has a width of 2, one blurred by a Gaussian of s pixels about 2.5 s, a blank image infinity.
    """
    from scipy.ndimage import maximum_filter, minimum_filter

    grey = np.asarray(image, float).mean(axis=-1)
    gradient = np.hypot(*np.gradient(grey))
    reach = min(31, min(grey.shape) // 2)
    contrast = maximum_filter(grey, reach) - minimum_filter(grey, reach)
    if contrast.max() < 0.02:
        return np.inf
    strong = gradient >= np.quantile(gradient, 1 - max(0.002, 30 / gradient.size))
    return float(np.quantile(contrast[strong] / np.maximum(gradient[strong], 1e-9), 0.25))


def _view(recording: CameraRecording, time: float) -> PosedView:
    if len(recording.images) == 1:
        return limited(PosedView(recording.camera, np.asarray(recording.images[0], np.float32) / 255))
    row = int(np.argmin(np.abs(recording.stamps - time)))
    # Frames of a video for the static background.
    rows = np.unique(np.linspace(0, len(recording.images) - 1, 24).round().astype(int)).tolist()
    # Frames one after another: a video decodes each of them from the key frame before it.
    found = {k: frame for k, frame in enumerate(recording.images) if k in {*rows, row}}
    frames = np.stack([found[r] for r in rows])
    return limited(PosedView(recording.camera, found[row].astype(np.float32) / 255, frames))


def _check(recording: CameraRecording) -> None:
    camera = recording.camera
    if not camera.in_world:
        words = "give the robot's scene as --robot, and 'joints' in every frame."
        raise BadInput(f"Image {camera.name!r} is of a camera on the robot's body {camera.body!r}; {words}")
    _, height, width, _ = recording.images.shape
    if height * width > MAX_PIXELS:
        size = f"{height * width / 1e6:.0f} megapixels, and at most {MAX_PIXELS / 1e6:.0f} are read"
        raise BadInput(f"The image of camera {camera.name!r} has {size}; reduce it together with its lens.")
    if not is_transform(camera.body_from_camera, 1e-3):
        mirrored = np.linalg.det(camera.body_from_camera[:3, :3]) < 0
        what = "mirrored" if mirrored else "not a rotation and a translation"
        raise BadInput(f"The pose of camera {camera.name!r} is {what}; a rigid transform in metres was expected.")


def _check_place(camera: Camera, plane: Array) -> None:
    height = float(height_above(camera.body_from_camera[:3, 3], plane))
    if abs(height) > MAX_DISTANCE_M:
        words = "poses in metres were expected; are these in millimetres?"
        raise BadInput(f"Camera {camera.name!r} is {abs(height):.0f} m from the table; {words}")
    if height < MIN_DISTANCE_M:
        where = "below the table" if height < 0 else "on the table"
        words = f"{abs(height):.3g} m {where}; the table and the poses must be in one frame, z up, in metres."
        raise BadInput(f"Camera {camera.name!r} is {words} --table-height sets the height of a level table.")


def _table_points(camera: Camera, plane: Array) -> Array:
    """Where rays of a camera meet the table [points, 3]."""
    columns, rows = np.meshgrid(
        np.linspace(0.5, camera.width - 0.5, _SAMPLES), np.linspace(0.5, camera.height - 0.5, _SAMPLES)
    )
    rays = pixel_rays(camera, np.stack([columns, rows], axis=-1)).reshape(-1, 3)
    t = plane_distances(camera, rays, plane)
    hit = (t > 0) & (t * np.linalg.norm(rays, axis=1) < MAX_DISTANCE_M)
    return camera.body_from_camera[:3, 3] + t[hit, None] * rays[hit]


def _check_sharpness(views: Sequence[PosedView]) -> None:
    widths = {view.name: edge_width(view.image) for view in views}
    blurred = [name for name, width in widths.items() if width > MAX_EDGE_PX]
    if not blurred:
        return
    names = ", ".join(map(repr, blurred[:3])) + (f" and {len(blurred) - 3} more" if len(blurred) > 3 else "")
    blank = not np.isfinite(widths[blurred[0]])
    what = "blank" if blank else f"blurred: the sharpest edges of the first are {widths[blurred[0]]:.0f} pixels wide"
    raise BadInput(f"The images of {names} are {what}. Take them again, or leave them out.")
