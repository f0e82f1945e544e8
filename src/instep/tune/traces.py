"""Held-out motion beside what the simulator makes of it, before and after it was tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array, Simulator

from .shoot import Shooter
from .windows import cut


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """Windows of held-out recordings, all as motion since the start of the window [windows, span, channels]."""

    names: tuple[str, ...]
    """Of the channels."""
    units: tuple[str, ...]
    measured: Array
    predicted: Mapping[str, Array]
    """By the name of the setting; NaN after a divergence."""
    inside: Array
    """Which rows exist [windows, span]."""
    dt: float

    def errors(self, name: str) -> Array:
        """Root mean square error of each window under a setting, channels scaled by their motion [windows]."""
        scale = np.maximum(np.sqrt((self.measured**2).mean(axis=(0, 1))), 1e-12)
        square = ((self.predicted[name] - self.measured) / scale) ** 2
        rows = np.where(self.inside, square.mean(axis=-1), 0.0)
        return np.sqrt(rows.sum(axis=1) / np.maximum(self.inside.sum(axis=1), 1))


def traced(
    sim: Simulator,
    episodes: Sequence[Episode],
    settings: Mapping[str, Mapping[str, float]],
    span: int,
    *,
    skip: int = 0,
    limit: int = 64,
) -> Traces:
    """Replay windows of recordings under each of some settings, from starts as measured."""
    windows = cut(sim, episodes, span=span, skip=skip, limit=limit)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.seen]
    predicted = {
        name: motion + Shooter(sim.tuned(values) if values else sim, windows, ())(np.zeros((1, 0)))[0][..., form.seen]
        for name, values in settings.items()
    }
    names = tuple(label for label, seen in zip(form.labels, form.seen, strict=True) if seen)
    units = {label: unit.removesuffix("/s") for label, unit in zip(sim.spec.v.labels, sim.spec.v.units, strict=True)}
    return Traces(names, tuple(units[name] for name in names), motion, predicted, windows.inside, sim.spec.dt)
