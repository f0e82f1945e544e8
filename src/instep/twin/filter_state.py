"""State and options of the pose filter, and the statistics of its innovations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from instep.core.world import Array, State, options_dataclass
from instep.scene.camera import Camera

from .body_appearance import LearnedAppearance
from .camera_frames import ImageState, WorkState
from .pose_solver import MASK_NOISE, PixelNoise, PoseSolution, SilhouetteFit
from .tracked_body import StartPose

Residual: TypeAlias = Literal["auto", "mask", "learned"]
"""Segmentation of bodies: by the colour of the scene (mask), by learned colours and texture (learned), or auto."""
HISTORY = 32
"""Past estimates: half a second at 60 Hz, more than the latency of any useful camera."""
SMOOTHING = 0.2
"""Gain of the running means of chroma and of camera disagreement."""
SYSTEMATIC_PX = 1.0
"""Common error of all pixels of a silhouette by learned colours, as standard deviation [pixels]."""
COMPARABLE = np.array([1.0] * 3 + [0.1] * 3)
"""A length of 0.1 m makes rotations and translations comparable."""
SLOW_M_S = 0.02
"""Speed below which the image delay is not observable [m/s]."""


@options_dataclass
class FilterOptions:
    """Options of the pose filter."""

    residual: Residual = "auto"
    """Auto is mask if the first images show the only body in its colour, and learned otherwise."""
    iterations: int = 3
    """Gauss-Newton steps."""
    mask_noise: PixelNoise = MASK_NOISE
    position_sigma: tuple[float, float] = (1e-4, 6e-3)
    """Least and largest standard deviation of a predicted position [m]; recent innovations choose between them."""
    orientation_sigma: tuple[float, float] = (7e-4, 6e-2)
    """The same for an orientation [rad]."""
    min_visible: float = 0.15
    """Least unoccluded share of the silhouette in a camera that is used."""
    min_shown: float = 0.3
    """Least share of that in the body's colour; below, something unknown occludes it."""
    inertia: float = 0.2
    """Share of a correction that changes the velocity."""
    lost_after: int = 12
    """Frames without sight of an unoccluded body after which a global search starts."""
    min_overlap: float = 0.65
    """Overlap over all cameras, weighted by visibility, below which the estimate is doubtful."""
    misfit_after: int = 4
    """Doubtful frames after which a global search starts."""
    bias: float = 6e-4
    """Systematic error of silhouettes by shading, shape and lens, part of the reported standard deviation [m]."""
    max_disagreement: float = 0.004
    """Disagreement with the other cameras from which a camera is excluded [m]."""
    exclude_after: int = 8
    """Frames of such disagreement."""
    starts: Mapping[str, StartPose] = field(default_factory=dict[str, StartPose])
    """Where bodies start; the others are searched."""
    held_out: tuple[str, ...] = ()
    """Held-out cameras: scored, but not used by the correction."""
    joints_known: bool = True
    """Whether the robot's joints are known: bodies are moved out of the robot, and pixels it occludes do not count."""


@dataclass(slots=True)
class FilterState:
    """State of the pose filter from frame to frame."""

    t: Array
    """Times of the past estimates [HISTORY]."""
    poses: Array
    """Past estimates, xyz + wxyz [HISTORY, bodies, 7]."""
    joints: Array
    """Past positions of the world [HISTORY, nq]."""
    spread: Array
    """Standard deviations of predicted position [m] and orientation [rad] [bodies, 2]."""
    covariance: Array
    """Of each pose [bodies, 6, 6]."""
    frames_lost: Array
    """Frames in a row without sight of a body [bodies]."""
    misfits: Array
    """Doubtful frames in a row [bodies]."""
    drag: Array
    """Running means of the image delay estimate [bodies, 2]."""
    ambiguous: Array
    """Other orientations that fit the first image as well [bodies]."""
    strength: Array
    """Chroma of the body in each camera [grey levels] [cameras]."""
    disagreement: Array
    """Running mean of the disagreement of each camera [m] [cameras]."""
    disagreeing: Array
    """Frames in a row above the limit [cameras]."""
    excluded: Array
    """Excluded cameras [cameras]."""
    images: ImageState
    work: WorkState
    learned: LearnedAppearance | None = None
    """None if bodies are segmented by the colour of the scene."""

    @classmethod
    def unknown(cls, state: State, bodies: int, cameras: int, options: FilterOptions) -> FilterState:
        """The state before the first image."""
        # The geometric mean of the bounds: the unknown start is in the covariance, not in the prediction error.
        spread = np.sqrt([np.prod(options.position_sigma), np.prod(options.orientation_sigma)])
        return cls(
            t=np.full(HISTORY, state.t), poses=np.zeros((HISTORY, bodies, 7)), joints=np.tile(state.q, (HISTORY, 1)),
            spread=np.tile(spread, (bodies, 1)), covariance=np.tile(widest_covariance(options), (bodies, 1, 1)),
            frames_lost=np.zeros(bodies, int), misfits=np.zeros(bodies, int), drag=np.zeros((bodies, 2)),
            ambiguous=np.zeros(bodies, int), strength=np.full(cameras, 100.0), disagreement=np.zeros(cameras),
            disagreeing=np.zeros(cameras, int), excluded=np.zeros(cameras, bool),
            images=ImageState.unknown(cameras, state.t), work=WorkState.unknown(bodies, cameras),
        )  # fmt: skip

    def copy(self) -> FilterState:
        """A copy that may be changed."""
        changes: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(self, **{name: None if value is None else value.copy() for name, value in changes.items()})


def widest_covariance(options: FilterOptions) -> Array:
    """The covariance [6, 6] of a pose that is only known to be near."""
    return np.diag([options.position_sigma[1] ** 2] * 3 + [options.orientation_sigma[1] ** 2] * 3)


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


def exclude_outlier(
    fits: Sequence[SilhouetteFit], used: Sequence[int], state: FilterState, options: FilterOptions
) -> dict[int, float]:
    """Exclude a camera that keeps disagreeing with the others; returns the disagreement by camera [m]."""
    if len(used) < 3:
        return {}
    for c, excess in zip(used, camera_excess(fits), strict=True):
        state.disagreement[c] += SMOOTHING * (excess - state.disagreement[c])
        apart = state.disagreement[c] > options.max_disagreement
        state.disagreeing[c] = state.disagreeing[c] + 1 if apart else 0
    worst = max(used, key=lambda c: float(state.disagreement[c]))
    if state.disagreeing[worst] >= options.exclude_after:
        state.excluded[worst] = True
    return {c: float(state.disagreement[c]) for c in used}


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


def image_delay(drag: Array, xi: Array, past: Array, times: Array) -> float:
    """Delay of the images beyond their stamps [s]: the mean correction against the body's motion, over its speed.

    Images that are late by d pull a body that moves at v back by d v. `drag` [2] holds the running means of both over
    about ten frames; a body at rest gives zero.
    """
    v = (past[-1, :3] - past[-7, :3]) / max(float(times[-1] - times[-7]), 1e-9)
    drag += 0.1 * (np.array([-xi[:3] @ v, v @ v]) - drag)
    return float(drag[0] / (drag[1] + SLOW_M_S**2))


def adapted_spread(spread: Array, xi: Array, options: FilterOptions) -> Array:
    """Standard deviations of predictions, adapted to the last innovations within their bounds."""
    new = np.sqrt(0.9 * spread**2 + 0.1 * np.array([np.sum(xi[:3] ** 2) / 2, np.sum(xi[3:] ** 2)]))
    low, high = np.array([options.position_sigma, options.orientation_sigma]).T
    return np.clip(new, low, high)


def grown_covariance(covariance: Array) -> Array:
    """The covariance [..., 6, 6] of poses after a frame without a correction."""
    ceiling = np.diag([0.05**2] * 3 + [0.5**2] * 3)
    return np.minimum(covariance + 0.01 * ceiling, ceiling)
