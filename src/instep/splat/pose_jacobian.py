"""Normal equations for the poses of bodies, or of a camera, from pictures: J^T W J, J^T W r.

J is the derivative of every pixel by a shift and a turn of a body; J^T W J is at once the information the pictures hold
about its pose. Colours are held fixed as the body turns (exact for degree 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.scene.camera import Camera

from .frames import world_from_bodies, world_from_camera
from .image import Backdrop, Region, checked_region
from .motion import MOTION, motions
from .normals import SUMS, normal_tiles
from .pool import on_threads
from .raster import Prepared, Raster

_UPPER = np.triu_indices(6)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What one camera saw, and how much each of its pixels is trusted."""

    camera: Camera
    target: Array
    """The picture it took [height, width, 3], 0 to 1."""
    weight: Array | None = None
    """Trust per pixel [height, width], 0 to leave it out: 1 / variance for a likelihood. All 1 where None."""
    backdrop: Backdrop | None = None
    """What stands behind the bodies: the static scene, the robot."""
    region: Region | None = None
    """The only part of the image that is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Normals:
    """The normal equations of poses: a step is -solve(information + prior, pull + ...).

    Motions are shifts along the world's axes [m] and turns about them [rad], a body's about its own origin.
    """

    names: tuple[str, ...]
    """Whose poses."""
    information: Array
    """J^T W J [names, 6, 6]."""
    pull: Array
    """J^T W r [names, 6], r the picture minus the target."""
    cost: float
    """r^T W r over all pixels that weigh."""
    weight: float
    """Sum of the weights, after robust down-weighting."""

    def __add__(self, other: Normals) -> Normals:
        """The equations of both together."""
        if self.names != other.names:
            raise BadInput(f"Normal equations of {self.names} and of {other.names} cannot be added.")
        return Normals(
            self.names,
            self.information + other.information,
            self.pull + other.pull,
            self.cost + other.cost,
            self.weight + other.weight,
        )


def pose_normals(
    raster: Raster, views: Sequence[View], poses: Array | None, bodies: Sequence[str], *, huber: float = np.inf
) -> list[Normals]:
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
    raster: Raster, views: Sequence[View], poses: Array | None, *, huber: float = np.inf
) -> list[Normals]:
    """One set of normal equations per view, for the pose of its camera in the world, all bodies held still.

    Moving the camera is moving everything it sees the other way.
    """
    names = raster.gaussians.names
    out: list[Normals] = []
    for view in views:
        eye = world_from_camera(names, view.camera, poses)[:3, 3]
        tracked = _Tracked((view.camera.name,), np.zeros(len(names), np.int32), eye[None])
        (normals,) = _solve(raster, [view], poses, tracked, huber)
        out.append(Normals(normals.names, normals.information, -normals.pull, normals.cost, normals.weight))
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Tracked:
    names: tuple[str, ...]
    track: Array  # [bodies] int32, row of what it moves with, or -1
    pivots: Array  # [tracked, 3], about which they turn, in the world


def _solve(
    raster: Raster, views: Sequence[View], poses: Array | None, tracked: _Tracked, huber: float
) -> list[Normals]:
    threads, count = raster.threads, len(tracked.names)
    sums = np.zeros((threads, len(views), count, SUMS))
    costs = np.zeros((threads, len(views), 2))
    with ExitStack() as stack:
        jobs = [_job(stack, raster, view, poses, tracked) for view in views]

        def work(part: int) -> None:
            for i, job in enumerate(jobs):
                space, packed = job.frame.space, job.frame.packed
                normal_tiles(
                    space.entries, space.masks, space.starts, packed.ids, packed.body, space.across, job.tickets,
                    job.frame.backdrop, job.frame.limit, job.target, job.weight, np.float32(huber), tracked.track,
                    job.motion, sums[part, i], costs[part, i],
                )  # fmt: skip

        on_threads(work, threads)
    turns = [world_from_camera(raster.gaussians.names, view.camera, poses)[:3, :3] for view in views]
    whole, cost = sums.sum(axis=0), costs.sum(axis=0)
    return [_normals(tracked.names, whole[i], cost[i], turn) for i, turn in enumerate(turns)]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    frame: Prepared
    target: Array
    weight: Array
    motion: Array
    tickets: Array


def _job(stack: ExitStack, raster: Raster, view: View, poses: Array | None, tracked: _Tracked) -> _Job:
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
    motion = np.empty((len(packed), MOTION), np.float32)
    motions(
        len(packed), tracked.track, pivots, packed.means, packed.covariances, packed.body, frame.frames, frame.view,
        frame.space.boxes, motion,
    )  # fmt: skip
    return _Job(frame, target, weight, motion, np.zeros(1, np.int64))


def _normals(names: tuple[str, ...], sums: Array, cost: Array, turn: Array) -> Normals:
    """From sums along the camera's axes to equations along the world's."""
    both = np.zeros((6, 6))
    both[:3, :3] = both[3:, 3:] = turn
    information = np.zeros((len(names), 6, 6))
    information[:, _UPPER[0], _UPPER[1]] = sums[:, :21]
    information[:, _UPPER[1], _UPPER[0]] = sums[:, :21]
    information = both @ information @ both.T
    return Normals(names, information, sums[:, 21:27] @ both.T, float(cost[0]), float(cost[1]))
