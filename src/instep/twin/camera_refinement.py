"""Camera poses refined from the recording itself: one body, seen many times by all cameras, must fit all of them.

The unknowns are a motion of each camera (6), the body's pose on the table in each picture (3), and the body's size
along its axes (3). A rigid motion of everything on the table changes no picture, so the shipped poses enter as a
prior; where they disagree with each other, the pictures decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import quat_from_matrix, quat_log
from instep.core.world import Array
from instep.scene.camera import Camera

from .pose_solver import Sharpness, Shot, look, moved, overlap_of
from .projection import Outline, kernels, sight


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineOptions:
    """How far the refinement may go."""

    shift: float = 0.02
    """How far off a shipped camera position may be [m], one standard deviation."""
    turn: float = 0.035
    """How far off its orientation may be [rad], one standard deviation."""
    size: float = 0.04
    """How far off the body's size may be, one standard deviation; 0 keeps the size."""
    iterations: int = 30
    softness: tuple[float, float] = (3.0, 0.7)
    """Edge width [pixels] in the first half of the iterations and after."""


@dataclass(frozen=True, slots=True, eq=False)
class Refined:
    """Cameras that agree, what moved, and how well the pictures fit before and after."""

    cameras: Mapping[str, Camera]
    outline: Outline
    size: Array
    """Factors of the body's size along its axes [3]."""
    poses: Array
    """Transforms of the body in each picture [pictures, 4, 4]."""
    before: Array
    """Overlap of silhouettes [pictures, cameras], in the order of `cameras`, poses fitted to the shipped cameras."""
    after: Array
    """The same with refined cameras."""
    shift: Mapping[str, float]
    """How far each camera moved [m]."""
    turn: Mapping[str, float]
    """How far each camera turned [rad]."""


def refine(
    outline: Outline, shots: Sequence[Sequence[Shot]], basis: Array, options: RefineOptions | None = None
) -> Refined:
    """Refine cameras from pictures of one body; `shots` are by picture, then by camera, as the filter left them."""
    if len(shots) < 3 or not shots[0]:
        raise BadInput(f"Cameras need at least three pictures of the body to be refined, and {len(shots)} were given.")
    options = options or RefineOptions()
    cameras = [shot.camera for shot in shots[0]]
    poses = np.stack([row[0].world_from_body for row in shots])
    first = [camera.body_from_camera for camera in cameras]
    size = np.ones(3)
    before = _overlaps(outline, shots, cameras, poses)
    for k in range(options.iterations):
        soft = options.softness[int(k >= options.iterations // 2)]
        step = _step(outline.sized(size), size, shots, cameras, first, poses, basis, soft, options)
        n = len(cameras)
        for c in range(n):
            turned = cameras[c].body_from_camera
            xi = step[6 * c : 6 * c + 6]
            cameras[c] = replace(cameras[c], body_from_camera=moved(turned, xi))
        size = size + step[6 * n : 6 * n + 3]
        for i in range(len(poses)):
            at = 6 * n + 3 + basis.shape[1] * i
            poses[i] = moved(poses[i], basis @ step[at : at + basis.shape[1]])
        if np.abs(step).max() < 1e-5 and k > options.iterations // 2:
            break
    after = _overlaps(outline.sized(size), shots, cameras, poses)
    shift = {
        c.name: float(np.linalg.norm(c.body_from_camera[:3, 3] - f[:3, 3])) for c, f in zip(cameras, first, strict=True)
    }
    turn = {c.name: _angle(c.body_from_camera, f) for c, f in zip(cameras, first, strict=True)}
    named = {c.name: c for c in cameras}
    return Refined(named, outline.sized(size), size, poses, before, after, shift, turn)


def aligned(
    refined: Refined, shots: Sequence[Shot | None], basis: Array, options: RefineOptions | None = None
) -> Refined:
    """The same with one more camera, aligned to what the others agree on; it has no say in where the body is.

    `shots` are its pictures, one for each of `refined.poses`; None where it does not see the body.
    """
    options = options or RefineOptions()
    seen = [(i, shot) for i, shot in enumerate(shots) if shot is not None]
    if len(seen) < 3:
        raise BadInput(f"A camera needs at least three pictures of the body to be aligned, and {len(seen)} show it.")
    first = seen[0][1].camera
    camera, outline, size = first, refined.outline, refined.size
    weight = np.r_[np.full(3, options.shift**-2), np.full(3, options.turn**-2)]
    scale = 1.0 / (Sharpness().sigma ** 2 * Sharpness().kappa)
    for k in range(options.iterations):
        soft = options.softness[int(k >= options.iterations // 2)]
        known: Array = np.diag(weight)
        pull: Array = weight * _motion_between(camera.body_from_camera, first.body_from_camera)
        for i, shot in seen:
            part, slope = _equations(outline, size, replace(shot, camera=camera), refined.poses[i], basis, soft)
            known, pull = known + scale * part[:6, :6], pull + scale * slope[:6]
        camera = replace(camera, body_from_camera=moved(camera.body_from_camera, -np.linalg.solve(known, pull)))
    before, after = (np.full((len(shots), 1), np.nan) for _ in range(2))
    for i, shot in seen:
        before[i] = _overlaps(outline, [[shot]], [first], refined.poses[i : i + 1])
        after[i] = _overlaps(outline, [[shot]], [camera], refined.poses[i : i + 1])
    gone = _motion_between(camera.body_from_camera, first.body_from_camera)
    return replace(
        refined,
        cameras={**refined.cameras, camera.name: camera},
        before=np.concatenate([refined.before, before], axis=1),
        after=np.concatenate([refined.after, after], axis=1),
        shift={**refined.shift, camera.name: float(np.linalg.norm(gone[:3]))},
        turn={**refined.turn, camera.name: float(np.linalg.norm(gone[3:]))},
    )


def anchored(
    refined: Refined, shipped: Sequence[Camera], basis: Array, options: RefineOptions | None = None
) -> Refined:
    """The same with everything moved over the table together, until all cameras are nearest to where they came from.

    That changes no picture. It makes runs with and without some of the cameras speak of the same table.
    """
    options = options or RefineOptions()
    weight = np.r_[np.full(3, 1 / options.shift), np.full(3, 1 / options.turn)]

    def off(world: Array) -> Array:
        pairs = [(world @ refined.cameras[camera.name].body_from_camera, camera.body_from_camera) for camera in shipped]
        return np.concatenate([weight * _motion_between(now, then) for now, then in pairs])

    world = np.eye(4)
    for _ in range(20):
        slopes = [(off(_carried(world, 1e-6 * way)) - off(_carried(world, -1e-6 * way))) / 2e-6 for way in basis.T]
        step = np.linalg.lstsq(np.stack(slopes, axis=1), -off(world), rcond=None)[0]
        world = _carried(world, basis @ step)
    cameras = {n: replace(c, body_from_camera=world @ c.body_from_camera) for n, c in refined.cameras.items()}
    gone = {c.name: _motion_between(cameras[c.name].body_from_camera, c.body_from_camera) for c in shipped}
    return replace(
        refined,
        cameras=cameras,
        poses=world @ refined.poses,
        shift={name: float(np.linalg.norm(motion[:3])) for name, motion in gone.items()},
        turn={name: float(np.linalg.norm(motion[3:])) for name, motion in gone.items()},
    )


def _carried(world: Array, xi: Array) -> Array:
    """A motion of everything, followed by another: translated, and turned about the world's origin."""
    return moved(np.eye(4), xi) @ world


def _step(
    outline: Outline, size: Array, shots: Sequence[Sequence[Shot]], cameras: Sequence[Camera], first: Sequence[Array],
    poses: Array, basis: Array, soft: float, options: RefineOptions,
) -> Array:  # fmt: skip
    """One Gauss-Newton step of all unknowns: cameras, size, poses."""
    n, k = len(cameras), basis.shape[1]
    total = 6 * n + 3 + k * len(poses)
    H, g = np.zeros((total, total)), np.zeros(total)
    sharp = Sharpness()
    scale = 1.0 / (sharp.sigma**2 * sharp.kappa)
    for i, row in enumerate(shots):
        for c, shot in enumerate(row):
            at = np.r_[6 * c : 6 * c + 6, 6 * n : 6 * n + 3, 6 * n + 3 + k * i : 6 * n + 3 + k * (i + 1)]
            part, pull = _equations(outline, size, replace(shot, camera=cameras[c]), poses[i], basis, soft)
            H[np.ix_(at, at)] += scale * part
            g[at] += scale * pull
    weight = np.tile(np.r_[np.full(3, options.shift**-2), np.full(3, options.turn**-2)], n)
    off = np.concatenate([_motion_between(c.body_from_camera, f) for c, f in zip(cameras, first, strict=True)])
    stiff = options.size**-2 if options.size > 0 else 1e12
    prior = np.r_[weight, np.full(3, stiff), np.full(k * len(poses), 1e-3 * 0.1**-2)]
    g[: 6 * n] += weight * off
    g[6 * n : 6 * n + 3] += stiff * (size - 1)
    return -np.linalg.solve(H + np.diag(prior), g)


def _equations(
    outline: Outline, size: Array, shot: Shot, pose: Array, basis: Array, soft: float
) -> tuple[Array, Array]:
    """J^T W J and J^T W r by (camera 6, size 3, pose k)."""
    seen = sight(outline, shot.camera, pose, pose[:3, 3])
    total = 9 + int(basis.shape[1])
    region = overlap_of(seen.region, shot.region)
    if not seen.visible or region is None:
        empty: tuple[Array, Array] = (np.zeros((total, total)), np.zeros(total))
        return empty
    # A motion of the camera is the opposite motion of the body about the camera.
    eye = shot.camera.body_from_camera[:3, 3]
    camera = -sight(outline, shot.camera, pose, eye).slopes
    # Growing along a body axis moves each corner along it, by its own coordinate.
    along = outline.corners[:, :, None] / size[:, None] * np.eye(3)
    grow = seen.slopes[:, :, :3] @ (pose[:3, :3] @ along)
    slopes = np.ascontiguousarray(np.concatenate([camera, grow, seen.slopes @ basis], axis=2))
    left, top, right, bottom = region
    part = slice(top - shot.region[1], bottom - shot.region[1]), slice(left - shot.region[0], right - shot.region[0])
    corner = np.array([left, top], float)
    found: tuple[Array, Array, Array] = kernels.normal_equations(
        seen.points, slopes, seen.edges, shot.mask[part], shot.weight[part], corner, soft, Sharpness().robust
    )
    return np.asarray(found[0]), np.asarray(found[1])


def _overlaps(outline: Outline, shots: Sequence[Sequence[Shot]], cameras: Sequence[Camera], poses: Array) -> Array:
    out = np.zeros((len(shots), len(cameras)))
    for i, row in enumerate(shots):
        for c, shot in enumerate(row):
            view = look(
                outline, replace(shot, camera=cameras[c], world_from_body=poses[i]), np.zeros(6), Sharpness(), 0.7
            )
            out[i, c] = view.overlap if view.visible > 0.3 else np.nan
    return out


def _motion_between(now: Array, then: Array) -> Array:
    """The motion (translation, rotation) that took a transform from `then` to `now`."""
    turn = quat_log(quat_from_matrix(now[:3, :3] @ then[:3, :3].T))
    return np.concatenate([now[:3, 3] - then[:3, 3], turn])


def _angle(a: Array, b: Array) -> float:
    return float(np.linalg.norm(_motion_between(a, b)[3:]))
