"""Depth images of triangle meshes: which face a pixel shows, and how far away it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.raster.simd import KERNEL

from .triangle_mesh import TriangleMesh

_NEAREST_M = 1e-3
"""Faces with a corner nearer than this are not drawn [m]."""


@array_dataclass
class DepthImage:
    """What a camera sees of a mesh."""

    depth: Array
    """Distance along the optical axis [height, width] [m]; infinite where the mesh is not."""
    face: Array
    """The face that is seen [height, width]; -1 where none is."""

    @property
    def mask(self) -> Array:
        """Where the mesh is [height, width]."""
        return self.face >= 0


def depth_image(mesh: TriangleMesh, camera: Camera, oversample: int = 1, *, farthest: bool = False) -> DepthImage:
    """Render the depth of a mesh, of its nearest or its farthest faces; with `oversample`, that many times as many
    pixels along each side."""
    (top, left), seen = _part(mesh, camera, oversample, farthest)
    shape = (camera.height * oversample, camera.width * oversample)
    depth, face = np.full(shape, np.inf), np.full(shape, -1, np.int32)
    place = np.s_[top : top + seen.face.shape[0], left : left + seen.face.shape[1]]
    depth[place], face[place] = seen.depth, seen.face
    return DepthImage(depth, face)


def coverage(mesh: TriangleMesh, camera: Camera, oversample: int = 3) -> Array:
    """The share of each pixel that shows the mesh [height, width], 0 to 1."""
    (top, left), seen = _part(mesh, camera, oversample, farthest=False)
    top, left, out = top // oversample, left // oversample, np.zeros((camera.height, camera.width))
    rows, columns = (size // oversample for size in seen.face.shape)
    share = seen.mask.reshape(rows, oversample, columns, oversample).mean(axis=(1, 3))
    out[top : top + rows, left : left + columns] = share
    return out


def _part(mesh: TriangleMesh, camera: Camera, oversample: int, farthest: bool) -> tuple[tuple[int, int], DepthImage]:
    """The part of a depth image that the mesh may be in, of whole pixels of the camera; its first row and column."""
    local = in_camera(camera, mesh.vertices)
    ahead = local[:, 2] > _NEAREST_M
    pixels = camera.project(np.where(ahead[:, None], local, [0.0, 0.0, 1.0]))
    size = np.array([camera.width, camera.height])
    if not ahead.any():
        return (0, 0), DepthImage(np.zeros((0, 0)), np.zeros((0, 0), np.int32))
    left, top = np.clip(np.floor(pixels[ahead].min(axis=0)), 0, size).astype(int).tolist()
    right, bottom = np.clip(np.ceil(pixels[ahead].max(axis=0)), (left, top), size).astype(int).tolist()
    shape = ((bottom - top) * oversample, (right - left) * oversample)
    inverse, face = np.zeros(shape), np.full(shape, -1, np.int32)
    corners = np.concatenate([(pixels - [left, top]) * oversample, local[:, 2:]], axis=1)[mesh.faces]
    _fill(np.ascontiguousarray(corners), farthest, inverse, face)
    with np.errstate(divide="ignore"):
        return (top * oversample, left * oversample), DepthImage(1.0 / inverse, face)


def in_camera(camera: Camera, points: Array) -> Array:
    """Points of the world [..., 3] in the frame of a camera that is fixed in it."""
    place = camera.body_from_camera
    return (points - place[:3, 3]) @ place[:3, :3]


@njit(**KERNEL)
def _fill(corners: Any, farthest: Any, inverse: Any, face: Any) -> None:
    """Draw triangles (x, y, depth) into an image of inverse depths, the nearest or the farthest on top."""
    height, width = inverse.shape
    for f in range(corners.shape[0]):
        t = corners[f]
        if min(t[0, 2], t[1, 2], t[2, 2]) <= _NEAREST_M:
            continue
        area = (t[1, 0] - t[0, 0]) * (t[2, 1] - t[0, 1]) - (t[1, 1] - t[0, 1]) * (t[2, 0] - t[0, 0])
        if area == 0.0:
            continue
        left, right = min(t[0, 0], t[1, 0], t[2, 0]), max(t[0, 0], t[1, 0], t[2, 0])
        top, bottom = min(t[0, 1], t[1, 1], t[2, 1]), max(t[0, 1], t[1, 1], t[2, 1])
        for y in range(max(0, int(np.floor(top - 0.5))), min(height, int(np.ceil(bottom + 0.5)))):
            for x in range(max(0, int(np.floor(left - 0.5))), min(width, int(np.ceil(right + 0.5)))):
                px, py = x + 0.5, y + 0.5
                a = ((t[1, 0] - px) * (t[2, 1] - py) - (t[1, 1] - py) * (t[2, 0] - px)) / area
                b = ((t[2, 0] - px) * (t[0, 1] - py) - (t[2, 1] - py) * (t[0, 0] - px)) / area
                c = 1.0 - a - b
                if a < 0.0 or b < 0.0 or c < 0.0:
                    continue
                w = a / t[0, 2] + b / t[1, 2] + c / t[2, 2]
                if (w < inverse[y, x] or face[y, x] < 0) if farthest else w > inverse[y, x]:
                    inverse[y, x] = w
                    face[y, x] = f
