"""Learned appearance of bodies: colour histograms for segmentation, and texture points as measurements of the pose.

Colours: histograms of the body's silhouette and of its surroundings are updated slowly at the estimated poses, per body
and camera. A pixel that matches neither is unknown: something occludes the body there, and the pixel has no weight.

Texture: corners are placed on the faces of the body at the estimated pose. Their patches are compared as the face
appears at the predicted pose, always with the image they were learned from, so that errors do not accumulate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.splat.image import Region

from .body_outlines import BodyFaces, Outline, calibrated, hull_faces, project_outline, project_points
from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop, PointTracks, body_region
from .pose_solver import CONFIRMING_SHARE, TEXTURE_POINTS

region_kernels: Any = import_module("instep.twin.region_kernels")
texture_kernels: Any = import_module("instep.twin.texture_kernels")

NOT_DRAWN = np.zeros((0, 0), np.float32)
"""Distances of a body whose convex parts are its shape."""
BINS = region_kernels.BINS**3
"""Bins of a colour histogram."""
PHASES = region_kernels.STRIDE**2
"""Frames after which every pixel has been learned from."""
AROUND_PX = 40
"""Pixels around a body in which its texture is followed."""
OCCLUDER_MARGIN_PX = 1
"""Margin around an occluding body whose pixels have no weight."""


@array_dataclass
class TexturePoints:
    """Points of a body's texture in one camera."""

    places: Array
    """In the body's frame [n, 3] [m]."""
    tangents: Array
    """Steps on the face per pixel of the image it was learned from [n, 3, 2] [m]."""
    normals: Array
    """Of the faces [n, 3]."""
    patches: Array
    """Normalised grey levels [n, LEVELS, AREA]."""
    known: Array
    """Slots in use [n]."""
    misses: Array
    """Frames in a row in which a visible point was not found or was an outlier [n]."""

    @classmethod
    def unknown(cls, n: int) -> TexturePoints:
        """No points, with room for n."""
        patches, places = np.zeros((n, texture_kernels.LEVELS, texture_kernels.AREA), np.float32), np.zeros((n, 3))
        return cls(places, np.zeros((n, 3, 2)), places.copy(), patches, np.zeros(n, bool), np.zeros(n, np.int16))


@dataclass(slots=True)
class LearnedAppearance:
    """Learned appearance of all bodies. Arrays are replaced, never changed, so copies share them."""

    histograms: list[list[Array]]
    """Of a body and its surroundings [bodies][cameras] of [2, BINS]; 0 where unknown."""
    backgrounds: list[Array]
    """Colour and count of the background of each pixel [cameras] of [height, width, 4]."""
    points: list[list[TexturePoints]]
    """[bodies][cameras]; empty without texture."""
    phase: int = 0
    """Selects the pixels that are learned from in this frame."""

    @classmethod
    def unknown(cls, cameras: Sequence[Camera], bodies: int = 1) -> LearnedAppearance:
        """Nothing learned."""
        histograms = [[np.zeros((2, BINS), np.float32) for _ in cameras] for _ in range(bodies)]
        return cls(histograms, [np.zeros((c.height, c.width, 4), np.uint8) for c in cameras], [[] for _ in histograms])

    def copy(self) -> LearnedAppearance:
        """A copy that may be updated."""
        histograms, points = [list(one) for one in self.histograms], [list(one) for one in self.points]
        return LearnedAppearance(histograms, list(self.backgrounds), points, self.phase)


@options_dataclass
class RegionOptions:
    """Options of colour learning and segmentation."""

    body_rate: float = 0.05
    """Share of the body's histogram that one frame replaces."""
    around_rate: float = 0.1
    """The same for the surroundings."""
    bands: tuple[float, float, float] = (1.5, 2.0, 14.0)
    """Least depth inside the silhouette, least and largest distance outside, of pixels that are learned [pixels]."""
    sigma: float = 9.0
    """Standard deviation of the background of a pixel [grey levels]."""
    background_density: float = 0.03
    """Probability per bin of the background's own colour."""
    unknown_density: float = 2.5e-4
    """Probability per bin of any other colour: above it a pixel counts as body or background."""
    shading: tuple[float, float] = (0.5, 1.4)
    """Range of brightness factors of light and shadow."""
    tolerance: float = 30.0
    """Difference from the background from which a pixel shows something else [grey levels]."""
    interior: float = 4.0
    """Depth inside the silhouette from which a pixel that does not show the body is occluded [pixels]."""
    away: float = 4.0
    """Distance from the silhouette from which the background is learned [pixels]."""
    min_amount: float = 5.0
    """Least amount of pixels that updates a histogram."""


class RegionColours:
    """Segmentation of body number `b` by its learned colours."""

    def __init__(self, outline: Outline, cameras: Sequence[Camera], b: int = 0, options: RegionOptions | None = None):
        self.outline, self._cameras, self._b, self.options = outline, tuple(cameras), b, options or RegionOptions()

    def learned(self, memory: LearnedAppearance, c: int) -> bool:
        """Whether the colours of the body in a camera are known."""
        return bool(memory.histograms[self._b][c][0].any())

    def contrast(self, memory: LearnedAppearance, c: int) -> float:
        """One minus the Bhattacharyya coefficient of the body's and its surroundings' histograms; 0 if unknown."""
        inside, around = memory.histograms[self._b][c]
        size = float(np.sqrt(float(inside.sum()) * float(around.sum())))
        return 1.0 - float(np.sqrt(inside * around).sum()) / size if size > 0 else 0.0

    def forget(self, memory: LearnedAppearance, c: int) -> None:
        """Forget the colours of the body in a camera."""
        memory.histograms[self._b][c] = np.zeros((2, BINS), np.float32)

    def crop(
        self, frame: CameraFrame, c: int, world_from_body: Array, memory: LearnedAppearance, margin: int = MAX_MARGIN_PX
    ) -> MaskCrop | None:
        """The segmented pixels around a body; None if it is out of view or no colours are known."""
        camera, options = frame.camera, self.options
        region = body_region(self.outline, camera, world_from_body, margin)
        if region is None or not self.learned(memory, c):
            return None
        left, top, right, bottom = region
        mask, weight = region_kernels.segment_region(
            frame.pixels[top:bottom, left:right], memory.histograms[self._b][c], memory.backgrounds[c], region,
            (options.sigma, options.background_density, options.unknown_density, *options.shading),
        )  # fmt: skip
        edges = project_outline(self.outline, camera, world_from_body).edges
        region_kernels.hide_interior(
            mask, weight, self._shape(edges, camera, world_from_body, region), options.interior
        )
        return MaskCrop(camera, mask, weight, region, world_from_body)

    def learn(
        self, frame: CameraFrame, c: int, crop: MaskCrop | None, world_from_body: Array, memory: LearnedAppearance
    ) -> None:
        """Learn the colours at a pose: from all pixels if none are known, else slowly from pixels that count."""
        options = self.options
        projected = project_outline(self.outline, frame.camera, world_from_body, round(options.bands[2]))
        if not projected.visible:
            return
        fresh = crop is None or not self.learned(memory, c)
        left, top, right, bottom = region = projected.region if crop is None else crop.region
        pixels = frame.pixels[top:bottom, left:right]
        # While no colours are known every pixel that is not occluded counts, as a pixel that matches nothing.
        blank = np.full(pixels.shape[:2], region_kernels.LEAST_WEIGHT, np.float32)
        mask, weight = (blank, blank) if crop is None else (crop.mask, crop.weight)
        if crop is not None and fresh:
            mask, weight = blank, np.where(crop.weight > 0, blank, np.float32(0.0))
        counts = np.zeros((2, BINS), np.float32)
        outline_here = self._shape(projected.edges, frame.camera, world_from_body, region)
        for k in range(PHASES) if fresh else (memory.phase,):
            region_kernels.learn_pixels(pixels, (mask, weight), outline_here, k, options.bands, counts)
        kept = memory.histograms[self._b][c].copy()
        for side, rate in enumerate((options.body_rate, options.around_rate)):
            if (total := counts[side].sum()) >= options.min_amount:
                region_kernels.learn_colours(kept[side], counts[side], total, np.float32(1.0 if fresh else rate))
        memory.histograms[self._b][c] = kept
        if not fresh and self._cameras[c].in_world:
            background = memory.backgrounds[c].copy()
            limits = (options.away, options.tolerance, *options.shading)
            region_kernels.learn_background(pixels, mask, background, outline_here, memory.phase, limits)
            memory.backgrounds[c] = background

    def _shape(
        self, edges: Array, camera: Camera, world_from_body: Array, region: Region
    ) -> tuple[tuple[Array, Array], Region]:
        """Edges of the convex parts and distances of all pixels to the silhouette of a mesh; their region."""
        if (surface := self.outline.surface) is None:
            return (edges, NOT_DRAWN), region
        reach = round(self.options.bands[2]) + 1
        far = texture_kernels.mesh_contour(surface, world_from_body, calibrated(camera), region, reach)[0]
        return (edges, far), region


def mask_bodies_in_front(
    crop: MaskCrop, own: BodyFaces, others: Sequence[tuple[BodyFaces, Array]], *, beside: bool = True
) -> None:
    """Set the weight of pixels to zero in which one of the other bodies, at its transform, is nearer.

    Outside the predicted body its mean distance is compared, since it may have moved there. `beside` is off for what is
    part of it at the same distance, as a cabinet of its drawer.
    """
    from scipy.ndimage import binary_dilation

    mine, _ = rendered_faces(crop, own, crop.world_from_body)
    if not (known := np.isfinite(mine)).any():
        return
    reach = np.where(known, mine, mine[known].mean() if beside else -np.inf)
    for faces, world_from_body in others:
        front = rendered_faces(crop, faces, world_from_body)[0] < reach
        if front.any():
            crop.weight[binary_dilation(front, iterations=OCCLUDER_MARGIN_PX)] = 0.0


def rendered_faces(crop: MaskCrop, faces: BodyFaces, world_from_body: Array) -> tuple[Array, Array]:
    """Distance [m] and nearest triangle of a body in the pixels of a crop; inf and -1 outside it."""
    depth, owner = np.full(crop.mask.shape, np.inf), np.full(crop.mask.shape, -1)
    shape = (faces.vertices, faces.triangles)
    texture_kernels.render_faces(shape, world_from_body, calibrated(crop.camera), crop.region, depth, owner)
    return depth, owner


@options_dataclass
class TextureOptions:
    """Options of texture points."""

    slots: int = 500
    """Points per camera."""
    wanted: int = 200
    """Fitting points below which more are learned."""
    spacing: int = 6
    """Least distance of neighbouring points [pixels]."""
    min_strength: float = 12.0
    """Smallest eigenvalue of the structure tensor of a corner [squared grey levels per squared pixel]."""
    min_correlation: float = 0.8
    """Correlation of patches from which a point counts as found."""
    reach: float = 30.0
    """Largest distance from the prediction [pixels]."""
    min_facing: float = 0.3
    """Cosine between the normal of a face and the ray from which its points are followed."""
    edge: int = 4
    """Margin inside the silhouette in which no point is learned [pixels]."""
    max_misses: int = 8
    """Misses in a row after which a point is forgotten."""


class BodyTexture:
    """The texture of body number `b`."""

    def __init__(
        self, outline: Outline, cameras: Sequence[Camera], b: int = 0, options: TextureOptions | None = None, *,
        faces: BodyFaces | None = None,
    ):  # fmt: skip
        self._outline, self._cameras, self._b = outline, tuple(cameras), b
        self._faces, self.options = faces or hull_faces(outline), options or TextureOptions()

    def reset(self, memory: LearnedAppearance) -> None:
        """Forget all points."""
        memory.points[self._b] = [TexturePoints.unknown(self.options.slots) for _ in self._cameras]

    def known(self, memory: LearnedAppearance) -> int:
        """The number of points in all cameras."""
        return sum(int(points.known.sum()) for points in memory.points[self._b])

    def follow(
        self, frame: CameraFrame, c: int, world_from_body: Array, memory: LearnedAppearance,
        most: Callable[[int], int] = lambda known: known,
    ) -> PointTracks | None:  # fmt: skip
        """Find the points that should be visible at a predicted pose; None if there are none.

        `most` maps the number of points to the number that may be followed; those are spread evenly.
        """
        points = memory.points[self._b][c]
        slots = self._visible(frame.camera, world_from_body, points)
        taken = most(len(slots))
        if taken < len(slots):
            slots = slots[np.arange(taken) * len(slots) // taken]
        region = body_region(self._outline, frame.camera, world_from_body, AROUND_PX)
        if not len(slots) or region is None or min(region[2] - region[0], region[3] - region[1]) <= AROUND_PX:
            return None
        places, R = points.places[slots], world_from_body[:3, :3]
        predicted, jacobian = project_points(places, world_from_body, frame.camera)
        if not np.isfinite(predicted[0, 0]):
            return None
        warps = jacobian[:, :, :3] @ (R @ points.tangents[slots])
        corner = np.array(region[:2], float)
        at, correlation = predicted - corner, np.zeros(len(slots))
        limits = (self.options.min_correlation, self.options.reach)
        texture_kernels.follow_patches(_pyramid(frame, region), at, warps, points.patches[slots], limits, correlation)
        found = correlation > 0
        return PointTracks(places[found], at[found] + corner, slots[found], slots[~found])

    def learn(
        self, frame: CameraFrame, c: int, world_from_body: Array, crop: MaskCrop, tracks: PointTracks | None,
        memory: LearnedAppearance,
    ) -> None:  # fmt: skip
        """Forget points that do not fit the estimated pose, and learn new ones if there are few."""
        points = memory.points[self._b][c]
        points = replace(points, known=points.known.copy(), misses=points.misses.copy())
        memory.points[self._b][c] = points
        good = 0 if tracks is None else self._judge(frame.camera, world_from_body, tracks, points)
        followed = 0 if tracks is None else tracks.followed
        contradicted = followed >= TEXTURE_POINTS[0] and good < CONFIRMING_SHARE * followed
        if good >= self.options.wanted or contradicted:
            return
        region, (_, owner) = crop.region, rendered_faces(crop, self._faces, world_from_body)
        visible = self._visible(frame.camera, world_from_body, points)
        near = project_points(points.places[visible], world_from_body, frame.camera)[0] - np.array(region[:2])
        # On the body, not near a known point, the body's edge or that of a known occluder.
        free = free_pixels((owner >= 0) & (crop.weight > 0), self.options.edge, near, self.options.spacing)
        allowed = free & (crop.mask * crop.weight > 0.3)
        pyramid, corners = _pyramid(frame, region), np.empty((self.options.wanted - good, 2))
        n = texture_kernels.texture_corners(
            pyramid[0], allowed, self.options.spacing, self.options.min_strength, corners
        )
        unused = np.setdiff1d(np.flatnonzero(points.known), visible)
        slots = np.concatenate([np.flatnonzero(~points.known), unused])[:n]
        corners = corners[: len(slots)]
        patches = np.zeros((len(slots), texture_kernels.LEVELS, texture_kernels.AREA))
        texture_kernels.learn_patches(pyramid, corners, patches)
        new = self._placed(frame.camera, world_from_body, corners, region, owner)
        for field, values in (*new.items(), ("patches", patches)):
            kept = getattr(points, field).copy()
            kept[slots] = values
            points = replace(points, **{field: kept})
        points.known[slots], points.misses[slots] = np.isfinite(patches[:, 0, 0]), 0
        memory.points[self._b][c] = points

    def _visible(self, camera: Camera, world_from_body: Array, points: TexturePoints) -> Array:
        """Slots of the points whose faces are turned to the camera."""
        slots = np.flatnonzero(points.known)
        R, eye = world_from_body[:3, :3], camera.body_from_camera[:3, 3]
        rays = eye - (points.places[slots] @ R.T + world_from_body[:3, 3])
        facing = np.sum(rays * (points.normals[slots] @ R.T), axis=1)
        return slots[facing > self.options.min_facing * np.linalg.norm(rays, axis=1)]

    def _judge(self, camera: Camera, world_from_body: Array, tracks: PointTracks, points: TexturePoints) -> int:
        """Count the misses of points; return the number that fit."""
        at, _ = project_points(tracks.places, world_from_body, camera)
        fits = np.linalg.norm(at - tracks.measured, axis=1) < 3.0 * tracks.sigma
        points.misses[tracks.slots[fits]] = 0
        points.misses[np.concatenate([tracks.slots[~fits], tracks.missed])] += 1
        points.known[:] &= points.misses <= self.options.max_misses
        return int(fits.sum())

    def _placed(
        self, camera: Camera, world_from_body: Array, corners: Array, region: Region, owner: Array
    ) -> dict[str, Array]:
        """Places, tangents and normals of corners [n, 2] on the faces that show them."""
        triangle = owner[corners[:, 1].astype(int), corners[:, 0].astype(int)]
        camera_from_body = np.linalg.inv(camera.body_from_camera) @ world_from_body
        normals = self._faces.normals[triangle] @ camera_from_body[:3, :3].T
        anchors = self._faces.vertices[self._faces.triangles[triangle, 0]] @ camera_from_body[:3, :3].T
        offsets = np.sum(normals * (anchors + camera_from_body[:3, 3]), axis=1)
        body_from_camera = np.linalg.inv(camera_from_body)

        def on_face(step: tuple[float, float]) -> Array:
            rays = rays_through_lens(camera, corners + np.array(region[:2]) + step)
            met = rays * (offsets / np.sum(normals * rays, axis=1))[:, None]
            return met @ body_from_camera[:3, :3].T + body_from_camera[:3, 3]

        here = on_face((0.0, 0.0))
        steps = np.stack([on_face((1.0, 0.0)) - here, on_face((0.0, 1.0)) - here], 2)
        return {"places": here, "tangents": steps, "normals": self._faces.normals[triangle]}


def free_pixels(shown: Array, steps: int, points: Array, spacing: int) -> Array:
    """Pixels that are more than so many steps, along rows and columns, from one that is not shown or outside.

    Those within a square of `spacing` pixels around points [n, 2] do not count.
    """
    ndimage: Any = import_module("scipy.ndimage")
    out: Array = np.asarray(ndimage.distance_transform_cdt(np.pad(shown, 1), metric="taxicab"))[1:-1, 1:-1] > steps
    for x, y in points.astype(int).tolist():
        out[max(y - spacing, 0) : max(y + spacing + 1, 0), max(x - spacing, 0) : max(x + spacing + 1, 0)] = False
    return out


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
