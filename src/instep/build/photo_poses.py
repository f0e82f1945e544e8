"""Posed images from photographs without poses: structure from motion, the table, and the metric scale."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.lazy import optional_library
from instep.core.reading import read_json_table
from instep.core.records import array_dataclass, options_dataclass
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.capture import unscaled_capture

from .board_poses import BoardOptions, board_corners, board_detector
from .metric_frame import (
    FrameChange,
    KnownLength,
    frame_by_board,
    frame_on,
    middle_of,
    scale_by_lengths,
    table_plane,
)
from .photo_files import Photo, prepare_photos, read_photo
from .posed_writing import METRIC, PosedImages, check_new, write_posed
from .reconstruction_checks import MIN_PHOTOS, check_still, checked
from .stage_store import PartReport
from .structure_from_motion import MotionOptions, check_library, reconstruct

_READING, _POSING = 0.1, 0.95
"""Shares of the time after which photographs are read, and posed."""
_POINT_REACH = 2.0
"""Points are kept up to so many distances of the cameras from the middle."""
_MAX_BOARD_TILT_DEG = 4.0
"""Largest angle between a board that lies on the table and the table."""
MAX_SCALE_ERROR = 0.02
"""Half width of the interval of the scale from which on a user is warned."""
_WIDE_SCALE = (
    "The scale is uncertain by more than 2 %, or its uncertainty is unknown; show the board in three photographs or "
    "more, or mark longer lengths."
)
_WIDE_GAP_DEG = 100.0
"""Angle without a camera from which on a user is warned."""
_MAX_JSON = 64 << 20


@options_dataclass
class PhotoOptions:
    """How photographs are posed and what gives their scale."""

    board: BoardOptions | None = None
    """A board that some photographs show."""
    lengths: tuple[KnownLength, ...] = ()
    lens: tuple[float, ...] = ()
    """As `BoardOptions.lens`; found from the photographs where empty."""
    frames: int = 40
    """Most frames of a video."""
    masks: Path | None = None
    """Folder with NAME.png, white where features may be."""
    turned: bool = False
    """Whether the camera stood still and the object was turned."""
    seed: int = 0


@array_dataclass
class PhotoPoses:
    """What was found and written."""

    cameras: tuple[Camera, ...]
    """In metres with z = 0 on the table; in a unit of their own where `scale` is None."""
    errors: Array
    """Root mean square reprojection error of each photograph [pixels]."""
    left_out: tuple[str, ...]
    """Why photographs were left out, one sentence each."""
    scale: Estimate | None
    """Metres by this scale for one metre, with the interval that the board or the lengths give."""
    scale_from: str
    """What gave the scale, in words."""
    coverage: Mapping[str, float]
    """`azimuth_gap_deg`, the largest angle around the middle without a camera, and elevations `low_deg`, `high_deg`."""
    notes: tuple[str, ...]
    """What a user should know, one sentence each."""


@array_dataclass
class _Model:
    """Posed photographs in a frame and a unit of their own."""

    cameras: tuple[Camera, ...]
    files: tuple[Path, ...]
    errors: Array
    points: Array
    plane: Array | None
    """The table, where one was found."""
    no_plane: str = ""
    """Why there is none."""
    left_out: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def pose_photos(source: Path, out: Path, options: PhotoOptions, report: PartReport) -> PhotoPoses:
    """Pose photographs (a folder, or a video) and write them, whole or not at all.

    A folder of poses of unknown scale, as this writes without a board or lengths, is given its scale.
    """
    check_new(out)
    with tempfile.TemporaryDirectory(prefix="instep-photos-") as place:
        unscaled = source.is_dir() and (source / "transforms.json").is_file()
        model = _read_unscaled(source) if unscaled else _posed(source, Path(place), options, report)
        report(_POSING, "table and scale")
        found = _in_world(model, options)
        poses = found.poses
        words = {
            **model.facts, "scale": None if poses.scale is None else poses.scale.as_dict(),
            "scale_from": poses.scale_from, "error_px": _median(poses.errors).as_dict(), "coverage": poses.coverage,
            "left_out": list(poses.left_out), "notes": list(poses.notes),
        }  # fmt: skip
        facts = {METRIC: poses.scale is not None, "poses": words}
        write_posed(out, PosedImages(poses.cameras, model.files, poses.errors, found.plane, found.points, facts))
    return poses


@array_dataclass
class _InWorld:
    poses: PhotoPoses
    plane: tuple[float, float, float, float]
    points: Array
    """Points around the objects."""


def _median(errors: Array) -> Estimate:
    return bootstrap(errors, lambda draws: np.median(draws, axis=-1), unit="px")


def _posed(source: Path, work: Path, options: PhotoOptions, report: PartReport) -> _Model:
    """Photographs posed by structure from motion."""
    check_library()
    photos, blurred = prepare_photos(
        source, work, options.frames, options.masks, lambda share, words: report(_READING * share, words)
    )
    if len(photos) < MIN_PHOTOS:
        raise BadInput(
            f"{len(photos)} usable photographs were given, and at least {MIN_PHOTOS} are needed; 12 or more from all "
            f"around give a shape. {' '.join(blurred[:2])}".strip()
        )

    def told(share: float, words: str) -> None:
        report(_READING + (_POSING - _READING) * share, words)

    motion = MotionOptions(turned=options.turned, lens=options.lens, seed=options.seed)
    found = reconstruct(photos, work, motion, told)
    if not options.turned:
        check_still(found.pairs)
    good = checked(found)
    kept = good.found
    paths = {photo.name: photo.path for photo in photos}
    plane, because = _plane(kept.cameras, kept.points, options)
    return _Model(
        kept.cameras, tuple(paths[camera.name] for camera in kept.cameras), good.errors, kept.points, plane, because,
        (*blurred, *good.left_out), _facts(photos, kept.version, good.agreement, options),
    )  # fmt: skip


def _facts(photos: Sequence[Photo], version: str, agreement: Array, options: PhotoOptions) -> dict[str, Any]:
    focal = "given" if options.lens else "EXIF, refined" if any(photo.focal for photo in photos) else "refined"
    return {
        "by": f"structure from motion (pycolmap {version})", "photographs": len(photos), "focal_from": focal,
        "agreement": float(agreement.min()), "seed": options.seed,
    }  # fmt: skip


def _plane(cameras: Sequence[Camera], points: Array, options: PhotoOptions) -> tuple[Array | None, str]:
    """The table, or why there is none; a board may stand in for it."""
    try:
        return table_plane(cameras, points, options.seed), ""
    except BadInput as error:
        if options.board is None:
            raise
        return None, str(error)


def _read_unscaled(folder: Path) -> _Model:
    """Poses of unknown scale that were written before."""
    table = read_json_table(folder / "transforms.json", _MAX_JSON)
    if table.get(METRIC) is not False:
        raise BadInput(
            f"{str(folder)!r} holds posed images whose scale is known; give photographs, or poses that instep build "
            "pose wrote without a scale."
        )
    capture = unscaled_capture(folder)
    cameras = tuple(recording.camera for recording in capture.recordings)
    files = tuple(folder / frame["file_path"] for frame in table["frames"])
    errors = np.array([float(frame.get("error_px", np.nan)) for frame in table["frames"]])
    facts = dict(table.get("poses", {}))
    left_out = tuple(str(words) for words in facts.get("left_out", ()))
    return _Model(cameras, files, errors, capture.points, np.array([0.0, 0.0, 1.0, 0.0]), "", left_out, facts)


def _in_world(model: _Model, options: PhotoOptions) -> _InWorld:
    """The poses in the world: in metres where a board or lengths give the scale."""
    scale, words, notes, depth = None, "unknown", list[str](), 0.0
    middle = middle_of(model.cameras, model.points)
    if options.board is not None:
        corners = _corners(model, options.board)
        change, scale = frame_by_board(corners, model.cameras, model.plane)
        words = f"a board in {len(corners)} photographs"
        if model.plane is None:
            depth = options.board.thickness
            notes.append("The table is that of the board: too few points were found on it.")
        else:
            change = _on_table(change, model.plane, middle, notes)
    elif options.lengths and model.plane is not None:
        scale = scale_by_lengths(options.lengths, model.cameras, model.plane, options.seed)
        words = f"{len(options.lengths)} length{'s' * (len(options.lengths) > 1)} between marked points"
        change = frame_on(model.plane, model.cameras[0].body_from_camera[:3, 0], middle, scale.value)
    else:
        plane = np.array([0.0, 0.0, 1.0, 0.0]) if model.plane is None else model.plane
        apart = [np.linalg.norm(camera.body_from_camera[:3, 3] - middle) for camera in model.cameras]
        change = frame_on(plane, model.cameras[0].body_from_camera[:3, 0], middle, 1 / float(np.median(apart)))
    cameras, points = tuple(change.camera(camera) for camera in model.cameras), change.points(model.points)
    relative = None if scale is None else _relative(scale)
    if relative is not None and not relative.high - relative.low < 2 * MAX_SCALE_ERROR:
        notes.append(_WIDE_SCALE)
    coverage, centre = _coverage(cameras, change.points(middle)), change.points(middle)
    if coverage["azimuth_gap_deg"] > _WIDE_GAP_DEG:
        notes.append(f"No photograph shows the objects from {coverage['azimuth_gap_deg']:.0f} of 360 degrees.")
    found = PhotoPoses(cameras, model.errors, model.left_out, relative, words, coverage, tuple(notes))
    return _InWorld(found, (0.0, 0.0, 1.0, depth), _near(cameras, points, centre))


def _relative(scale: Estimate) -> Estimate:
    """The scale with its value as the unit."""
    return Estimate(1.0, scale.low / scale.value, scale.high / scale.value, scale.n, "")


def _on_table(change: FrameChange, plane: Array, middle: Array, notes: list[str]) -> FrameChange:
    """The frame of a board, turned so that z = 0 is the table; the board for the scale alone where it does not lie."""
    tilt = float(np.degrees(np.arccos(np.clip(change.turn[2] @ plane[:3], -1.0, 1.0))))
    lies = tilt < _MAX_BOARD_TILT_DEG
    if not lies:
        notes.append(f"The board is {tilt:.0f} degrees from the table, so it gives the scale, and not the frame.")
    origin = -change.turn.T @ change.shift / change.scale if lies else middle
    return frame_on(plane, change.turn[0], origin, change.scale)


def _corners(model: _Model, options: BoardOptions) -> dict[str, tuple[Array, Array]]:
    """Corners of the board in each photograph that shows it, in the pixels of cameras."""
    cv2 = optional_library("cv2", "build", "opencv-python-headless")
    board, detector = board_detector(cv2, options)
    found: dict[str, tuple[Array, Array]] = {}
    for camera, path in zip(model.cameras, model.files, strict=True):
        corners = board_corners(detector, board, read_photo(path), options)
        if corners is not None and len(corners[0]):
            found[camera.name] = (corners[0].astype(float), corners[1] + 0.5)
    if not found:
        raise BadInput(
            f"None of the {len(model.cameras)} photographs that were posed shows a board of {options.columns} x "
            f"{options.rows} ({options.dictionary}); do --board and --dictionary fit? Mirrored photographs show none."
        )
    return found


def _coverage(cameras: Sequence[Camera], middle: Array) -> dict[str, float]:
    """The largest angle around the middle without a camera, and how steep they look [deg]."""
    away = np.array([camera.body_from_camera[:3, 3] for camera in cameras]) - middle
    around = np.sort(np.degrees(np.arctan2(away[:, 1], away[:, 0])))
    gap = float(np.max(np.diff(np.append(around, around[0] + 360))))
    steep = np.degrees(np.arcsin(away[:, 2] / np.linalg.norm(away, axis=1)))
    return {"azimuth_gap_deg": gap, "low_deg": float(steep.min()), "high_deg": float(steep.max())}


def _near(cameras: Sequence[Camera], points: Array, middle: Array) -> Array:
    """The points that are not far behind what the cameras look at."""
    apart = np.median([np.linalg.norm(camera.body_from_camera[:3, 3] - middle) for camera in cameras])
    return points[np.linalg.norm(points - middle, axis=1) < _POINT_REACH * apart]
