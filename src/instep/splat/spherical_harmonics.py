"""Spherical harmonics: the colour of a Gaussian as a function of the direction it is seen from.

The basis, its signs and its order are those of the INRIA files: l = 0, 1, 2, 3 with m from -l to l.
A colour is 0.5 + sum of coefficients times basis, and never below 0.
"""

from __future__ import annotations

import math

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

C0 = 0.28209479177387814
"""The constant harmonic: colour = 0.5 + C0 * coefficient for degree 0."""
C1 = 0.4886025119029199
C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
C3 = (
    -0.5900435899266435,
    2.890611442640554,
    -0.4570457994644658,
    0.3731763325901154,
    -0.4570457994644658,
    1.445305721320277,
    -0.5900435899266435,
)
MAX_DEGREE = 3


def degree_of(coefficients: int) -> int:
    """The degree that has this many coefficients: 1, 4, 9, 16."""
    degree = math.isqrt(coefficients) - 1
    if (degree + 1) ** 2 != coefficients or not 0 <= degree <= MAX_DEGREE:
        raise BadInput(
            f"{coefficients} spherical-harmonic coefficients per colour were given; degrees 0 to 3 have 1, 4, 9 or 16."
        )
    return degree


def basis(direction: Array, degree: int) -> Array:
    """The basis [..., (degree + 1)^2] at unit directions [..., 3]."""
    x, y, z = np.moveaxis(np.asarray(direction, float), -1, 0)
    parts = [np.full_like(x, C0)]
    if degree >= 1:
        parts += [-C1 * y, C1 * z, -C1 * x]
    if degree >= 2:
        xx, yy, zz = x * x, y * y, z * z
        parts += [C2[0] * x * y, C2[1] * y * z, C2[2] * (2 * zz - xx - yy), C2[3] * x * z, C2[4] * (xx - yy)]
        if degree >= 3:
            parts += [
                C3[0] * y * (3 * xx - yy),
                C3[1] * x * y * z,
                C3[2] * y * (4 * zz - xx - yy),
                C3[3] * z * (2 * zz - 3 * xx - 3 * yy),
                C3[4] * x * (4 * zz - xx - yy),
                C3[5] * z * (xx - yy),
                C3[6] * x * (xx - 3 * yy),
            ]
    return np.stack(parts, axis=-1)


def basis_jacobian(direction: Array, degree: int) -> Array:
    """The derivative of the basis [..., (degree + 1)^2, 3] by the direction, its length not held."""
    x, y, z = np.moveaxis(np.asarray(direction, float), -1, 0)
    zero, one = np.zeros_like(x), np.ones_like(x)
    rows = [(zero, zero, zero)]
    if degree >= 1:
        rows += [(zero, -C1 * one, zero), (zero, zero, C1 * one), (-C1 * one, zero, zero)]
    if degree >= 2:
        rows += [
            (C2[0] * y, C2[0] * x, zero),
            (zero, C2[1] * z, C2[1] * y),
            (-2 * C2[2] * x, -2 * C2[2] * y, 4 * C2[2] * z),
            (C2[3] * z, zero, C2[3] * x),
            (2 * C2[4] * x, -2 * C2[4] * y, zero),
        ]
    if degree >= 3:
        xx, yy, zz = x * x, y * y, z * z
        rows += [
            (6 * C3[0] * x * y, 3 * C3[0] * (xx - yy), zero),
            (C3[1] * y * z, C3[1] * x * z, C3[1] * x * y),
            (-2 * C3[2] * x * y, C3[2] * (4 * zz - xx - 3 * yy), 8 * C3[2] * y * z),
            (-6 * C3[3] * x * z, -6 * C3[3] * y * z, 3 * C3[3] * (2 * zz - xx - yy)),
            (C3[4] * (4 * zz - 3 * xx - yy), -2 * C3[4] * x * y, 8 * C3[4] * x * z),
            (2 * C3[5] * x * z, -2 * C3[5] * y * z, C3[5] * (xx - yy)),
            (3 * C3[6] * (xx - yy), -6 * C3[6] * x * y, zero),
        ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def colour(sh: Array, direction: Array) -> Array:
    """Colours [n, 3] of coefficients [n, (degree + 1)^2, 3] seen along unit directions [n, 3]."""
    weights = basis(direction, degree_of(sh.shape[-2]))
    return np.maximum(0.5 + np.einsum("...k,...kc->...c", weights, np.asarray(sh, float)), 0.0)


def rotation(matrix: Array, degree: int) -> Array:
    """The matrix by which coefficients [(degree + 1)^2] change under a rotation matrix.

    A rotated body has along d the colour that it had along matrix^T d. Each band is mapped onto itself, so its
    matrix follows from as many directions as the band has harmonics; more are taken, and the system is solved.
    """
    out = np.zeros(((degree + 1) ** 2,) * 2)
    directions = _sphere_directions(32)
    after, before = basis(directions, degree), basis(directions @ np.asarray(matrix, float), degree)
    for band in range(degree + 1):
        rows = slice(band * band, (band + 1) ** 2)
        out[rows, rows] = np.linalg.lstsq(after[:, rows], before[:, rows], rcond=None)[0]
    return out


def rotated(sh: Array, matrix: Array) -> Array:
    """Coefficients [n, (degree + 1)^2, 3] under a rotation matrix."""
    degree = degree_of(sh.shape[-2])
    if degree == 0:
        return sh
    return np.einsum("ij,njc->nic", rotation(matrix, degree), sh).astype(sh.dtype, copy=False)


def _sphere_directions(n: int) -> Array:
    """n directions spread over the sphere, on a golden spiral."""
    k = np.arange(n) + 0.5
    height = 1 - 2 * k / n
    turn = math.pi * (1 + 5**0.5) * k
    ring = np.sqrt(1 - height**2)
    return np.stack([ring * np.cos(turn), ring * np.sin(turn), height], axis=-1)
