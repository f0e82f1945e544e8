"""Leave out what nobody could foresee: rows that the noise of a window's start alone carries too far.

Near an upright pendulum an error of a thousandth grows to a radian within a second. Such rows say nothing about params,
and as residuals they drown those that do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.world import Array, Simulator

from .windows import Windows

SHARE = 0.05
"""Share of a coordinate's travel by which noise of the start may move it before the rest of a window is left out."""
SLIGHT = 1e-4
"""How far states are moved to see how differences grow, and velocities likewise per second."""
BLOCK = 4096
"""Rows whose neighbours are simulated in one batch."""


def predictable_windows(sim: Simulator, windows: Windows, share: float = SHARE) -> Windows:
    """The windows, each only as far as the noise of its start stays below a share of the travel.

    Growth is taken along the measured motion, step by step, so it does not need the parameters to be right.
    """
    form, (n, span) = windows.tangent, windows.inside.shape
    measured = np.concatenate([windows.q[:, None], windows.target], axis=1)
    speed = form.minus(measured[:, 2:], measured[:, :-2]) / (2 * sim.spec.dt)
    velocity = np.concatenate([windows.v[:, None], speed], axis=1)
    travel = np.ptp(form.minus(windows.target, windows.q[:1, None])[windows.inside], axis=0)
    noise = np.concatenate([windows.noise_q, windows.noise_v])
    spread = np.broadcast_to(np.diag(noise), (n, len(noise), len(noise)))
    seen, half = form.seen, len(windows.noise_q)
    inside = windows.inside.copy()
    for row in range(span):
        spread = _growth(sim, windows, measured[:, row], velocity[:, row], windows.action[:, row]) @ spread
        off = np.sqrt((spread[:, :half] ** 2).sum(axis=-1))
        lost = (off > share * np.maximum(travel, 1e-9))[:, seen].any(axis=-1)
        inside[lost, row:] = False
        if not inside[:, row:].any():
            break
    return replace(windows, inside=inside)


def _growth(sim: Simulator, windows: Windows, q: Array, v: Array, action: Array) -> Array:
    """How differences of state grow over one control step at each row [n, 2 nv, 2 nv]."""
    form, nv = windows.tangent, v.shape[-1]
    steps = np.concatenate([np.zeros((1, 2 * nv)), SLIGHT * np.eye(2 * nv), -SLIGHT * np.eye(2 * nv)])
    size, k = max(1, BLOCK // len(steps)), 2 * nv
    parts = []
    for i in range(0, len(q), size):
        some = slice(i, i + size)
        at = form.plus(q[some, None], steps[:, :nv])
        speed = v[some, None] + steps[:, nv:]
        told = np.repeat(action[some], len(steps), axis=0)
        flat = sim.step(sim.place(at.reshape(-1, at.shape[-1]), speed.reshape(-1, nv)), told)
        new_q, new_v = flat.q.reshape(at.shape), flat.v.reshape(speed.shape)
        apart = np.concatenate(
            [form.minus(new_q[:, 1 : k + 1], new_q[:, k + 1 :]), new_v[:, 1 : k + 1] - new_v[:, k + 1 :]], axis=-1
        )
        parts.append(np.swapaxes(apart, -1, -2) / (2 * SLIGHT))
    return np.concatenate(parts)
