"""Camera poses from a ChArUco board and from AprilTags, against cameras that are known."""

from __future__ import annotations

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest

from instep.app.cli import main
from instep.core.poses import angle_between, quat_from_matrix
from instep.reconstruct.capture.photo_poses import BoardOptions, PosedImages, board_poses, write_posed
from instep.scene.camera import Camera, look_at, pinhole
from instep.splat.capture import load_capture
from instep.splat.fitting import pixel_rays
from instep.splat.rendering import save_png

SIZE = (400, 300)
DICTIONARIES = {"charuco": "DICT_4X4_50", "tags": "DICT_APRILTAG_36h11"}


def printed(kind: str) -> tuple[np.ndarray, float]:
    """A board as an image, and its pixels per metre."""
    dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, DICTIONARIES[kind]))
    if kind == "charuco":
        board, metres = cv2.aruco.CharucoBoard((5, 4), 0.04, 0.03, dictionary), (0.2, 0.16)
    else:
        board, metres = cv2.aruco.GridBoard((3, 2), 0.05, 0.02, dictionary), (0.19, 0.12)
    image = board.generateImage((int(4000 * metres[0]), int(4000 * metres[1])), marginSize=0)
    return image.astype(float) / 255, 4000.0


def cameras(count: int) -> list[Camera]:
    plain, out = pinhole("view", SIZE, 42.0), list[Camera]()
    for k in range(count):
        angle, height = 2 * np.pi * k / count + 0.1, 0.28 + 0.08 * (k % 3)
        eye = np.array([0.1 + 0.2 * np.cos(angle), -0.08 + 0.2 * np.sin(angle), height])
        place = look_at(eye, np.array([0.1, -0.08, 0.0]), (0.2, 1.0, 0.1))
        out.append(Camera(f"v{k:02d}", *SIZE, plain.focal, plain.centre, "world", place))
    return out


def photographed(kind: str, camera: Camera, over: int = 4) -> np.ndarray:
    """A board on a grey table, averaged over the area of each pixel."""
    from scipy.ndimage import map_coordinates

    board, density = printed(kind)
    rows, columns = np.indices((SIZE[1] * over, SIZE[0] * over))
    rays = pixel_rays(camera, (np.stack([columns, rows], axis=-1) + 0.5) / over)
    eye = camera.body_from_camera[:3, 3]
    points = eye - (eye[2] / rays[..., 2])[..., None] * rays
    at = [-points[..., 1] * density - 0.5, points[..., 0] * density - 0.5]
    grey = map_coordinates(board, at, order=1, cval=0.8)
    grey = grey.reshape(SIZE[1], over, SIZE[0], over).mean(axis=(1, 3))
    return np.repeat((255 * (0.1 + 0.8 * grey)).astype(np.uint8)[..., None], 3, axis=2)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    for kind in DICTIONARIES:
        (folder / kind).mkdir()
        for camera in cameras(6):
            save_png(folder / kind / f"{camera.name}.png", photographed(kind, camera))
    return folder


def assert_near(found: Camera, true: Camera, metres: float, degrees: float) -> None:
    a, b = found.body_from_camera, true.body_from_camera
    assert np.linalg.norm(a[:3, 3] - b[:3, 3]) < metres
    assert np.degrees(angle_between(quat_from_matrix(a[:3, :3]), quat_from_matrix(b[:3, :3]))) < degrees


@pytest.mark.parametrize("kind", ["charuco", "tags"])
def test_a_known_lens_gives_poses_to_millimetres(images, kind):
    true = cameras(6)
    lens = (*true[0].focal, *true[0].centre)
    size = {"columns": 5, "rows": 4, "square": 0.04, "marker": 0.03}
    size = size if kind == "charuco" else {"columns": 3, "rows": 2, "square": 0.07, "marker": 0.05}
    found = board_poses(images / kind, BoardOptions(kind=kind, dictionary=DICTIONARIES[kind], lens=lens, **size))
    assert len(found.cameras) == 6 and not found.calibrated and found.errors.max() < 0.4
    for camera, expected in zip(found.cameras, true, strict=True):
        # Corners between squares are found to 0.05 pixel, those of a marker by itself to 0.3.
        assert_near(camera, expected, *((0.002, 0.3) if kind == "charuco" else (0.005, 0.8)))


def test_the_command_calibrates_the_lens_and_writes_a_capture(images, tmp_path):
    words = ["reconstruct", "pose", str(images / "charuco"), str(tmp_path / "posed"), "--board", "5x4"]
    assert main([*words, "--square", "0.04", "--marker", "0.03", "--thickness", "0.003"]) == 0
    capture, true = load_capture(tmp_path / "posed"), cameras(6)
    assert capture.plane is not None and capture.plane.normal.tolist() == [0.0, 0.0, 1.0, 0.003]
    assert capture.recordings[0].camera.focal[0] == pytest.approx(true[0].focal[0], rel=0.02)
    for recording, expected in zip(capture.recordings, true, strict=True):
        assert_near(recording.camera, expected, 0.01, 1.0)
    assert json.loads((tmp_path / "posed" / "transforms.json").read_text())["frames"][0]["error_px"] < 0.5


def test_a_board_gives_poses_of_unknown_scale_their_metres_and_its_frame(images, tmp_path, capsys):
    unscaled, rng = list[Camera](), np.random.default_rng(0)
    for camera in cameras(6):
        place = camera.body_from_camera.copy()
        place[:3, 3] = 2.5 * place[:3, 3] + [0.4, 0.1, 0.0]
        unscaled.append(replace(camera, body_from_camera=place))
    files = [images / "charuco" / f"{camera.name}.png" for camera in unscaled]
    points = np.c_[rng.uniform(-0.5, 0.5, (200, 2)), np.zeros(200)]
    posed = PosedImages(unscaled, files, np.full(6, 0.3), (0.0, 0.0, 1.0, 0.0), points, {"metric": False})
    write_posed(tmp_path / "unscaled", posed)
    words = ["reconstruct", "pose", str(tmp_path / "unscaled"), str(tmp_path / "metric"), "--photos", "--board", "5x4"]
    assert main([*words, "--dictionary", "DICT_5X5_50"]) == 2
    assert "posed photographs shows a board of 5 x 4" in " ".join(capsys.readouterr().err.split())
    assert main(words) == 0
    assert "Scale by a board in 6 photographs (-" in " ".join(capsys.readouterr().err.split())
    for recording, expected in zip(load_capture(tmp_path / "metric").recordings, cameras(6), strict=True):
        assert_near(recording.camera, expected, 0.002, 0.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--board", "5by4"), "COLUMNSxROWS"),
        (("--board", "5x4", "--dictionary", "DICT_9X9"), "no dictionary of markers named 'DICT_9X9'"),
        (("--board", "5x4", "--dictionary", "DICT_7X7_50"), "was found in 0 images"),
        (("--board", "5x4", "--marker", "0.05"), "0 < --marker < --square"),
        (("--board", "5x4", "--lens", "400"), "--lens takes fx fy cx cy"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(images, tmp_path, capsys, words, message):
    assert main(["reconstruct", "pose", str(images / "charuco"), str(tmp_path / "posed"), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_too_few_images_calibrate_no_lens(images, tmp_path, capsys):
    (tmp_path / "few").mkdir()
    for name in ("v00.png", "v02.png"):
        (tmp_path / "few" / name).write_bytes((images / "charuco" / name).read_bytes())
    assert main(["reconstruct", "pose", str(tmp_path / "few"), str(tmp_path / "posed"), "--board", "5x4"]) == 2
    assert "give --lens" in " ".join(capsys.readouterr().err.split())
