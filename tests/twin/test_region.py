"""Bodies whose colour nobody named: regions, contrast search, texture, and starts that a user gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import binary_erosion

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.scene.camera import Camera, look_at
from instep.twin.body_appearance import BodyTexture, LearnedAppearance, RegionColours, free_pixels, mask_bodies_in_front
from instep.twin.body_outlines import Outline, hull_faces, project_outline
from instep.twin.body_search import find_by_regions, refined_start
from instep.twin.camera_rig import CameraFrame
from instep.twin.pose_solver import (
    compare_silhouette,
    motion_between,
    moved,
    planar_basis,
    solve_pose,
    systematic_spread,
)
from instep.twin.scene_bodies import load_starts, pose_from_points

from .conftest import RenderedRecording, Run, looking_down

UP = np.array([0.0, 0.0, 1.0])
PLACED = np.eye(4)
PLACED[:3, 3] = 0.01, 0.02, 0.02
PRIOR = np.diag([0.01**2] * 3 + [0.1**2] * 3)


def _texture(points: Array) -> Array:
    """A grey pattern fixed to points [..., 3]: smooth, without symmetry."""
    x, y, z = np.moveaxis(points, -1, 0)
    return 60 * np.sin(130 * x + 40 * z) * np.cos(90 * y + 30 * z) + 40 * np.sin(210 * y - 150 * x)


def _image(outline: Outline, camera: Camera, T: Array, *, grey: float = 90.0, textured: bool = False) -> CameraFrame:
    """A grey body with a shaded edge, or a textured one, on a speckled grey table."""
    rng = np.random.default_rng(5)
    table = np.clip(rng.normal(150, 8, (camera.height, camera.width, 1)) + np.zeros(3), 0, 255)
    projected = project_outline(outline, camera, T)
    share = np.zeros((camera.height, camera.width))
    left, top, right, bottom = projected.region
    share[top:bottom, left:right] = projected.coverage(soft=0.25)
    body = np.full((camera.height, camera.width, 3), grey)
    if textured:
        # Of the plane through the top of the body.
        v, u = np.mgrid[: camera.height, : camera.width] + 0.5
        x, y = (u - camera.centre[0]) / camera.focal[0], (v - camera.centre[1]) / camera.focal[1]
        rays = np.stack([x, y, np.ones_like(x)], axis=-1)
        rays = rays @ camera.body_from_camera[:3, :3].T
        up, origin = T[:3, 2], camera.body_from_camera[:3, 3]
        met = origin + rays * (up @ (T[:3, 3] + 0.02 * up - origin) / (rays @ up))[..., None]
        body = np.clip(body + _texture((met - T[:3, 3]) @ T[:3, :3])[..., None], 0, 255)
    pixels = share[..., None] * body + (1 - share[..., None]) * table
    return CameraFrame(camera, (pixels + rng.normal(0, 2, pixels.shape)).clip(0, 255).astype(np.uint8), 0.0, 0.0)


def test_a_grey_body_is_found_by_contrast_and_fitted_by_the_colours_learned_there(tee: Outline) -> None:
    camera = looking_down()
    truth = moved(PLACED, np.array([0.06, -0.03, 0, 0, 0, 2.0]))
    colours = RegionColours(tee, [camera])
    memory = LearnedAppearance.unknown([camera])
    found = find_by_regions(colours, PLACED, UP, [(0, _image(tee, camera, truth))], memory)
    assert found is not None and colours.learned(memory, 0)
    off = motion_between(found.world_from_body, truth)
    assert np.linalg.norm(off[:3]) < 0.0015 and np.linalg.norm(off[3:]) < 0.02


def test_what_looks_like_neither_body_nor_background_does_not_count(tee: Outline) -> None:
    camera = looking_down()
    colours = RegionColours(tee, [camera])
    memory = LearnedAppearance.unknown([camera])
    frame = _image(tee, camera, PLACED)
    colours.learn(frame, 0, None, PLACED, memory)
    free = colours.crop(frame, 0, PLACED, memory, 14)
    hidden = frame.pixels.copy()
    hidden[:, :118] = 20, 200, 40
    crop = colours.crop(replace(frame, pixels=hidden), 0, PLACED, memory, 14)
    assert free is not None and crop is not None
    whole, part = compare_silhouette(tee, free), compare_silhouette(tee, crop)
    inside = _image(tee, camera, PLACED, grey=0.0).pixels[..., 0] < 60
    truth = float(inside[:, 118:].sum() / inside.sum())
    assert whole.visible > 0.9 and abs(part.visible - truth) < 0.1
    assert part.overlap > 0.95  # of what is visible


def test_texture_measures_a_motion_that_leaves_the_silhouette_as_it_is(tee: Outline) -> None:
    camera = looking_down()
    texture, colours = BodyTexture(tee, [camera]), RegionColours(tee, [camera])
    memory = LearnedAppearance.unknown([camera])
    texture.reset(memory)
    first = _image(tee, camera, PLACED, textured=True)
    colours.learn(first, 0, None, PLACED, memory)
    crop = colours.crop(first, 0, PLACED, memory, 14)
    assert crop is not None
    texture.learn(first, 0, PLACED, crop, None, memory)
    truth = moved(PLACED, np.array([0.004, -0.003, 0, 0, 0, 0.05]))
    frame = _image(tee, camera, truth, textured=True)
    points = texture.follow(frame, 0, PLACED, memory)
    seen = colours.crop(frame, 0, PLACED, memory, 14)
    assert points is not None and len(points.places) >= 8 and seen is not None
    blind = replace(seen, weight=np.zeros_like(seen.weight), points=points)  # no silhouette at all
    found = solve_pose(tee, [blind], PRIOR, planar_basis(UP), 6)
    off = motion_between(moved(PLACED, found.xi), truth)
    assert np.linalg.norm(off[:3]) < 0.0008 and np.linalg.norm(off[3:]) < 0.008


def _refined(tee: Outline, given: Array, grey: float) -> Array:
    """The start that images of the body at PLACED give, from another."""
    camera = replace(looking_down(), width=960, height=640, focal=(800.0, 800.0), centre=(480.0, 320.0))
    colours = RegionColours(tee, [camera])
    frame = _image(tee, camera, PLACED, grey=grey)
    learned = LearnedAppearance.unknown([camera])
    return refined_start(colours, given, planar_basis(UP), [(0, frame)], lambda _: None, learned)[0]


def test_a_start_that_is_off_by_millimetres_is_refined_before_texture_is_learned_there(tee: Outline) -> None:
    given = moved(PLACED, np.array([0.003, -0.002, 0, 0, 0, np.radians(1.5)]))
    off = motion_between(_refined(tee, given, 90.0), PLACED)
    assert np.linalg.norm(off[:3]) < 0.001 and np.linalg.norm(off[3:]) < np.radians(0.5)


def test_a_body_in_front_hides_pixels_and_one_behind_does_not(tee: Outline) -> None:
    camera = looking_down(lean=0.0, at=(0.0, 0.0, 0.6))
    colours = RegionColours(tee, [camera])
    memory = LearnedAppearance.unknown([camera])
    frame = _image(tee, camera, PLACED)
    colours.learn(frame, 0, None, PLACED, memory)
    for height, share in ((0.1, 0.6), (-0.1, 1.0)):
        crop = colours.crop(frame, 0, PLACED, memory, 14)
        assert crop is not None
        other = PLACED.copy()
        other[:3, 3] += 0.0, 0.09, height  # its stem lies over the bar
        faces = hull_faces(tee)
        mask_bodies_in_front(crop, faces, [(faces, other)])
        assert abs(compare_silhouette(tee, crop).visible - share) < 0.12


def test_a_pose_is_found_from_points_and_their_pixels(tee: Outline) -> None:
    camera = looking_down()
    truth = moved(PLACED, np.array([0.02, 0.01, 0.03, 0.4, -0.3, 2.5]))
    places = tee.corners[[0, 1, 2, 4, 7, 10]]
    in_camera = np.linalg.inv(camera.body_from_camera) @ truth
    pixels = camera.project(places @ in_camera[:3, :3].T + in_camera[:3, 3])
    assert np.abs(motion_between(pose_from_points(camera, places, pixels), truth)).max() < 1e-5


def test_a_start_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "start.json"
    file.write_text(json.dumps({"tee": {"pose": [0.1, 0.2, 0.3, 1, 0, 0, 0]}}))
    assert load_starts(file)["tee"].transform({})[:3, 3].tolist() == [0.1, 0.2, 0.3]
    points = [[0, 0, 0, 10, 10], [1, 0, 0, 20, 10], [0, 1, 0, 10, 20], [1, 1, 0, 20, 20]]
    file.write_text(json.dumps({"tee": {"camera": "tpo", "points": points}}))
    with pytest.raises(UnknownName, match="no camera of the start named 'tpo'"):
        load_starts(file)["tee"].transform({"top": looking_down()})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"pose": [1, 2, 3]}, "a list of 7 numbers"),
        ({"points": []}, "neither a pose nor points of a camera"),
        ({"camera": "top", "points": [[0, 0, 0, 1, 1]]}, "at least 4"),
    ],
)
def test_a_bad_start_is_refused_in_one_sentence(tmp_path: Path, entry: object, words: str) -> None:
    file = tmp_path / "start.json"
    file.write_text(json.dumps({"tee": entry}))
    with pytest.raises(BadInput, match=words):
        load_starts(file)


def test_auto_takes_the_colour_of_the_scene_where_images_show_it_and_learns_it_elsewhere(
    recording: RenderedRecording, follow: Callable[..., Run]
) -> None:
    shown = replace(recording, episode=recording.episode.rows(0, 24))
    assert not follow(shown).log["tee.learned"][1:].any()
    blue = shown.with_images(lambda row, name, pixels, stamp: (np.ascontiguousarray(pixels[..., ::-1]), stamp))
    other = follow(blue)
    assert other.log["tee.learned"][1:].all()
    assert np.median(other.error[5:]) < 0.004


def test_a_systematic_error_of_the_outline_is_wider_for_one_camera_and_along_its_view() -> None:
    camera = looking_down()
    other = replace(camera, name="side", body_from_camera=look_at(np.array([0.6, 0.0, 0.3]), PLACED[:3, 3]))
    flat, free = planar_basis(UP), np.eye(6)
    one = systematic_spread([camera], PLACED, 0.1, flat)
    near = 0.6 / 200.0  # metres per pixel from 0.6 m at a focal length of 200 pixels
    assert 1.2 * near < one < 2.0 * near  # of two directions
    assert systematic_spread([camera, camera], PLACED, 0.1, flat) == pytest.approx(one / np.sqrt(2))
    assert systematic_spread([camera, other], PLACED, 0.1, flat) < one
    depth = systematic_spread([camera], PLACED, 0.1, free)
    assert depth > 3 * one  # size alone tells how far away it is
    assert systematic_spread([camera, other], PLACED, 0.1, free) < 0.5 * depth


def test_no_point_is_learned_near_an_edge_or_another_point() -> None:
    shown = np.random.default_rng(4).random((40, 60)) > 0.02
    expected = binary_erosion(shown, iterations=3)
    assert np.array_equal(free_pixels(shown, 3, np.zeros((0, 2)), 2), expected)
    expected[8:13, 18:23] = False
    found = free_pixels(shown, 3, np.array([[20.5, 10.5], [-9.0, 99.0]]), 2)
    assert np.array_equal(found, expected)
    assert found.any()
