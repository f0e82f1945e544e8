"""Segmentation of a body whose colour nobody named: colour statistics of its silhouette and of what lies around it.

Both are learned from the images at the poses that were found, slowly, per body and camera. A pixel that looks like
neither is unknown: something occludes the body there, and it does not count.

Texture of a body: points on its faces whose patches are followed from image to image, as measurements of its pose.

Points are learned from the images at the poses that were found: corners of the texture, placed on the faces of the
body's shape. A patch is compared as its face appears at the predicted pose, so that a body which turns back is
measured against what was learned first, and errors do not add up from frame to frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.world import Array, options_dataclass
from instep.scene.camera import Camera
from instep.splat.image import Region

from .body_outlines import BodyFaces, Outline, calibrated, hull_faces, project_outline, silhouette, silhouette_kernels
from .camera_frames import changeable
from .camera_rig import CameraFrame, MaskCrop, PointTracks
from .pose_solver import CONFIRMING_SHARE, TEXTURE_POINTS
from .silhouette_kernels import ProjectedOutline

region_kernels: Any = import_module("instep.twin.region_kernels")

mesh_silhouette: Any = import_module("instep.twin.texture_kernels")

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


texture_kernels: Any = import_module("instep.twin.texture_kernels")


OCCLUDER_MARGIN_PX = 1
"""Pixels around a body in front that do not count either."""


@options_dataclass
class TextureOptions:
    """How many points are followed, and when one counts."""

    slots: int = 500
    """Points that are remembered per camera."""
    wanted: int = 200
    """Visible points below which more are learned."""
    spacing: int = 6
    """Least distance of neighbouring points [pixels]."""
    min_strength: float = 12.0
    """Smallest eigenvalue of the structure tensor of a corner [squared grey levels per squared pixel]."""
    min_correlation: float = 0.8
    """Correlation of patches from which a point was found."""
    reach: float = 30.0
    """Largest way from the prediction [pixels]."""
    min_facing: float = 0.3
    """Cosine between the normal of a face and the ray from which its points are followed."""
    edge: int = 4
    """Pixels from the edge of the silhouette within which no point is learned."""
    max_misses: int = 8
    """Frames in which a point that should be visible is not found or is an outlier, after which it is forgotten."""


def mask_bodies_in_front(
    crop: MaskCrop, own: BodyFaces, others: Sequence[tuple[BodyFaces, Array]], *, beside: bool = True
) -> None:
    """Set the weight of pixels of a crop to zero in which one of the other bodies, at its transform, is nearer.

    Where the body itself is not predicted its mean distance is compared: it may be seen there after it moved. Not
    `beside` what is part of it, as a cabinet of its drawer, which is as near.
    """
    from scipy.ndimage import binary_dilation

    mine, _ = rendered_faces(crop, own, crop.world_from_body)
    if not np.isfinite(mine).any():
        return
    reach = np.where(np.isfinite(mine), mine, mine[np.isfinite(mine)].mean() if beside else -np.inf)
    for faces, world_from_body in others:
        front = rendered_faces(crop, faces, world_from_body)[0] < reach
        if front.any():
            crop.weight[binary_dilation(front, iterations=OCCLUDER_MARGIN_PX)] = 0.0


def rendered_faces(crop: MaskCrop, faces: BodyFaces, world_from_body: Array) -> tuple[Array, Array]:
    """Distance [m] of a body at a transform and its nearest triangle in the pixels of a crop; inf and -1 beside it."""
    region = crop.region
    depth = np.full((region[3] - region[1], region[2] - region[0]), np.inf)
    owner = np.full(depth.shape, -1)
    shape = (faces.vertices, faces.triangles)
    texture_kernels.render_faces(shape, world_from_body, calibrated(crop.camera), region, depth, owner)
    return depth, owner


class BodyTexture:
    """The texture of one body in all cameras; what is learned lies in the memory of the correction."""

    def __init__(
        self, outline: Outline, cameras: Sequence[Camera], options: TextureOptions | None = None, *,
        faces: BodyFaces | None = None,
    ):  # fmt: skip
        self.name, self._outline, self._cameras = outline.name, outline, tuple(cameras)
        self._faces, self.options = faces or hull_faces(outline), options or TextureOptions()

    def unknown(self) -> dict[str, Any]:
        """Memory before anything was learned."""
        n = self.options.slots
        empty = {
            "places": np.zeros((n, 3)),
            "tangents": np.zeros((n, 3, 2)),
            "normals": np.zeros((n, 3)),
            "patches": np.zeros((n, texture_kernels.LEVELS, texture_kernels.AREA), np.float32),
            "known": np.zeros(n, bool),
            "misses": np.zeros(n, np.int16),
        }
        return {self._key(what, c): value.copy() for what, value in empty.items() for c in range(len(self._cameras))}

    def follow(
        self, frame: CameraFrame, c: int, world_from_body: Array, memory: dict[str, Any],
        most: Callable[[int], int] = lambda known: known,
    ) -> PointTracks | None:  # fmt: skip
        """Where the image shows the points that should be visible at a predicted pose; None where none is known.

        `most` says of how many that are known there is time to follow; those are spread over all.
        """
        slots = self._visible(frame.camera, c, world_from_body, memory)
        taken = most(len(slots))
        if taken < len(slots):
            slots = slots[np.arange(taken) * len(slots) // taken]
        region = self._region(frame.camera, world_from_body)
        if not len(slots) or region is None:
            return None
        places, R = self._kept(memory, "places", c)[slots], world_from_body[:3, :3]
        predicted, jacobian = silhouette_kernels.project_corners(
            places, world_from_body, calibrated(frame.camera), world_from_body[:3, 3]
        )
        if not np.isfinite(predicted[0, 0]):
            return None
        warps = jacobian[:, :, :3] @ (R @ self._kept(memory, "tangents", c)[slots])
        corner = np.array(region[:2], float)
        at, correlation = predicted - corner, np.zeros(len(slots))
        patches = self._kept(memory, "patches", c)[slots]
        limits = (self.options.min_correlation, self.options.reach)
        texture_kernels.follow_patches(_pyramid(frame, region), at, warps, patches, limits, correlation)
        found = correlation > 0
        return PointTracks(places[found], at[found] + corner, slots[found], slots[~found])

    def learn(
        self, frame: CameraFrame, c: int, world_from_body: Array, crop: MaskCrop, tracks: PointTracks | None,
        memory: dict[str, Any],
    ) -> None:  # fmt: skip
        """Forget points that do not fit the pose that was found, and learn new ones where there are few."""
        good = 0 if tracks is None else self._judge(frame.camera, c, world_from_body, tracks, memory)
        known, followed = self._changed(memory, "known", c), 0 if tracks is None else tracks.followed
        contradicted = followed >= TEXTURE_POINTS[0] and good < CONFIRMING_SHARE * followed
        if good >= self.options.wanted or contradicted:
            return
        region, (_, owner) = crop.region, rendered_faces(crop, self._faces, world_from_body)
        allowed = self._allowed(
            crop, owner, self._shown(frame.camera, c, world_from_body, memory) - np.array(region[:2])
        )
        pyramid = _pyramid(frame, region)
        places = np.empty((self.options.wanted - good, 2))
        n = texture_kernels.texture_corners(
            pyramid[0], allowed, self.options.spacing, self.options.min_strength, places
        )
        free = np.flatnonzero(~known)
        spare = np.setdiff1d(np.flatnonzero(known), self._visible(frame.camera, c, world_from_body, memory))
        slots = np.concatenate([free, spare])[:n]
        self._place(frame.camera, c, world_from_body, (places[: len(slots)], region, owner), slots, memory)
        patches = np.zeros((len(slots), texture_kernels.LEVELS, texture_kernels.AREA))
        texture_kernels.learn_patches(pyramid, places[: len(slots)], patches)
        self._changed(memory, "patches", c)[slots] = patches
        known[slots] = np.isfinite(patches[:, 0, 0])
        self._changed(memory, "misses", c)[slots] = 0

    def known(self, memory: dict[str, Any]) -> int:
        """How many points are known, in all cameras."""
        return sum(int(self._kept(memory, "known", c).sum()) for c in range(len(self._cameras)))

    def points(self, memory: dict[str, Any], c: int) -> tuple[Array, Array]:
        """Where the points of a camera were learned, in the body's frame [n, 3], and steps on the face [n, 3, 2]."""
        return self._kept(memory, "places", c), self._kept(memory, "tangents", c)

    def _key(self, what: str, c: int) -> str:
        return f"{self.name}.texture.{what}.{c}"

    def _kept(self, memory: dict[str, Any], what: str, c: int) -> Array:
        """What is remembered of the points in a camera, to be read."""
        return memory[self._key(what, c)]

    def _changed(self, memory: dict[str, Any], what: str, c: int) -> Array:
        """The same, to be written."""
        return changeable(memory, self._key(what, c))

    def _region(self, camera: Camera, world_from_body: Array) -> Region | None:
        region: Region = silhouette.body_region(self._outline.corners, world_from_body, calibrated(camera), 40)
        left, top, right, bottom = region
        return region if right - left > 40 and bottom - top > 40 else None

    def _visible(self, camera: Camera, c: int, world_from_body: Array, memory: dict[str, Any]) -> Array:
        """Slots of the points whose faces are turned to the camera."""
        slots = np.flatnonzero(self._kept(memory, "known", c))
        R, eye = world_from_body[:3, :3], camera.body_from_camera[:3, 3]
        rays = eye - (self._kept(memory, "places", c)[slots] @ R.T + world_from_body[:3, 3])
        facing = np.sum(rays * (self._kept(memory, "normals", c)[slots] @ R.T), axis=1)
        return slots[facing > self.options.min_facing * np.linalg.norm(rays, axis=1)]

    def _shown(self, camera: Camera, c: int, world_from_body: Array, memory: dict[str, Any]) -> Array:
        """Pixels of the points that should be visible [n, 2]."""
        places = self._kept(memory, "places", c)[self._visible(camera, c, world_from_body, memory)]
        if not len(places):
            return np.zeros((0, 2))
        return silhouette_kernels.project_corners(places, world_from_body, calibrated(camera), world_from_body[:3, 3])[
            0
        ]

    def _judge(
        self, camera: Camera, c: int, world_from_body: Array, tracks: PointTracks, memory: dict[str, Any]
    ) -> int:
        """Count the misses of points; return how many fit."""
        misses, known = self._changed(memory, "misses", c), self._changed(memory, "known", c)
        off = np.full(len(tracks.slots), np.inf)
        if len(off):
            at, _ = silhouette_kernels.project_corners(
                tracks.places, world_from_body, calibrated(camera), world_from_body[:3, 3]
            )
            off = np.linalg.norm(at - tracks.measured, axis=1)
        fits = off < 3.0 * tracks.sigma
        misses[tracks.slots[fits]] = 0
        misses[np.concatenate([tracks.slots[~fits], tracks.missed])] += 1
        known &= misses <= self.options.max_misses
        return int(fits.sum())

    def _allowed(self, crop: MaskCrop, owner: Array, points: Array) -> Array:
        """Pixels on the body that no point is near to, not near its edge nor that of what is known to occlude it."""
        inside = (owner >= 0) & (crop.weight > 0)
        free = texture_kernels.free_pixels(inside, self.options.edge, points, self.options.spacing)
        return free & (crop.mask * crop.weight > 0.3)

    def _place(
        self, camera: Camera, c: int, world_from_body: Array, corners: tuple[Array, Region, Array], slots: Array,
        memory: dict[str, Any],
    ) -> None:  # fmt: skip
        """Place corners of the texture on the faces that show them, with their tangents."""
        points, region, owner = corners
        rows, columns = points[:, 1].astype(int), points[:, 0].astype(int)
        triangle = owner[rows, columns]
        camera_from_body = np.linalg.inv(camera.body_from_camera) @ world_from_body
        normals = self._faces.normals[triangle] @ camera_from_body[:3, :3].T
        anchors = self._faces.vertices[self._faces.triangles[triangle, 0]] @ camera_from_body[:3, :3].T
        offsets = np.sum(normals * (anchors + camera_from_body[:3, 3]), axis=1)
        body_from_camera = np.linalg.inv(camera_from_body)

        def on_face(step: tuple[float, float]) -> Array:
            rays = rays_through_lens(camera, points + np.array(region[:2]) + step)
            met = rays * (offsets / np.sum(normals * rays, axis=1))[:, None]
            return met @ body_from_camera[:3, :3].T + body_from_camera[:3, 3]

        here = on_face((0.0, 0.0))
        steps = np.stack([on_face((1.0, 0.0)) - here, on_face((0.0, 1.0)) - here], 2)
        for what, values in (("places", here), ("tangents", steps), ("normals", self._faces.normals[triangle])):
            self._changed(memory, what, c)[slots] = values


def _pyramid(frame: CameraFrame, region: Region) -> tuple[Array, Array, Array]:
    left, top, right, bottom = region
    return texture_kernels.grey_pyramid(np.ascontiguousarray(frame.pixels[top:bottom, left:right]))


def rays_through_lens(camera: Camera, pixels: Array) -> Array:
    """Directions [n, 3] in the camera's frame of pixels [n, 2], through the lens."""
    from instep.scene.camera import distort

    distorted = (pixels - np.array(camera.centre)) / np.array(camera.focal)
    ideal = distorted
    for _ in range(5 if any(camera.distortion) else 0):
        ideal = ideal + distorted - distort(ideal, camera.distortion)
    return np.concatenate([ideal, np.ones((len(ideal), 1))], axis=1)
