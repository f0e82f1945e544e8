"""How alike two pictures are: PSNR and SSIM, inside a mask."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array


def psnr(picture: Array, target: Array, mask: Array | None = None) -> float:
    """Peak signal-to-noise ratio [dB] of colours 0 to 1 [height, width, 3], over the pixels of a mask."""
    error = np.mean((_unit(picture) - _unit(target)) ** 2, axis=-1)
    return float(-10.0 * np.log10(max(float(_within(error, mask)), 1e-12)))


def ssim(picture: Array, target: Array, mask: Array | None = None) -> float:
    """Structural similarity with a Gaussian window of 1.5 pixels, mean over colours and the pixels of a mask."""
    from scipy.ndimage import gaussian_filter

    a, b = _unit(picture), _unit(target)

    def blur(x: Array) -> Array:
        return gaussian_filter(x, (1.5, 1.5, 0.0), truncate=3.5)

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    both = blur(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    score = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(_within(score.mean(axis=-1), mask))


def _unit(picture: Array) -> Array:
    """Colours as float64, 0 to 1, from either kind of image."""
    picture = np.asarray(picture)
    return picture / 255.0 if picture.dtype == np.uint8 else np.clip(np.asarray(picture, float), 0.0, 1.0)


def _within(values: Array, mask: Array | None) -> Array:
    if mask is None:
        return values.mean()
    if mask.shape != values.shape or not mask.any():
        raise BadInput(f"A mask of shape {mask.shape} with {int(np.sum(mask))} pixels cannot weigh {values.shape}.")
    return values[mask].mean()
