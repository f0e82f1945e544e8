"""Normal equations of body or camera poses from images: J^T W J and J^T W r, compiled.

J is the derivative of every pixel by a translation and a rotation of a body; J^T W J is at once the information that
the images hold about its pose. Colours are held fixed as the body rotates (exact for degree 0). For every cell the
image is blended, compared with the target, and blended once more while J [3 colours, 6] of each tracked body gathers
in a small buffer, so that no image of derivatives is ever stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera
from instep.splat.image import Backdrop, Region, checked_region

from .blending import (
    FIRST,
    OUT,
    PIXELS,
    BackdropArrays,
    blend_cell,
    full_light,
    next_entry,
    pass_entry,
    read_limits,
)
from .gaussian_projection import world_from_bodies, world_from_camera
from .gradients import POSE_DERIVATIVES, Pivots, pose_derivatives
from .rasterizer import PreparedFrame, Rasterizer
from .simd import (
    CELL,
    CELLS,
    INLINE,
    KERNEL,
    LOG2_E,
    MAX_ALPHA,
    F,
    broadcast,
    float_as_bits,
    load,
    reduce_sum,
    select,
    store,
)
from .tiles import SortedTile, TileLists, cell_corner, next_tile, tile_buffers
from .workspace import run_on_threads

JACOBIAN = 18 * PIXELS
"""Numbers of J for one body and cell: [colour, motion, pixel]."""
SUMS = 29
"""Numbers per body: J^T W J (21, upper triangle by rows), J^T W r (6), r^T W r, W."""


class TargetArrays(NamedTuple):
    """An image to compare with, as the kernels take it."""

    colour: Array
    """Red, green, blue [height, width, 3]."""
    weight: Array
    """Weight of each pixel [height, width]."""
    huber: np.float32
    """Residuals longer than this are weighted down in proportion."""


class TrackedMotion(NamedTuple):
    """How the Gaussians of tracked bodies move."""

    body: Array
    """The body of each Gaussian [n]."""
    track: Array
    """Which of the tracked a body is [bodies]; -1: none."""
    derivatives: Array
    """Those of `pose_derivatives` [n, 30]."""


class CellJacobian(NamedTuple):
    """J of one cell for every tracked body."""

    out: Array
    """The blended cell: OUT numbers, as `blend_cell` writes them."""
    values: Array
    """J [bodies * JACOBIAN]."""
    touched: Array
    """Whose J is not 0 [bodies]."""


@njit(**INLINE)
def residuals_of_cell(out: Any, corner: Any, backdrop: Any, target: TargetArrays, residual: Any, cost: Any) -> Any:
    """Residuals and weights of a cell: residual [4 * 16] is red, green, blue, weight. Return whether any weighs.

    The colours in `out` become those with the backdrop behind them.
    """
    (colour, weight, huber), (left, top) = target, corner
    height, width = weight.shape
    residual[:] = F(0.0)
    any_weight = False
    for row in range(min(CELL, height - top)):
        for column in range(min(CELL, width - left)):
            o, y, x = row * CELL + column, top + row, left + column
            w = weight[y, x]
            if w <= F(0.0):
                continue
            rest, square = out[o], F(0.0)
            for channel in range(3):
                shown = out[(1 + channel) * PIXELS + o]
                if len(backdrop):
                    shown += rest * backdrop[y, x, channel]
                    out[(1 + channel) * PIXELS + o] = shown
                difference = shown - colour[y, x, channel]
                residual[channel * PIXELS + o] = difference
                square += difference * difference
            length = F(math.sqrt(square))
            if length > huber:
                w *= huber / length
            residual[3 * PIXELS + o] = w
            cost[0] += w * square
            cost[1] += w
            any_weight = True
    return any_weight


@njit(**INLINE)
def accumulate_jacobian(jacobian: Any, at: Any, gradient: Any, motion: Any, row: Any, by_power: Any) -> None:
    """Add one Gaussian to J of half a cell: derivative of the colours times change of the log alpha, for 6 motions.

    `gradient` is that of the power by the centre (x, y), `by_power` the derivatives of red, green and blue.
    """
    (ex, ey), (red, green, blue), half = gradient, by_power, broadcast(F(0.5))
    exx, exy, eyy = half * ex * ex, ex * ey, half * ey * ey
    for k in range(6):
        o = 5 * k
        change = broadcast(motion[row, o]) * ex + broadcast(motion[row, o + 1]) * ey
        change = change + broadcast(motion[row, o + 2]) * exx
        change = change + broadcast(motion[row, o + 3]) * exy + broadcast(motion[row, o + 4]) * eyy
        place = at + k * PIXELS
        store(jacobian, place, load(jacobian, place) + red * change)
        store(jacobian, place + 6 * PIXELS, load(jacobian, place + 6 * PIXELS) + green * change)
        store(jacobian, place + 12 * PIXELS, load(jacobian, place + 12 * PIXELS) + blue * change)


@njit(**INLINE)
def colour_derivatives(own: Any, cover: Any, weight: Any, light: Any, behind: Any) -> Any:
    """Gradients of a half cell's colours by the power of a Gaussian, and the colours behind it after it has passed."""
    none = broadcast(F(0.0))
    odds = select(cover < broadcast(MAX_ALPHA), cover / (broadcast(F(1.0)) - cover), none)
    shown = select(cover < broadcast(MAX_ALPHA), weight, none)
    alive = light > none
    red = select(alive, behind[0] - weight * own[0], none)
    green = select(alive, behind[1] - weight * own[1], none)
    blue = select(alive, behind[2] - weight * own[2], none)
    by_power = shown * own[0] - red * odds, shown * own[1] - green * odds, shown * own[2] - blue * odds
    return by_power, (red, green, blue)


@njit(**INLINE)
def jacobian_cell(
    tile: SortedTile, n: Any, cell: Any, nearest: Any, tracked: TrackedMotion, sums: CellJacobian
) -> None:
    """J of one cell for every tracked body."""
    entries, (body, track, motion), (out, jacobian, touched) = tile.entries, tracked, sums
    light, cursor = full_light(nearest), FIRST
    behind_0, behind_1 = (load(out, 16), load(out, 32), load(out, 48)), (load(out, 24), load(out, 40), load(out, 56))
    while True:
        k, cursor = next_entry(tile, n, cell, cursor, light)
        if k < 0:
            break
        light, covered = pass_entry(tile, k, cell, light)
        across, upper, lower, cover_0, cover_1, weight_0, weight_1 = covered
        own = broadcast(entries[k, 6]), broadcast(entries[k, 7]), broadcast(entries[k, 8])
        by_power_0, behind_0 = colour_derivatives(own, cover_0, weight_0, light.light_0, behind_0)
        by_power_1, behind_1 = colour_derivatives(own, cover_1, weight_1, light.light_1, behind_1)
        row = np.int64(float_as_bits(entries[k, 10]))
        slot = np.int64(track[body[row]])
        if slot >= 0:
            touched[slot] = 1
            a, b = broadcast(F(-2.0) / LOG2_E * entries[k, 2]), broadcast(F(-1.0) / LOG2_E * entries[k, 3])
            c = broadcast(F(-2.0) / LOG2_E * entries[k, 4])
            at = slot * JACOBIAN
            gradient_0 = a * across + b * upper, b * across + c * upper
            gradient_1 = a * across + b * lower, b * across + c * lower
            accumulate_jacobian(jacobian, at, gradient_0, motion, row, by_power_0)
            accumulate_jacobian(jacobian, at + 8, gradient_1, motion, row, by_power_1)


@njit(**INLINE)
def accumulate_normals(jacobian: Any, slot: Any, residual: Any, sums: Any) -> None:
    """Add J^T W J and J^T W r of one cell and body to its sums, and clear J."""
    place = 0
    for k in range(6):
        for l in range(k, 6):
            square = broadcast(F(0.0))
            for half in range(0, PIXELS, 8):
                weight = load(residual, 3 * PIXELS + half)
                for channel in range(3):
                    o = slot * JACOBIAN + channel * 6 * PIXELS + half
                    square = square + weight * load(jacobian, o + k * PIXELS) * load(jacobian, o + l * PIXELS)
            sums[slot, place] += reduce_sum(square)
            place += 1
    for k in range(6):
        pull = broadcast(F(0.0))
        for half in range(0, PIXELS, 8):
            weight = load(residual, 3 * PIXELS + half)
            for channel in range(3):
                o = slot * JACOBIAN + channel * 6 * PIXELS + half
                pull = pull + weight * load(jacobian, o + k * PIXELS) * load(residual, channel * PIXELS + half)
        sums[slot, 21 + k] += reduce_sum(pull)
    jacobian[slot * JACOBIAN : (slot + 1) * JACOBIAN] = F(0.0)


@njit(**KERNEL)
def normal_tiles(
    tiles: TileLists, backdrop: BackdropArrays, target: TargetArrays, tracked: TrackedMotion, sums: Any, cost: Any
) -> None:
    """Sum up the normal equations tile by tile until no tile is left: sums [bodies, 29], cost [2] (r^T W r, W)."""
    height, width = target.weight.shape
    buffers, residual = tile_buffers(tiles), np.empty(4 * PIXELS, np.float32)
    out, touched = np.empty(OUT, np.float32), np.zeros(len(sums), np.int64)
    jacobian = np.zeros(len(sums) * JACOBIAN, np.float32)
    gathered = CellJacobian(out, jacobian, touched)
    while True:
        tile, n, _ = next_tile(tiles, buffers)
        if tile < 0:
            return
        for cell in range(CELLS * CELLS):
            left, top = corner = cell_corner(tile, cell, tiles.across)
            if left >= width or top >= height:
                continue
            nearest = read_limits(backdrop.depth, corner, buffers.limits)
            blend_cell(buffers, n, cell, nearest, out)
            if residuals_of_cell(out, corner, backdrop.colour, target, residual, cost):
                jacobian_cell(buffers, n, cell, nearest, tracked, gathered)
                for slot in range(len(sums)):
                    if touched[slot]:
                        accumulate_normals(jacobian, slot, residual, sums)
                        touched[slot] = 0


_UPPER = np.triu_indices(6)


@array_dataclass
class TargetImage:
    """An image of one camera with a weight for every pixel."""

    camera: Camera
    target: Array
    """Red, green, blue [height, width, 3], 0 to 1."""
    weight: Array | None = None
    """Weight per pixel [height, width]: 1 / variance for a likelihood. All 1 where None."""
    backdrop: Backdrop | None = None
    """What is behind the bodies, such as the static scene."""
    region: Region | None = None
    """The only part of the image that counts."""


@array_dataclass
class PoseNormalEquations:
    """Normal equations of poses: a step is -solve(information + prior, gradient + ...).

    A pose changes by a translation along the world's axes [m] and a rotation about them [rad], at the body's origin.
    """

    names: tuple[str, ...]
    """Whose poses."""
    information: Array
    """J^T W J [names, 6, 6]."""
    gradient: Array
    """J^T W r [names, 6], r the image minus the target."""
    cost: float
    """r^T W r over all pixels that weigh."""
    weight: float
    """Sum of the weights, after robust down-weighting."""

    def __add__(self, other: PoseNormalEquations) -> PoseNormalEquations:
        """The equations of both together."""
        if self.names != other.names:
            raise BadInput(f"Normal equations of {self.names} and of {other.names} cannot be added.")
        return PoseNormalEquations(
            self.names,
            self.information + other.information,
            self.gradient + other.gradient,
            self.cost + other.cost,
            self.weight + other.weight,
        )


def pose_normals(
    raster: Rasterizer,
    views: Sequence[TargetImage],
    poses: Array | None,
    bodies: Sequence[str],
    *,
    huber: float = np.inf,
) -> list[PoseNormalEquations]:
    """One set of normal equations per view, for the poses of some bodies; their sum uses all views.

    Residuals of a pixel longer than `huber` (in colour units) are weighted down in proportion.
    """
    names = raster.gaussians.names
    for body in bodies:
        if body not in names:
            raise UnknownName("body", body, names)
    track = np.full(len(names), -1, np.int32)
    track[[names.index(body) for body in bodies]] = np.arange(len(bodies), dtype=np.int32)
    rows = [names.index(body) for body in bodies]
    origins = world_from_bodies(names, poses)[rows, :3, 3]
    return _solve(raster, views, poses, _Tracked(tuple(bodies), track, origins), huber)


def camera_normals(
    raster: Rasterizer, views: Sequence[TargetImage], poses: Array | None, *, huber: float = np.inf
) -> list[PoseNormalEquations]:
    """One set of normal equations per view, for the pose of its camera in the world, with fixed bodies.

    Moving the camera is moving everything it sees the other way.
    """
    names = raster.gaussians.names
    out: list[PoseNormalEquations] = []
    for view in views:
        eye = world_from_camera(names, view.camera, poses)[:3, 3]
        tracked = _Tracked((view.camera.name,), np.zeros(len(names), np.int32), eye[None])
        (normals,) = _solve(raster, [view], poses, tracked, huber)
        out.append(
            PoseNormalEquations(normals.names, normals.information, -normals.gradient, normals.cost, normals.weight)
        )
    return out


@array_dataclass
class _Tracked:
    names: tuple[str, ...]
    track: Array  # [bodies] int32, row of what it moves with, or -1
    pivots: Array  # [tracked, 3], about which they turn, in the world


def _solve(
    raster: Rasterizer, views: Sequence[TargetImage], poses: Array | None, tracked: _Tracked, huber: float
) -> list[PoseNormalEquations]:
    threads, count = raster.threads, len(tracked.names)
    sums = np.zeros((threads, len(views), count, SUMS))
    costs = np.zeros((threads, len(views), 2))
    with ExitStack() as stack:
        jobs = [_job(stack, raster, view, poses, tracked, huber) for view in views]

        def work(part: int) -> None:
            for i, job in enumerate(jobs):
                normal_tiles(job.tiles, job.frame.backdrop, job.target, job.motion, sums[part, i], costs[part, i])

        run_on_threads(work, threads)
    turns = [world_from_camera(raster.gaussians.names, view.camera, poses)[:3, :3] for view in views]
    whole, cost = sums.sum(axis=0), costs.sum(axis=0)
    return [_normals(tracked.names, whole[i], cost[i], turn) for i, turn in enumerate(turns)]


@array_dataclass
class _Job:
    frame: PreparedFrame
    tiles: TileLists
    target: TargetArrays
    motion: TrackedMotion


def _job(
    stack: ExitStack, raster: Rasterizer, view: TargetImage, poses: Array | None, tracked: _Tracked, huber: float
) -> _Job:
    camera = view.camera
    region = left, top, right, bottom = checked_region(camera, view.region)
    for name, image in (("target", view.target), ("weight", view.weight)):
        if image is not None and np.shape(image)[:2] != (camera.height, camera.width):
            raise BadInput(
                f"The {name} of camera {camera.name!r} has the shape {np.shape(image)}; an image of "
                f"{camera.width} x {camera.height} pixels was expected."
            )
    frame = stack.enter_context(raster.prepared(camera, poses, view.backdrop, region))
    target = np.ascontiguousarray(view.target[top:bottom, left:right], np.float32)
    if view.weight is None:
        weight = np.ones(target.shape[:2], np.float32)
    else:
        weight = np.ascontiguousarray(view.weight[top:bottom, left:right], np.float32)
    world_from_eye = world_from_camera(raster.gaussians.names, camera, poses)
    pivots = ((tracked.pivots - world_from_eye[:3, 3]) @ world_from_eye[:3, :3]).astype(np.float32)
    packed = frame.packed
    derivatives = np.empty((len(packed.ids), POSE_DERIVATIVES), np.float32)
    pose_derivatives(Pivots(tracked.track, pivots), packed, frame.view, frame.space.projected.boxes, derivatives)
    motion = TrackedMotion(packed.body, tracked.track, derivatives)
    return _Job(frame, frame.tile_lists(), TargetArrays(target, weight, np.float32(huber)), motion)


def _normals(names: tuple[str, ...], sums: Array, cost: Array, turn: Array) -> PoseNormalEquations:
    """From sums along the camera's axes to equations along the world's."""
    both = np.zeros((6, 6))
    both[:3, :3] = both[3:, 3:] = turn
    information = np.zeros((len(names), 6, 6))
    information[:, _UPPER[0], _UPPER[1]] = sums[:, :21]
    information[:, _UPPER[1], _UPPER[0]] = sums[:, :21]
    information = both @ information @ both.T
    return PoseNormalEquations(names, information, sums[:, 21:27] @ both.T, float(cost[0]), float(cost[1]))
