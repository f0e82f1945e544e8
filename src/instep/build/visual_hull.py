"""Visual hulls: the largest shape above the table whose silhouettes lie inside the masks of all views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.splat.fitting import pixel_rays
from instep.splat.raster.simd import KERNEL

from .isosurface import Grid, grid_around
from .mesh_raster import in_camera
from .silhouettes import FAR_PX, UNKNOWN_PX, ObjectMask

MIN_VIEWS = 2
"""Fewest views that must see a point for it to be part of a hull."""
_COARSE = 48
"""Points along a side of the grid that finds where the object is."""
HULL_PITCH = 1 / 110
"""Pitch of the grid of a hull, as a share of the diagonal of its box."""
_OUTSIDE_M = 1.0
"""Value of points that no two views see [m], negative."""


@array_dataclass
class HullViews:
    """Masks as the kernels take them."""

    cameras: Array
    """Of each view, camera_from_world by rows, focal lengths, centre, lens [views, 12 + 4 + 5]."""
    sizes: Array
    """Height and width of each image [views, 2]."""
    distances: Array
    """Signed distance to the outline [views, height, width] [pixels]; padded to the largest image."""
    tolerated: int = 0
    """How many views may have a point outside their masks."""

    def field(self, points: Array) -> Array:
        """How far inside the hull points are [...] [m]: the smallest signed distance over the views that know it."""
        flat = np.ascontiguousarray(points.reshape(-1, 3), float)
        out = np.empty(len(flat))
        _hull_field(flat, self.cameras, self.sizes, self.distances, self.tolerated, out)
        return out.reshape(points.shape[:-1])


def hull_views(masks: Sequence[ObjectMask]) -> HullViews:
    """Masks, prepared for evaluating the hull."""
    height, width = (max(sizes) for sizes in zip(*((m.camera.height, m.camera.width) for m in masks), strict=True))
    cameras, distances = np.zeros((len(masks), 21)), np.full((len(masks), height, width), UNKNOWN_PX, np.float32)
    for i, mask in enumerate(masks):
        place, camera = np.linalg.inv(mask.camera.body_from_camera), mask.camera
        lens = (*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
        cameras[i] = [*place[:3].ravel(), *camera.focal, *camera.centre, *lens]
        distances[i, : camera.height, : camera.width] = mask.signed_distance()
    return HullViews(cameras, np.array([[m.camera.height, m.camera.width] for m in masks]), distances)


def hull_bounds(masks: Sequence[ObjectMask], plane: Array) -> tuple[Array, Array]:
    """A box around the hull of some masks: smallest and largest coordinates [3] [m].

    `plane` is the table (nx, ny, nz, d) with n . x + d = 0, above which the object stands.
    """
    return _bounds(masks, hull_views(masks), plane)


def _bounds(masks: Sequence[ObjectMask], views: HullViews, plane: Array) -> tuple[Array, Array]:
    centre, radius = _sphere(masks)
    low, high = centre - radius, centre + radius
    for _ in range(2):
        grid = grid_around(low, high, float((high - low).max()) / _COARSE, margin=1)
        points = grid.points()
        inside = table_cut(views.field(points), points, plane) > -0.5 * grid.pitch
        if not inside.any():
            raise BadInput(
                "The masks have no point of space in common; do they show the same object, and do the camera poses "
                "belong to these images?"
            )
        found = points[inside]
        low, high = found.min(axis=0) - grid.pitch, found.max(axis=0) + grid.pitch
    return low, high


def hull_field(
    masks: Sequence[ObjectMask], plane: Array, pitch_share: float = HULL_PITCH, bounds: Array | None = None
) -> tuple[Array, Grid]:
    """The hull as a field on a grid (positive inside) [m], whose pitch is a share of the box's diagonal.

    The box is that of the whole hull unless its smallest and largest coordinates [2, 3] are given.
    """
    views = hull_views(masks)
    low, high = _bounds(masks, views, plane) if bounds is None else bounds
    grid = grid_around(low, high, pitch_share * float(np.linalg.norm(high - low)))
    points = grid.points()
    return table_cut(views.field(points), points, plane), grid


def table_cut(field: Array, points: Array, plane: Array) -> Array:
    """The field, cut at the table: what is below the plane (nx, ny, nz, d) is outside."""
    return np.minimum(field, height_above(points, plane))


def height_above(points: Array, plane: Array) -> Array:
    """Height of points [..., 3] above the plane (nx, ny, nz, d), whose normal points up [...] [m]."""
    length = np.linalg.norm(plane[:3])
    return (points @ plane[:3] + plane[3]) / (length if plane[2] > 0 else -length)


def _sphere(masks: Sequence[ObjectMask]) -> tuple[Array, float]:
    """The point nearest to the rays through the middle of each mask, and the radius that the masks cover there."""
    rays, origins, spans = list[Array](), list[Array](), list[float]()
    for mask in masks:
        left, top, right, bottom = mask.region
        middle = np.array([(left + right) / 2, (top + bottom) / 2])
        ray = pixel_rays(mask.camera, middle)
        rays.append(ray / np.linalg.norm(ray))
        origins.append(mask.camera.body_from_camera[:3, 3])
        spans.append(0.5 * float(np.hypot(right - left, bottom - top)) / min(mask.camera.focal))
    across = [np.eye(3) - np.outer(ray, ray) for ray in rays]
    total = np.sum(across, axis=0)
    if len(masks) < MIN_VIEWS or np.linalg.cond(total) > 1e4:
        raise BadInput("The views look along one line, so that nothing says how far away the object is; add others.")
    meeting = np.sum([a @ o for a, o in zip(across, origins, strict=True)], axis=0)
    centre = np.asarray(np.linalg.solve(total, meeting), float)
    depths = [in_camera(mask.camera, centre)[2] for mask in masks]
    if min(depths) <= 0:
        raise BadInput(
            "The rays through the masks meet behind a camera; are the camera poses those of these images, with axes as "
            "docs/formats/cameras.md has them?"
        )
    return centre, 1.6 * max(span * depth for span, depth in zip(spans, depths, strict=True))


@njit(**KERNEL)
def _hull_field(points: Any, cameras: Any, sizes: Any, distances: Any, tolerated: Any, out: Any) -> None:
    least = np.empty(tolerated + 1)
    for i in range(points.shape[0]):
        x, y, z = points[i]
        least[:] = 1e9
        seen = 0
        for v in range(cameras.shape[0]):
            c = cameras[v]
            depth = c[8] * x + c[9] * y + c[10] * z + c[11]
            if depth <= 1e-3:
                continue
            a = (c[0] * x + c[1] * y + c[2] * z + c[3]) / depth
            b = (c[4] * x + c[5] * y + c[6] * z + c[7]) / depth
            r = a * a + b * b
            radial = 1.0 + r * (c[16] + r * (c[17] + r * c[20]))
            u = a * radial + 2.0 * c[18] * a * b + c[19] * (r + 2.0 * a * a)
            w = b * radial + c[18] * (r + 2.0 * b * b) + 2.0 * c[19] * a * b
            column, row = u * c[12] + c[14] - 0.5, w * c[13] + c[15] - 0.5
            if column < 0.0 or row < 0.0 or column > sizes[v, 1] - 1 or row > sizes[v, 0] - 1:
                continue
            left, top = min(int(column), sizes[v, 1] - 2), min(int(row), sizes[v, 0] - 2)
            p, q = column - left, row - top
            d = distances[v]
            value = (1 - q) * ((1 - p) * d[top, left] + p * d[top, left + 1]) + q * (
                (1 - p) * d[top + 1, left] + p * d[top + 1, left + 1]
            )
            if value > 2.0 * FAR_PX:  # unknown, or beside an unknown pixel
                continue
            seen += 1
            value = value * depth / c[12]
            k = tolerated
            if value < least[k]:
                while k > 0 and least[k - 1] > value:  # the smallest values, in order
                    least[k] = least[k - 1]
                    k -= 1
                least[k] = value
        out[i] = least[tolerated] if seen >= MIN_VIEWS + tolerated else -_OUTSIDE_M
