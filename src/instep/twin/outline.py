"""The shape of a body as a camera sees it: its convex parts, by their corners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.world import Array

from .untyped import mujoco

ROUND = 20
"""Corners along a circle that stand for a round shape."""
TOUCH = 1e-4
"""Corners this near to another part's surface touch it [m]."""


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """The convex parts of one body. The projection of a part is the convex hull of its projected corners."""

    name: str
    corners: Array
    """Corners of all parts in the body's frame [n, 3] [m]."""
    starts: Array
    """Where each part begins in `corners`, and where the last one ends [parts + 1]."""
    reach: float
    """Greatest distance of a corner from the body's origin [m]."""

    def sized(self, factors: Array) -> Outline:
        """The same shape stretched along the body's axes."""
        return _outline(self.name, [part * factors for part in np.split(self.corners, self.starts[1:-1])])


def outline(model: Any, body: str) -> Outline:
    """The shape of a body's visible geoms."""
    names = [model.body(b).name for b in range(model.nbody)]
    if body not in names:
        raise UnknownName("body", body, names)
    b = names.index(body)
    geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] == b and model.geom_rgba[g, 3] > 0]
    parts = [_corners(model, g) for g in geoms]
    parts = [part for part in parts if len(part)]
    if not parts:
        raise BadInput(f"The body {body!r} has no geom that a camera could see, so the twin cannot look for it.")
    return _outline(body, _overlapped(parts))


def _outline(name: str, parts: list[Array]) -> Outline:
    corners = np.concatenate(parts)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    return Outline(name, corners, starts, float(np.linalg.norm(corners, axis=1).max()))


def _corners(model: Any, g: int) -> Array:
    kind, size = int(model.geom_type[g]), model.geom_size[g]
    if kind == int(mujoco.mjtGeom.mjGEOM_BOX):
        points = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * size
    elif kind == int(mujoco.mjtGeom.mjGEOM_CYLINDER):
        points = np.concatenate([_circle(size[0], z) for z in (-size[1], size[1])])
    elif kind == int(mujoco.mjtGeom.mjGEOM_MESH):
        points = _mesh(model, int(model.geom_dataid[g]))
    elif kind in (int(mujoco.mjtGeom.mjGEOM_SPHERE), int(mujoco.mjtGeom.mjGEOM_CAPSULE)):
        half = size[1] if kind == int(mujoco.mjtGeom.mjGEOM_CAPSULE) else 0.0
        ball = np.concatenate([_circle(size[0] * np.cos(a), size[0] * np.sin(a)) for a in np.linspace(-1.5, 1.5, 7)])
        rise = np.array([0.0, 0.0, half])
        points = np.concatenate([ball + rise, ball - rise])
    elif kind == int(mujoco.mjtGeom.mjGEOM_ELLIPSOID):
        ball = np.concatenate([_circle(np.cos(a), np.sin(a)) for a in np.linspace(-1.5, 1.5, 7)])
        points = ball * size
    else:
        return np.empty((0, 3))  # a plane has no outline
    return points @ matrix_from_quat(model.geom_quat[g]).T + model.geom_pos[g]


def _circle(radius: float, z: float) -> Array:
    angle = np.linspace(0, 2 * np.pi, ROUND, endpoint=False)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(ROUND, z)], axis=1)


def _mesh(model: Any, mesh: int) -> Array:
    first, n = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    points = np.asarray(model.mesh_vert[first : first + n], float)
    if n <= 64:
        return points
    # The farthest vertex in each of many directions: the hull to a fraction of a pixel.
    golden = np.pi * (3 - np.sqrt(5)) * np.arange(96)
    z = 1 - 2 * (np.arange(96) + 0.5) / 96
    ring = np.sqrt(1 - z * z)
    directions = np.stack([ring * np.cos(golden), ring * np.sin(golden), z], axis=1)
    return points[np.unique(np.argmax(points @ directions.T, axis=0))]


def _overlapped(parts: list[Array]) -> list[Array]:
    """Parts that touch made to overlap, or their common face would look like an edge of the body.

    A corner that lies on the box around another part is moved to the middle of that box, across the face.
    """
    out = [part.copy() for part in parts]
    for i, part in enumerate(parts):
        for j, other in enumerate(parts):
            if i == j:
                continue
            low, high = other.min(axis=0), other.max(axis=0)
            near = np.all((part >= low - TOUCH) & (part <= high + TOUCH), axis=1)
            for axis in range(3):
                for face in (low[axis], high[axis]):
                    on = near & (np.abs(part[:, axis] - face) < TOUCH)
                    # Only a face that lies wholly inside the other part; a flush side is a true edge of the body.
                    whole = on.sum() >= 3 and not np.allclose(part[:, axis], face)
                    beyond = np.all(part[~on, axis] <= face) if face == low[axis] else np.all(part[~on, axis] >= face)
                    if whole and beyond:
                        out[i][on, axis] = 0.5 * (low[axis] + high[axis])
    return out
