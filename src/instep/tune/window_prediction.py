"""Prediction of one window at several values of the parameters, and its derivatives, in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.param import Param
from instep.core.replay import rollout_positions
from instep.core.world import Array
from instep.scene import address
from instep.scene.folder import SceneSimulator

from .parameter_filter import WindowEvidence
from .windows import Windows, tuned

BINS = 5
"""Parts of a window over which its error is averaged."""
DIFFERENCE_STEP = 0.02
"""Step of finite differences, in unit coordinates."""
CONTACT_SAMPLES = 5
"""Rows of a window at which contacts are looked for."""


class WindowPredictor:
    """A simulator that predicts windows; where nothing touches, without contacts, which is about twice as fast.

    A delay of commands among the parameters moves the commands between the rows of a window: simulators count delays in
    steps of physics, and no derivative can be taken of that.
    """

    def __init__(self, sim: SceneSimulator, params: Sequence[Param], central: int | None = None):
        """The derivatives by the first `central` parameters are central differences (of all where None), those by the
        others are one-sided, at half the cost."""
        self._sim, self._params = sim, tuple(params)
        self._delay = address.read(sim.model, [address.DELAY])[address.DELAY] if sim.model.nu else 0.0
        self._central = len(self._params) if central is None else central
        self._free: Any = getattr(sim, "without_contacts", lambda: None)()  # a MujocoWorld has it

    def evidence(self, window: Windows, x: Array, others: Sequence[Array] = ()) -> tuple[WindowEvidence, Array] | None:
        """What a window says at a point [params], and the errors of other points [others, channels, bins].

        None where the simulation diverges at the point or next to it.
        """
        n, two = len(x), self._central
        step = np.where(x + DIFFERENCE_STEP <= 1.0, DIFFERENCE_STEP, -DIFFERENCE_STEP)
        low = np.clip(x[:two] - step[:two], 0.0, 1.0)
        points = np.tile(x, (1 + n + two, 1))
        points[1 + np.arange(n), np.arange(n)] += step
        points[1 + n + np.arange(two), np.arange(two)] = low
        errors = self.errors(window, np.concatenate([points, *(other[None] for other in others)]))
        if not np.isfinite(errors[: 1 + n + two]).all():
            return None
        width, against = step.copy(), np.repeat(errors[:1], n, axis=0)
        width[:two], against[:two] = points[1 + np.arange(two), np.arange(two)] - low, errors[1 + n : 1 + n + two]
        # Errors are measured less predicted: where a prediction rises the error falls.
        slope = (against - errors[1 : 1 + n]) / width[:, None, None]
        return WindowEvidence(x.copy(), errors[0], slope), errors[1 + n + two :]

    def errors(self, window: Windows, points: Array) -> Array:
        """Measured less predicted at some points [points, params], in bins: [points, channels, bins]."""
        return -binned(self.residual(window, points)[..., window.tangent.measured])

    def residual(self, window: Windows, points: Array) -> Array:
        """Predicted less measured at some points [points, span, directions]; NaN after a divergence."""
        sim = self._sim if self._free is None or self._touches(window) else self._free
        values = {param.address: param.from_unit(points[:, i]) for i, param in enumerate(self._params)}
        later = values.pop(address.DELAY, np.full(len(points), self._delay)) - self._delay
        past, action = _delayed(window.past[0], window.action[0], later / sim.spec.dt)
        tuned_sim, n = tuned(sim, values), len(points)
        state = tuned_sim.place(np.repeat(window.q, n, axis=0), np.repeat(window.v, n, axis=0), 0.0, past)
        paths = rollout_positions(tuned_sim, state, np.moveaxis(action, 1, 0))
        return window.tangent.minus(paths, window.target)

    def _touches(self, window: Windows) -> bool:
        sim: Any = self._sim  # a MujocoWorld, which counts its contacts
        at = np.linspace(0, window.target.shape[1] - 1, CONTACT_SAMPLES, dtype=int)
        rows = window.target[0, at]
        state = sim.place(rows, np.zeros((len(rows), window.v.shape[-1])))
        return bool(np.asarray(sim.contacts(state)).any())


def _delayed(past: Array, action: Array, periods: Array) -> tuple[Array, Array]:
    """Commands before a window [memory, nu] and in it [span, nu], each of several delays [n] later, between rows in
    proportion: a command that comes within a period acts for the rest of it."""
    rows = np.concatenate([past, action])
    at = np.clip(np.arange(len(rows)) - periods[:, None], 0, len(rows) - 1)
    whole = np.minimum(at.astype(int), len(rows) - 2)
    share = (at - whole)[..., None]
    moved = (1 - share) * rows[whole] + share * rows[whole + 1]
    return moved[:, : len(past)], moved[:, len(past) :]


def binned(residual: Array) -> Array:
    """Means over equal parts of a window: [points, span, channels] to [points, channels, bins]."""
    span = residual.shape[1]
    edges = np.linspace(0, span, min(BINS, span) + 1, dtype=int)
    sums = np.add.reduceat(residual, edges[:-1], axis=1) / np.diff(edges)[None, :, None]
    return np.swapaxes(sums, 1, 2)
