"""One body in one camera: where its corners fall, and how they move with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array
from instep.scene.camera import Camera

from .outline import Outline
from .untyped import kernels

MARGIN = 8
"""Pixels around the predicted silhouette that are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """The projected outline of a body, and its derivative by motions of the body."""

    points: Array
    """Projected corners [n, 2] [pixels]."""
    slopes: Array
    """Their derivatives by (translation, rotation about `centre`) in the world [n, 2, 6]."""
    edges: Array
    region: tuple[int, int, int, int]
    """Left, top, right, bottom of the pixels that matter; empty where the body is out of view."""

    @property
    def area(self) -> float:
        """Area of the body's largest part [pixels], wherever it falls."""
        return float(kernels.area_of(self.points, self.edges))

    @property
    def visible(self) -> bool:
        """Whether any pixel of the image can show the body."""
        left, top, right, bottom = self.region
        return right - left > 2 and bottom - top > 2

    def coverage(self, region: tuple[int, int, int, int] | None = None, soft: float = 0.25) -> Array:
        """The silhouette in a region (its own where none is given), soft at its edge [height, width]."""
        left, top, right, bottom = region or self.region
        corner = np.array([left, top], float)
        return kernels.coverage(self.edges, corner, bottom - top, right - left, soft)


def sight(outline: Outline, camera: Camera, world_from_body: Array, centre: Array, margin: int = MARGIN) -> Sight:
    """Project a body at a transform (4 x 4) into a camera that stands in the world."""
    lens = lens_of(camera)
    points, slopes = kernels.placed(outline.corners, world_from_body, camera.body_from_camera, lens, centre)
    if not np.isfinite(points[0, 0]):
        return Sight(np.zeros((0, 2)), np.zeros((0, 2, 6)), np.zeros((0, 7)), (0, 0, 0, 0))
    low, high = points.min(axis=0), points.max(axis=0)
    region = (
        max(int(low[0]) - margin, 0),
        max(int(low[1]) - margin, 0),
        min(int(high[0]) + 1 + margin, camera.width),
        min(int(high[1]) + 1 + margin, camera.height),
    )
    return Sight(points, slopes, kernels.edges_of(points, outline.starts), region)


def lens_of(camera: Camera) -> Array:
    """fx, fy, cx, cy, k1, k2, p1, p2, k3 [9], as the kernels take them."""
    return np.array([*camera.focal, *camera.centre, *(*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]])
