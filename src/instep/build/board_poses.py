"""Poses and lens of a camera from a ChArUco board or a grid of AprilTags on the table, in images or a video.

The world's frame lies in the board: x to its right, y up along it, z out of it, with the origin at its top left corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.lazy import optional_library
from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .capture_checks import MAX_EDGE_PX, edge_width
from .photo_files import read_images

BoardKind = Literal["charuco", "tags"]
MIN_CORNERS = 6
"""Fewest corners of a board by which an image is posed."""
MIN_CALIBRATION_VIEWS = 5
"""Fewest images with a board from which a lens is calibrated."""
MAX_ERROR_PX = 3.0
"""Largest root mean square error of the corners of an image that is kept, in images of 1280 pixels."""
_WORLD_FROM_BOARD = np.diag([1.0, -1.0, -1.0, 1.0])
"""OpenCV's boards have y down and z into the board."""


@options_dataclass
class BoardOptions:
    """A board and how it is looked for."""

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
    """fx, fy, cx, cy [pixels] and, where known, k1, k2, p1, p2, k3; calibrated from the images where empty."""
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
    points: Array
    """Corners on the board [n, 3] [m]."""
    pixels: Array
    """[n, 2], with OpenCV's convention that the centre of the top left pixel is (0, 0)."""


def board_poses(source: Path, options: BoardOptions) -> BoardPoses:
    """Pose the images of a folder, or frames of a video, by a board that they show."""
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
    """The corners of a board in an image, or a sentence on why there are none."""
    if edge_width(image / 255) > MAX_EDGE_PX:
        return f"{name}: blurred or blank."
    found = board_corners(detector, board, image, options)
    if found is None:
        return f"{name}: no marker of the board."
    points, pixels = found
    if len(points) < (4 if options.kind == "tags" else MIN_CORNERS):
        return f"{name}: {len(points)} corners of the board."
    return _Sight(name, image, points, pixels)


def board_corners(detector: Any, board: Any, image: Array, options: BoardOptions) -> tuple[Array, Array] | None:
    """Corners on the board [n, 3] [m] and in an image [n, 2], as OpenCV counts; None where there is no marker."""
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
        raise BadInput(
            f"The board was found in {len(sights)} images, and a lens is calibrated from {MIN_CALIBRATION_VIEWS} or "
            "more; add images, or give --lens FX FY CX CY."
        )
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
