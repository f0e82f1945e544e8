"""Segmentation of a body whose colour nobody named: colour statistics of its silhouette and of what lies around it.

Both are learned from the images at the poses that were found, slowly, per body and camera. A pixel that looks like
neither is unknown: something occludes the body there, and it does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.records import options_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.image import Region

from .camera_rig import CameraFrame, MaskCrop
from .frame_checks import changeable
from .projection import Outline, calibrated, project_outline, silhouette
from .silhouette_kernels import ProjectedOutline

region_kernels: Any = import_module("instep.twin.region_kernels")

mesh_silhouette: Any = import_module("instep.twin.mesh_silhouette")

NOT_DRAWN = np.zeros((0, 0), np.float32)
"""Distances of a body whose convex parts are its shape."""
BINS = 32**3
"""Bins of a histogram of colours."""


PHASES = region_kernels.STRIDE**2
"""Frames after which every pixel has been learned from."""


@options_dataclass
class RegionOptions:
    """How colours are learned and compared."""

    body_rate: float = 0.05
    """Share of the body's histogram that one frame replaces."""
    around_rate: float = 0.1
    """The same of what lies around it."""
    bands: tuple[float, float, float] = (1.5, 2.0, 14.0)
    """Colours are learned at least this deep inside of the silhouette, and between these distances outside [pixels]."""
    sigma: float = 9.0
    """Standard deviation of the background of a pixel [grey levels]."""
    background_density: float = 0.03
    """Probability per bin of the background's own colour."""
    unknown_density: float = 2.5e-4
    """Probability per bin of any other colour: above it a pixel counts as body or background."""
    shading: tuple[float, float] = (0.5, 1.4)
    """Range of factors by which light and shadow change the brightness of the background."""
    tolerance: float = 30.0
    """A pixel this far from its background shows something else [grey levels]."""
    interior: float = 4.0
    """Depth inside of the predicted silhouette from which a pixel that does not show the body is occluded [pixels]."""
    away: float = 4.0
    """Distance from the silhouette from which the background is learned [pixels]."""
    min_amount: float = 5.0
    """Amount of pixels of a side from which its colours are learned."""


class RegionColours:
    """The learned colours of one body in all cameras; what is learned lies in the memory of the correction."""

    def __init__(self, name: str, cameras: Sequence[Camera], options: RegionOptions | None = None):
        self.name, self._cameras, self.options = name, tuple(cameras), options or RegionOptions()

    def unknown(self) -> dict[str, Any]:
        """Memory before anything was learned."""
        empty = {f"background.{c}": np.zeros((k.height, k.width, 4), np.uint8) for c, k in enumerate(self._cameras)}
        colours = {self._histograms(c): np.zeros((2, BINS), np.float32) for c in range(len(self._cameras))}
        return {**colours, "phase": np.zeros((), int), **empty}

    def learned(self, memory: Mapping[str, Any], c: int) -> bool:
        """Whether the colours of the body in a camera are known."""
        return bool(memory[self._histograms(c)][0].any())

    def contrast(self, memory: Mapping[str, Any], c: int) -> float:
        """How little the learned colours of the body resemble those around it, 0 to 1; 0 where none are known.

        One less the Bhattacharyya coefficient of both histograms.
        """
        inside, around = memory[self._histograms(c)]
        size = float(np.sqrt(float(inside.sum()) * float(around.sum())))
        return 1.0 - float(np.sqrt(inside * around).sum()) / size if size > 0 else 0.0

    def forget(self, memory: dict[str, Any], c: int) -> None:
        """Forget the colours of the body in a camera."""
        changeable(memory, self._histograms(c))[:] = 0.0

    def _histograms(self, c: int) -> str:
        """Where the histograms of body and surroundings in a camera are remembered."""
        return f"{self.name}.regions.{c}"

    def crop(
        self, frame: CameraFrame, c: int, outline: Outline, world_from_body: Array, margin: int,
        memory: Mapping[str, Any],
    ) -> MaskCrop | None:  # fmt: skip
        """The pixels around a body, segmented; None where the camera cannot see that place or learned no colours."""
        camera = frame.camera
        region: Region = silhouette.body_region(outline.corners, world_from_body, calibrated(camera), margin)
        left, top, right, bottom = region
        if right - left <= 2 or bottom - top <= 2 or not self.learned(memory, c):
            return None
        mask, weight = self.segment(frame.pixels, c, region, memory)
        projected = project_outline(outline, camera, world_from_body, world_from_body[:3, 3])
        shape = self._shape(outline, projected, camera, world_from_body, region)
        region_kernels.hide_interior(mask, weight, (shape, region), self.options.interior)
        return MaskCrop(camera, mask, weight, region, world_from_body)

    def _shape(
        self, outline: Outline, projected: ProjectedOutline, camera: Camera, world_from_body: Array, region: Region
    ) -> tuple[Array, Array]:
        """Edges of the convex parts, and the distances of every pixel of a region to the silhouette of a mesh."""
        if outline.surface is None:
            return projected.edges, NOT_DRAWN
        reach = round(self.options.bands[2]) + 1
        return projected.edges, mesh_silhouette.mesh_contour(
            outline.surface, world_from_body, calibrated(camera), region, reach
        )[0]

    def segment(self, pixels: Array, c: int, region: Region, memory: Mapping[str, Any]) -> tuple[Array, Array]:
        """Mask and weight of a region of an image."""
        left, top, right, bottom = region
        options = self.options
        limits = (options.sigma, options.background_density, options.unknown_density, *options.shading)
        return region_kernels.segment_region(
            pixels[top:bottom, left:right], memory[self._histograms(c)], memory[f"background.{c}"], region, limits
        )

    def learn(
        self, frame: CameraFrame, c: int, outline: Outline, crop: MaskCrop | None, world_from_body: Array,
        memory: dict[str, Any],
    ) -> None:  # fmt: skip
        """Learn the colours at a pose; all at once where none are known yet, else slowly, from pixels that count."""
        options, phase = self.options, int(memory["phase"])
        projected = project_outline(
            outline, frame.camera, world_from_body, world_from_body[:3, 3], round(options.bands[2])
        )
        if not projected.visible:
            return
        fresh = crop is None or not self.learned(memory, c)
        left, top, right, bottom = region = projected.region if crop is None else crop.region
        pixels = frame.pixels[top:bottom, left:right]
        # Of colours that are not known yet every pixel that nothing hides counts, as one that looks like nothing known.
        blank = np.full(pixels.shape[:2], region_kernels.LEAST_WEIGHT, np.float32)
        mask, weight = (blank, blank) if crop is None else (crop.mask, crop.weight)
        if crop is not None and fresh:
            mask, weight = blank, np.where(crop.weight > 0, blank, np.float32(0.0))
        counts = np.zeros((2, BINS), np.float32)
        outline_here = (self._shape(outline, projected, frame.camera, world_from_body, region), region)
        for k in range(PHASES) if fresh else (phase,):
            region_kernels.learn_pixels(pixels, (mask, weight), outline_here, k, options.bands, counts)
        kept = changeable(memory, self._histograms(c))
        for side, rate in enumerate((options.body_rate, options.around_rate)):
            if (total := counts[side].sum()) >= options.min_amount:
                region_kernels.learn_colours(kept[side], counts[side], total, np.float32(1.0 if fresh else rate))
        if not fresh and self._cameras[c].in_world:
            limits = (options.away, options.tolerance, *options.shading)
            background = changeable(memory, f"background.{c}")
            region_kernels.learn_background(pixels, mask, background, outline_here, phase, limits)
