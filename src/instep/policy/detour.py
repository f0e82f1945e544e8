"""Ways around a block: the shortest path of a stick to each place where it may touch, by table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

from .pushing import outside

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
