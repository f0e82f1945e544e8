"""How far two tips are apart: metres and radians, kept apart."""

from __future__ import annotations

import numpy as np

from instep.core.world import Array


def position_error(sim: Array, real: Array) -> Array:
    """Distances [...] [m] of poses or positions [..., 3 or 7]."""
    return np.linalg.norm(np.asarray(sim, float)[..., :3] - np.asarray(real, float)[..., :3], axis=-1)


def orientation_error(sim: Array, real: Array) -> Array:
    """Angles [...] [rad] between rotation matrices [..., 3, 3], sound at 0 and at pi.

    Re = sim^T real, v = vee(Re - Re^T) / 2, angle = atan2(|v|, (tr Re - 1) / 2); an arccosine alone would lose half
    of all digits near 0.
    """
    between = np.swapaxes(np.asarray(sim, float), -1, -2) @ np.asarray(real, float)
    skew = between - np.swapaxes(between, -1, -2)
    v = 0.5 * np.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], axis=-1)
    trace = between[..., 0, 0] + between[..., 1, 1] + between[..., 2, 2]
    return np.arctan2(np.linalg.norm(v, axis=-1), 0.5 * (trace - 1))


def simpler_pose_loss(sim: Array, real: Array) -> Array:
    """SIMPLER's pose loss of transforms [..., 4, 4], to be quoted under its name only.

    |dp| + asin(|R1 - R2|_F / (2 sqrt 2)) adds metres to radians, and its second term is half the angle.
    """
    sim, real = np.asarray(sim, float), np.asarray(real, float)
    chord = np.linalg.norm(sim[..., :3, :3] - real[..., :3, :3], axis=(-2, -1))
    return position_error(sim[..., :3, 3], real[..., :3, 3]) + np.arcsin(np.clip(chord / (2 * np.sqrt(2)), 0, 1))
