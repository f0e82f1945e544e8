"""How alike views see the inside of a cavity whose walls are thought to be at some place, by its brightness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .cavity_walls import Cavity, Walls, left_by, sampled
from .mesh_raster import in_camera
from .pinhole_views import PinholeView, bilinear, camera_rays

Surface = Callable[["MouthRays"], Array]
"""The field along the rays of a view [rays, samples], positive inside."""


@array_dataclass
class MouthRays:
    """The rays of one view that enter a cavity through its mouth."""

    camera: Camera
    image: Array
    """Brightness [height, width]."""
    pixels: Array
    """Row and column of each ray [rays, 2]."""
    rays: Array
    """Directions in the frame of the world [rays, 3], 1 deep."""
    depths: Array
    """Depths of the samples of every ray [samples] [m]."""
    field: Array
    """How far inside the carved shape samples are [rays, samples] [m]."""
    filled: Array
    """The same of the shape filled with water, in halves of a cell."""
    inside: Array
    """How far below the outer surface they are [rays, samples] [m]."""
    heights: Array
    """How far above the table they are [rays, samples] [m]."""
    top: float

    def carved(self, walls: Walls) -> Array:
        """The field of the shape without the cavity that some walls leave."""
        return np.minimum(self.field, left_by(walls, self.inside, self.heights, self.top))


def mouth_rays(cavity: Cavity, view: PinholeView) -> MouthRays:
    """The rays of the pixels of an object that meet the water in a cavity before anything else."""
    camera, origin, grid = view.camera, view.camera.body_from_camera[:3, 3], cavity.grid
    rows, columns = np.nonzero(view.inside > 0.5)
    rays = camera_rays(camera)[rows, columns]
    middle = (grid.origin + grid.pitch * (np.array(grid.shape) - 1) / 2) @ cavity.frame
    depths = float(in_camera(camera, middle)[2]) + np.arange(-grid.diagonal / 2, grid.diagonal / 2, grid.pitch)
    cells = cavity.cells(origin + rays[:, None] * depths[:, None])
    nearest = np.round(cells).astype(int)
    within = np.asarray(((nearest >= 0) & (nearest < grid.shape)).all(axis=-1), bool)
    x, y, z = np.moveaxis(np.where(within[..., None], nearest, 0), -1, 0)
    filled = cavity.filled[x, y, z] & within
    one = np.arange(len(rays)), filled.argmax(axis=1)
    enters = filled.any(axis=1) & cavity.water[x[one], y[one], z[one]]
    cells = cells[enters]
    return MouthRays(
        camera, view.image, np.stack([rows, columns], axis=1)[enters], rays[enters], depths,
        sampled(cavity.field, cells), np.where(filled[enters], 0.5, -0.5) * grid.pitch,
        sampled(cavity.inside, cells), cavity.heights(cells), cavity.top,
    )  # fmt: skip


@array_dataclass
class SeenSurface:
    """A surface in a cavity as one view sees it."""

    depth: Array
    """Depth at which each ray meets it [rays] [m]; NaN where none does."""
    apart: Array
    """Mean difference of brightness, 0 to 1, between what each ray shows and what other views show there [rays]; NaN
    where no other sees the point."""


def seen_surface(
    views: Sequence[MouthRays], near: Sequence[Sequence[int]], surface: Surface, tolerance: float
) -> list[SeenSurface]:
    """A surface as each view sees it, compared with some others; depths that differ by no more are of one point [m]."""
    depths = [_first_hits(surface(one), one.depths) for one in views]
    images = [_as_image(one, depth) for one, depth in zip(views, depths, strict=True)]
    out: list[SeenSurface] = []
    for i, one in enumerate(views):
        own = one.image[one.pixels[:, 0], one.pixels[:, 1]]
        points = one.camera.body_from_camera[:3, 3] + one.rays * np.nan_to_num(depths[i])[:, None]
        total, count = np.zeros(len(own)), np.zeros(len(own))
        for j in near[i]:
            local = in_camera(views[j].camera, points)
            pixels = views[j].camera.project(np.where(local[:, 2:] > 0, local, [0.0, 0.0, 1.0]))
            there = _nearest(images[j], pixels)
            same = (np.abs(there - local[:, 2]) < tolerance) & np.isfinite(depths[i])
            total += np.where(same, np.abs(bilinear(views[j].image, pixels) - own), 0.0)
            count += same
        out.append(SeenSurface(depths[i], np.where(count > 0, total / np.maximum(count, 1), np.nan)))
    return out


def _first_hits(field: Array, depths: Array) -> Array:
    """Depth at which each ray enters what is inside [rays]; NaN where it does not."""
    inside, rays = field > 0, np.arange(len(field))
    at = np.maximum(inside.argmax(axis=1), 1)
    before, after = field[rays, at - 1], field[rays, at]
    share = np.clip(before / np.minimum(before - after, -1e-12), 0, 1)
    found = inside.any(axis=1) & ~inside[:, 0]
    return np.where(found, depths[at - 1] + share * (depths[at] - depths[at - 1]), np.nan)


def _as_image(one: MouthRays, values: Array) -> Array:
    out = np.full((one.camera.height, one.camera.width), np.nan)
    out[one.pixels[:, 0], one.pixels[:, 1]] = values
    return out


def _nearest(image: Array, pixels: Array) -> Array:
    """Values of the pixels that hold points of an image [n, 2]; NaN outside."""
    column, row = np.floor(pixels).astype(int).T
    valid = (column >= 0) & (row >= 0) & (column < image.shape[1]) & (row < image.shape[0])
    return np.where(valid, image[np.where(valid, row, 0), np.where(valid, column, 0)], np.nan)
