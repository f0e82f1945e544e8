"""Posed images from photographs: by a board on the table, or by structure from motion with a metric scale; and the
folder.

By a board, the world's frame lies in it: x to its right, y up along it, z out of it, origin at its top left corner.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.imports import optional_library
from instep.core.reading import read_json_table
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.splat.capture import unscaled_capture
from instep.splat.fitting import Progress
from instep.splat.rendering import save_png

from .metric_frame import KnownLength, frame_by_board, frame_on, middle_of, scale_by_lengths, table_plane
from .posed_views import MAX_EDGE_PX, edge_width
from .structure_from_motion import (
    MIN_PHOTOS,
    MotionOptions,
    check_library,
    check_still,
    checked,
    prepare_photos,
    read_images,
    read_photo,
    reconstruct,
)

BoardKind = Literal["charuco", "tags"]
MIN_CALIBRATION_VIEWS = 5
"""Fewest images with a board from which a lens is calibrated."""
MAX_ERROR_PX = 3.0
"""Largest root mean square error of the corners of an image that is kept, in images of 1280 pixels."""
_WORLD_FROM_BOARD = np.diag([1.0, -1.0, -1.0, 1.0])
"""OpenCV's boards have y down and z into the board."""
_READING, _POSING = 0.1, 0.95
"""Shares of the time after reading, and after posing."""
_WIDE_SCALE = (
    "The scale is uncertain by more than 2 %, or its uncertainty is unknown; show the board in three photographs or "
    "more, or mark longer lengths."
)
METRIC = "metric"
"""Key of transforms.json that is false if the unit of the poses is unknown."""
_TO_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


@options_dataclass
class BoardOptions:
    """A board and its detection."""

    kind: BoardKind = "charuco"
    columns: int = 5
    rows: int = 7
    """Squares of a ChArUco board, or tags of a grid, across and down."""
    square: float = 0.04
    """Side of a square; of a grid, distance from tag to tag [m]."""
    marker: float = 0.03
    """Side of a marker [m]."""
    dictionary: str = "DICT_4X4_50"
    """Name of an OpenCV dictionary, such as DICT_APRILTAG_36h11."""
    lens: tuple[float, ...] = ()
    """fx, fy, cx, cy [pixels] and, if known, k1, k2, p1, p2, k3; calibrated from the images if empty."""
    thickness: float = 0.0
    """Height of the board above the table [m]."""
    frames: int = 40
    """Most frames of a video that are taken."""


@array_dataclass
class BoardPoses:
    """Posed images."""

    cameras: tuple[Camera, ...]
    images: tuple[Array, ...]
    errors: Array
    """Root mean square error of the corners of each image [pixels]."""
    left_out: tuple[str, ...]
    """Why images were left out, one sentence each."""
    calibrated: bool
    """Whether the lens was calibrated from the images."""


@array_dataclass
class _Sight:
    name: str
    image: Array
    points: Array  # Corners on the board [n, 3] [m]
    pixels: Array  # [n, 2], with OpenCV's convention that the centre of the top left pixel is (0, 0)


def board_poses(source: Path, options: BoardOptions) -> BoardPoses:
    """Pose the images of a folder, or frames of a video, by a board in them."""
    cv2 = optional_library("cv2", "build", "opencv-python-headless")
    board, detector = board_detector(cv2, options)
    sights, left_out = list[_Sight](), list[str]()
    for name, _, image in read_images(source, options.frames):
        found = _sight(detector, board, name, image, options)
        if isinstance(found, str):
            left_out.append(found)
        else:
            sights.append(found)
    if len(sights) < 2:
        raise BadInput(
            f"A board of {options.columns} x {options.rows} ({options.dictionary}) was found in {len(sights)} images, "
            f"and two are needed; do --board, --dictionary and the images belong together? {' '.join(left_out[:2])}"
        )
    K, lens = _lens(cv2, sights, options)
    cameras, images, errors = list[Camera](), list[Array](), list[float]()
    for sight in sights:
        camera, error = _posed(cv2, sight, K, lens)
        if camera is None or error > MAX_ERROR_PX * max(1.0, sight.image.shape[1] / 1280):
            left_out.append(f"{sight.name}: its corners fit no pose (error {error:.1f} pixels).")
            continue
        cameras.append(camera)
        images.append(sight.image)
        errors.append(error)
    if len(cameras) < 2:
        raise BadInput(
            f"{len(cameras)} images could be posed, and two are needed: {' '.join(left_out[:3])} Is the lens right?"
        )
    return BoardPoses(tuple(cameras), tuple(images), np.array(errors), tuple(left_out), not options.lens)


def board_detector(cv2: Any, options: BoardOptions) -> tuple[Any, Any]:
    """OpenCV's board and its detector."""
    names = [name for name in dir(cv2.aruco) if name.startswith("DICT_")]
    if options.dictionary not in names:
        raise UnknownName("dictionary of markers", options.dictionary, names)
    if options.columns < 1 or options.rows < 1 or not 0 < options.marker < options.square < 5:
        raise BadInput(
            "A board has at least 1 x 1 squares, and markers smaller than them: 0 < --marker < --square, in metres."
        )
    dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, options.dictionary))
    size = (options.columns, options.rows)
    if options.kind == "charuco":
        if min(size) < 3:
            raise BadInput(f"A ChArUco board has at least 3 x 3 squares, not {size[0]} x {size[1]}.")
        board = cv2.aruco.CharucoBoard(size, options.square, options.marker, dictionary)
        return board, cv2.aruco.CharucoDetector(board)
    board = cv2.aruco.GridBoard(size, options.marker, options.square - options.marker, dictionary)
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    return board, cv2.aruco.ArucoDetector(dictionary, parameters)


def _sight(detector: Any, board: Any, name: str, image: Array, options: BoardOptions) -> _Sight | str:
    """The corners of a board in an image, or why there are none."""
    if edge_width(image / 255) > MAX_EDGE_PX:
        return f"{name}: blurred or blank."
    found = board_corners(detector, board, image, options)
    if found is None:
        return f"{name}: no marker of the board."
    points, pixels = found
    if len(points) < (4 if options.kind == "tags" else 6):  # fewest corners of a board by which an image is posed
        return f"{name}: {len(points)} corners of the board."
    return _Sight(name, image, points, pixels)


def board_corners(detector: Any, board: Any, image: Array, options: BoardOptions) -> tuple[Array, Array] | None:
    """Corners on the board [n, 3] [m] and in an image [n, 2], by OpenCV's convention; None without a marker."""
    grey = np.ascontiguousarray(image.mean(axis=-1).astype(np.uint8))
    if options.kind == "charuco":
        corners, ids, _, _ = detector.detectBoard(grey)
    else:
        corners, ids, _ = detector.detectMarkers(grey)
    if ids is None or len(ids) == 0:
        return None
    points, pixels = board.matchImagePoints(corners, ids)
    if points is None:
        return np.zeros((0, 3), np.float32), np.zeros((0, 2))
    return np.asarray(points, np.float32).reshape(-1, 3), np.asarray(pixels).reshape(-1, 2)


def _lens(cv2: Any, sights: Sequence[_Sight], options: BoardOptions) -> tuple[Array, Array]:
    """The intrinsic matrix and distortion, in OpenCV's convention of pixels."""
    if options.lens:
        if len(options.lens) not in (4, 5, 6, 8, 9):
            raise BadInput("--lens takes fx fy cx cy [pixels] and, where known, k1 k2 p1 p2 k3.")
        fx, fy, cx, cy, *more = options.lens
        # A Camera has the centre of the top left pixel at (0.5, 0.5), OpenCV at (0, 0).
        return np.array([[fx, 0.0, cx - 0.5], [0.0, fy, cy - 0.5], [0.0, 0.0, 1.0]]), np.array([*more, *[0.0] * 5][:5])
    if len(sights) < MIN_CALIBRATION_VIEWS:
        count = f"{MIN_CALIBRATION_VIEWS} images with the board; {len(sights)} have it"
        raise BadInput(f"Calibrating a lens needs {count}. Add images, or give --lens FX FY CX CY.")
    height, width = sights[0].image.shape[:2]
    if any(sight.image.shape[:2] != (height, width) for sight in sights):
        raise BadInput("The images have different sizes; those of one camera were expected.")
    flags = cv2.CALIB_ZERO_TANGENT_DIST | cv2.CALIB_FIX_K3
    points = [sight.points for sight in sights]
    pixels = [sight.pixels.astype(np.float32) for sight in sights]
    _, K, lens, _, _ = cv2.calibrateCamera(points, pixels, (width, height), None, None, flags=flags)
    return np.asarray(K, float), np.asarray(lens, float).ravel()[:5]


def _posed(cv2: Any, sight: _Sight, K: Array, lens: Array) -> tuple[Camera | None, float]:
    """The camera of an image, and the error of its corners [pixels]."""
    done, turn, shift = cv2.solvePnP(sight.points, sight.pixels, K, lens, flags=cv2.SOLVEPNP_IPPE)
    if not done:
        return None, np.inf
    turn, shift = cv2.solvePnPRefineLM(sight.points, sight.pixels, K, lens, turn, shift)
    again, _ = cv2.projectPoints(sight.points, turn, shift, K, lens)
    error = float(np.sqrt(((np.asarray(again).reshape(-1, 2) - sight.pixels) ** 2).sum(axis=1).mean()))
    camera_from_board = np.eye(4)
    camera_from_board[:3, :3], camera_from_board[:3, 3] = cv2.Rodrigues(turn)[0], np.asarray(shift).ravel()
    world_from_camera = _WORLD_FROM_BOARD @ np.linalg.inv(camera_from_board)
    height, width = sight.image.shape[:2]
    distortion = tuple(float(k) for k in lens) if np.any(lens) else ()
    centre = (float(K[0, 2]) + 0.5, float(K[1, 2]) + 0.5)
    focal = (float(K[0, 0]), float(K[1, 1]))
    return Camera(sight.name, width, height, focal, centre, "world", world_from_camera, distortion), error


@options_dataclass
class PhotoOptions:
    """Options of posing photographs, and their scale."""

    board: BoardOptions | None = None
    """A board in some photographs."""
    lengths: tuple[KnownLength, ...] = ()
    lens: tuple[float, ...] = ()
    """As `BoardOptions.lens`; from the photographs if empty."""
    frames: int = 40
    """Most frames of a video."""
    masks: Path | None = None
    """Folder with NAME.png, white where features are allowed."""
    turned: bool = False
    """Whether the camera stood still before a turntable."""
    seed: int = 0


@array_dataclass
class PhotoPoses:
    """Posed photographs, as written."""

    cameras: tuple[Camera, ...]
    """In metres with z = 0 on the table; in an arbitrary unit if `scale` is None."""
    errors: Array
    """Root mean square reprojection error of each photograph [pixels]."""
    left_out: tuple[str, ...]
    """Why photographs were left out, one sentence each."""
    scale: Estimate | None
    """Relative scale (1) with its interval from the board or the lengths."""
    scale_from: str
    """Source of the scale, in words."""
    notes: tuple[str, ...]
    """Warnings, one sentence each."""


@array_dataclass
class _Model:
    """Posed photographs in an arbitrary frame and unit."""

    cameras: tuple[Camera, ...]
    files: tuple[Path, ...]
    errors: Array
    points: Array
    plane: Array | None  # The table, if one was found
    left_out: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def pose_photos(source: Path, out: Path, options: PhotoOptions, report: Progress) -> PhotoPoses:
    """Pose photographs (a folder, or a video) and write them, whole or not at all.

    Poses of unknown scale, as written without a board or lengths, get their scale.
    """
    check_new(out)
    with tempfile.TemporaryDirectory(prefix="instep-photos-") as place:
        unscaled = source.is_dir() and (source / "transforms.json").is_file()
        model = _read_unscaled(source) if unscaled else _by_motion(source, Path(place), options, report)
        report(_POSING, "table and scale")
        found = _in_world(model, options)
        poses = found.poses
        error = bootstrap(poses.errors, lambda draws: np.median(draws, axis=-1), unit="px")
        words = {
            **model.facts, "scale": None if poses.scale is None else poses.scale.as_dict(),
            "scale_from": poses.scale_from, "error_px": error.as_dict(),
            "left_out": list(poses.left_out), "notes": list(poses.notes),
        }  # fmt: skip
        facts = {METRIC: poses.scale is not None, "poses": words}
        write_posed(out, PosedImages(poses.cameras, model.files, poses.errors, found.plane, found.points, facts))
    return poses


@array_dataclass
class _InWorld:
    poses: PhotoPoses
    plane: tuple[float, float, float, float]
    points: Array  # Points around the objects


def _by_motion(source: Path, work: Path, options: PhotoOptions, report: Progress) -> _Model:
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
    try:
        plane = table_plane(kept.cameras, kept.points, options.seed)
    except BadInput:
        if options.board is None:  # a board can replace the table
            raise
        plane = None
    focal = "given" if options.lens else "EXIF, refined" if any(photo.focal for photo in photos) else "refined"
    facts = {
        "by": f"structure from motion (pycolmap {kept.version})", "photographs": len(photos), "focal_from": focal,
        "agreement": float(good.agreement.min()), "seed": options.seed, "turntable": options.turned,
    }  # fmt: skip
    files, left_out = tuple(paths[camera.name] for camera in kept.cameras), (*blurred, *good.left_out)
    return _Model(kept.cameras, files, good.errors, kept.points, plane, left_out, facts)


def _read_unscaled(folder: Path) -> _Model:
    """Poses of unknown scale from an earlier run."""
    table = read_json_table(folder / "transforms.json", 64 << 20)
    if table.get(METRIC) is not False:
        raise BadInput(f"{str(folder)!r} holds poses of known scale; give photographs, or poses without a scale.")
    capture = unscaled_capture(folder)
    cameras = tuple(recording.camera for recording in capture.recordings)
    files = tuple(folder / frame["file_path"] for frame in table["frames"])
    errors = np.array([float(frame.get("error_px", np.nan)) for frame in table["frames"]])
    facts = dict(table.get("poses", {}))
    left_out = tuple(str(words) for words in facts.get("left_out", ()))
    return _Model(cameras, files, errors, capture.points, np.array([0.0, 0.0, 1.0, 0.0]), left_out, facts)


def _in_world(model: _Model, options: PhotoOptions) -> _InWorld:
    """The poses in the world: in metres if a board or lengths give the scale."""
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
            # The frame of a board, turned so that z = 0 is the table; only its scale if the board is tilted.
            tilt = float(np.degrees(np.arccos(np.clip(change.turn[2] @ model.plane[:3], -1.0, 1.0))))
            lies = tilt < 4.0  # largest angle between a board that lies on the table and the table
            if not lies:
                notes.append(
                    f"The board is {tilt:.0f} degrees from the table, so it gives the scale, and not the frame."
                )
            origin = -change.turn.T @ change.shift / change.scale if lies else middle
            change = frame_on(model.plane, change.turn[0], origin, change.scale)
    elif options.lengths and model.plane is not None:
        scale = scale_by_lengths(options.lengths, model.cameras, model.plane, options.seed)
        words = f"{len(options.lengths)} length{'s' * (len(options.lengths) > 1)} between marked points"
        change = frame_on(model.plane, model.cameras[0].body_from_camera[:3, 0], middle, scale.value)
    else:
        plane = np.array([0.0, 0.0, 1.0, 0.0]) if model.plane is None else model.plane
        apart = [np.linalg.norm(camera.body_from_camera[:3, 3] - middle) for camera in model.cameras]
        change = frame_on(plane, model.cameras[0].body_from_camera[:3, 0], middle, 1 / float(np.median(apart)))
    cameras, points = tuple(change.camera(camera) for camera in model.cameras), change.points(model.points)
    relative = None if scale is None else Estimate(1.0, scale.low / scale.value, scale.high / scale.value, scale.n, "")
    # Half width of the interval of the scale above which a note is written.
    if relative is not None and not relative.high - relative.low < 2 * 0.02:
        notes.append(_WIDE_SCALE)
    centre = change.points(middle)
    found = PhotoPoses(cameras, model.errors, model.left_out, relative, words, tuple(notes))
    apart = np.median([np.linalg.norm(camera.body_from_camera[:3, 3] - centre) for camera in cameras])
    # Reach of the kept points, in distances of the cameras from the middle.
    near = points[np.linalg.norm(points - centre, axis=1) < 2.0 * apart]
    return _InWorld(found, (0.0, 0.0, 1.0, depth), near)


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
            f"None of the {len(model.cameras)} posed photographs shows a board of {options.columns} x {options.rows} "
            f"({options.dictionary}). Check --board and --dictionary; mirrored photographs show none."
        )
    return found


@array_dataclass
class PosedImages:
    """Images and their cameras."""

    cameras: Sequence[Camera]
    images: Sequence[Array | Path]
    """An image to write as PNG, or a file to copy."""
    errors: Array
    """Root mean square error of each image [pixels]."""
    plane: tuple[float, float, float, float]
    """The table."""
    points: Array | None = None
    """Points on surfaces [n, 3]."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of transforms.json."""


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise BadInput(f"{str(folder)!r} is there and not empty; give a new folder.")


def write_posed(folder: Path, posed: PosedImages) -> None:
    """Write posed images, whole or not at all."""
    check_new(folder)
    work = folder.with_name(folder.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        frames: list[dict[str, Any]] = []
        first = _lens_keys(posed.cameras[0])
        for camera, image, error in zip(posed.cameras, posed.images, posed.errors, strict=True):
            name = f"{camera.name}.png" if isinstance(image, np.ndarray) else image.name
            if isinstance(image, np.ndarray):
                save_png(work / name, image)
            else:
                shutil.copyfile(image, work / name)
            own = _lens_keys(camera)
            place = (camera.body_from_camera @ _TO_OPENGL).tolist()
            frame = {"file_path": name, "transform_matrix": place, "error_px": float(error)}
            frames.append(frame if own == first else {**frame, **own})
        table = {**first, **posed.facts, "frames": frames}
        (work / "transforms.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        (work / "ground_plane.json").write_text(json.dumps({"plane": posed.plane}) + "\n", encoding="utf-8")
        if posed.points is not None:
            np.save(work / "points.npy", posed.points)
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _lens_keys(camera: Camera) -> dict[str, float]:
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    more = zip(("k1", "k2", "p1", "p2", "k3"), (*camera.distortion, *[0.0] * 5), strict=False)
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, **dict(more)}
