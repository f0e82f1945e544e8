"""Make a mesh of another program closed: equal corners made one, inner voids and specks left out, holes filled.

A surface with holes is sampled anew: a point is inside where the generalised winding number, the solid angle that the
surface covers seen from there over 4 pi, is above one half. Holes are then closed smoothly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.splat.raster.simd import KERNEL

from .isosurface import grid_around, isosurface
from .triangle_mesh import TriangleMesh, joined, separated, simplified, without_unused

_WELD_SHARE = 1e-6
"""Corners nearer than this are one [share of the diagonal]."""
_CELLS = 72
"""Cells along the diagonal of a surface that is sampled anew."""
_FACES = 2500
"""Faces of a surface with holes whose winding numbers are computed."""
_SAMPLES = 80_000
_PIECE_SHARE = 0.02
"""Volume of a loose piece, as a share of the largest, below which it is left out."""
_MIN_VOLUME_SHARE = 1e-5
"""Least volume of a shape, as a share of the cube of its diagonal."""


def closed_mesh(mesh: TriangleMesh, name: str) -> tuple[TriangleMesh, str]:
    """A closed mesh that encloses a volume, normals outwards, and what was done to it; `name` is for errors."""
    mesh, how = welded(mesh), "as given"
    if not len(mesh.faces):
        raise BadInput(f"{name} encloses no volume: all its triangles are without area; a solid was expected.")
    if not mesh.watertight:
        mesh, how = _resampled(mesh), "closed: it had holes"
    elif mesh.volume < 0:
        mesh, how = TriangleMesh(mesh.vertices, mesh.faces[:, ::-1].copy()), "turned: it was inside out"
    pieces = [piece for piece in separated(mesh) if piece.volume > 0] if len(mesh.faces) else []
    kept = [piece for piece in pieces if piece.volume >= _PIECE_SHARE * pieces[0].volume]
    if not kept or sum(piece.volume for piece in kept) < _MIN_VOLUME_SHARE * mesh.diagonal**3:
        raise BadInput(f"{name} encloses no volume; a solid was expected, not a sheet or a shell with wide openings.")
    return joined(kept), how


def welded(mesh: TriangleMesh) -> TriangleMesh:
    """The mesh with equal corners made one, as those along seams of a texture are, without faces of no area."""
    points = np.round(mesh.vertices / max(_WELD_SHARE * mesh.diagonal, 1e-300))
    _, first, same = np.unique(points, axis=0, return_index=True, return_inverse=True)
    faces = same.reshape(-1)[mesh.faces]
    whole = (faces != np.roll(faces, 1, axis=1)).all(axis=1)
    faces = faces[whole]
    # A face that is given twice, the same way round, would leave edges that are passed twice.
    start = np.argmin(faces, axis=1)
    turned = np.take_along_axis(faces, (start[:, None] + np.arange(3)) % 3, axis=1)
    once = np.sort(np.unique(turned, axis=0, return_index=True)[1])
    return without_unused(TriangleMesh(mesh.vertices[first], faces[once].astype(np.int32)))


def _resampled(mesh: TriangleMesh) -> TriangleMesh:
    """A closed surface around what is inside of one with holes."""
    from scipy.spatial import cKDTree

    surface = simplified(mesh, _FACES)
    pitch = mesh.diagonal / _CELLS
    grid = grid_around(mesh.bounds[0], mesh.bounds[1], pitch)
    points = grid.points()
    samples, _ = mesh.sampled(_SAMPLES, np.random.default_rng(0))
    distance, _ = cKDTree(samples).query(points.reshape(-1, 3), distance_upper_bound=3 * pitch)
    distance = np.minimum(distance, 3 * pitch).reshape(grid.shape)
    corners = np.ascontiguousarray(surface.corners)
    coarse = winding_numbers(np.ascontiguousarray(points[::2, ::2, ::2]), corners)
    winding = coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)[tuple(map(slice, grid.shape))]
    near = distance < 2 * pitch
    winding[near] = winding_numbers(points[near], corners)
    return isosurface(np.where(winding > 0.5, distance, -distance), grid)


def winding_numbers(points: Array, corners: Array) -> Array:
    """How often triangles [faces, 3, 3] wind around points [..., 3]: 1 inside of a closed surface, 0 outside [...]."""
    out = np.empty(points.reshape(-1, 3).shape[0])
    _winding(np.ascontiguousarray(points.reshape(-1, 3)), corners, out)
    return out.reshape(points.shape[:-1])


@njit(**KERNEL)
def _winding(points: Any, corners: Any, out: Any) -> None:
    """The solid angle of each triangle by Van Oosterom and Strackee, summed."""
    for i in range(points.shape[0]):
        x, y, z = points[i]
        total = 0.0
        for f in range(corners.shape[0]):
            t = corners[f]
            ax, ay, az = t[0, 0] - x, t[0, 1] - y, t[0, 2] - z
            bx, by, bz = t[1, 0] - x, t[1, 1] - y, t[1, 2] - z
            cx, cy, cz = t[2, 0] - x, t[2, 1] - y, t[2, 2] - z
            la = np.sqrt(ax * ax + ay * ay + az * az)
            lb = np.sqrt(bx * bx + by * by + bz * bz)
            lc = np.sqrt(cx * cx + cy * cy + cz * cz)
            up = ax * (by * cz - bz * cy) + ay * (bz * cx - bx * cz) + az * (bx * cy - by * cx)
            ab, bc, ca = ax * bx + ay * by + az * bz, bx * cx + by * cy + bz * cz, cx * ax + cy * ay + cz * az
            total += np.arctan2(up, la * lb * lc + ab * lc + bc * la + ca * lb)
        out[i] = total / (2.0 * np.pi)
