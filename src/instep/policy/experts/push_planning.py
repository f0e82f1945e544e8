"""Quasi-static pushing of a flat block by a round stick: contacts, the motions they cause, and paths to them.

While the stick sticks to its contact, the block turns with a constant twist of its own frame. With the friction of the
table as an ellipsoid (force f, moment m, ratio `friction_radius_m` = m_max / f_max) the twist is v = f, w = m /
friction_radius_m^2, so each contact is one helix through the plane, and a push of any length along it has a closed
form.

The shortest path of the stick around the block to each contact is tabulated.
"""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

FRICTION = 0.2
"""Largest ratio of tangential to normal force of a push; below the friction of the stick, for safety."""
LENGTHS = np.array([0.002, 0.004, 0.008, 0.014, 0.022, 0.033, 0.048, 0.068, 0.095, 0.13, 0.175])
"""Lengths of pushes that are compared [m]."""


@array_dataclass
class PushContacts:
    """Contacts at which a block can be pushed, in its own frame."""

    stick: Array
    """Centre of the stick [n, 2] [m]."""
    normal: Array
    """Outward normal of the block [n, 2]."""
    direction: Array
    """Unit direction in which the stick moves [n, 2]."""
    twist: Array
    """Velocity x, y and yaw rate of the block per metre that the stick moves [n, 3]."""
    moved: Array
    """Pose of the block after each length of push, in its frame before [n, lengths, 3]."""


def push_contacts(shape: Array, radius: float, friction_radius_m: float, spacing: float = 0.012) -> PushContacts:
    """The ways to push a block made of rectangles [n, 4] (left, bottom, right, top) by a stick of a radius."""
    points, normals = _boundary(shape, spacing)
    free = _clearance(points + radius * normals, shape) > radius - 1e-6
    points, normals = points[free], normals[free]
    lean = np.array([-FRICTION, 0.0, FRICTION])
    side = np.stack([-normals[:, 1], normals[:, 0]], axis=-1)
    force = (-normals[:, None] + lean[:, None] * side[:, None]).reshape(-1, 2)
    force /= np.linalg.norm(force, axis=-1, keepdims=True)
    point, normal = np.repeat(points, 3, axis=0), np.repeat(normals, 3, axis=0)
    turning = (point[:, 0] * force[:, 1] - point[:, 1] * force[:, 0]) / friction_radius_m**2
    at_contact = force + turning[:, None] * np.stack([-point[:, 1], point[:, 0]], axis=-1)
    speed = np.linalg.norm(at_contact, axis=-1, keepdims=True)
    twist = np.concatenate([force, turning[:, None]], axis=-1) / speed
    moved = helix(twist[:, None], LENGTHS)
    return PushContacts(point + radius * normal, normal, at_contact / speed, twist, moved)


def helix(twist: Array, length: Array) -> Array:
    """The pose x, y, heading reached by a constant twist after some length."""
    turn = twist[..., 2] * length
    # sin(a)/a and (1-cos(a))/a, sound at a = 0.
    s, c = np.sinc(turn / np.pi), 0.5 * turn * np.sinc(turn / (2 * np.pi)) ** 2
    x = (twist[..., 0] * s - twist[..., 1] * c) * length
    y = (twist[..., 0] * c + twist[..., 1] * s) * length
    return np.stack([x, y, turn], axis=-1)


def outside(points: Array, shape: Array) -> Array:
    """Distance of points [..., 2] to the nearest rectangle [m]; 0 inside."""
    return _clearance(points, shape)


def friction_radius(shape: Array) -> float:
    """Ratio of the largest moment to the largest force of friction, under uniform pressure [m]."""
    points = np.concatenate([_grid(rectangle) for rectangle in shape])
    return float(np.linalg.norm(points - points.mean(axis=0), axis=-1).mean())


def _grid(rectangle: Array) -> Array:
    left, bottom, right, top = rectangle
    x, y = np.arange(left + 0.001, right, 0.002), np.arange(bottom + 0.001, top, 0.002)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _boundary(shape: Array, spacing: float) -> tuple[Array, Array]:
    """Points on the outline of the union of rectangles, and the normals there."""
    points: list[Array] = []
    normals: list[Array] = []
    for left, bottom, right, top in shape:
        for start, end, normal in (
            ((left, bottom), (right, bottom), (0, -1)),
            ((left, top), (right, top), (0, 1)),
            ((left, bottom), (left, top), (-1, 0)),
            ((right, bottom), (right, top), (1, 0)),
        ):
            length = float(np.hypot(end[0] - start[0], end[1] - start[1]))
            share = (np.arange(n := max(1, round(length / spacing))) + 0.5) / n
            points.append(np.array(start) + share[:, None] * (np.array(end) - np.array(start)))
            normals.append(np.tile(np.array(normal, float), (n, 1)))
    point, normal = np.concatenate(points), np.concatenate(normals)
    bare = _clearance(point + 1e-4 * normal, shape) > 0.5e-4
    return point[bare], normal[bare]


def _clearance(points: Array, shape: Array) -> Array:
    apart: list[Array] = []
    for left, bottom, right, top in shape:
        dx = np.maximum(np.maximum(left - points[..., 0], points[..., 0] - right), 0)
        dy = np.maximum(np.maximum(bottom - points[..., 1], points[..., 1] - top), 0)
        apart.append(np.hypot(dx, dy))
    return np.min(apart, axis=0)


CELL_M = 0.01
"""Side of a cell of the grid [m]."""
HALF_WIDTH_M = 0.34
"""Half the width of the grid around the centre of the block [m]."""
LOOKAHEAD_CELLS = 3
"""Cells by which a path is followed ahead."""


@array_dataclass
class ShortestPaths:
    """Shortest paths in the frame of the block to points outside it."""

    distance: Array
    """Length of the path from each cell [places, cells, cells] [m]."""
    ahead: Array
    """The point a few cells further on [places, cells, cells, 2] [m]."""

    def path(self, place: Array, point: Array) -> tuple[Array, Array]:
        """The length of the path from a point [..., 2] to a place [...], and the next point on it."""
        i, j, beyond = self._cell(point)
        return self.distance[place, i, j] + beyond, self.ahead[place, i, j]

    def lengths(self, point: Array) -> Array:
        """The length of the path from points [..., 2] to every place [..., places]."""
        i, j, beyond = self._cell(point)
        return np.moveaxis(self.distance[:, i, j], 0, -1) + beyond[..., None]

    def _cell(self, point: Array) -> tuple[Array, Array, Array]:
        """The cell of points, and how far they lie outside the grid [m]."""
        edge = HALF_WIDTH_M - CELL_M
        near = np.clip(point, -edge, edge)
        i, j = np.moveaxis(np.rint((near + HALF_WIDTH_M) / CELL_M).astype(int), -1, 0)
        return i, j, np.linalg.norm(point - near, axis=-1)


def shortest_paths(places: Array, shape: Array, clearance: float) -> ShortestPaths:
    """The shortest paths to places [n, 2] that keep a clearance from a block made of rectangles."""
    from scipy.sparse.csgraph import dijkstra

    n = round(2 * HALF_WIDTH_M / CELL_M) + 1
    axis = np.arange(n) * CELL_M - HALF_WIDTH_M
    cells = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    gap = outside(cells, shape)
    # Cells too near the block are costly, not forbidden: a stick in contact could never leave otherwise.
    cost_per_metre = np.where(gap >= clearance, 1.0, 4.0 + 400.0 * (clearance - gap))
    goals = np.rint((places + HALF_WIDTH_M) / CELL_M).astype(int)
    numbers = goals[:, 0] * n + goals[:, 1]
    length, before = dijkstra(_graph(cost_per_metre, n), indices=numbers, return_predecessors=True)
    step = np.where(before < 0, np.arange(n * n), before)
    ahead = step
    for _ in range(LOOKAHEAD_CELLS - 1):
        ahead = np.take_along_axis(step, ahead, axis=1)
    flat = cells.reshape(-1, 2)
    return ShortestPaths(length.reshape(-1, n, n), flat[ahead].reshape(-1, n, n, 2))


def _graph(cost_per_metre: Array, n: int) -> object:
    """Neighbouring cells, eight each and eight knight's moves, joined by the length of the step times its
    cost_per_metre."""
    from scipy.sparse import coo_matrix

    number = np.arange(n * n).reshape(n, n)
    rows: list[Array] = []
    columns: list[Array] = []
    weights: list[Array] = []
    for di, dj in ((0, 1), (1, 0), (1, 1), (1, -1), (1, 2), (2, 1), (1, -2), (2, -1)):
        a = number[max(0, -di) : n - max(0, di), max(0, -dj) : n - max(0, dj)]
        b = number[max(0, di) : n + min(0, di), max(0, dj) : n + min(0, dj)]
        cost = 0.5 * (cost_per_metre.reshape(-1)[a] + cost_per_metre.reshape(-1)[b]) * CELL_M * np.hypot(di, dj)
        rows += [a.reshape(-1), b.reshape(-1)]
        columns += [b.reshape(-1), a.reshape(-1)]
        weights += [cost.reshape(-1)] * 2
    return coo_matrix((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))).tocsr()
