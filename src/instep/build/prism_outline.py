"""An upright prism by the corners of its outline and its height, as parameters of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .extrusion import Extrusion
from .prism import outline_rings, raised
from .triangle_mesh import TriangleMesh, joined

_CORNER_CELLS = 0.8
"""Corners of an outline nearer than this to the line between others are left out [cells of its grid]."""


@array_dataclass
class PrismOutline:
    """Polygons on a table that rise upright to one height. Its parameters are x and y of all corners and the height."""

    table_from_world: Array
    """4 x 4; z is the height above the table."""
    pieces: Sequence[Sequence[Array]]
    """Of each separate polygon its outer ring, anticlockwise, and its holes, clockwise; each [corners, 2] [m]."""
    height: float
    """[m]"""

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        return 2 * sum(len(ring) for rings in self.pieces for ring in rings) + 1

    @property
    def prism(self) -> PrismOutline:
        """Itself: an outline by its corners."""
        return self

    def mesh(self) -> TriangleMesh:
        """The prism in the frame of the world."""
        local = joined([raised(rings, self.height) for rings in self.pieces])
        return local.moved(np.linalg.inv(self.table_from_world))

    def chained(self, by_world: Array, ends: Array, share: Array) -> Array:
        """Derivatives by the parameters [n, parameters] of values whose derivatives by points [n, 3] are given.

        The points lie on edges of the mesh: between two vertices `ends` [n, 2], at a `share` of the way.
        """
        corner, top = self._vertices()
        local = by_world @ self.table_from_world[:3, :3].T
        out = np.zeros((len(by_world), self.parameters))
        rows = np.arange(len(by_world))
        for end, weight in ((ends[:, 0], 1 - share), (ends[:, 1], share)):
            for axis in (0, 1):
                np.add.at(out, (rows, 2 * corner[end] + axis), weight * local[:, axis])
            out[:, -1] += weight * top[end] * local[:, 2]
        return out

    def bending(self) -> Array:
        """The matrix of squared differences between the motions of neighbouring corners [parameters, parameters]."""
        out, start = np.zeros((self.parameters, self.parameters)), 0
        for rings in self.pieces:
            for ring in rings:
                here = start + np.arange(len(ring))
                for a, b in zip(here, np.roll(here, -1), strict=True):
                    for axis in (0, 1):
                        i, j = 2 * a + axis, 2 * b + axis
                        out[i, i] += 1
                        out[j, j] += 1
                        out[i, j] -= 1
                        out[j, i] -= 1
                start += len(ring)
        return out

    def changed(self, step: Array, limit: float) -> PrismOutline:
        """With a step of its parameters, of at most a limit [m] in each; the height stays above a quarter of itself."""
        step = np.clip(step, -limit, limit)
        pieces, start = list[list[Array]](), 0
        for rings in self.pieces:
            moved: list[Array] = []
            for ring in rings:
                moved.append(ring + step[start : start + 2 * len(ring)].reshape(-1, 2))
                start += 2 * len(ring)
            pieces.append(moved)
        return replace(self, pieces=pieces, height=max(self.height + float(step[-1]), 0.25 * self.height))

    def _vertices(self) -> tuple[Array, Array]:
        """Of each vertex of the mesh, its corner and whether it is at the top."""
        corner, top, start = list[Array](), list[Array](), 0
        for rings in self.pieces:
            n = sum(len(ring) for ring in rings)
            corner.append(np.tile(start + np.arange(n), 2))
            top.append(np.repeat([0.0, 1.0], n))
            start += n
        return np.concatenate(corner), np.concatenate(top)


def outline_of(extrusion: Extrusion) -> PrismOutline:
    """The corners and the height of an extruded outline."""
    rings = outline_rings(extrusion.outline, extrusion.grid.origin, extrusion.grid.pitch, _CORNER_CELLS)
    return PrismOutline(extrusion.table_from_world, rings, extrusion.height)
