"""Calibrations come back as they were written, and a scene sees through them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.scene.camera import Camera, camera_of, look_at
from instep.scene.camera_files import Calibration, calibrated_scene, load_calibration
from instep.scene.folder import Scene

ARM = """
<mujoco model="arm"><compiler angle="degree"/><worldbody>
  <camera name="top" pos="0 0 2" fovy="40" resolution="64 48"/>
  <body name="arm"><joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/></body>
</worldbody></mujoco>
"""
PLACE = look_at(np.array([1.0, -0.5, 0.7]), np.array([0.1, 0.0, 0.2]))
SIDE = Camera("side", 320, 240, (301.5, 299.25), (158.5, 121.25), "world", PLACE, (-0.1, 0.02, 0.0, 0.001, 0.0))
HAND = Camera(
    "hand", 64, 64, (50.0, 50.0), (32.0, 32.0), "arm", look_at(np.array([0.3, 0, 0]), np.array([1.0, 0, 0.1]))
)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    (tmp_path / "arm.xml").write_text(ARM)
    return Scene.load(tmp_path / "arm.xml")


def same(a: Camera, b: Camera, tolerance: float = 0.0) -> bool:
    words = (a.name, a.width, a.height, a.body) == (b.name, b.width, b.height, b.body)
    numbers = [(a.focal, b.focal), (a.centre, b.centre), (a.body_from_camera, b.body_from_camera)]
    return words and all(np.allclose(x, y, rtol=tolerance, atol=tolerance) for x, y in numbers)


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    made = Calibration({"side": SIDE, "hand": HAND}, {"tee": np.array([1.01, 0.98, 1.0])}, "refined on a recording")
    made.save(tmp_path / "cameras.json")
    read = load_calibration(tmp_path / "cameras.json")
    assert list(read.cameras) == ["side", "hand"] and read.about == made.about
    assert all(same(read.cameras[name], camera) for name, camera in made.cameras.items())
    assert read.cameras["side"].distortion == SIDE.distortion
    assert np.array_equal(read.sizes["tee"], made.sizes["tee"])


def test_the_model_of_a_calibrated_scene_has_its_cameras(scene: Scene) -> None:
    seen = Calibration({"side": SIDE, "hand": HAND}).on(scene)
    assert list(seen.cameras) == ["top", "side", "hand"]
    for camera in (SIDE, HAND):
        assert same(camera_of(seen.model, camera.name, {}), camera, 1e-6)  # MuJoCo keeps lenses in single precision
    assert seen.cameras["side"].distortion == SIDE.distortion
    assert "side" not in scene.cameras and scene.model.ncam == 1
    assert seen.spec is scene.spec and np.array_equal(seen.delayed_model().qpos0, scene.model.qpos0)


def test_a_camera_of_the_same_name_is_replaced_wherever_it_was_mounted(scene: Scene) -> None:
    first = Calibration({"hand": HAND}).on(scene)
    moved = Calibration({"hand": Camera("hand", 64, 64, (50.0, 50.0), (32.0, 32.0))}).on(first)
    assert moved.model.ncam == 2 and camera_of(moved.model, "hand", {}).body == "world"


def test_words_name_cameras_or_a_calibration(scene: Scene, tmp_path: Path) -> None:
    file = str(tmp_path / "cameras.json")
    Calibration({"side": SIDE, "hand": HAND}).save(file)
    assert calibrated_scene(scene, ["top"]) == (scene, ["top"])
    assert calibrated_scene(scene, [file])[1] == ["side", "hand"]
    assert calibrated_scene(scene, [file, "side"])[1] == ["side"]
    assert calibrated_scene(scene, [file, "all"])[1] == ["top", "side", "hand"]
    with pytest.raises(BadInput, match="takes one calibration file, not 2"):
        calibrated_scene(scene, [file, file])


def test_a_urdf_is_to_become_a_scene_first(tmp_path: Path) -> None:
    heavy = '<mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    link = '<link name="{}"><inertial>' + heavy + "</inertial></link>"
    joint = '<joint name="j" type="continuous"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint>'
    (tmp_path / "two.urdf").write_text(f'<robot name="two">{link.format("a")}{link.format("b")}{joint}</robot>')
    with pytest.raises(BadInput, match=r"instep scene new .*two\.urdf DIR"):
        Calibration({"side": SIDE}).on(Scene.load(tmp_path / "two.urdf"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"width": "640"}, "image of '640' x 240; whole numbers of pixels"),
        ({"focal": [300.0, -1.0]}, r"needs 'focal' \[fx, fy\] above 0"),
        ({"centre": [1.0]}, r"'centre' \[cx, cy\]"),
        ({"body_from_camera": [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]}, "not a 4 x 4 rigid transform"),
        ({"body_from_camera": [[float("nan")] * 4] * 4}, "not a 4 x 4 rigid transform"),
        ({"distortion": [0.0] * 6}, "up to 5 numbers"),
        ({"foccal": 3}, "Did you mean 'focal'"),
        ({"height": None}, "Camera 'side' in cameras.json"),
    ],
)
def test_what_is_wrong_in_a_calibration_is_said(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "cameras.json"
    Calibration({"side": SIDE}).save(path)
    table = json.loads(path.read_text())
    table["cameras"]["side"] |= change
    path.write_text(json.dumps(table))
    with pytest.raises(BadInput, match=sentence):
        load_calibration(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"cameras": {}}', "names no cameras"),
        ('{"cam": {}}', "Known: about, cameras, sizes"),
        ('{"cameras": {"a": 3}}', "Camera 'a' in cameras.json is no table"),
        ('{"cameras": {"a": {"width": 3}}}', "lacks height and focal and centre"),
        ('{"cameras": {"a": {}}, "sizes": 3}', "'sizes' of the calibration"),
    ],
)
def test_a_file_that_is_no_calibration_is_said_to_be_none(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "cameras.json").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        load_calibration(tmp_path / "cameras.json")
