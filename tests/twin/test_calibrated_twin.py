"""A calibration is kept by what refines cameras and used as it is by the next twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import UnknownName
from instep.physics.mujoco_cameras import render_cameras
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.camera_files import Calibration, load_calibration
from instep.twin import TwinOptions, open_twin, track_recording
from instep.twin.camera_rig import IMAGES, recorded_cameras
from instep.twin.pose_solver import moved

from .conftest import RenderedRecording

ROWS = 24
OFF = np.array([0.02, -0.015, 0.01, 0.01, -0.01, 0.01])


def test_a_recording_is_tracked_by_the_calibrated_cameras(recording: RenderedRecording, tmp_path: Path) -> None:
    scene, episode = recording.scene, recording.episode.rows(0, ROWS)
    Calibration(scene.cameras, {"tee": np.ones(3)}).save(tmp_path / "cameras.json")
    off = {n: replace(c, body_from_camera=moved(c.body_from_camera, OFF)) for n, c in scene.cameras.items()}
    options = TwinOptions(calibration=load_calibration(tmp_path / "cameras.json"))
    tracked = track_recording(Calibration(off).on(scene), episode, options)
    found = tracked.overlaps()
    assert min(found.score(name).value for name in scene.cameras) > 0.9
    assert not any("refining" in name for name in tracked.scores(found))
    assert tracked.calibration is options.calibration
    assert np.linalg.norm(tracked.poses[-1, :3] - episode.q[-1, 2:5]) < 0.005


def test_a_camera_is_known_though_the_recording_puts_something_before_its_name(recording: RenderedRecording) -> None:
    scene, episode = recording.scene, recording.episode.rows(0, 2)
    names = list(scene.cameras)
    short = Calibration({f"serial{i}": replace(c, name=f"serial{i}") for i, c in enumerate(scene.cameras.values())})
    other = replace(scene, cameras={})
    columns = {
        name.replace(f"{IMAGES}{old}", f"{IMAGES}cam_serial{i}"): episode[name]
        for i, old in enumerate(names)
        for name in episode.columns
        if name.startswith(f"{IMAGES}{old}")
    }
    renamed = Episode(episode.spec, {"q": episode.q, "action": episode.action, **columns})
    assert [c.name for c in recorded_cameras(short.on(other), renamed)] == [f"cam_serial{i}" for i in range(len(names))]
    with pytest.raises(UnknownName, match="no camera of the scene named 'cam_serial0'"):
        recorded_cameras(Calibration({"top0": next(iter(scene.cameras.values()))}).on(other), renamed)


def test_a_live_twin_takes_cameras_and_sizes_from_the_calibration(recording: RenderedRecording) -> None:
    scene, size = recording.scene, np.array([1.05, 0.95, 1.0])
    name, camera = next(iter(scene.cameras.items()))
    other = replace(camera, body_from_camera=moved(camera.body_from_camera, OFF))
    options = TwinOptions(calibration=Calibration({name: other}, {"tee": size}))
    robot = render_cameras(MujocoWorld(scene), scene)
    filtered = open_twin(scene, robot, options).correct
    assert next(c for c in filtered.rig.cameras if c.name == name) is other
    plain = open_twin(scene, robot).correct
    assert np.allclose(filtered.outline("tee").corners, plain.outline("tee").corners * size)
