"""Align the colours of a renderer with those of a real camera.

One quadratic across channels, c_real = A [c^2; c] + b with A 3 x 6, fitted to pixel pairs by least squares with Tukey's
weights, so that moving things and highlights in one of the two pictures do not bend it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

_TUKEY = 4.685
"""Residuals beyond this many standard deviations do not count."""


@dataclass(frozen=True, slots=True, eq=False)
class ColourMap:
    """A map of colours 0 to 1."""

    matrix: Array
    """[3, 6], of the squares and then the values of red, green, blue."""
    offset: Array
    """[3]."""

    def __call__(self, colour: Array) -> Array:
        """The colours [..., 3] as the real camera would show them."""
        colour = np.asarray(colour, float)
        features = np.concatenate([colour**2, colour], axis=-1)
        return np.clip(features @ self.matrix.T + self.offset, 0.0, 1.0)


def unchanged() -> ColourMap:
    """The map that changes nothing."""
    return ColourMap(np.hstack([np.zeros((3, 3)), np.eye(3)]), np.zeros(3))


def align_colours(rendered: Array, real: Array, mask: Array | None = None, *, rounds: int = 50) -> ColourMap:
    """Fit the map from rendered to real colours [..., 3], 0 to 1, over the pixels of a mask."""
    chosen = np.ones(rendered.shape[:-1], bool) if mask is None else mask
    x, y = np.asarray(rendered, float)[chosen], np.asarray(real, float)[chosen]
    if len(x) < 100:
        raise BadInput(f"Aligning colours needs at least 100 pairs of pixels, and {len(x)} were given.")
    features = np.column_stack([x**2, x, np.ones(len(x))])
    bright = np.linalg.norm(y, axis=1)
    weight = bright / max(float(bright.max()), 1e-6)
    ridge = 1e-6 * len(x) * np.eye(7)
    solution = np.zeros((7, 3))
    for channel in range(3):
        robust, last, now = np.ones(len(x)), np.zeros(7), np.zeros(7)
        for _ in range(rounds):
            scaled = features * (weight * robust)[:, None]
            now = np.linalg.solve(scaled.T @ features + ridge, scaled.T @ y[:, channel] + ridge @ _IDENTITY[channel])
            residual = y[:, channel] - features @ now
            spread = max(1.4826 * float(np.median(np.abs(residual - np.median(residual)))), 1e-6)
            robust = np.maximum(1 - (residual / (_TUKEY * spread)) ** 2, 0.0) ** 2
            if np.abs(now - last).max() < 1e-6:
                break
            last = now
        solution[:, channel] = now
    return ColourMap(solution[:6].T, solution[6])


_IDENTITY = np.eye(7)[3:6]
"""Where the ridge pulls to when the pixels cannot tell: the map that changes nothing."""
