"""The automatic selection on an arm whose gripper is coupled and driven through a tendon, and on switched motors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import instep
from instep.core.rollout import Script, rollout
from instep.core.world import vector
from instep.scene.folder import scene_of_file
from instep.tune.param_selection import auto_params
from small_models import gripper_model


@pytest.fixture
def recorded(tmp_path):
    (tmp_path / "arm.xml").write_text(gripper_model())
    scene = scene_of_file(tmp_path / "arm.xml", 100.0)
    t = np.arange(100)[:, None] * scene.dt
    waves = np.array([0.0, 127.0]) + np.array([0.6, 90.0]) * np.sin(2 * np.pi * np.array([0.7, 1.0]) * t)
    return scene, rollout(instep.open_world(scene), Script(waves), steps=100)


def test_coupled_fingers_and_their_tendon_are_identified_once(recorded):
    scene, run = recorded
    choice = auto_params(scene, [run])
    names = [param.address for param in choice.params]
    assert len(set(names)) == len(names)
    assert {"actuator.grip.kp", "actuator.grip.kv", "joint.left.damping"} <= set(names)
    assert not [name for name in names if name.startswith("joint.right")]
    assert "actuator.motor1.kv" in names and not [name for name in choice.fixed if name.endswith(".kv")]


def test_command_limits_and_gains_are_those_of_powered_rows(recorded):
    scene, run = recorded
    spec = run.spec
    inputs = np.ones((len(run), 1))
    inputs[50:] = 0.0
    off = replace(run.with_columns({"inputs": inputs}), spec=replace(spec, inputs=vector(["motor1.enable"], "1")))
    choice = auto_params(scene, [off])
    names = [param.address for param in choice.params]
    assert "actuator.motor1.kv" in names and "actuator.motor1.kv" not in choice.fixed
    assert choice.initial["joint.shoulder.damping"] == pytest.approx(0.3)
