"""The pose of one body from silhouettes and texture in several cameras: maximum a posteriori by Gauss-Newton.

The unknown is a motion xi = (translation, rotation about the body's origin) in the world, applied on the left of the
body's pose in every camera's frame, restricted to the columns of a basis B (all six, or three on a table):

    xi = B eta,  eta <- eta - (B^T (M + P^-1) B)^-1 B^T (g + P^-1 xi),   M = sum of J^T W J / (sigma^2 kappa)

The prior term P^-1 xi stays in after the first iteration, or the prior would be forgotten step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.poses import quat_from_matrix, quat_log
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera

from .body_outlines import MARGIN_PX, Outline, calibrated, project_points, silhouette_kernels
from .camera_rig import MaskCrop, PointTracks
from .silhouette_kernels import BodyMotion, EdgeModel

texture_kernels: Any = import_module("instep.twin.texture_kernels")

MAX_POINT_ERROR = 6.0
"""Points of the texture this far from where they should be pull no more [standard deviations]."""
FAR_POINTS, FEW_FITTING = 8.0, 0.5
"""Where fewer of the points that were found fit than this share, the first steps reach this many times as far: a body
moved by more than a few pixels since it was predicted."""
TEXTURED_SHARE = 0.006
"""Weight of silhouettes beside texture: all pixels of an edge err together where a body is not quite its shape."""
TEXTURE_POINTS = (12, 100)
"""Points in all cameras up to which silhouettes keep their weight, and from which they weigh so little."""
CONFIRMING_SHARE = 0.35
"""Share of the points that should be visible which must fit a pose, and as many points, for texture to confirm it."""
FREE_MOTIONS = np.eye(6)
"""Motions of a free body: three translations, three rotations."""
MIN_STEP = 0.2
"""Gauss-Newton ends after a step below this [standard deviations of the solution]."""


@options_dataclass
class PixelNoise:
    """The noise model of pixels: how a residual is weighted."""

    sigma: float
    """Standard deviation of a pixel [share of full scale]."""
    kappa: float = 5.0
    """Number of pixels whose errors are correlated: pixels along one edge err together."""
    robust: float
    """Huber threshold: a residual beyond this pulls no harder [share of full scale]."""

    @property
    def scale(self) -> float:
        """Weight of a squared residual."""
        return 1.0 / (self.sigma**2 * self.kappa)


MASK_NOISE = PixelNoise(sigma=0.25, robust=0.5)
"""Noise of silhouette masks."""
EDGE_WIDTH_PX = 0.7
"""Width of the edge of a silhouette [pixels]."""


@options_dataclass
class FitWeights:
    """How pixels of a silhouette and points of texture weigh."""

    noise: PixelNoise = MASK_NOISE
    share: float = 1.0
    """Weight of silhouettes beside texture."""
    far: float = 1.0
    """How many times as far away as usual points of texture pull from."""


@options_dataclass
class SolveOptions:
    """Options of the search for a motion."""

    noise: PixelNoise = MASK_NOISE
    more: Callable[[], bool] = lambda: True
    """Whether there is time for an iteration, asked before each but the first."""
    share: float | None = None
    """Weight of silhouettes beside texture; by the number of its points if None."""
    start: Array | None = None
    """Motion at which the search begins [6]."""


@array_dataclass
class SilhouetteFit:
    """How the pixels of one camera agree with a pose."""

    information: Array
    """J^T W J / (sigma^2 kappa) along the columns of the basis [k, k]."""
    gradient: Array
    """J^T W r / (sigma^2 kappa) [k]."""
    residual: float
    """Root mean square of mask residuals over the pixels that count [share]."""
    overlap: float
    """Intersection over union of predicted and shown silhouette, over the pixels that count."""
    visible: float
    """Share of the predicted silhouette that nothing occludes."""
    shown: float
    """Area that shows the body, over the predicted area that nothing occludes."""
    fitting: float = 1.0
    """Share of the points of the texture that were found which fit the pose; 1 where there are none."""
    confirmed: bool = False
    """Whether points of the texture fit the pose, whatever silhouettes say: the background may share its colours."""


@array_dataclass
class PoseSolution:
    """A motion of the body, its covariance, and how each camera agrees with it."""

    xi: Array
    """Translation [m] and rotation [rad] from the prediction [6]."""
    covariance: Array
    """Of xi [6, 6]."""
    information: Array
    """Information of the cameras alone, along the columns of the basis [k, k]."""
    fits: tuple[SilhouetteFit, ...]
    left_out: int = 0
    """Steps that there was no time for."""


def solve_pose(
    outline: Outline, crops: Sequence[MaskCrop], prior: Array, basis: Array, iterations: int = 3,
    options: SolveOptions | None = None,
) -> PoseSolution:  # fmt: skip
    """The most likely motion of a body, given the covariance [6, 6] of its prediction.

    Where silhouettes barely overlap, or few points fit, the first iterations reach farther.
    """
    options = options or SolveOptions()
    prior_information = np.linalg.inv(basis.T @ prior @ basis)
    eta = np.zeros(basis.shape[1]) if options.start is None else np.linalg.pinv(basis) @ options.start
    few, many = TEXTURE_POINTS
    points = sum(len(crop.points.places) for crop in crops if crop.points is not None)
    textured = TEXTURED_SHARE ** min(max((points - few) / (many - few), 0.0), 1.0)
    weight = textured if options.share is None else options.share

    def compare(soft: float, far: float = 1.0) -> tuple[SilhouetteFit, ...]:
        weights = FitWeights(noise=options.noise, share=weight, far=far)
        return tuple(compare_silhouette(outline, crop, basis @ eta, soft, basis, weights) for crop in crops)

    fits = compare(EDGE_WIDTH_PX)
    left_out = 0
    for left in range(iterations, 0, -1):
        if left < iterations and not options.more():
            left_out = left
            break
        soft = edge_width(fits) if left > 1 else EDGE_WIDTH_PX
        far = FAR_POINTS if left > 1 and any(fit.fitting < FEW_FITTING for fit in fits) else 1.0
        near = soft == EDGE_WIDTH_PX and far == 1
        compared = fits if near else compare(soft, far)
        curvature = sum((fit.information for fit in compared), prior_information)
        step = np.linalg.solve(curvature, sum((fit.gradient for fit in compared), prior_information @ eta))
        eta = eta - step
        if near and step @ curvature @ step < MIN_STEP**2:
            break  # the fits before so small a step still hold
        fits = compare(EDGE_WIDTH_PX)
    information = sum((fit.information for fit in fits), np.zeros_like(prior_information))
    covariance = np.linalg.inv(information + prior_information)
    return PoseSolution(basis @ eta, basis @ covariance @ basis.T, information, fits, left_out)


def compare_silhouette(
    outline: Outline, crop: MaskCrop, xi: Array | None = None, soft: float = EDGE_WIDTH_PX, basis: Array = FREE_MOTIONS,
    weights: FitWeights | None = None,
) -> SilhouetteFit:  # fmt: skip
    """How the pixels of a camera agree with the body moved by xi, and how that changes along the columns of a basis."""
    weights = weights or FitWeights()
    noise, share, far = weights.noise, weights.share, weights.far
    margin = MARGIN_PX if soft < 1 else 4 * MARGIN_PX
    motion: BodyMotion = (crop.world_from_body, np.zeros(6) if xi is None else xi, basis)
    edge: EdgeModel = (soft, noise.robust)
    H, g, tally = _silhouette_equations(outline, crop, motion, edge, margin)
    if tally[7] <= 0:
        return SilhouetteFit(H, g, 1.0, 0.0, 0.0, 0.0)
    information, gradient = H * noise.scale * share, g * noise.scale * share
    confirmed, found, share_fitting = False, 0.0, 1.0
    if crop.points is not None and len(crop.points.places):
        by_points, slope, fitting = _point_equations(crop.points, crop, motion, far * MAX_POINT_ERROR)
        information, gradient = information + by_points, gradient + slope
        share_fitting, found = fitting / len(crop.points.places), fitting / crop.points.followed
        confirmed = bool(fitting >= TEXTURE_POINTS[0] and found >= CONFIRMING_SHARE)
    squared, counts, both, either, covered, free, shows, area = tally.tolist()
    return SilhouetteFit(
        information,
        gradient,
        (squared / max(counts, 1e-9)) ** 0.5,
        both / max(either, 1e-9),
        max(free / max(area, covered, 1e-9), found if confirmed else 0.0),
        shows / max(free, 1e-9) if free > 1 else 0.0,
        share_fitting,
        confirmed,
    )


def mean_overlap(fits: Sequence[SilhouetteFit]) -> float:
    """The overlap over all cameras, weighted by what they show of the body; full where texture confirms the pose."""
    agreed = sum((1.0 if fit.confirmed else fit.overlap) * fit.visible for fit in fits)
    return agreed / max(sum(fit.visible for fit in fits), 1e-9)


def _point_equations(
    tracks: PointTracks, crop: MaskCrop, motion: BodyMotion, limit: float
) -> tuple[Array, Array, float]:
    """J^T W J and J^T W r of points on a body, by Tukey's weights with a limit [standard deviations], and their sum."""
    world_from_body, xi, basis = motion
    shown, jacobian = project_points(tracks.places, moved(world_from_body, xi), crop.camera)
    if not np.isfinite(shown[0, 0]):
        n = int(basis.shape[1])
        return np.zeros((n, n)), np.zeros(n), 0.0
    off = shown - tracks.measured
    weight = np.maximum(1.0 - np.sum(off * off, axis=1) / (tracks.sigma * limit) ** 2, 0.0) ** 2
    J: Array = np.reshape(jacobian @ basis, (-1, basis.shape[1]))
    weighted: Array = J * np.repeat(weight / tracks.sigma**2, 2)[:, None]
    return weighted.T @ J, weighted.T @ off.ravel(), float(weight.sum())


def _silhouette_equations(
    outline: Outline, crop: MaskCrop, motion: BodyMotion, edge: EdgeModel, margin: int
) -> tuple[Array, Array, Array]:
    """Normal equations and tally by the convex parts of a body, or by its surface."""
    camera = calibrated(crop.camera)
    if outline.surface is None:
        return silhouette_kernels.pose_equations(outline.convex_parts, motion, camera, crop.pixels, edge, margin)
    here = moved(motion[0], motion[1])
    drawn = texture_kernels.mesh_contour(outline.surface, here, camera, crop.region, math.ceil(6 * edge[0]))
    return texture_kernels.mesh_equations(drawn, (here, motion[2]), camera, crop.pixels, edge)


def moved(world_from_body: Array, xi: Array) -> Array:
    """A transform (4 x 4) moved by xi: translated, and rotated about the body's own origin."""
    return np.asarray(silhouette_kernels.moved_transform(world_from_body, xi))


def motion_between(before: Array, after: Array) -> Array:
    """The motion xi [6] that takes a transform to another: translation, and rotation about the body's origin."""
    turn = quat_log(quat_from_matrix(after[:3, :3] @ before[:3, :3].T))
    return np.concatenate([after[:3, 3] - before[:3, 3], turn])


def planar_basis(normal: Array) -> Array:
    """Motions on a plane [6, 3]: two translations along it, one rotation about its normal."""
    # By hand: this is computed for each body and image, and numpy takes half a millisecond for two cross products.
    x, y, z = (normal / math.hypot(*normal)).tolist()
    first = (y, -x, 0.0) if abs(z) < 0.9 else (-z, 0.0, x)
    a, b, c = (one / math.hypot(*first) for one in first)
    basis = np.zeros((6, 3))
    basis[:3, 0], basis[:3, 1], basis[3:, 2] = (a, b, c), (y * c - z * b, z * a - x * c, x * b - y * a), (x, y, z)
    return basis


def edge_width(fits: Sequence[SilhouetteFit]) -> float:
    """Softer edges the less the silhouettes overlap; 0.8 is a body a few pixels off.

    The best of the cameras that show the body well counts: where only others fit badly, something hides it there.
    """
    most = max((fit.visible for fit in fits), default=0.0)
    best = max((fit.overlap for fit in fits if fit.visible > max(0.5 * most, 0.1)), default=1.0)
    return EDGE_WIDTH_PX if best > 0.8 else 2.0 if best > 0.6 else 5.0


SYSTEMATIC_PX = 1.0
"""Common error of all pixels of a silhouette by learned colours, as standard deviation [pixels]."""
COMPARABLE = np.array([1.0] * 3 + [0.1] * 3)
"""A length of 0.1 m makes rotations and translations comparable."""


def innovation_numbers(found: PoseSolution | None, prior: Array, basis: Array, bias: float) -> dict[str, float]:
    """Numbers of one correction: nis, shift [m], turn [rad], residual, sigma [m], weakest_sigma [m], visible.

    Without a correction those that need an image are NaN.
    """
    if found is None:
        return dict.fromkeys(("nis", "residual", "weakest_sigma"), np.nan)
    M, prior_information = found.information, np.linalg.inv(basis.T @ prior @ basis)
    eta = basis.T @ found.xi
    gradient = (M + prior_information) @ eta
    nis = gradient @ (np.linalg.pinv(M) - np.linalg.inv(M + prior_information)) @ gradient
    # The weakest direction is the least observable.
    scale = np.diag(1.0 / np.linalg.norm(COMPARABLE[:, None] * basis, axis=0))
    return {
        "nis": float(nis),
        "shift": float(np.linalg.norm(found.xi[:3])),
        "turn": float(np.linalg.norm(found.xi[3:])),
        "residual": float(np.mean([fit.residual for fit in found.fits])),
        "sigma": float(np.sqrt(np.trace(found.covariance[:3, :3]) + bias**2)),
        "weakest_sigma": float(np.linalg.eigvalsh(scale @ M @ scale)[0] ** -0.5) if M.any() else np.inf,
        "visible": max(fit.visible for fit in found.fits),
    }


def systematic_spread(cameras: Sequence[Camera], world_from_body: Array, reach: float, basis: Array) -> float:
    """Standard deviation of a position by the common errors of a silhouette [m].

    Each camera is taken to show a body of radius `reach` [m] with an error of `SYSTEMATIC_PX` in both image coordinates
    and in size: wrong shape, shadows, similar colours. Neither averaging nor innovations reveal it.
    """
    information = np.zeros((3, 3))
    for camera in cameras:
        R, f = camera.body_from_camera[:3, :3], camera.focal
        x, y, z = R.T @ (world_from_body[:3, 3] - camera.body_from_camera[:3, 3])
        shown = np.array(
            [f[0] * (R[:, 0] - x / z * R[:, 2]), f[1] * (R[:, 1] - y / z * R[:, 2]), reach * f[0] / z * R[:, 2]]
        )
        information += shown.T @ shown / z**2
    directions = basis[:3, np.any(basis[:3] != 0, axis=0)]
    directions: Array = directions / np.linalg.norm(directions, axis=0)
    return SYSTEMATIC_PX * float(np.sqrt(np.trace(np.linalg.inv(directions.T @ information @ directions))))


def camera_excess(fits: Sequence[SilhouetteFit]) -> list[float]:
    """Distance of each camera's own optimum from that of the others, less the largest distance among those [m]."""
    M, g = np.stack([fit.information for fit in fits]), np.stack([fit.gradient for fit in fits])
    small = 1e-3 * np.eye(g.shape[1]) * np.trace(M, axis1=1, axis2=2).max()
    # First each camera alone, then all others.
    curvature, slope = np.concatenate([M, M.sum(axis=0) - M]) + small, np.concatenate([g, g.sum(axis=0) - g])
    wanted: Array = -np.asarray(np.linalg.solve(curvature, slope[..., None]), float)[:, :2, 0]
    steps, agreed = wanted[: len(fits)], wanted[len(fits) :]
    apart: Array = np.asarray(np.linalg.norm(steps - agreed[:, None], axis=-1), float)
    own = np.diag(apart).copy()
    np.fill_diagonal(apart, 0.0)
    return list(own - apart.max(axis=1))


SLOW_M_S = 0.02
"""Speed below which the image delay is not observable [m/s]."""


def image_delay(drag: Array, xi: Array, past: Array, times: Array) -> float:
    """Delay of the images beyond their stamps [s]: the mean correction against the body's motion, over its speed.

    Images that are late by d pull a body that moves at v back by d v. `drag` [2] holds the running means of both over
    about ten frames; a body at rest gives zero.
    """
    v = (past[-1, :3] - past[-7, :3]) / max(float(times[-1] - times[-7]), 1e-9)
    drag += 0.1 * (np.array([-xi[:3] @ v, v @ v]) - drag)
    return float(drag[0] / (drag[1] + SLOW_M_S**2))


def grown_covariance(covariance: Array) -> Array:
    """The covariance [..., 6, 6] of poses after a frame without a correction."""
    ceiling = np.diag([0.05**2] * 3 + [0.5**2] * 3)
    return np.minimum(covariance + 0.01 * ceiling, ceiling)
