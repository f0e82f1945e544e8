"""The pose of one body from what cameras show: maximum a posteriori by Gauss-Newton.

The unknown is a motion xi = (translation, rotation about the body's origin) in the world, applied on the left of the
body's pose in every camera's frame, restricted to the columns of a basis B (all six, or three on a table):

    xi = B eta,  eta <- eta - (B^T (M + P^-1) B)^-1 B^T (g + P^-1 xi),   M = sum of J^T W J / (sigma^2 kappa)

The prior term P^-1 xi stays in after the first iteration, or the prior would be forgotten step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array
from instep.scene.camera import Camera

from .outline import Outline
from .sight import MARGIN, sight
from .untyped import kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """How pixels are weighed."""

    softness: float = 0.7
    """Width of a silhouette's edge [pixels]."""
    sigma: float = 0.25
    """Standard deviation of a pixel's mask [share]."""
    kappa: float = 20.0
    """How many pixels err together: pixels along one edge are wrong in the same way."""
    robust: float = 0.5
    """Residual beyond which a pixel pulls no harder [share]."""


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """What one camera shows of one body."""

    camera: Camera
    mask: Array
    """Share of each pixel that shows the body [height, width], of the pixels of `region`."""
    weight: Array
    """How far each pixel counts [height, width]: 0 where something hides it."""
    region: tuple[int, int, int, int]
    world_from_body: Array
    """Where the prediction puts the body when the shutter opened (4 x 4)."""
    chroma: float = 0.0
    """How strongly the body is coloured in this light [grey levels]."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """How one camera's pixels agree with a pose."""

    information: Array
    """J^T W J / (sigma^2 kappa) [6, 6]."""
    pull: Array
    """J^T W r / (sigma^2 kappa) [6]."""
    residual: float
    """Root mean square of mask residuals over the pixels that count [share]."""
    overlap: float
    """Intersection over union of predicted and shown silhouette, over the pixels that count."""
    visible: float
    """Share of the predicted silhouette that nothing hides."""
    shown: float
    """Area that shows the body, over the predicted area that nothing hides."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A motion of the body, how sure it is, and how each camera agrees with it."""

    xi: Array
    """Translation [m] and rotation [rad] from the prediction [6]."""
    covariance: Array
    """Of xi [6, 6]."""
    information: Array
    """What the cameras alone say [6, 6]."""
    views: tuple[View, ...]


def solve(
    outline: Outline, shots: Sequence[Shot], prior: Array, basis: Array, sharpness: Sharpness, iterations: int = 3
) -> Solution:
    """The most likely motion of a body, given the covariance [6, 6] of its prediction.

    Where silhouettes barely overlap the first iterations look at softer edges, which reach farther.
    """
    inside = np.linalg.inv(basis.T @ prior @ basis)
    eta = np.zeros(basis.shape[1])
    soft = sharpness.softness
    views = tuple(look(outline, shot, basis @ eta, sharpness, soft) for shot in shots)
    for left in range(iterations, 0, -1):
        wide = _softness(views, soft) if left > 1 else soft
        if wide != soft:
            views = tuple(look(outline, shot, basis @ eta, sharpness, wide) for shot in shots)
        known, pull = _summed(views)
        step = np.linalg.solve(basis.T @ known @ basis + inside, basis.T @ pull + inside @ eta)
        eta = eta - step
        views = tuple(look(outline, shot, basis @ eta, sharpness, soft) for shot in shots)
        if np.abs(step).max() < 1e-4:  # the next picture goes on from here
            break
    information, _ = _summed(views)
    within = np.linalg.inv(basis.T @ information @ basis + inside)
    return Solution(basis @ eta, basis @ within @ basis.T, information, views)


def look(outline: Outline, shot: Shot, xi: Array, sharpness: Sharpness, soft: float) -> View:
    """How a camera's pixels agree with the body moved by xi."""
    world_from_body = moved(shot.world_from_body, xi)
    seen = sight(outline, shot.camera, world_from_body, world_from_body[:3, 3], MARGIN if soft < 1 else 4 * MARGIN)
    region = overlap_of(seen.region, shot.region)
    if not seen.visible or region is None:
        return View(np.zeros((6, 6)), np.zeros(6), 1.0, 0.0, 0.0, 0.0)
    left, top, right, bottom = region
    part = slice(top - shot.region[1], bottom - shot.region[1]), slice(left - shot.region[0], right - shot.region[0])
    corner = np.array([left, top], float)
    H, g, tally = kernels.normal_equations(
        seen.points, seen.slopes, seen.edges, shot.mask[part], shot.weight[part], corner, soft, sharpness.robust
    )
    scale = 1.0 / (sharpness.sigma**2 * sharpness.kappa)
    free = max(tally[5], 1e-9)
    return View(
        H * scale,
        g * scale,
        float(np.sqrt(tally[0] / max(tally[1], 1e-9))),
        float(tally[2] / max(tally[3], 1e-9)),
        float(tally[5] / max(seen.area, tally[4], 1e-9)),
        float(tally[6] / free) if tally[5] > 1 else 0.0,
    )


def moved(world_from_body: Array, xi: Array) -> Array:
    """A transform (4 x 4) moved by xi: translated, and turned about the body's own origin."""
    out = world_from_body.copy()
    out[:3, :3] = matrix_from_quat(quat_exp(xi[3:])) @ world_from_body[:3, :3]
    out[:3, 3] += xi[:3]
    return out


def overlap_of(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> tuple[int, int, int, int] | None:
    """The pixels two regions share; None where they share none."""
    left, top, right, bottom = max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])
    return (left, top, right, bottom) if right > left and bottom > top else None


def planar_basis(normal: Array) -> Array:
    """Motions on a plane [6, 3]: two translations along it, one rotation about its normal."""
    n = normal / np.linalg.norm(normal)
    first = np.cross(n, [0.0, 0.0, 1.0] if abs(n[2]) < 0.9 else [0.0, 1.0, 0.0])
    first /= np.linalg.norm(first)
    basis = np.zeros((6, 3))
    basis[:3, 0], basis[:3, 1], basis[3:, 2] = first, np.cross(n, first), n
    return basis


def _summed(views: Sequence[View]) -> tuple[Array, Array]:
    return sum((v.information for v in views), np.zeros((6, 6))), sum((v.pull for v in views), np.zeros(6))


def _softness(views: Sequence[View], soft: float) -> float:
    """Softer edges the less the silhouettes overlap; 0.8 is a body a few pixels off."""
    worst = min((v.overlap for v in views if v.visible > 0.1), default=1.0)
    return soft if worst > 0.8 else 2.0 if worst > 0.6 else 5.0
