"""Pictures with the twin's silhouette drawn over them, to be looked at."""

from __future__ import annotations

import numpy as np

from instep.core.poses import transform
from instep.core.world import Array
from instep.scene.camera import Camera

from .projection import Outline, sight

COLOUR = np.array([0, 255, 80], np.uint8)


def drawn(image: Array, camera: Camera, shape: Outline, pose: Array) -> Array:
    """A picture [height, width, 3] with the outline of a body at a pose xyz + wxyz."""
    out = image.copy()
    T = transform(pose)
    seen = sight(shape, camera, T, T[:3, 3])
    if not seen.visible:
        return out
    left, top, right, bottom = seen.region
    inside = seen.coverage() > 0.5
    edge = np.zeros_like(inside)
    edge[:-1] |= inside[:-1] != inside[1:]
    edge[:, :-1] |= inside[:, :-1] != inside[:, 1:]
    out[top:bottom, left:right][edge] = COLOUR
    return out
