"""Error of settings on held-out recordings, before and after identification, and the motion of single windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Simulator, array_dataclass

from .fit.windows import Shooter, Windows, cut_windows

MIN_IMPROVEMENT = 0.05
"""Share by which the error on held-out recordings must fall."""
MAX_PREDICTABLE_ERROR = 0.7
"""Error over whole runs, as a share of a channel's motion, above which they say nothing about the parameters."""


@array_dataclass
class HeldOutComparison:
    """Errors of two simulators over the same windows and over whole runs, in pairs."""

    before: Estimate
    """Root mean square error of the first simulator, channels scaled to unit error."""
    after: Estimate
    improvement: Estimate
    """Relative reduction of the error, by a paired block bootstrap."""
    channels: Mapping[str, tuple[float, float]]
    """Root mean square error by coordinate, before and after."""
    lost: int
    """Windows in which a simulator diverged, left out."""
    diverged: int = 0
    """Windows and whole runs in which the second simulator diverged and the first did not."""
    open_loop: Estimate | None = None
    """Relative reduction of the error over whole runs; None where neither simulator predicts them."""

    @property
    def better(self) -> bool:
        """Whether the error fell by at least 5 % with an interval above 0, and is not larger over whole runs."""
        return self.improvement.value >= MIN_IMPROVEMENT and self.improvement.low > 0 and not self.worse_over_whole_runs

    @property
    def worse_over_whole_runs(self) -> bool:
        """Whether the second simulator predicts whole runs worse than the first, or diverged where it did not."""
        return self.diverged > 0 or (self.open_loop is not None and not self.open_loop.value >= 0)


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
    """Replay held-out recordings in two simulators, in windows and in whole runs, and bootstrap blocks of windows."""
    rows = max(len(e) for e in episodes) - 1
    span = min(rows, max(1, round(window / before.spec.dt)))
    windows, whole = (_errors(before, after, episodes, n * before.spec.dt) for n in (span, rows))
    first, second, run = windows.first[windows.sound], windows.second[windows.sound], windows.run[windows.sound]
    names, lost = windows.names, int((~windows.sound).sum())
    if len(windows.run) < 2:
        raise BadInput(
            "Recordings held out give one window only; use a shorter --window or hold out more (--held-out)."
        )
    diverged = windows.diverged + whole.diverged
    if not len(run):
        unknown = Estimate(nan, nan, nan, 0, "1")
        return HeldOutComparison(unknown, unknown, unknown, dict.fromkeys(names, (nan, nan)), lost, diverged)
    # Channels in different units weigh alike: each is scaled by its own error under the first setting.
    scale = np.maximum(first.mean(axis=0), 1e-300)
    blocks = _blocks(run)
    pairs = np.array([[(part[b] / scale).mean(axis=1).sum() for part in (first, second)] for b in blocks])
    sizes = np.array([len(b) for b in blocks], float)
    channels = {
        name: (float(np.sqrt(first[:, i].mean())), float(np.sqrt(second[:, i].mean()))) for i, name in enumerate(names)
    }
    return HeldOutComparison(
        bootstrap(pairs[:, 0] / sizes, lambda d: np.sqrt(d.mean(axis=-1)), unit="1", seed=seed),
        bootstrap(pairs[:, 1] / sizes, lambda d: np.sqrt(d.mean(axis=-1)), unit="1", seed=seed),
        relative_reduction(pairs, sizes, seed),
        channels,
        lost,
        diverged,
        _open_loop(whole, seed),
    )


@array_dataclass
class _PairedErrors:
    """Mean square errors of two simulators over the same windows [windows, channels]."""

    first: Array
    second: Array
    run: Array
    motion: Array
    """Variance of the measured motion since the start of a window [channels]."""
    names: tuple[str, ...]

    @property
    def sound(self) -> Array:
        """Windows in which neither simulator diverged."""
        return np.asarray(np.isfinite(np.concatenate([self.first, self.second], axis=1)).all(axis=1))

    @property
    def diverged(self) -> int:
        """Windows in which only the second simulator diverged."""
        return int((np.isfinite(self.first).all(axis=1) & ~np.isfinite(self.second).all(axis=1)).sum())


def _errors(before: Simulator, after: Simulator, episodes: Sequence[Episode], window: float) -> _PairedErrors:
    first, windows = window_errors(before, episodes, {}, window)
    second, _ = window_errors(after, episodes, {}, window)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.measured][windows.inside]
    return _PairedErrors(first, second, windows.run, motion.var(axis=0), form.measured_labels)


def relative_reduction(pairs: Array, sizes: Array, seed: int) -> Estimate:
    """Relative reduction of the root mean square error from one column to the other, whole blocks resampled."""
    rng = np.random.default_rng((seed, 0xB10C))
    picks = rng.integers(0, len(pairs), (2000, len(pairs)))
    resampled = np.sqrt(pairs[picks].sum(axis=1) / sizes[picks].sum(axis=1)[:, None])
    low, high = np.quantile(1 - resampled[:, 1] / resampled[:, 0], [0.025, 0.975])
    point = np.sqrt(pairs.sum(axis=0) / sizes.sum())
    return Estimate(float(1 - point[1] / point[0]), float(low), float(high), len(pairs), "1")


def _open_loop(whole: _PairedErrors, seed: int) -> Estimate | None:
    """Relative reduction of the error over whole runs, in the channels that either simulator predicts; None without.

    Open loop, a chaotic motion is lost after a while under any parameters: then only windows compare.
    """
    first, second = whole.first[whole.sound], whole.second[whole.sound]
    if not len(first):
        return None
    least = np.minimum(first.mean(axis=0), second.mean(axis=0))
    predicted = least < MAX_PREDICTABLE_ERROR**2 * whole.motion
    if not predicted.any():
        return None
    first, second = first[:, predicted], second[:, predicted]
    scale = np.maximum(first.mean(axis=0), 1e-300)
    pairs = np.stack([(first / scale).mean(axis=1), (second / scale).mean(axis=1)], axis=1)
    return relative_reduction(pairs, np.ones(len(pairs)), seed)


def _blocks(run: Array) -> list[Array]:
    """Whole runs where there are at least five, else groups of neighbouring windows."""
    runs = [np.flatnonzero(run == r) for r in np.unique(run)]
    if len(runs) >= 5:
        return runs
    return [part for r in runs for part in np.array_split(r, max(1, min(len(r), 10 // len(runs)))) if len(part)]


@array_dataclass
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
