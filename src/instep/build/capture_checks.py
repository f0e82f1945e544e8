"""Checks of posed images before anything is computed from them: lenses, units, the table, overlap and sharpness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

from .mesh_raster import in_camera
from .posed_views import PosedView
from .visual_hull import height_above

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
