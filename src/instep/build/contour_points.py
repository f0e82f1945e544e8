"""Points of a mesh whose images form its silhouette, and how far those are from the outline of a mask.

A point on an edge between a face that looks at the camera and one that looks away projects onto the silhouette, unless
another part of the mesh covers it. Its residual is the signed distance of the mask there; zero is the outline.
"""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .mesh_raster import depth_image, in_camera
from .silhouettes import FAR_PX, ObjectMask
from .triangle_mesh import TriangleMesh

_SPACING_PX = 2.0
"""Distance between neighbouring points of an edge [pixels]."""
_RIM_PX = 1.5
"""A point farther inside the rendered silhouette than this is covered by another part of the mesh [pixels]."""
_UNKNOWN_MARGIN_PX = 2
"""Points nearer to pixels of which nothing is known are left out [pixels]."""


@array_dataclass
class MaskField:
    """The signed distance of a mask to its outline, as points of a silhouette sample it."""

    camera: Camera
    distance: Array
    """[height, width] [pixels], positive inside."""
    gradient: Array
    """Its derivatives by x and y [2, height, width]."""
    known: Array
    """Whether a pixel and those around it are known [height, width]."""
    middle: Array
    """The centre of the mask's pixels (x, y) [pixels]."""


@array_dataclass
class ContourPoints:
    """Points on edges of a mesh, and where a camera sees them."""

    ends: Array
    """Vertices at the ends of the edge of each point [points, 2]."""
    share: Array
    """Where on its edge each is, 0 to 1 [points]."""
    points: Array
    """In the world [points, 3] [m]."""
    pixels: Array
    """x and y [points, 2] [pixels]."""


def mask_field(mask: ObjectMask) -> MaskField:
    """A mask, prepared for sampling."""
    from scipy.ndimage import binary_dilation

    distance = mask.signed_distance()
    unknown = ~mask.known
    near = np.asarray(binary_dilation(unknown, iterations=_UNKNOWN_MARGIN_PX), bool) if unknown.any() else unknown
    distance = np.where(mask.known, distance, 0.0)
    gradient = np.stack([np.gradient(distance, axis=1), np.gradient(distance, axis=0)])
    rows, columns = np.nonzero(mask.inside)
    return MaskField(mask.camera, distance, gradient, ~near, np.array([columns.mean() + 0.5, rows.mean() + 0.5]))


def contour_points(mesh: TriangleMesh, camera: Camera) -> ContourPoints:
    """Points of a closed mesh that project onto its silhouette in an image, evenly along it."""
    local = in_camera(camera, mesh.vertices)
    pixels = camera.project(np.where(local[:, 2:] > 1e-3, local, [0.0, 0.0, 1.0]))
    edges = _occluding_edges(mesh, camera)
    length = np.linalg.norm(pixels[edges[:, 1]] - pixels[edges[:, 0]], axis=1)
    # Short edges of a fine mesh are taken with a probability, here a running sum, so that points stay even.
    ends = np.cumsum(length / _SPACING_PX)
    number = np.diff(np.floor(ends), prepend=0.0).astype(int)
    index = np.repeat(np.arange(len(edges)), number)
    begin = ends - length / _SPACING_PX
    whole = np.floor(begin)[index] + 1 + _running(number)
    share = np.clip((whole - begin[index]) / np.maximum(ends[index] - begin[index], 1e-9), 0.0, 1.0)
    points = mesh.vertices[edges[index, 0]] * (1 - share[:, None]) + mesh.vertices[edges[index, 1]] * share[:, None]
    seen = in_camera(camera, points)
    at = camera.project(np.where(seen[:, 2:] > 1e-3, seen, [0.0, 0.0, 1.0]))
    kept = (seen[:, 2] > 1e-3) & _on_rim(mesh, camera, at)
    return ContourPoints(edges[index][kept], share[kept], points[kept], at[kept])


def residuals(field: MaskField, pixels: Array) -> tuple[Array, Array, Array]:
    """Signed distances at pixels [n], their derivatives [n, 2], and which of them are known [n]."""
    from scipy.ndimage import map_coordinates

    at = [pixels[:, 1] - 0.5, pixels[:, 0] - 0.5]
    value = map_coordinates(field.distance, at, order=1, mode="nearest")
    slope = np.stack([map_coordinates(one, at, order=1, mode="nearest") for one in field.gradient], axis=1)
    width, height = field.camera.width, field.camera.height
    inside = ((pixels > 1) & (pixels < [width - 1, height - 1])).all(axis=1)
    column = np.clip(pixels[:, 0].astype(int), 0, width - 1)
    row = np.clip(pixels[:, 1].astype(int), 0, height - 1)
    return value, slope, inside & field.known[row, column] & (np.abs(value) < FAR_PX)


def _occluding_edges(mesh: TriangleMesh, camera: Camera) -> Array:
    """Edges between a face that looks at the camera and one that looks away, as pairs of vertices [edges, 2]."""
    corners = mesh.corners
    a, b, c = np.moveaxis(corners, 1, 0)
    front = np.einsum("ni,ni->n", np.cross(b - a, c - a), camera.body_from_camera[:3, 3] - a) > 0
    tails, heads = mesh.faces[front].ravel(), np.roll(mesh.faces[front], -1, axis=1).ravel()
    n = np.int64(len(mesh.vertices))
    # An edge inside the part that looks at the camera is passed in both directions, one on its rim in one.
    ways, back = tails * n + heads, heads * n + tails
    rim = ~np.isin(ways, back)
    return np.stack([tails[rim], heads[rim]], axis=1)


def _on_rim(mesh: TriangleMesh, camera: Camera, pixels: Array) -> Array:
    """Which pixels are on the border of the rendered silhouette of a mesh [n]."""
    oversample = 2
    mask = np.pad(depth_image(mesh, camera, oversample).mask, 1)
    reach = int(_RIM_PX * oversample)
    offsets = np.indices((2 * reach + 1, 2 * reach + 1)).reshape(2, -1).T - reach
    offsets = offsets[np.linalg.norm(offsets, axis=1) <= _RIM_PX * oversample]
    last = np.array(mask.shape) - 1
    at = np.clip((pixels[:, ::-1] * oversample).astype(int) + 1, 1, last - 1)
    rows, columns = np.moveaxis(np.clip(at[:, None] + offsets, 0, last), -1, 0)
    return np.asarray(~mask[rows, columns].all(axis=1) & mask.any(), bool)


def _running(number: Array) -> Array:
    """0, 1, ... up to each number, one after another."""
    starts = np.repeat(np.cumsum(number) - number, number)
    return np.arange(int(number.sum())) - starts
