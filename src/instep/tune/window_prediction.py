"""Prediction of one window at several values of the parameters, and its derivatives, in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.param import Param
from instep.core.world import Array, Simulator

from .parameter_filter import WindowEvidence
from .windows import Shooter, Windows

BINS = 5
"""Parts of a window over which its error is averaged."""
DIFFERENCE_STEP = 0.02
"""Step of finite differences, in unit coordinates."""
CONTACT_SAMPLES = 5
"""Rows of a window at which contacts are looked for."""


class WindowPredictor:
    """A simulator that predicts windows; where nothing touches, without contacts, which is about twice as fast."""

    def __init__(self, sim: Simulator, params: Sequence[Param]):
        self._sim, self._params = sim, tuple(params)
        self._free: Any = getattr(sim, "without_contacts", lambda: None)()  # a MujocoWorld has it

    def evidence(self, window: Windows, x: Array, others: Sequence[Array] = ()) -> tuple[WindowEvidence, Array] | None:
        """What a window says at a point [params], and the errors of other points [others, channels, bins].

        None where the simulation diverges at the point or next to it.
        """
        n = len(x)
        low, high = np.maximum(x - DIFFERENCE_STEP, 0.0), np.minimum(x + DIFFERENCE_STEP, 1.0)
        points = np.tile(x, (1 + 2 * n, 1))
        points[1 + np.arange(n), np.arange(n)] = low
        points[1 + n + np.arange(n), np.arange(n)] = high
        errors = self.errors(window, np.concatenate([points, *(other[None] for other in others)]))
        if not np.isfinite(errors[: 1 + 2 * n]).all():
            return None
        # Errors are measured less predicted: where a prediction rises the error falls.
        slope = (errors[1 : 1 + n] - errors[1 + n : 1 + 2 * n]) / (high - low)[:, None, None]
        return WindowEvidence(x.copy(), errors[0], slope), errors[1 + 2 * n :]

    def errors(self, window: Windows, points: Array) -> Array:
        """Measured less predicted at some points [points, params], in bins: [points, channels, bins]."""
        sim = self._sim if self._free is None or self._touches(window) else self._free
        residual = Shooter(sim, window, self._params)(points)[:, 0]
        return -binned(residual[..., window.tangent.measured])

    def _touches(self, window: Windows) -> bool:
        sim: Any = self._sim  # a MujocoWorld, which counts its contacts
        at = np.linspace(0, window.target.shape[1] - 1, CONTACT_SAMPLES, dtype=int)
        rows = window.target[0, at]
        state = sim.place(rows, np.zeros((len(rows), window.v.shape[-1])))
        return bool(np.asarray(sim.contacts(state)).any())


def binned(residual: Array) -> Array:
    """Means over equal parts of a window: [points, span, channels] to [points, channels, bins]."""
    span = residual.shape[1]
    edges = np.linspace(0, span, min(BINS, span) + 1, dtype=int)
    sums = np.add.reduceat(residual, edges[:-1], axis=1) / np.diff(edges)[None, :, None]
    return np.swapaxes(sums, 1, 2)
