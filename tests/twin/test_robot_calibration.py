"""Cameras and joint offsets from points that a robot shows: planted ones are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.folder import Scene
from instep.twin.camera_calibration import PointSighting, calibrate_robot
from instep.twin.pose_solver import moved

ARM = """
<mujoco><worldbody>
  <body name="turret"><joint name="pan" axis="0 0 1" range="-3 3"/><geom size="0.05"/>
    <body name="upper" pos="0 0 0.3"><joint name="lift" axis="0 1 0" range="-3 3"/><geom size="0.05"/>
      <body name="tool" pos="0.3 0 0"><joint name="wrist" axis="0 1 0" range="-3 3"/><geom size="0.03"/>
        <body name="hand" pos="0.1 0 0"><joint name="roll" axis="1 0 0" range="-3 3"/><geom size="0.03"/></body>
  </body></body></body>
</worldbody>
<actuator><position joint="pan"/><position joint="lift"/><position joint="wrist"/><position joint="roll"/></actuator>
</mujoco>
"""
BOARD = np.array([[x, y, 0.0] for x in np.arange(5) * 0.03 for y in np.arange(4) * 0.03])
EYE = look_at(np.array([1.1, 0.3, 0.8]), np.array([0.3, 0.0, 0.3]))


@pytest.fixture
def arm(tmp_path: Path) -> Scene:
    (tmp_path / "arm.xml").write_text(ARM)
    camera = replace(pinhole("eye", (640, 480), 55.0), body_from_camera=EYE)
    return replace(Scene.load(tmp_path / "arm.xml"), cameras={"eye": camera})


def _shown(camera: Camera, world_from_points: Array, places: Array, rng: np.random.Generator) -> Array:
    camera_from_points = np.linalg.inv(camera.body_from_camera) @ world_from_points
    at = places @ camera_from_points[:3, :3].T + camera_from_points[:3, 3]
    return camera.project(at) + rng.normal(0, 0.3, (len(places), 2))


def _links(scene: Scene, q: Array, body: str) -> Array:
    from instep.core.poses import transform
    from instep.scene.model import body_poses

    return np.stack([transform(p) for p in body_poses(scene.model, q)[:, scene.model.body(body).id - 1]])


def test_planted_offsets_of_joints_and_of_a_camera_are_found(arm: Scene) -> None:
    rng, true = np.random.default_rng(5), arm.cameras["eye"]
    read = rng.uniform(-0.6, 0.6, (15, 4))
    offsets = np.radians([1.0, -1.0, 1.0, -1.0])
    hands, table = _links(arm, read + offsets, "hand"), rng.uniform([0, -0.4, 0], [0.6, 0.4, 0], (12, 3))
    tip = 2 * BOARD + np.array([0.05, -0.09, 0.02])
    seen = [PointSighting(tip, _shown(true, T, tip, rng), row, "eye", "hand") for row, T in enumerate(hands)]
    fixed = [PointSighting(table, _shown(true, np.eye(4), table, rng), row, "eye", "world") for row in range(6)]
    off = moved(EYE, np.array([0.003, -0.003, 0.003, 0.005, -0.005, 0.005]))
    given = replace(arm, cameras={"eye": replace(true, body_from_camera=off)})
    found = calibrate_robot(given, read, [*seen, *fixed])
    assert np.degrees([found.offsets[name].value for name in arm.robot]) == pytest.approx(np.degrees(offsets), abs=0.1)
    assert np.linalg.norm(found.cameras["eye"].body_from_camera[:3, 3] - EYE[:3, 3]) < 0.001
    assert not found.weak
    alone = calibrate_robot(given, read, seen)
    assert alone.offsets["pan"].high - alone.offsets["pan"].low > 3 * (
        found.offsets["pan"].high - found.offsets["pan"].low
    )


def test_what_cannot_be_calibrated_is_refused_with_a_reason(arm: Scene) -> None:
    q = np.zeros((6, 4))
    with pytest.raises(UnknownName, match="elbow"):
        calibrate_robot(arm, q, [PointSighting(BOARD, BOARD[:, :2], 0, "eye", "hand")], joints=["elbow"])
    with pytest.raises(UnknownName, match="body"):
        calibrate_robot(arm, q, [PointSighting(BOARD, BOARD[:, :2], 0, "eye", "leg")])
    with pytest.raises(BadInput, match="nothing to calibrate"):
        calibrate_robot(arm, q, [])
