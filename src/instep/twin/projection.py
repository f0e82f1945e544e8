"""Outlines of bodies and their projection into cameras; the edge of untyped libraries: MuJoCo, compiled kernels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .silhouette_kernels import CalibratedCamera, ConvexParts, ProjectedOutline

mujoco: Any = import_module("mujoco")
silhouette_kernels: Any = import_module("instep.twin.silhouette_kernels")
silhouette: Any = import_module("instep.twin.silhouette")

CIRCLE_CORNERS = 20
"""Corners along a circle that approximate a round geom."""
CONTACT_TOLERANCE_M = 1e-4
"""Corners this near to the surface of another part touch it [m]."""
MARGIN_PX = 8
"""Pixels around the predicted silhouette that are compared."""
OVERLAY_COLOUR = np.array([0, 255, 80], np.uint8)


def model_of(scene: Any) -> Any:
    """The compiled MuJoCo model of a scene."""
    return scene.model


def visible_geoms(model: Any, body: int) -> list[int]:
    """The geoms of a body that are not transparent.

    Of a free body with convex parts, the mesh that touches nothing is their surface, and not a convex part itself.
    """
    shown = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body and model.geom_rgba[g, 3] > 0]
    touching = [g for g in shown if model.geom_contype[g] or model.geom_conaffinity[g]]
    joint = int(model.body_jntadr[body])
    free = joint >= 0 and model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_FREE)
    return [g for g in shown if g in touching or model.geom_dataid[g] < 0] if free and touching else shown


@array_dataclass
class Outline:
    """The convex parts of one body; the silhouette of a part is the convex hull of its projected corners."""

    name: str
    corners: Array
    """Corners of all parts in the body's frame [n, 3] [m]."""
    starts: Array
    """Where each part begins in `corners`, and where the last one ends [parts + 1]."""
    reach: float
    """Greatest distance of a corner from the body's origin [m]."""
    surface: tuple[Array, Array] | None = None
    """Vertices [n, 3] [m] and triangles [m, 3] of a body whose silhouette its convex parts do not show."""

    @property
    def convex_parts(self) -> ConvexParts:
        """The parts as the kernels take them."""
        return self.corners, self.starts

    @property
    def parts(self) -> list[Array]:
        """Corners of each part [n, 3]."""
        return np.split(self.corners, self.starts[1:-1])

    def scaled(self, factors: Array) -> Outline:
        """The same shape scaled along the body's axes."""
        return _outline(self.name, [part * factors for part in self.parts])


def outline_of(model: Any, body: str) -> Outline:
    """The outline of a body's visible geoms."""
    names = [model.body(b).name for b in range(model.nbody)]
    if body not in names:
        raise UnknownName("body", body, names)
    parts = [_corners(model, g) for g in visible_geoms(model, names.index(body))]
    parts = [part for part in parts if len(part)]
    if not parts:
        raise BadInput(f"The body {body!r} has no geom that a camera could see, so the twin cannot track it.")
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
    angle = np.linspace(0, 2 * np.pi, CIRCLE_CORNERS, endpoint=False)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(CIRCLE_CORNERS, z)], axis=1)


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
    """Parts that touch, extended until they overlap: their common face is not an edge of the silhouette.

    A face that lies wholly on a face of another part is moved into that part, up to its middle and never out of it.
    """
    out, planes = [part.copy() for part in parts], [_planes(part) for part in parts]
    for i, part in enumerate(parts):
        for j, other in enumerate(planes):
            if i == j or other is None:
                continue
            apart = part @ other[:, :3].T + other[:, 3]
            within = np.all(apart < CONTACT_TOLERANCE_M, axis=1)
            for k, (normal, away) in enumerate(zip(other[:, :3], apart.T, strict=True)):
                on = within & (np.abs(away) < CONTACT_TOLERANCE_M)
                if on.sum() < 3 or on.all() or not np.all(away[~on] > -CONTACT_TOLERANCE_M):
                    continue
                middle = -float(parts[j].mean(axis=0) @ normal + other[k, 3])
                # How fast each plane is neared on the way in, and how far away it is.
                nearing, room = -(other[:, :3] @ normal), -apart[on].max(axis=0)
                ahead = nearing > 1e-9
                free = float(np.min(np.maximum(room[ahead], 0.0) / nearing[ahead], initial=np.inf))
                out[i][on] -= min(middle, free) * normal
    return out


def _planes(part: Array) -> Array | None:
    """Outward normals and offsets of the faces of a convex part [faces, 4]; None where it is flat."""
    from scipy.spatial import ConvexHull

    if np.linalg.matrix_rank(part - part.mean(axis=0), tol=CONTACT_TOLERANCE_M) < 3:
        return None
    found: Any = ConvexHull(part)
    return np.unique(np.round(np.asarray(found.equations, float), 9), axis=0)


def project_outline(
    outline: Outline, camera: Camera, world_from_body: Array, centre: Array, margin: int = MARGIN_PX
) -> ProjectedOutline:
    """Project a body at a transform (4 x 4) into a camera that is fixed in the world."""
    points, jacobian = silhouette_kernels.project_corners(outline.corners, world_from_body, calibrated(camera), centre)
    if not np.isfinite(points[0, 0]):
        return ProjectedOutline(np.zeros((0, 2)), np.zeros((0, 2, 6)), np.zeros((0, 7)), (0, 0, 0, 0))
    region = silhouette.region_around(points, margin, camera.width, camera.height)
    return ProjectedOutline(points, jacobian, silhouette_kernels.edges_of(points, outline.starts), region)


def draw_outline(image: Array, camera: Camera, outline: Outline, world_from_body: Array) -> Array:
    """An image [height, width, 3] with the outline of a body at a transform (4 x 4) on top."""
    out = image.copy()
    projected = project_outline(outline, camera, world_from_body, world_from_body[:3, 3])
    if not projected.visible:
        return out
    left, top, right, bottom = projected.region
    inside = projected.coverage() > 0.5
    edge = np.zeros_like(inside)
    edge[:-1] |= inside[:-1] != inside[1:]
    edge[:, :-1] |= inside[:, :-1] != inside[:, 1:]
    out[top:bottom, left:right][edge] = OVERLAY_COLOUR
    return out


def calibrated(camera: Camera) -> CalibratedCamera:
    """A camera as the kernels take it."""
    lens = np.array([*camera.focal, *camera.centre, *(*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]])
    return camera.body_from_camera, lens, camera.width, camera.height


def transform_at(times: Array, poses: Array, t: float) -> Array:
    """The transform (4 x 4) at time t between poses xyz + wxyz [n, 7] at ascending times, held at both ends."""
    return np.asarray(silhouette.transform_at(np.ascontiguousarray(times), np.ascontiguousarray(poses), float(t)))
