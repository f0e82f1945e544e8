"""Captures that nothing can be built from: one sentence, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from build_scenes import click_at, ring, tee, write_capture
from instep.app.cli import main
from instep.data.frames import decode_image
from instep.reconstruct.capture.posed_views import MAX_EDGE_PX, edge_width
from instep.splat.rendering import save_png

CAMERAS = ring(3)
CLICKS = [click_at(camera, (0.0, 0.015, 0.04)) for camera in CAMERAS]
Change = Callable[[dict], None]


@pytest.fixture
def images(tmp_path) -> Path:
    return write_capture(tmp_path / "images", tee(), CAMERAS)


def refused(images: Path, capsys, *words: str, change: Change | None = None) -> str:
    """The sentence by which a build is refused, with nothing left of it."""
    if change is not None:
        table = json.loads((images / "transforms.json").read_text())
        change(table)
        (images / "transforms.json").write_text(json.dumps(table))
    before = sorted(images.parent.iterdir())
    out = images.parent / "out"
    assert main(["reconstruct", str(images), str(out), *(words or ("--prompt", *CLICKS)), "--steps", "0"]) == 2
    assert sorted(images.parent.iterdir()) == before
    return " ".join(capsys.readouterr().err.split())


def scaled_poses(factor: float) -> Change:
    def change(table: dict) -> None:
        for frame in table["frames"]:
            place = np.array(frame["transform_matrix"])
            place[:3, 3] *= factor
            frame["transform_matrix"] = place.tolist()

    return change


def first_frame(table: dict) -> None:
    table.update(frames=table["frames"][:1])


def far_away(table: dict) -> None:
    table["frames"][2]["transform_matrix"][0][3] += 6.0


def mirrored(table: dict) -> None:
    for frame in table["frames"]:
        frame["transform_matrix"] = (np.diag([-1.0, 1.0, 1.0, 1.0]) @ np.array(frame["transform_matrix"])).tolist()


def turntable(table: dict) -> None:
    table.update(poses={"turntable": True})


TWO = ("--prompt", *CLICKS[:2], "--shape", "hull")
ONE = ("--prompt", CLICKS[0])


@pytest.mark.parametrize(
    ("words", "change", "expected"),
    [
        (ONE, first_frame, ("one view only", "add views", "--height METRES")),
        ((*ONE, "--height", "0.04", "--shape", "hull"), None, ("may have twice its volume",)),
        (TWO, lambda table: table["frames"].pop(), ("2 views may have twice its volume",)),
        (("--prompt", "tee=table"), None, ("at least 6 views",)),
        (("--prompt", "tee=table"), turntable, ("'tee=table' needs a table at rest", "clicks or boxes")),
        ((), mirrored, ("mirrored",)),
        ((), far_away, ("'v02' shows no part of the table that another camera shows",)),
        ((), scaled_poses(1e3), ("poses in metres were expected",)),
        ((), scaled_poses(1e-3), ("on the table",)),
        (("--prompt", *CLICKS, "--table-height", "0.9"), None, ("below the table",)),
        ((), lambda table: table.update(fl_x=4.2, fl_y=4.2), ("a focal length in pixels was expected",)),
    ],
)
def test_poses_lenses_and_views_without_a_result_are_refused(images, capsys, words, change, expected):
    message = refused(images, capsys, *words, change=change)
    assert all(part in message for part in expected)


def test_blurred_images_are_refused(images, capsys):
    from scipy.ndimage import gaussian_filter

    path = images / "v01.png"
    sharp = decode_image(path.read_bytes())
    save_png(path, gaussian_filter(sharp, (5, 5, 0)))
    assert edge_width(sharp / 255) < 0.5 * MAX_EDGE_PX
    message = refused(images, capsys)
    assert "'v01'" in message and "blurred" in message


def test_a_blank_image_is_refused(images, capsys):
    save_png(images / "v02.png", np.full((120, 160, 3), 90, np.uint8))
    assert "blank" in refused(images, capsys)


def test_one_image_along_the_table_is_refused(tmp_path, capsys):
    images = write_capture(tmp_path / "images", tee(), ring(1, height=0.03))
    click = click_at(ring(1, height=0.03)[0], (0.0, 0.015, 0.02))
    assert "looks along the table" in refused(images, capsys, "--prompt", click, "--height", "0.04")


def test_two_images_from_one_direction_are_refused(tmp_path, capsys):
    cameras = ring(40)[:2]
    images = write_capture(tmp_path / "images", tee(), cameras)
    clicks = [click_at(camera, (0.0, 0.015, 0.04)) for camera in cameras]
    assert "from within" in refused(images, capsys, "--prompt", *clicks)


def test_an_image_of_200_megapixels_is_refused_before_it_is_decoded(images, capsys):
    header = struct.pack(">IIBBBBB", 20_000, 10_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (images / "v00.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    message = refused(images, capsys)
    assert "20000" in message or "200" in message
