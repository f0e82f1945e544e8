"""Options of the pose filter: what it compares, and how much it trusts physics and images.

Innovations of the pose filter: their consistency and size, what they say of cameras and of the age of images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, TypeAlias

import numpy as np

from instep.core.world import Array, State, options_dataclass
from instep.scene.camera import Camera

from .pose_solver import MASK_NOISE, PixelNoise, PoseSolution, SilhouetteFit
from .tracked_body import StartPose

Residual: TypeAlias = Literal["auto", "mask", "learned", "region", "photo", "both"]
"""What a pose filter compares."""
LEARNED = ("learned", "region")
"""Residuals for which nobody has to name a colour."""


@options_dataclass
class FilterOptions:
    """How much the filter trusts physics and images."""

    residual: Residual = "auto"
    """What is compared: silhouettes in the colour that the scene gives the body (mask), silhouettes by colours that are
    learned (region), these and points of the body's texture (learned), colours of pixels (photo), or both mask and
    photo. Auto is mask where the first images show the only body in its colour, and learned everywhere else."""
    iterations: int = 3
    """Gauss-Newton steps by silhouettes; one more follows by colours, two without silhouettes."""
    mask_noise: PixelNoise = MASK_NOISE
    position_sigma: tuple[float, float] = (1e-4, 6e-3)
    """Least and largest standard deviation of a predicted position [m]; between them the last innovations decide."""
    orientation_sigma: tuple[float, float] = (7e-4, 6e-2)
    """The same for an orientation [rad]."""
    min_visible: float = 0.15
    """Share of the silhouette that must not be occluded for a camera to be used."""
    min_shown: float = 0.3
    """Share of that which must show the body's colour; below, something unknown occludes it."""
    inertia: float = 0.2
    """Share of a correction that is taken for a change of velocity."""
    lost_after: int = 12
    """Frames in which no camera shows a body that nothing is known to occlude, after which a global search starts."""
    min_overlap: float = 0.65
    """Overlap over all cameras, weighted by visibility, below which the estimate is doubtful."""
    misfit_after: int = 4
    """Frames of such overlap after which a global search starts."""
    bias: float = 6e-4
    """Systematic error of silhouettes by shading, shape and lens [m]. Part of the reported standard deviation."""
    max_disagreement: float = 0.004
    """A camera that keeps disagreeing with the others by this much is excluded [m]."""
    exclude_after: int = 8
    """Frames of such disagreement."""
    starts: Mapping[str, StartPose] = field(default_factory=dict[str, StartPose])
    """Where bodies start; the others are searched."""
    held_out: tuple[str, ...] = ()
    """Held-out cameras: scored, but not used by the correction."""
    joints_known: bool = True
    """Whether the robot's joints are known: bodies are moved out of the robot, and pixels it occludes do not count."""


HISTORY = 32
"""Past estimates that are kept: half a second at 60 Hz, more than the latency of any camera that is of use."""
SMOOTHING = 0.2
"""Gain of the running means of chroma and of camera disagreement."""
SYSTEMATIC_PX = 1.0
"""Error of a silhouette by learned colours that all of its pixels have in common, as standard deviation [pixels]."""
COMPARABLE = np.array([1.0] * 3 + [0.1] * 3)
"""A length of 0.1 m makes rotations and translations comparable."""
SLOW_M_S = 0.02
"""Speed below which a body says little about the age of images [m/s]."""


def unknown_estimates(state: State, bodies: int, options: FilterOptions) -> dict[str, Any]:
    """What a filter remembers of its bodies before any image."""
    return {
        "t": np.full(HISTORY, state.t),
        "spread": np.tile(initial_spread(options), (bodies, 1)),
        "covariance": np.tile(widest_covariance(options), (bodies, 1, 1)),
        "joints": np.tile(state.q, (HISTORY, 1)),
        "frames_lost": np.zeros(bodies, int),
        "misfits": np.zeros(bodies, int),
        "drag": np.zeros((bodies, 2)),
    }


def widest_covariance(options: FilterOptions) -> Array:
    """The covariance [6, 6] of a pose that nothing is known of but that it is near."""
    return np.diag([options.position_sigma[1] ** 2] * 3 + [options.orientation_sigma[1] ** 2] * 3)


def innovation_numbers(found: PoseSolution | None, prior: Array, basis: Array, bias: float) -> dict[str, float]:
    """Numbers of one correction: nis, shift [m], turn [rad], residual, sigma [m], weakest_sigma [m], visible.

    Without a correction those are NaN that only an image gives.
    """
    if found is None:
        return dict.fromkeys(("nis", "residual", "colour_residual", "weakest_sigma"), np.nan)
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
    """Standard deviation of a position by what all pixels of an outline have in common [m].

    As if each camera showed the body, of a radius `reach` [m], shifted by `SYSTEMATIC_PX` along both axes of its image
    and larger by as much: a shape that is not quite the body's, shadows and colours that look like another. Images do
    not average it away, and no innovation shows it.
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
    """By how much each camera wants the body farther from where the others agree than those differ [m]."""
    M, g = np.stack([fit.information for fit in fits]), np.stack([fit.gradient for fit in fits])
    small = 1e-3 * np.eye(g.shape[1]) * np.trace(M, axis1=1, axis2=2).max()
    # Where each camera alone wants the body, and where the others do.
    curvature, slope = np.concatenate([M, M.sum(axis=0) - M]) + small, np.concatenate([g, g.sum(axis=0) - g])
    wanted: Array = -np.asarray(np.linalg.solve(curvature, slope[..., None]), float)[:, :2, 0]
    steps, agreed = wanted[: len(fits)], wanted[len(fits) :]
    apart: Array = np.asarray(np.linalg.norm(steps - agreed[:, None], axis=-1), float)
    own = np.diag(apart).copy()
    np.fill_diagonal(apart, 0.0)
    return list(own - apart.max(axis=1))


def exclude_outlier(
    fits: Sequence[SilhouetteFit], used: Sequence[int], memory: dict[str, Any], options: FilterOptions
) -> dict[int, float]:
    """Exclude a camera that keeps wanting the body elsewhere than the others agree on; disagreements by camera [m]."""
    if len(used) < 3:
        return {}
    for c, excess in zip(used, camera_excess(fits), strict=True):
        memory["disagreement"][c] += SMOOTHING * (excess - memory["disagreement"][c])
        apart = memory["disagreement"][c] > options.max_disagreement
        memory["disagreeing"][c] = memory["disagreeing"][c] + 1 if apart else 0
    worst = max(used, key=lambda c: float(memory["disagreement"][c]))
    if memory["disagreeing"][worst] >= options.exclude_after:
        memory["excluded"][worst] = True
    return {c: float(memory["disagreement"][c]) for c in used}


def image_delay(drag: Array, xi: Array, past: Array, times: Array) -> float:
    """Delay of the images beyond their stamps [s]: the mean correction against the body's motion, over its speed.

    Images that are late by d without saying so pull a body that moves at v back by d v. `drag` [2] holds the running
    means of both over about ten frames; a body at rest gives zero.
    """
    v = (past[-1, :3] - past[-7, :3]) / max(float(times[-1] - times[-7]), 1e-9)
    drag += 0.1 * (np.array([-xi[:3] @ v, v @ v]) - drag)
    return float(drag[0] / (drag[1] + SLOW_M_S**2))


def initial_spread(options: FilterOptions) -> Array:
    """Standard deviations of predictions before any innovation: the geometric mean of their bounds.

    That nobody knows where a body is at the beginning is in its covariance, not in how well physics predicts it.
    """
    return np.sqrt([np.prod(options.position_sigma), np.prod(options.orientation_sigma)])


def adapted_spread(spread: Array, xi: Array, position: tuple[float, float], orientation: tuple[float, float]) -> Array:
    """Standard deviations of predictions, adapted to the last innovations within the given bounds."""
    new = np.sqrt(0.9 * spread**2 + 0.1 * np.array([np.sum(xi[:3] ** 2) / 2, np.sum(xi[3:] ** 2)]))
    low, high = np.array([position, orientation]).T
    return np.clip(new, low, high)


def grown_covariance(covariance: Array) -> Array:
    """The covariance [6, 6] of a pose after a frame without a correction."""
    ceiling = np.diag([0.05**2] * 3 + [0.5**2] * 3)
    return np.minimum(covariance + 0.01 * ceiling, ceiling)
