"""Cavities by their walls: the inside of a vessel, as far below its outer surface as its wall and floor are thick."""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .isosurface import Grid, grid_around

_HANDLE_SHARE = 0.5
"""Half the width up to which a part beside the vessel is a handle, as a share of half the width of the vessel."""
_SMOOTHING = 1.0
"""Width of the smoothing of distances from the outer surface, which was carved by noisy depth [cells]."""
_MOUTH_MARGIN = 2
"""How far beside its mouth a cavity may reach [cells]."""


@array_dataclass
class Walls:
    """How thick the walls of a vessel are [m]."""

    rim: float
    """At the level up to which it holds water."""
    base: float
    """At the table; in between linear in the height."""
    floor: float
    """Height of the floor above the table; where that is less, the floor is as thick as the wall."""


@array_dataclass
class Cavity:
    """The largest cavity of a shape as it stands on a table, on a grid whose third axis points up."""

    frame: Array
    """Axes of the grid in the world, by rows [3, 3]."""
    grid: Grid
    field: Array
    """How far inside the shape points are [x, y, z] [m]."""
    filled: Array
    """Whether points are in the shape or in the water that it would hold [x, y, z]."""
    water: Array
    """Whether points are in that water [x, y, z]."""
    inside: Array
    """Distance below the outer surface of points that may be of the cavity [x, y, z] [m]; 0 of others."""
    table: float
    """Third coordinate of the table [m]."""
    top: float
    """Height of the water's surface above the table [m]."""

    def cells(self, points: Array) -> Array:
        """Points of the world [..., 3] in cells of the grid."""
        return (points @ self.frame.T - self.grid.origin) / self.grid.pitch

    def heights(self, cells: Array) -> Array:
        """Heights of points in cells above the table [...] [m]."""
        return self.grid.origin[2] + self.grid.pitch * cells[..., 2] - self.table

    def carved(self, field: Array, points: Array, walls: Walls) -> Array:
        """A field at points of the world, without the cavity that the walls leave."""
        cells = self.cells(points)
        return np.minimum(field, left_by(walls, sampled(self.inside, cells), self.heights(cells), self.top))

    def removed(self, walls: Walls) -> float:
        """Volume that the cavity of the walls takes from the shape [m^3]."""
        heights = self.grid.origin[2] + self.grid.pitch * np.arange(self.grid.shape[2]) - self.table
        left = np.minimum(self.field, left_by(walls, self.inside, heights, self.top))
        before, after = (np.clip(one / self.grid.pitch + 0.5, 0, 1).sum() for one in (self.field, left))
        return float(before - after) * self.grid.pitch**3


def left_by(walls: Walls, inside: Array, heights: Array, top: float) -> Array:
    """How far inside walls points are whose distance below the outer surface and whose height are known [m]."""
    thickness = walls.rim + (walls.base - walls.rim) * np.clip(1 - heights / top, 0, 1)
    return np.maximum(thickness - inside, walls.floor - heights)


def sampled(values: Array, cells: Array) -> Array:
    """Values of a grid at points in cells [...]; far outside beside it."""
    from scipy.ndimage import map_coordinates

    return map_coordinates(values, np.moveaxis(cells, -1, 0), order=1, cval=-1.0)


def find_cavity(field: Array, grid: Grid, plane: Array) -> Cavity | None:
    """The cavity of a shape that holds most water as it stands on a table (nx, ny, nz, d); None where none does."""
    from scipy.ndimage import label

    up = plane[:3] / np.linalg.norm(plane[:3]) * (1.0 if plane[2] > 0 else -1.0)
    frame, corners = (
        _frame(up),
        grid.origin + grid.pitch * np.array(list(np.ndindex(2, 2, 2))) * np.subtract(grid.shape, 1),
    )
    ends = corners @ frame.T
    upright = grid_around(ends.min(axis=0), ends.max(axis=0), grid.pitch)
    there = sampled(field, (upright.points() @ frame - grid.origin) / grid.pitch)
    solid = there > 0
    parts, count = label(_water(solid))
    if not count:
        return None
    water = parts == np.bincount(parts.ravel())[1:].argmax() + 1
    level = int(np.nonzero(water)[2].max())
    table = -float(plane[3] / (plane[:3] @ up))
    top = float(upright.origin[2]) + upright.pitch * level - table
    inside = _below_surface(solid | water, water, level) * upright.pitch
    return Cavity(frame, upright, there, solid | water, water, inside, table, top)


def _frame(up: Array) -> Array:
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    return np.stack([np.cross(side, up), side, up])


def _water(solid: Array) -> Array:
    """The points in which water would stand [x, y, z]: walls are as high as they reach, whatever holes are in them."""
    from scipy.ndimage import binary_fill_holes

    heights: Array = np.where(solid.any(axis=2), solid.shape[2] - solid[:, :, ::-1].argmax(axis=2), 0)
    return np.stack(
        [np.asarray(binary_fill_holes(heights > z)) & (heights <= z) for z in range(solid.shape[2])], axis=2
    )


def _below_surface(filled: Array, water: Array, level: int) -> Array:
    """Distance of points below and at a level from the outer surface of a vessel without its handles, below the mouth
    of its cavity; 0 of others [x, y, z] [cells]."""
    from scipy.ndimage import binary_dilation, distance_transform_edt, gaussian_filter

    mouth = np.asarray(water.any(axis=2), bool)
    vessel = np.stack([_without_handles(filled[:, :, z], mouth) for z in range(level)], axis=2)
    above = int(np.ceil(np.asarray(distance_transform_edt(vessel[:, :, -1])).max())) + 1  # nothing is near the top
    standing = np.pad(vessel, ((1, 1), (1, 1), (1, 0)))
    standing = np.concatenate([standing, np.repeat(standing[:, :, -1:], above, axis=2)], axis=2)
    within, beside = (np.asarray(distance_transform_edt(one), float) for one in (standing, ~standing))
    signed = np.where(standing, within - 0.5, 0.5 - beside)
    distance = np.asarray(gaussian_filter(signed, _SMOOTHING))[1:-1, 1:-1, 1 : level + 2]
    out = np.zeros(filled.shape)
    out[:, :, : level + 1] = np.where(binary_dilation(mouth, iterations=_MOUTH_MARGIN)[..., None], distance, 0.0)
    return out


def _without_handles(level: Array, mouth: Array) -> Array:
    """One level of a vessel without what is thin beside it: opened by a disc that is as wide as the vessel allows."""
    from scipy.ndimage import binary_fill_holes, distance_transform_edt

    whole = np.asarray(binary_fill_holes(level), bool)
    depth = np.asarray(distance_transform_edt(whole), float)
    radius = _HANDLE_SHARE * depth[mouth].max()
    core = depth > radius
    if not core.any():
        return np.zeros_like(whole)
    return whole & (np.asarray(distance_transform_edt(~core), float) <= radius)
