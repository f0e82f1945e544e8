"""Reference rasteriser: float64 NumPy, one Gaussian after the other. The fast ones are tested against it.

A Gaussian of covariance S in the camera's frame is rendered with S' = J S J^T + 0.3 I [px^2], J the derivative of the
projection at its centre. At a pixel its alpha is min(0.999, o exp(-d^T S'^-1 d / 2)); alphas below 1/255 are left out,
and a pixel is finished before its transmittance falls to 1e-4. These are gsplat's conventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians, harmonic_colour
from instep.splat.image import Backdrop, Region, RenderedImage, checked_region, plain_backdrop
from instep.splat.raster.gaussian_projection import (
    camera_from_bodies,
    lens_jacobian,
    lens_max_radius2,
    projection_limits,
)

BLUR = 0.3
"""Variance added to every rendered Gaussian [px^2], so that none falls between the pixels."""
NEAR_PLANE_M = 0.01
"""Gaussians nearer than this are not rendered [m]."""
MIN_ALPHA = 1.0 / 255.0
"""Alpha below which a Gaussian is left out."""
MAX_ALPHA = 0.999
"""Largest alpha of one Gaussian."""
MIN_TRANSMITTANCE = 1e-4
"""Transmittance at which a pixel is finished."""


class ProjectedGaussians(NamedTuple):
    """Gaussians as ellipses on the image plane."""

    centres: Array  # [n, 2] px
    spreads: Array  # [n, 2, 2] px^2
    depths: Array  # [n] m
    colours: Array  # [n, 3]
    order: Array  # indices of those that can be seen, nearest first


def render(
    gaussians: Gaussians, camera: Camera, poses: Array | None = None, *,
    backdrop: Backdrop | None = None, region: Region | None = None,
) -> RenderedImage:  # fmt: skip
    """Render Gaussians; `poses` [bodies, 7] place the bodies, in the order of `gaussians.names`."""
    backdrop = plain_backdrop(camera) if backdrop is None else backdrop
    projected = project(gaussians, camera, poses)
    colour = np.zeros((camera.height, camera.width, 3))
    alpha, depth = np.zeros(colour.shape[:2]), np.zeros(colour.shape[:2])
    for i, window, weight in _weights(projected, gaussians.opacities, backdrop):
        colour[window] += weight[..., None] * projected.colours[i]
        alpha[window] += weight
        depth[window] += weight * projected.depths[i]
    colour += (1 - alpha)[..., None] * backdrop.colour
    depth = np.where(alpha > 0, depth / np.where(alpha > 0, alpha, 1), np.inf)
    left, top, right, bottom = checked_region(camera, region)
    cut = np.s_[top:bottom, left:right]
    return RenderedImage(colour[cut], alpha[cut], depth[cut])


def project(gaussians: Gaussians, camera: Camera, poses: Array | None = None) -> ProjectedGaussians:
    """Ellipses on the image plane, and the order in which they are rendered."""
    camera_from_body = camera_from_bodies(gaussians.names, camera, poses)[gaussians.body]
    rotation, shift = camera_from_body[:, :3, :3], camera_from_body[:, :3, 3]
    points = np.einsum("nij,nj->ni", rotation, gaussians.means) + shift
    depths = points[:, 2]
    ahead = np.where(depths > NEAR_PLANE_M, depths, 1.0)
    ideal = points[:, :2] / ahead[:, None]
    left, right, top, bottom = projection_limits(camera)
    near_view = np.clip(ideal, (left, top), (right, bottom))
    jacobian = np.zeros((len(points), 2, 3))
    jacobian[:, [0, 1], [0, 1]] = 1.0
    jacobian[:, :, 2] = -near_view
    jacobian = (
        np.array(camera.focal)[:, None]
        * (lens_jacobian(near_view, camera.distortion) @ jacobian)
        / ahead[:, None, None]
    )
    axes = jacobian @ rotation
    spreads = axes @ gaussians.covariances @ np.swapaxes(axes, 1, 2) + BLUR * np.eye(2)
    centres = camera.project(np.column_stack([ideal, np.ones(len(ideal))]))
    camera_position = -np.einsum("nji,nj->ni", rotation, shift)
    direction = gaussians.means - camera_position
    direction = direction / np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-12)
    colours = harmonic_colour(gaussians.sh, direction)
    seen = (
        (depths > NEAR_PLANE_M)
        & (gaussians.opacities >= MIN_ALPHA)
        & ((ideal**2).sum(axis=1) < lens_max_radius2(camera))
    )
    order = np.lexsort((np.arange(len(depths)), depths))
    return ProjectedGaussians(centres, spreads, depths, colours, order[seen[order]])


def _weights(
    projected: ProjectedGaussians, opacities: Array, backdrop: Backdrop
) -> Iterator[tuple[int, tuple[slice, slice], Array]]:
    """Blending weight of each Gaussian in a window of pixels, nearest first."""
    height, width = backdrop.depth.shape
    passes = np.ones((height, width))
    alive = np.ones((height, width), bool)
    for i in projected.order:
        reach = np.sqrt(2 * np.log(opacities[i] / MIN_ALPHA) * np.diag(projected.spreads[i]))
        (x0, y0), (x1, y1) = projected.centres[i] - reach, projected.centres[i] + reach
        top, bottom = max(0, int(np.floor(y0))), min(height, int(np.ceil(y1)) + 1)
        left, right = max(0, int(np.floor(x0))), min(width, int(np.ceil(x1)) + 1)
        if top >= bottom or left >= right:
            continue
        window = (slice(top, bottom), slice(left, right))
        x, y = (float(value) for value in projected.centres[i])
        dx = np.arange(left, right, dtype=float) + 0.5 - x
        dy = (np.arange(top, bottom, dtype=float) + 0.5 - y)[:, None]
        (a, b), (_, c) = np.linalg.inv(projected.spreads[i])
        alpha = np.minimum(MAX_ALPHA, opacities[i] * np.exp(-0.5 * (a * dx * dx + 2 * b * dx * dy + c * dy * dy)))
        before = passes[window]
        seen = alive[window] & (alpha >= MIN_ALPHA) & (projected.depths[i] <= backdrop.depth[window])
        last = seen & (before * (1 - alpha) <= MIN_TRANSMITTANCE)
        alive[window] &= ~last
        weight = np.where(seen & ~last, before * alpha, 0.0)
        passes[window] = before - weight
        yield int(i), window, weight
