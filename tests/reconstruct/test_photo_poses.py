"""Photographs without poses: what is refused before anything is computed, and poses against cameras that took them."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.ndimage import gaussian_filter, map_coordinates

from instep.app.cli import main
from instep.data.frames import decode_image, encode_png
from instep.reconstruct.capture.metric_frame import similarity
from instep.reconstruct.capture.structure_from_motion import prepare_photos, read_photo
from instep.scene.camera import Camera, look_at, pinhole
from instep.splat.capture import load_capture, unscaled_capture
from instep.splat.fitting import pixel_rays

SIZE, DENSITY = (320, 240), 700.0
"""Size of the photographs, and texels of table and box in a metre."""
BOX, HEIGHT = 0.09, 0.07
"""Half the side of a box on the table, and its height [m]."""


def cameras(count: int = 9) -> list[Camera]:
    plain, out = pinhole("view", SIZE, 50.0), list[Camera]()
    for k in range(count):
        angle = np.radians(18.0 * k)
        eye = np.array([0.5 * np.cos(angle), 0.5 * np.sin(angle), 0.42 + 0.05 * (k % 2)])
        out.append(Camera(f"p{k}", *SIZE, plain.focal, plain.centre, "world", look_at(eye, np.array([0.0, 0.0, 0.03]))))
    return out


@cache
def texture(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = sum(gaussian_filter(rng.normal(size=(1400, 1400)), s) * s for s in (1.2, 3.0, 9.0))
    return np.clip(0.5 + 0.25 * found / found.std(), 0, 1)


def photograph(camera: Camera, seed: int = 0, over: int = 2) -> np.ndarray:
    """A patterned table with a block on it, of which only the patterned top is modelled."""
    rows, columns = np.indices((SIZE[1] * over, SIZE[0] * over))
    rays = pixel_rays(camera, (np.stack([columns, rows], axis=-1) + 0.5) / over)
    eye, grey = camera.body_from_camera[:3, 3], np.zeros(rows.shape)
    for height, number in ((0.0, 0), (HEIGHT, 1)):
        points = eye - ((eye[2] - height) / rays[..., 2])[..., None] * rays
        at = [700 + points[..., 1] * DENSITY, 700 + points[..., 0] * DENSITY]
        colours = map_coordinates(texture(2 * seed + number), at, order=1, mode="reflect")
        grey = colours if number == 0 else np.where((np.abs(points[..., :2]) < BOX).all(axis=-1), colours, grey)
    grey = grey.reshape(SIZE[1], over, SIZE[0], over).mean(axis=(1, 3))
    return np.repeat((255 * (0.1 + 0.8 * grey)).astype(np.uint8)[..., None], 3, axis=2)


def written(folder: Path, images: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(encode_png(image))
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Nine photographs, one of another table and one that is blurred."""
    images = {camera.name: photograph(camera) for camera in cameras()}
    images["other"] = photograph(cameras()[4], seed=7)
    images["shaken"] = gaussian_filter(images["p1"], (9, 9, 0))
    return written(tmp_path_factory.mktemp("taken") / "photos", images)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_read_as_viewers_show_it(tmp_path, orientation):
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 255, (6, 8, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
    for folder in ("taken", "work"):
        (tmp_path / folder).mkdir()
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif.get_ifd(0x8769)[0xA405] = 26
    Image.fromarray(blocks).save(tmp_path / "taken" / "a.jpg", quality=98, subsampling=0, exif=exif)
    [photo], left_out = prepare_photos(tmp_path / "taken", tmp_path / "work", 40, None, lambda share, words: None)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "taken" / "a.jpg")))
    kept = decode_image((tmp_path / "work" / "images" / "a.png").read_bytes())
    assert left_out == [] and (photo.height, photo.width) == shown.shape[:2] == kept.shape[:2]
    assert np.abs(kept.astype(int) - shown).mean() < 3 and np.abs(read_photo(photo.path).astype(int) - shown).mean() < 3
    assert photo.focal == pytest.approx(26 / 43.27 * np.hypot(96, 128))


def length(metres: float, one: np.ndarray, other: np.ndarray) -> str:
    camera = cameras()[2]
    place, words = camera.body_from_camera, list[str]()
    for point in (one, other):
        x, y = camera.project((point - place[:3, 3]) @ place[:3, :3])
        words.append(f"{camera.name}:{x:.1f},{y:.1f}")
    return f"{metres}={'/'.join(words)}"


def posed(photos: Path, out: Path, *words: str) -> int:
    return main(["reconstruct", "pose", str(photos), str(out), *words])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_photograph_from_far_aside_is_posed_by_a_second_attempt(pycolmap, tmp_path, capsys):
    """It is 66 degrees from the next one and low, so that plain features of the table do not match."""
    plain, near = pinhole("low", SIZE, 50.0), cameras(4)
    angle = np.radians(120.0)
    eye = np.array([0.55 * np.cos(angle), 0.55 * np.sin(angle), 0.2])
    place = look_at(eye, np.array([0.0, 0.0, 0.03]))
    low = Camera("low", *SIZE, plain.focal, plain.centre, "world", place)
    taken = written(tmp_path / "photos", {camera.name: photograph(camera) for camera in (*near, low)})
    assert posed(taken, tmp_path / "posed") == 0
    assert "5 of 5 photographs posed" in said(capsys)
    found = [one.camera.body_from_camera[:3, 3] for one in unscaled_capture(tmp_path / "posed").recordings]
    true = np.array([camera.body_from_camera[:3, 3] for camera in (low, *near)])
    change = similarity(np.array(found), true)
    assert np.linalg.norm(change.points(np.array(found)) - true, axis=1).max() < 0.02 * 0.6


def test_photographs_are_posed_to_a_percent_and_what_does_not_belong_is_named(pycolmap, photos, tmp_path, capsys):
    sheet = length(0.3, np.array([-0.15, 0.2, 0.0]), np.array([0.15, 0.2, 0.0]))
    assert posed(photos, tmp_path / "posed", "--length", sheet) == 0
    words = said(capsys)
    assert "9 of 11 photographs posed" in words and "Scale by 1 length" in words
    assert "left out: other: it matches too little" in words and "left out: shaken: blurred or blank." in words
    capture, true = load_capture(tmp_path / "posed"), cameras()
    assert [one.camera.name for one in capture.recordings] == [camera.name for camera in true]
    places = np.array([one.camera.body_from_camera[:3, 3] for one in capture.recordings])
    wanted = np.array([camera.body_from_camera[:3, 3] for camera in true])
    change = similarity(places, wanted)
    assert np.linalg.norm(change.points(places) - wanted, axis=1).max() < 0.01 * 0.65
    assert change.scale == pytest.approx(1.0, abs=0.02) and change.turn[2, 2] > np.cos(np.radians(1.0))
    assert abs(change.shift[2]) < 0.005 and capture.recordings[0].camera.focal[0] == pytest.approx(343.1, rel=0.03)
    assert len(capture.points) > 200 and capture.plane is not None


def test_an_object_on_a_turntable_before_a_fixed_background_is_posed_where_that_is_said(pycolmap, tmp_path, capsys):
    """Turning the table before a camera is moving the camera around it, but for what stands behind."""
    behind, images = photograph(cameras()[0], seed=5), dict[str, np.ndarray]()
    for camera in cameras()[::2]:
        images[camera.name] = np.concatenate([behind[:70], photograph(camera)[70:]])
    folder = written(tmp_path / "turned", images)
    assert posed(folder, tmp_path / "posed") == 2
    assert "give --turntable" in said(capsys)
    assert posed(folder, tmp_path / "posed", "--turntable") == 0
    assert "5 of 5 photographs posed" in said(capsys)


def test_photographs_of_different_scenes_are_refused(pycolmap, tmp_path, capsys):
    images = {f"p{k}": photograph(cameras()[k], seed=10 + k) for k in range(4)}
    assert posed(written(tmp_path / "apart", images), tmp_path / "posed") == 2
    assert "No two of the 4 photographs match" in said(capsys) and not (tmp_path / "posed").exists()


def test_an_interrupt_ends_colmap_and_leaves_nothing(pycolmap, photos, tmp_path):
    command = [sys.executable, "-m", "instep.app.cli", "reconstruct", "pose", str(photos), str(tmp_path / "posed")]
    running = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(command, env=running, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("instep-photos-*/features.db")) and time.monotonic() < deadline:
        time.sleep(0.05)
    grandchildren = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) != 0 and grandchildren
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in grandchildren)


def test_without_pycolmap_the_line_that_installs_it_is_told(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert posed(photos, tmp_path / "posed") == 2
    assert "pip install 'instep[photos]'" in said(capsys) and list(tmp_path.iterdir()) == []
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("sys.platform", "linux")
    assert posed(photos, tmp_path / "posed") == 2
    assert "no wheel for Linux on aarch64" in said(capsys)


def header(width: int, height: int) -> bytes:
    """A PNG file that declares a size, without pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def test_what_no_poses_follow_from_is_one_sentence_and_nothing_is_written(pycolmap, photos, tmp_path, capsys):
    two = written(tmp_path / "two", {"a": photograph(cameras()[0]), "b": photograph(cameras()[1])})
    blurred = written(
        tmp_path / "blurred", {f"p{k}": gaussian_filter(photograph(cameras()[k]), (9, 9, 0)) for k in (0, 1)}
    )
    large = written(tmp_path / "large", {})
    (large / "a.png").write_bytes(header(16000, 12500))
    double = written(tmp_path / "double", {"a": photograph(cameras()[0])})
    (double / "a.jpg").write_bytes((double / "a.png").read_bytes())
    cases = {
        two: "2 usable photographs were given, and at least 3 are needed",
        blurred: "0 usable photographs were given, and at least 3 are needed; 12 or more from all around give a shape. "
        "p0: blurred or blank.",
        large: "'a.png' has 200 megapixels, and at most 64 are read",
        double: "Two photographs are named 'a'",
        tmp_path / "none": "is neither a folder of images nor a video",
    }
    for folder, message in cases.items():
        assert posed(folder, tmp_path / "posed") == 2
        assert message in said(capsys) and not (tmp_path / "posed").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--board", "5x4", "--turntable"), "are for structure from motion (--photos)"),
        (("--board", "5x4", "--photos", "--length", "0.2=a:1,2/b:3,4"), "give --board or --length, not both"),
        (("--square", "0.03"), "--square needs a board"),
        (("--length", "0.2=a:1,2"), "--length takes METRES=IMAGE:X,Y/IMAGE:X,Y"),
        (("--masks", "nowhere"), "holds no other.png; one for each photograph was expected"),
    ],
)
def test_options_that_do_not_fit_are_refused(pycolmap, photos, tmp_path, capsys, words, message):
    assert posed(photos, tmp_path / "posed", *words) == 2
    assert message in said(capsys) and list(tmp_path.iterdir()) == []
