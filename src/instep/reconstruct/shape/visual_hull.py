"""Meshes against masks: depth images and contours of a mesh in a camera, and the visual hull of masks.

The visual hull is the largest shape above the table whose silhouettes lie inside the masks of all views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.masks.object_mask import FAR_PX, UNKNOWN_PX, ObjectMask, overlap
from instep.scene.camera import Camera
from instep.splat.raster.simd import KERNEL

from .triangle_mesh import Grid, TriangleMesh, grid_around, joined, separated

MIN_VIEWS = 2
"""Fewest views that must see a point of a hull."""
HULL_PITCH = 1 / 110
"""Pitch of the grid of a hull, as a share of the diagonal of its box."""
_NEAREST_M = 1e-3
"""Faces with a corner nearer than this are not drawn [m]."""
_SPACING_PX = 2.0
"""Distance between neighbouring points of a contour [pixels]."""
_RIM_PX = 1.5
"""Points of a contour deeper inside the silhouette than this are occluded by another part of the mesh [pixels]."""
_NEEDED_SHARE = 0.01
"""Share of a mask that a loose piece must explain alone to be a part of the object."""


def in_camera(camera: Camera, points: Array) -> Array:
    """Points of the world [..., 3] in the frame of a camera that is fixed in it."""
    place = camera.body_from_camera
    return (points - place[:3, 3]) @ place[:3, :3]


def projected(camera: Camera, points: Array) -> tuple[Array, Array]:
    """Pixels [..., 2] and depths [...] of points of the world [..., 3]; the image's centre for points behind."""
    local = in_camera(camera, points)
    return camera.project(np.where(local[..., 2:] > _NEAREST_M, local, [0.0, 0.0, 1.0])), local[..., 2]


def height_above(points: Array, plane: Array) -> Array:
    """Height of points [..., 3] above the plane (nx, ny, nz, d), whose normal points up [...] [m]."""
    length = np.linalg.norm(plane[:3])
    return (points @ plane[:3] + plane[3]) / (length if plane[2] > 0 else -length)


def table_frame(plane: Array) -> Array:
    """table_from_world: the table is z = 0, its normal is z, and the axes are otherwise near the world's."""
    sign = 1.0 if plane[2] > 0 else -1.0
    z = sign * plane[:3] / np.linalg.norm(plane[:3])
    x = np.cross([0.0, 1.0, 0.0], z)
    x /= np.linalg.norm(x)
    out = np.eye(4)
    out[:3, :3] = np.stack([x, np.cross(z, x), z])
    out[2, 3] = sign * plane[3] / np.linalg.norm(plane[:3])
    return out


def pixel_size(cameras: Sequence[Camera], centre: Array) -> float:
    """The median size of a pixel at a point [m]."""
    return float(np.median([np.linalg.norm(c.body_from_camera[:3, 3] - centre) / c.focal[0] for c in cameras]))


@array_dataclass
class DepthImage:
    """A mesh as a camera sees it."""

    depth: Array
    """Distance along the optical axis [height, width] [m]; infinite beside the mesh."""
    face: Array
    """The visible face [height, width]; -1 beside the mesh."""

    @property
    def mask(self) -> Array:
        """The pixels of the mesh [height, width]."""
        return self.face >= 0


def depth_image(mesh: TriangleMesh, camera: Camera, oversample: int = 1, *, farthest: bool = False) -> DepthImage:
    """Render the depth of the nearest or the farthest faces of a mesh, with `oversample` times the pixels per side."""
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


def silhouette_overlap(mesh: TriangleMesh, mask: ObjectMask) -> float:
    """Intersection over union of the silhouette of a mesh and a mask, over the known pixels."""
    return overlap(coverage(mesh, mask.camera), mask.alpha, mask.known)


def _part(mesh: TriangleMesh, camera: Camera, oversample: int, farthest: bool) -> tuple[tuple[int, int], DepthImage]:
    """The part of a depth image around the mesh, of whole pixels of the camera; its first row and column."""
    pixels, depth = projected(camera, mesh.vertices)
    ahead, size = depth > _NEAREST_M, np.array([camera.width, camera.height])
    if not ahead.any():
        return (0, 0), DepthImage(np.zeros((0, 0)), np.zeros((0, 0), np.int32))
    left, top = np.clip(np.floor(pixels[ahead].min(axis=0)), 0, size).astype(int).tolist()
    right, bottom = np.clip(np.ceil(pixels[ahead].max(axis=0)), (left, top), size).astype(int).tolist()
    shape = ((bottom - top) * oversample, (right - left) * oversample)
    inverse, face = np.zeros(shape), np.full(shape, -1, np.int32)
    corners = np.concatenate([(pixels - [left, top]) * oversample, depth[:, None]], axis=1)[mesh.faces]
    _fill(np.ascontiguousarray(corners), farthest, inverse, face)
    with np.errstate(divide="ignore"):
        return (top * oversample, left * oversample), DepthImage(1.0 / inverse, face)


@array_dataclass
class MaskField:
    """The signed distance of a mask to its outline, prepared for sampling."""

    camera: Camera
    distance: Array
    """[height, width] [pixels], positive inside."""
    gradient: Array
    """Its derivatives by x and y [2, height, width]."""
    known: Array
    """Whether a pixel and its neighbours are known [height, width]."""
    middle: Array
    """The centre of the mask's pixels (x, y) [pixels]."""


@array_dataclass
class ContourPoints:
    """Points on edges of a mesh that project onto its silhouette."""

    ends: Array
    """Vertices at the ends of the edge of each point [points, 2]."""
    share: Array
    """Position on its edge, 0 to 1 [points]."""
    points: Array
    """In the world [points, 3] [m]."""
    pixels: Array
    """x and y [points, 2] [pixels]."""


def mask_field(mask: ObjectMask) -> MaskField:
    """A mask, prepared for sampling."""
    from scipy.ndimage import binary_dilation

    distance, unknown = mask.signed_distance(), ~mask.known
    # Points of a contour this near to unknown pixels are left out [pixels].
    near = np.asarray(binary_dilation(unknown, iterations=2), bool) if unknown.any() else unknown
    distance = np.where(mask.known, distance, 0.0)
    gradient = np.stack([np.gradient(distance, axis=1), np.gradient(distance, axis=0)])
    rows, columns = np.nonzero(mask.inside)
    return MaskField(mask.camera, distance, gradient, ~near, np.array([columns.mean() + 0.5, rows.mean() + 0.5]))


def contour_points(mesh: TriangleMesh, camera: Camera) -> ContourPoints:
    """Points of a closed mesh that project onto its silhouette in an image, evenly along it.

    A point on an edge between a face that looks at the camera and one that looks away projects onto the silhouette,
    unless another part of the mesh occludes it.
    """
    pixels, _ = projected(camera, mesh.vertices)
    edges = _occluding_edges(mesh, camera)
    length = np.linalg.norm(pixels[edges[:, 1]] - pixels[edges[:, 0]], axis=1)
    # Short edges of a fine mesh are taken with a probability, here a running sum, so that points stay even.
    ends = np.cumsum(length / _SPACING_PX)
    number = np.diff(np.floor(ends), prepend=0.0).astype(int)
    index = np.repeat(np.arange(len(edges)), number)
    begin = ends - length / _SPACING_PX
    running = np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number)
    whole = np.floor(begin)[index] + 1 + running
    share = np.clip((whole - begin[index]) / np.maximum(ends[index] - begin[index], 1e-9), 0.0, 1.0)
    points = mesh.vertices[edges[index, 0]] * (1 - share[:, None]) + mesh.vertices[edges[index, 1]] * share[:, None]
    at, depth = projected(camera, points)
    kept = (depth > _NEAREST_M) & _on_rim(mesh, camera, at)
    return ContourPoints(edges[index][kept], share[kept], points[kept], at[kept])


def residuals(field: MaskField, pixels: Array) -> tuple[Array, Array, Array]:
    """Signed distances from the outline at pixels [n], their derivatives [n, 2], and which of them are known [n]."""
    from scipy.ndimage import map_coordinates

    at = [pixels[:, 1] - 0.5, pixels[:, 0] - 0.5]
    value = map_coordinates(field.distance, at, order=1, mode="nearest")
    slope = np.stack([map_coordinates(one, at, order=1, mode="nearest") for one in field.gradient], axis=1)
    width, height = field.camera.width, field.camera.height
    inside = ((pixels > 1) & (pixels < [width - 1, height - 1])).all(axis=1)
    column, row = np.clip(pixels.astype(int), 0, [width - 1, height - 1]).T
    return value, slope, inside & field.known[row, column] & (np.abs(value) < FAR_PX)


def _occluding_edges(mesh: TriangleMesh, camera: Camera) -> Array:
    """Edges between a face that looks at the camera and one that looks away, as pairs of vertices [edges, 2]."""
    a, b, c = np.moveaxis(mesh.corners, 1, 0)
    front = np.einsum("ni,ni->n", np.cross(b - a, c - a), camera.body_from_camera[:3, 3] - a) > 0
    tails, heads = mesh.faces[front].ravel(), np.roll(mesh.faces[front], -1, axis=1).ravel()
    n = np.int64(len(mesh.vertices))
    # An edge inside the part that looks at the camera is passed in both directions, one on its rim in one.
    rim = ~np.isin(tails * n + heads, heads * n + tails)
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


@array_dataclass
class HullViews:
    """Masks as arrays for the kernels."""

    cameras: Array
    """Of each view, camera_from_world by rows, focal lengths, centre, lens [views, 12 + 4 + 5]."""
    sizes: Array
    """Height and width of each image [views, 2]."""
    distances: Array
    """Signed distance to the outline [views, height, width] [pixels]; padded to the largest image."""
    tolerated: int = 0
    """Number of views that may have a point outside their masks."""

    def field(self, points: Array) -> Array:
        """Distance of points inside the hull [...] [m]: the smallest signed distance over the views that know it."""
        flat = np.ascontiguousarray(points.reshape(-1, 3), float)
        out = np.empty(len(flat))
        _hull_field(flat, self.cameras, self.sizes, self.distances, self.tolerated, out)
        return out.reshape(points.shape[:-1])


def hull_views(masks: Sequence[ObjectMask]) -> HullViews:
    """Masks, prepared for evaluating the hull."""
    sizes = np.array([[m.camera.height, m.camera.width] for m in masks])
    cameras, distances = np.zeros((len(masks), 21)), np.full((len(masks), *sizes.max(axis=0)), UNKNOWN_PX, np.float32)
    for i, mask in enumerate(masks):
        place, camera = np.linalg.inv(mask.camera.body_from_camera), mask.camera
        lens = (*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
        cameras[i] = [*place[:3].ravel(), *camera.focal, *camera.centre, *lens]
        distances[i, : camera.height, : camera.width] = mask.signed_distance()
    return HullViews(cameras, sizes, distances)


def hull_bounds(masks: Sequence[ObjectMask], plane: Array, views: HullViews | None = None) -> tuple[Array, Array]:
    """A box around the hull of some masks above a table: smallest and largest coordinates [3] [m]."""
    views = hull_views(masks) if views is None else views
    centre, radius = _sphere(masks)
    low, high = centre - radius, centre + radius
    for _ in range(2):
        # Points along a side of the grid that locates the object.
        grid = grid_around(low, high, float((high - low).max()) / 48, margin=1)
        points = grid.points()
        inside = table_cut(views.field(points), points, plane) > -0.5 * grid.pitch
        if not inside.any():
            raise BadInput("The masks have no point of space in common: check their object, and the camera poses.")
        found = points[inside]
        low, high = found.min(axis=0) - grid.pitch, found.max(axis=0) + grid.pitch
    return low, high


def hull_field(
    masks: Sequence[ObjectMask], plane: Array, pitch_share: float = HULL_PITCH, bounds: Array | None = None
) -> tuple[Array, Grid]:
    """The hull as a field on a grid (positive inside) [m], whose pitch is a share of the box's diagonal.

    `bounds` are smallest and largest coordinates of the box [2, 3]; that of the whole hull if None.
    """
    views = hull_views(masks)
    low, high = hull_bounds(masks, plane, views) if bounds is None else bounds
    grid = grid_around(low, high, pitch_share * float(np.linalg.norm(high - low)))
    points = grid.points()
    return table_cut(views.field(points), points, plane), grid


def table_cut(field: Array, points: Array, plane: Array) -> Array:
    """The field, cut at the table: points below it are outside."""
    return np.minimum(field, height_above(points, plane))


def without_specks(mesh: TriangleMesh) -> TriangleMesh:
    """The mesh without loose pieces too small to be a part of the object, and without inner voids."""
    pieces = [piece for piece in separated(mesh) if piece.volume > 0] if len(mesh.faces) else []
    if not pieces:
        raise BadInput("The masks leave nothing of the object above the table. Check the table's height.")
    # Volume of a loose piece, as a share of the largest, below which it is an artefact.
    return joined([piece for piece in pieces if piece.volume >= 0.02 * pieces[0].volume])


def without_ghosts(mesh: TriangleMesh, masks: Sequence[ObjectMask], pitch: float = 0.0) -> TriangleMesh:
    """The mesh without loose pieces that no mask needs; few views leave such pieces beside the object.

    A piece stays if some mask has pixels that no other piece explains. A surface on a grid of this pitch [m] loses its
    edges, so pixels nearer than that to another piece need no explanation.
    """
    from scipy.ndimage import binary_dilation

    pieces = separated(mesh)
    if len(pieces) < 2:
        return mesh
    shown = [[depth_image(piece, mask.camera).mask for mask in masks] for piece in pieces]
    reach: list[int] = []
    for mask in masks:
        depth = float(in_camera(mask.camera, pieces[0].bounds.mean(axis=0))[2])
        reach.append(int(np.ceil(pitch * max(mask.camera.focal) / depth)) if depth > 0 else 0)
    kept = list(range(len(pieces)))
    for k in reversed(range(1, len(pieces))):  # the smallest first
        needed = 0.0
        for m, mask in enumerate(masks):
            rest = np.any([shown[i][m] for i in kept if i != k], axis=0)
            wide = np.asarray(binary_dilation(rest, iterations=reach[m]), bool) if reach[m] else rest
            alone = mask.inside & shown[k][m] & ~wide
            needed = max(needed, float(alone.sum()) / max(int(mask.inside.sum()), 1))
        if needed < _NEEDED_SHARE:
            kept.remove(k)
    return joined([pieces[k] for k in kept])


def _sphere(masks: Sequence[ObjectMask]) -> tuple[Array, float]:
    """The point nearest to the rays through the middle of each mask, and the radius that the masks span there."""
    rays, origins, spans = list[Array](), list[Array](), list[float]()
    for mask in masks:
        left, top, right, bottom = mask.region
        rays.append(mask.middle_ray / np.linalg.norm(mask.middle_ray))
        origins.append(mask.camera.body_from_camera[:3, 3])
        spans.append(0.5 * float(np.hypot(right - left, bottom - top)) / min(mask.camera.focal))
    across = [np.eye(3) - np.outer(ray, ray) for ray in rays]
    total = np.sum(across, axis=0)
    if len(masks) < MIN_VIEWS or np.linalg.cond(total) > 1e4:
        raise BadInput("The views look along one line, so the distance of the object is unknown; add other views.")
    meeting = np.sum([a @ o for a, o in zip(across, origins, strict=True)], axis=0)
    centre = np.asarray(np.linalg.solve(total, meeting), float)
    depths = [in_camera(mask.camera, centre)[2] for mask in masks]
    if min(depths) <= 0:
        raise BadInput("The rays through the masks meet behind a camera; are the poses those of these images?")
    return centre, 1.6 * max(span * depth for span, depth in zip(spans, depths, strict=True))


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


@njit(**KERNEL)
def _hull_field(points: Any, cameras: Any, sizes: Any, distances: Any, tolerated: Any, out: Any) -> None:
    least = np.empty(tolerated + 1)
    for i in range(points.shape[0]):
        x, y, z = points[i]
        least[:] = 1e9
        seen = 0
        for v in range(cameras.shape[0]):
            c = cameras[v]
            depth = c[8] * x + c[9] * y + c[10] * z + c[11]
            if depth <= 1e-3:
                continue
            a = (c[0] * x + c[1] * y + c[2] * z + c[3]) / depth
            b = (c[4] * x + c[5] * y + c[6] * z + c[7]) / depth
            r = a * a + b * b
            radial = 1.0 + r * (c[16] + r * (c[17] + r * c[20]))
            u = a * radial + 2.0 * c[18] * a * b + c[19] * (r + 2.0 * a * a)
            w = b * radial + c[18] * (r + 2.0 * b * b) + 2.0 * c[19] * a * b
            column, row = u * c[12] + c[14] - 0.5, w * c[13] + c[15] - 0.5
            if column < 0.0 or row < 0.0 or column > sizes[v, 1] - 1 or row > sizes[v, 0] - 1:
                continue
            left, top = min(int(column), sizes[v, 1] - 2), min(int(row), sizes[v, 0] - 2)
            p, q = column - left, row - top
            d = distances[v]
            value = (1 - q) * ((1 - p) * d[top, left] + p * d[top, left + 1]) + q * (
                (1 - p) * d[top + 1, left] + p * d[top + 1, left + 1]
            )
            if value > 2.0 * FAR_PX:  # unknown, or beside an unknown pixel
                continue
            seen += 1
            value = value * depth / c[12]
            k = tolerated
            if value < least[k]:
                while k > 0 and least[k - 1] > value:  # the smallest values, in order
                    least[k] = least[k - 1]
                    k -= 1
                least[k] = value
        # Distance outside of points that fewer than two views see [m].
        out[i] = least[tolerated] if seen >= MIN_VIEWS + tolerated else -1.0
