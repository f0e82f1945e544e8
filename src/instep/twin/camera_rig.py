"""The cameras of a twin: frames taken by their stamps, late, missing, frozen and doubtful ones told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from instep.core.world import Array, Observation
from instep.scene.camera import Camera

from .pose_solver import Shot
from .projection import Outline, glances, lens_of
from .segmentation import PALE, ColourMask, read

IMAGES = "observation.images."
AROUND = 30
"""Pixels around the prediction in which the mask is made ready, so that the body may be found beside it."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture and when it was taken."""

    camera: Camera
    pixels: Array
    stamp: float
    fingerprint: float
    """A number that two different pictures hardly share."""


@dataclass(frozen=True, slots=True, eq=False)
class Eyes:
    """Cameras, what each sees behind everything that moves, and the colour that is looked for."""

    cameras: tuple[Camera, ...]
    mask: ColourMask
    backdrops: Mapping[str, Array] = field(default_factory=dict[str, Array])

    def frames(self, seen: Observation, t: float) -> list[Frame | None]:
        """The newest picture of each camera; None where there is none, or where it is no picture."""
        return [self._frame(camera, seen, t) for camera in self.cameras]

    def shot(
        self, frame: Frame, outline: Outline, world_from_body: Array, strength: float, around: int = AROUND
    ) -> Shot | None:
        """The pixels around a body, made ready; None where the camera cannot see that place."""
        camera = frame.camera
        lens, size = lens_of(camera), (camera.width, camera.height)
        region: tuple[int, int, int, int] = glances.around(
            outline.corners, world_from_body, camera.body_from_camera, lens, around, *size
        )
        left, top, right, bottom = region
        if right - left <= 2 or bottom - top <= 2:
            return None
        crop = frame.pixels[top:bottom, left:right]
        whole = self.backdrops.get(camera.name)
        behind = None if whole is None else whole[top:bottom, left:right]
        mask, weight = read(self.mask, crop, strength, behind)
        chroma = float(glances.strength_of(crop, self.mask.chroma, float(strength), 1.6 * PALE))
        return Shot(camera, mask, weight, region, world_from_body, chroma, behind)

    def _frame(self, camera: Camera, seen: Observation, t: float) -> Frame | None:
        name = IMAGES + camera.name
        if name not in seen:
            return None
        pixels = np.asarray(seen[name])
        if pixels.shape != (camera.height, camera.width, 3) or pixels.dtype != np.uint8:
            return None
        stamp = float(seen[name + ".stamp"]) if name + ".stamp" in seen else t
        if not np.isfinite(stamp):
            return None
        return Frame(
            camera,
            pixels,
            stamp,
            float(pixels[5::16, 7::16].astype(np.int64).ravel() @ _SPREAD[: pixels[5::16, 7::16].size]),
        )


_SPREAD = np.random.default_rng(7).integers(1, 1 << 30, 1 << 16)
