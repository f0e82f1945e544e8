"""Extruded shapes from few views: one outline on the table and one height that explain the masks of all views.

Two or three views from above leave a visual hull with twice the volume of a flat block. Where the object may be taken
as an outline that rises upright from the table, the outline at a height h is what all slices of the hull up to h have
in common, and the silhouettes of the extruded outline say which h, and which even offset of the outline, fit best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.splat.fitting import pixel_rays

from .isosurface import Grid
from .silhouettes import ObjectMask, overlap
from .visual_hull import HullViews, hull_bounds, hull_views

_SLICES = 9
"""Slices of the hull up to the height."""
_HEIGHTS = 14
"""Heights that are tried first."""
_EDGE_SOFTNESS_PX = 1.0
_MIN_SLOPE = 0.08
"""Least slope towards the table of all rays of a single view [share of their length]."""
_MIN_AGREEMENT = 0.6
"""Least mean overlap of the silhouettes of an extruded shape that is not refused."""


@array_dataclass
class Extrusion:
    """An outline on the table with a height."""

    table_from_world: Array
    """4 x 4; z is the height above the table."""
    outline: Array
    """Signed distance inside the outline [x, y] [m]."""
    grid: Grid
    """Where the outline's values are, in the table's frame; its z is not used."""
    height: float
    """[m]"""
    height_sigma: float
    """Standard deviation of the height [m], from the curvature of the agreement."""
    agreement: float
    """Mean overlap of its silhouettes with the masks."""


def coarse_extrusion(masks: Sequence[ObjectMask], plane: Array, *, height: float | None = None) -> Extrusion:
    """The extruded outline with the best overlaps over a search of heights and offsets, for a fit to start from.

    `height` [m] is kept where it is given; a single mask needs it.
    """
    table_from_world = table_frame(plane)
    if len(masks) == 1 and height is not None:
        begin, end = _bounds_of_one(masks[0], table_from_world, height)
        masks = (masks[0], masks[0])  # a hull asks for two views of a point, and there are no others
    else:
        low, high = hull_bounds(masks, plane)
        corners = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
        local = corners @ table_from_world[:3, :3].T + table_from_world[:3, 3]
        begin, end = local.min(axis=0), local.max(axis=0)
    pitch = float(np.linalg.norm(end[:2] - begin[:2])) / 120
    counts = np.ceil((end[:2] - begin[:2]) / pitch).astype(int) + 5
    grid = Grid(np.r_[begin[:2] - 2 * pitch, 0.0], pitch, (int(counts[0]), int(counts[1]), 1))
    search = _Search(masks, hull_views(masks), table_from_world, grid)
    tried = np.geomspace(0.02, 1.0, _HEIGHTS) * max(end[2], 4 * pitch) if height is None else np.array([height])
    best = max((search.at(float(h)) for h in tried), key=lambda found: found[0])
    if height is None:
        step = best[2] * 0.16
        for _ in range(5):
            best = max((best, search.at(best[2] - step), search.at(best[2] + step)), key=lambda found: found[0])
            step /= 2
    agreement, offset, found = best
    if agreement < _MIN_AGREEMENT:
        raise BadInput(
            f"No upright outline explains the masks (best overlap {agreement:.2f}); take more views all around and use "
            "--shape hull."
        )
    sigma = 0.0 if height is not None else search.height_sigma(found, agreement)
    return Extrusion(table_from_world, search.outline(found) + offset, grid, found, sigma, agreement)


def _bounds_of_one(mask: ObjectMask, table_from_world: Array, height: float) -> tuple[Array, Array]:
    """A box on the table around whatever up to a height may be seen as a mask: lowest and highest corner [3] [m]."""
    left, top, right, bottom = mask.padded_region(1)
    pixels = np.array([[x, y] for x in np.linspace(left, right, 5) for y in np.linspace(top, bottom, 5)])
    rays = pixel_rays(mask.camera, pixels) @ table_from_world[:3, :3].T
    eye = table_from_world[:3, :3] @ mask.camera.body_from_camera[:3, 3] + table_from_world[:3, 3]
    if (rays[:, 2] > -_MIN_SLOPE * np.linalg.norm(rays, axis=1)).any() or eye[2] <= height:
        raise BadInput(
            f"The view of camera {mask.camera.name!r} looks along the table or lies below {height:g} m, so it alone "
            "does not show where the object stands; take it from farther above, or add views."
        )
    found = [eye[:2] + ((z - eye[2]) / rays[:, 2:]) * rays[:, :2] for z in (0.0, height)]
    points = np.concatenate(found)
    return np.r_[points.min(axis=0), 0.0], np.r_[points.max(axis=0), height]


@array_dataclass
class _Search:
    masks: Sequence[ObjectMask]
    views: HullViews
    table_from_world: Array
    grid: Grid

    def outline(self, height: float) -> Array:
        """What all slices of the hull from the table up to a height have in common [x, y] [m]."""
        world_from_table = np.linalg.inv(self.table_from_world)
        base = self.grid.points()[:, :, 0]
        out = np.full(base.shape[:2], np.inf)
        for z in np.linspace(0.0, height, _SLICES):
            points = np.concatenate([base[..., :2], np.full((*base.shape[:2], 1), z)], axis=-1)
            out = np.minimum(out, self.views.field(points @ world_from_table[:3, :3].T + world_from_table[:3, 3]))
        return out

    def at(self, height: float) -> tuple[float, float, float]:
        """The best mean overlap at a height, over even offsets of the outline; the offset [m]; the height."""
        outline = self.outline(height)
        if not (outline > 0).any():
            return (0.0, 0.0, height)
        seen = [self._largest(mask, outline, height) for mask in self.masks]
        offsets = self.grid.pitch * np.linspace(-1.5, 3.0, 10)
        scores = [float(np.mean([self._overlap(one, offset) for one in seen])) for offset in offsets]
        k = int(np.argmax(scores))
        return (scores[k], float(offsets[k]), height)

    def height_sigma(self, height: float, agreement: float) -> float:
        """The change of height at which the overlap falls by what the number of edge pixels lets one notice."""
        pixels = sum(float(mask.inside.sum()) for mask in self.masks)
        step = 0.1 * height
        fall = agreement - 0.5 * (self.at(height - step)[0] + self.at(height + step)[0])
        noise = 0.25 / np.sqrt(max(pixels, 1.0))
        return float(step * np.sqrt(noise / max(fall, 1e-6)))

    def _largest(self, mask: ObjectMask, outline: Array, height: float) -> tuple[ObjectMask, Array, Array, Array]:
        """For the pixels around a mask, the largest value of the outline along their rays, in pixels per metre too."""
        from scipy.ndimage import map_coordinates

        left, top, right, bottom = mask.padded_region(12)
        columns, rows = np.meshgrid(np.arange(left, right), np.arange(top, bottom))
        rays = pixel_rays(mask.camera, np.stack([columns + 0.5, rows + 0.5], axis=-1)) @ self.table_from_world[:3, :3].T
        eye = self.table_from_world[:3, :3] @ mask.camera.body_from_camera[:3, 3] + self.table_from_world[:3, 3]
        found = np.full(columns.shape, -1.0)
        for z in np.linspace(0.0, height, _SLICES + 4):
            points = eye[:2] + ((z - eye[2]) / np.minimum(rays[..., 2], -1e-6))[..., None] * rays[..., :2]
            at = (points - self.grid.origin[:2]) / self.grid.pitch
            found = np.maximum(found, map_coordinates(outline, [at[..., 0], at[..., 1]], order=1, cval=-1.0))
        depth = np.linalg.norm(mask.camera.body_from_camera[:3, 3] - _world_centre(self))
        return mask, found, np.array([left, top, right, bottom]), np.array(mask.camera.focal[0] / depth)

    def _overlap(self, seen: tuple[ObjectMask, Array, Array, Array], offset: float) -> float:
        mask, values, (left, top, right, bottom), per_metre = seen
        alpha = np.clip(0.5 + (values + offset) * per_metre / _EDGE_SOFTNESS_PX, 0.0, 1.0)
        cut = np.s_[top:bottom, left:right]
        return overlap(alpha, mask.alpha[cut], mask.known[cut])


def _world_centre(search: _Search) -> Array:
    middle = search.grid.origin + 0.5 * search.grid.pitch * np.array(search.grid.shape)
    world_from_table = np.linalg.inv(search.table_from_world)
    return world_from_table[:3, :3] @ middle + world_from_table[:3, 3]


def table_frame(plane: Array) -> Array:
    """table_from_world: the table's plane is z = 0, its normal is z, and the axes are otherwise near the world's."""
    normal = plane[:3] / np.linalg.norm(plane[:3])
    sign = 1.0 if normal[2] > 0 else -1.0
    z = sign * normal
    x = np.cross([0.0, 1.0, 0.0], z)
    x /= np.linalg.norm(x)
    out = np.eye(4)
    out[:3, :3] = np.stack([x, np.cross(z, x), z])
    out[2, 3] = sign * plane[3] / np.linalg.norm(plane[:3])
    return out
