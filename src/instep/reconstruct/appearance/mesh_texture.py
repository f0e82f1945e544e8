"""The texture of a mesh from posed images: every texel takes the views that see it well, weighted by how squarely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.reconstruct.shape.visual_hull import depth_image, in_camera

_CELL_TEXELS = 10
"""Side of the square that holds two triangles [texels]."""
_DEPTH_TOLERANCE = 0.015
"""Difference of depth up to which a point is the one that is seen, as a share of the mesh's diagonal."""
_NEAREST_OF = 4000
"""Points that are seen among which unseen ones find their nearest."""


@array_dataclass
class SurfaceColours:
    """Colours of points on a surface."""

    colours: Array
    """[points, 3], 0 to 1."""
    views: Array
    """How many views see each point [points]."""
    spread: Array
    """Standard deviation of the colour over the views that see a point [points]; 0 where fewer than two do."""


@array_dataclass
class MeshTexture:
    """A texture and where each face is in it."""

    image: Array
    """[size, size, 3] uint8."""
    texels: Array
    """Texture coordinates of every corner of every face [faces, 3, 2], 0 to 1, from the bottom left."""
    seen: float
    """Share of the surface that some view sees."""


def surface_colours(
    points: Array, normals: Array, mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask]
) -> SurfaceColours:
    """Colours of points on a mesh [points, 3] with normals, by the views that see them; unseen ones by neighbours."""
    from scipy.ndimage import map_coordinates
    from scipy.spatial import cKDTree

    total, squares, weights = np.zeros((len(points), 3)), np.zeros(len(points)), np.zeros(len(points))
    count, tolerance = np.zeros(len(points), int), _DEPTH_TOLERANCE * mesh.diagonal
    for view, mask in zip(views, masks, strict=True):
        local = in_camera(mask.camera, points)
        pixels = mask.camera.project(np.where(local[:, 2:] > 1e-3, local, [0.0, 0.0, 1.0])) - 0.5
        at = [pixels[:, 1], pixels[:, 0]]
        towards = mask.camera.body_from_camera[:3, 3] - points
        cosine = np.einsum("ni,ni->n", normals, towards) / np.maximum(np.linalg.norm(towards, axis=1), 1e-9)
        depth = depth_image(mesh, mask.camera).depth
        nearest = np.clip(np.round(pixels).astype(int), 0, [depth.shape[1] - 1, depth.shape[0] - 1])
        front = local[:, 2] < depth[nearest[:, 1], nearest[:, 0]] + tolerance
        own = map_coordinates(np.where(mask.known, mask.alpha, 0.0), at, order=1, cval=0.0)
        weight = np.where(front & (local[:, 2] > 1e-3) & (own > 0.9), np.maximum(cosine, 0.0) ** 3, 0.0)
        colour = np.stack([map_coordinates(view.image[..., k], at, order=1, mode="nearest") for k in range(3)], axis=1)
        total += weight[:, None] * colour
        squares += weight * (colour**2).sum(axis=1)
        weights += weight
        count += weight > 0.02
    seen = weights > 1e-3
    colours = total / np.maximum(weights, 1e-9)[:, None]
    variance = squares / np.maximum(weights, 1e-9) - (colours**2).sum(axis=1)
    spread = np.where(count > 1, np.sqrt(np.maximum(variance, 0.0)), 0.0)
    if seen.any() and not seen.all():
        some = np.flatnonzero(seen)[:: max(1, int(seen.sum()) // _NEAREST_OF)]
        near = np.asarray(cKDTree(points[some]).query(points[~seen])[1], int)
        colours[~seen] = colours[some][near]
    return SurfaceColours(colours, np.where(seen, count, 0), spread)


def bake_texture(mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> MeshTexture:
    """The texture of a mesh from views."""
    layout = _layout(mesh)
    found = surface_colours(layout.points, mesh.normals[layout.face], mesh, views, masks)
    return _textured(layout, found.colours, float((found.views[layout.used] > 0).mean()))


def texture_from_points(mesh: TriangleMesh, points: Array, colours: Array) -> MeshTexture:
    """The texture of a mesh from coloured points [n, 3] near its surface: every texel takes the nearest."""
    from scipy.spatial import cKDTree

    layout = _layout(mesh)
    return _textured(layout, colours[np.asarray(cKDTree(points).query(layout.points)[1], int)], 1.0)


@array_dataclass
class _Layout:
    """A texture of square cells with two triangles each."""

    size: int
    """Side of the image [texels]."""
    points: Array
    """The point of the surface that each texel shows [size * size, 3]."""
    face: Array
    """Its face [size * size]."""
    used: Array
    """Which texels are of a cell with triangles [size * size]."""
    texels: Array
    """Texture coordinates of every corner of every face [faces, 3, 2]."""


def _layout(mesh: TriangleMesh) -> _Layout:
    cells = (len(mesh.faces) + 1) // 2
    across = int(np.ceil(np.sqrt(cells)))
    size = across * _CELL_TEXELS
    number = np.arange(len(mesh.faces))
    corner = _CELL_TEXELS * np.stack([number // 2 % across, number // 2 // across], axis=1)  # x, y of the cell
    upper = number % 2 == 1
    inset, far = 1.0, _CELL_TEXELS - 2.5
    lower = np.array([[inset, inset], [far, inset], [inset, far]])
    places = np.where(upper[:, None, None], _CELL_TEXELS - lower, lower) + corner[:, None]
    rows, columns = np.indices((size, size))
    cell = rows // _CELL_TEXELS * across + columns // _CELL_TEXELS
    dx, dy = columns % _CELL_TEXELS + 0.5, rows % _CELL_TEXELS + 0.5
    face = np.minimum(2 * cell + (dx + dy > _CELL_TEXELS), len(mesh.faces) - 1)
    shares = _barycentric(np.stack([columns + 0.5, rows + 0.5], axis=-1), places[face])
    points = np.einsum("yxk,yxki->yxi", np.clip(shares, -0.1, 1.1), mesh.corners[face])
    texels = np.stack([places[..., 0] / size, 1 - places[..., 1] / size], axis=-1)
    return _Layout(size, points.reshape(-1, 3), face.ravel(), (cell < cells).ravel(), texels)


def _textured(layout: _Layout, colours: Array, seen: float) -> MeshTexture:
    image = (255 * np.clip(colours.reshape(layout.size, layout.size, 3), 0, 1) + 0.5).astype(np.uint8)
    return MeshTexture(image, layout.texels, seen)


def _barycentric(points: Array, corners: Array) -> Array:
    """Barycentric coordinates [..., 3] of points [..., 2] in triangles [..., 3, 2]."""
    a, b, c = corners[..., 0, :], corners[..., 1, :], corners[..., 2, :]
    v, w, p = b - a, c - a, points - a
    area = v[..., 0] * w[..., 1] - v[..., 1] * w[..., 0]
    second = (p[..., 0] * w[..., 1] - p[..., 1] * w[..., 0]) / area
    third = (v[..., 0] * p[..., 1] - v[..., 1] * p[..., 0]) / area
    return np.stack([1 - second - third, second, third], axis=-1)
