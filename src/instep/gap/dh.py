"""Denavit and Hartenberg's way of writing a chain, for results that were published in it.

T(q) = base (prod_i T_i(q_i)) tool with T_i = Rz(theta) Tz(d) Tx(a) Rx(alpha), the standard convention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.poses import pose, transform
from instep.core.world import Array

from .arm_kinematics import Chain

_PARALLEL = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class DH:
    """A chain in standard Denavit-Hartenberg parameters."""

    theta: Array
    """Angles about z at rest [joints, rad]."""
    d: Array
    """Offsets along z at rest [joints, m]."""
    a: Array
    """Lengths along x [joints, m]."""
    alpha: Array
    """Twists about x [joints, rad]."""
    turns: Array
    """Whether a joint turns: its position adds to theta, otherwise to d [joints]."""
    base: Array
    """Transform of the first frame [4, 4]."""
    tool: Array
    """Transform of the tip in the last frame, flange and tool in one [4, 4]."""
    rest: Array
    """Positions at rest [joints]."""

    def transforms(self, q: Array) -> Array:
        """Transforms of the tip [..., 4, 4] from joint positions [..., joints]."""
        moved = np.asarray(q, float) - self.rest
        out = np.broadcast_to(self.base, (*moved.shape[:-1], 4, 4))
        for i in range(len(self.theta)):
            theta = self.theta[i] + (moved[..., i] if self.turns[i] else 0.0)
            d = self.d[i] + (0.0 if self.turns[i] else moved[..., i])
            out = out @ link(theta, d, float(self.a[i]), float(self.alpha[i]))
        return out @ self.tool

    def poses(self, q: Array) -> Array:
        """Poses xyz + wxyz of the tip [..., 7]."""
        return pose(self.transforms(q))


def link(theta: Array | float, d: Array | float, a: float, alpha: float) -> Array:
    """One link's transform [..., 4, 4]: theta about z, d along z, a along x, alpha about x."""
    theta, d = np.asarray(theta, float), np.asarray(d, float)
    c, s, ca, sa = np.cos(theta), np.sin(theta), np.cos(alpha), np.sin(alpha)
    out = np.zeros((*np.broadcast_shapes(theta.shape, d.shape), 4, 4))
    out[..., 0, 0], out[..., 0, 1], out[..., 0, 2], out[..., 0, 3] = c, -s * ca, s * sa, a * c
    out[..., 1, 0], out[..., 1, 1], out[..., 1, 2], out[..., 1, 3] = s, c * ca, -c * sa, a * s
    out[..., 2, 1], out[..., 2, 2], out[..., 2, 3] = sa, ca, d
    out[..., 3, 3] = 1.0
    return out


def dh_of(chain: Chain) -> DH:
    """The Denavit-Hartenberg parameters of a chain: the common normals of neighbouring axes, found at rest."""
    points, directions = chain.axes()
    n = len(points)
    frame = _first_frame(points[0], directions[0])
    base, parameters = frame, np.zeros((n, 4))
    for i in range(n):
        following = (points[i + 1], directions[i + 1]) if i + 1 < n else (frame[:3, 3], frame[:3, 2])
        new = _next_frame(frame, *following)
        parameters[i] = _between(frame, new)
        frame = new
    tip = transform(chain.reference(chain.rest))
    tool = np.linalg.inv(frame) @ tip
    theta, d, a, alpha = parameters.T
    return DH(theta, d, a, alpha, chain.turns, base, tool, chain.rest)


def _first_frame(point: Array, z: Array) -> Array:
    least = np.eye(3)[int(np.argmin(np.abs(z)))]
    x = np.cross(least, z)
    return _frame(point, x / np.linalg.norm(x), z)


def _next_frame(frame: Array, point: Array, z: Array) -> Array:
    """The frame on the next axis: x along the common normal, origin at its foot."""
    origin, z_before = frame[:3, 3], frame[:3, 2]
    normal = np.cross(z_before, z)
    size = float(np.linalg.norm(normal))
    if size > _PARALLEL:
        x = normal / size
        # The feet of the common normal: origin + s z_before and point + t z differ by a multiple of x.
        _, t, _ = np.linalg.solve(np.stack([z_before, -z, x], axis=-1), point - origin)
        return _frame(point + t * z, x, z)
    across = point - origin - z_before * float((point - origin) @ z_before)
    reach = float(np.linalg.norm(across))
    x = across / reach if reach > _PARALLEL else frame[:3, 0]
    # Parallel axes have many normals; the one through the last origin makes d vanish.
    return _frame(origin + across, x, z)


def _between(before: Array, after: Array) -> Array:
    """theta, d, a, alpha that lead from one frame to the next."""
    x0, y0, z0, o0 = before[:3, 0], before[:3, 1], before[:3, 2], before[:3, 3]
    x1, z1, o1 = after[:3, 0], after[:3, 2], after[:3, 3]
    theta = np.arctan2(x1 @ y0, x1 @ x0)
    alpha = np.arctan2(np.cross(z0, z1) @ x1, z0 @ z1)
    return np.array([theta, (o1 - o0) @ z0, (o1 - o0) @ x1, alpha])


def _frame(origin: Array, x: Array, z: Array) -> Array:
    out = np.eye(4)
    out[:3, 0], out[:3, 1], out[:3, 2], out[:3, 3] = x, np.cross(z, x), z, origin
    return out
