"""Whether a scene describes the robot whose parameters are to be followed: its errors against those of no model at all.

Re-identification follows parameters that are nearly right. Where gains, inertia or delay are far from the robot's, the
errors of the first windows are taken for noise, and the first unusual motion for a sudden change. The scene is compared
with joints that keep the speed they have: a scene that predicts half of them hardly better does not describe the robot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from instep.core.records import frozen_dataclass
from instep.core.world import Array

from .parameter_filter import WindowEvidence
from .window_prediction import BINS, binned
from .windows import Windows

MAX_SHARE = 0.7
"""Error of a scene over that of joints that keep their speed, in the median, from which on it does not describe the
robot. Identified scenes are at 0.01 to 0.15, and that of a cable-driven arm with friction that no model has at 0.4."""
MIN_NOISE_FACTOR = 10.0
"""How many times its noise a joint must leave the motion at constant speed to be judged."""
DIFFERENCES = 3
"""Differences of readings that leave their noise: motion is nearly a parabola over so few rows."""


@frozen_dataclass
class SceneMismatch:
    """How far a scene is from its robot."""

    share: float
    """Error over that of a joint that keeps its speed, the median over joints that moved."""
    joint: str
    """The joint that is described worst."""
    error: float
    """Root mean square of its errors [rad or m]."""
    noise: float
    """Standard deviation of its readings [rad or m]."""

    def __str__(self) -> str:
        noise = f", {self.error / self.noise:.0f} times the noise of its readings" if self.noise > 0 else ""
        return (
            f"The scene does not describe this robot: its errors are {self.share:.1f} times those of joints that keep "
            f"their speed, in the median (worst is {self.joint!r}, {self.error:.3g}{noise}). Identify it first with "
            "instep tune; until then nothing is estimated and no change is reported."
        )


def scene_mismatch(
    windows: Sequence[Windows], evidence: Sequence[WindowEvidence], x: Array, dt: float
) -> SceneMismatch | None:
    """How far a scene is from its robot; None where it describes it, or where nothing moved.

    Errors are those that the parameters leave at a point [params], so that what they can explain does not count.
    """
    left = _rms(np.stack([one.at(x) for one in evidence]))
    paths = [_displaced(window, dt) for window in windows]
    coasting = _rms(np.stack([binned(path[None])[0] for path in paths]))
    noise = np.median([_noise(path) for path in paths], axis=0)
    moved = coasting > MIN_NOISE_FACTOR * noise
    if not moved.any():
        return None
    shares = np.where(moved, left / np.maximum(coasting, 1e-12), 0.0)
    median, worst = float(np.median(shares[moved])), int(np.argmax(shares))
    if median <= MAX_SHARE:
        return None
    joint = windows[0].tangent.measured_labels[worst]
    return SceneMismatch(median, joint, float(left[worst]), float(noise[worst]))


def reading_variance(window: Windows, dt: float) -> Array:
    """Variance of the mean of the readings in a bin of a window [channels], from their differences."""
    path = _displaced(window, dt)
    return _noise(path) ** 2 * min(BINS, len(path)) / len(path)


def _displaced(window: Windows, dt: float) -> Array:
    """How far each measured direction gets from where it would be at constant speed [span, channels]."""
    span = window.target.shape[1]
    seconds = dt * np.arange(1.0, span + 1)
    moved = window.tangent.minus(window.target[0], window.q) - seconds[:, None] * window.v[0]
    return np.asarray(moved[:, window.tangent.measured])


def _noise(path: Array) -> Array:
    """Standard deviation of readings [channels]; zero where a window has too few rows to tell."""
    if len(path) <= DIFFERENCES + 1:
        return 0.0 * path[0]
    gain = math.sqrt(math.comb(2 * DIFFERENCES, DIFFERENCES))
    steps: Array = np.diff(path, DIFFERENCES, axis=0)
    return np.asarray(steps.std(axis=0), float) / gain


def _rms(errors: Array) -> Array:
    """Root mean square over windows and bins [windows, channels, bins] -> [channels]."""
    return np.asarray(np.sqrt(np.mean(errors**2, axis=(0, 2))))
