"""Masks of one object in posed images: soft edges, hidden pixels, and signed distances to the outline."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

FAR_PX = 64.0
"""Distances from an outline beyond this are cut [pixels]."""
UNKNOWN_PX = 1e9
"""Distance where nothing is known: finite, so that interpolating it stays a number."""


@array_dataclass
class ObjectMask:
    """The pixels of an image that show an object."""

    camera: Camera
    alpha: Array
    """The share of each pixel that shows the object [height, width], 0 to 1."""
    known: Array
    """Whether it is known what a pixel shows [height, width]; false where something else may hide the object."""

    def __post_init__(self) -> None:
        shape = (self.camera.height, self.camera.width)
        if self.alpha.shape != shape or self.known.shape != shape:
            raise BadInput(
                f"A mask of camera {self.camera.name!r} has {self.alpha.shape[1]} x {self.alpha.shape[0]} pixels; "
                f"{shape[1]} x {shape[0]} were expected."
            )

    @property
    def inside(self) -> Array:
        """The pixels that show mostly the object [height, width]."""
        return (self.alpha > 0.5) & self.known

    @property
    def region(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the pixels of the object, right and bottom outside."""
        rows, columns = np.nonzero(self.alpha > 0.5)
        if not len(rows):
            return (0, 0, 0, 0)
        return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1

    def padded_region(self, margin: int) -> tuple[int, int, int, int]:
        """The box around the object with a margin [pixels], inside the image: left, top, right, bottom."""
        (left, top, right, bottom), width, height = self.region, self.camera.width, self.camera.height
        return max(0, left - margin), max(0, top - margin), min(width, right + margin), min(height, bottom + margin)

    @property
    def cut(self) -> bool:
        """Whether the object reaches the border of the image, so that a part of it may be outside."""
        left, top, right, bottom = self.region
        return right > left and (left == 0 or top == 0 or right == self.camera.width or bottom == self.camera.height)

    def signed_distance(self) -> Array:
        """Distance of each pixel's centre from the outline [height, width] [pixels], positive inside; UNKNOWN_PX else.

        The outline passes where the interpolated alpha is one half, so distances are exact to a fraction of a pixel.
        Where the object borders on unknown pixels it may go on behind them, and there is no outline.
        """
        from scipy.spatial import cKDTree

        crossings = _crossings(self.alpha, self.known)
        sign = np.where(self.alpha > 0.5, 1.0, -1.0)
        out = sign * FAR_PX
        if len(crossings):
            left, top = np.maximum(crossings.min(axis=0) - FAR_PX, 0).astype(int)
            right, bottom = np.ceil(crossings.max(axis=0) + FAR_PX).astype(int)
            cut = np.s_[top:bottom, left:right]
            rows, columns = np.indices(self.alpha.shape)[:, top:bottom, left:right]
            centres = np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], axis=1)
            near, _ = cKDTree(crossings).query(centres, distance_upper_bound=FAR_PX)
            out[cut] = sign[cut] * np.minimum(near, FAR_PX).reshape(rows.shape)
        return np.where(self.known, out, UNKNOWN_PX)


def overlap(a: Array, b: Array, known: Array | None = None) -> float:
    """Intersection over union of two soft masks, over the known pixels."""
    weight = 1.0 if known is None else known.astype(float)
    union = float((weight * np.maximum(a, b)).sum())
    return float((weight * np.minimum(a, b)).sum()) / union if union > 0 else 0.0


def _crossings(alpha: Array, known: Array) -> Array:
    """Points (x, y) between neighbouring known pixels where the interpolated alpha is one half [n, 2] [pixels]."""
    level = alpha - 0.5
    level = np.where(np.abs(level) < 1e-6, 1e-6, level)
    found: list[Array] = []
    for axis in (0, 1):
        ends = (slice(None, -1), slice(1, None))
        first, second = (np.moveaxis(level, axis, 0)[cut] for cut in ends)
        sure, too = (np.moveaxis(known, axis, 0)[cut] for cut in ends)
        a, b = np.nonzero((first * second < 0) & sure & too)
        share = first[a, b] / (first[a, b] - second[a, b])
        along, across = a + 0.5 + share, b + 0.5
        found.append(np.stack([across, along] if axis == 0 else [along, across], axis=1))
    return np.concatenate(found)
