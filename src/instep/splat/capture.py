"""Captures: posed videos or images of a scene with points, a table and scanned bodies; cameras aligned on the table.

To align cameras each image is rectified onto the plane. Rectified images are matched by correlation over translations
and rotations, wide enough to step over a repeating pattern, then each camera's pose is refined by Gauss-Newton. A
common error of all cameras cannot be observed: the mean correction is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, quat_exp, quat_from_matrix, quat_log
from instep.core.reading import (
    MAX_DOCUMENT,
    check_inside,
    check_regular,
    find_inside,
    inside,
    is_list,
    is_table,
    parsing,
    present,
    read_file,
    read_json_table,
)
from instep.core.world import Array, array_dataclass
from instep.data.files import read_npy
from instep.data.frames import MAX_IMAGE, Frames, IndexedImages, open_stills, open_video
from instep.scene.camera import Camera
from instep.scene.camera_files import Calibration

from .gaussian_files import ScannedBody, load_scanned_body
from .image import WeightedImage
from .raster.gaussian_projection import lens_jacobian

_MAX_JSON = 64 << 20
_GROUND_MARGIN_M = 0.2
"""How far the table reaches beyond the cameras where no points of it are known [m]."""
_FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
"""From OpenGL's camera axes (y up, looking along -z) to OpenCV's."""


@array_dataclass
class CameraRecording:
    """The images of one camera from one place."""

    camera: Camera
    images: Frames
    """[frames, height, width, 3] uint8, decoded when read."""
    stamps: Array
    """Time of each frame [s]."""
    joints: tuple[Mapping[str, float], ...] = ()
    """Positions of the robot's joints by name at each frame; none where nothing is known of a robot."""
    device: str = ""
    """The camera that took the images, where one on the robot took them from several places."""


@array_dataclass
class Plane:
    """A table: its plane and the part of it that counts."""

    normal: Array
    """[nx, ny, nz, d] with n . x + d = 0."""
    low: tuple[float, float]
    """Smallest x and y [m]."""
    high: tuple[float, float]
    """Largest x and y [m]."""

    def grid(self, pitch: float) -> Array:
        """Points of the plane [rows, columns, 3], rows along y."""
        x = np.arange(self.low[0], self.high[0], pitch)
        y = np.arange(self.low[1], self.high[1], pitch)
        X, Y = np.meshgrid(x, y)
        a, b, c, d = self.normal
        return np.stack([X, Y, -(d + a * X + b * Y) / c], axis=-1)


@array_dataclass
class Capture:
    """The data that Gaussians are fitted to."""

    recordings: tuple[CameraRecording, ...]
    points: Array
    """Points on surfaces [n, 3] [m], perhaps none."""
    plane: Plane | None
    """The table, where it is known."""
    bodies: tuple[ScannedBody, ...]
    """Scanned bodies that may move."""
    turntable: bool = False
    """Whether the objects turned before a fixed camera, so that the background turns with the camera poses."""


def load_capture(folder: str | Path) -> Capture:
    """Read a folder: `cameras.json` with videos (Embodied Gaussians), or `transforms.json` with images (nerfstudio).

    Beside them may lie `ground.npy` or `points.npy` [n, 3], `ground_plane.json`, and bodies as Embodied-Gaussians JSON.
    Poses of unknown scale (`"metric": false` in transforms.json) are refused.
    """
    path = Path(folder) / "transforms.json"
    if present(path) and _object(path).get("metric") is False:
        raise BadInput(
            f"The poses in {str(folder)!r} have an unknown scale, and metres are needed; instep reconstruct pose "
            f"{str(folder)!r} NEW --length 0.297=IMAGE:X,Y/IMAGE:X,Y gives it by a known length, --board by a board."
        )
    return unscaled_capture(folder)


def unscaled_capture(folder: str | Path) -> Capture:
    """The capture of a folder as `load_capture` reads it, also where the unit of its poses is unknown."""
    folder = Path(folder)
    poses: Any = None
    with parsing(folder, "posed images"):
        if (folder / "cameras.json").exists():
            shots = _videos(folder)
        elif (folder / "transforms.json").exists():
            shots, poses = _stills(folder), _object(folder / "transforms.json").get("poses")
        else:
            raise BadInput(
                f"{str(folder)!r} holds neither cameras.json nor transforms.json; posed images were expected."
            )
        points = _points(folder)
        turntable = is_table(poses) and poses.get("turntable") is True
        return Capture(shots, points, _plane(folder, points, shots), _bodies(folder), turntable)


def calibrated_capture(capture: Capture, calibration: Calibration) -> Capture:
    """The capture with the cameras of a calibration in place of those of the same name."""
    old = {recording.camera.name: recording.camera for recording in capture.recordings}
    if not any(name in old for name in calibration.cameras):
        raise UnknownName("camera of the images", next(iter(calibration.cameras)), old)
    new = {name: calibration.cameras.get(name, camera) for name, camera in old.items()}
    for a, b in zip(old.values(), new.values(), strict=True):
        if (a.width, a.height, a.body) != (b.width, b.height, b.body):
            raise BadInput(
                f"Camera {a.name!r} of the calibration has images of {b.width} x {b.height} pixels on {b.body!r}; "
                f"{a.width} x {a.height} on {a.body!r} were expected."
            )
    return replace(capture, recordings=tuple(replace(one, camera=new[one.camera.name]) for one in capture.recordings))


def _videos(folder: Path) -> tuple[CameraRecording, ...]:
    shots: list[CameraRecording] = []
    for name, entry in _object(folder / "cameras.json").items():
        try:
            meta = _object(_under(folder, entry["metadata_path"]))
            (fx, _, cx), (_, fy, cy), _ = np.asarray(meta["K"], float)
            width, height = meta["resolution"]
            place = np.asarray(entry["X_WC"], float).reshape(4, 4) @ _FLIP
            stamps = np.asarray(meta["timestamps"], float)
            path = _under(folder, entry["video_path"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"Camera {name!r} in {folder.name}/cameras.json lacks or misstates {error}.") from None
        images = open_video(path)
        if images.shape[1:3] != (height, width) or len(images) != len(stamps):
            raise BadInput(
                f"The video of camera {name!r} holds {len(images)} frames of {images.shape[2]} x {images.shape[1]} "
                f"pixels, its description {len(stamps)} of {width} x {height}."
            )
        camera = Camera(name, int(width), int(height), (fx, fy), (cx, cy), "world", place)
        shots.append(CameraRecording(camera, images, stamps))
    if not shots:
        raise BadInput(f"{folder.name}/cameras.json lists no cameras.")
    return tuple(shots)


def _stills(folder: Path) -> tuple[CameraRecording, ...]:
    table = _object(folder / "transforms.json")
    frames = table.get("frames")
    if not is_list(frames) or not frames:
        raise BadInput(f"{folder.name}/transforms.json lists no frames.")
    shots: list[CameraRecording] = []
    for number, frame in enumerate(frames):
        try:
            path = _under(folder, frame["file_path"])
            place = np.asarray(frame["transform_matrix"], float).reshape(4, 4) @ _FLIP
            joints = {str(name): float(value) for name, value in frame.get("joints", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"Frame {number} in {folder.name}/transforms.json lacks or misstates {error}.") from None
        images = open_stills(lambda _, path=path: read_file(path, MAX_IMAGE), 1, path.name)
        _, height, width, _ = images.shape
        camera = _intrinsics({**table, **frame}, path.stem, width, height, place)
        camera = replace(camera, body=str(frame.get("body", "world")))
        stamps, device = np.array([float(number)]), str(frame.get("camera", ""))
        shots.append(CameraRecording(camera, images, stamps, (joints,) if joints else (), device))
    return _merged(shots)


def _merged(shots: Sequence[CameraRecording]) -> tuple[CameraRecording, ...]:
    """The recordings, those of one fixed camera with the robot at several places as one of several frames."""
    groups: dict[str, list[CameraRecording]] = {}
    for shot in shots:
        fixed = shot.device and shot.joints and shot.camera.in_world
        groups.setdefault(shot.device if fixed else f"/{shot.camera.name}", []).append(shot)
    return tuple(some[0] if name.startswith("/") else _one_camera(name, some) for name, some in groups.items())


def _one_camera(name: str, shots: Sequence[CameraRecording]) -> CameraRecording:
    first = shots[0].camera
    for shot in shots:
        if shot.images.shape != shots[0].images.shape or not np.allclose(
            shot.camera.body_from_camera, first.body_from_camera, atol=1e-6
        ):
            raise BadInput(
                f"The images of camera {name!r} differ in size or pose; a fixed camera has one of each, and one on the "
                "robot names its 'body' in every frame."
            )
    _, height, width, _ = shots[0].images.shape
    images = Frames(IndexedImages(lambda k: shots[k].images[0], (height, width)), np.arange(len(shots)))
    joints = tuple(shot.joints[0] for shot in shots)
    stamps = np.concatenate([shot.stamps for shot in shots])
    return CameraRecording(replace(first, name=name), images, stamps, joints, name)


def _intrinsics(table: dict[str, Any], name: str, width: int, height: int, place: Array) -> Camera:
    """A camera by the names of nerfstudio and instant-ngp: fl_x, fl_y, cx, cy, k1 ..., or a horizontal angle."""
    if "fl_x" in table:
        fx = float(table["fl_x"])
    elif "camera_angle_x" in table:
        fx = 0.5 * width / np.tan(0.5 * float(table["camera_angle_x"]))
    else:
        raise BadInput("transforms.json gives no focal length; fl_x or camera_angle_x was expected.")
    fy = float(table.get("fl_y", fx))
    centre = (float(table.get("cx", width / 2)), float(table.get("cy", height / 2)))
    lens = tuple(float(table.get(k, 0.0)) for k in ("k1", "k2", "p1", "p2", "k3"))
    return Camera(name, width, height, (float(fx), fy), centre, "world", place, lens if any(lens) else ())


def _points(folder: Path) -> Array:
    for name in ("points.npy", "ground.npy"):
        path = folder / name
        if present(path):
            check_inside(folder, path)
            points = read_npy(path)
            if points.dtype.kind not in "fiu" or points.shape[1:] != (3,) or not np.isfinite(points).all():
                raise BadInput(f"{name} has the shape {points.shape}; finite points [n, 3] were expected.")
            return np.asarray(points, float)
    return np.zeros((0, 3))


def _plane(folder: Path, points: Array, shots: Sequence[CameraRecording]) -> Plane | None:
    """The table, bounded by its points; where there are none, by the ground below the cameras."""
    path = folder / "ground_plane.json"
    if not present(path):
        return None
    check_inside(folder, path)
    check_regular(path, MAX_DOCUMENT)
    normal = np.asarray(_object(path).get("plane"), float)
    if normal.shape != (4,) or not np.isfinite(normal).all() or abs(normal[2]) < 0.1:
        raise BadInput("'plane' of ground_plane.json must be [nx, ny, nz, d] of a table that is not upright.")
    if len(points) < 3:
        points = np.stack([shot.camera.body_from_camera[:3, 3] for shot in shots])
        points = np.concatenate([points - _GROUND_MARGIN_M, points + _GROUND_MARGIN_M])
    low, high = np.quantile(points[:, :2], [0.01, 0.99], axis=0)
    return Plane(normal, (float(low[0]), float(low[1])), (float(high[0]), float(high[1])))


def _bodies(folder: Path) -> tuple[ScannedBody, ...]:
    small = [path for path in find_inside(folder, "*.json") if path.is_file() and path.stat().st_size <= _MAX_JSON]
    return tuple(load_scanned_body(path) for path in small if b'"gaussians"' in read_file(path, _MAX_JSON))


def _object(path: Path) -> dict[str, Any]:
    return read_json_table(check_inside(path.parent, path), _MAX_JSON)


def _under(folder: Path, name: object) -> Path:
    """A file below the folder, whatever a stranger's description says."""
    path = inside(folder, str(name))
    if not path.is_file():
        raise BadInput(f"{str(name)!r} is named but not there.")
    return path


_MIN_POINTS = 200
"""Fewest points of the plane in the view of a camera that is aligned."""
_REFINED_CANDIDATES = 6
"""Candidate translations that are refined."""
_MAX_PIXEL_FOOTPRINT_M = 0.006
"""Pixels that cover more than this of the plane [m] are left out: what far ones show is too coarse to match."""


@array_dataclass
class CameraAlignment:
    """Aligned cameras and their corrections."""

    cameras: tuple[Camera, ...]
    shifts: Array
    """Translation of each [cameras, 3] [m]."""
    turns: Array
    """Rotation vector of each [cameras, 3] [rad]."""
    before: float
    """Mean correlation of the rectified images as calibrated."""
    after: float
    """Mean correlation after alignment."""


def align_on_plane(
    images: Sequence[WeightedImage], plane: Plane, *, pitch: float = 0.003, reach: float = 0.08
) -> CameraAlignment:
    """Align cameras on a plane; `reach` [m] bounds their error."""
    if len(images) < 2:
        raise BadInput("Aligning cameras needs at least two of them.")
    points = plane.grid(pitch)
    first, *others = (_texture(image) for image in images)
    base = _rectify(first, first.camera, points)
    for texture in (first, *others):
        if _rectify(texture, texture.camera, points).weight.sum() < _MIN_POINTS:
            raise BadInput(
                f"Camera {texture.camera.name!r} shows too little of the table, or too coarsely, to be aligned on it; "
                "is it calibrated? Fit with --no-align to take the cameras as they are."
            )
    poses = [np.zeros(6)]
    scores: list[tuple[float, float]] = []
    for texture in others:
        coarse = replace(base, bands=base.bands[::2, ::2], weight=base.weight[::2, ::2])
        start = _search(coarse, texture, points[::2, ::2], 2 * pitch, reach)
        pose = _refine(base, texture, points, start)
        poses.append(pose)
        scores.append((_score(base, texture, points, np.zeros(6)), _score(base, texture, points, pose)))
    cameras = [moved_camera(image.camera, pose) for image, pose in zip(images, poses, strict=True)]
    cameras = _remove_mean_motion([image.camera for image in images], cameras)
    shifts, turns = zip(*(relative_pose(p.camera, c) for p, c in zip(images, cameras, strict=True)), strict=True)
    before, after = np.mean(scores, axis=0)
    return CameraAlignment(tuple(cameras), np.array(shifts), np.array(turns), float(before), float(after))


@array_dataclass
class _Texture:
    """An image with local brightness and contrast normalised: lamps and gloss differ between cameras."""

    camera: Camera
    bands: Array  # [height, width, bands]
    weight: Array  # [height, width]


def _texture(view: WeightedImage) -> _Texture:
    from scipy.ndimage import gaussian_filter

    grey = view.image.mean(axis=-1)
    bands: list[Array] = []
    # Tape and marks are wide, holes are narrow: a band for each, so that neither drowns the other.
    for width in (4.0, 12.0):
        total = gaussian_filter(view.weight, width) + 1e-3
        mean = gaussian_filter(grey * view.weight, width) / total
        spread = np.sqrt(gaussian_filter((grey - mean) ** 2 * view.weight, width) / total) + 0.01
        bands.append((gaussian_filter(grey, width / 6) - mean) / spread)
    return _Texture(view.camera, np.clip(np.stack(bands, axis=-1), -3, 3), view.weight)


def _rectify(texture: _Texture, camera: Camera, points: Array) -> _Texture:
    from scipy.ndimage import map_coordinates

    pixels, inside = _pixels(camera, points)
    at = [pixels[..., 1], pixels[..., 0]]
    bands = [map_coordinates(band, at, order=1, mode="nearest") for band in np.moveaxis(texture.bands, -1, 0)]
    weight = map_coordinates(texture.weight, at, order=1, mode="nearest") * inside
    return _Texture(camera, np.stack(bands, axis=-1), (weight > 0.5).astype(float))


def _pixels(camera: Camera, points: Array) -> tuple[Array, Array]:
    """Where points are in an image, in whole pixels from the centre of the first, and whether they are inside."""
    place = camera.body_from_camera
    seen = (points - place[:3, 3]) @ place[:3, :3]
    ahead = seen[..., 2] > 0.05
    pixels = camera.project(np.where(ahead[..., None], seen, [0.0, 0.0, 1.0])) - 0.5
    inside = ((pixels >= 1) & (pixels <= [camera.width - 2, camera.height - 2])).all(axis=-1)
    return pixels, ahead & inside & (seen[..., 2] < _MAX_PIXEL_FOOTPRINT_M * min(camera.focal))


def _search(base: _Texture, texture: _Texture, points: Array, pitch: float, reach: float) -> Array:
    """The translation in the plane and rotation about its normal under which two rectified images correlate best.

    A repeating pattern has many good shifts, so the best few are each refined before one is chosen, and of two that are
    as good the nearer one is.
    """
    found: list[tuple[float, Array]] = []
    centre = points.reshape(-1, 3).mean(axis=0)
    for angle in np.radians(np.arange(-3.0, 3.01, 0.75)):
        # The motion of a camera, at its own position, that rotates it about another point.
        turn = np.array([0.0, 0.0, angle])
        arm = texture.camera.body_from_camera[:3, 3] - centre
        turned = np.concatenate([matrix_from_quat(quat_exp(turn)) @ arm - arm, turn])
        flat = _rectify(texture, moved_camera(texture.camera, turned), points)
        for score, shift in _correlate(base, flat, int(reach / pitch)):
            found.append((score, turned + np.concatenate([shift * pitch, np.zeros(4)])))
    found.sort(key=lambda pair: -pair[0])
    tried: list[tuple[float, Array]] = []
    for _, start in found[:_REFINED_CANDIDATES]:
        pose, far = _refine(base, texture, points, start, rounds=8), min(1.0, float(start[:2] @ start[:2]) / reach**2)
        tried.append((_score(base, texture, points, pose) * (1.0 - 0.5 * far), pose))
    return max(tried, key=lambda pair: pair[0])[1]


def _correlate(a: _Texture, b: _Texture, reach: int) -> list[tuple[float, Array]]:
    """The best weighted correlations over whole shifts (x, y) of b, by Fourier transforms; peaks apart from another."""
    shape = [2 * n for n in a.weight.shape]

    def transform(x: Array) -> Array:
        return np.fft.rfft2(x, shape)

    def cross(x: Array, y: Array) -> Array:
        return np.fft.irfft2(x * np.conj(y), shape)

    wa, wb = transform(a.weight), transform(b.weight)
    both = squares_a = squares_b = 0.0
    for k in range(a.bands.shape[-1]):
        ta, tb = a.bands[..., k], b.bands[..., k]
        both = both + cross(transform(ta * a.weight), transform(tb * b.weight))
        squares_a = squares_a + cross(transform(ta**2 * a.weight), wb)
        squares_b = squares_b + cross(wa, transform(tb**2 * b.weight))
    score = both / np.sqrt(np.maximum(squares_a * squares_b, 1e-6))
    enough = cross(wa, wb) > 0.15 * min(a.weight.sum(), b.weight.sum())
    score = np.roll(np.where(enough, score, -1.0), (reach, reach), axis=(0, 1))[: 2 * reach + 1, : 2 * reach + 1]
    along = np.arange(-reach, reach + 1)
    score = score * (1 - 0.5 * np.minimum(1.0, (along[:, None] ** 2 + along**2) / max(reach, 1) ** 2))
    peaks: list[tuple[float, Array]] = []
    for _ in range(3):
        row, column = np.unravel_index(np.argmax(score), score.shape)
        peaks.append((float(score[row, column]), np.array([column - reach, row - reach], float)))
        score[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = -1.0
    return peaks


def _refine(base: _Texture, texture: _Texture, points: Array, start: Array, rounds: int = 30) -> Array:
    """Gauss-Newton on the camera's pose, gross errors weighted down; the wide band leads, the narrow one finishes."""
    pose, believed = start.copy(), base.weight > 0
    spots, wanted = points[believed], base.bands[believed]
    gradients = np.stack([np.gradient(texture.bands, axis=1), np.gradient(texture.bands, axis=0)], axis=-1)
    steep = replace(texture, bands=gradients.reshape(*texture.weight.shape, -1))
    for round_ in range(rounds):
        camera = moved_camera(texture.camera, pose)
        here = _rectify(texture, camera, spots)
        gradient = _rectify(steep, camera, spots).bands.reshape(len(spots), -1, 2)
        J = gradient @ pixel_jacobian(camera, spots)
        error = here.bands - wanted
        trust = np.array([0.3, 1.0]) if round_ < rounds // 2 else np.array([1.0, 1.0])
        robust = here.weight[:, None] * trust / (1 + (error / 0.7) ** 2)
        flat, weights = J.reshape(-1, 6), robust.reshape(-1)
        H, g = flat.T @ (flat * weights[:, None]), flat.T @ (weights * error.reshape(-1))
        step = -np.linalg.solve(H + np.diag(1e-3 * np.diag(H) + 1e-9), g)
        pose += np.clip(step, -0.01, 0.01)
        if np.abs(step).max() < 1e-6:
            break
    return pose


def pixel_jacobian(camera: Camera, points: Array) -> Array:
    """Derivatives of the pixels of fixed points [..., 3] by the pose of their camera [..., 2, 6]."""
    place = camera.body_from_camera
    arm = points - place[:3, 3]
    seen = arm @ place[:3, :3]
    z = np.maximum(seen[..., 2], 0.05)
    ideal = seen[..., :2] / z[..., None]
    by_place = np.zeros((*ideal.shape, 3))
    by_place[..., 0, 0] = by_place[..., 1, 1] = 1.0
    by_place[..., 2] = -ideal
    by_place = (
        np.array(camera.focal)[:, None] * (lens_jacobian(ideal, camera.distortion) @ by_place) / z[..., None, None]
    )
    by_world = by_place @ place[:3, :3].T
    cross = np.zeros((*arm.shape[:-1], 3, 3))
    cross[..., 0, 1], cross[..., 0, 2], cross[..., 1, 2] = -arm[..., 2], arm[..., 1], -arm[..., 0]
    cross -= np.swapaxes(cross, -1, -2)
    return np.concatenate([-by_world, by_world @ cross], axis=-1)


def _score(base: _Texture, texture: _Texture, points: Array, pose: Array) -> float:
    flat = _rectify(texture, moved_camera(texture.camera, pose), points)
    weight = (flat.weight * base.weight)[..., None]
    a, b = base.bands * weight, flat.bands * weight
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


def moved_camera(camera: Camera, motion: Array) -> Camera:
    """A camera translated, and rotated about its own position, along the world's axes."""
    place = np.array(camera.body_from_camera, float)
    place[:3, :3] = matrix_from_quat(quat_exp(motion[3:])) @ place[:3, :3]
    place[:3, 3] += motion[:3]
    return replace(camera, body_from_camera=place)


def relative_pose(old: Camera, new: Camera) -> tuple[Array, Array]:
    """Translation and rotation vector from one camera pose to another."""
    turn = new.body_from_camera[:3, :3] @ old.body_from_camera[:3, :3].T
    return new.body_from_camera[:3, 3] - old.body_from_camera[:3, 3], quat_log(quat_from_matrix(turn))


def _remove_mean_motion(old: Sequence[Camera], new: Sequence[Camera]) -> list[Camera]:
    """Move all cameras together so that their mean correction is zero."""
    turns = [relative_pose(a, b)[1] for a, b in zip(old, new, strict=True)]
    back = np.eye(4)
    back[:3, :3] = matrix_from_quat(quat_exp(-np.mean(turns, axis=0)))
    turned = [replace(c, body_from_camera=back @ c.body_from_camera) for c in new]
    shift = np.mean([relative_pose(a, b)[0] for a, b in zip(old, turned, strict=True)], axis=0)
    return [moved_camera(camera, np.concatenate([-shift, np.zeros(3)])) for camera in turned]
