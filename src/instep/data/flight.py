"""Velocities of a body that is thrown: one fit to the whole flight instead of differences of neighbouring rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.poses import quat_inv, quat_log, quat_mul, rotate
from instep.core.world import Array

from .resample import quaternions

FEWEST, MOST = 4, 14
"""Rows of a flight that are fitted."""
OFF, TURNED = 2e-3, 0.03
"""How far positions [m] and turns [rad] may lie from the fit while a body still flies; a contact moves them further."""


def flown(
    t: Array, q: Array, v: Array, labels: Sequence[str], gravity: float, centre: Sequence[float] = (0.0, 0.0, 0.0)
) -> Array:
    """Velocities with those of the first flight replaced: r = r0 + v0 t - g t^2 / 2, and a steady turn.

    It is the centre of mass that flies so, given in the body's frame [m]; what is tracked turns about it. A body with
    equal inertias about all axes keeps its angular velocity in flight. The flight is as many of the first rows as one
    such motion explains. Smoothed recordings give velocities that lag, and a start that is off by a hundredth grows
    with every bounce.
    """
    out = np.array(v, float)
    for place in quaternions(labels):
        if place.start < 3:
            continue
        first = q[: MOST + 1]
        arm, turn = rotate(first[:, place], np.asarray(centre, float)), _turned(first[:, place])
        position = first[:, place.start - 3 : place.start] + arm
        for n in range(min(MOST, len(q)), FEWEST - 1, -1):
            time = t[:n] - t[0]
            rows = np.stack([np.ones(n), time], axis=1)
            lifted = position[:n] + np.array([0.0, 0.0, 0.5 * gravity]) * time[:, None] ** 2
            both = np.concatenate([lifted, turn[:n]], axis=1)
            fit = np.linalg.lstsq(rows, both, rcond=None)[0]
            off = np.abs(both - rows @ fit).max(axis=0)
            if n == FEWEST or (off[:3].max() <= OFF and off[3:].max() <= TURNED):
                start = place.start - 3 - quaternions(labels).index(place)
                out[:n, start : start + 6] = fit[1]
                out[:n, start + 2] -= gravity * time
                out[:n, start : start + 3] -= np.cross(rotate(first[:n, place], fit[1, 3:]), arm[:n])
                break
    return out


def _turned(quats: Array) -> Array:
    """Turns since the first row, in the body's frame [rows, 3]."""
    return quat_log(quat_mul(quat_inv(quats[:1]), quats))
