"""Captures: posed videos or images of a scene with points, a table and scanned bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
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

from .io.ply import ScannedBody, load_scanned_body
from .plane_alignment import Plane

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
    names = [recording.camera.name for recording in capture.recordings]
    if not any(name in names for name in calibration.cameras):
        raise UnknownName("camera of the images", next(iter(calibration.cameras)), names)
    recordings = [replace(one, camera=_recalibrated(one.camera, calibration)) for one in capture.recordings]
    return replace(capture, recordings=tuple(recordings))


def _recalibrated(camera: Camera, calibration: Calibration) -> Camera:
    new = calibration.cameras.get(camera.name, camera)
    if (new.width, new.height) != (camera.width, camera.height) or new.body != camera.body:
        raise BadInput(
            f"Camera {camera.name!r} of the calibration has images of {new.width} x {new.height} pixels on "
            f"{new.body!r}; {camera.width} x {camera.height} on {camera.body!r} were expected."
        )
    return new


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
    return tuple(load_scanned_body(path) for path in find_inside(folder, "*.json") if _describes_body(path))


def _describes_body(path: Path) -> bool:
    small = path.is_file() and path.stat().st_size <= _MAX_JSON
    return small and b'"gaussians"' in read_file(path, _MAX_JSON)


def _object(path: Path) -> dict[str, Any]:
    return read_json_table(check_inside(path.parent, path), _MAX_JSON)


def _under(folder: Path, name: object) -> Path:
    """A file below the folder, whatever a stranger's description says."""
    path = inside(folder, str(name))
    if not path.is_file():
        raise BadInput(f"{str(name)!r} is named but not there.")
    return path
