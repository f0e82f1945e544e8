"""Gradients of a loss on a picture by everything the picture is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat import spherical_harmonics
from instep.splat.image import Backdrop, Image, Region

from .camera_frames import world_from_bodies, world_from_camera
from .gradient_kernels import gradient_tiles
from .gradient_projection import pull_back, shape_back
from .rasterizer import Prepared, Raster
from .threads import on_threads, share


@dataclass(frozen=True, slots=True, eq=False)
class ImageSlope:
    """How a loss changes with each pixel of a picture."""

    colour: Array
    """By red, green, blue [height, width, 3]."""
    alpha: Array | None = None
    """By how much is covered [height, width]."""
    depth: Array | None = None
    """By depth [height, width]; 0 where nothing is drawn."""


Loss: TypeAlias = Callable[[Image], ImageSlope]
"""A function that looks at a picture and says how the loss changes with its pixels."""


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """How a loss changes with each parameter, each the shape of what it belongs to."""

    means: Array
    """By centres, in the frames of their bodies [n, 3]."""
    quats: Array
    scales: Array
    opacities: Array
    sh: Array
    poses: Array
    """By each body's pose [bodies, 6]: a shift and a turn about its origin, along the world's axes, cameras held."""
    camera: Array
    """By the camera's pose in the world [6], in the same way, all else held still."""


def differentiate(
    raster: Raster,
    camera: Camera,
    poses: Array | None,
    loss: Loss,
    *,
    backdrop: Backdrop | None = None,
    region: Region | None = None,
) -> tuple[Image, Gradients]:
    """Draw, ask the loss about the picture, and return the picture with the gradients of the loss."""
    with raster.prepared(camera, poses, backdrop, region) as frame:
        image = raster.blend(frame)
        _pixel_slopes(frame, image, loss(image))
        return image, _gather(raster, frame, poses)


def _pixel_slopes(frame: Prepared, image: Image, slope: ImageSlope) -> None:
    if np.shape(slope.colour) != image.colour.shape:
        raise BadInput(f"A loss gave slopes of shape {np.shape(slope.colour)} for a picture of {image.colour.shape}.")
    space, none = frame.space, np.empty((0, 0), np.float32)
    by_colour = np.ascontiguousarray(slope.colour, np.float32)
    by_alpha = none if slope.alpha is None else np.ascontiguousarray(slope.alpha, np.float32)
    by_depth = none if slope.depth is None else np.ascontiguousarray(slope.depth, np.float32)
    depth = image.depth if slope.depth is None else np.where(image.alpha > 0, image.depth, np.float32(0.0))
    space.fit_slopes(int(space.starts[-1]))
    tickets = np.zeros(1, np.int64)
    on_threads(
        lambda part: gradient_tiles(
            space.entries, space.masks, space.starts, frame.packed.ids, space.across, tickets, frame.backdrop,
            frame.limit, image.colour, image.alpha, depth, by_colour, by_alpha, by_depth, space.slopes,
        ),
        frame.threads,
    )  # fmt: skip


def _gather(raster: Raster, frame: Prepared, poses: Array | None) -> Gradients:
    gaussians, packed, space, threads = raster.gaussians, frame.packed, frame.space, frame.placing_threads
    n, bodies = len(gaussians), len(gaussians.names)
    by_mean, by_shape, by_look = (np.zeros((n, k), np.float32) for k in (3, 6, 4))
    by_pose = np.zeros((threads, bodies, 6))

    def pull(part: int) -> None:
        start, stop = share(n, part, threads)
        pull_back(
            start, stop, packed.means, packed.covariances, packed.body, packed.ids, frame.frames, frame.view,
            space.records, space.boxes, space.slopes, space.slots, space.slots_from[part], np.empty(10, np.float32),
            by_mean, by_shape, by_look, by_pose[part],
        )  # fmt: skip

    on_threads(pull, threads)
    by_quat, by_scale = np.empty((n, 4)), np.empty((n, 3))
    quats, scales = np.asarray(gaussians.quats, float), np.asarray(gaussians.scales, float)

    def unfold(part: int) -> None:
        rows = slice(*share(n, part, threads))
        shape_back(quats[rows], scales[rows], by_shape[rows], by_quat[rows], by_scale[rows])

    on_threads(unfold, threads)
    world_from_body = world_from_bodies(gaussians.names, poses)
    world_from_eye = world_from_camera(gaussians.names, frame.camera, poses)
    shading = _shade_back(raster, by_look[:, 1:], world_from_body, world_from_eye)
    pushes, camera = _world_pushes(by_pose.sum(axis=0), world_from_body, world_from_eye)
    return Gradients(
        by_mean + shading.means,
        by_quat,
        by_scale,
        by_look[:, 0] / np.maximum(np.asarray(gaussians.opacities, float), 1e-12),
        shading.sh,
        pushes + shading.poses,
        camera + shading.camera,
    )


def _world_pushes(by_pose: Array, world_from_body: Array, world_from_eye: Array) -> tuple[Array, Array]:
    """Force and torque on each body, and the opposite ones on the camera, turned from its frame to the world's."""
    turn = world_from_eye[:3, :3]
    force, torque = by_pose[:, :3] @ turn.T, by_pose[:, 3:] @ turn.T
    arm = world_from_body[:, :3, 3] - world_from_eye[:3, 3]
    on_camera = -np.concatenate([force.sum(axis=0), (torque + np.cross(arm, force)).sum(axis=0)])
    return np.concatenate([force, torque], axis=1), on_camera


@dataclass(frozen=True, slots=True, eq=False)
class _Shading:
    means: Array | float
    sh: Array
    poses: Array | float
    camera: Array | float


def _shade_back(raster: Raster, by_colour: Array, world_from_body: Array, world_from_eye: Array) -> _Shading:
    """Slopes by harmonics; where colours depend on the direction, also by what turns the direction."""
    gaussians = raster.gaussians
    if gaussians.degree == 0:
        lit = (gaussians.colours > 0) * by_colour
        return _Shading(0.0, spherical_harmonics.C0 * lit[:, None, :], 0.0, 0.0)
    turn = world_from_body[:, :3, :3]
    offset = world_from_eye[:3, 3] - world_from_body[:, :3, 3]
    eyes = np.einsum("bji,bj->bi", turn, offset)
    gaze = np.asarray(gaussians.means, float) - eyes[gaussians.body]
    distance = np.maximum(np.linalg.norm(gaze, axis=1, keepdims=True), 1e-12)
    direction = gaze / distance
    basis = spherical_harmonics.basis(direction, gaussians.degree)
    raw = 0.5 + np.einsum("nk,nkc->nc", basis, gaussians.sh)
    lit = (raw > 0) * by_colour
    by_basis = np.einsum("nc,nkc->nk", lit, gaussians.sh)
    by_direction = np.einsum("nk,nki->ni", by_basis, spherical_harmonics.basis_slope(direction, gaussians.degree))
    along = np.einsum("ni,ni->n", by_direction, direction)
    by_gaze = (by_direction - along[:, None] * direction) / distance
    # A body sees the camera at eyes = turn^T (camera - body); what moves the eye moves the gaze the other way.
    by_eye = np.zeros((len(gaussians.names), 3))
    np.add.at(by_eye, gaussians.body, -by_gaze)
    pull = np.einsum("bij,bj->bi", turn, by_eye)
    poses = np.concatenate([-pull, -np.cross(offset, pull)], axis=1)
    camera = np.concatenate([pull.sum(axis=0), np.zeros(3)])
    return _Shading(by_gaze, basis[:, :, None] * lit[:, None, :], poses, camera)
