"""Images: rendered ones, ones to fit to, and the backdrop behind rendered Gaussians.

Image metrics: PSNR and SSIM, over the whole image or inside a mask.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera

Region: TypeAlias = tuple[int, int, int, int]
"""Part of an image: left, top, right, bottom [pixels], right and bottom outside."""


@array_dataclass
class RenderedImage:
    """An image of Gaussians; of a region, only the region."""

    colour: Array
    """Red, green, blue [height, width, 3], 0 to about 1, with the backdrop behind."""
    alpha: Array
    """Opacity of the Gaussians before the backdrop [height, width], 0 to 1."""
    depth: Array
    """Mean distance of the Gaussians along the optical axis [height, width] [m]; infinite where none is."""

    @property
    def bytes(self) -> Array:
        """The colour as uint8 [height, width, 3]."""
        return to_bytes(self.colour)


@array_dataclass
class Backdrop:
    """An image behind or among the Gaussians: a plain colour or a rendered layer.

    It occludes Gaussians farther away than `depth`; nearer ones are blended over it.
    """

    colour: Array
    """Red, green, blue [height, width, 3]."""
    depth: Array
    """Distance along the optical axis [height, width] [m]; infinite where it is behind everything."""

    def __post_init__(self) -> None:
        if self.colour.ndim != 3 or self.colour.shape[2] != 3 or self.colour.shape[:2] != self.depth.shape:
            raise BadInput(
                f"A backdrop needs a colour [height, width, 3] and a depth [height, width], not {self.colour.shape} "
                f"and {self.depth.shape}."
            )


@array_dataclass
class WeightedImage:
    """An image to fit to, with a weight for every pixel."""

    camera: Camera
    image: Array
    """Red, green, blue [height, width, 3], 0 to 1."""
    weight: Array
    """Weight of each pixel [height, width], 0 to 1."""
    poses: Array | None = None
    """Poses of the bodies [bodies, 7]; identity where None."""
    backdrop: Backdrop | None = None
    """What is behind the Gaussians."""
    region: Region | None = None
    """The only part of the image that counts."""


def plain_backdrop(camera: Camera, colour: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Backdrop:
    """A backdrop of one colour, behind everything."""
    shape = (camera.height, camera.width)
    return Backdrop(
        np.broadcast_to(np.asarray(colour, np.float32), (*shape, 3)), np.broadcast_to(np.float32(np.inf), shape)
    )


def to_bytes(colour: Array) -> Array:
    """Colours 0 to 1 as uint8."""
    return (np.clip(colour, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def full_region(camera: Camera) -> Region:
    """The region that is the whole image."""
    return (0, 0, camera.width, camera.height)


def checked_region(camera: Camera, region: Region | None) -> Region:
    """The region, inside the image; all of it where None is given."""
    if region is None:
        return full_region(camera)
    left, top, right, bottom = region
    if not (0 <= left < right <= camera.width and 0 <= top < bottom <= camera.height):
        raise BadInput(
            f"The region {region} (left, top, right, bottom) must hold pixels of the {camera.width} x {camera.height} "
            f"image of camera {camera.name!r}."
        )
    return region


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
