"""Views of a capture at one moment: image, camera and, for a fixed camera, frames at other times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.calibration import is_transform
from instep.scene.camera import Camera
from instep.splat.capture import CameraRecording, Capture

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
