"""The pusht scenes lie over the real recording: cameras, table, goal, block."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

from library_models import at_home, load

GRAVITY = 9.81


def recorded_cameras(recordings: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder = recordings / "pusht"
    poses = json.loads((folder / "cameras.json").read_text())
    return {
        serial: (
            np.array(json.loads((folder / given["metadata_path"]).read_text())["K"]),
            np.array(given["X_WC"]),
        )
        for serial, given in poses.items()
    }


def projected(model: mujoco.MjModel, data: mujoco.MjData, camera: str, points: np.ndarray) -> np.ndarray:
    """Pixels of world points by the frustum MuJoCo draws with; needs no graphics card."""
    scene, view = mujoco.MjvScene(model, 1000), mujoco.MjvCamera()
    view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera(camera).id
    mujoco.mjv_updateScene(
        model, data, mujoco.MjvOption(), None, view, int(mujoco.mjtCatBit.mjCAT_ALL), scene
    )  # fmt: skip
    left, right = scene.camera
    forward, up = np.array(left.forward), np.array(left.up)
    ray = points - (np.array(left.pos) + np.array(right.pos)) / 2
    depth = ray @ forward / left.frustum_near
    x, y = ray @ np.cross(forward, up) / depth, ray @ up / depth
    width, height = model.cam_resolution[model.camera(camera).id]
    return np.stack(
        [
            (x - left.frustum_center + left.frustum_width) / (2 * left.frustum_width) * width,
            (left.frustum_top - y) / (left.frustum_top - left.frustum_bottom) * height,
        ],
        axis=-1,
    )


@pytest.mark.parametrize("name", ["pusht", "pusht_arm"])
def test_the_cameras_of_pusht_are_those_of_the_recording(name: str, recordings: Path):
    model = load(name)
    data = at_home(model)
    bar, stem = data.geom("tee_bar"), data.geom("tee_stem")
    corners = [
        geom.xpos + geom.xmat.reshape(3, 3) @ (model.geom(geom.id).size * signs)
        for geom in (bar, stem)
        for signs in np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).T.reshape(-1, 3)
    ]
    points = np.array([*corners, [0.2, 0.1, -0.006], [0.7, 0.5, 0.0], [0.6, 0.1, -0.003]])
    for serial, (K, world_from_camera) in recorded_cameras(recordings).items():
        camera_from_point = (points - world_from_camera[:3, 3]) @ world_from_camera[:3, :3] * [1, -1, -1]
        expected = (camera_from_point / camera_from_point[:, 2:]) @ K.T
        assert np.abs(projected(model, data, f"cam_{serial}", points) - expected[:, :2]).max() < 0.1


@pytest.mark.parametrize("name", ["pusht", "pusht_arm"])
def test_table_and_goal_of_pusht_are_those_of_the_recording(name: str, recordings: Path):
    model = load(name)
    data = at_home(model)
    normal = np.array(json.loads((recordings / "pusht" / "ground_plane.json").read_text())["plane"])
    face = data.geom("table")
    assert face.xmat.reshape(3, 3)[:, 2] == pytest.approx(normal[:3], abs=1e-7)
    assert face.xpos @ normal[:3] + normal[3] == pytest.approx(0, abs=1e-7)
    # With the block at its goal, the frame of its scan is the recorded one.
    address = model.joint("tee").qposadr[0]
    data.qpos[address : address + 7] = [*data.body("goal").xpos, *data.body("goal").xquat]
    mujoco.mj_forward(model, data)
    scan, recorded = (
        data.site("tee_scan"),
        np.array(json.loads((recordings / "pusht" / "tblock.json").read_text())["X_WB"]),
    )
    assert scan.xpos == pytest.approx(recorded[:3, 3], abs=1e-5)
    assert scan.xmat.reshape(3, 3) == pytest.approx(recorded[:3, :3], abs=1e-4)


def test_the_block_has_the_published_size_and_slides_as_its_friction_says():
    model = load("pusht")
    assert model.geom("tee_bar").size == pytest.approx([0.1, 0.025, 0.02])
    assert model.geom("tee_stem").size == pytest.approx([0.025, 0.075, 0.02])
    assert model.body("tee").mass[0] == pytest.approx(0.42)
    assert model.body("tee").ipos == pytest.approx(np.zeros(3), abs=1e-6)
    data = at_home(model)
    mujoco.mj_step(model, data, 240)
    start, speed, friction = data.body("tee").xpos.copy(), 0.5, 0.4
    data.qvel[2:4] = [speed, 0.0]
    mujoco.mj_step(model, data, 480)
    # The table rises by 0.56 degrees along x: mu + 0.0097 in all; 3 % for the softness of contact.
    expected = speed**2 / (2 * (friction + 0.0097) * GRAVITY)
    assert data.body("tee").xpos[0] - start[0] == pytest.approx(expected, rel=0.03)


def test_the_stick_pushes_the_block():
    model = load("pusht")
    data = at_home(model)
    before = data.body("tee").xpos.copy()
    for share in np.linspace(0, 1, 240):
        data.ctrl[:] = [0.28 + 0.2 * share, 0.335]
        mujoco.mj_step(model, data, 2)
    mujoco.mj_step(model, data, 240)
    assert data.qpos[:2] == pytest.approx([0.48, 0.335], abs=4e-3)  # friction over stiffness: 3.3 mm
    assert np.linalg.norm(data.body("tee").xpos - before) > 0.03
