"""A robot file whose actuators have no names is measured, identified, saved and exported like any other."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

import instep
from instep.core.rollout import Script, rollout
from instep.scene import address
from instep.scene.folder import Scene, scene_of_file
from instep.tune import TuneOptions
from instep.tune.param_export import write_mjcf
from small_models import hanging_model

FORE = """
      <body pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.2" armature="0.01"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.3"/>
      </body>
"""
REST = """
  <tendon><fixed><joint joint="elbow" coef="1"/></fixed></tendon>
  <actuator><position joint="shoulder" kp="20"/><position joint="elbow" kp="10"/></actuator>
"""
ARM = hanging_model('damping="0.3"', FORE, REST).replace('name="upper" ', "")
TRUTH = {"actuator.shoulder.kp": 26.0, "actuator.elbow.kp": 8.0}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("unnamed") / "arm.xml"
    path.write_text(ARM)
    return scene_of_file(path, 100.0)


@pytest.fixture(scope="module")
def runs(scene):
    t = np.arange(300)[:, None] * scene.dt
    waves = [np.sin(2 * np.pi * np.array([0.7, 1.1]) * (1 + 0.2 * i) * t) for i in range(3)]
    sim = instep.open_world(scene).tuned(TRUTH)
    return [rollout(sim, Script(0.6 * wave), steps=300, seed=i) for i, wave in enumerate(waves)]


def test_actuators_are_named_after_what_they_drive(scene):
    assert scene.spec.action.labels == ("shoulder", "elbow")
    names = address.addresses(scene.model)
    assert "actuator.elbow.kp" in names and "tendon.tendon0.damping" in names
    assert not [name for name in names if ".." in name]


def test_unnamed_actuators_are_identified_saved_and_exported(scene, runs, tmp_path):
    options = TuneOptions(window=0.5, windows=20, seeds=2, draws=0)
    found = instep.identify(scene, runs, tuple(TRUTH), options)
    assert found.values == pytest.approx(TRUTH, rel=0.02)
    saved = Scene.load(found.save(tmp_path / "scene"))
    assert address.read(saved.model, list(TRUTH)) == pytest.approx(TRUTH, rel=0.02)
    found.export(tmp_path / "export")
    exported = mujoco.MjModel.from_xml_path(str(tmp_path / "export" / "tuned.xml"))
    assert address.read(exported, list(TRUTH)) == pytest.approx(TRUTH, rel=0.02)


def test_an_exported_model_holds_the_delay(scene, tmp_path):
    done = write_mjcf(tmp_path / "tuned.xml", scene, {"action.delay": 0.02, "actuator.elbow.delay": 0.03})
    model = mujoco.MjModel.from_xml_path(str(done.path))
    np.testing.assert_allclose(model.actuator_delay, [0.02, 0.03])
    native, data = mujoco.MjData(model), mujoco.MjData(scene.model)
    native.ctrl[:] = data.ctrl[:] = 0.5
    for _ in range(8):
        mujoco.mj_step(model, native)
        mujoco.mj_step(scene.model, data)
    # After 16 ms the command has not arrived yet where it is delayed by 20 ms.
    assert np.abs(native.qpos).max() < 1e-9 < np.abs(data.qpos).max()
