"""Upright prisms: the polygons of an outline, simplified, triangulated and raised from the table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .triangle_mesh import TriangleMesh


def outline_rings(outline: Array, origin: Array, pitch: float, tolerance: float = 0.3) -> list[list[Array]]:
    """Polygons of where a field [x, y] is positive: of each an outer ring, anticlockwise, and holes, clockwise [n, 2].

    Corners within a tolerance [cells] of the line between others are left out.
    """
    pieces: list[list[Array]] = []
    for polygon in _polygons(outline):
        rings = [_simplified(ring, tolerance) for ring in polygon]
        rings = [origin[:2] + pitch * ring for ring in rings if len(ring) >= 3 and abs(_area(ring)) > 2.0]
        if rings:
            pieces.append([ring if (_area(ring) > 0) == (k == 0) else ring[::-1] for k, ring in enumerate(rings)])
    if not pieces:
        raise BadInput("The masks leave nothing of the object above the table; is the table where it was said to be?")
    return pieces


def _polygons(outline: Array) -> list[list[Array]]:
    """Polygons of where a field is positive, each an outer ring and holes [n, 2], in cells of the field."""
    from importlib import import_module

    contourpy = import_module("contourpy")  # a part of Matplotlib, without types
    rows = contourpy.contour_generator(z=outline.T, fill_type="OuterOffset")
    points, offsets = rows.filled(0.0, float(outline.max()) + 1.0)
    found: list[list[Array]] = []
    for corners, starts in zip(points, offsets, strict=True):
        rings = [np.asarray(corners[a : b - 1], float) for a, b in pairwise(starts)]
        found.append(rings)
    return found


def _simplified(ring: Array, tolerance: float) -> Array:
    """The corners of a ring that matter, by Douglas and Peucker; those left out are within a tolerance of its edges."""
    if len(ring) < 4:
        return ring
    far = int(np.argmax(np.linalg.norm(ring - ring[0], axis=1)))
    first, second = _line(ring[: far + 1], tolerance), _line(np.concatenate([ring[far:], ring[:1]]), tolerance)
    return np.concatenate([first[:-1], second[:-1]])


def _line(points: Array, tolerance: float) -> Array:
    along = points[-1] - points[0]
    length = float(np.linalg.norm(along))
    apart = points - points[0]
    across = np.abs(along[0] * apart[:, 1] - along[1] * apart[:, 0]) / max(length, 1e-12)
    far = int(np.argmax(across))
    if across[far] <= tolerance or len(points) < 3:
        return points[[0, -1]]
    return np.concatenate([_line(points[: far + 1], tolerance)[:-1], _line(points[far:], tolerance)])


def _area(ring: Array) -> float:
    """Signed area, positive for anticlockwise."""
    x, y = ring.T
    return 0.5 * float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())


def raised(rings: Sequence[Array], height: float) -> TriangleMesh:
    """The prism of an outer ring, anticlockwise, and holes, clockwise: vertices at z = 0, then those at the height."""
    points = np.concatenate(rings)
    n = len(points)
    starts = np.cumsum([0, *(len(ring) for ring in rings)])
    cap = np.array(_ears(points, [list(range(a, b)) for a, b in pairwise(starts)]))
    sides: list[list[int]] = []
    for a, b in pairwise(starts):
        for i in range(a, b):
            j = a + (i - a + 1) % (b - a)
            sides += [[i, j, j + n], [i, j + n, i + n]]
    vertices = np.concatenate([np.column_stack([points, np.zeros(n)]), np.column_stack([points, np.full(n, height)])])
    faces = np.concatenate([cap[:, ::-1], cap + n, np.array(sides)])
    return TriangleMesh(vertices, faces.astype(np.int32))


def _ears(points: Array, rings: list[list[int]]) -> list[list[int]]:
    """Triangles of a polygon with holes by clipping ears; holes are joined to the outer ring by bridges."""
    order = rings[0]
    for hole in sorted(rings[1:], key=lambda ring: -points[ring, 0].max()):
        order = _bridged(points, order, hole)
    triangles: list[list[int]] = []
    while len(order) > 3:
        ear = next((k for k in range(len(order)) if _is_ear(points, order, k)), None)
        if ear is None:  # only slivers are left, in the rounding of their corners
            ear = min(range(len(order)), key=lambda k: abs(_turn(points, order, k)))
        triangles.append([order[ear - 1], order[ear], order[(ear + 1) % len(order)]])
        order = order[:ear] + order[ear + 1 :]
    return [*triangles, order]


def _turn(points: Array, order: list[int], k: int) -> float:
    a, b, c = points[order[k - 1]], points[order[k]], points[order[(k + 1) % len(order)]]
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))


def _is_ear(points: Array, order: list[int], k: int) -> bool:
    if _turn(points, order, k) <= 0:
        return False
    corners = [order[k - 1], order[k], order[(k + 1) % len(order)]]
    others = points[[i for i in order if i not in corners]]
    a, b, c = points[corners]
    sides = [
        (q[0] - p[0]) * (others[:, 1] - p[1]) - (q[1] - p[1]) * (others[:, 0] - p[0])
        for p, q in ((a, b), (b, c), (c, a))
    ]
    return not bool(np.all(np.array(sides) >= 0, axis=0).any())


def _bridged(points: Array, order: list[int], hole: list[int]) -> list[int]:
    """An outer ring joined to a hole at the pair of corners that are nearest and see each other."""
    pairs = sorted(
        ((float(np.linalg.norm(points[a] - points[b])), i, j) for i, a in enumerate(order) for j, b in enumerate(hole)),
    )
    edges = [(ring[k - 1], ring[k]) for ring in (order, hole) for k in range(len(ring))]
    for _, i, j in pairs:
        if not any(_crosses(points, (order[i], hole[j]), edge) for edge in edges):
            return [*order[: i + 1], *hole[j:], *hole[: j + 1], *order[i:]]
    _, i, j = pairs[0]
    return [*order[: i + 1], *hole[j:], *hole[: j + 1], *order[i:]]


def _crosses(points: Array, one: tuple[int, int], other: tuple[int, int]) -> bool:
    if set(one) & set(other):
        return False
    a, b, c, d = points[[*one, *other]]

    def side(p: Array, q: Array, r: Array) -> float:
        return float((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
