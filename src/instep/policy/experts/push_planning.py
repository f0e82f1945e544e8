"""Quasi-static pushing of a flat block by a round stick: where to touch it, and where it goes then.

While the stick sticks to its contact, the block turns with a constant twist of its own frame. With the friction of the
table as an ellipsoid (force f, moment m, ratio `grip` = m_max / f_max) the twist is v = f, w = m / grip^2, so each
contact is one helix through the plane, and a push of any length along it has a closed form.

Ways around a block: the shortest path of a stick to each place where it may touch, by table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

FRICTION = 0.2
"""How far from the normal a push may lean, as a ratio of forces; less than the stick's friction, to be safe."""
LENGTHS = np.array([0.002, 0.004, 0.008, 0.014, 0.022, 0.033, 0.048, 0.068, 0.095, 0.13, 0.175])
"""Lengths of pushes that are weighed [m]."""


@dataclass(frozen=True, slots=True, eq=False)
class Contacts:
    """Ways to push a block, in its own frame."""

    stick: Array
    """Where the middle of the stick stands [n, 2] [m]."""
    normal: Array
    """Out of the block [n, 2]."""
    way: Array
    """Where the stick moves [n, 2], of length 1."""
    twist: Array
    """Velocity x, y and turning of the block per metre the stick moves [n, 3]."""
    moved: Array
    """Pose of the block after each length of push, in its frame before [n, lengths, 3]."""


def contacts(shape: Array, radius: float, grip: float, spacing: float = 0.012) -> Contacts:
    """The ways to push a block made of rectangles [n, 4] (left, bottom, right, top) by a stick of a radius."""
    points, normals = _boundary(shape, spacing)
    free = _clearance(points + radius * normals, shape) > radius - 1e-6
    points, normals = points[free], normals[free]
    lean = np.array([-FRICTION, 0.0, FRICTION])
    side = np.stack([-normals[:, 1], normals[:, 0]], axis=-1)
    force = (-normals[:, None] + lean[:, None] * side[:, None]).reshape(-1, 2)
    force /= np.linalg.norm(force, axis=-1, keepdims=True)
    point, normal = np.repeat(points, 3, axis=0), np.repeat(normals, 3, axis=0)
    turning = (point[:, 0] * force[:, 1] - point[:, 1] * force[:, 0]) / grip**2
    at_contact = force + turning[:, None] * np.stack([-point[:, 1], point[:, 0]], axis=-1)
    speed = np.linalg.norm(at_contact, axis=-1, keepdims=True)
    twist = np.concatenate([force, turning[:, None]], axis=-1) / speed
    moved = helix(twist[:, None], LENGTHS)
    return Contacts(point + radius * normal, normal, at_contact / speed, twist, moved)


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


def grip_of(shape: Array) -> float:
    """Ratio of the largest moment to the largest force of friction, where every point carries alike [m]."""
    points = np.concatenate([_grid(rectangle) for rectangle in shape])
    return float(np.linalg.norm(points - points.mean(axis=0), axis=-1).mean())


def _grid(rectangle: Array) -> Array:
    left, bottom, right, top = rectangle
    x, y = np.arange(left + 0.001, right, 0.002), np.arange(bottom + 0.001, top, 0.002)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _boundary(shape: Array, spacing: float) -> tuple[Array, Array]:
    """Points on the outline of the union of rectangles, and the normals there."""
    points, normals = [], []
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
    apart = []
    for left, bottom, right, top in shape:
        dx = np.maximum(np.maximum(left - points[..., 0], points[..., 0] - right), 0)
        dy = np.maximum(np.maximum(bottom - points[..., 1], points[..., 1] - top), 0)
        apart.append(np.hypot(dx, dy))
    return np.min(apart, axis=0)


CELL = 0.01
"""Size of a cell of the table [m]."""
REACH = 0.34
"""How far the table reaches from the middle of the block [m]."""
AHEAD = 3
"""How many cells ahead a path is followed."""


@dataclass(frozen=True, slots=True, eq=False)
class Detours:
    """Shortest paths in the frame of the block to each of some places outside it."""

    distance: Array
    """Length of the path from each cell [places, cells, cells] [m]."""
    ahead: Array
    """The point a few cells further on [places, cells, cells, 2] [m]."""

    def look(self, place: Array, point: Array) -> tuple[Array, Array]:
        """The length of the path from a point [..., 2] to a place [...], and the point to make for."""
        edge = REACH - CELL
        near = np.clip(point, -edge, edge)
        i, j = np.moveaxis(np.rint((near + REACH) / CELL).astype(int), -1, 0)
        beyond = np.linalg.norm(point - near, axis=-1)
        return self.distance[place, i, j] + beyond, self.ahead[place, i, j]

    def lengths(self, point: Array) -> Array:
        """The length of the path from points [..., 2] to every place [..., places]."""
        edge = REACH - CELL
        near = np.clip(point, -edge, edge)
        i, j = np.moveaxis(np.rint((near + REACH) / CELL).astype(int), -1, 0)
        return np.moveaxis(self.distance[:, i, j], 0, -1) + np.linalg.norm(point - near, axis=-1, keepdims=True)


def detours(places: Array, shape: Array, clearance: float) -> Detours:
    """The ways to places [n, 2] that keep a clearance from a block made of rectangles."""
    from scipy.sparse.csgraph import dijkstra

    n = round(2 * REACH / CELL) + 1
    axis = np.arange(n) * CELL - REACH
    cells = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    gap = outside(cells, shape)
    # Cells too near the block are not forbidden, or a stick that touches could never leave: they cost dearly.
    price = np.where(gap >= clearance, 1.0, 4.0 + 400.0 * (clearance - gap))
    goals = np.rint((places + REACH) / CELL).astype(int)
    numbers = goals[:, 0] * n + goals[:, 1]
    length, before = dijkstra(_graph(price, n), indices=numbers, return_predecessors=True)
    step = np.where(before < 0, np.arange(n * n), before)
    ahead = step
    for _ in range(AHEAD - 1):
        ahead = np.take_along_axis(step, ahead, axis=1)
    flat = cells.reshape(-1, 2)
    return Detours(length.reshape(-1, n, n), flat[ahead].reshape(-1, n, n, 2))


def _graph(price: Array, n: int) -> object:
    """Neighbouring cells, eight each and eight knight's moves, joined by the length of the step times its price."""
    from scipy.sparse import coo_matrix

    number = np.arange(n * n).reshape(n, n)
    rows, columns, weights = [], [], []
    for di, dj in ((0, 1), (1, 0), (1, 1), (1, -1), (1, 2), (2, 1), (1, -2), (2, -1)):
        a = number[max(0, -di) : n - max(0, di), max(0, -dj) : n - max(0, dj)]
        b = number[max(0, di) : n + min(0, di), max(0, dj) : n + min(0, dj)]
        cost = 0.5 * (price.reshape(-1)[a] + price.reshape(-1)[b]) * CELL * np.hypot(di, dj)
        rows += [a.reshape(-1), b.reshape(-1)]
        columns += [b.reshape(-1), a.reshape(-1)]
        weights += [cost.reshape(-1)] * 2
    return coo_matrix((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))).tocsr()
