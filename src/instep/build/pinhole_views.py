"""Views as cameras without distortion take them, in brightness: what images of an object are compared by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .mesh_raster import in_camera
from .posed_views import PosedView
from .silhouettes import ObjectMask


@array_dataclass
class PinholeView:
    """One view as a camera without distortion takes it."""

    camera: Camera
    image: Array
    """Brightness [height, width], 0 to 1."""
    inside: Array
    """Share of each pixel that is known to show the object [height, width]."""


def pinhole_view(view: PosedView, mask: ObjectMask) -> PinholeView:
    """A view without the distortion of its lens."""
    brightness = np.ascontiguousarray(view.image @ np.array([0.3, 0.5, 0.2], np.float32), np.float32)
    camera, inside = mask.camera, mask.inside.astype(np.float32)
    if not any(camera.distortion):
        return PinholeView(camera, brightness, inside)
    plain = replace(camera, distortion=())
    pixels = camera.project(in_camera(plain, camera.body_from_camera[:3, 3] + camera_rays(plain)))
    return PinholeView(plain, bilinear(brightness, pixels), bilinear(inside, pixels))


def smaller_view(view: PinholeView, factor: int) -> PinholeView:
    """A view with pixels so many times as large."""
    return PinholeView(smaller_camera(view.camera, factor), shrunk(view.image, factor), shrunk(view.inside, factor))


def object_factor(view: PinholeView, size: int) -> int:
    """How much smaller an image is made, so that the object in it is about so large [pixels]."""
    rows, columns = np.nonzero(view.inside > 0.5)
    return max(1, int(np.hypot(np.ptp(rows), np.ptp(columns)) / size)) if len(rows) else 1


def camera_rays(camera: Camera) -> Array:
    """Rays of the pixels of a camera without distortion in the frame of the world [height, width, 3], 1 deep."""
    y, x = np.indices((camera.height, camera.width)) + 0.5
    local = [(x - camera.centre[0]) / camera.focal[0], (y - camera.centre[1]) / camera.focal[1], np.ones(x.shape)]
    return np.stack(local, axis=-1) @ camera.body_from_camera[:3, :3].T


def bilinear(image: Array, pixels: Array) -> Array:
    """Values of an image at points of it [..., 2]; 0 outside."""
    from scipy.ndimage import map_coordinates

    at = [pixels[..., 1] - 0.5, pixels[..., 0] - 0.5]
    return np.ascontiguousarray(map_coordinates(image, at, order=1, mode="constant"), np.float32)


def smaller_camera(camera: Camera, factor: int) -> Camera:
    """A camera with pixels so many times as large."""
    width, height = camera.width // factor, camera.height // factor
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    return replace(
        camera, width=width, height=height, focal=(fx / factor, fy / factor), centre=(cx / factor, cy / factor)
    )


def shrunk(image: Array, factor: int) -> Array:
    """The means of square blocks of an image."""
    height, width = image.shape[0] // factor, image.shape[1] // factor
    blocks = image[: height * factor, : width * factor].reshape(height, factor, width, factor)
    return np.ascontiguousarray(blocks.mean(axis=(1, 3)), np.float32)
