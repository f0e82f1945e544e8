"""The photometric residual of the pose filter: rendered Gaussians of a body against the pixels of a camera.

With I(xi) the image of the Gaussians after a motion xi of the body and Y what the camera shows under the current
illumination, the residual is I(xi) - Y / gain, with a Huber threshold. Its normal equations are added to those of the
silhouettes, which give the coarse pose; colours refine it.

A body without a scan gets flat Gaussians on the faces of its convex parts. Each lies half a cell inside the border of
its face and is so narrow that the sum of all falls to one half at the border, the edge that a camera shows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.poses import pose, quat_from_matrix
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera
from instep.splat.gaussians import C0, Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop
from instep.splat.raster.pose_normals import PoseNormalEquations, TargetImage, pose_normals
from instep.splat.raster.rasterizer import Rasterizer

from .body_outlines import Outline, calibrated, silhouette
from .camera_rig import CameraFrame, MaskCrop
from .pose_solver import PixelNoise, PoseSolution, SilhouetteFit, moved
from .silhouette_kernels import ScaledImage, SurfacePoints

COLOUR_GAIN = 0.03
"""Share of the observed colour that a Gaussian takes over per frame."""
COLOUR_UPDATE_FRAMES = 30
"""Frames from one use of newly learned colours to the next."""
COLOUR_NOISE = PixelNoise(sigma=0.1, robust=0.15)
"""Noise of the colours of pixels against those of the Gaussians."""
CELL_M = 0.012
"""Side of the cells of a face [m], about four pixels of a camera three quarters of a metre away."""
WIDTH_CELLS = 0.32
"""Standard deviation of a Gaussian along its face [cells]."""
THICKNESS_M = 5e-4
"""Standard deviation across it [m]."""
OPACITY = 0.97
FACE_TOLERANCE_M = 1e-5
"""Corners this near to a plane lie on it [m]."""


@array_dataclass
class SurfaceGaussians:
    """Gaussians on the surface of a body, and the direction each faces."""

    gaussians: Gaussians
    normals: Array
    """Outward normals in the body's frame [n, 3]; zero for Gaussians that are seen from all sides."""

    def with_colours(self, colours: Array) -> Gaussians:
        """The Gaussians in colours [n, 3] (0 to 1)."""
        return replace(self.gaussians, sh=((colours - 0.5) / C0)[:, None, :])


@array_dataclass
class BodyColours:
    """What is known of the colours of a body; a value, so that a run can be repeated."""

    used: Array
    """Colours that are compared [n, 3]; NaN before the body was seen."""
    latest: Array
    """Colours as last seen [n, 3]."""
    age: int
    """Frames since `used` was updated."""
    light: Array
    """Chroma of the body in each camera when its colours were first learned [cameras] [grey levels]."""

    def updated(self, latest: Array) -> BodyColours:
        """The colours with what was newly learned, which is put to use every few frames."""
        due = self.age + 1 >= COLOUR_UPDATE_FRAMES or not np.isfinite(self.used).all()
        return replace(self, used=latest if due else self.used, latest=latest, age=0 if due else self.age + 1)

    def to_memory(self, body: str) -> dict[str, Array]:
        """The arrays that a filter remembers, by name."""
        values = {"used": self.used, "latest": self.latest, "age": np.asarray(self.age), "light": self.light}
        return {f"{body}.{word}": value for word, value in values.items()}

    @classmethod
    def from_memory(cls, memory: Mapping[str, Array], body: str) -> BodyColours:
        """The colours of a body that a filter remembers."""
        used, latest, age, light = (memory[f"{body}.{word}"] for word in ("used", "latest", "age", "light"))
        return cls(used, latest, int(age), light)


class PhotometricResidual:
    """Compares rendered Gaussians of one body with the images of cameras."""

    def __init__(self, surface: SurfaceGaussians):
        self.surface = surface
        self._raster = Rasterizer(surface.gaussians, threads=1)
        self._colours: Array = surface.gaussians.colours
        self._local = threading.local()

    @classmethod
    def of(cls, outline: Outline, colour: Array, scan: Gaussians | None = None) -> PhotometricResidual:
        """Of the Gaussians of a scan, else of flat ones of one colour on the surface of the outline."""
        if scan is None:
            return cls(surface_gaussians(outline, colour))
        return cls(SurfaceGaussians(scan.on(outline.name), np.zeros((len(scan), 3))))

    def unknown(self, cameras: int) -> BodyColours:
        """The colours before the body was seen."""
        none = np.full((len(self.surface.gaussians), 3), np.nan)
        return BodyColours(none, none.copy(), 0, np.ones(cameras))

    def equations(
        self, crops: Sequence[MaskCrop], frames: Sequence[CameraFrame], gains: Sequence[float], xi: Array,
        colours: BodyColours,
    ) -> list[PoseNormalEquations]:  # fmt: skip
        """Normal equations of each crop at a motion xi of the body: along the world's axes, about its own origin."""
        raster, found = self._coloured(colours.used), list[PoseNormalEquations]()
        for crop, frame, gain in zip(crops, frames, gains, strict=True):
            at = pose(moved(crop.world_from_body, xi))[None]
            left, top, right, bottom = crop.region
            target, weight, background = self._buffers(crop.camera)
            part = frame.pixels[top:bottom, left:right]
            target[top:bottom, left:right] = part * np.float32(1 / (255 * gain))
            weight[top:bottom, left:right] = crop.weight
            background.colour[top:bottom, left:right] = self._background(crop, target[top:bottom, left:right])
            view = TargetImage(crop.camera, target, weight, background, crop.region)
            found += pose_normals(raster, [view], at, self.surface.gaussians.names, huber=COLOUR_NOISE.robust)
        return found

    def compare(
        self, crops: Sequence[MaskCrop], frames: Sequence[CameraFrame], gains: Sequence[float], colours: BodyColours
    ) -> tuple[float, Array]:
        """The root mean square difference of the body's pixels from its colours, and its latest colours [n, 3].

        Only the pixels at the centres of the Gaussians are sampled, which takes a hundredth of the time of rendering.
        """
        seen, squared, count = np.zeros((len(colours.latest), 4)), 0.0, 0.0
        surface: SurfacePoints = (self.surface.gaussians.means, self.surface.normals, colours.latest)
        for crop, frame, gain in zip(crops, frames, gains, strict=True):
            image: ScaledImage = (frame.pixels, 1 / (255 * gain))
            more = silhouette.sample_colours(
                surface, crop.world_from_body, calibrated(crop.camera), crop.pixels, image, seen
            )
            squared, count = squared + more[0], count + more[1]
        # Before colours are known nothing differs from them: the error is zero, not missing.
        error = (squared / count) ** 0.5 if count else 0.0
        known = seen[:, 3] > 0
        if not known.any():
            return error, colours.latest
        now = seen[:, :3] / np.maximum(seen[:, 3:], 1)
        mean = seen[known, :3].sum(axis=0) / seen[known, 3].sum()
        before = np.where(np.isfinite(colours.latest), colours.latest, np.where(known[:, None], now, mean))
        return error, np.where(known[:, None], before + COLOUR_GAIN * (now - before), before)

    def _coloured(self, colours: Array) -> Rasterizer:
        if not np.array_equal(self._colours, colours):
            self._raster, self._colours = self._raster.updated(self.surface.with_colours(colours)), colours.copy()
        return self._raster

    def _background(self, crop: MaskCrop, target: Array) -> Array:
        """The background where it is known, else the median colour of the pixels beside the body."""
        if crop.background is not None:
            return crop.background * np.float32(1 / 255)
        beside = target[::3, ::3][(crop.mask[::3, ::3] < 0.05) & (crop.weight[::3, ::3] > 0)]
        return np.median(beside, axis=0) if len(beside) else np.zeros(3, np.float32)

    def _buffers(self, camera: Camera) -> tuple[Array, Array, Backdrop]:
        """Whole images of a camera, of which one region is filled anew each time."""
        kept: dict[str, tuple[Array, Array, Backdrop]] = self._local.__dict__
        if camera.name not in kept:
            shape = (camera.height, camera.width)
            far = np.full(shape, np.inf, np.float32)
            background = Backdrop(np.zeros((*shape, 3), np.float32), far)
            kept[camera.name] = (np.zeros((*shape, 3), np.float32), np.zeros(shape, np.float32), background)
        return kept[camera.name]


def photometric_step(
    found: PoseSolution, equations: Sequence[PoseNormalEquations], prior: Array, basis: Array, masks: bool
) -> PoseSolution:
    """One more Gauss-Newton step, by the colours of pixels and, where `masks` is set, by silhouettes."""
    prior_information = np.linalg.inv(basis.T @ prior @ basis)
    eta = basis.T @ found.xi
    fits = [_combined(fit, e, basis, masks) for fit, e in zip(found.fits, equations, strict=True)]
    information = sum((fit.information for fit in fits), np.zeros_like(prior_information))
    gradient = sum((fit.gradient for fit in fits), np.zeros(len(eta)))
    covariance = np.linalg.inv(information + prior_information)
    eta = eta - covariance @ (gradient + prior_information @ eta)
    return PoseSolution(basis @ eta, basis @ covariance @ basis.T, information, tuple(fits))


def _combined(fit: SilhouetteFit, equations: PoseNormalEquations, basis: Array, masks: bool) -> SilhouetteFit:
    information = COLOUR_NOISE.scale * (basis.T @ equations.information[0] @ basis)
    gradient = COLOUR_NOISE.scale * (basis.T @ equations.gradient[0])
    if masks:
        information, gradient = information + fit.information, gradient + fit.gradient
    return replace(fit, information=information, gradient=gradient)


def surface_gaussians(outline: Outline, colour: Array, cell: float = CELL_M) -> SurfaceGaussians:
    """Flat Gaussians of one colour on the surface of a body."""
    hulls = [_hull(part) for part in outline.parts]
    means, quats, normals = list[Array](), list[Array](), list[Array]()
    for i, part in enumerate(outline.parts):
        for plane in np.unique(hulls[i].round(6), axis=0):
            points, quat = _cells(part, plane, cell)
            points = points[~_covered(points, plane[:3], [hull for j, hull in enumerate(hulls) if j != i])]
            means.append(points - THICKNESS_M * plane[:3])
            quats.append(np.tile(quat, (len(points), 1)))
            normals.append(np.tile(plane[:3], (len(points), 1)))
    n = sum(len(rows) for rows in means)
    scales = np.tile([WIDTH_CELLS * cell, WIDTH_CELLS * cell, THICKNESS_M], (n, 1))
    colours, opacities = np.tile(np.asarray(colour, float)[:3], (n, 1)), np.full(n, OPACITY)
    flat = gaussians_from_colours(
        np.concatenate(means), scales, colours, quats=np.concatenate(quats), opacities=opacities
    )
    return SurfaceGaussians(flat.attached_to(outline.name), np.concatenate(normals))


def _hull(points: Array) -> Array:
    """Planes of a convex hull [faces, 4], n . x + d = 0 with n outward."""
    spatial: Any = import_module("scipy.spatial")
    return np.asarray(spatial.ConvexHull(points).equations, float)


def _cells(part: Array, plane: Array, cell: float) -> tuple[Array, Array]:
    """Centres of the cells of a face [n, 3], and the orientation wxyz whose third axis is its normal."""
    normal = plane[:3]
    across = np.cross(normal, [1.0, 0.0, 0.0] if abs(normal[0]) < 0.9 else [0.0, 1.0, 0.0])
    across /= np.linalg.norm(across)
    axes = np.stack([across, np.cross(normal, across)])
    flat = part[np.abs(part @ normal + plane[3]) < FACE_TOLERANCE_M] @ axes.T
    low, high = flat.min(axis=0), flat.max(axis=0)
    count = np.maximum(np.rint((high - low) / cell), 1).astype(int)
    cells = np.asarray(np.indices(tuple(count.tolist())), float).reshape(2, -1).T
    grid = low + (cells + 0.5) / count * (high - low)
    border = _hull(flat)
    inside = grid[(grid @ border[:, :2].T + border[:, 2] < 0).all(axis=1)]
    return inside @ axes - plane[3] * normal, quat_from_matrix(np.stack([*axes, normal], axis=1))


def _covered(points: Array, normal: Array, others: list[Array]) -> Array:
    """Whether another part covers a face at these points [n]."""
    before = points + 1e-4 * normal
    covered = np.zeros(len(points), bool)
    for hull in others:
        covered |= (before @ hull[:, :3].T + hull[:, 3] < 1e-6).all(axis=1)
    return covered
