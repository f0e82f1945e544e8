"""Outlines of bodies and their projection into cameras; the edge of untyped libraries: MuJoCo, compiled kernels.

The surface of a body as cameras see it: triangles of its meshes, fewer of them where they are many.

Convex parts show the silhouettes of many bodies, and not of all. Texture and what a body occludes are on its surface:
the inside of a bowl and the handle of a mug are not on a convex hull."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera

from .silhouette_kernels import CalibratedCamera, ConvexParts, ProjectedOutline

mujoco: Any = import_module("mujoco")
silhouette_kernels: Any = import_module("instep.twin.silhouette_kernels")

CIRCLE_CORNERS = 20
"""Corners along a circle that approximate a round geom."""
CONTACT_TOLERANCE_M = 1e-4
"""Corners this near to the surface of another part touch it [m]."""
MARGIN_PX = 8
"""Pixels around the predicted silhouette that are compared."""
OVERLAY_COLOUR = np.array([0, 255, 80], np.uint8)


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
    kind, size = mujoco.mjtGeom(model.geom_type[g]), model.geom_size[g]
    ball, rise = np.concatenate([_circle(np.cos(a), np.sin(a)) for a in np.linspace(-1.5, 1.5, 7)]), [0, 0, size[1]]
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        points = np.array(list(product((-1.0, 1.0), repeat=3))) * size
    elif kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        points = np.concatenate([_circle(size[0], z) for z in (-size[1], size[1])])
    elif kind == mujoco.mjtGeom.mjGEOM_MESH:
        points = _mesh(model, int(model.geom_dataid[g]))
    elif kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        points = ball * size[0]
    elif kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        points = np.concatenate([ball * size[0] + rise, ball * size[0] - rise])
    elif kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
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


def project_points(places: Array, world_from_body: Array, camera: Camera) -> tuple[Array, Array]:
    """Pixels [n, 2] of points of a body, and their derivatives by its motions [n, 2, 6].

    The first is NaN where the points are not all in front of the camera.
    """
    return silhouette_kernels.project_corners(places, world_from_body, calibrated(camera))


def project_outline(
    outline: Outline, camera: Camera, world_from_body: Array, margin: int = MARGIN_PX
) -> ProjectedOutline:
    """Project a body at a transform (4 x 4) into a camera that is fixed in the world."""
    points, jacobian = project_points(outline.corners, world_from_body, camera)
    if not np.isfinite(points[0, 0]):
        return ProjectedOutline(np.zeros((0, 2)), np.zeros((0, 2, 6)), np.zeros((0, 7)), (0, 0, 0, 0))
    region = silhouette_kernels.region_around(points, margin, camera.width, camera.height)
    return ProjectedOutline(points, jacobian, silhouette_kernels.edges_of(points, outline.starts), region)


def draw_outline(image: Array, camera: Camera, outline: Outline, world_from_body: Array) -> Array:
    """An image [height, width, 3] with the outline of a body at a transform (4 x 4) on top."""
    out = image.copy()
    projected = project_outline(outline, camera, world_from_body)
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
    return np.asarray(
        silhouette_kernels.transform_at(np.ascontiguousarray(times), np.ascontiguousarray(poses), float(t))
    )


MAX_TRIANGLES = 4000
"""Triangles of a surface: more take longer to draw than a frame has time."""
COARSEST, FINEST = 12, 96
"""Cells along the longest side of a body, in which the vertices of a mesh are joined."""
CONVEX_SHARE = 0.9
"""Volume over that of the convex hull from which a mesh counts as convex."""
PULL = 1e-3
"""Weight of the middle of a cell's vertices against the planes through them."""


@array_dataclass
class BodyFaces:
    """Triangles of a body's shape."""

    vertices: Array
    """[n, 3] [m]."""
    triangles: Array
    """Indices of vertices [m, 3]."""
    normals: Array
    """Outward normals [m, 3]."""


def body_faces(outline: Outline, scene: Any) -> BodyFaces:
    """The faces of a body's meshes in a scene, where it is made of these; else those of its convex parts.

    An outline that was given another size than the scene's has its meshes scaled along.
    """
    model = scene.model
    surface = mesh_surface(model, outline.name)
    if surface is None:
        return hull_faces(outline)
    size = np.ptp(outline.corners, axis=0) / np.ptp(outline_of(model, outline.name).corners, axis=0)
    return replace(surface, vertices=surface.vertices * size)


def fitted_outline(outline: Outline, scene: Any) -> Outline:
    """The outline of a body, with its surface where that is much less than the convex hull of its meshes."""
    from scipy.spatial import ConvexHull

    if len(outline.starts) > 2 or mesh_surface(scene.model, outline.name) is None:
        return outline
    faces = body_faces(outline, scene)
    corners = faces.vertices[faces.triangles]
    hull: Any = ConvexHull(faces.vertices)
    volume = float(np.sum(corners[:, 0] * np.cross(corners[:, 1], corners[:, 2]))) / 6
    if abs(volume) > CONVEX_SHARE * float(hull.volume):
        return outline
    return replace(outline, surface=(faces.vertices, faces.triangles))


def hull_faces(outline: Outline) -> BodyFaces:
    """The faces of the convex hulls of a body's parts."""
    from scipy.spatial import ConvexHull

    triangles: list[Array] = []
    normals: list[Array] = []
    for start, part in zip(outline.starts, outline.parts, strict=False):
        hull: Any = ConvexHull(part)
        triangles.append(np.asarray(hull.simplices) + start)
        normals.append(np.asarray(hull.equations)[:, :3])
    return BodyFaces(outline.corners, np.concatenate(triangles), np.concatenate(normals))


def mesh_surface(model: Any, body: str) -> BodyFaces | None:
    """The triangles of a body's visible meshes in its frame; None where a visible geom of it is no mesh.

    Where meshes touch nothing they are the surface, and the geoms that touch are not shown.
    """
    b = int(model.body(body).id)
    shown = [g for g in range(model.ngeom) if model.geom_bodyid[g] == b and model.geom_rgba[g, 3] > 0]
    meshes = [g for g in shown if int(model.geom_type[g]) == int(mujoco.mjtGeom.mjGEOM_MESH)]
    plain = [g for g in meshes if not (model.geom_contype[g] or model.geom_conaffinity[g])]
    if not plain and len(meshes) < len(shown):
        return None
    parts = [_triangles(model, g) for g in plain or meshes]
    if not parts:
        return None
    corners = np.concatenate(parts)  # [m, 3, 3]
    for cells in range(FINEST, COARSEST - 1, -4):
        found = clustered(corners, cells)
        if len(found.triangles) <= MAX_TRIANGLES:
            return found
    return clustered(corners, COARSEST)


def clustered(corners: Array, cells: int) -> BodyFaces:
    """A coarser surface of triangles [m, 3, 3]: one vertex per cell of a grid, where it is nearest to their planes.

    The vertex x of a cell minimises the sum over its triangles of area (n . (x - p))^2 (quadric clustering), so that a
    curved surface stays where it is.
    """
    points = corners.reshape(-1, 3)
    low = points.min(axis=0)
    size = float((points.max(axis=0) - low).max()) / cells
    places = np.floor((points - low) / size).astype(np.int64)
    _, cell = np.unique(places @ np.array([1, 1 << 20, 1 << 40]), return_inverse=True)
    cell, n = np.asarray(cell).reshape(-1), int(np.max(cell)) + 1

    def summed(values: Array) -> Array:
        """Sums over the corners of each cell."""
        out = np.zeros((n, *values.shape[1:]))
        np.add.at(out, cell, values)
        return out

    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.repeat(np.linalg.norm(cross, axis=1), 3)
    normal = np.repeat(cross, 3, axis=0) / np.maximum(area, 1e-18)[:, None]
    middle = summed(points) / summed(np.ones((len(points), 1)))
    away = area * np.sum(normal * (points - middle[cell]), axis=1)
    A = summed(area[:, None, None] * normal[:, :, None] * normal[:, None, :])
    pull = PULL * np.trace(A, axis1=1, axis2=2)[:, None, None] * np.eye(3) + 1e-30 * np.eye(3)
    step: Array = np.asarray(np.linalg.solve(A + pull, summed(away[:, None] * normal)[..., None]), float)[..., 0]
    vertices: Array = middle + np.clip(step, -size, size)
    triangles = cell.reshape(-1, 3)
    triangles = triangles[(triangles != np.roll(triangles, 1, axis=1)).all(axis=1)]
    triangles = triangles[np.unique(np.sort(triangles, axis=1), axis=0, return_index=True)[1]]
    a, b, c = vertices[triangles].swapaxes(0, 1)
    cross = np.cross(b - a, c - a)
    length = np.linalg.norm(cross, axis=1)
    kept = length > 1e-12
    return BodyFaces(vertices, triangles[kept], cross[kept] / length[kept, None])


def _triangles(model: Any, g: int) -> Array:
    """Corners of the triangles of a mesh in the frame of its body [m, 3, 3]."""
    mesh = int(model.geom_dataid[g])
    begin, m = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    points = np.asarray(model.mesh_vert[model.mesh_face[begin : begin + m] + model.mesh_vertadr[mesh]], float)
    return points @ matrix_from_quat(np.asarray(model.geom_quat[g], float)).T + np.asarray(model.geom_pos[g], float)
