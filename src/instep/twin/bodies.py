"""Where a body stands in a world's numbers: its pose in q, its twist in v."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.errors import UnknownName
from instep.core.poses import pose
from instep.core.world import Array, Spec

from .untyped import glances


@dataclass(frozen=True, slots=True)
class Place:
    """The coordinates of one free body: position and quaternion from `q`, linear and angular velocity from `v`."""

    name: str
    q: int
    v: int

    def transform(self, q: Array) -> Array:
        """world_from_body (4 x 4)."""
        return np.asarray(glances.placed_at(q[self.q : self.q + 7]))

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the body moved there."""
        out = q.copy()
        out[self.q : self.q + 7] = pose(world_from_body)
        return out

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the body translated by xi[:3] and turned about its own origin by xi[3:]."""
        out = q.copy()
        out[self.q : self.q + 7] = glances.shifted(q[None, self.q : self.q + 7], xi)[0]
        return out

    def add_twist(self, q: Array, v: Array, twist: Array) -> Array:
        """Velocities with a twist in the world added; angular velocity is kept in the body's axes."""
        out = v.copy()
        out[self.v : self.v + 3] += twist[:3]
        out[self.v + 3 : self.v + 6] += self.transform(q)[:3, :3].T @ twist[3:]
        return out


def place_of(spec: Spec, body: str) -> Place:
    """Where a free body stands in the numbers of a world."""
    first, speed = f"{body}.x", f"{body}.vx"
    if first not in spec.q.labels:
        raise UnknownName("free body", body, sorted({n.rpartition(".")[0] for n in spec.q.labels if "." in n}))
    return Place(body, spec.q.labels.index(first), spec.v.labels.index(speed))


def interpolated(times: Array, poses: Array, t: float) -> Array:
    """The pose xyz + wxyz at time t between remembered ones [n, 7], held at both ends; times rise."""
    after = int(np.searchsorted(times, t))
    if after <= 0:
        return poses[0]
    if after >= len(times):
        return poses[-1]
    a, b = poses[after - 1], poses[after]
    share = (t - times[after - 1]) / max(times[after] - times[after - 1], 1e-9)
    b = np.concatenate([b[:3], b[3:] if np.dot(a[3:], b[3:]) >= 0 else -b[3:]])
    out = a + share * (b - a)
    out[3:] /= np.linalg.norm(out[3:])
    return out
