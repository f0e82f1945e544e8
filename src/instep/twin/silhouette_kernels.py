"""Compiled silhouettes: projected corners, convex hulls, distances to the outline, normal equations against a mask.

A body is a union of convex parts. The silhouette of a part is the convex hull of its projected corners; the signed
distance of a pixel to the silhouette of the body is the least over its parts (negative inside).

With d the signed distance of a pixel to the projected outline (negative inside), the predicted coverage is

    c(d) = 1 / (1 + exp(d / s)),    dc/dxi = c (1 - c) / s * n . du/dxi

where n is the outward normal of the nearest edge, u its nearest point, and s the softness [pixels]. The residual is
c - m with m the share of the pixel in the colour of the body. Two things make the sums fast. With l the
position of the nearest point between the corners a and b of an edge, a row of the Jacobian is

    dc/dxi = c (1 - c) / s ((1 - l) A + l B),   A = n . du_a/dxi,  B = n . du_b/dxi

so five sums per edge stand for all columns. And a block of pixels is compared only with the edges that can be nearest
to one of its pixels.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit

from instep.core.world import Array
from instep.splat.image import Region

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.


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


class ProjectedOutline(NamedTuple):
    """The projected outline of a body, and its derivative by motions of the body."""

    points: Array
    """Projected corners [n, 2] [pixels]."""
    jacobian: Array
    """Their derivatives by (translation, rotation about the body's origin) in the world [n, 2, 6]."""
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
def project_corners(corners, world_from_body, camera):  # pragma: no cover - compiled
    """Projected corners [n, 2] and their derivatives by motions of the body (translation, rotation) [n, 2, 6].

    With the camera's rotation R and the motion (dt, dw) of a corner p,
    d p_camera = R^T (dt + dw x (p - origin)); the pinhole's derivative takes it to pixels. Lens distortion moves
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
        ax, ay, az = p[0] - world_from_body[0, 3], p[1] - world_from_body[1, 3], p[2] - world_from_body[2, 3]
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


BLOCK = 4
"""Side of a block of pixels that shares its candidate edges [pixels]."""
REACH = 0.7072 * BLOCK
"""Distance from the centre of a block to its corners [pixels]."""
TILE = 8
"""Side of a tile of blocks; most tiles are far from the outline and are added at once [pixels]."""
SUMS = {**INLINE, "fastmath": True}
"""Options of sums over whole tiles: masks and weights are finite, and their order may change."""


class CandidateEdges(NamedTuple):
    """The edges that can be nearest to a pixel of one block."""

    near: Array
    """Normal, offset, part, and the position along the edge as a linear function of the pixel [edges, 7]."""
    which: Array
    """Their indices [edges]."""
    n: int
    """How many there are."""


@njit(**INLINE)
def _quaternion(xi):  # pragma: no cover - compiled
    """The quaternion wxyz of the rotation vector xi[3:]."""
    angle = math.sqrt(xi[3] * xi[3] + xi[4] * xi[4] + xi[5] * xi[5])
    share = 0.5 if angle < 2e-9 else math.sin(0.5 * angle) / angle
    return math.cos(0.5 * angle), share * xi[3], share * xi[4], share * xi[5]


@njit(**INLINE)
def _rotate(w, x, y, z, out):  # pragma: no cover - compiled
    """Write the rotation matrix of a unit quaternion to out[:3, :3]."""
    out[0, 0], out[0, 1], out[0, 2] = 1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)
    out[1, 0], out[1, 1], out[1, 2] = 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)
    out[2, 0], out[2, 1], out[2, 2] = 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)


@njit(**OPTIONS)
def moved_transform(world_from_body, xi):  # pragma: no cover - compiled
    """A transform (4 x 4) translated by xi[:3] and rotated about its own origin by the rotation vector xi[3:]."""
    out, R = world_from_body.copy(), np.empty((3, 3))
    w, x, y, z = _quaternion(xi)
    _rotate(w, x, y, z, R)
    for a in range(3):
        for b in range(3):
            out[a, b] = 0.0
            for c in range(3):
                out[a, b] += R[a, c] * world_from_body[c, b]
        out[a, 3] += xi[a]
    return out


@njit(**OPTIONS)
def transform_at(times, poses, t):  # pragma: no cover - compiled
    """The transform (4 x 4) at time t, interpolated between poses xyz + wxyz [n, 7] and held at both ends."""
    n = times.shape[0]
    after = 0
    while after < n and times[after] < t:
        after += 1
    mixed = np.empty(7)
    if after == 0 or after == n:
        mixed[:] = poses[0 if after == 0 else n - 1]
    else:
        share = (t - times[after - 1]) / max(times[after] - times[after - 1], 1e-9)
        same = 0.0
        for i in range(3, 7):
            same += poses[after - 1, i] * poses[after, i]
        for i in range(7):
            end = poses[after, i] if i < 3 or same >= 0 else -poses[after, i]
            mixed[i] = poses[after - 1, i] + share * (end - poses[after - 1, i])
    return transform_of_pose(mixed)


@njit(**OPTIONS)
def transform_of_pose(pose):  # pragma: no cover - compiled
    """The transform (4 x 4) of a pose xyz + wxyz."""
    size = math.sqrt(pose[3] ** 2 + pose[4] ** 2 + pose[5] ** 2 + pose[6] ** 2)
    out = np.zeros((4, 4))
    _rotate(pose[3] / size, pose[4] / size, pose[5] / size, pose[6] / size, out)
    out[0, 3], out[1, 3], out[2, 3], out[3, 3] = pose[0], pose[1], pose[2], 1.0
    return out


@njit(**OPTIONS)
def moved_poses(poses, xi):  # pragma: no cover - compiled
    """Poses xyz + wxyz [n, 7], moved by one motion xi: translated, and rotated each about its own origin."""
    out = poses.copy()
    aw, ax, ay, az = _quaternion(xi)
    for i in range(poses.shape[0]):
        for k in range(3):
            out[i, k] += xi[k]
        w, x, y, z = poses[i, 3], poses[i, 4], poses[i, 5], poses[i, 6]
        out[i, 3], out[i, 4] = aw * w - ax * x - ay * y - az * z, aw * x + ax * w + ay * z - az * y
        out[i, 5], out[i, 6] = aw * y - ax * z + ay * w + az * x, aw * z + ax * y - ay * x + az * w
    return out


@njit(**OPTIONS)
def region_around(points, margin, width, height):  # pragma: no cover - compiled
    """Left, top, right, bottom of the bounding box of projected corners, widened by a margin and cut to the image."""
    low_x = high_x = points[0, 0]
    low_y = high_y = points[0, 1]
    for i in range(points.shape[0]):
        low_x, high_x = min(low_x, points[i, 0]), max(high_x, points[i, 0])
        low_y, high_y = min(low_y, points[i, 1]), max(high_y, points[i, 1])
    # Far outside the image a corner may exceed the integer range.
    low_x, low_y = min(max(low_x, -1e6), 1e6), min(max(low_y, -1e6), 1e6)
    high_x, high_y = min(max(high_x, -1e6), 1e6), min(max(high_y, -1e6), 1e6)
    return (
        max(int(low_x) - margin, 0),
        max(int(low_y) - margin, 0),
        min(int(high_x) + 1 + margin, width),
        min(int(high_y) + 1 + margin, height),
    )


@njit(**OPTIONS)
def body_region(corners, world_from_body, camera, margin):  # pragma: no cover - compiled
    """The bounding box of a body in a camera; empty where the body is not wholly in front of it."""
    points, _ = project_corners(corners, world_from_body, camera)
    if not np.isfinite(points[0, 0]):
        return (0, 0, 0, 0)
    _, _, width, height = camera
    return region_around(points, margin, width, height)


@njit(**OPTIONS)
def pose_equations(parts, motion, camera, pixels, edge, margin):  # pragma: no cover - compiled
    """J^T W J [k, k], J^T W r [k] by motions of a body along the columns of a basis [6, k], and a tally [8].

    The tally is that of `outline_equations`; it is all zero where the body is out of view.
    """
    (corners, starts), (world_from_body, xi, basis) = parts, motion
    k = basis.shape[1]
    here = moved_transform(world_from_body, xi)
    points, jacobian = project_corners(corners, here, camera)
    if not np.isfinite(points[0, 0]):
        return np.zeros((k, k)), np.zeros(k), np.zeros(8)
    _, _, region = pixels
    window = region_around(points, margin, region[2], region[3])
    projected = ProjectedOutline(points, jacobian, edges_of(points, starts), window)
    return outline_equations(projected, basis, pixels, edge)


@njit(**OPTIONS)
def outline_equations(projected, basis, pixels, edge):  # pragma: no cover - compiled
    """J^T W J [k, k], J^T W r [k] of a projected outline, and a tally [8], over the pixels that can show it.

    `basis` [m, k] holds combinations of the m derivatives in `projected.jacobian`.
    The tally: sum of w r^2, sum of w, intersection and union of the silhouettes, predicted area, predicted area that is
    not occluded, area shown, area of the largest part; all zero where fewer than three pixels can show the body.
    """
    k = basis.shape[1]
    H, g, tally = np.zeros((k, k)), np.zeros(k), np.zeros(8)
    (left, top, right, bottom), edges, (_, _, region) = projected.region, projected.edges, pixels
    if right - left <= 2 or bottom - top <= 2:
        return H, g, tally
    left, top = max(left, region[0]), max(top, region[1])
    right, bottom = min(right, region[2]), min(bottom, region[3])
    if right <= left or bottom <= top:
        return H, g, tally
    sums = np.zeros((edges.shape[0], 5))
    _scan(projected, pixels, (left, top, right, bottom), edge, sums, tally)
    tally[7] = area_of(projected.points, edges)
    _assemble(edges, projected.jacobian, basis, sums, H, g)
    return H, g, tally


@njit(**OPTIONS)
def _scan(projected, pixels, window, edge, sums, tally):  # pragma: no cover - compiled
    (left, top, right, bottom), points, edges = window, projected.points, projected.edges
    near, which = np.empty((edges.shape[0], 7)), np.empty(edges.shape[0], np.int64)
    band, far = 6.0 * edge[0] + REACH, 6.0 * edge[0] + 0.7072 * TILE
    for top0 in range(top, bottom, TILE):
        for left0 in range(left, right, TILE):
            low, end = min(top0 + TILE, bottom), min(left0 + TILE, right)
            middle, _ = signed_distance(left0 + 0.5 * TILE, top0 + 0.5 * TILE, edges)
            if abs(middle) > far:
                _add_uniform_block(pixels, (left0, top0, end, low), 1.0 if middle < 0 else 0.0, tally)
                continue
            for y0 in range(top0, low, BLOCK):
                for x0 in range(left0, end, BLOCK):
                    block = (x0, y0, min(x0 + BLOCK, end), min(y0 + BLOCK, low))
                    middle, n = _candidates(x0 + 0.5 * BLOCK, y0 + 0.5 * BLOCK, points, edges, near, which)
                    if abs(middle) > band:
                        _add_uniform_block(pixels, block, 1.0 if middle < 0 else 0.0, tally)
                    else:
                        _add_edge_block(CandidateEdges(near, which, n), pixels, block, edge, sums, tally)


@njit(**INLINE)
def _candidates(x, y, points, edges, near, which):  # pragma: no cover - compiled
    """Signed distance of a block's centre to the outline, and the edges that can be nearest to one of its pixels."""
    best, m = 1e30, edges.shape[0]
    start, n = 0, 0
    while start < m:
        far, end = -1e30, start
        while end < m and edges[end, 6] == edges[start, 6]:
            far = max(far, edges[end, 2] * x + edges[end, 3] * y - edges[end, 4])
            end += 1
        best = min(best, far)
        if far < best + 2 * REACH:
            for e in range(start, end):
                if edges[e, 2] * x + edges[e, 3] * y - edges[e, 4] >= far - 2 * REACH:
                    a, over = int(edges[e, 0]), 1.0 / edges[e, 5]
                    near[n, 0], near[n, 1], near[n, 2], near[n, 3] = edges[e, 2], edges[e, 3], edges[e, 4], edges[e, 6]
                    near[n, 4], near[n, 5] = -edges[e, 3] * over, edges[e, 2] * over
                    near[n, 6] = near[n, 4] * points[a, 0] + near[n, 5] * points[a, 1]
                    which[n] = e
                    n += 1
        start = end
    return best, n


@njit(**SUMS)
def _add_uniform_block(pixels, block, inside, tally):  # pragma: no cover - compiled
    """Add a block that lies wholly inside or outside to the tally."""
    (mask, weight, region), (x0, y0, x1, y1) = pixels, block
    shows = squared = counts = np.float32(0.0)
    full, none, half = np.float32(inside), np.float32(0.0), np.float32(0.5)
    for i in range(y0 - region[1], y1 - region[1]):
        for j in range(x0 - region[0], x1 - region[0]):
            w, m = weight[np.uint64(i), np.uint64(j)], mask[np.uint64(i), np.uint64(j)]
            shows += w if m > half else none
            squared += w * (full - m) * (full - m)
            counts += w
    both = inside * shows
    tally[0] += squared
    tally[1] += counts
    tally[2] += both
    tally[3] += counts if inside > 0 else shows
    tally[4] += inside * (x1 - x0) * (y1 - y0)
    tally[5] += inside * counts
    tally[6] += shows


@njit(**INLINE)
def _add_edge_block(candidates, pixels, block, model, sums, tally):  # pragma: no cover - compiled
    """Add a block that the outline crosses to the tally and to the sums of its edges."""
    (near, which, n), (mask, weight, region), (x0, y0, x1, y1) = candidates, pixels, block
    soft, robust = model
    steepness = 1.0 / soft
    both = either = free = shows = squared = counts = covered = 0.0
    for yy in range(y0, y1):
        y = yy + 0.5
        for xx in range(x0, x1):
            x = xx + 0.5
            d, e = 1e30, 0
            part, far, edge = near[0, 3], near[0, 0] * x + near[0, 1] * y - near[0, 2], 0
            for k in range(1, n):
                away = near[k, 0] * x + near[k, 1] * y - near[k, 2]
                if near[k, 3] != part:
                    if far < d:
                        d, e = far, edge
                    part, far, edge = near[k, 3], away, k
                elif away > far:
                    far, edge = away, k
            if far < d:
                d, e = far, edge
            inside = 1.0 if d < 0 else 0.0
            covered += inside
            i, j = np.uint64(yy - region[1]), np.uint64(xx - region[0])
            w = float(weight[i, j])
            if w <= 0:
                continue
            m = float(mask[i, j])
            shown = 1.0 if m > 0.5 else 0.0
            both += inside * shown * w
            either += max(inside, shown) * w
            free += inside * w
            shows += shown * w
            z = d * steepness
            steep = abs(z) <= 6.0
            c = 1.0 / (1.0 + math.exp(z)) if steep else inside
            r = c - m
            size = abs(r)
            if size > robust:
                w *= robust / size
            squared += w * r * r
            counts += w
            if steep:
                along = min(max(near[e, 4] * x + near[e, 5] * y - near[e, 6], 0.0), 1.0)
                gradient = c * (1.0 - c) * steepness
                before, after = gradient * (1.0 - along), gradient * along
                f = which[e]
                sums[f, 0] += w * before * before
                sums[f, 1] += w * before * after
                sums[f, 2] += w * after * after
                sums[f, 3] += w * before * r
                sums[f, 4] += w * after * r
    tally[0] += squared
    tally[1] += counts
    tally[2] += both
    tally[3] += either
    tally[4] += covered
    tally[5] += free
    tally[6] += shows


@njit(**OPTIONS)
def _assemble(edges, jacobian, basis, sums, H, g):  # pragma: no cover - compiled
    """Assemble the normal equations from the sums per edge."""
    k = basis.shape[1]
    A, B = np.empty(k), np.empty(k)
    for e in range(edges.shape[0]):
        a, b, nx, ny = int(edges[e, 0]), int(edges[e, 1]), edges[e, 2], edges[e, 3]
        for p in range(k):
            A[p] = B[p] = 0.0
            for s in range(basis.shape[0]):
                A[p] += (nx * jacobian[a, 0, s] + ny * jacobian[a, 1, s]) * basis[s, p]
                B[p] += (nx * jacobian[b, 0, s] + ny * jacobian[b, 1, s]) * basis[s, p]
        for p in range(k):
            g[p] += sums[e, 3] * A[p] + sums[e, 4] * B[p]
            for q in range(k):
                H[p, q] += sums[e, 0] * A[p] * A[q] + sums[e, 2] * B[p] * B[q]
                H[p, q] += sums[e, 1] * (A[p] * B[q] + B[p] * A[q])


@njit(**OPTIONS)
def mask_out_body(parts, world_from_body, camera, pixels, margin_px):  # pragma: no cover - compiled
    """Set the weight of the pixels that a body occludes, and of `margin_px` pixels around it, to zero."""
    (corners, starts), (_, weight, region) = parts, pixels
    points, _ = project_corners(corners, world_from_body, camera)
    if not np.isfinite(points[0, 0]):
        return
    left, top, right, bottom = region_around(points, 2, region[2], region[3])
    left, top = max(left, region[0]), max(top, region[1])
    edges = edges_of(points, starts)
    for y in range(top, bottom):
        for x in range(left, right):
            if weight[y - region[1], x - region[0]] > 0:
                d, _ = signed_distance(x + 0.5, y + 0.5, edges)
                if d < margin_px:
                    weight[y - region[1], x - region[0]] = 0.0
