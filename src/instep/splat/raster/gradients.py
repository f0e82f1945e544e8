"""Gradients of a loss on an image by Gaussians, body poses and the camera pose.

The blend is repeated front to back. With s = v . colour + q depth + p the gradient of the loss by a Gaussian's weight
at a pixel, and R the sum of weight times s over all Gaussians behind it, the gradient by its alpha a is T s - R / (1
- a). R starts as the whole sum, which is known from the image, so nothing is stored or traversed backwards.

Derivatives of the projection, compiled: from gradients by ellipses to gradients by Gaussians and body poses.

Backwards through `gaussian_projection`: S' = J R S R^T J^T + 0.3 I and the centre, where J is the derivative of the
projection at the Gaussian's centre. V_ stands for the gradient of the loss by what follows. Forwards, for normal
equations: how centres and covariances of ellipses change with the pose of their body."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.splat.gaussians import C0, Gaussians, harmonic_basis, harmonic_jacobian
from instep.splat.image import RenderedImage

from .blending import FIRST, PIXELS, BackdropArrays, ImageArrays, full_light, next_entry, pass_entry, read_limits
from .gaussian_projection import (
    CameraView,
    ProjectedEllipses,
    body_jacobian,
    camera_position,
    covariance_times,
    lens_at,
    projection_jacobian,
    world_from_bodies,
    world_from_camera,
)
from .simd import (
    CELL,
    CELLS,
    INLINE,
    KERNEL,
    LOG2_E,
    MAX_ALPHA,
    F,
    broadcast,
    load,
    reduce_sum,
    reduce_sums,
    select,
    store,
)
from .tiles import (
    ENTRY_GRADIENTS,
    SortedTile,
    TileLists,
    cell_corner,
    next_tile,
    row_range,
    run_on_threads,
    tile_buffers,
)

if TYPE_CHECKING:
    from .rasterizer import PreparedFrame
    from .tiles import PackedGaussians


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
        return _Shading(0.0, C0 * lit[:, None, :], 0.0, 0.0)
    turn = world_from_body[:, :3, :3]
    offset = world_from_eye[:3, 3] - world_from_body[:, :3, 3]
    eyes = np.einsum("bji,bj->bi", turn, offset)
    gaze = np.asarray(gaussians.means, float) - eyes[gaussians.body]
    distance = np.maximum(np.linalg.norm(gaze, axis=1, keepdims=True), 1e-12)
    direction = gaze / distance
    basis = harmonic_basis(direction, gaussians.degree)
    raw = 0.5 + np.einsum("nk,nkc->nc", basis, gaussians.sh)
    lit = (raw > 0) * by_colour
    by_basis = np.einsum("nc,nkc->nk", lit, gaussians.sh)
    by_direction = np.einsum("nk,nki->ni", by_basis, harmonic_jacobian(direction, gaussians.degree))
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


class EntryGradients(NamedTuple):
    """Gradients by the entries of the tiles' lists, and where those of each Gaussian are."""

    values: Array
    """Those of `tiles.ENTRY_GRADIENTS` [entries, 10]."""
    slots: Array
    """Places of the entries of one Gaussian after the other [entries]."""
    first: int
    """Where in `slots` the first Gaussian begins."""


class GaussianGradients(NamedTuple):
    """Gradients by Gaussians in their original order, and by the poses of their bodies."""

    means: Array
    """By centres in the frames of their bodies [n, 3]."""
    covariances: Array
    """By xx, xy, xz, yy, yz, zz [n, 6]."""
    appearance: Array
    """By log opacity, red, green, blue [n, 4]."""
    poses: Array
    """By translation and rotation about the body's origin [bodies, 6], in the camera's frame."""


@njit(**INLINE)
def sum_entries(gradients: Any, slots: Any, slot: Any, box: Any, sums: Any) -> Any:
    """Add up the gradients of a Gaussian's entries; return the slot after them."""
    sums[:] = F(0.0)
    tiles = (((box >> 8) & 255) - (box & 255) + 1) * ((box >> 24) - ((box >> 16) & 255) + 1)
    for j in range(slot, slot + tiles):
        entry = slots[j]
        for number in range(10):
            sums[number] += gradients[entry, number]
    return slot + tiles


@njit(**INLINE)
def ellipse_gradients(records: Any, i: Any, sums: Any) -> Any:
    """Gradients by the centre (2) and by the covariance (xx, xy, yy) of an ellipse, from the moments of its power."""
    a, b, c = F(-2.0) / LOG2_E * records[i, 2], F(-1.0) / LOG2_E * records[i, 3], F(-2.0) / LOG2_E * records[i, 4]
    xx, xy, yy = sums[3], sums[4], sums[5]
    p00, p01, p10, p11 = a * xx + b * xy, a * xy + b * yy, b * xx + c * xy, b * xy + c * yy
    V_xx, V_xy, V_yy = F(0.5) * (p00 * a + p01 * b), F(0.5) * (p00 * b + p01 * c), F(0.5) * (p10 * b + p11 * c)
    return a * sums[1] + b * sums[2], b * sums[1] + c * sums[2], V_xx, V_xy, V_yy


@njit(**INLINE)
def axes_gradients(S: Any, i: Any, a: Any, b: Any, V: Any) -> Any:
    """Gradients by the two axes (3 each), given the covariance S in the body's frame: V_A = 2 V A S."""
    V_xx, V_xy, V_yy = V
    p = (
        F(2.0) * (V_xx * a[0] + V_xy * b[0]),
        F(2.0) * (V_xx * a[1] + V_xy * b[1]),
        F(2.0) * (V_xx * a[2] + V_xy * b[2]),
    )
    q = (
        F(2.0) * (V_xy * a[0] + V_yy * b[0]),
        F(2.0) * (V_xy * a[1] + V_yy * b[1]),
        F(2.0) * (V_xy * a[2] + V_yy * b[2]),
    )
    return covariance_times(S, i, p), covariance_times(S, i, q)


@njit(**INLINE)
def camera_frame_row(V: Any, R: Any, b: Any) -> Any:
    """V R^T for a row of three: from directions of the body to directions of the camera."""
    return (
        V[0] * R[b, 0] + V[1] * R[b, 1] + V[2] * R[b, 2],
        V[0] * R[b, 4] + V[1] * R[b, 5] + V[2] * R[b, 6],
        V[0] * R[b, 8] + V[1] * R[b, 9] + V[2] * R[b, 10],
    )


@njit(**INLINE)
def lens_hessian(n: Any, m: Any, view: Any) -> Any:
    """How the lens's derivative (xx, xy, yy) changes: xx by n, xx by m (= xy by n), xy by m (= yy by n), yy by m."""
    if view[11] == F(0.0):
        return F(0.0), F(0.0), F(0.0), F(0.0)
    k1, k2, p1, p2, k3 = view[12], view[13], view[14], view[15], view[16]
    r2 = n * n + m * m
    grow = F(2.0) * (k1 + r2 * (F(2.0) * k2 + r2 * F(3.0) * k3))
    more = F(4.0) * (F(2.0) * k2 + F(6.0) * k3 * r2)
    return (
        F(3.0) * grow * n + more * n * n * n + F(6.0) * p2,
        grow * m + more * n * n * m + F(2.0) * p1,
        grow * n + more * n * m * m + F(2.0) * p2,
        F(3.0) * grow * m + more * m * m * m + F(6.0) * p1,
    )


@njit(**INLINE)
def position_gradients(position: Any, view: Any, V_centre: Any, V_j0: Any, V_j1: Any) -> Any:
    """Gradients by a Gaussian's place in the camera's frame, through its centre and through the derivative J there."""
    (x, y, z), (V_u, V_v) = position, V_centre
    nx, ny = x / z, y / z
    n, m = min(max(nx, view[6]), view[7]), min(max(ny, view[8]), view[9])
    _, _, xx, xy, yy = lens_at(n, m, view)
    fx, fy = view[0] / z, view[1] / z
    a0, a1, a2 = V_j0[0] * fx, V_j0[1] * fx, V_j0[2] * fx
    b0, b1, b2 = V_j1[0] * fy, V_j1[1] * fy, V_j1[2] * fy
    V_xx, V_xy, V_yy = a0 - a2 * n, a1 - a2 * m + b0 - b2 * n, b1 - b2 * m
    xx_n, xx_m, xy_m, yy_m = lens_hessian(n, m, view)
    V_n = -(a2 * xx + b2 * xy) + V_xx * xx_n + V_xy * xx_m + V_yy * xy_m
    V_m = -(a2 * xy + b2 * yy) + V_xx * xx_m + V_xy * xy_m + V_yy * yy_m
    V_n = V_n if n == nx else F(0.0)
    V_m = V_m if m == ny else F(0.0)
    shrink = V_xx * xx + V_xy * xy + V_yy * yy
    _, _, xx, xy, yy = lens_at(nx, ny, view)
    V_n += view[0] * V_u * xx + view[1] * V_v * xy
    V_m += view[0] * V_u * xy + view[1] * V_v * yy
    return V_n / z, V_m / z, -(shrink + V_n * nx + V_m * ny) / z


@njit(**KERNEL)
def project_backward(
    rows: tuple[int, int], gaussians: PackedGaussians, camera: CameraView, projected: ProjectedEllipses,
    source: EntryGradients, out: GaussianGradients,
) -> None:  # fmt: skip
    """Gradients by the Gaussians of some rows, from the gradients by their entries."""
    means, covariances, body, ids = gaussians.means, gaussians.covariances, gaussians.body, gaussians.ids
    (R, view), (records, boxes), (gradients, slots, slot) = camera, projected, source
    by_mean, by_shape, by_appearance, by_pose = out
    sums = np.empty(10, np.float32)
    by_pose[:] = 0.0
    for i in range(rows[0], rows[1]):
        box = boxes[i]
        if box < 0:
            continue
        slot = sum_entries(gradients, slots, slot, box, sums)
        b, o = body[i], ids[i]
        x, y, z = camera_position(means, i, R, b)
        jacobian = j00, j01, j02, j10, j11, j12 = projection_jacobian(x, y, z, view)
        a0, a1, a2, b0, b1, b2 = body_jacobian(jacobian, R, b)
        V_u, V_v, V_xx, V_xy, V_yy = ellipse_gradients(records, i, sums)
        V_a, V_b = axes_gradients(covariances, i, (a0, a1, a2), (b0, b1, b2), (V_xx, V_xy, V_yy))
        V_j0, V_j1 = camera_frame_row(V_a, R, b), camera_frame_row(V_b, R, b)
        V_x, V_y, V_z = position_gradients((x, y, z), view, (V_u, V_v), V_j0, V_j1)
        V_z += sums[9]
        by_mean[o, 0] = R[b, 0] * V_x + R[b, 4] * V_y + R[b, 8] * V_z
        by_mean[o, 1] = R[b, 1] * V_x + R[b, 5] * V_y + R[b, 9] * V_z
        by_mean[o, 2] = R[b, 2] * V_x + R[b, 6] * V_y + R[b, 10] * V_z
        by_shape[o, 0] = V_xx * a0 * a0 + F(2.0) * V_xy * a0 * b0 + V_yy * b0 * b0
        by_shape[o, 1] = V_xx * a0 * a1 + V_xy * (a0 * b1 + a1 * b0) + V_yy * b0 * b1
        by_shape[o, 2] = V_xx * a0 * a2 + V_xy * (a0 * b2 + a2 * b0) + V_yy * b0 * b2
        by_shape[o, 3] = V_xx * a1 * a1 + F(2.0) * V_xy * a1 * b1 + V_yy * b1 * b1
        by_shape[o, 4] = V_xx * a1 * a2 + V_xy * (a1 * b2 + a2 * b1) + V_yy * b1 * b2
        by_shape[o, 5] = V_xx * a2 * a2 + F(2.0) * V_xy * a2 * b2 + V_yy * b2 * b2
        by_appearance[o, 0], by_appearance[o, 1], by_appearance[o, 2], by_appearance[o, 3] = (
            sums[0],
            sums[6],
            sums[7],
            sums[8],
        )
        rx, ry, rz = x - R[b, 3], y - R[b, 7], z - R[b, 11]
        by_pose[b, 0] += V_x
        by_pose[b, 1] += V_y
        by_pose[b, 2] += V_z
        # Turning moves the centre and turns the shape: J [w] R, so W = J^T V_J acts through its antisymmetric part.
        by_pose[b, 3] += ry * V_z - rz * V_y + (j02 * V_j0[1] + j12 * V_j1[1]) - (j01 * V_j0[2] + j11 * V_j1[2])
        by_pose[b, 4] += rz * V_x - rx * V_z + (j00 * V_j0[2] + j10 * V_j1[2]) - (j02 * V_j0[0] + j12 * V_j1[0])
        by_pose[b, 5] += rx * V_y - ry * V_x + (j01 * V_j0[0] + j11 * V_j1[0]) - (j00 * V_j0[1] + j10 * V_j1[1])


@njit(**KERNEL)
def covariance_backward(quats: Any, scales: Any, by_shape: Any, by_quat: Any, by_scale: Any) -> None:
    """From gradients by covariances S = M M^T, M = turn diag(scales), to gradients by quaternions and scales."""
    for i in range(len(quats)):
        g0, g1, g2, g3, g4, g5 = (
            by_shape[i, 0], by_shape[i, 1], by_shape[i, 2], by_shape[i, 3], by_shape[i, 4], by_shape[i, 5],
        )  # fmt: skip
        if g0 == 0.0 and g3 == 0.0 and g5 == 0.0:
            by_quat[i, :] = 0.0
            by_scale[i, :] = 0.0
            continue
        length = math.sqrt(quats[i, 0] ** 2 + quats[i, 1] ** 2 + quats[i, 2] ** 2 + quats[i, 3] ** 2)
        w, x, y, z = quats[i, 0] / length, quats[i, 1] / length, quats[i, 2] / length, quats[i, 3] / length
        s0, s1, s2 = scales[i, 0], scales[i, 1], scales[i, 2]
        r00, r01, r02 = 1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)
        r10, r11, r12 = 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)
        r20, r21, r22 = 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)
        # V_M = 2 G M, column j of M is turn[:, j] * s_j; gradients by the turn carry another s_j.
        t0, t1, t2 = 2 * s0 * s0, 2 * s1 * s1, 2 * s2 * s2
        v00, v10, v20 = g0 * r00 + g1 * r10 + g2 * r20, g1 * r00 + g3 * r10 + g4 * r20, g2 * r00 + g4 * r10 + g5 * r20
        v01, v11, v21 = g0 * r01 + g1 * r11 + g2 * r21, g1 * r01 + g3 * r11 + g4 * r21, g2 * r01 + g4 * r11 + g5 * r21
        v02, v12, v22 = g0 * r02 + g1 * r12 + g2 * r22, g1 * r02 + g3 * r12 + g4 * r22, g2 * r02 + g4 * r12 + g5 * r22
        by_scale[i, 0] = 2 * s0 * (v00 * r00 + v10 * r10 + v20 * r20)
        by_scale[i, 1] = 2 * s1 * (v01 * r01 + v11 * r11 + v21 * r21)
        by_scale[i, 2] = 2 * s2 * (v02 * r02 + v12 * r12 + v22 * r22)
        v00, v10, v20, v01, v11, v21 = v00 * t0, v10 * t0, v20 * t0, v01 * t1, v11 * t1, v21 * t1
        v02, v12, v22 = v02 * t2, v12 * t2, v22 * t2
        V_w = 2 * (x * (v21 - v12) + y * (v02 - v20) + z * (v10 - v01))
        V_x = 2 * (w * (v21 - v12) + y * (v01 + v10) + z * (v02 + v20) - 2 * x * (v11 + v22))
        V_y = 2 * (w * (v02 - v20) + x * (v01 + v10) + z * (v12 + v21) - 2 * y * (v00 + v22))
        V_z = 2 * (w * (v10 - v01) + x * (v02 + v20) + y * (v12 + v21) - 2 * z * (v00 + v11))
        along = V_w * w + V_x * x + V_y * y + V_z * z
        by_quat[i, 0], by_quat[i, 1] = (V_w - along * w) / length, (V_x - along * x) / length
        by_quat[i, 2], by_quat[i, 3] = (V_y - along * y) / length, (V_z - along * z) / length
