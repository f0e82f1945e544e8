"""Cameras are written into the files of a scene and taken out again; all else in them stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.scene.camera import Camera, pinhole
from instep.scene.camera_files import framing_robot, remove_camera, write_camera
from instep.scene.folder import Scene

MAIN = """<mujoco model="arm">
  <!-- a comment that stays -->
  <include file="arm.xml"/>
  <worldbody>
    <light pos="0 0 3"/>
  </worldbody>
</mujoco>
"""
ARM = """<mujoco>
  <worldbody>
    <body name="arm"><joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/></body>
  </worldbody>
</mujoco>
"""
TOML = 'model = "scene.xml"\nrate = 50.0  # a comment too\n\n[robot]\njoints = ["hinge"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"scene.xml": MAIN, "arm.xml": ARM, "scene.toml": TOML}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_camera_is_written_moved_and_removed(folder: Path) -> None:
    hand = Camera("hand", 64, 48, (50.0, 52.0), (31.0, 24.5), "arm", distortion=(0.1, 0.0))
    write_camera(folder, hand)
    read = Scene.load(folder).cameras["hand"]
    assert (read.body, read.width, read.height, read.distortion) == ("arm", 64, 48, (0.1, 0.0))
    assert np.allclose([*read.focal, *read.centre], [50, 52, 31, 24.5])
    assert 'name="hand"' in (folder / "arm.xml").read_text()  # beside the body that carries it

    write_camera(folder, replace(hand, body="world", distortion=()))
    read = Scene.load(folder).cameras["hand"]
    assert read.body == "world" and read.distortion == ()
    assert 'name="hand"' not in (folder / "arm.xml").read_text()

    remove_camera(folder, "hand")
    scene = Scene.load(folder)
    assert not scene.cameras and scene.model.ncam == 0
    assert "a comment that stays" in (folder / "scene.xml").read_text()
    assert "# a comment too" in (folder / "scene.toml").read_text()


def test_a_body_that_no_file_writes_is_refused(folder: Path) -> None:
    before = (folder / "scene.xml").read_text()
    with pytest.raises(BadInput, match="Body 'body1' is not written in the files"):
        write_camera(folder, replace(pinhole("hand"), body="body1"))
    assert (folder / "scene.xml").read_text() == before


@pytest.mark.parametrize("size", [(640, 480), (100, 300)])
def test_a_camera_that_frames_the_robot_sees_all_of_it(folder: Path, size: tuple[int, int]) -> None:
    scene = Scene.load(folder)
    camera = framing_robot(scene, pinhole("overview", size))
    data = mujoco.MjData(scene.model)
    mujoco.mj_forward(scene.model, data)
    ends = [data.geom_xpos[0] + x * data.geom_xmat[0].reshape(3, 3)[:, 2] for x in (-0.17, 0.17)]
    camera_from_world = np.linalg.inv(camera.body_from_camera)
    pixels = camera.project(np.array([(camera_from_world @ [*end, 1.0])[:3] for end in ends]))
    assert (pixels > 0).all() and (pixels < size).all()
    assert np.linalg.norm(pixels[1] - pixels[0]) > 0.3 * min(size)
