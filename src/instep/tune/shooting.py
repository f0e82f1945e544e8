"""Simulation of every candidate setting over every window in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from instep.core.param import Param
from instep.core.replay import rollout_positions
from instep.core.world import Array, Simulator

from .windows import Windows

BATCH = 16384
"""Most worlds stepped in one call; more are done in turns."""


@dataclass(slots=True)
class Shooter:
    """A simulator, the windows it must predict, and the parameters that are set."""

    sim: Simulator
    windows: Windows
    params: Sequence[Param]
    worlds: int = field(default=0)
    """Windows simulated so far."""

    def __call__(self, points: Array, starts: Array | None = None) -> Array:
        """What is predicted minus what was measured [candidates, windows, span, nv]; NaN after a divergence.

        Rows after the end of a window are zero.
        `points` are params in unit coordinates [candidates, params]; `starts` shift each window's start, positions
        then velocities [candidates, windows, 2 nv].
        """
        candidates, n = len(points), len(self.windows)
        per_call = max(1, BATCH // n)
        out = [
            self._batch(points[i : i + per_call], None if starts is None else starts[i : i + per_call])
            for i in range(0, candidates, per_call)
        ]
        self.worlds += candidates * n
        return np.concatenate(out)

    def settings(self, points: Array) -> dict[str, Array]:
        """Unit coordinates [..., parameters] as values by address."""
        return {param.address: param.from_unit(points[..., i]) for i, param in enumerate(self.params)}

    def _batch(self, points: Array, starts: Array | None) -> Array:
        w, candidates = self.windows, len(points)
        out = np.zeros((candidates, *w.target.shape[:2], w.v.shape[-1]))
        for picked, rows in self._lengths():
            out[:, picked, :rows] = self._residuals(points, None if starts is None else starts[:, picked], picked, rows)
        return out

    def _lengths(self) -> list[tuple[Array, int]]:
        """Windows in groups of about the same length, and how many rows of each group are simulated."""
        span = self.windows.inside.shape[1]
        ends = span - np.argmax(self.windows.inside[:, ::-1], axis=1)
        ends = np.where(self.windows.inside.any(axis=1), ends, 1)
        quarter = np.ceil(4 * ends / span)
        return [(picked := np.flatnonzero(quarter == q), int(ends[picked].max())) for q in np.unique(quarter)]

    def _residuals(self, points: Array, starts: Array | None, picked: Array, rows: int) -> Array:
        """Residuals of some windows [candidates, picked, rows, nv]."""
        w, n, candidates = self.windows, len(picked), len(points)
        each = {name: np.repeat(values, n) for name, values in self.settings(points).items()}
        q, v = np.tile(w.q[picked], (candidates, 1)), np.tile(w.v[picked], (candidates, 1))
        if starts is not None:
            size = v.shape[-1]
            shift = starts.reshape(-1, 2 * size)
            q, v = w.tangent.plus(q, shift[:, :size]), v + shift[:, size:]
        past = np.tile(w.past[picked], (candidates, *[1] * (w.past.ndim - 1)))
        sim = tuned(self.sim, each)
        paths = rollout_positions(sim, sim.place(q, v, 0.0, past), np.moveaxis(w.action[picked, :rows], 1, 0))
        return w.tangent.minus(paths.reshape(candidates, n, *paths.shape[1:]), w.target[picked, :rows])


def tuned(sim: Simulator, each: Mapping[str, Array]) -> Simulator:
    """The simulator with one value per world, or unchanged where nothing is set."""
    return sim.tuned(each) if each else sim
