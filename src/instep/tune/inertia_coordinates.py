"""Coordinates of a rigid body's inertia that are always physical: log-Cholesky factors of the pseudo-inertia.

The pseudo-inertia P = [[S, h], [h^T, m]] of a body holds its mass m, first moment h = m c and second moment
S = tr(I) / 2 - I, with I the inertia about the frame of the body. A body of positive density everywhere has a positive
definite P; then masses are positive and moments fulfil the triangle inequality. With a reference P0 = L L^T,

    P(x) = L U(x) U(x)^T L^T,    U = e^x0 [[e^x1, x4, x6, x7], [0, e^x2, x5, x8], [0, 0, e^x3, x9], [0, 0, 0, 1]]

is positive definite for every x in R^10, and P(0) = P0. L is upper triangular, so the mass is m0 e^(2 x0), and x7 to x9
move the centre of mass in units of the body's own radii of gyration.
"""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

MIN_RADIUS_M = 0.01
"""Smallest radius of gyration of a reference: bodies without inertia (points, rods, frames) get this one."""
_PLACES = ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3))
"""Entries of U that x1 to x9 set."""


def pseudo_inertia(pi: Array) -> Array:
    """The pseudo-inertia [..., 4, 4] of ten inertial parameters [..., 10]."""
    pi = np.asarray(pi, float)
    inertia = np.empty((*pi.shape[:-1], 3, 3))
    for k, (i, j) in enumerate(((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))):
        inertia[..., i, j] = inertia[..., j, i] = pi[..., 4 + k]
    out = np.empty((*pi.shape[:-1], 4, 4))
    trace = np.trace(inertia, axis1=-2, axis2=-1)[..., None, None]
    out[..., :3, :3] = 0.5 * trace * np.eye(3) - inertia
    out[..., :3, 3] = out[..., 3, :3] = pi[..., 1:4]
    out[..., 3, 3] = pi[..., 0]
    return out


def inertial_of(pseudo: Array) -> Array:
    """The ten inertial parameters [..., 10] of a pseudo-inertia [..., 4, 4]."""
    second = pseudo[..., :3, :3]
    inertia = np.trace(second, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) - second
    upper = [inertia[..., i, j] for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))]
    return np.stack([pseudo[..., 3, 3], *np.moveaxis(pseudo[..., :3, 3], -1, 0), *upper], axis=-1)


def consistent(pi: Array) -> Array:
    """Whether inertial parameters [..., 10] belong to a body of positive density: P is positive definite."""
    return np.linalg.eigvalsh(pseudo_inertia(pi)).min(axis=-1) > 0


@array_dataclass
class LogCholesky:
    """Log-Cholesky coordinates around a reference body."""

    factor: Array
    """Upper triangular L of the reference P0 = L L^T [4, 4]."""

    @classmethod
    def around(cls, pi: Array) -> LogCholesky:
        """Coordinates around given inertial parameters, made physical where they are not."""
        mass, centre = float(pi[0]), np.asarray(pi[1:4]) / pi[0]
        spread = pseudo_inertia(pi)[:3, :3] - mass * np.outer(centre, centre)
        moments, axes = np.linalg.eigh(spread)
        spread = (axes * np.maximum(moments, mass * MIN_RADIUS_M**2)) @ axes.T
        factor = np.zeros((4, 4))
        # Cholesky from the last row up gives an upper triangular factor.
        factor[:3, :3] = np.linalg.cholesky(spread[::-1, ::-1])[::-1, ::-1]
        factor[:, 3] = np.sqrt(mass) * np.append(centre, 1.0)
        return cls(factor)

    def inertial(self, x: Array) -> Array:
        """Inertial parameters [10] at coordinates x [10]."""
        root = self.factor @ _upper(x)
        return inertial_of(root @ root.T)

    def jacobian(self, x: Array) -> Array:
        """Derivatives of the inertial parameters by the coordinates [10, 10]."""
        upper = _upper(x)
        root, out = self.factor @ upper, np.empty((10, 10))
        for k in range(10):
            change = upper if k == 0 else np.zeros((4, 4))
            if k:
                i, j = _PLACES[k - 1]
                change[i, j] = upper[i, j] if i == j else np.exp(x[0])
            step = self.factor @ change @ root.T
            out[:, k] = inertial_of(step + step.T)
        return out


def _upper(x: Array) -> Array:
    out = np.eye(4)
    for value, (i, j) in zip(x[1:], _PLACES, strict=True):
        out[i, j] = np.exp(value) if i == j else value
    return np.exp(x[0]) * out
