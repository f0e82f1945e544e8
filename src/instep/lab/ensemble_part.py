"""Ensemble Kalman inversion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.world import Array, Simulator, options_dataclass
from instep.tune.fit.uncertainty import correlation_time
from instep.tune.fit.windows import Shooter, Windows, cut_windows
from instep.tune.posterior.beliefs import SampleBelief, assimilate


@options_dataclass
class EnsembleOptions:
    """Options of an ensemble posterior."""

    members: int = 64
    steps: int = 4
    """Kalman steps, among which the recording is split."""
    window_s: float = 0.5
    """Length of a window [s]."""
    windows: int = 16
    """Most windows used, evenly spaced."""
    seed: int = 0


def ensemble_posterior(
    sim: Simulator, episodes: Sequence[Episode], params: Sequence[Param], options: EnsembleOptions | None = None
) -> SampleBelief:
    """Samples of parameters inside their ranges that predict the windows of recordings."""
    options = options or EnsembleOptions()
    if not params or options.members < 4 or options.steps < 1:
        raise BadInput("An ensemble posterior needs parameters, at least 4 members and at least 1 step.")
    span = max(2, round(options.window_s / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, limit=options.windows)
    if not len(windows):
        raise BadInput(f"The recordings hold no window of {options.window_s:g} s; record longer ones.")
    shooter, rng = Shooter(sim, windows, tuple(params)), np.random.default_rng((options.seed, 0xE45))
    points = rng.random((options.members, len(params)))
    for _ in range(options.steps):
        points = assimilate(points, _whitened(shooter(points), windows), float(options.steps), rng)
    return SampleBelief(tuple(params), points)


def _whitened(residual: Array, windows: Windows) -> Array:
    """Residuals in deviations of the noise [members, rows]; those that diverged are not finite."""
    measured = residual[..., windows.tangent.measured]
    size = np.maximum(np.nanmedian(np.abs(measured), axis=(0, 1, 2)), windows.noise_q[windows.tangent.measured] + 1e-9)
    scaled = measured / size  # [members, windows, span, directions]
    power = np.where(np.isfinite(scaled).all(axis=(1, 2, 3)), (scaled**2).mean(axis=(1, 2, 3)), np.inf)
    best = scaled[int(np.argmin(power))]
    steps = correlation_time(best)
    # Errors of the model repeat: windows do not average out the share 1 - 1 / steps that is correlated in time.
    repeated = 1 + (len(windows) - 1) * (1 - 1 / steps)
    noise = max(float(power.min()), 1e-9) * steps * repeated
    return scaled.reshape(len(scaled), -1) / np.sqrt(noise)
