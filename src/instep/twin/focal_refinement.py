"""Focal length of one camera from a textured body of known shape that moves before it.

Unknown are the logarithm of the focal length, the body's pose in each key frame, and where each point of the texture
lies on its face. Perspective tells them apart: the same points are seen from near and far, on faces whose angle is
known. Silhouettes take no part: where a body is not quite its shape, all pixels of an edge err together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .camera_rig import MAX_MARGIN_PX, CameraRig, MaskCrop, recorded_frames
from .pose_solver import moved
from .projection import Outline, calibrated, silhouette_kernels, transform_at
from .region import RegionColours
from .start_pose import StartPose
from .texture import BodyTexture, TextureOptions

KEY_FRAMES = 24
"""Frames from which a focal length is refined."""
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
    colours = RegionColours(outline.name, rig.cameras)
    texture = BodyTexture(outline, rig.cameras, TextureOptions(slots=1000, max_misses=1 << 14))
    memory, crops, seen = {**colours.unknown(), **texture.unknown()}, list[MaskCrop](), list[tuple[Array, Array]]()
    for row in rows:
        [frame] = recorded_frames(rig, episode, int(row))
        here = transform_at(times, poses, frame.stamp)
        colours.forget(memory, 0)
        colours.learn(frame, 0, outline, None, here, memory)
        crop = colours.crop(frame, 0, outline, here, MAX_MARGIN_PX, memory)
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
    return fit_focal(crops, _Observed(*texture.points(memory, 0), frame, point, measured, clicked))


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
