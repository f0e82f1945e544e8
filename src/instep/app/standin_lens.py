"""A stand-in's lens, light and noise in one compiled pass over a picture, so that cameras keep their rate."""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles the pass; its decorators have no types.

from __future__ import annotations

import numpy as np
from numba import njit

from instep.core.world import Array
from instep.physics.film import Look
from instep.scene.camera import Camera, distort

BANK = 4
"""Pictures of noise that are drawn; each frame takes one from another place."""
ROUNDS = 20
"""Rounds of the search for a pixel's ideal place; each gains a factor of the distortion."""


class Lens:
    """What a camera that is not perfect makes of a perfect picture."""

    def __init__(self, camera: Camera, look: Look, seed: int):
        x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
        bent = (np.stack([x, y], -1) - camera.centre) / camera.focal
        ideal = bent.copy()
        for _ in range(ROUNDS if any(camera.distortion) else 0):
            ideal = np.clip(bent - (distort(ideal, camera.distortion) - ideal), -100.0, 100.0)
        self._at: Array = (ideal * camera.focal + camera.centre - 0.5).astype(np.float32)
        rng, size = np.random.default_rng((seed, 0x1E)), camera.height * camera.width * 3
        self._noise: Array = rng.normal(0.0, look.sigma, BANK * size).astype(np.float32)
        self._starts: Array = rng.integers(0, (BANK - 1) * size, 4096)
        self._light: Array = np.asarray(look.gain * np.asarray(look.tint), np.float32)

    def shown(self, picture: Array, number: int) -> Array:
        """The picture as this camera shows it [height, width, 3]; the noise is that of the number."""
        start = int(self._starts[number % len(self._starts)])
        return _developed(picture, self._at, self._light, self._noise, start)


@njit(cache=True, nogil=True, error_model="numpy")
def _developed(picture, at, light, noise, start):  # pragma: no cover - compiled
    height, width = picture.shape[:2]
    out = np.empty_like(picture)
    for i in range(height):
        for j in range(width):
            x, y = at[i, j, 0], at[i, j, 1]
            inside = x >= 0 and y >= 0 and x <= width - 1 and y <= height - 1
            x0, y0 = min(max(int(x), 0), width - 2), min(max(int(y), 0), height - 2)
            fx, fy = x - x0, y - y0
            for c in range(3):
                value = 0.0
                if inside:
                    top = picture[y0, x0, c] * (1 - fx) + picture[y0, x0 + 1, c] * fx
                    bottom = picture[y0 + 1, x0, c] * (1 - fx) + picture[y0 + 1, x0 + 1, c] * fx
                    value = top * (1 - fy) + bottom * fy
                value = value * light[c] + noise[start + (i * width + j) * 3 + c]
                out[i, j, c] = np.uint8(min(max(value + 0.5, 0.0), 255.0))
    return out
