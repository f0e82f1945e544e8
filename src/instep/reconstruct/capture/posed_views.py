"""Views of a capture at one moment: image, camera and, for a fixed camera, frames at other times.

Checks of posed images before anything is computed from them: lenses, units, the table, overlap and sharpness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.shape.visual_hull import height_above, in_camera
from instep.scene.camera import Camera
from instep.scene.camera_files import is_transform
from instep.splat.capture import CameraRecording, Capture
from instep.splat.fitting import pixel_rays

MAX_PIXELS = 64_000_000
"""Pixels of the largest image that is read."""
MAX_SIDE_PX = 1280
"""Images with a longer side are reduced by a whole factor."""
_BACKGROUND_FRAMES = 24
"""Frames of a video from which the static background is found."""


@array_dataclass
class PosedView:
    """One image and its camera."""

    camera: Camera
    image: Array
    """[height, width, 3] float32, 0 to 1."""
    frames: Array | None = None
    """Frames of the same fixed camera at other times [frames, height, width, 3] uint8; none of a single image."""
    hidden: Array | None = None
    """Pixels where the robot may be in front of the scene [height, width]; none where nothing is known of a robot."""

    @property
    def name(self) -> str:
        """The name of its camera."""
        return self.camera.name


def views_of(capture: Capture, time: float | None = None) -> list[PosedView]:
    """The views of a capture: of videos, the frame nearest to a time [s] (the first one where none is given)."""
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
        raise BadInput(
            "Nothing says where the table is; give --table-height, or ground_plane.json beside the images with "
            '{"plane": [nx, ny, nz, d]}.'
        )
    return np.asarray(plane, float)


def reduced(view: PosedView, factor: int) -> PosedView:
    """The view with its image reduced by a whole factor."""
    camera = view.camera
    width, height = camera.width // factor, camera.height // factor

    def mean(image: Array) -> Array:
        part = image[: height * factor, : width * factor]
        return part.reshape(height, factor, width, factor, 3).mean(axis=(1, 3)).astype(image.dtype)

    (fx, fy), (cx, cy) = camera.focal, camera.centre
    small = replace(
        camera, width=width, height=height, focal=(fx / factor, fy / factor), centre=(cx / factor, cy / factor)
    )
    frames = None if view.frames is None else np.stack([mean(f) for f in view.frames])
    return PosedView(small, mean(view.image), frames)


def check_poses(cameras: Sequence[Camera]) -> None:
    """Refuse camera poses that are mirrored or no rigid transforms."""
    for camera in cameras:
        turn = camera.body_from_camera[:3, :3]
        if not is_transform(camera.body_from_camera, 1e-3):
            what = "mirrored" if np.linalg.det(turn) < 0 else "not a rotation and a translation"
            raise BadInput(
                f"The pose of camera {camera.name!r} is {what}; a rigid transform in metres was expected, with axes as "
                "docs/formats/cameras.md has them."
            )


def _view(recording: CameraRecording, time: float) -> PosedView:
    if len(recording.images) == 1:
        image = np.asarray(recording.images[0], np.float32) / 255
        view = PosedView(recording.camera, image.astype(np.float32))
    else:
        row = int(np.argmin(np.abs(recording.stamps - time)))
        rows = np.linspace(0, len(recording.images) - 1, _BACKGROUND_FRAMES).round().astype(int)
        wanted = {int(r) for r in rows} | {row}
        # Frames one after another: a video decodes each of them from the key frame before it.
        found = {k: frame for k, frame in enumerate(recording.images) if k in wanted}
        frames = np.stack([found[int(r)] for r in np.unique(rows)])
        view = PosedView(recording.camera, found[row].astype(np.float32) / 255, frames)
    side = max(recording.camera.width, recording.camera.height)
    return view if side <= MAX_SIDE_PX else reduced(view, int(np.ceil(side / MAX_SIDE_PX)))


def _check(recording: CameraRecording) -> None:
    if not recording.camera.in_world:
        raise BadInput(
            f"Image {recording.camera.name!r} is of a camera on {recording.camera.body!r}, which the robot carries; "
            "give the robot's scene as --robot, and 'joints' in every frame."
        )
    _, height, width, _ = recording.images.shape
    if height * width > MAX_PIXELS:
        raise BadInput(
            f"The image of camera {recording.camera.name!r} has {height * width / 1e6:.0f} megapixels, and at most "
            f"{MAX_PIXELS / 1e6:.0f} are read; reduce it, with fl_x, fl_y, cx and cy by the same factor."
        )
    check_poses([recording.camera])


MAX_DISTANCE_M = 12.0
"""Largest distance of a camera from the table: farther ones have poses in another unit."""
MIN_DISTANCE_M = 0.02
MAX_EDGE_PX = 8.0
"""Width of the sharpest edges of an image [pixels] from which on it is blurred."""
_MAX_HALF_ANGLE = np.tan(np.radians(80.0))
_MIN_HALF_ANGLE = 0.01
_SAMPLES = 14
"""Rays along each side of an image whose meeting with the table is looked for in other images."""
_SHARED_RAYS = 6
"""Fewest rays of an image that must meet the table where another image shows it."""
_EDGE_REACH_PX = 31
_EDGE_SHARE = 0.002
"""Share of the pixels, those with the largest gradients, by which sharpness is judged."""
_BLANK = 0.02
"""Contrast below which an image shows nothing [0 to 1]."""


def check_views(views: Sequence[PosedView], plane: Array) -> None:
    """Refuse views from which nothing can be built, in one sentence about the first thing that is wrong.

    A single view is not refused here: see `shape.check_single`.
    """
    cameras = [view.camera for view in views]
    for camera in cameras:
        _check_lens(camera)
        _check_place(camera, plane)
    _check_overlap(cameras, plane)
    _check_sharpness(views)


def seen_on_table(camera: Camera, plane: Array) -> Array:
    """The middle of what a camera shows of the table [3] [m]; the point below the camera where it shows none."""
    points = _table_points(camera, plane)
    origin = camera.body_from_camera[:3, 3]
    return (
        np.median(points, axis=0)
        if len(points)
        else origin - plane[:3] * (origin @ plane[:3] + plane[3]) / (plane[:3] @ plane[:3])
    )


def edge_width(image: Array) -> float:
    """The width of the sharpest edges of an image [height, width, 3] [pixels]: contrast nearby over largest gradient.

    A step within a pixel has a width of 2, one that is blurred by a Gaussian of s pixels about 2.5 s; infinite where
    the image is blank.
    """
    from scipy.ndimage import maximum_filter, minimum_filter

    grey = np.asarray(image, float).mean(axis=-1)
    along, across = np.gradient(grey)
    gradient = np.hypot(along, across)
    reach = min(_EDGE_REACH_PX, min(grey.shape) // 2)
    contrast = maximum_filter(grey, reach) - minimum_filter(grey, reach)
    if contrast.max() < _BLANK:
        return np.inf
    strong = gradient >= np.quantile(gradient, 1 - max(_EDGE_SHARE, 30 / gradient.size))
    return float(np.quantile(contrast[strong] / np.maximum(gradient[strong], 1e-9), 0.25))


def _check_lens(camera: Camera) -> None:
    half = [side / 2 / focal for side, focal in zip((camera.width, camera.height), camera.focal, strict=True)]
    if not all(_MIN_HALF_ANGLE < one < _MAX_HALF_ANGLE for one in half):
        raise BadInput(
            f"Camera {camera.name!r} has a focal length of {camera.focal[0]:.4g} for {camera.width} pixels of width; "
            "a focal length in pixels was expected, not in millimetres."
        )


def _check_place(camera: Camera, plane: Array) -> None:
    height = float(height_above(camera.body_from_camera[:3, 3], plane))
    if abs(height) > MAX_DISTANCE_M:
        raise BadInput(
            f"Camera {camera.name!r} is {abs(height):.0f} m from the table; poses in metres were expected, and these "
            "may be in millimetres or centimetres."
        )
    if height < MIN_DISTANCE_M:
        where = "below the table" if height < 0 else "on the table"
        raise BadInput(
            f"Camera {camera.name!r} is {abs(height):.3g} m {where}; are the table and the poses in one frame, z up, "
            "and in metres? --table-height says where a level table is."
        )


def _check_overlap(cameras: Sequence[Camera], plane: Array) -> None:
    """Refuse cameras that show no part of the table that another one shows."""
    if len(cameras) < 2:
        return
    for camera in cameras:
        points = _table_points(camera, plane)
        others = [other for other in cameras if other is not camera]
        if not any(_shown(other, points) >= _SHARED_RAYS for other in others):
            raise BadInput(
                f"Camera {camera.name!r} shows no part of the table that another camera shows; are its pose and the "
                "table right? Leave it out, or add views in between."
            )


def _table_points(camera: Camera, plane: Array) -> Array:
    """Where rays of a camera meet the table [points, 3]."""
    columns, rows = np.meshgrid(
        np.linspace(0.5, camera.width - 0.5, _SAMPLES), np.linspace(0.5, camera.height - 0.5, _SAMPLES)
    )
    rays = pixel_rays(camera, np.stack([columns, rows], axis=-1)).reshape(-1, 3)
    origin, towards = camera.body_from_camera[:3, 3], rays @ plane[:3]
    t = -(origin @ plane[:3] + plane[3]) / np.where(np.abs(towards) < 1e-9, 1e-9, towards)
    hit = (t > 0) & (t * np.linalg.norm(rays, axis=1) < MAX_DISTANCE_M)
    return origin + t[hit, None] * rays[hit]


def _shown(camera: Camera, points: Array) -> int:
    """How many of some points a camera shows."""
    local = in_camera(camera, points)
    ahead = local[:, 2] > 1e-3
    pixels = camera.project(np.where(ahead[:, None], local, [0.0, 0.0, 1.0]))
    return int((ahead & (pixels > 0).all(axis=1) & (pixels < [camera.width, camera.height]).all(axis=1)).sum())


def _check_sharpness(views: Sequence[PosedView]) -> None:
    widths = {view.name: edge_width(view.image) for view in views}
    blurred = [name for name, width in widths.items() if width > MAX_EDGE_PX]
    if not blurred:
        return
    names = ", ".join(map(repr, blurred[:3])) + (f" and {len(blurred) - 3} more" if len(blurred) > 3 else "")
    blank = not np.isfinite(widths[blurred[0]])
    what = "blank" if blank else f"blurred: the sharpest edges of the first are {widths[blurred[0]]:.0f} pixels wide"
    raise BadInput(
        f"The images of {names} are {what}; outlines are measured to a fraction of a pixel, so take these images anew "
        "or leave them out."
    )
