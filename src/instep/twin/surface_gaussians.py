"""A skin of Gaussians for a body that was never scanned: flat ones on the faces of its convex parts.

Each lies half a cell inside its face's border and is so narrow that the sum of all falls to one half at the border: the
edge that a camera shows. A skin has the colours of faces, so edges inside the silhouette tell of its pose as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.poses import quat_from_matrix
from instep.core.world import Array
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.spherical_harmonics import C0

from .projection import Outline

PITCH = 0.012
"""Side of a face's cells [m], about four pixels of a camera that is three quarters of a metre away."""
WIDTH = 0.32
"""Standard deviation of a Gaussian along its face, in cells."""
THICK = 5e-4
"""The same across it [m]."""
OPAQUE = 0.97
"""Opacity of a Gaussian."""
FLUSH = 1e-5
"""Corners this near to a plane lie on it [m]."""


@dataclass(frozen=True, slots=True, eq=False)
class Skin:
    """Gaussians on a body, and which way each faces."""

    gaussians: Gaussians
    normals: Array
    """Outward normals in the body's frame [n, 3]; all nought for Gaussians that are seen from all sides."""

    def painted(self, colours: Array) -> Gaussians:
        """The Gaussians in colours [n, 3] (0 to 1)."""
        return replace(self.gaussians, sh=((colours - 0.5) / C0)[:, None, :])


def skin_of(shape: Outline, colour: Array, pitch: float = PITCH) -> Skin:
    """A skin of one colour for a body of this shape."""
    parts = np.split(shape.corners, shape.starts[1:-1])
    hulls = [_hull(part) for part in parts]
    means, quats, normals = list[Array](), list[Array](), list[Array]()
    for i, part in enumerate(parts):
        for plane in np.unique(hulls[i].round(6), axis=0):
            points, turn = _cells(part, plane, pitch)
            points = points[~_covered(points, plane[:3], [hull for j, hull in enumerate(hulls) if j != i])]
            means.append(points - THICK * plane[:3])
            quats.append(np.tile(turn, (len(points), 1)))
            normals.append(np.tile(plane[:3], (len(points), 1)))
    n = sum(len(rows) for rows in means)
    scales = np.tile([WIDTH * pitch, WIDTH * pitch, THICK], (n, 1))
    colours, opacities = np.tile(np.asarray(colour, float)[:3], (n, 1)), np.full(n, OPAQUE)
    flat = gaussians_from_colours(
        np.concatenate(means), scales, colours, quats=np.concatenate(quats), opacities=opacities
    )
    return Skin(flat.attached_to(shape.name), np.concatenate(normals))


def _hull(points: Array) -> Array:
    """Planes of a convex hull [faces, 4], n . x + d = 0 with n outward."""
    spatial: Any = import_module("scipy.spatial")
    return np.asarray(spatial.ConvexHull(points).equations, float)


def _cells(part: Array, plane: Array, pitch: float) -> tuple[Array, Array]:
    """Middles of the cells of a face [n, 3], and the orientation wxyz whose third axis is its normal."""
    normal = plane[:3]
    across = np.cross(normal, [1.0, 0.0, 0.0] if abs(normal[0]) < 0.9 else [0.0, 1.0, 0.0])
    across /= np.linalg.norm(across)
    axes = np.stack([across, np.cross(normal, across)])
    flat = part[np.abs(part @ normal + plane[3]) < FLUSH] @ axes.T
    low, high = flat.min(axis=0), flat.max(axis=0)
    count = np.maximum(np.rint((high - low) / pitch), 1).astype(int)
    cells = np.asarray(np.indices(tuple(count.tolist())), float).reshape(2, -1).T
    grid = low + (cells + 0.5) / count * (high - low)
    border = _hull(flat)
    inside = grid[(grid @ border[:, :2].T + border[:, 2] < 0).all(axis=1)]
    return inside @ axes - plane[3] * normal, quat_from_matrix(np.stack([*axes, normal], axis=1))


def _covered(points: Array, normal: Array, others: list[Array]) -> Array:
    """Whether another part covers a face at these points [n]."""
    before = points + 1e-4 * normal
    covered = np.zeros(len(points), bool)
    for hull in others:
        covered |= (before @ hull[:, :3].T + hull[:, 3] < 1e-6).all(axis=1)
    return covered
