"""Colour segmentation: the pixels that show a body, and the pixels that something else occludes."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.folder import Scene

from .projection import model_of, silhouette_kernels, visible_geoms

FULL_CHROMA_SHARE = 0.9
"""Share of the median chroma that counts as wholly the body: its darker faces have less than the median."""
MIN_PURITY = 0.24
"""Chroma over brightness below which a pixel is a reflection of warm light, not a coloured body."""
MIN_CHROMA = 0.1
"""Distance of a colour from grey, of 1, from which a body is segmented by it."""
SHADING = (0.5, 1.3)
"""Range of factors by which light and shadow change the brightness of the background."""
OVEREXPOSED_LEVEL = 225
"""A pixel this bright in all channels is overexposed [grey levels]."""
MAX_BACKGROUND_ERROR = 30.0
"""A pixel this far from the background, after shading, belongs to something in front of it [grey levels]."""


@array_dataclass
class ColourMask:
    """Segments a coloured body in a grey world by the chroma of pixels along that of the body.

    A pixel that shows a share m of the body and 1 - m of something grey has m times the body's chroma, so the mask is
    linear in m at the edge of a silhouette.
    """

    chroma: Array
    """Unit vector in colour space, orthogonal to grey [3]."""

    def project(self, pixels: Array) -> Array:
        """The chroma of pixels along the body's [...] [grey levels]."""
        return pixels.astype(np.float32) @ self.chroma.astype(np.float32)

    def strength(self, pixels: Array, expected: float) -> float:
        """The chroma of the body in this light: the median of pixels that are clearly coloured."""
        along = self.project(pixels).ravel()
        bright = along[(along > 0.5 * expected) & (along > 1.6 * MIN_PURITY * pixels.max(axis=-1).ravel())]
        return float(np.median(bright)) if len(bright) >= 20 else expected

    def soft(self, pixels: Array, strength: float) -> Array:
        """The share of each pixel that shows the body [...], 0 to 1; pale reflections of warm light do not count."""
        along = self.project(pixels)
        purity = along / np.maximum(pixels.max(axis=-1), 1)
        share = np.clip(along / (FULL_CHROMA_SHARE * strength), 0.0, 1.0)
        return share * np.clip((purity - MIN_PURITY) / 0.08, 0.0, 1.0)


NO_COLOUR = ColourMask(np.zeros(3))
"""The mask of a body whose colour is not named: it shows nothing."""


def colour_mask(rgb: Array) -> ColourMask:
    """The mask of a body of this colour (0 to 1)."""
    colour = np.asarray(rgb, float)[:3]
    if not is_coloured(colour):
        raise BadInput(
            f"The colour {colour.round(2).tolist()} is nearly grey, so a twin cannot segment the body by it; "
            "give the body's material a colour, or learn its colours with --residual learned."
        )
    chroma = colour - colour.mean()
    return ColourMask(chroma / np.linalg.norm(chroma))


def is_coloured(rgb: Array) -> bool:
    """Whether a colour (0 to 1) is far enough from grey to segment a body by it."""
    colour = np.asarray(rgb, float)[:3]
    return float(np.linalg.norm(colour - colour.mean())) >= MIN_CHROMA


def colour_of(scene: Scene, body: str) -> Array:
    """The colour of a body: that of its first visible geom."""
    model = model_of(scene)
    for g in visible_geoms(model, model.body(body).id):
        material = int(model.geom_matid[g])
        return np.array(model.mat_rgba[material] if material >= 0 else model.geom_rgba[g], float)
    raise BadInput(f"The body {body!r} has no visible geom, so it has no colour to segment it by.")


def initial_strength(mask: ColourMask, image: Array) -> float:
    """The chroma of a body somewhere in an image, estimated from the strongest pixels."""
    part = image[::2, ::2]
    along = np.sort(mask.project(part).ravel())
    return mask.strength(part, max(float(np.median(along[-100:])), 20.0))


def background_of(images: Array, mask: ColourMask, strength: float) -> Array:
    """The background of a fixed camera [height, width, 3].

    The lower quartile over images in which the pixel neither shows the body nor is overexposed: an arm that stands in
    one place for half of the time is still not the table. Pixels that were never free take the median of the others.
    """
    frames = images.astype(np.float32)
    frames[(mask.soft(images, strength) > 0.1) | (images.max(axis=-1) > OVEREXPOSED_LEVEL)] = np.nan
    ordered = np.sort(frames, axis=0)  # NaN goes to the end
    known = np.sum(~np.isnan(frames[..., 0]), axis=0)
    pick = np.maximum((known - 1) // 4, 0)
    shape = (1, *images.shape[1:])
    out = np.take_along_axis(ordered, np.broadcast_to(pick[None, ..., None], shape), axis=0)[0]
    free = known >= max(2, len(images) // 10)
    out[~free] = np.median(out[free], axis=0) if free.any() else 0.0
    return out


def segment(
    mask: ColourMask, pixels: Array, strength: float, background: Array | None, halo: int = 2
) -> tuple[Array, Array]:
    """Mask and weight of pixels [height, width]: the share that shows the body, and 0 where something occludes it.

    A pixel is occluded where it shows neither the body nor the background in any shading, or is overexposed; `halo`
    pixels around it do not count either.
    """
    behind = np.zeros((0, 0, 3), np.float32) if background is None else background
    limits = (FULL_CHROMA_SHARE, MIN_PURITY, float(OVEREXPOSED_LEVEL), MAX_BACKGROUND_ERROR, *SHADING)
    return silhouette_kernels.segment_pixels(pixels, mask.chroma, float(strength), behind, limits, halo)
