"""Peer of automatic identification: a straight script around `scipy.optimize.least_squares`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from scipy.optimize import least_squares

from instep.core.episode import Episode
from instep.core.world import Array, Simulator
from instep.tune.fit.windows import Shooter, cut_windows
from instep.tune.param_selection import ParamSelection

LONGEST_S, MOST = 10.0, 64
"""Length of a stretch that is simulated [s], and how many there are."""
LARGEST = 10.0
"""Residual of a row after a divergence [rad or m]."""
STEP = 1e-3
"""Finite differences, as a share of the ranges."""


class _TimeIsUpError(Exception):
    """The time of the script is over."""


def straight_fit(
    sim: Simulator, episodes: Sequence[Episode], selection: ParamSelection, seconds: float
) -> dict[str, float]:
    """What a plain script finds in some seconds of the processor, from the scene's own values.

    Parameters and their ranges are those of the automatic selection. As in mujoco.sysid, each recording is simulated
    from its first row, and all positions are residuals. The batched simulation of instep is used, so that time goes
    into steps alone. The best point until then is returned.
    """
    ends, (low, high) = time.process_time() + seconds, (1e-3, 1 - 1e-3)
    span = min(max(len(e) for e in episodes) - 1, round(LONGEST_S / sim.spec.dt))
    shooter = Shooter(sim, cut_windows(sim, episodes, span=span, limit=MOST), selection.params)
    first = np.clip([float(p.to_unit(selection.initial[p.address])) for p in selection.params], 2 * low, 1 - 2 * low)
    best = (np.inf, first)

    def residuals(points: Array) -> Array:
        nonlocal best
        if time.process_time() > ends:
            raise _TimeIsUpError
        rows = shooter(points)[..., shooter.windows.tangent.measured].reshape(len(points), -1)
        rows = np.clip(np.nan_to_num(rows, nan=LARGEST), -LARGEST, LARGEST)
        costs = (rows**2).sum(axis=1)
        if costs.min() < best[0]:
            best = (float(costs.min()), points[int(np.argmin(costs))])
        return rows

    def jacobian(x: Array) -> Array:
        steps = np.where(x + STEP > high, -STEP, STEP)
        rows = residuals(np.concatenate([x[None], x + np.diag(steps)]))
        return ((rows[1:] - rows[0]) / steps[:, None]).T

    with suppress(_TimeIsUpError):
        least_squares(lambda x: residuals(x[None])[0], first, jac=jacobian, bounds=(low, high), x_scale="jac")
    return {p.address: float(p.from_unit(best[1][i])) for i, p in enumerate(selection.params)}
