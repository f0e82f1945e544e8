"""Cavities of a mesh that stands on a table: how much water it would hold."""

from __future__ import annotations

import numpy as np

from instep.core.world import Array
from instep.scene.camera import Camera

from .mesh_raster import depth_image
from .triangle_mesh import TriangleMesh

CONTAINER_SHARE = 0.015
"""Water that a container holds, as a share of the volume of its mesh."""
_CELLS = 120
"""Columns along each side in which heights are taken."""
_FAR = 1000.0
"""Distance from which a mesh is seen from above, in diagonals: rays are then parallel to a thousandth."""


def cavity_volume(mesh: TriangleMesh, plane: Array) -> float:
    """The volume of water that a mesh would hold as it stands on a table (nx, ny, nz, d) [m^3]."""
    from scipy.ndimage import binary_fill_holes

    heights, area = _heights(mesh, plane)
    levels = np.linspace(0.0, float(heights.max()), _CELLS + 1)
    step = float(levels[1] - levels[0])
    cells = sum(int((binary_fill_holes(heights > z) & (heights <= z)).sum()) for z in levels[:-1] + step / 2)
    return cells * step * area


def is_container(mesh: TriangleMesh, cavity: float) -> bool:
    """Whether a cavity [m^3] makes a mesh a container."""
    return cavity > CONTAINER_SHARE * mesh.volume


def cavity_words(mesh: TriangleMesh, plane: Array) -> dict[str, float | bool]:
    """What build.json says of the cavity of a mesh."""
    cavity = cavity_volume(mesh, plane)
    return {"cavity_m3": cavity, "container": is_container(mesh, cavity)}


def _heights(mesh: TriangleMesh, plane: Array) -> tuple[Array, float]:
    """Heights of a mesh above its lowest point, on a grid, 0 beside it [m]; the area of a cell [m^2]."""
    up = plane[:3] / np.linalg.norm(plane[:3]) * (1.0 if plane[2] > 0 else -1.0)
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    pose, size = np.eye(4), 1.1 * mesh.diagonal
    pose[:3, :3] = np.stack([side, np.cross(-up, side), -up], axis=1)
    pose[:3, 3] = mesh.bounds.mean(axis=0) + _FAR * mesh.diagonal * up
    focal, centre = _CELLS * _FAR * mesh.diagonal / size, _CELLS / 2
    camera = Camera("above", _CELLS, _CELLS, (focal, focal), (centre, centre), "world", pose)
    seen = depth_image(mesh, camera)
    lowest = float(((mesh.vertices - pose[:3, 3]) @ -up).max())
    return np.where(seen.mask, lowest - np.where(seen.mask, seen.depth, 0.0), 0.0), (size / _CELLS) ** 2
