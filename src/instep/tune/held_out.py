"""Error of settings on held-out recordings, before and after identification, and the motion of single windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.episode import Episode
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Simulator

from .windows import Shooter, Windows, cut_windows


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutComparison:
    """Errors of two simulators over the same windows, in pairs."""

    before: Estimate
    """Root mean square error of the first simulator, channels scaled to unit error."""
    after: Estimate
    improvement: Estimate
    """Relative reduction of the error, by a paired block bootstrap."""
    channels: Mapping[str, tuple[float, float]]
    """Root mean square error by coordinate, before and after."""
    lost: int
    """Windows in which a simulator diverged, left out."""

    @property
    def better(self) -> bool:
        """Whether the error fell by at least 5 % and its interval excludes no reduction."""
        return self.improvement.value >= 0.05 and self.improvement.low > 0


def window_errors(
    sim: Simulator, episodes: Sequence[Episode], settings: Mapping[str, float], window: float, limit: int | None = 2000
) -> tuple[Array, Windows]:
    """Mean square error of each window and channel [windows, channels], from starts as measured; NaN if it diverged."""
    span = max(1, round(window / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, limit=limit)
    tuned = sim.tuned(settings) if settings else sim
    residual = Shooter(tuned, windows, ())(np.zeros((1, 0)))[0][..., windows.tangent.measured]
    count = windows.inside.sum(axis=1)[:, None]
    return np.where(windows.inside[..., None], residual**2, 0.0).sum(axis=1) / count, windows


def compare(
    before: Simulator, after: Simulator, episodes: Sequence[Episode], *, window: float = 1.0, seed: int = 0
) -> HeldOutComparison:
    """Replay held-out recordings in two simulators, window by window, and bootstrap whole blocks of windows."""
    first, windows = window_errors(before, episodes, {}, window)
    second, _ = window_errors(after, episodes, {}, window)
    sound = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    first, second, run = first[sound], second[sound], windows.run[sound]
    # Channels in different units weigh alike: each is scaled by its own error under the first setting.
    scale = np.maximum(first.mean(axis=0), 1e-300)
    blocks = _blocks(run)
    pairs = np.array([[(first[b] / scale).mean(axis=1).sum(), (second[b] / scale).mean(axis=1).sum()] for b in blocks])
    sizes = np.array([len(b) for b in blocks], float)
    rng = np.random.default_rng((seed, 0xB10C))
    picks = rng.integers(0, len(blocks), (2000, len(blocks)))
    weight = sizes[picks].sum(axis=1)
    drawn = np.sqrt(pairs[picks].sum(axis=1) / weight[:, None])
    gain = 1 - drawn[:, 1] / drawn[:, 0]
    point = np.sqrt(pairs.sum(axis=0) / sizes.sum())
    low, high = np.quantile(gain, [0.025, 0.975])
    names = windows.tangent.measured_labels
    channels = {
        name: (float(np.sqrt(first[:, i].mean())), float(np.sqrt(second[:, i].mean()))) for i, name in enumerate(names)
    }
    return HeldOutComparison(
        bootstrap(pairs[:, 0] / sizes, lambda d: np.sqrt(d.mean(axis=-1)), unit="1", seed=seed),
        bootstrap(pairs[:, 1] / sizes, lambda d: np.sqrt(d.mean(axis=-1)), unit="1", seed=seed),
        Estimate(float(1 - point[1] / point[0]), float(low), float(high), len(blocks), "1"),
        channels,
        int((~sound).sum()),
    )


def _blocks(run: Array) -> list[Array]:
    """Whole runs where there are at least five, else groups of neighbouring windows."""
    runs = [np.flatnonzero(run == r) for r in np.unique(run)]
    if len(runs) >= 5:
        return runs
    return [part for r in runs for part in np.array_split(r, max(1, min(len(r), 10 // len(runs)))) if len(part)]


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """Windows of held-out recordings, all as motion since the start of the window [windows, span, channels]."""

    names: tuple[str, ...]
    """Of the channels."""
    units: tuple[str, ...]
    measured: Array
    predicted: Mapping[str, Array]
    """By the name of the simulator; NaN after a divergence."""
    inside: Array
    """Which rows exist [windows, span]."""
    dt: float

    def errors(self, name: str) -> Array:
        """Root mean square error of each window under a setting, channels scaled by their motion [windows]."""
        scale = np.maximum(np.sqrt((self.measured**2).mean(axis=(0, 1))), 1e-12)
        square = ((self.predicted[name] - self.measured) / scale) ** 2
        rows = np.where(self.inside, square.mean(axis=-1), 0.0)
        return np.sqrt(rows.sum(axis=1) / np.maximum(self.inside.sum(axis=1), 1))


def held_out_traces(
    sims: Mapping[str, Simulator], episodes: Sequence[Episode], span: int, *, skip: int = 0, limit: int = 64
) -> Traces:
    """Replay windows of recordings in each of some simulators, by name, from starts as measured."""
    sim = next(iter(sims.values()))
    windows = cut_windows(sim, episodes, span=span, skip=skip, limit=limit)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.measured]
    predicted = {
        name: motion + Shooter(one, windows, ())(np.zeros((1, 0)))[0][..., form.measured] for name, one in sims.items()
    }
    names = form.measured_labels
    units = {label: unit.removesuffix("/s") for label, unit in zip(sim.spec.v.labels, sim.spec.v.units, strict=True)}
    return Traces(names, tuple(units[name] for name in names), motion, predicted, windows.inside, sim.spec.dt)
