"""Triangle meshes as occluders: the depth and a plain shading of a robot, by a compiled depth buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.image import Backdrop

from .gaussian_projection import lens_max_radius2
from .reference import NEAR_PLANE_M
from .simd import KERNEL


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """Triangles on a body."""

    vertices: Array
    """[vertices, 3] [m], in the frame of the body."""
    faces: Array
    """[triangles, 3], indices into the vertices."""
    colour: tuple[float, float, float] = (0.7, 0.7, 0.7)

    def __post_init__(self) -> None:
        if self.vertices.ndim != 2 or self.vertices.shape[1] != 3 or self.faces.ndim != 2 or self.faces.shape[1] != 3:
            raise BadInput(
                f"A mesh needs vertices [n, 3] and faces [m, 3], not {self.vertices.shape}, {self.faces.shape}."
            )
        if len(self.faces) and (self.faces.min() < 0 or self.faces.max() >= len(self.vertices)):
            raise BadInput(f"A mesh names vertex {int(self.faces.max())}, but has {len(self.vertices)}.")


def draw_meshes(meshes: Sequence[Mesh], world_from_mesh: Array, camera: Camera, world_from_camera: Array) -> Backdrop:
    """What a camera sees of meshes placed by transforms [meshes, 4, 4]: colours lit from the camera, and depths."""
    depth = np.full((camera.height, camera.width), np.inf)
    colour = np.zeros((camera.height, camera.width, 3), np.float32)
    camera_from_world = np.linalg.inv(world_from_camera)
    for mesh, place in zip(meshes, world_from_mesh, strict=True):
        camera_from_mesh = camera_from_world @ place
        points = np.asarray(mesh.vertices, float) @ camera_from_mesh[:3, :3].T + camera_from_mesh[:3, 3]
        ahead = np.where(points[:, 2:] > NEAR_PLANE_M, points[:, 2:], 1.0)
        ideal = points[:, :2] / ahead
        seen = (points[:, 2] > NEAR_PLANE_M) & ((ideal**2).sum(axis=1) < lens_max_radius2(camera))
        pixels = camera.project(np.column_stack([ideal, np.ones(len(ideal))]))
        shade = np.asarray(mesh.colour, np.float32)
        _fill(pixels, points, np.ascontiguousarray(mesh.faces, np.int64), seen, shade, depth, colour)
    return Backdrop(colour, depth)


@njit(**KERNEL)
def _fill(pixels: Any, points: Any, faces: Any, seen: Any, shade: Any, depth: Any, colour: Any) -> None:
    """Fill triangles into a depth buffer; 1 / depth is linear in the image, so it is what is interpolated."""
    height, width = depth.shape
    for f in range(len(faces)):
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        if not (seen[a] and seen[b] and seen[c]):
            continue
        ax, ay, bx, by, cx, cy = pixels[a, 0], pixels[a, 1], pixels[b, 0], pixels[b, 1], pixels[c, 0], pixels[c, 1]
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        if area == 0.0:
            continue
        light = _facing(points, a, b, c)
        top, bottom = max(0, int(min(ay, by, cy) - 0.5)), min(height - 1, int(max(ay, by, cy) + 0.5))
        left, right = max(0, int(min(ax, bx, cx) - 0.5)), min(width - 1, int(max(ax, bx, cx) + 0.5))
        near_a, near_b, near_c = 1.0 / points[a, 2], 1.0 / points[b, 2], 1.0 / points[c, 2]
        for row in range(top, bottom + 1):
            for column in range(left, right + 1):
                x, y = column + 0.5, row + 0.5
                wb = ((x - ax) * (cy - ay) - (y - ay) * (cx - ax)) / area
                wc = ((bx - ax) * (y - ay) - (by - ay) * (x - ax)) / area
                wa = 1.0 - wb - wc
                if wa < 0.0 or wb < 0.0 or wc < 0.0:
                    continue
                z = 1.0 / (wa * near_a + wb * near_b + wc * near_c)
                if z < depth[row, column]:
                    depth[row, column] = z
                    for channel in range(3):
                        colour[row, column, channel] = shade[channel] * light


@njit(**KERNEL)
def _facing(points: Any, a: Any, b: Any, c: Any) -> Any:
    """How much a triangle is lit by a lamp beside the camera, 0.35 to 1, from either side."""
    ux, uy, uz = points[b, 0] - points[a, 0], points[b, 1] - points[a, 1], points[b, 2] - points[a, 2]
    vx, vy, vz = points[c, 0] - points[a, 0], points[c, 1] - points[a, 1], points[c, 2] - points[a, 2]
    nx, ny, nz = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
    length = np.sqrt(nx * nx + ny * ny + nz * nz)
    distance = np.sqrt(points[a, 0] ** 2 + points[a, 1] ** 2 + points[a, 2] ** 2)
    if length == 0.0 or distance == 0.0:
        return 0.35
    cosine = abs(nx * points[a, 0] + ny * points[a, 1] + nz * points[a, 2]) / (length * distance)
    return 0.35 + 0.65 * cosine
