"""Calibration of cameras against the robot, from points that the robot itself shows while it moves.

Two functions, by what is known. `calibrate_hand_eye` takes poses of a link that holds a board somewhere, and finds the
camera and the board. `calibrate_robot` takes joint readings and points of known links, and finds cameras and the zero
offsets of joints. Both minimise reprojection errors [pixels], with a robust loss and priors:

    r = project(camera_from_world @ world_from_link(q + offset) @ link_from_target @ point) - pixel
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import quat_from_matrix, quat_log
from instep.core.statistics import Estimate
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.scene.folder import Scene

from .body_outlines import mujoco
from .pose_solver import moved
from .tracked_body import MIN_POINTS, pose_from_points

MIN_VIEWS = 3
"""Views with different orientations from which a camera and a board are found."""
MIN_TURN_RAD = 0.05
"""Rotation between two views below which they say nothing about a camera's orientation [rad]."""


@options_dataclass
class HandEyeOptions:
    """What is refined, and how far it may be from what is given."""

    lens: bool = False
    """Refine focal lengths, centre and two radial coefficients of the lens as well."""
    pixel: float = 1.0
    """Standard deviation of a pixel; beyond about this much a point pulls less [pixels]."""
    camera: tuple[float, float] = (0.02, 0.035)
    """Standard deviations of a given camera pose [m, rad], for `calibrate_robot`."""
    offset: float = 0.05
    """Standard deviation of the zero offset of a joint [rad or m]."""
    focal: float = 0.03
    """Standard deviation of a given focal length, as a share; the centre has as many pixels of it."""
    distortion: float = 0.2
    """Standard deviation of each radial coefficient."""


@array_dataclass
class PointSighting:
    """Points that one image shows."""

    places: Array
    """In the frame of a board or link [n, 3] [m]."""
    pixels: Array
    """Where the image shows them [n, 2]; the centre of the top left pixel is (0.5, 0.5)."""
    row: int = 0
    """Row of the joint readings at which the image was taken."""
    camera: str = ""
    """The camera, where there are several."""
    body: str = "world"
    """The link whose frame places are in, or the world, for points that do not move."""


@array_dataclass
class HandEye:
    """A camera that is fixed in the world, and a board on a link."""

    camera: Camera
    link_from_target: Array
    """Pose of the board on the link (4 x 4)."""
    sigma: tuple[float, float]
    """Standard deviations of the camera's position [m] and orientation [rad]."""
    errors: Array
    """Reprojection errors of all points [n] [pixels]."""


@array_dataclass
class RobotCalibration:
    """Cameras and zero offsets of joints."""

    cameras: Mapping[str, Camera]
    offsets: Mapping[str, Estimate]
    """What is added to a reading of each joint [rad or m]."""
    weak: tuple[str, ...]
    """Joints whose offset the points say little about: it stays near the prior."""
    errors: Array
    """Reprojection errors of all points [n] [pixels]."""


def calibrate_hand_eye(
    camera: Camera, world_from_link: Array, sightings: Sequence[PointSighting], options: HandEyeOptions | None = None
) -> HandEye:
    """The pose of a fixed camera and of a board on a moving link, whose poses are known [views, 4, 4].

    It starts at the closed form of Park and Martin on the pose of the board in each image, so that no pose is given.
    """
    options = options or HandEyeOptions()
    if len(sightings) != len(world_from_link):
        raise BadInput(
            f"There are {len(sightings)} images and {len(world_from_link)} poses of the link; give one each."
        )
    used = [i for i, s in enumerate(sightings) if len(s.places) >= MIN_POINTS]
    if len(used) < MIN_VIEWS:
        raise BadInput(
            f"{len(used)} images show at least {MIN_POINTS} points of the board; a hand-eye calibration needs "
            f"{MIN_VIEWS}, in different orientations."
        )
    at_origin = replace(camera, body="world", body_from_camera=np.eye(4))
    boards = [pose_from_points(at_origin, sightings[i].places, sightings[i].pixels) for i in used]
    links = [np.asarray(world_from_link[i], float) for i in used]
    world_from_camera, link_from_target = park_martin(links, boards)

    def unpacked(x: Array) -> tuple[Camera, Array]:
        placed = replace(camera, body="world", body_from_camera=moved(world_from_camera, x[:6]))
        return (_with_lens(placed, x[12:]) if options.lens else placed), moved(link_from_target, x[6:12])

    def residuals(x: Array) -> Array:
        shown, board = unpacked(x)
        parts = [_misses(shown, links[k] @ board, sightings[i]) / options.pixel for k, i in enumerate(used)]
        return (
            np.concatenate([*parts, x[12:] / _lens_prior(camera, options)]) if options.lens else np.concatenate(parts)
        )

    x, covariance = _fitted(residuals, np.zeros(18 if options.lens else 12))
    shown, board = unpacked(x)
    errors = [_misses(shown, links[k] @ board, sightings[i]).reshape(-1, 2) for k, i in enumerate(used)]
    spread = np.sqrt(np.diag(covariance))
    sigma = (float(np.linalg.norm(spread[:3])), float(np.linalg.norm(spread[3:6])))
    return HandEye(shown, board, sigma, np.linalg.norm(np.concatenate(errors), axis=1))


def calibrate_robot(
    scene: Scene, q: Array, sightings: Sequence[PointSighting], options: HandEyeOptions | None = None, *,
    joints: Sequence[str] | None = None,
) -> RobotCalibration:  # fmt: skip
    """Poses of a scene's cameras and zero offsets of its joints (all of the robot where none are named).

    `q` [rows, nq] are the positions as they were read. A joint whose axis is the only thing between a camera and all
    points cannot be told from a motion of that camera; points of the world in the same images decide.
    """
    options, chosen = options or HandEyeOptions(), tuple(scene.robot if joints is None else joints)
    labels, names = scene.spec.q.labels, list(dict.fromkeys(s.camera for s in sightings))
    for name in chosen:
        if name not in labels:
            raise UnknownName("joint", name, labels)
    for name in names:
        if name not in scene.cameras:
            raise UnknownName("camera", name, scene.cameras)
    if not sightings:
        raise BadInput("No image shows a point, so there is nothing to calibrate by.")
    n, places = 6 * len(names), [labels.index(name) for name in chosen]
    poses = _link_poses(scene, sightings)

    def cameras(x: Array) -> dict[str, Camera]:
        given = [(name, scene.cameras[name], x[6 * k : 6 * k + 6]) for k, name in enumerate(names)]
        return {m: replace(c, body_from_camera=moved(c.body_from_camera, xi)) for m, c, xi in given}

    def misses(x: Array) -> list[Array]:
        read = np.array(q, float)
        read[:, places] += x[n:]
        shown = cameras(x)
        return [_misses(shown[s.camera], T, s) for s, T in zip(sightings, poses(read), strict=True)]

    prior = np.concatenate(
        [*([options.camera[0]] * 3 + [options.camera[1]] * 3 for _ in names), [options.offset] * len(chosen)]
    )
    x, covariance = _fitted(
        lambda x: np.concatenate([*(m / options.pixel for m in misses(x)), x / prior]), np.zeros(len(prior))
    )
    spread = np.sqrt(np.diag(covariance))[n:]
    unit = dict(zip(labels, scene.spec.q.units, strict=True))
    found = {
        name: Estimate(float(v), float(v - 1.96 * s), float(v + 1.96 * s), len(sightings), unit[name])
        for name, v, s in zip(chosen, x[n:], spread, strict=True)
    }
    weak = tuple(name for name, s in zip(chosen, spread, strict=True) if s > 0.5 * options.offset)
    errors = np.concatenate([m.reshape(-1, 2) for m in misses(x)])
    return RobotCalibration(cameras(x), found, weak, np.linalg.norm(errors, axis=1))


def _link_poses(scene: Scene, sightings: Sequence[PointSighting]) -> Callable[[Array], list[Array]]:
    """A function from positions [rows, nq] to the transform of the body of each sighting."""
    model = scene.model
    data, known = mujoco.MjData(model), [str(model.body(b).name) for b in range(model.nbody)]
    for sighting in sightings:
        if sighting.body not in known:
            raise UnknownName("body", sighting.body, known)
    rows = sorted({s.row for s in sightings})

    def poses(q: Array) -> list[Array]:
        found: dict[tuple[int, str], Array] = {}
        for row in rows:
            data.qpos[:] = q[row]
            mujoco.mj_kinematics(model, data)
            for name in {s.body for s in sightings if s.row == row}:
                b, T = known.index(name), np.eye(4)
                T[:3, :3], T[:3, 3] = np.asarray(data.xmat[b], float).reshape(3, 3), data.xpos[b]
                found[row, name] = T
        return [found[s.row, s.body] for s in sightings]

    return poses


def _misses(camera: Camera, world_from_target: Array, sighting: PointSighting) -> Array:
    """Reprojection errors of one image [2 n] [pixels]; a point behind the camera is far off."""
    camera_from_target = np.linalg.inv(camera.body_from_camera) @ world_from_target
    at = sighting.places @ camera_from_target[:3, :3].T + camera_from_target[:3, 3]
    at = np.concatenate([at[:, :2], np.maximum(at[:, 2:], 1e-3)], axis=1)
    return (camera.project(at) - sighting.pixels).ravel()


def _with_lens(camera: Camera, x: Array) -> Camera:
    """A camera whose lens is changed by fx, fy (as shares), cx, cy [pixels], k1, k2."""
    focal = (camera.focal[0] * (1 + float(x[0])), camera.focal[1] * (1 + float(x[1])))
    centre = (camera.centre[0] + float(x[2]), camera.centre[1] + float(x[3]))
    k = [*camera.distortion, 0.0, 0.0, 0.0, 0.0, 0.0][:5]
    k[0], k[1] = k[0] + float(x[4]), k[1] + float(x[5])
    return replace(camera, focal=focal, centre=centre, distortion=tuple(k))


def _lens_prior(camera: Camera, options: HandEyeOptions) -> Array:
    share, pixels = options.focal, options.focal * camera.focal[0]
    return np.array([share, share, pixels, pixels, options.distortion, options.distortion])


def _fitted(residuals: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """Least squares with a soft threshold at two standard deviations, and the covariance of what was found.

    Where residuals are larger than their standard deviation of one, so is the covariance.
    """
    from scipy.optimize import least_squares

    # Motions are in metres and radians, about a thousandth of what a pixel is.
    found = least_squares(residuals, start, loss="soft_l1", f_scale=2.0, x_scale=np.full(len(start), 1e-3))
    J, r = np.asarray(found.jac, float), np.asarray(found.fun, float)
    noise = max(float(np.median(np.abs(r))) * 1.4826, 1e-3) ** 2
    return np.asarray(found.x, float), noise * np.linalg.pinv(J.T @ J)


def park_martin(links: Sequence[Array], boards: Sequence[Array]) -> tuple[Array, Array]:
    """world_from_camera X and link_from_target Y of A_i Y = X B_i, by Park and Martin: rotations first.

    A_i are poses of the link in the world, B_i poses of the board in the camera's frame.
    """
    pairs = [(i, j) for i in range(len(links)) for j in range(i)]
    a = [links[i] @ np.linalg.inv(links[j]) for i, j in pairs]
    b = [boards[i] @ np.linalg.inv(boards[j]) for i, j in pairs]
    turns = np.stack([np.stack([_turn(m), _turn(k)]) for m, k in zip(a, b, strict=True)])
    turned = np.linalg.norm(turns[:, 0], axis=1) > MIN_TURN_RAD
    if np.linalg.matrix_rank(turns[turned, 0], tol=MIN_TURN_RAD) < 2:
        raise BadInput(
            "The link turned about one axis alone, so the camera's pose cannot be found; turn it about at least two."
        )
    X = np.eye(4)
    X[:3, :3] = nearest_rotation(turns[turned, 0].T @ turns[turned, 1])
    left = np.concatenate([m[:3, :3] - np.eye(3) for m in a])
    right = np.concatenate([X[:3, :3] @ k[:3, 3] - m[:3, 3] for m, k in zip(a, b, strict=True)])
    X[:3, 3] = np.linalg.lstsq(left, right, rcond=None)[0]
    targets = [np.linalg.inv(link) @ X @ board for link, board in zip(links, boards, strict=True)]
    Y = np.eye(4)
    Y[:3, :3] = nearest_rotation(np.sum([T[:3, :3] for T in targets], axis=0))
    Y[:3, 3] = np.median([T[:3, 3] for T in targets], axis=0)
    return X, Y


def nearest_rotation(matrix: Array) -> Array:
    """The rotation that is nearest to a matrix [3, 3], by its singular values."""
    U, _, Vt = np.linalg.svd(matrix)
    return U @ np.diag([1.0, 1.0, np.linalg.det(U @ Vt)]) @ Vt


def _turn(T: Array) -> Array:
    return quat_log(quat_from_matrix(T[:3, :3]))
