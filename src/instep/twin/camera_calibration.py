"""Calibration of cameras: against the robot by points that it shows, and from a recording of a body.

`calibrate_robot` takes joint readings and points of known links, and finds cameras and the zero offsets of joints. It
minimises reprojection errors [pixels], with a robust loss and priors:

    r = project(camera_from_world @ world_from_link(q + offset) @ point) - pixel

`refine_rig` takes a recording: a motion of each camera (6), the body's pose on the table in each frame (3) and its size
along its axes (3) are fitted to the silhouettes of one body. A common motion over the table changes no image, so the
given camera poses are the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.statistics import Estimate
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.scene.folder import Scene

from .body_outlines import Outline, mujoco, outline_of, project_outline, silhouette_kernels
from .body_search import RecordedBody
from .camera_rig import CameraFrame, CameraRig, MaskCrop, recorded_cameras, recorded_frames, recorded_rig
from .pose_solver import EDGE_WIDTH_PX, MASK_NOISE, compare_silhouette, motion_between, moved, planar_basis, solve_pose
from .scene_bodies import free_body, support_plane


@options_dataclass
class RobotCalibrationOptions:
    """Noise of points, and how far what is refined may be from what is given."""

    pixel: float = 1.0
    """Standard deviation of a pixel; beyond about this much a point pulls less [pixels]."""
    camera: tuple[float, float] = (0.02, 0.035)
    """Standard deviations of a given camera pose [m, rad]."""
    offset: float = 0.05
    """Standard deviation of the zero offset of a joint [rad or m]."""


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
class RobotCalibration:
    """Cameras and zero offsets of joints."""

    cameras: Mapping[str, Camera]
    offsets: Mapping[str, Estimate]
    """What is added to a reading of each joint [rad or m]."""
    weak: tuple[str, ...]
    """Joints whose offset the points say little about: it stays near the prior."""
    errors: Array
    """Reprojection errors of all points [n] [pixels]."""


def calibrate_robot(
    scene: Scene, q: Array, sightings: Sequence[PointSighting], options: RobotCalibrationOptions | None = None, *,
    joints: Sequence[str] | None = None,
) -> RobotCalibration:  # fmt: skip
    """Poses of a scene's cameras and zero offsets of its joints (all of the robot where none are named).

    `q` [rows, nq] are the positions as they were read. A joint whose axis is the only thing between a camera and all
    points cannot be told from a motion of that camera; points of the world in the same images decide.
    """
    options, chosen = options or RobotCalibrationOptions(), tuple(scene.robot if joints is None else joints)
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
    model, data = scene.model, mujoco.MjData(scene.model)
    known = [str(model.body(b).name) for b in range(model.nbody)]
    for sighting in sightings:
        if sighting.body not in known:
            raise UnknownName("body", sighting.body, known)
    numbers, rows = [known.index(s.body) for s in sightings], sorted({s.row for s in sightings})

    def poses(q: Array) -> list[Array]:
        out = np.tile(np.eye(4), (len(sightings), 1, 1))
        for row in rows:
            data.qpos[:] = q[row]
            mujoco.mj_kinematics(model, data)
            for i, b in enumerate(numbers):
                if sightings[i].row == row:
                    out[i, :3, :3], out[i, :3, 3] = np.reshape(data.xmat[b], (3, 3)), data.xpos[b]
        return list(out)

    return poses


def _misses(camera: Camera, world_from_target: Array, sighting: PointSighting) -> Array:
    """Reprojection errors of one image [2 n] [pixels]; a point behind the camera is far off."""
    camera_from_target = np.linalg.inv(camera.body_from_camera) @ world_from_target
    at = sighting.places @ camera_from_target[:3, :3].T + camera_from_target[:3, 3]
    at = np.concatenate([at[:, :2], np.maximum(at[:, 2:], 1e-3)], axis=1)
    return (camera.project(at) - sighting.pixels).ravel()


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


KEY_FRAMES = 24
"""Frames from which cameras are refined."""
TRACKING_PRIOR = np.diag([0.01**2] * 3 + [0.1**2] * 3)
"""Covariance of a pose that is predicted to be that of some frames before [m^2, rad^2]."""
MIN_LEARNING_OVERLAP = 0.7
"""Overlap in a camera from which its colours are learned."""
CAMERA_INFORMATION = np.repeat([0.02, 0.035], 3) ** -2.0
"""Inverse variances of a given camera pose: 2 cm, 2 degrees."""
SIZE_INFORMATION = 0.04**-2.0
"""Inverse variance of the body's size [share]."""
ITERATIONS, WIDE_PX = 30, 3.0
"""Steps of the refinement, and the edge width in the first half of them [pixels]."""
MIN_IMAGES = 3
"""Least images of the body by which a camera is refined."""


@array_dataclass
class CameraFit:
    """Cameras that agree on a body."""

    cameras: tuple[Camera, ...]
    size: Array
    """Factors of the body's size along its axes [3]."""
    poses: Array
    """Transforms of the body in each frame [frames, 4, 4]."""

    def moved(self, step: Array, basis: Array) -> CameraFit:
        """The fit after a step: 6 numbers per camera, 3 of the size, and one per column of the basis and frame."""
        by_camera, by_size, by_pose = np.split(step, np.cumsum([6 * len(self.cameras), 3]))
        motions = zip(self.cameras, by_camera.reshape(-1, 6), strict=True)
        cameras = tuple(replace(one, body_from_camera=moved(one.body_from_camera, xi)) for one, xi in motions)
        slid = zip(self.poses, by_pose.reshape(len(self.poses), -1) @ basis.T, strict=True)
        return CameraFit(cameras, self.size + by_size, np.array([moved(pose, xi) for pose, xi in slid]))

    def overlaps(self, outline: Outline, crops: Sequence[Sequence[MaskCrop | None]]) -> Array:
        """The overlap of silhouettes [frames, cameras]; NaN where a camera shows too little of the body."""
        out = np.full((len(crops), len(self.cameras)), np.nan)
        for i, row in enumerate(crops):
            for c, crop in enumerate(row):
                if crop is not None:
                    fit = compare_silhouette(
                        outline, replace(crop, camera=self.cameras[c], world_from_body=self.poses[i])
                    )
                    out[i, c] = fit.overlap if fit.visible > 0.3 else np.nan
        return out


@array_dataclass
class RefinedRig:
    """The camera rig of a recording with refined camera poses, and how well the images fit before and after."""

    rig: CameraRig
    outline: Outline
    """That of the body in its refined size."""
    size: Array
    """Factors of the body's size along its axes [3]."""
    key_rows: Array
    """Rows of the recording that the cameras were refined on; scores leave them out."""
    before: Array
    """Overlap of silhouettes [frames, cameras] with the given camera poses."""
    after: Array
    """The same with refined cameras."""
    motions: Mapping[str, tuple[float, float]]
    """Distance [m] and rotation [rad] of each camera from its given pose."""


def calibrated_rig(scene: Scene, rig: CameraRig, size: Array) -> RefinedRig:
    """A camera rig with its cameras as they are, and a body of a known size."""
    none, still = np.zeros((0, len(rig.cameras))), {camera.name: (0.0, 0.0) for camera in rig.cameras}
    outline = outline_of(scene.model, scene.objects[0]).scaled(size)
    return RefinedRig(rig, outline, size, np.zeros(0, int), none, none, still)


def refine_rig(scene: Scene, episode: Episode, *, named: bool = True, held: Sequence[str] = ()) -> RefinedRig:
    """The camera rig of a recording, with camera poses refined from the recording itself.

    The body is segmented by the colour that the scene gives it if `named`, else by colours that are learned. Held-out
    cameras affect neither the other cameras nor the body's pose and size; each is aligned to what the others found.
    """
    rig = recorded_rig(scene, episode) if named else CameraRig(recorded_cameras(scene, episode))
    names = [camera.name for camera in rig.cameras]
    for name in held:
        if name not in names:
            raise UnknownName("camera", name, names)
    used = [c for c, name in enumerate(names) if name not in held]
    if not used:
        raise BadInput("All cameras are held out, so there is none to correct the twin by; hold out fewer.")
    support = support_plane(scene.model)
    if support is None:
        raise BadInput(
            f"Cameras are refined from a body on a table, and scene {scene.name!r} has no plane; give a calibration "
            "with --cameras."
        )
    outline = outline_of(scene.model, scene.objects[0])
    rows = np.arange(0, len(episode), max(1, min(5, len(episode) // (2 * KEY_FRAMES))))
    frames = [recorded_frames(rig, episode, int(row)) for row in rows]
    begun = support.rest(outline, free_body(scene.spec, outline.name).transform(scene.start(0)[0]))
    body = RecordedBody(rig, outline, [[frame.pixels] for frame in frames[0]])
    crops, poses = _tracked_crops(body, frames, begun, support.normal, used)
    whole = [i for i, row in enumerate(crops) if all(row[c] is not None for c in used)]
    picked = [whole[int(i)] for i in np.unique(np.linspace(0, len(whole) - 1, min(KEY_FRAMES, len(whole))).astype(int))]
    shown, start = [crops[i] for i in picked], CameraFit(rig.cameras, np.ones(3), poses[picked])
    found = refine_cameras(outline, start, shown, planar_basis(support.normal), used)
    refined, gone = outline.scaled(found.size), dict[str, tuple[float, float]]()
    for given, camera in zip(rig.cameras, found.cameras, strict=True):
        xi = motion_between(given.body_from_camera, camera.body_from_camera)
        gone[given.name] = float(np.linalg.norm(xi[:3])), float(np.linalg.norm(xi[3:]))
    before, after = start.overlaps(outline, shown), found.overlaps(refined, shown)
    return RefinedRig(replace(rig, cameras=found.cameras), refined, found.size, rows[picked], before, after, gone)


def _tracked_crops(
    body: RecordedBody, frames: Sequence[Sequence[CameraFrame]], start: Array, normal: Array, used: Sequence[int]
) -> tuple[list[list[MaskCrop | None]], Array]:
    """The crops of a body by frame and camera, and its transforms, to which the cameras in `used` fit."""
    basis, outline = planar_basis(normal), body.outline
    found = (body.find([(c, some[c]) for c in used], start, normal) for some in (frames if body.named else frames[:1]))
    pose = next((T for T in found if T is not None), None)
    if pose is None:
        raise BadInput(
            f"No camera shows anything like {outline.name!r}, by its colour or its shape; is this a recording of this "
            "scene?"
        )
    body.prepare(list(enumerate(frames[0])), pose, basis)
    crops, poses = list[list[MaskCrop | None]](), list[Array]()
    # Colours and backgrounds are learned on a forward pass, the body is fitted on a backward pass.
    for some in frames if body.named else [*frames, *reversed(frames)]:
        shown = [body.crop(c, frame, pose) for c, frame in enumerate(some)]
        for c, (frame, crop) in enumerate(zip(some, shown, strict=True)):
            if crop is not None and not body.named:
                own = solve_pose(outline, [crop], TRACKING_PRIOR, basis, 5)
                if own.fits[0].overlap > MIN_LEARNING_OVERLAP:
                    body.learn(c, frame, crop, moved(pose, own.xi))
        body.next_row()
        fitted = [crop for c in used if (crop := shown[c]) is not None]
        pose = moved(pose, solve_pose(outline, fitted, TRACKING_PRIOR, basis, 5).xi) if fitted else pose
        crops.append(shown)
        poses.append(pose)
    return (crops, np.array(poses)) if body.named else (crops[: -len(frames) - 1 : -1], np.array(poses[::-1]))


def refine_cameras(
    outline: Outline, given: CameraFit, crops: Sequence[Sequence[MaskCrop | None]], basis: Array, used: Sequence[int]
) -> CameraFit:
    """Refine cameras from images of one body, by frame and camera; those not in `used` say nothing about the body."""
    for c, camera in enumerate(given.cameras):
        count = sum(row[c] is not None for row in crops)
        if count < MIN_IMAGES:
            raise BadInput(
                f"A camera needs at least three images of the body to be refined, and {count} of {camera.name!r} show "
                "it."
            )
    found = given
    for iteration in range(ITERATIONS):
        soft = EDGE_WIDTH_PX if iteration >= ITERATIONS // 2 else WIDE_PX
        step = _camera_step(outline.scaled(found.size), (given, found), crops, (basis, soft), used)
        found = found.moved(step, basis)
        if np.abs(step).max() < 1e-5 and iteration > ITERATIONS // 2:
            break
    return found


def _camera_step(
    outline: Outline, fits: tuple[CameraFit, CameraFit], crops: Sequence[Sequence[MaskCrop | None]],
    edge: tuple[Array, float], used: Sequence[int],
) -> Array:  # fmt: skip
    """One Gauss-Newton step from a fit: cameras, size, poses; the given cameras are the prior."""
    (given, found), (basis, soft) = fits, edge
    n, k = len(found.cameras), basis.shape[1]
    total = 6 * n + 3 + k * len(found.poses)
    H, g = np.zeros((total, total)), np.zeros(total)
    for i, row in enumerate(crops):
        for c, crop in enumerate(row):
            if crop is None:
                continue
            at = np.r_[6 * c : 6 * c + 6, 6 * n : 6 * n + 3, 6 * n + 3 + k * i : 6 * n + 3 + k * (i + 1)]
            at = at if c in used else at[:6]
            placed = replace(crop, camera=found.cameras[c], world_from_body=found.poses[i])
            part, gradient = _camera_equations(outline, found.size, placed, basis, soft)
            H[np.ix_(at, at)] += MASK_NOISE.scale * part[: len(at), : len(at)]
            g[at] += MASK_NOISE.scale * gradient[: len(at)]
    pairs = zip(given.cameras, found.cameras, strict=True)
    off = np.concatenate([motion_between(a.body_from_camera, b.body_from_camera) for a, b in pairs])
    weight = np.tile(CAMERA_INFORMATION, n)
    prior = np.r_[weight, np.full(3, SIZE_INFORMATION), np.full(k * len(found.poses), 1e-3 * 0.1**-2)]
    g[: 6 * n] += weight * off
    g[6 * n : 6 * n + 3] += SIZE_INFORMATION * (found.size - 1)
    return -np.linalg.solve(H + np.diag(prior), g)


def _camera_equations(outline: Outline, size: Array, crop: MaskCrop, basis: Array, soft: float) -> tuple[Array, Array]:
    """J^T W J and J^T W r by (camera 6, size 3, pose k)."""
    pose, total = crop.world_from_body, 9 + int(basis.shape[1])
    projected = project_outline(outline, crop.camera, pose)
    if not projected.visible:
        return np.zeros((total, total)), np.zeros(total)
    by_place, by_turn = np.split(projected.jacobian, 2, axis=2)
    # A motion of the camera is the opposite motion of the body about the camera.
    arm = pose[:3, 3] - crop.camera.body_from_camera[:3, 3]
    by_camera = -np.concatenate([by_place, by_turn + np.cross(arm, by_place)], axis=2)
    # Scaling along a body axis moves each corner along it, by its own coordinate.
    along = outline.corners[:, :, None] / size[:, None] * np.eye(3)
    by_size = by_place @ (pose[:3, :3] @ along)
    jacobian = np.ascontiguousarray(np.concatenate([by_camera, by_size, projected.jacobian @ basis], axis=2))
    edge = (soft, MASK_NOISE.robust)
    H, g, _ = silhouette_kernels.outline_equations(
        projected._replace(jacobian=jacobian), np.eye(total), crop.pixels, edge
    )
    return np.asarray(H), np.asarray(g)
