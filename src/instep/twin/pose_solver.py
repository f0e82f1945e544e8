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

from instep.core.world import Array
from instep.scene.camera import Camera

from .projection import MARGIN, Outline, glances, lens_of

ALL_SIX = np.eye(6)
"""Motions of a body that is free: three translations, three rotations."""
ENOUGH = 1e-4
"""A step below this [m, rad] is the last: the next picture goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """How pixels are weighed."""

    softness: float = 0.7
    """Width of a silhouette's edge [pixels]."""
    sigma: float = 0.25
    """Standard deviation of a pixel's mask [share]."""
    kappa: float = 5.0
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
    behind: Array | None = None
    """What the camera sees there without the body [height, width, 3] [grey levels]; None where that is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """How one camera's pixels agree with a pose."""

    information: Array
    """J^T W J / (sigma^2 kappa) along the motions that were asked for [k, k]."""
    pull: Array
    """J^T W r / (sigma^2 kappa) [k]."""
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
    """What the cameras alone say, along the columns of the basis [k, k]."""
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

    def looks(soft: float) -> tuple[View, ...]:
        return tuple(look(outline, shot, basis @ eta, sharpness, soft, basis) for shot in shots)

    views = looks(soft)
    for left in range(iterations, 0, -1):
        wide = _softness(views, soft) if left > 1 else soft
        known, pull = _summed(views if wide == soft else looks(wide))
        step = np.linalg.solve(known + inside, pull + inside @ eta)
        eta = eta - step
        if wide == soft and np.abs(step).max() < ENOUGH:
            break  # what was seen before so small a step still holds
        views = looks(soft)
    information, _ = _summed(views)
    within = np.linalg.inv(information + inside)
    return Solution(basis @ eta, basis @ within @ basis.T, information, views)


def look(outline: Outline, shot: Shot, xi: Array, sharpness: Sharpness, soft: float, basis: Array = ALL_SIX) -> View:
    """How a camera's pixels agree with the body moved by xi, and how that changes along the columns of a basis."""
    margin = MARGIN if soft < 1 else 4 * MARGIN
    H, g, tally = glances.glance(
        outline.corners, outline.starts, basis, shot.world_from_body, xi, shot.camera.body_from_camera,
        lens_of(shot.camera), shot.mask, shot.weight, shot.region, soft, sharpness.robust, margin,
    )  # fmt: skip
    if tally[7] <= 0:
        return View(H, g, 1.0, 0.0, 0.0, 0.0)
    scale = 1.0 / (sharpness.sigma**2 * sharpness.kappa)
    squared, counts, both, either, covered, free, shows, area = tally.tolist()
    return View(
        H * scale,
        g * scale,
        (squared / max(counts, 1e-9)) ** 0.5,
        both / max(either, 1e-9),
        free / max(area, covered, 1e-9),
        shows / max(free, 1e-9) if free > 1 else 0.0,
    )


def moved(world_from_body: Array, xi: Array) -> Array:
    """A transform (4 x 4) moved by xi: translated, and turned about the body's own origin."""
    return np.asarray(glances.turned(world_from_body, xi))


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
    known, pull = views[0].information.copy(), views[0].pull.copy()
    for view in views[1:]:
        known += view.information
        pull += view.pull
    return known, pull


def _softness(views: Sequence[View], soft: float) -> float:
    """Softer edges the less the silhouettes overlap; 0.8 is a body a few pixels off."""
    worst = min((v.overlap for v in views if v.visible > 0.1), default=1.0)
    return soft if worst > 0.8 else 2.0 if worst > 0.6 else 5.0
