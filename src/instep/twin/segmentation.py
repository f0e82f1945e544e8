"""Which pixels show a body, by its colour, and which pixels something else hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .projection import kernels

FULL = 0.9
"""Share of the median chroma that counts as wholly the body: its darker faces have less than the median."""
PALE = 0.24
"""Chroma over brightness below which a pixel is a reflection of warm light, not a coloured body."""
SHADE = (0.5, 1.3)
"""How much darker or brighter than usual the light may make the backdrop."""
WHITE = 225
"""A pixel this bright in all channels is over-exposed [grey levels]."""
STRANGE = 30.0
"""A pixel this far from the backdrop, beyond shade, belongs to something that stands before it [grey levels]."""


@dataclass(frozen=True, slots=True, eq=False)
class ColourMask:
    """Tells a coloured body from a grey world: the chroma of a pixel along that of the body.

    A pixel that shows a share m of the body and 1 - m of something grey has m times the body's chroma, so the mask is
    linear in m, as a silhouette's edge needs.
    """

    chroma: Array
    """Unit vector in colour space, orthogonal to grey [3]."""

    def project(self, pixels: Array) -> Array:
        """The chroma of pixels along the body's [...] [grey levels]."""
        return pixels.astype(np.float32) @ self.chroma.astype(np.float32)

    def strength(self, pixels: Array, expected: float) -> float:
        """The chroma of the body in this light: the median of pixels that have clearly more of it than grey."""
        along = self.project(pixels).ravel()
        bright = along[(along > 0.5 * expected) & (along > 1.6 * PALE * pixels.max(axis=-1).ravel())]
        return float(np.median(bright)) if len(bright) >= 20 else expected

    def soft(self, pixels: Array, strength: float) -> Array:
        """The share of each pixel that shows the body [...], 0 to 1.

        Bright reflections of warm light have chroma too, but little of it for their brightness.
        """
        along = self.project(pixels)
        purity = along / np.maximum(pixels.max(axis=-1), 1)
        return np.clip(along / (FULL * strength), 0.0, 1.0) * np.clip((purity - PALE) / 0.08, 0.0, 1.0)


def colour_mask(rgb: Array) -> ColourMask:
    """The mask of a body of this colour (0 to 1)."""
    colour = np.asarray(rgb, float)[:3]
    chroma = colour - colour.mean()
    size = float(np.linalg.norm(chroma))
    if size < 0.1:
        raise BadInput(
            f"The colour {colour.round(2).tolist()} is nearly grey, so a twin cannot tell the body from a table by it; "
            "give the body's material a colour."
        )
    return ColourMask(chroma / size)


def first_strength(mask: ColourMask, image: Array) -> float:
    """The chroma of the body somewhere in an image, before anything is known, from the strongest pixels down."""
    part = image[::2, ::2]
    along = np.sort(mask.project(part).ravel())
    return mask.strength(part, max(float(np.median(along[-100:])), 20.0))


def strangers(pixels: Array, backdrop: Array) -> Array:
    """Where something stands before the backdrop [height, width]: neither its colour nor its colour in shade.

    What is over-exposed is strange too: tables are not white.
    """
    p, b = pixels.astype(np.float32), backdrop.astype(np.float32)
    # The shade k that explains the pixel best.
    k = np.clip((p * b).sum(-1) / np.maximum((b * b).sum(-1), 1.0), *SHADE)
    off = np.abs(p - k[..., None] * b).max(axis=-1)
    return (off > STRANGE) | (pixels.min(axis=-1) > WHITE)


def counted(mask: Array, strange: Array, halo: int = 2) -> Array:
    """How far each pixel counts: not at all where a stranger or its blurred border hides what is behind it."""
    wide = strange & (mask < 0.08)
    for _ in range(halo):
        grown = wide.copy()
        grown[1:] |= wide[:-1]
        grown[:-1] |= wide[1:]
        grown[:, 1:] |= wide[:, :-1]
        grown[:, :-1] |= wide[:, 1:]
        wide = grown
    return np.where(wide & (mask < 0.95), 0.0, 1.0).astype(np.float32)


def backdrop_of(images: Array, mask: ColourMask, strength: float) -> Array:
    """What a camera sees behind everything that moves [height, width, 3].

    The lower quartile over images in which the pixel neither shows the body nor is over-exposed: an arm that stands in
    one place for half of the time is still not the table. Pixels that were never free take the median of the others.
    """
    frames = images.astype(np.float32)
    frames[(mask.soft(images, strength) > 0.1) | (images.max(axis=-1) > WHITE)] = np.nan
    ordered = np.sort(frames, axis=0)  # NaN goes to the end
    known = np.sum(~np.isnan(frames[..., 0]), axis=0)
    pick = np.maximum((known - 1) // 4, 0)
    shape = (1, *images.shape[1:])
    out = np.take_along_axis(ordered, np.broadcast_to(pick[None, ..., None], shape), axis=0)[0]
    free = known >= max(2, len(images) // 10)
    out[~free] = np.median(out[free], axis=0) if free.any() else 0.0
    return out


def read(
    mask: ColourMask, pixels: Array, strength: float, backdrop: Array | None, halo: int = 2
) -> tuple[Array, Array]:
    """Mask and weight of pixels in one compiled pass: `soft`, `strangers` and `counted` together."""
    known = backdrop is not None
    behind = backdrop if backdrop is not None else np.zeros((1, 1, 3), np.float32)
    limits = (FULL, PALE, float(WHITE), STRANGE, *SHADE)
    return kernels.read_pixels(pixels, mask.chroma, float(strength), behind, known, limits, halo)
