"""Where a body starts, more exactly than it was given: texture that is learned there keeps any error of its start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.world import Array

from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop
from .joint_search import Hide, learn_unhidden
from .pose_solver import TEXTURED_SHARE, PixelNoise, mean_overlap, moved, solve_pose
from .projection import Outline
from .region import RegionColours
from .texture import BodyTexture

START_SIGMA_M, START_SIGMA = 2e-3, math.radians(1.0)
"""How far a given start is off: position [m] and orientation [rad]."""
PASSES, STEPS = 2, 6
"""How often silhouettes are compared, with colours learned where they led before, and Gauss-Newton steps each time."""
MIN_CONTRAST, MIN_OVERLAP = 0.4, 0.5
"""Contrast of colours in a camera, and overlap of silhouettes, below which they say nothing about the start: the
background shares the colours of the body."""

Shown = Sequence[tuple[int, CameraFrame]]
"""Images, with the numbers of their cameras."""


def refined_start(
    body: tuple[Outline, RegionColours], given: tuple[Array, Array], shown: Shown, hide: Hide, noise: PixelNoise,
    memory: dict[str, Any],
) -> tuple[Array, dict[int, MaskCrop]]:  # fmt: skip
    """The transform on which a given start and silhouettes agree, and the crops there; colours are learned there.

    `given` has the start and the basis of the motions that are left to the body. Silhouettes count as little as they do
    beside texture: with more weight they made the start of a real box worse that was given by its corners.
    """
    outline, (start, basis) = body[0], given
    prior = np.diag([START_SIGMA_M**2] * 3 + [START_SIGMA**2] * 3)
    here = start
    for _ in range(PASSES):
        crops = learned_crops(body, (here, start), shown, hide, memory)
        telling = [crop for c, crop in crops.items() if body[1].contrast(memory, c) >= MIN_CONTRAST]
        if not telling:
            here = start
            break
        found = solve_pose(outline, telling, prior, basis, STEPS, noise, share=TEXTURED_SHARE)
        if mean_overlap(found.fits) < MIN_OVERLAP:
            here = start
            break
        here = moved(start, found.xi)
    return here, learned_crops(body, (here, here), shown, hide, memory)


def learn_texture(
    texture: BodyTexture, world_from_body: Array, shown: Shown, crops: Mapping[int, MaskCrop], memory: dict[str, Any]
) -> int:
    """Learn the texture of a body in its crops; how many points all cameras know then."""
    for c, frame in shown:
        if c in crops:
            texture.learn(frame, c, world_from_body, crops[c], None, memory)
    return texture.known(memory)


def learned_crops(
    body: tuple[Outline, RegionColours], at: tuple[Array, Array], shown: Shown, hide: Hide, memory: dict[str, Any]
) -> dict[int, MaskCrop]:
    """The crops around a body by camera, by the colours that it has; `at` are where these are learned, and cropped."""
    (outline, colours), crops = body, dict[int, MaskCrop]()
    for c, frame in shown:
        learn_unhidden(colours, outline, at[0], (c, frame), hide, memory)
        crop = colours.crop(frame, c, outline, at[1], MAX_MARGIN_PX, memory)
        if crop is not None:
            hide(crop)
            crops[c] = crop
    return crops
