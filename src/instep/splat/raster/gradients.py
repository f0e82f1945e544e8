"""Gradients of a loss on an image by Gaussians, body poses and the camera pose.

The blend is repeated front to back. With s = v . colour + q depth + p the gradient of the loss by a Gaussian's weight
at a pixel, and R the sum of weight times s over all Gaussians behind it, the gradient by its alpha a is T s - R / (1
- a). R starts as the whole sum, which is known from the image, so nothing is stored or traversed backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.splat import spherical_harmonics
from instep.splat.gaussians import Gaussians
from instep.splat.image import RenderedImage

from .blending import FIRST, PIXELS, BackdropArrays, ImageArrays, full_light, next_entry, pass_entry, read_limits
from .gaussian_projection import world_from_bodies, world_from_camera
from .gradient_projection import EntryGradients, GaussianGradients, covariance_backward, project_backward
from .simd import (
    CELL,
    CELLS,
    INLINE,
    KERNEL,
    MAX_ALPHA,
    F,
    broadcast,
    load,
    reduce_sum,
    reduce_sums,
    select,
    store,
)
from .tiles import ENTRY_GRADIENTS, SortedTile, TileLists, cell_corner, next_tile, tile_buffers
from .workspace import row_range, run_on_threads

if TYPE_CHECKING:
    from .rasterizer import PreparedFrame


@array_dataclass
class ImageGradient:
    """Gradient of a loss by the pixels of an image."""

    colour: Array
    """By red, green, blue [height, width, 3]."""
    alpha: Array | None = None
    """By alpha [height, width]."""
    depth: Array | None = None
    """By depth [height, width]; 0 where nothing is rendered."""


Loss: TypeAlias = Callable[[RenderedImage], ImageGradient]
"""A function from an image to the gradient of the loss by its pixels."""


@array_dataclass
class Gradients:
    """Gradients of a loss, each of the shape of its parameter."""

    means: Array
    """By centres, in the frames of their bodies [n, 3]."""
    quats: Array
    scales: Array
    opacities: Array
    sh: Array
    poses: Array
    """By each body's pose [bodies, 6]: translation and rotation about its origin, along the world's axes."""
    camera: Array
    """By the camera's pose in the world [6], in the same way."""


def image_gradients(
    gaussians: Gaussians, frame: PreparedFrame, image: RenderedImage, gradient: ImageGradient, poses: Array | None
) -> Gradients:
    """The gradients of a loss by all parameters, from its gradient by the pixels of a rendered frame."""
    _accumulate_entries(frame, image, gradient)
    return _gather_gradients(gaussians, frame, poses)


def _accumulate_entries(frame: PreparedFrame, image: RenderedImage, gradient: ImageGradient) -> None:
    if np.shape(gradient.colour) != image.colour.shape:
        raise BadInput(
            f"A loss gave gradients of shape {np.shape(gradient.colour)} for an image of {image.colour.shape}."
        )
    space, none = frame.space, np.empty((0, 0), np.float32)
    by_colour = np.ascontiguousarray(gradient.colour, np.float32)
    by_alpha = none if gradient.alpha is None else np.ascontiguousarray(gradient.alpha, np.float32)
    by_depth = none if gradient.depth is None else np.ascontiguousarray(gradient.depth, np.float32)
    depth = image.depth if gradient.depth is None else np.where(image.alpha > 0, image.depth, np.float32(0.0))
    space.fit_gradients(int(space.starts[-1]))
    tiles, shown = frame.tile_lists(), ImageArrays(image.colour, image.alpha, depth)
    by_image = ImageArrays(by_colour, by_alpha, by_depth)
    run_on_threads(lambda part: gradient_tiles(tiles, frame.backdrop, shown, by_image, space.gradients), frame.threads)


def _gather_gradients(gaussians: Gaussians, frame: PreparedFrame, poses: Array | None) -> Gradients:
    packed, space, threads = frame.packed, frame.space, frame.placing_threads
    n, bodies = len(gaussians), len(gaussians.names)
    by_mean, by_shape, by_appearance = (np.zeros((n, k), np.float32) for k in (3, 6, 4))
    by_pose = np.zeros((threads, bodies, 6))

    def pull(part: int) -> None:
        source = EntryGradients(space.gradients, space.slots, space.slots_from[part])
        out = GaussianGradients(by_mean, by_shape, by_appearance, by_pose[part])
        project_backward(row_range(n, part, threads), packed, frame.view, space.projected, source, out)

    run_on_threads(pull, threads)
    by_quat, by_scale = np.empty((n, 4)), np.empty((n, 3))
    quats, scales = np.asarray(gaussians.quats, float), np.asarray(gaussians.scales, float)

    def unfold(part: int) -> None:
        rows = slice(*row_range(n, part, threads))
        covariance_backward(quats[rows], scales[rows], by_shape[rows], by_quat[rows], by_scale[rows])

    run_on_threads(unfold, threads)
    world_from_body = world_from_bodies(gaussians.names, poses)
    world_from_eye = world_from_camera(gaussians.names, frame.camera, poses)
    shading = _shading_backward(gaussians, by_appearance[:, 1:], world_from_body, world_from_eye)
    pushes, camera = _pose_gradients(by_pose.sum(axis=0), world_from_body, world_from_eye)
    return Gradients(
        by_mean + shading.means,
        by_quat,
        by_scale,
        by_appearance[:, 0] / np.maximum(np.asarray(gaussians.opacities, float), 1e-12),
        shading.sh,
        pushes + shading.poses,
        camera + shading.camera,
    )


def _pose_gradients(by_pose: Array, world_from_body: Array, world_from_eye: Array) -> tuple[Array, Array]:
    """Gradients by translation and rotation of each body and of the camera, from its frame to the world's."""
    turn = world_from_eye[:3, :3]
    force, torque = by_pose[:, :3] @ turn.T, by_pose[:, 3:] @ turn.T
    arm = world_from_body[:, :3, 3] - world_from_eye[:3, 3]
    on_camera = -np.concatenate([force.sum(axis=0), (torque + np.cross(arm, force)).sum(axis=0)])
    return np.concatenate([force, torque], axis=1), on_camera


@array_dataclass
class _Shading:
    means: Array | float
    sh: Array
    poses: Array | float
    camera: Array | float


def _shading_backward(
    gaussians: Gaussians, by_colour: Array, world_from_body: Array, world_from_eye: Array
) -> _Shading:
    """Gradients by harmonics; where colours depend on the direction, also by centres and poses."""
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
    by_direction = np.einsum("nk,nki->ni", by_basis, spherical_harmonics.basis_jacobian(direction, gaussians.degree))
    along = np.einsum("ni,ni->n", by_direction, direction)
    by_gaze = (by_direction - along[:, None] * direction) / distance
    # A body sees the camera at eyes = turn^T (camera - body); what moves the eye moves the gaze the other way.
    by_eye = np.zeros((len(gaussians.names), 3))
    np.add.at(by_eye, gaussians.body, -by_gaze)
    pull = np.einsum("bij,bj->bi", turn, by_eye)
    poses = np.concatenate([-pull, -np.cross(offset, pull)], axis=1)
    camera = np.concatenate([pull.sum(axis=0), np.zeros(3)])
    return _Shading(by_gaze, basis[:, :, None] * lit[:, None, :], poses, camera)


PIXEL_GRADIENTS = 6
"""Numbers per pixel: gradients by red, green, blue, by summed depth (q), by coverage (p), and their whole sum (R)."""


class PixelGradients(NamedTuple):
    """The gradients of a loss by the pixels of one cell."""

    numbers: Array
    """PIXEL_GRADIENTS for each of 16 pixels."""
    deep: bool
    """Whether the loss depends on the depth."""


@njit(**INLINE)
def gradient_by_log_alpha(cover: Any, weight: Any, gradient: Any, behind: Any) -> Any:
    """The gradient of the loss by the logarithm of the coverage; none where the coverage is cut at SOLID."""
    value = weight * gradient - behind * cover / (broadcast(F(1.0)) - cover)
    return select(cover < broadcast(MAX_ALPHA), value, broadcast(F(0.0)))


@njit(**INLINE)
def gradient_by_weight(pixels: Any, at: Any, entries: Any, k: Any) -> Any:
    """The gradient of the loss by a Gaussian's weight, at half a cell."""
    by_colour = (
        load(pixels, at) * broadcast(entries[k, 6])
        + load(pixels, at + PIXELS) * broadcast(entries[k, 7])
        + load(pixels, at + 2 * PIXELS) * broadcast(entries[k, 8])
    )
    return by_colour + load(pixels, at + 3 * PIXELS) * broadcast(entries[k, 9]) + load(pixels, at + 4 * PIXELS)


@njit(**INLINE)
def weighted_sum(pixels: Any, at: Any, covered: Any) -> Any:
    """A Gaussian's weights times numbers of the pixels, both halves of a cell added."""
    return covered.weight_0 * load(pixels, at) + covered.weight_1 * load(pixels, at + 8)


@njit(**INLINE)
def gradient_cell(tile: SortedTile, n: Any, cell: Any, nearest: Any, pixels: PixelGradients, gradients: Any) -> None:
    """Add the gradients of one cell to those of the entries that reach it."""
    light, cursor = full_light(nearest), FIRST
    none, entries, (numbers, deep) = broadcast(F(0.0)), tile.entries, pixels
    behind_0, behind_1 = load(numbers, 5 * PIXELS), load(numbers, 5 * PIXELS + 8)
    while True:
        k, cursor = next_entry(tile, n, cell, cursor, light)
        if k < 0:
            break
        light, covered = pass_entry(tile, k, cell, light)
        gradient_0 = gradient_by_weight(numbers, 0, entries, k)
        gradient_1 = gradient_by_weight(numbers, 8, entries, k)
        across, upper, lower, cover_0, cover_1, weight_0, weight_1 = covered
        behind_0 = select(light.light_0 > none, behind_0 - weight_0 * gradient_0, none)
        behind_1 = select(light.light_1 > none, behind_1 - weight_1 * gradient_1, none)
        power_0 = gradient_by_log_alpha(cover_0, weight_0, gradient_0, behind_0)
        power_1 = gradient_by_log_alpha(cover_1, weight_1, gradient_1, behind_1)
        power = power_0 + power_1
        by_row = power_0 * upper + power_1 * lower
        by_rows = power_0 * upper * upper + power_1 * lower * lower
        moments = power, power * across, by_row, power * across * across, by_row * across, by_rows
        red, green = weighted_sum(numbers, 0, covered), weighted_sum(numbers, PIXELS, covered)
        at = np.int64(k) * ENTRY_GRADIENTS
        store(gradients, at, load(gradients, at) + reduce_sums((*moments, red, green)))
        gradients[k, 8] += reduce_sum(weighted_sum(numbers, 2 * PIXELS, covered))
        if deep:
            gradients[k, 9] += reduce_sum(weighted_sum(numbers, 3 * PIXELS, covered))


@njit(**INLINE)
def read_pixel_gradients(corner: Any, image: ImageArrays, backdrop: Any, gradient: ImageArrays, pixels: Any) -> None:
    """The gradients of a cell's pixels by weights, and their whole sums. Those by alpha and by depth may be empty."""
    (shown, alpha, depth), (by_colour, by_alpha, by_depth), (left, top) = image, gradient, corner
    height, width = alpha.shape
    pixels[:] = F(0.0)
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            o, y, x = row * CELL + column, top + row, left + column
            cover = alpha[y, x]
            p = by_alpha[y, x] if len(by_alpha) else F(0.0)
            q, whole = F(0.0), F(0.0)
            if len(by_depth) and cover > F(0.0):
                q = by_depth[y, x] / cover
                p -= q * depth[y, x]
                whole += q * depth[y, x] * cover
            for channel in range(3):
                v = by_colour[y, x, channel]
                pixels[channel * PIXELS + o] = v
                own = shown[y, x, channel]
                if len(backdrop):
                    p -= v * backdrop[y, x, channel]
                    own -= (F(1.0) - cover) * backdrop[y, x, channel]
                whole += v * own
            pixels[3 * PIXELS + o], pixels[4 * PIXELS + o], pixels[5 * PIXELS + o] = q, p, whole + p * cover


@njit(**KERNEL)
def gradient_tiles(
    tiles: TileLists, backdrop: BackdropArrays, image: ImageArrays, by_image: ImageArrays, gradients: Any
) -> None:
    """Accumulate the gradients by every entry, tile by tile, until no tile is left."""
    height, width = image.alpha.shape
    buffers, pixels = tile_buffers(tiles), np.empty(PIXEL_GRADIENTS * PIXELS, np.float32)
    cell_pixels = PixelGradients(pixels, len(by_image.depth) > 0)
    while True:
        tile, n, _ = next_tile(tiles, buffers)
        if tile < 0:
            return
        gradients[tiles.starts[tile] : tiles.starts[tile + 1]] = F(0.0)
        for cell in range(CELLS * CELLS):
            left, top = corner = cell_corner(tile, cell, tiles.across)
            if left < width and top < height:
                nearest = read_limits(backdrop.depth, corner, buffers.limits)
                read_pixel_gradients(corner, image, backdrop.colour, by_image, pixels)
                gradient_cell(buffers, n, cell, nearest, cell_pixels, gradients)
