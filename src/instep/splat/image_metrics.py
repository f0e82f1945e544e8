"""Image metrics: PSNR and SSIM, over the whole image or inside a mask."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

K1, K2, SIGMA_PX = 0.01, 0.03, 1.5
"""Constants of SSIM: an 11 x 11 Gaussian window of this standard deviation, images from 0 to 1."""


def psnr(image: Array, target: Array, mask: Array | None = None) -> float:
    """Peak signal-to-noise ratio 10 log10(1 / MSE) [dB] over the pixels of a mask; infinite for equal images."""
    error = float(_mean((unit_image(image) - unit_image(target)) ** 2, mask))
    return float("inf") if error == 0 else -10.0 * float(np.log10(error))


def ssim(image: Array, target: Array, mask: Array | None = None) -> float:
    """Structural similarity, mean over channels and the pixels of a mask; 1 for equal images."""
    return float(_mean(ssim_map(unit_image(image), unit_image(target)), mask))


def ssim_map(a: Array, b: Array) -> Array:
    """Structural similarity of every pixel and channel of images 0 to 1 [height, width, channels]."""
    from scipy.ndimage import gaussian_filter

    def blur(x: Array) -> Array:
        # Eleven taps: a Gaussian of 1.5 px cut at 5 px.
        return np.asarray(gaussian_filter(x, (SIGMA_PX, SIGMA_PX, 0.0), truncate=5 / SIGMA_PX))

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    top = (2 * mean_a * mean_b + K1**2) * (2 * covariance + K2**2)
    return top / ((mean_a**2 + mean_b**2 + K1**2) * (var_a + var_b + K2**2))


def unit_image(image: Array) -> Array:
    """An image [height, width] or [height, width, channels] as float64 0 to 1, with an axis of channels."""
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3:
        raise BadInput(f"An image has two or three axes, not {array.ndim}.")
    return array.astype(float) / 255.0 if array.dtype == np.uint8 else np.clip(array.astype(float), 0.0, 1.0)


def _mean(values: Array, mask: Array | None) -> Array:
    values = values.mean(axis=-1)
    if mask is None:
        return values.mean()
    if mask.shape != values.shape or not mask.any():
        raise BadInput(f"A mask of shape {mask.shape} with {int(np.sum(mask))} pixels cannot weigh {values.shape}.")
    return values[mask].mean()
