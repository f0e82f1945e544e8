"""Compiled geometry of silhouettes: project corners, take convex hulls, measure distances to the outline; pixel masks.

A body is a union of convex parts. The silhouette of a part is the convex hull of its projected corners; the signed
distance of a pixel to the silhouette of the body is the least over its parts (negative inside).
"""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit

from instep.core.world import Array
from instep.splat.image import Region

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}
INLINE = {**OPTIONS, "forceinline": True, "_nrt": False}
"""Options of functions that neither allocate nor return arrays: they count no references to those they are given."""

# The groups of arrays that Python passes to these functions are plain tuples: numba takes a few microseconds longer to
# recognise a named tuple, at each call.
CalibratedCamera: TypeAlias = tuple[Array, Array, int, int]
"""A fixed camera: world_from_camera (4 x 4); fx, fy, cx, cy, k1, k2, p1, p2, k3 [9]; image width and height."""
ConvexParts: TypeAlias = tuple[Array, Array]
"""A body: corners of all parts in its frame [n, 3] [m]; where each part begins, and where the last one ends."""
MaskPixels: TypeAlias = tuple[Array, Array, Region]
"""Pixels of a region: the share of each that shows the body [height, width]; its weight [height, width]; the region."""
EdgeModel: TypeAlias = tuple[float, float]
"""How pixels are compared with an outline: width of the edge [pixels], Huber threshold of the residual."""
BodyMotion: TypeAlias = tuple[Array, Array, Array]
"""A motion of a body: predicted world_from_body (4 x 4); motion xi [6]; motions to derive by, as columns [6, k]."""
SurfacePoints: TypeAlias = tuple[Array, Array, Array]
"""Points on a body in its frame [n, 3]; outward normals, 0 where unknown; expected colours, NaN where unknown."""
ScaledImage: TypeAlias = tuple[Array, float]
"""Pixels [height, width, 3]; the factor that makes colours of them."""


class ProjectedOutline(NamedTuple):
    """The projected outline of a body, and its derivative by motions of the body."""

    points: Array
    """Projected corners [n, 2] [pixels]."""
    jacobian: Array
    """Their derivatives by (translation, rotation about `centre`) in the world [n, 2, 6]."""
    edges: Array
    """Those of `edges_of` [edges, 7]."""
    region: Region
    """The pixels that can show the body, and a margin; empty where the body is out of view."""

    @property
    def visible(self) -> bool:
        """Whether any pixel of the image can show the body."""
        left, top, right, bottom = self.region
        return right - left > 2 and bottom - top > 2

    def coverage(self, region: Region | None = None, soft: float = 0.25) -> Array:
        """The silhouette in a region (its own where none is given), with a soft edge [height, width]."""
        return soft_silhouette(self.edges, region or self.region, soft)


@njit(**OPTIONS)
def hull(points, first, last, out):  # pragma: no cover - compiled
    """Write the indices of the convex hull of points[first:last] to `out`, counter-clockwise; return how many."""
    n = last - first
    order = np.empty(n, np.int64)
    for i in range(n):  # insertion sort by x, then y: parts have few corners
        j = i
        while j > 0:
            a, b = order[j - 1], first + i
            if points[a, 0] < points[b, 0] or (points[a, 0] == points[b, 0] and points[a, 1] <= points[b, 1]):
                break
            order[j] = a
            j -= 1
        order[j] = first + i
    k = 0
    for i in range(n):
        while k >= 2 and _turn(points, out[k - 2], out[k - 1], order[i]) <= 0:
            k -= 1
        out[k] = order[i]
        k += 1
    low = k + 1
    for i in range(n - 2, -1, -1):
        while k >= low and _turn(points, out[k - 2], out[k - 1], order[i]) <= 0:
            k -= 1
        out[k] = order[i]
        k += 1
    return k - 1


@njit(**OPTIONS)
def _turn(p, a, b, c):  # pragma: no cover - compiled
    return (p[b, 0] - p[a, 0]) * (p[c, 1] - p[a, 1]) - (p[b, 1] - p[a, 1]) * (p[c, 0] - p[a, 0])


@njit(**OPTIONS)
def edges_of(points, starts):  # pragma: no cover - compiled
    """Hull edges of all parts [edges, 7]: from, to, outward normal x and y, offset, length, part."""
    total = points.shape[0]
    edges = np.empty((2 * total, 7))
    ring = np.empty(2 * total + 2, np.int64)
    m = 0
    for part in range(starts.shape[0] - 1):
        k = hull(points, starts[part], starts[part + 1], ring)
        for i in range(k):
            a, b = ring[i], ring[(i + 1) % k]
            dx, dy = points[b, 0] - points[a, 0], points[b, 1] - points[a, 1]
            length = math.sqrt(dx * dx + dy * dy)
            if length < 1e-9:
                continue
            # The hull is counter-clockwise, so the right side of an edge is outside.
            nx, ny = dy / length, -dx / length
            edges[m, 0], edges[m, 1], edges[m, 2], edges[m, 3] = a, b, nx, ny
            edges[m, 4], edges[m, 5], edges[m, 6] = nx * points[a, 0] + ny * points[a, 1], length, part
            m += 1
    return edges[:m]


@njit(**OPTIONS)
def project_corners(corners, world_from_body, camera, centre):  # pragma: no cover - compiled
    """Projected corners [n, 2] and their derivatives by (translation, rotation about `centre`) [n, 2, 6].

    With the camera's rotation R and the motion (dt, dw) of a corner p,
    d p_camera = R^T (dt + dw x (p - centre)); the pinhole's derivative takes it to pixels. Lens distortion moves
    corners; its effect on the derivative, a few per cent at the border of a wide lens, is neglected. The first corner
    is NaN where the body is not wholly in front of the camera.
    """
    n = corners.shape[0]
    points, jacobian = np.empty((n, 2)), np.empty((n, 2, 6))
    world_from_camera, lens, _, _ = camera
    R, camera_position = world_from_camera[:3, :3], world_from_camera[:3, 3]
    p, local, gradient = np.empty(3), np.empty(3), np.empty(3)
    for i in range(n):
        for a in range(3):
            p[a] = world_from_body[a, 3]
            for b in range(3):
                p[a] += world_from_body[a, b] * corners[i, b]
        for a in range(3):
            local[a] = 0.0
            for b in range(3):
                local[a] += R[b, a] * (p[b] - camera_position[b])
        if not local[2] > 0.01:
            points[0, 0] = np.nan
            return points, jacobian
        x, y, z = local[0] / local[2], local[1] / local[2], local[2]
        r2 = x * x + y * y
        radial = 1 + r2 * (lens[4] + r2 * (lens[5] + r2 * lens[8]))
        bx = x * radial + 2 * lens[6] * x * y + lens[7] * (r2 + 2 * x * x)
        by = y * radial + lens[6] * (r2 + 2 * y * y) + 2 * lens[7] * x * y
        points[i, 0], points[i, 1] = lens[0] * bx + lens[2], lens[1] * by + lens[3]
        ax, ay, az = p[0] - centre[0], p[1] - centre[1], p[2] - centre[2]
        for row in range(2):
            f, ratio = lens[row] / z, (x if row == 0 else y)
            for b in range(3):
                gradient[b] = f * (R[b, row] - ratio * R[b, 2])
                jacobian[i, row, b] = gradient[b]
            # gradient . (dw x arm) = dw . (arm x gradient)
            jacobian[i, row, 3] = ay * gradient[2] - az * gradient[1]
            jacobian[i, row, 4] = az * gradient[0] - ax * gradient[2]
            jacobian[i, row, 5] = ax * gradient[1] - ay * gradient[0]
    return points, jacobian


@njit(**OPTIONS)
def area_of(points, edges):  # pragma: no cover - compiled
    """Area of the largest projected part [pixels^2]; parts overlap, so their sum would count pixels twice."""
    best, total, part = 0.0, 0.0, -1.0
    for e in range(edges.shape[0]):
        if edges[e, 6] != part:
            best, total, part = max(best, abs(total)), 0.0, edges[e, 6]
        a, b = int(edges[e, 0]), int(edges[e, 1])
        total += 0.5 * (points[a, 0] * points[b, 1] - points[b, 0] * points[a, 1])
    return max(best, abs(total))


@njit(**OPTIONS)
def signed_distance(x, y, edges):  # pragma: no cover - compiled
    """Signed distance of a pixel to the outline [pixels], and the index of the nearest edge."""
    best, which = 1e30, -1
    part, far, edge = -1.0, -1e30, -1
    for e in range(edges.shape[0]):
        if edges[e, 6] != part:
            if edge >= 0 and far < best:
                best, which = far, edge
            part, far, edge = edges[e, 6], -1e30, -1
        d = edges[e, 2] * x + edges[e, 3] * y - edges[e, 4]
        if d > far:
            far, edge = d, e
    if edge >= 0 and far < best:
        best, which = far, edge
    return best, which


@njit(**OPTIONS)
def segment_pixels(pixels, chroma, strength, background, limits, halo):  # pragma: no cover - compiled
    """Body mask and pixel weight [height, width] of pixels [height, width, 3] by colour and background.

    `limits` holds the full-chroma share, least purity, overexposure level, background tolerance and range of shading;
    an empty `background` is not known. `halo` widens occluders by that many pixels.
    """
    height, width = pixels.shape[:2]
    mask, weight = np.empty((height, width), np.float32), np.ones((height, width), np.float32)
    full, pale, white, tolerance, low, high = limits
    for i in range(height):
        for j in range(width):
            r, g, b = float(pixels[i, j, 0]), float(pixels[i, j, 1]), float(pixels[i, j, 2])
            along = chroma[0] * r + chroma[1] * g + chroma[2] * b
            purity = min(max((along / max(r, g, b, 1.0) - pale) / 0.08, 0.0), 1.0)
            mask[i, j] = min(max(along / (full * strength), 0.0), 1.0) * purity
            if len(background) == 0 or mask[i, j] >= 0.08:
                continue
            odd = min(r, g, b) > white
            if not odd:
                x, y, z = background[i, j, 0], background[i, j, 1], background[i, j, 2]
                k = min(max((r * x + g * y + b * z) / max(x * x + y * y + z * z, 1.0), low), high)
                odd = max(abs(r - k * x), abs(g - k * y), abs(b - k * z)) > tolerance
            if odd:
                weight[i, j] = -1.0
    for i in range(height):
        for j in range(width):
            if weight[i, j] >= 0:
                continue
            for a in range(max(i - halo, 0), min(i + halo + 1, height)):
                reach = halo - abs(a - i)
                for c in range(max(j - reach, 0), min(j + reach + 1, width)):
                    if weight[a, c] > 0 and mask[a, c] < 0.95:
                        weight[a, c] = 0.0
    for i in range(height):
        for j in range(width):
            weight[i, j] = max(weight[i, j], 0.0)
    return mask, weight


@njit(**OPTIONS)
def soft_silhouette(edges, region, soft):  # pragma: no cover - compiled
    """Soft silhouette of the pixels of a region [height, width]: 1 / (1 + exp(distance / soft))."""
    left, top, right, bottom = region
    out = np.empty((bottom - top, right - left), np.float32)
    for i in range(bottom - top):
        for j in range(right - left):
            d, _ = signed_distance(j + left + 0.5, i + top + 0.5, edges)
            z = min(max(d / soft, -30.0), 30.0)
            out[i, j] = 1.0 / (1.0 + math.exp(z))
    return out
