"""Upright prisms whose sides meet at right angles: the outline of most things that are made of boards or printed.

Few views of few pixels leave the corners of a free outline uncertain by more than a pixel. Where right angles explain
the masks as well, an outline of them has one parameter per side instead of two per corner, and is known better.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .prism_outline import PrismOutline
from .triangle_mesh import TriangleMesh

MIN_SIDE = 0.1
"""Shortest side, as a share of the diagonal of the outline; shorter ones are cut corners or noise."""
MIN_ALIGNED = 0.6
"""Least alignment of the sides with two directions, from 0 (any direction) to 1, for right angles to be tried."""


@array_dataclass
class RightAngledOutline:
    """A polygon on a table of sides along two directions, that rises upright to one height.

    Its parameters are the offset of each side [m], the turn about the pivot (times the radius [m]), and the height.
    """

    table_from_world: Array
    """4 x 4; z is the height above the table."""
    pivot: Array
    """What offsets are counted from, and the outline turns about [2] [m]."""
    radius: float
    """Half of the outline's diagonal [m]."""
    turn: float
    """Of the first direction [rad]."""
    offsets: Array
    """Of each side from the pivot, even ones along the first direction, odd ones along the second [sides] [m]."""
    height: float
    """[m]"""

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        return len(self.offsets) + 2

    @property
    def prism(self) -> PrismOutline:
        """The same outline by its corners."""
        return PrismOutline(self.table_from_world, [[self.pivot + self._local() @ self._axes()]], self.height)

    def mesh(self) -> TriangleMesh:
        """The prism in the frame of the world."""
        return self.prism.mesh()

    def chained(self, by_world: Array, ends: Array, share: Array) -> Array:
        """Derivatives by the parameters, given those by points on edges of the mesh (see `PrismOutline.chained`)."""
        return self.prism.chained(by_world, ends, share) @ self._corner_derivatives()

    def bending(self) -> Array:
        """Sides move freely: there is nothing to bend [parameters, parameters]."""
        return np.zeros((self.parameters, self.parameters))

    def changed(self, step: Array, limit: float) -> RightAngledOutline:
        """With a step of its parameters, of at most a limit [m] in each; the height stays above a quarter of itself."""
        step = np.clip(step, -limit, limit)
        height = max(self.height + float(step[-1]), 0.25 * self.height)
        turn = self.turn + float(step[-2]) / self.radius
        return replace(self, offsets=self.offsets + step[:-2], turn=turn, height=height)

    def _axes(self) -> Array:
        """The two directions, as rows."""
        c, s = np.cos(self.turn), np.sin(self.turn)
        return np.array([[c, s], [-s, c]])

    def _local(self) -> Array:
        """Corners along the two directions [sides, 2]; corner k ends side k and begins the next."""
        after = np.roll(self.offsets, -1)
        even = np.arange(len(self.offsets)) % 2 == 0
        return np.stack([np.where(even, self.offsets, after), np.where(even, after, self.offsets)], axis=1)

    def _corner_derivatives(self) -> Array:
        """Derivatives of the parameters of the prism by those of the outline [2 corners + 1, parameters]."""
        n, axes, local = len(self.offsets), self._axes(), self._local()
        out = np.zeros((2 * n + 1, self.parameters))
        for corner in range(n):
            rows = slice(2 * corner, 2 * corner + 2)
            for side in (corner, (corner + 1) % n):
                out[rows, side] = axes[side % 2]
            along = local[corner] @ axes
            out[rows, n] = np.array([-along[1], along[0]]) / self.radius
        out[-1, -1] = 1.0
        return out


Outline: TypeAlias = PrismOutline | RightAngledOutline
"""An upright outline with parameters."""


def right_angled(outline: PrismOutline) -> RightAngledOutline | None:
    """The outline of right angles nearest to one of free corners; None where it has holes or other directions."""
    if len(outline.pieces) != 1 or len(outline.pieces[0]) != 1:
        return None
    ring = outline.pieces[0][0]
    along = np.roll(ring, -1, axis=0) - ring
    length = np.linalg.norm(along, axis=1)
    # Sides along and across a direction have four times the same angle; long ones tell it best.
    spun = np.sum(length**2 * np.exp(4j * np.arctan2(along[:, 1], along[:, 0]))) / np.sum(length**2)
    if np.abs(spun) < MIN_ALIGNED:
        return None
    turn, pivot = float(np.angle(spun)) / 4, ring.mean(axis=0)
    c, s = np.cos(turn), np.sin(turn)
    local = (ring - pivot) @ np.array([[c, -s], [s, c]])
    diagonal = float(np.linalg.norm(np.ptp(local, axis=0)))
    offsets = _sides(local, MIN_SIDE * diagonal)
    if offsets is None:
        return None
    return RightAngledOutline(outline.table_from_world, pivot, diagonal / 2, turn, offsets, outline.height)


def _sides(ring: Array, shortest: float) -> Array | None:
    """Offsets of the sides of a ring [corners, 2], even ones of sides on which x is constant; None for fewer than 4."""
    after = np.roll(ring, -1, axis=0)
    upright = np.abs(after - ring)[:, 1] > np.abs(after - ring)[:, 0]
    runs = _runs(ring, after, upright)
    while len(runs) >= 4:
        lengths = _lengths(runs)
        k = int(np.argmin(lengths))
        if lengths[k] >= shortest:
            break
        runs = _without(runs, k, lengths)
    if len(runs) < 4 or len(runs) % 2:
        return None
    begin = 0 if runs[0][0] else 1
    return np.array([offset for _, offset in runs[begin:] + runs[:begin]])


_Run = tuple[bool, float]
"""Whether x is constant on a side, and that x, or else the y."""


def _runs(begin: Array, end: Array, upright: Array) -> list[_Run]:
    """Neighbouring edges of one kind as one side each, at their mean offset, weighted by length."""
    starts = np.flatnonzero(upright != np.roll(upright, 1))
    if len(starts) < 4:
        return []
    found: list[_Run] = []
    for i, first in enumerate(starts):
        count = (starts[(i + 1) % len(starts)] - first) % len(begin)
        index: Array = np.asarray((int(first) + np.arange(int(count))) % len(begin))
        axis = 0 if upright[first] else 1
        weight = np.abs(end - begin)[index, 1 - axis] + 1e-12
        middle = 0.5 * (begin + end)[index, axis]
        found.append((bool(upright[first]), float(np.average(middle, weights=weight))))
    return found


def _lengths(runs: list[_Run]) -> Array:
    """Of each side: how far apart its neighbours are."""
    n = len(runs)
    return np.array([abs(runs[(k + 1) % n][1] - runs[k - 1][1]) for k in range(n)])


def _without(runs: list[_Run], k: int, lengths: Array) -> list[_Run]:
    """The sides without a short one, whose neighbours become one."""
    n = len(runs)
    before, after = (k - 1) % n, (k + 1) % n
    weights = lengths[[before, after]] + 1e-12
    merged = (runs[before][0], float(np.average([runs[before][1], runs[after][1]], weights=weights)))
    rest = [runs[(after + 1 + i) % n] for i in range(n - 3)]
    return [merged, *rest]
