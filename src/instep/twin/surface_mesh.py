"""The surface of a body as cameras see it: triangles of its meshes, fewer of them where they are many.

Convex parts show the silhouettes of many bodies, and not of all. Texture and what a body occludes are on its surface:
the inside of a bowl and the handle of a mug are not on a convex hull.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat
from instep.core.records import array_dataclass
from instep.core.world import Array

from .projection import Outline, model_of, mujoco, outline_of

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
    model = model_of(scene)
    surface = mesh_surface(model, outline.name)
    if surface is None:
        return hull_faces(outline)
    size = np.ptp(outline.corners, axis=0) / np.ptp(outline_of(model, outline.name).corners, axis=0)
    return replace(surface, vertices=surface.vertices * size)


def fitted_outline(outline: Outline, scene: Any) -> Outline:
    """The outline of a body, with its surface where that is much less than the convex hull of its meshes."""
    from scipy.spatial import ConvexHull

    if len(outline.starts) > 2 or mesh_surface(model_of(scene), outline.name) is None:
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
    low = corners.reshape(-1, 3).min(axis=0)
    size = float((corners.reshape(-1, 3).max(axis=0) - low).max()) / cells
    places = np.floor((corners.reshape(-1, 3) - low) / size).astype(np.int64)
    _, cell = np.unique(places @ np.array([1, 1 << 20, 1 << 40]), return_inverse=True)
    cell, n = np.asarray(cell).reshape(-1), int(np.max(cell)) + 1
    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(cross, axis=1)
    normal = cross / np.maximum(area, 1e-18)[:, None]
    count, middle = np.zeros(n), np.zeros((n, 3))
    np.add.at(count, cell, 1.0)
    np.add.at(middle, cell, corners.reshape(-1, 3))
    middle /= count[:, None]
    A, b = np.zeros((n, 3, 3)), np.zeros((n, 3))
    planes = np.repeat(area[:, None, None] * normal[:, :, None] * normal[:, None, :], 3, axis=0)
    off = np.sum(np.repeat(normal, 3, axis=0) * (corners.reshape(-1, 3) - middle[cell]), axis=1)
    np.add.at(A, cell, planes)
    np.add.at(b, cell, np.repeat(area[:, None] * normal, 3, axis=0) * off[:, None])
    pull = PULL * np.trace(A, axis1=1, axis2=2)[:, None, None] * np.eye(3) + 1e-30 * np.eye(3)
    step: Array = np.asarray(np.linalg.solve(A + pull, b[..., None]), float)[..., 0]
    vertices: Array = middle + np.clip(step, -size, size)
    triangles = cell.reshape(-1, 3)
    triangles = triangles[(triangles != np.roll(triangles, 1, axis=1)).all(axis=1)]
    triangles = triangles[np.unique(np.sort(triangles, axis=1), axis=0, return_index=True)[1]]
    cross = np.cross(
        vertices[triangles[:, 1]] - vertices[triangles[:, 0]], vertices[triangles[:, 2]] - vertices[triangles[:, 0]]
    )
    length = np.linalg.norm(cross, axis=1)
    kept = length > 1e-12
    return BodyFaces(vertices, triangles[kept], cross[kept] / length[kept, None])


def _triangles(model: Any, g: int) -> Array:
    """Corners of the triangles of a mesh in the frame of its body [m, 3, 3]."""
    mesh = int(model.geom_dataid[g])
    first, n = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    begin, m = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    points = np.asarray(model.mesh_vert[first : first + n], float)
    points = points @ matrix_from_quat(np.asarray(model.geom_quat[g], float)).T + np.asarray(model.geom_pos[g], float)
    return points[np.asarray(model.mesh_face[begin : begin + m], int)]
