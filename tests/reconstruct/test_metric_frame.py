"""The table and the scale of cameras in a frame of their own, and the checks of a reconstruction, on planted truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.app.cli import main
from instep.core.errors import BadInput
from instep.reconstruct.capture.metric_frame import (
    frame_by_board,
    parse_lengths,
    scale_by_lengths,
    similarity,
    table_plane,
)
from instep.reconstruct.capture.photo_poses import PosedImages, write_posed
from instep.reconstruct.capture.structure_from_motion import PhotoPairs, Reconstruction, check_still, checked
from instep.scene.camera import Camera, look_at, pinhole
from instep.splat.capture import load_capture

UNIT = 3.7
"""Units of the reconstruction in a metre."""
TURN = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
TURN = TURN * np.sign(np.linalg.det(TURN))


def own(points: np.ndarray) -> np.ndarray:
    """Points of the world in the frame and the unit of the reconstruction."""
    return UNIT * points @ TURN.T + [0.3, -2.0, 5.0]


def cameras(count: int = 8) -> list[Camera]:
    plain, out = pinhole("view", (640, 480), 45.0), list[Camera]()
    for k in range(count):
        angle = 2 * np.pi * k / count
        place = look_at(np.array([0.5 * np.cos(angle), 0.5 * np.sin(angle), 0.4]), np.array([0.0, 0.0, 0.03]))
        out.append(Camera(f"p{k}", 640, 480, plain.focal, plain.centre, "world", place))
    return out


def in_own_frame(camera: Camera) -> Camera:
    place = np.eye(4)
    place[:3, :3], place[:3, 3] = TURN @ camera.body_from_camera[:3, :3], own(camera.body_from_camera[:3, 3])
    return replace(camera, body_from_camera=place)


def seen(camera: Camera, points: np.ndarray) -> np.ndarray:
    place = camera.body_from_camera
    return camera.project((points - place[:3, 3]) @ place[:3, :3])


def scene_points(rng: np.random.Generator) -> np.ndarray:
    """A table with a box on it, a wall behind and a floor below, in metres."""
    table = np.c_[rng.uniform(-0.4, 0.4, (500, 2)), rng.normal(0, 3e-4, 500)]
    top = np.c_[rng.uniform(-0.1, 0.1, (450, 2)), rng.normal(0.08, 3e-4, 450)]
    wall = np.c_[np.full(700, 0.9), rng.uniform(-0.6, 0.6, 700), rng.uniform(-0.3, 0.8, 700)]
    floor = np.c_[rng.uniform(-2, 2, (400, 2)), np.full(400, -0.7)]
    return np.concatenate([table, top, wall, floor])


def plane_of(points: np.ndarray) -> np.ndarray:
    return table_plane([in_own_frame(camera) for camera in cameras()], own(points))


def test_the_table_is_found_below_the_objects_and_not_on_them_nor_behind():
    plane = plane_of(scene_points(np.random.default_rng(0)))
    assert np.degrees(np.arccos(plane[:3] @ TURN[:, 2])) < 0.2
    assert abs(own(np.zeros(3)) @ plane[:3] + plane[3]) < 0.001 * UNIT


def test_points_without_a_plane_are_no_table():
    with pytest.raises(BadInput, match="No table was found"):
        plane_of(np.random.default_rng(0).normal(0, 0.15, (600, 3)))


def test_a_similarity_is_recovered():
    points = np.random.default_rng(1).normal(size=(20, 3))
    found = similarity(own(points), points)
    assert np.allclose(found.points(own(points)), points, atol=1e-12) and found.scale == pytest.approx(1 / UNIT)


def test_lengths_on_the_table_and_off_it_give_the_scale():
    views, given = cameras(), [in_own_frame(camera) for camera in cameras()]
    plane = plane_of(scene_points(np.random.default_rng(0)))
    a, b, top = np.array([-0.15, 0.1, 0.0]), np.array([0.15, 0.12, 0.0]), np.array([-0.15, 0.1, 0.2])

    def click(k: int, point: np.ndarray) -> str:
        x, y = seen(views[k], point)
        return f"p{k}:{x:.2f},{y:.2f}"

    flat = f"{np.linalg.norm(b - a):.6f}={click(0, a)}/{click(0, b)}"
    upright = f"0.2={click(1, a)}/{click(1, top)}+{click(3, top)}"
    scale = scale_by_lengths(parse_lengths([flat, upright]), given, plane, 0)
    assert scale.value == pytest.approx(1 / UNIT, rel=0.003) and scale.low < 1 / UNIT < scale.high and scale.n == 2
    with pytest.raises(BadInput, match="lengths disagree"):
        scale_by_lengths(parse_lengths([flat, upright.replace("0.2=", "0.3=")]), given, plane, 0)
    with pytest.raises(BadInput, match="pixels away from where the other images show it"):
        scale_by_lengths(parse_lengths([f"0.2={click(1, a)}/{click(1, top)}+{click(3, b)}"]), given, plane, 0)
    with pytest.raises(BadInput, match="no photograph that was posed named 'x'"):
        scale_by_lengths(parse_lengths(["0.2=x:1,2/p1:3,4"]), given, plane, 0)


def test_a_length_that_is_written_otherwise_is_refused():
    with pytest.raises(BadInput, match="--length takes METRES=IMAGE:X,Y/IMAGE:X,Y"):
        parse_lengths(["0.2=p0:1/p0:3,4"])


def board_corners(shift_of_one: float = 0.0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Corners of a board on the table as three images show them, with noise; in one it may have moved."""
    rng = np.random.default_rng(2)
    columns, rows = np.meshgrid(np.arange(1, 5) * 0.03, np.arange(1, 4) * 0.03)
    points = np.stack([columns.ravel(), rows.ravel(), np.zeros(12)], axis=1)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for k, camera in enumerate(cameras()[:3]):
        world = points * [1, -1, -1] + [0.02 + (shift_of_one if k == 0 else 0.0), 0.05, 0.0]
        found[camera.name] = (points, seen(camera, world) + rng.normal(0, 0.15, (12, 2)))
    return found


def test_a_board_in_three_images_gives_frame_and_scale_with_an_interval():
    given = [in_own_frame(camera) for camera in cameras()]
    change, scale = frame_by_board(board_corners(), given, None)
    assert scale.value == pytest.approx(1 / UNIT, rel=0.003) and scale.low < 1 / UNIT < scale.high
    assert change.points(own(np.array([0.02, 0.05, 0.0]))) == pytest.approx(np.zeros(3), abs=1e-3)
    with pytest.raises(BadInput, match="must lie still"):
        frame_by_board(board_corners(0.06), given, None)


def pairs_of(still: float, count: int = 6) -> PhotoPairs:
    images = np.array([(a, b) for a in range(count) for b in range(a)])
    raw = np.full(len(images), 100)
    return PhotoPairs(images, raw, (still * raw).astype(int), np.zeros(len(images), int), np.zeros((0, 4)))


def test_a_camera_that_stood_still_is_refused_and_one_that_moved_is_not():
    check_still(pairs_of(0.02))
    with pytest.raises(BadInput, match=r"stood still.*--turntable"):
        check_still(pairs_of(0.3))


def reconstruction(turned: int | None = None, names: int = 8) -> Reconstruction:
    """A reconstruction of the scene with all matches; the pose of one camera may be wrong, with its own sightings."""
    rng = np.random.default_rng(4)
    points, given = scene_points(rng)[:300], cameras()
    pixels = [seen(camera, points) for camera in given]
    if turned is not None:
        place = look_at(np.array([-0.2, 0.45, 0.42]), np.array([0.1, 0.0, 0.03]))
        given[turned] = replace(given[turned], body_from_camera=place)
    rows = [(k, n, *seen(camera, points[n : n + 1])[0]) for k, camera in enumerate(given) for n in range(300)]
    images = np.array([(a, b) for a in range(8) for b in range(a)])
    matches = np.concatenate([np.hstack([pixels[a], pixels[b]]) for a, b in images])
    count = np.full(len(images), 300)
    every = tuple(f"p{k}" for k in range(names))
    pairs = PhotoPairs(images, count, np.zeros(len(images), int), count, matches)
    return Reconstruction(tuple(given), points, np.array(rows), pairs, every, "0")


def test_a_right_reconstruction_passes_and_names_what_was_not_registered():
    found = checked(reconstruction(names=9))
    assert len(found.found.cameras) == 8 and found.agreement.min() > 0.99 and found.errors.max() < 1e-6
    assert found.left_out == ("p8: it matches too little of the other photographs.",)


def test_a_camera_whose_matches_contradict_its_pose_is_left_out():
    found = checked(reconstruction(turned=3))
    assert [camera.name for camera in found.found.cameras] == [f"p{k}" for k in (0, 1, 2, 4, 5, 6, 7)]
    assert (
        len(found.left_out) == 1
        and found.left_out[0].startswith("p3: ")
        and "matches fit its pose" in found.left_out[0]
    )
    assert found.found.sightings[:, 0].max() == 6


def test_a_lens_that_no_camera_has_is_refused():
    found = reconstruction()
    wide = tuple(replace(camera, focal=(150.0, 150.0)) for camera in found.cameras)
    with pytest.raises(BadInput, match="do not overlap enough"):
        checked(replace(found, cameras=wide))


def written(folder: Path, facts: dict[str, object]) -> Path:
    images = [np.full((480, 640, 3), 90, np.uint8)] * 8
    unit = [replace(c, body_from_camera=_scaled(c.body_from_camera)) for c in cameras()]
    points = UNIT * scene_points(np.random.default_rng(0))[:950]
    write_posed(folder, PosedImages(unit, images, np.full(8, 0.4), (0.0, 0.0, 1.0, 0.0), points, facts))
    return folder


def _scaled(place: np.ndarray) -> np.ndarray:
    out = place.copy()
    out[:3, 3] *= UNIT
    return out


def test_poses_of_unknown_scale_are_refused_until_a_length_gives_it(tmp_path, capsys):
    unscaled = written(tmp_path / "unscaled", {"metric": False})
    assert main(["reconstruct", str(unscaled), str(tmp_path / "scene"), "--prompt", "a=table"]) == 2
    assert "unknown scale" in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "scene").exists()
    (x0, y0), (x1, y1) = seen(cameras()[0], np.array([[-0.15, 0.1, 0.0], [0.15, 0.1, 0.0]]))
    word = f"0.3=p0:{x0},{y0}/p0:{x1},{y1}"
    assert main(["reconstruct", "pose", str(unscaled), str(tmp_path / "metric"), "--length", word]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "8 of 8 photographs posed" in said and "Scale by 1 length between marked points (-" in said
    apart = [np.linalg.norm(one.camera.body_from_camera[:3, 3]) for one in load_capture(tmp_path / "metric").recordings]
    assert apart == pytest.approx([np.hypot(0.5, 0.4)] * 8, rel=0.02)
    facts = json.loads((tmp_path / "metric" / "transforms.json").read_text())
    assert facts["metric"] is True and facts["poses"]["scale"]["low"] < 1 < facts["poses"]["scale"]["high"]


def test_poses_of_known_scale_are_not_scaled_again(tmp_path, capsys):
    metric = written(tmp_path / "metric", {"metric": True})
    assert main(["reconstruct", "pose", str(metric), str(tmp_path / "again")]) == 2
    assert "of known scale" in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "again").exists()
