"""The edge of libraries without types: MuJoCo's bindings, and the compiled kernels. What they return is `Any`.

The shape of a body as a camera sees it: its convex parts, by their corners.

One body in one camera: where its corners fall, and how they move with it.

Where a body stands in a world's numbers: its pose in q, its twist in v.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, pose
from instep.core.world import Array, Spec
from instep.scene.camera import Camera

mujoco: Any = import_module("mujoco")
kernels: Any = import_module("instep.twin.silhouette_kernels")
glances: Any = import_module("instep.twin.silhouette")


def model_of(scene: Any) -> Any:
    """The compiled model of a scene."""
    return scene.model


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


MARGIN = 8
"""Pixels around the predicted silhouette that are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """The projected outline of a body, and its derivative by motions of the body."""

    points: Array
    """Projected corners [n, 2] [pixels]."""
    slopes: Array
    """Their derivatives by (translation, rotation about `centre`) in the world [n, 2, 6]."""
    edges: Array
    region: tuple[int, int, int, int]
    """Left, top, right, bottom of the pixels that matter; empty where the body is out of view."""

    @property
    def area(self) -> float:
        """Area of the body's largest part [pixels], wherever it falls."""
        return float(kernels.area_of(self.points, self.edges))

    @property
    def visible(self) -> bool:
        """Whether any pixel of the image can show the body."""
        left, top, right, bottom = self.region
        return right - left > 2 and bottom - top > 2

    def coverage(self, region: tuple[int, int, int, int] | None = None, soft: float = 0.25) -> Array:
        """The silhouette in a region (its own where none is given), soft at its edge [height, width]."""
        left, top, right, bottom = region or self.region
        corner = np.array([left, top], float)
        return kernels.coverage(self.edges, corner, bottom - top, right - left, soft)


def sight(outline: Outline, camera: Camera, world_from_body: Array, centre: Array, margin: int = MARGIN) -> Sight:
    """Project a body at a transform (4 x 4) into a camera that stands in the world."""
    lens = lens_of(camera)
    points, slopes = kernels.placed(outline.corners, world_from_body, camera.body_from_camera, lens, centre)
    if not np.isfinite(points[0, 0]):
        return Sight(np.zeros((0, 2)), np.zeros((0, 2, 6)), np.zeros((0, 7)), (0, 0, 0, 0))
    low, high = points.min(axis=0), points.max(axis=0)
    region = (
        max(int(low[0]) - margin, 0),
        max(int(low[1]) - margin, 0),
        min(int(high[0]) + 1 + margin, camera.width),
        min(int(high[1]) + 1 + margin, camera.height),
    )
    return Sight(points, slopes, kernels.edges_of(points, outline.starts), region)


def lens_of(camera: Camera) -> Array:
    """fx, fy, cx, cy, k1, k2, p1, p2, k3 [9], as the kernels take them."""
    return np.array([*camera.focal, *camera.centre, *(*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]])


@dataclass(frozen=True, slots=True)
class Place:
    """The coordinates of one free body: position and quaternion from `q`, linear and angular velocity from `v`."""

    name: str
    q: int
    v: int

    def transform(self, q: Array) -> Array:
        """world_from_body (4 x 4)."""
        return np.asarray(glances.placed_at(q[self.q : self.q + 7]))

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the body moved there."""
        out = q.copy()
        out[self.q : self.q + 7] = pose(world_from_body)
        return out

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the body translated by xi[:3] and turned about its own origin by xi[3:]."""
        out = q.copy()
        out[self.q : self.q + 7] = glances.shifted(q[None, self.q : self.q + 7], xi)[0]
        return out

    def add_twist(self, q: Array, v: Array, twist: Array) -> Array:
        """Velocities with a twist in the world added; angular velocity is kept in the body's axes."""
        out = v.copy()
        out[self.v : self.v + 3] += twist[:3]
        out[self.v + 3 : self.v + 6] += self.transform(q)[:3, :3].T @ twist[3:]
        return out


def place_of(spec: Spec, body: str) -> Place:
    """Where a free body stands in the numbers of a world."""
    first, speed = f"{body}.x", f"{body}.vx"
    if first not in spec.q.labels:
        raise UnknownName("free body", body, sorted({n.rpartition(".")[0] for n in spec.q.labels if "." in n}))
    return Place(body, spec.q.labels.index(first), spec.v.labels.index(speed))


def interpolated(times: Array, poses: Array, t: float) -> Array:
    """The pose xyz + wxyz at time t between remembered ones [n, 7], held at both ends; times rise."""
    after = int(np.searchsorted(times, t))
    if after <= 0:
        return poses[0]
    if after >= len(times):
        return poses[-1]
    a, b = poses[after - 1], poses[after]
    share = (t - times[after - 1]) / max(times[after] - times[after - 1], 1e-9)
    b = np.concatenate([b[:3], b[3:] if np.dot(a[3:], b[3:]) >= 0 else -b[3:]])
    out = a + share * (b - a)
    out[3:] /= np.linalg.norm(out[3:])
    return out
