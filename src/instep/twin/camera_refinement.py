"""Cameras refined from a recording.

Poses: a motion of each camera (6), the body's pose on the table in each frame (3) and its size along its axes (3) are
fitted to all images of one body. A common motion over the table changes no image, so the given poses are the prior.

Focal length of a single camera: the texture of a moving body of known shape is fitted by the logarithm of the focal
length, the pose in each key frame, and the place of each point on its face. Silhouettes take no part: all pixels of an
edge err together if a body is not quite its shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.scene.folder import Scene

from .body_appearance import PHASES, BodyTexture, LearnedAppearance, RegionColours, TextureOptions
from .body_outlines import (
    Outline,
    calibrated,
    outline_of,
    project_outline,
    silhouette_kernels,
    transform_at,
)
from .body_search import find_body, find_by_regions, fit_by_regions
from .camera_rig import (
    CameraFrame,
    CameraRig,
    MaskCrop,
    initial_strength,
    recorded_cameras,
    recorded_frames,
    recorded_rig,
)
from .pose_solver import EDGE_WIDTH_PX, MASK_NOISE, compare_silhouette, motion_between, moved, planar_basis, solve_pose
from .scene_geometry import support_plane
from .tracked_body import StartPose, free_body

TRACKING_PRIOR = np.diag([0.01**2] * 3 + [0.1**2] * 3)
"""Covariance of a pose that is predicted to be that of some frames before, in m^2 and rad^2."""
MIN_LEARNING_OVERLAP = 0.7
"""Overlap in a camera from which its colours are learned."""
KEY_FRAMES = 24
"""Frames from which cameras are refined."""


@options_dataclass
class RefineOptions:
    """The prior of the refinement."""

    shift: float = 0.02
    """Standard deviation of a given camera position [m]."""
    turn: float = 0.035
    """Standard deviation of a given camera orientation [rad]."""
    size: float = 0.04
    """Standard deviation of the body's size [share]; 0 keeps the size."""
    named: bool = True
    """Whether the body is segmented by the colour that the scene gives it; else by colours that are learned."""
    iterations: int = 30
    edge_width: tuple[float, float] = (3.0, EDGE_WIDTH_PX)
    """Edge width [pixels] in the first half of the iterations and after."""

    @property
    def camera_information(self) -> Array:
        """Inverse variances of a camera's position and orientation [6]."""
        return np.r_[np.full(3, self.shift**-2), np.full(3, self.turn**-2)]

    def soft(self, iteration: int) -> float:
        """The edge width at an iteration [pixels]."""
        return self.edge_width[int(iteration >= self.iterations // 2)]


@array_dataclass
class RefinedCameras:
    """Cameras that agree, how far they moved, and how well the images fit before and after."""

    cameras: Mapping[str, Camera]
    outline: Outline
    size: Array
    """Factors of the body's size along its axes [3]."""
    poses: Array
    """Transforms of the body in each frame [frames, 4, 4]."""
    before: Array
    """Overlap of silhouettes [frames, cameras], in the order of `cameras`, with the given camera poses."""
    after: Array
    """The same with refined cameras."""
    shift: Mapping[str, float]
    """How far each camera moved [m]."""
    turn: Mapping[str, float]
    """Rotation of each camera [rad]."""


@array_dataclass
class RefinedRig:
    """The camera rig of a recording with refined camera poses."""

    rig: CameraRig
    refined: RefinedCameras
    key_rows: Array
    """Rows of the recording that the cameras were refined on; scores leave them out."""
    given: CameraRig
    """The rig with the camera poses of the scene."""
    focal_sigma: float | None = None
    """Standard deviation of a refined focal length [pixels]; None where the given one was kept."""


def refine_rig(
    scene: Scene, episode: Episode, options: RefineOptions | None = None, *, held: Sequence[str] = ()
) -> RefinedRig:
    """The camera rig of a recording, with camera poses refined from the recording itself.

    Held-out cameras affect neither the other cameras nor the body's pose and size; each is then aligned by itself to
    what the others found in the same key frames.
    """
    options = options or RefineOptions()
    rig = recorded_rig(scene, episode) if options.named else CameraRig.unnamed(recorded_cameras(scene, episode))
    names = [camera.name for camera in rig.cameras]
    for name in held:
        if name not in names:
            raise UnknownName("camera", name, names)
    if len(set(held)) == len(names):
        raise BadInput("All cameras are held out, so there is none to correct the twin by; hold out fewer.")
    support = support_plane(scene.model)
    if support is None:
        raise BadInput(
            f"Cameras are refined from a body on a table, and scene {scene.name!r} has no plane; give a calibration "
            "with --cameras, or track with one camera and --residual learned, which refines its focal length."
        )
    outline, basis = outline_of(scene.model, scene.objects[0]), planar_basis(support.normal)
    stride = max(1, min(5, len(episode) // (2 * KEY_FRAMES)))
    rows = np.arange(0, len(episode), stride)
    frames = [recorded_frames(rig, episode, int(row)) for row in rows]
    track = _tracked_crops if options.named else _region_crops
    # Where the scene begins with the body, at rest on its support.
    begun = support.rest(outline, free_body(scene.spec, outline.name).transform(scene.start(0)[0]))
    crops = track(rig, frames, begun, (outline, support.normal), held)
    used = len(names) - len(set(held))
    whole = [i for i, row in enumerate(crops) if sum(crop.camera.name not in held for crop in row) == used]
    spread = np.unique(np.linspace(0, len(whole) - 1, min(KEY_FRAMES, len(whole))).astype(int))
    picked = [whole[int(i)] for i in spread]
    refined = refine_cameras(
        outline, [[crop for crop in crops[i] if crop.camera.name not in held] for i in picked], basis, options
    )
    for name in dict.fromkeys(held):
        own = [next((crop for crop in crops[i] if crop.camera.name == name), None) for i in picked]
        refined = align_camera(refined, own, basis, options)
    if held:
        refined = anchor_to_prior(refined, rig.cameras, basis, options)
    cameras = tuple(refined.cameras[name] for name in names)
    return RefinedRig(replace(rig, cameras=cameras), refined, rows[picked], rig)


def calibrated_rig(scene: Scene, rig: CameraRig, size: Array) -> RefinedRig:
    """A camera rig with its cameras as they are, and a body of a known size."""
    cameras, none = {camera.name: camera for camera in rig.cameras}, np.zeros((0, len(rig.cameras)))
    outline, still = outline_of(scene.model, scene.objects[0]).scaled(size), dict.fromkeys(cameras, 0.0)
    kept = RefinedCameras(cameras, outline, size, np.zeros((0, 4, 4)), none, none, still, still)
    return RefinedRig(rig, kept, np.zeros(0, int), rig)


def _tracked_crops(
    rig: CameraRig, frames: Sequence[Sequence[CameraFrame]], start: Array, body: tuple[Outline, Array],
    held: Sequence[str],
) -> list[list[MaskCrop]]:  # fmt: skip
    """The crops of the body in some frames, at the pose that the cameras which are not held out see it at."""
    outline, normal = body
    strength = {c.name: initial_strength(rig.mask, f.pixels) for c, f in zip(rig.cameras, frames[0], strict=True)}
    pairs = [[(frame, strength[frame.camera.name]) for frame in some] for some in frames]
    used = [[pair for pair in some if pair[0].camera.name not in held] for some in pairs]
    pose = next((T for some in used if (T := find_body(rig, outline, start, normal, some)) is not None), None)
    if pose is None:
        raise BadInput(
            f"No camera shows anything in the colour of {outline.name!r}; is this a recording of this scene?"
        )
    crops: list[list[MaskCrop]] = []
    for some in pairs:
        shown = [crop for frame, s in some if (crop := rig.crop(frame, outline, pose, s)) is not None]
        pose = _fitted_pose(outline, shown, pose, planar_basis(normal), held)
        crops.append([replace(crop, world_from_body=pose) for crop in shown])
    return crops


def _region_crops(
    rig: CameraRig, frames: Sequence[Sequence[CameraFrame]], start: Array, body: tuple[Outline, Array],
    held: Sequence[str],
) -> list[list[MaskCrop]]:  # fmt: skip
    """The same by colours that are learned: of each camera at the pose which fits its own image."""
    outline, normal = body
    colours, basis = RegionColours(outline, rig.cameras), planar_basis(normal)
    memory = LearnedAppearance.unknown(rig.cameras)
    used = [(c, frame) for c, frame in enumerate(frames[0]) if frame.camera.name not in held]
    found = find_by_regions(colours, [start], normal, used, memory)
    if found is None:
        raise BadInput(
            f"Nothing of the shape of {outline.name!r} stands out from its surroundings in the first images; give the "
            "body a colour in the scene and use --residual mask."
        )
    pose = found.world_from_body
    fit_by_regions(colours, pose, basis, list(enumerate(frames[0])), memory)
    crops: list[list[MaskCrop]] = []
    # Colours and backgrounds are learned on a forward pass, the body is fitted on a backward pass.
    for i, some in enumerate([*frames, *reversed(frames)]):
        found = [colours.crop(frame, c, pose, memory) for c, frame in enumerate(some)]
        shown = [crop for crop in found if crop is not None]
        for c, (frame, crop) in enumerate(zip(some, found, strict=True)):
            if crop is not None:
                own = solve_pose(outline, [crop], TRACKING_PRIOR, basis, 5)
                if own.fits[0].overlap > MIN_LEARNING_OVERLAP:
                    colours.learn(frame, c, crop, moved(pose, own.xi), memory)
        memory.phase = (memory.phase + 1) % PHASES
        pose = _fitted_pose(outline, shown, pose, basis, held)
        if i >= len(frames):
            crops.append([replace(crop, world_from_body=pose) for crop in shown])
    return crops[::-1]


def _fitted_pose(outline: Outline, shown: Sequence[MaskCrop], pose: Array, basis: Array, held: Sequence[str]) -> Array:
    fitted = [crop for crop in shown if crop.camera.name not in held]
    return moved(pose, solve_pose(outline, fitted, TRACKING_PRIOR, basis, 5).xi) if fitted else pose


def refine_cameras(
    outline: Outline, crops: Sequence[Sequence[MaskCrop]], basis: Array, options: RefineOptions | None = None
) -> RefinedCameras:
    """Refine cameras from images of one body; `crops` are by frame, then by camera, at the tracked pose."""
    if len(crops) < 3 or not crops[0]:
        raise BadInput(f"Cameras need at least three images of the body to be refined, and {len(crops)} were given.")
    options = options or RefineOptions()
    given = [crop.camera for crop in crops[0]]
    found = _Unknowns(given, np.ones(3), np.stack([row[0].world_from_body for row in crops]))
    before = _overlaps(outline, crops, given, found.poses)
    for iteration in range(options.iterations):
        step = _step(outline.scaled(found.size), crops, found, basis, options.soft(iteration), options)
        found = found.moved(step, basis)
        if np.abs(step).max() < 1e-5 and iteration > options.iterations // 2:
            break
    refined = outline.scaled(found.size)
    after = _overlaps(refined, crops, found.cameras, found.poses)
    named = {c.name: c for c in found.cameras}
    shift, turn = _distances(named, given)
    return RefinedCameras(named, refined, found.size, found.poses, before, after, shift, turn)


def align_camera(
    refined: RefinedCameras, crops: Sequence[MaskCrop | None], basis: Array, options: RefineOptions | None = None
) -> RefinedCameras:
    """The result with one more camera, aligned to the others; it does not affect where the body is.

    `crops` are its images, one for each of `refined.poses`; None where it does not see the body.
    """
    options = options or RefineOptions()
    seen = [(i, crop) for i, crop in enumerate(crops) if crop is not None]
    if len(seen) < 3:
        raise BadInput(f"A camera needs at least three images of the body to be aligned, and {len(seen)} show it.")
    given = camera = seen[0][1].camera
    outline, size, weight = refined.outline, refined.size, options.camera_information
    for k in range(options.iterations):
        soft = options.soft(k)
        information: Array = np.diag(weight)
        gradient: Array = weight * motion_between(given.body_from_camera, camera.body_from_camera)
        for i, crop in seen:
            H, g = _equations(outline, size, replace(crop, camera=camera), refined.poses[i], basis, soft)
            information, gradient = information + MASK_NOISE.scale * H[:6, :6], gradient + MASK_NOISE.scale * g[:6]
        step = -np.linalg.solve(information, gradient)
        camera = replace(camera, body_from_camera=moved(camera.body_from_camera, step))
    before, after = (np.full((len(crops), 1), np.nan) for _ in range(2))
    for i, crop in seen:
        before[i] = _overlaps(outline, [[crop]], [given], refined.poses[i : i + 1])
        after[i] = _overlaps(outline, [[crop]], [camera], refined.poses[i : i + 1])
    shift, turn = _distances({camera.name: camera}, [given])
    return replace(
        refined,
        cameras={**refined.cameras, camera.name: camera},
        before=np.concatenate([refined.before, before], axis=1),
        after=np.concatenate([refined.after, after], axis=1),
        shift={**refined.shift, **shift},
        turn={**refined.turn, **turn},
    )


def anchor_to_prior(
    refined: RefinedCameras, given: Sequence[Camera], basis: Array, options: RefineOptions | None = None
) -> RefinedCameras:
    """The result moved over the table as a whole, until all cameras are nearest to their given poses.

    That changes no image. It puts runs with and without some of the cameras into the same world frame.
    """
    from scipy.optimize import least_squares

    weight = np.sqrt((options or RefineOptions()).camera_information)

    def world_after(x: Array) -> Array:
        return moved(np.eye(4), basis @ x)  # rotated about the world's origin

    def error(x: Array) -> Array:
        now = {n: world_after(x) @ c.body_from_camera for n, c in refined.cameras.items()}
        return np.concatenate([weight * motion_between(c.body_from_camera, now[c.name]) for c in given])

    world = world_after(np.asarray(least_squares(error, np.zeros(basis.shape[1])).x, float))
    cameras = {n: replace(c, body_from_camera=world @ c.body_from_camera) for n, c in refined.cameras.items()}
    shift, turn = _distances(cameras, given)
    return replace(refined, cameras=cameras, poses=world @ refined.poses, shift=shift, turn=turn)


@array_dataclass
class _Unknowns:
    """What is refined, in the order of a step."""

    cameras: Sequence[Camera]
    size: Array
    """Factors of the body's size along its axes [3]."""
    poses: Array
    """Transforms of the body in each frame [frames, 4, 4]."""

    def moved(self, step: Array, basis: Array) -> _Unknowns:
        """The unknowns after a step: 6 numbers per camera, 3 of the size, and one per column of the basis and frame."""
        by_camera, by_size, by_pose = np.split(step, np.cumsum([6 * len(self.cameras), 3]))
        cameras = [
            replace(camera, body_from_camera=moved(camera.body_from_camera, xi))
            for camera, xi in zip(self.cameras, by_camera.reshape(-1, 6), strict=True)
        ]
        motions = by_pose.reshape(len(self.poses), -1) @ basis.T
        poses = [moved(pose, xi) for pose, xi in zip(self.poses, motions, strict=True)]
        return _Unknowns(cameras, self.size + by_size, np.stack(poses))


def _step(
    outline: Outline, crops: Sequence[Sequence[MaskCrop]], found: _Unknowns, basis: Array, soft: float,
    options: RefineOptions,
) -> Array:  # fmt: skip
    """One Gauss-Newton step of all unknowns: cameras, size, poses; the cameras of the crops are the prior."""
    cameras, size, poses = found.cameras, found.size, found.poses
    n, k = len(cameras), basis.shape[1]
    total = 6 * n + 3 + k * len(poses)
    H, g = np.zeros((total, total)), np.zeros(total)
    for i, row in enumerate(crops):
        for c, crop in enumerate(row):
            at = np.r_[6 * c : 6 * c + 6, 6 * n : 6 * n + 3, 6 * n + 3 + k * i : 6 * n + 3 + k * (i + 1)]
            part, gradient = _equations(outline, size, replace(crop, camera=cameras[c]), poses[i], basis, soft)
            H[np.ix_(at, at)] += MASK_NOISE.scale * part
            g[at] += MASK_NOISE.scale * gradient
    weight = np.tile(options.camera_information, n)
    given = [crop.camera.body_from_camera for crop in crops[0]]
    off = np.concatenate([motion_between(T, c.body_from_camera) for c, T in zip(cameras, given, strict=True)])
    size_information = options.size**-2 if options.size > 0 else 1e12
    prior = np.r_[weight, np.full(3, size_information), np.full(k * len(poses), 1e-3 * 0.1**-2)]
    g[: 6 * n] += weight * off
    g[6 * n : 6 * n + 3] += size_information * (size - 1)
    return -np.linalg.solve(H + np.diag(prior), g)


def _equations(
    outline: Outline, size: Array, crop: MaskCrop, pose: Array, basis: Array, soft: float
) -> tuple[Array, Array]:
    """J^T W J and J^T W r by (camera 6, size 3, pose k)."""
    projected = project_outline(outline, crop.camera, pose, pose[:3, 3])
    total = 9 + int(basis.shape[1])
    if not projected.visible:
        empty: tuple[Array, Array] = (np.zeros((total, total)), np.zeros(total))
        return empty
    # A motion of the camera is the opposite motion of the body about the camera.
    position = crop.camera.body_from_camera[:3, 3]
    by_camera = -project_outline(outline, crop.camera, pose, position).jacobian
    # Scaling along a body axis moves each corner along it, by its own coordinate.
    along = outline.corners[:, :, None] / size[:, None] * np.eye(3)
    by_size = projected.jacobian[:, :, :3] @ (pose[:3, :3] @ along)
    jacobian = np.ascontiguousarray(np.concatenate([by_camera, by_size, projected.jacobian @ basis], axis=2))
    projected, edge = projected._replace(jacobian=jacobian), (soft, MASK_NOISE.robust)
    H, g, _ = silhouette_kernels.outline_equations(projected, np.eye(total), crop.pixels, edge)
    return np.asarray(H), np.asarray(g)


def _overlaps(outline: Outline, crops: Sequence[Sequence[MaskCrop]], cameras: Sequence[Camera], poses: Array) -> Array:
    out = np.zeros((len(crops), len(cameras)))
    for i, row in enumerate(crops):
        for c, crop in enumerate(row):
            fit = compare_silhouette(outline, replace(crop, camera=cameras[c], world_from_body=poses[i]))
            out[i, c] = fit.overlap if fit.visible > 0.3 else np.nan
    return out


def _distances(cameras: Mapping[str, Camera], given: Sequence[Camera]) -> tuple[dict[str, float], dict[str, float]]:
    """Distance [m] and rotation [rad] of cameras from their given poses."""
    gone = {c.name: motion_between(c.body_from_camera, cameras[c.name].body_from_camera) for c in given}
    shift = {name: float(np.linalg.norm(xi[:3])) for name, xi in gone.items()}
    return shift, {name: float(np.linalg.norm(xi[3:])) for name, xi in gone.items()}


MIN_POINTS = 6
"""Points in a key frame from which they alone give its pose."""
MIN_OBSERVATIONS = 100
"""Points in key frames from which it is refined."""


@options_dataclass
class FocalOptions:
    """The prior and the noise of the refinement."""

    spread: float = 0.07
    """Standard deviation of the given focal length [share]."""
    alike: float = 24.0
    """Key frames in which the errors of one point are alike: faces are not quite flat, patches are seen aslant."""
    slip: float = 6.0
    """Standard deviation of the place of a point on its face, in pixels of the image that it was learned from."""
    sigma: float = 0.8
    """Standard deviation of a measured point [pixels]."""
    click: float = 2.0
    """Standard deviation of a point that the user gave [pixels]."""
    unseen: float = 0.02
    """Standard deviation of the pose in a key frame that shows few points which were known before [m, rad]."""
    limit: float = 3.0
    """Errors beyond this many standard deviations pull no harder."""
    iterations: int = 20


@array_dataclass
class RefinedFocal:
    """A camera with a refined focal length."""

    camera: Camera
    start: Array
    """world_from_body (4 x 4) in the first key frame."""
    sigma: float
    """Standard deviation of the focal length by the noise of pixels [pixels]."""


@array_dataclass
class _Observed:
    """Points of the texture in key frames."""

    places: Array
    """Where the points were learned, in the body's frame [n, 3]."""
    tangents: Array
    """Steps on the face per pixel [n, 3, 2]."""
    frame: Array
    """Number of the key frame of each observation [m]."""
    point: Array
    """Number of its point [m]."""
    measured: Array
    """[m, 2] [pixels]."""
    clicked: StartPose
    """Points that the user gave in the first key frame."""


def refine_focal(
    rig: CameraRig, outline: Outline, episode: Episode, track: tuple[Array, Array], clicked: StartPose
) -> RefinedFocal:
    """The only camera of a rig with its focal length refined along a track: times [rows], poses [rows, 7]."""
    times, poses = track
    rows = np.unique(np.linspace(0, len(poses) - 1, min(KEY_FRAMES, len(poses))).astype(int))
    colours = RegionColours(outline, rig.cameras)
    texture = BodyTexture(outline, rig.cameras, options=TextureOptions(slots=1000, max_misses=1 << 14))
    memory, crops, seen = LearnedAppearance.unknown(rig.cameras), list[MaskCrop](), list[tuple[Array, Array]]()
    texture.reset(memory)
    for row in rows:
        [frame] = recorded_frames(rig, episode, int(row))
        here = transform_at(times, poses, frame.stamp)
        colours.forget(memory, 0)
        colours.learn(frame, 0, None, here, memory)
        crop = colours.crop(frame, 0, here, memory)
        if crop is None:
            continue
        tracks = texture.follow(frame, 0, here, memory)
        texture.learn(frame, 0, here, crop, tracks, memory)
        crops.append(crop)
        none = np.zeros(0, int), np.zeros((0, 2))
        seen.append(none if tracks is None else (tracks.slots, tracks.measured))
    frame = np.concatenate([np.full(len(slots), i) for i, (slots, _) in enumerate(seen)])
    point, measured = np.concatenate([slots for slots, _ in seen]), np.concatenate([at for _, at in seen])
    if len(point) < MIN_OBSERVATIONS:
        raise BadInput(
            f"The focal length needs at least {MIN_OBSERVATIONS} points of the texture in key frames, and {len(point)} "
            "were followed; give a calibration with --cameras."
        )
    [points] = memory.points[0]
    return fit_focal(crops, _Observed(points.places, points.tangents, frame, point, measured, clicked))


def fit_focal(crops: Sequence[MaskCrop], seen: _Observed, options: FocalOptions | None = None) -> RefinedFocal:
    """The focal length at which a body fits its texture in all key frames, each at a pose of its own."""
    options = options or FocalOptions()
    given = camera = crops[0].camera
    poses, slips, log_ratio = [crop.world_from_body for crop in crops], np.zeros((len(seen.places), 2)), 0.0
    used, spread = np.unique(seen.point), options.spread
    variance = spread**2
    for _ in range(options.iterations):
        H, g = _system([replace(crop, camera=camera) for crop in crops], poses, slips, seen, options)
        H[0, 0], g[0] = H[0, 0] + spread**-2, g[0] + log_ratio * spread**-2
        # Points that no key frame shows twice take no part.
        keep = np.r_[0 : 1 + 6 * len(poses), (1 + 6 * len(poses) + 2 * used[:, None] + [0, 1]).ravel()]
        inverse = np.linalg.inv(H[np.ix_(keep, keep)])
        step = np.zeros(len(g))
        step[keep] = -inverse @ g[keep]
        variance = float(inverse[0, 0])
        log_ratio += float(np.clip(step[0], -0.1, 0.1))
        camera = replace(given, focal=tuple(float(f * np.exp(log_ratio)) for f in given.focal))
        motions = step[1 : 1 + 6 * len(poses)].reshape(-1, 6)
        poses = [moved(pose, xi) for pose, xi in zip(poses, motions, strict=True)]
        slips = slips + step[1 + 6 * len(poses) :].reshape(-1, 2)
        if np.abs(step[: 1 + 6 * len(poses)]).max() < 1e-5:
            break
    return RefinedFocal(camera, poses[0], camera.focal[0] * variance**0.5)


def _system(
    crops: Sequence[MaskCrop], poses: Sequence[Array], slips: Array, seen: _Observed, options: FocalOptions
) -> tuple[Array, Array]:  # fmt: skip
    """Normal equations by (log focal length, motions of the body in each frame, slips of the points)."""
    first = 1 + 6 * len(poses)
    total = first + slips.size
    H, g = np.zeros((total, total)), np.zeros(total)
    diagonal = np.arange(first, total)
    H[diagonal, diagonal] += options.slip**-2
    g[first:] += slips.ravel() * options.slip**-2
    if len(seen.clicked.places):
        by_pose, error = _points(crops[0].camera, poses[0], seen.clicked.places, seen.clicked.pixels)
        H[:7, :7] += np.einsum("nij,nik->jk", by_pose, by_pose) * options.click**-2
        g[:7] += np.einsum("nij,ni->j", by_pose, error) * options.click**-2
    places = seen.places + np.einsum("nij,nj->ni", seen.tangents, slips)
    for i, (crop, pose) in enumerate(zip(crops, poses, strict=True)):
        at = np.r_[0, 1 + 6 * i : 7 + 6 * i]
        mine = np.flatnonzero(seen.frame == i)
        if len(mine) < MIN_POINTS and (i > 0 or not len(seen.clicked.places)):
            # Little was followed into this image, as nothing into the first one: its pose stays where it is not known.
            H[at[1:], at[1:]] += options.unseen**-2
        point = seen.point[mine]
        by_pose, error = _points(crop.camera, pose, places[point], seen.measured[mine])
        size = np.linalg.norm(error, axis=1) / (options.sigma * options.limit)
        weight = np.minimum(1.0, 1.0 / np.maximum(size, 1e-9)) / (options.sigma**2 * options.alike)
        by_slip = by_pose[:, :, 1:4] @ (pose[:3, :3] @ seen.tangents[point])
        J = np.concatenate([by_pose, by_slip], axis=2)  # [points, 2, 9]
        for k, p in enumerate(point):
            of = np.r_[at, first + 2 * p, first + 2 * p + 1]
            H[np.ix_(of, of)] += weight[k] * J[k].T @ J[k]
            g[of] += weight[k] * J[k].T @ error[k]
    return H, g


def _points(camera: Camera, pose: Array, places: Array, measured: Array) -> tuple[Array, Array]:
    """Derivatives of points by (log focal length, motion of the body) [n, 2, 7], and their errors [n, 2] [pixels]."""
    pixels, jacobian = silhouette_kernels.project_corners(places, pose, calibrated(camera), pose[:3, 3])
    by_focal = (pixels - np.array(camera.centre))[:, :, None]
    return np.concatenate([by_focal, jacobian], axis=2), pixels - measured
