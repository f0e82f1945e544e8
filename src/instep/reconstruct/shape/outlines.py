"""Upright outlines on a table: the coarse outline and height that explain a few masks, and prisms with parameters.

Two or three views from above leave a visual hull with twice the volume of a flat block. An outline that rises upright
from the table is better known: at a height h it is the intersection of all slices of the hull up to h. The silhouettes
of the extruded outline decide which h, and which even offset of the outline, fit best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass
from instep.reconstruct.masks.object_mask import ObjectMask, overlap
from instep.splat.fitting import pixel_rays

from .triangle_mesh import Grid, TriangleMesh, joined
from .visual_hull import HullViews, hull_bounds, hull_views, table_frame

_SLICES = 9
"""Slices of the hull up to the height."""


@array_dataclass
class Extrusion:
    """An outline on the table with a height."""

    table_from_world: Array
    """4 x 4; z is the height above the table."""
    outline: Array
    """Signed distance inside the outline [x, y] [m]."""
    grid: Grid
    """Grid of the outline's values in the table's frame; its z is not used."""
    height: float
    """[m]"""
    height_sigma: float
    """Standard deviation of the height [m], from the curvature of the agreement."""
    agreement: float
    """Mean overlap of its silhouettes with the masks."""


def coarse_extrusion(masks: Sequence[ObjectMask], plane: Array, *, height: float | None = None) -> Extrusion:
    """The extruded outline with the best overlaps over a search of heights and offsets, for a fit to start from.

    A known `height` [m] is kept; a single mask needs it.
    """
    table_from_world = table_frame(plane)
    if len(masks) == 1 and height is not None:
        begin, end = _bounds_of_one(masks[0], table_from_world, height)
        masks = (masks[0], masks[0])  # a hull needs two views of a point
    else:
        low, high = hull_bounds(masks, plane)
        corners = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
        local = corners @ table_from_world[:3, :3].T + table_from_world[:3, 3]
        begin, end = local.min(axis=0), local.max(axis=0)
    pitch = float(np.linalg.norm(end[:2] - begin[:2])) / 120
    counts = np.ceil((end[:2] - begin[:2]) / pitch).astype(int) + 5
    grid = Grid(np.r_[begin[:2] - 2 * pitch, 0.0], pitch, (int(counts[0]), int(counts[1]), 1))
    search = _Search(masks, hull_views(masks), table_from_world, grid)
    # Heights of the first search.
    tried = np.geomspace(0.02, 1.0, 14) * max(end[2], 4 * pitch) if height is None else np.array([height])
    best = max((search.at(float(h)) for h in tried), key=lambda found: found[0])
    if height is None:
        step = best[2] * 0.16
        for _ in range(5):
            best = max((best, search.at(best[2] - step), search.at(best[2] + step)), key=lambda found: found[0])
            step /= 2
    agreement, offset, found = best
    if agreement < 0.6:  # least mean overlap of the silhouettes of an extruded shape
        best_is = f"best overlap {agreement:.2f}"
        raise BadInput(f"No upright outline explains the masks ({best_is}). Add views, and use --shape hull.")
    sigma = 0.0 if height is not None else search.height_sigma(found, agreement)
    return Extrusion(table_from_world, search.outline(found) + offset, grid, found, sigma, agreement)


def _bounds_of_one(mask: ObjectMask, table_from_world: Array, height: float) -> tuple[Array, Array]:
    """A box on the table around all points up to a height inside a mask: lowest and highest corner [3] [m]."""
    left, top, right, bottom = mask.padded_region(1)
    pixels = np.array([[x, y] for x in np.linspace(left, right, 5) for y in np.linspace(top, bottom, 5)])
    rays = pixel_rays(mask.camera, pixels) @ table_from_world[:3, :3].T
    eye = table_from_world[:3, :3] @ mask.camera.body_from_camera[:3, 3] + table_from_world[:3, 3]
    # Least slope towards the table of all rays of a single view [share of their length].
    if (rays[:, 2] > -0.08 * np.linalg.norm(rays, axis=1)).any() or eye[2] <= height:
        words = f"looks along the table or lies below {height:g} m; take it from farther above, or add views."
        raise BadInput(f"The view of camera {mask.camera.name!r} {words}")
    found = [eye[:2] + ((z - eye[2]) / rays[:, 2:]) * rays[:, :2] for z in (0.0, height)]
    points = np.concatenate(found)
    return np.r_[points.min(axis=0), 0.0], np.r_[points.max(axis=0), height]


@array_dataclass
class _Search:
    masks: Sequence[ObjectMask]
    views: HullViews
    table_from_world: Array
    grid: Grid

    def outline(self, height: float) -> Array:
        """The intersection of all slices of the hull from the table up to a height [x, y] [m]."""
        world_from_table = np.linalg.inv(self.table_from_world)
        base = self.grid.points()[:, :, 0]
        out = np.full(base.shape[:2], np.inf)
        for z in np.linspace(0.0, height, _SLICES):
            points = np.concatenate([base[..., :2], np.full((*base.shape[:2], 1), z)], axis=-1)
            out = np.minimum(out, self.views.field(points @ world_from_table[:3, :3].T + world_from_table[:3, 3]))
        return out

    def at(self, height: float) -> tuple[float, float, float]:
        """The best mean overlap at a height, over even offsets of the outline; the offset [m]; the height."""
        outline = self.outline(height)
        if not (outline > 0).any():
            return (0.0, 0.0, height)
        seen = [self._largest(mask, outline, height) for mask in self.masks]
        offsets = self.grid.pitch * np.linspace(-1.5, 3.0, 10)
        scores = [float(np.mean([self._overlap(one, offset) for one in seen])) for offset in offsets]
        k = int(np.argmax(scores))
        return (scores[k], float(offsets[k]), height)

    def height_sigma(self, height: float, agreement: float) -> float:
        """The change of height whose loss of overlap equals the noise of the edge pixels [m]."""
        pixels = sum(float(mask.inside.sum()) for mask in self.masks)
        step = 0.1 * height
        fall = agreement - 0.5 * (self.at(height - step)[0] + self.at(height + step)[0])
        noise = 0.25 / np.sqrt(max(pixels, 1.0))
        return float(step * np.sqrt(noise / max(fall, 1e-6)))

    def _largest(self, mask: ObjectMask, outline: Array, height: float) -> tuple[ObjectMask, Array, Array, Array]:
        """Of each pixel around a mask the largest value of the outline along its ray; the region; and pixels per
        metre."""
        from scipy.ndimage import map_coordinates

        left, top, right, bottom = mask.padded_region(12)
        columns, rows = np.meshgrid(np.arange(left, right), np.arange(top, bottom))
        rays = pixel_rays(mask.camera, np.stack([columns + 0.5, rows + 0.5], axis=-1)) @ self.table_from_world[:3, :3].T
        eye = self.table_from_world[:3, :3] @ mask.camera.body_from_camera[:3, 3] + self.table_from_world[:3, 3]
        found = np.full(columns.shape, -1.0)
        for z in np.linspace(0.0, height, _SLICES + 4):
            points = eye[:2] + ((z - eye[2]) / np.minimum(rays[..., 2], -1e-6))[..., None] * rays[..., :2]
            at = (points - self.grid.origin[:2]) / self.grid.pitch
            found = np.maximum(found, map_coordinates(outline, [at[..., 0], at[..., 1]], order=1, cval=-1.0))
        middle = self.grid.places(0.5 * np.array(self.grid.shape))
        depth = np.linalg.norm(eye - middle)
        return mask, found, np.array([left, top, right, bottom]), np.array(mask.camera.focal[0] / depth)

    def _overlap(self, seen: tuple[ObjectMask, Array, Array, Array], offset: float) -> float:
        mask, values, (left, top, right, bottom), per_metre = seen
        alpha = np.clip(0.5 + (values + offset) * per_metre, 0.0, 1.0)
        cut = np.s_[top:bottom, left:right]
        return overlap(alpha, mask.alpha[cut], mask.known[cut])


@array_dataclass
class RightAngles:
    """The frame of an outline whose sides run along two directions."""

    pivot: Array
    """Origin of the offsets of sides and centre of the turn [2] [m]."""
    radius: float
    """Half of the outline's diagonal [m]; the turn times it is a parameter."""


@array_dataclass
class PrismOutline:
    """Polygons on a table that rise upright to one height.

    Its parameters are x and y of all corners; of right angles the offset of each side, even ones along the first
    direction, and the turn. The last one is the height.
    """

    table_from_world: Array
    """4 x 4; z is the height above the table."""
    values: Array
    """Parameters [parameters] [m]."""
    corners: Sequence[Sequence[int]]
    """Of each separate polygon the numbers of corners of its outer ring, anticlockwise, and its holes, clockwise."""
    right: RightAngles | None = None

    @property
    def height(self) -> float:
        """[m]."""
        return float(self.values[-1])

    def pieces(self) -> list[list[Array]]:
        """The rings of each polygon, [corners, 2] each [m]."""
        points = self.values[:-1].reshape(-1, 2) if self.right is None else self._square_corners(self.right)
        ends = np.cumsum([0, *(count for counts in self.corners for count in counts)])
        rings = iter([points[a:b] for a, b in pairwise(ends)])
        return [[next(rings) for _ in counts] for counts in self.corners]

    def mesh(self) -> TriangleMesh:
        """The prism in the frame of the world."""
        local = joined([raised(rings, self.height) for rings in self.pieces()])
        return local.moved(np.linalg.inv(self.table_from_world))

    def chained(self, by_world: Array, ends: Array, share: Array) -> Array:
        """Derivatives by the parameters [n, parameters] of values whose derivatives by points [n, 3] are given.

        The points lie on edges of the mesh: between two vertices `ends` [n, 2], at a `share` of the way.
        """
        local, here, step = by_world @ self.table_from_world[:3, :3].T, self._vertices(), 1e-6
        out = np.empty((len(by_world), len(self.values)))
        for k, change in enumerate(step * np.eye(len(self.values))):
            moved = (replace(self, values=self.values + change)._vertices() - here) / step
            motion = (1 - share)[:, None] * moved[ends[:, 0]] + share[:, None] * moved[ends[:, 1]]
            out[:, k] = np.einsum("ni,ni->n", local, motion)
        return out

    def bending(self) -> Array:
        """The matrix of squared differences between the motions of neighbouring corners [parameters, parameters];
        zero for right angles, whose sides move freely."""
        out = np.zeros((len(self.values), len(self.values)))
        if self.right is None:
            sizes = [count for counts in self.corners for count in counts]
            starts = np.cumsum([0, *sizes])
            order: Array = np.concatenate([np.roll(np.arange(int(a), int(b)), -1) for a, b in pairwise(starts)])
            change = np.kron(np.eye(len(order))[order] - np.eye(len(order)), np.eye(2))
            out[:-1, :-1] = change.T @ change
        return out

    def changed(self, step: Array, limit: float) -> PrismOutline:
        """With a step of its parameters, of at most a limit [m] in each; the height stays above a quarter of itself."""
        values = self.values + np.clip(step, -limit, limit)
        values[-1] = max(values[-1], 0.25 * self.height)
        return replace(self, values=values)

    def _vertices(self) -> Array:
        """The vertices of the mesh in the frame of the table [n, 3]."""
        return np.concatenate([_prism_vertices(np.concatenate(rings), self.height) for rings in self.pieces()])

    def _square_corners(self, right: RightAngles) -> Array:
        """Corners of right angles [sides, 2]; corner k ends side k and begins the next."""
        offsets, turn = self.values[:-2], self.values[-2] / right.radius
        after, even = np.roll(offsets, -1), np.arange(len(offsets)) % 2 == 0
        local = np.stack([np.where(even, offsets, after), np.where(even, after, offsets)], axis=1)
        c, s = np.cos(turn), np.sin(turn)
        return right.pivot + local @ np.array([[c, s], [-s, c]])


def outline_of(extrusion: Extrusion) -> PrismOutline:
    """The corners and the height of an extruded outline."""
    rings = outline_rings(extrusion.outline, extrusion.grid.origin, extrusion.grid.pitch)
    return free_outline(extrusion.table_from_world, rings, extrusion.height)


def free_outline(table_from_world: Array, pieces: Sequence[Sequence[Array]], height: float) -> PrismOutline:
    """An outline by its corners."""
    points = [ring.ravel() for rings in pieces for ring in rings]
    values = np.concatenate([*points, [height]])
    return PrismOutline(table_from_world, values, [[len(ring) for ring in rings] for rings in pieces])


def right_angled(outline: PrismOutline) -> PrismOutline | None:
    """The outline of right angles nearest to one of free corners; None where it has holes or other directions."""
    if len(outline.corners) != 1 or len(outline.corners[0]) != 1:
        return None
    ring = outline.pieces()[0][0]
    along = np.roll(ring, -1, axis=0) - ring
    length = np.linalg.norm(along, axis=1)
    # Sides along and across a direction have four times the same angle; long ones show it best.
    spun = np.sum(length**2 * np.exp(4j * np.arctan2(along[:, 1], along[:, 0]))) / np.sum(length**2)
    turn, pivot = float(np.angle(spun)) / 4, ring.mean(axis=0)
    c, s = np.cos(turn), np.sin(turn)
    local = (ring - pivot) @ np.array([[c, -s], [s, c]])
    diagonal = float(np.linalg.norm(np.ptp(local, axis=0)))
    # Shortest side, as a share of the diagonal of the outline; shorter ones are cut corners or noise.
    # Least alignment of the sides with two directions for right angles, from 0 (any direction) to 1.
    offsets = _sides(local, 0.1 * diagonal) if np.abs(spun) >= 0.6 else None
    if offsets is None:
        return None
    values = np.r_[offsets, turn * diagonal / 2, outline.height]
    return PrismOutline(outline.table_from_world, values, [[len(offsets)]], RightAngles(pivot, diagonal / 2))


def _sides(ring: Array, shortest: float) -> Array | None:
    """Offsets of the sides of a ring [corners, 2], even ones of sides on which x is constant; None for fewer than 4.

    Neighbouring edges of one kind are one side at their mean offset, weighted by length. A side that is too short goes,
    and its neighbours become one.
    """
    after = np.roll(ring, -1, axis=0)
    upright = np.abs(after - ring)[:, 1] > np.abs(after - ring)[:, 0]
    starts = np.flatnonzero(upright != np.roll(upright, 1))
    offsets: list[float] = []
    for first, end in zip(starts, np.append(starts[1:], starts[:1] + len(ring)), strict=True):
        index, axis = np.arange(first, end) % len(ring), 0 if upright[first] else 1
        weight = np.abs(after - ring)[index, 1 - axis] + 1e-12
        offsets.append(float(np.average(0.5 * (ring + after)[index, axis], weights=weight)))
    upright_first = bool(len(starts)) and bool(upright[starts[0]])
    while len(offsets) >= 4:
        lengths = np.abs(np.roll(offsets, -1) - np.roll(offsets, 1))
        k = int(np.argmin(lengths))
        if lengths[k] >= shortest:
            return np.roll(offsets, 0 if upright_first else -1)
        n = len(offsets)
        pair = [(k - 1) % n, (k + 1) % n]
        merged = float(np.average(np.array(offsets)[pair], weights=lengths[pair] + 1e-12))
        upright_first = upright_first == (pair[0] % 2 == 0)
        offsets = [merged, *(offsets[(k + 2 + i) % n] for i in range(n - 3))]
    return None


def outline_rings(outline: Array, origin: Array, pitch: float, tolerance: float = 0.8) -> list[list[Array]]:
    """Polygons around the positive part of a field [x, y]: an outer ring, anticlockwise, and holes, clockwise [n, 2].

    Corners within a tolerance [cells] of the line between others are left out.
    """
    cv2: Any = optional_library("cv2", "build", "opencv-python-headless")
    contourpy: Any = import_module("contourpy")  # has no types
    found = contourpy.contour_generator(z=outline.T, fill_type="OuterOffset").filled(0.0, float(outline.max()) + 1.0)
    pieces: list[list[Array]] = []
    for points, starts in zip(*found, strict=True):
        cells = [np.asarray(points[a : b - 1], np.float32) for a, b in pairwise(starts)]
        rings = [np.asarray(cv2.approxPolyDP(ring[:, None], tolerance, True), float)[:, 0] for ring in cells]
        rings = [ring for ring in rings if len(ring) >= 3 and abs(_area(ring)) > 2.0]
        turned = [ring if (_area(ring) > 0) == (k == 0) else ring[::-1] for k, ring in enumerate(rings)]
        pieces += [[origin[:2] + pitch * ring for ring in turned]] if rings else []
    if not pieces:
        raise BadInput("The masks leave nothing of the object above the table. Check the table's height.")
    return pieces


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
    i = np.arange(n)
    j = np.concatenate([np.roll(i[a:b], -1) for a, b in pairwise(starts)])
    faces = np.concatenate(
        [cap[:, ::-1], cap + n, np.stack([i, j, j + n], axis=1), np.stack([i, j + n, i + n], axis=1)]
    )
    return TriangleMesh(_prism_vertices(points, height), faces.astype(np.int32))


def _prism_vertices(points: Array, height: float) -> Array:
    levels = np.repeat([0.0, height], len(points))
    return np.column_stack([np.tile(points, (2, 1)), levels])


def _ears(points: Array, rings: list[list[int]]) -> list[list[int]]:
    """Triangles of a polygon with holes by clipping ears; holes are joined to the outer ring by bridges."""
    order = rings[0]
    for hole in sorted(rings[1:], key=lambda ring: -points[ring, 0].max()):
        order = _bridged(points, order, hole)
    triangles: list[list[int]] = []
    while len(order) > 3:
        ear = next((k for k in range(len(order)) if _is_ear(points, order, k)), None)
        if ear is None:  # only slivers are left
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
    """An outer ring joined to a hole by the shortest bridge that crosses no edge."""
    pairs = sorted(
        ((float(np.linalg.norm(points[a] - points[b])), i, j) for i, a in enumerate(order) for j, b in enumerate(hole))
    )
    edges = [(ring[k - 1], ring[k]) for ring in (order, hole) for k in range(len(ring))]
    free = (p for p in pairs if not any(_crosses(points, (order[p[1]], hole[p[2]]), edge) for edge in edges))
    _, i, j = next(free, pairs[0])
    return [*order[: i + 1], *hole[j:], *hole[: j + 1], *order[i:]]


def _crosses(points: Array, one: tuple[int, int], other: tuple[int, int]) -> bool:
    if set(one) & set(other):
        return False
    a, b, c, d = points[[*one, *other]]

    def side(p: Array, q: Array, r: Array) -> float:
        return float((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
