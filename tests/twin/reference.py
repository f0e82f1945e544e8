"""Readable references of the twin's compiled kernels."""

from __future__ import annotations

import numpy as np

from instep.core.world import Array
from instep.twin.camera_rig import (
    FULL_CHROMA_SHARE,
    MAX_BACKGROUND_ERROR,
    MIN_PURITY,
    OVEREXPOSED_LEVEL,
    SHADING,
    ColourMask,
)


def normal_equations(
    points: Array, jacobian: Array, edges: Array, mask: Array, weight: Array, corner: Array, soft: float, robust: float
) -> tuple[Array, Array, Array]:
    """J^T W J, J^T W r of a silhouette against a mask whose top left is `corner`, and the first four of the tally."""
    height, width = mask.shape
    y, x = np.mgrid[:height, :width] + corner[::-1, None, None] + 0.5
    away = edges[:, 2] * x[..., None] + edges[:, 3] * y[..., None] - edges[:, 4]  # [height, width, edges]
    parts = [np.flatnonzero(edges[:, 6] == part) for part in np.unique(edges[:, 6])]
    farthest = np.stack([away[..., part].max(axis=-1) for part in parts], axis=-1)
    own = np.stack([part[away[..., part].argmax(axis=-1)] for part in parts], axis=-1)
    best = farthest.argmin(axis=-1)[..., None]
    d, e = np.take_along_axis(farthest, best, -1)[..., 0], np.take_along_axis(own, best, -1)[..., 0]
    coverage = 1 / (1 + np.exp(np.clip(d / soft, -30, 30)))
    residual = coverage - mask
    w = weight * np.minimum(1, robust / np.maximum(np.abs(residual), 1e-12))
    a, b = edges[e, 0].astype(int), edges[e, 1].astype(int)
    along = ((x - points[a, 0]) * -edges[e, 3] + (y - points[a, 1]) * edges[e, 2]) / edges[e, 5]
    along = np.clip(along, 0, 1)[..., None, None]
    nearest = (1 - along) * jacobian[a] + along * jacobian[b]  # [height, width, 2, k]
    steep = np.where(np.abs(d / soft) > 6, 0, coverage * (1 - coverage) / soft)
    J = steep[..., None] * np.einsum("hwc,hwck->hwk", edges[e, 2:4], nearest)
    H, g = np.einsum("hw,hwk,hwl->kl", w, J, J), np.einsum("hw,hwk,hw->k", w, J, residual)
    inside, shown = d < 0, mask > 0.5
    tally = [(w * residual**2).sum(), w.sum(), (weight * (inside & shown)).sum(), (weight * (inside | shown)).sum()]
    return H, g, np.array(tally)


def occluders(pixels: Array, background: Array) -> Array:
    """Where something stands in front of the background [height, width]: neither its colour nor a shade of it."""
    p, b = pixels.astype(np.float32), background.astype(np.float32)
    k = np.clip((p * b).sum(-1) / np.maximum((b * b).sum(-1), 1.0), *SHADING)  # the shade that explains it best
    error = np.abs(p - k[..., None] * b).max(axis=-1)
    return (error > MAX_BACKGROUND_ERROR) | (pixels.min(axis=-1) > OVEREXPOSED_LEVEL)


def counted(mask: Array, occluded: Array, halo: int = 2) -> Array:
    """The weight of each pixel: 0 where an occluder or its blurred border hides what is behind it."""
    wide = occluded & (mask < 0.08)
    for _ in range(halo):
        grown = wide.copy()
        grown[1:] |= wide[:-1]
        grown[:-1] |= wide[1:]
        grown[:, 1:] |= wide[:, :-1]
        grown[:, :-1] |= wide[:, 1:]
        wide = grown
    return np.where(wide & (mask < 0.95), 0.0, 1.0).astype(np.float32)


def chroma(mask: ColourMask, pixels: Array, expected: float) -> float:
    """The median chroma of pixels that are clearly coloured."""
    along = pixels.astype(float) @ mask.chroma
    return float(np.median(along[(along > 0.5 * expected) & (along > 1.6 * MIN_PURITY * pixels.max(axis=-1))]))


def body_share(mask: ColourMask, pixels: Array, strength: float) -> Array:
    """The share of each pixel that shows the body; pale reflections of warm light do not count."""
    along = pixels.astype(np.float32) @ mask.chroma.astype(np.float32)
    purity = along / np.maximum(pixels.max(axis=-1), 1)
    return np.clip(along / (FULL_CHROMA_SHARE * strength), 0.0, 1.0) * np.clip((purity - MIN_PURITY) / 0.08, 0.0, 1.0)
