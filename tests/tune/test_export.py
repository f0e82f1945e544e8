"""What was identified reaches other tools as the same numbers."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import mujoco
import pytest

from instep.core.errors import BadInput
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.param_export import export_all, write_joint_limits, write_mjcf, write_urdf, write_yaml
from instep.tune.shooting import ShootingOptions, fit

SETTINGS = {"joint.hinge.damping": 0.123, "joint.hinge.frictionloss": 0.045, "actuator.hinge.kp": 5.5}
URDF = """<robot name="r"><link name="a"/><link name="b"/>
<joint name="hinge" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="3" velocity="2"/></joint></robot>"""


def test_a_tuned_mjcf_holds_the_settings(servo, tmp_path):
    path = write_mjcf(tmp_path / "tuned.xml", servo.scene, SETTINGS)
    model = mujoco.MjModel.from_xml_path(str(path))
    found = address.read(model, list(SETTINGS))
    for name, value in SETTINGS.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize(
    ("scene", "settings"),
    [
        ("furuta", {"tendon.cable.stiffness": 0.0025, "tendon.cable.dead_band": -0.7, "joint.arm.drag": -1e-6}),
        ("wam7", {"tendon.motor_2.frictionloss": 0.7, "tendon.motor_2.damping": 0.2}),
        ("cube", {"option.impratio": 3.0, "option.gravity": 9.6, "body.cube.com_z": 0.004}),
    ],
)
def test_a_tuned_mjcf_holds_whatever_was_set(scene, settings, tmp_path):
    loaded = Scene.load(scene)
    path = write_mjcf(tmp_path / "tuned.xml", loaded, settings)
    model = mujoco.MjModel.from_xml_string(path.read_text(), dict(loaded.source.files))
    assert address.read(model, list(settings)) == pytest.approx(settings, rel=1e-5)


def test_a_tuned_mjcf_holds_what_gravity_compensation_believes(tmp_path):
    loaded = Scene.load("wam7")
    name = "body.link_4.gravcomp"
    path = write_mjcf(tmp_path / "tuned.xml", loaded, {name: 0.9})
    model = mujoco.MjModel.from_xml_string(path.read_text(), dict(loaded.source.files))
    assert address.read(model, [name]) == pytest.approx({name: 0.9})


def test_a_urdf_gets_damping_and_friction_and_keeps_the_rest(tmp_path):
    (tmp_path / "r.urdf").write_text(URDF)
    path = write_urdf(tmp_path / "tuned.urdf", tmp_path / "r.urdf", {**SETTINGS, "actuator.hinge.force": 7.0})
    joint = ET.parse(path).getroot().find("joint")  # noqa: S314 - written by this test
    assert float(joint.find("dynamics").get("damping")) == pytest.approx(0.123)
    assert float(joint.find("dynamics").get("friction")) == pytest.approx(0.045)
    assert float(joint.find("limit").get("effort")) == pytest.approx(7.0)
    assert joint.find("limit").get("velocity") == "2"
    assert "URDF cannot hold actuator.hinge.kp = 5.5 " in path.read_text()


def test_a_file_that_is_no_urdf_is_refused(tmp_path):
    (tmp_path / "r.urdf").write_text("<robot")
    with pytest.raises(BadInput, match="not a URDF"):
        write_urdf(tmp_path / "out.urdf", tmp_path / "r.urdf", SETTINGS)


def test_yaml_nests_settings_by_kind_part_and_word(tmp_path):
    text = write_yaml(tmp_path / "params.yaml", {**SETTINGS, "action.delay": 0.02}).read_text()
    assert text.splitlines()[:3] == ["joint:", '  "hinge":', "    damping: 0.123"]
    assert "action:" in text and "    delay: 0.02" in text


def test_joint_limits_are_those_of_the_scene(tmp_path):
    text = write_joint_limits(tmp_path / "joint_limits.yaml", Scene.load("arm7"), {}).read_text()
    assert '  "joint_2":\n    has_position_limits: true\n    min_position: -1.8' in text
    assert "max_effort: 120" in text


def test_a_usd_layer_counts_angles_in_degrees(servo, tmp_path):
    import pxr.Usd

    from instep.tune.param_export import write_usd

    stage = pxr.Usd.Stage.Open(str(write_usd(tmp_path / "tuned.usda", servo.scene, SETTINGS, "robot")))
    prim = stage.GetPrimAtPath("/robot/hinge")
    assert "NewtonJointAPI" in prim.GetPrimStack()[0].GetInfo("apiSchemas").prependedItems
    assert prim.GetAttribute("newton:damping").Get() == pytest.approx(0.123 * math.pi / 180, rel=1e-5)
    assert prim.GetAttribute("newton:friction").Get() == pytest.approx(0.045, rel=1e-5)
    assert prim.GetAttribute("drive:angular:physics:stiffness").Get() == pytest.approx(5.5 * math.pi / 180, rel=1e-5)


def test_everything_is_written_into_one_folder(servo, recorded, tmp_path):
    episodes = recorded(servo, {"joint.hinge.damping": 0.1}, range(2), steps=60)
    options = ShootingOptions(window=0.4, starts=1, iterations=4, start={"joint.hinge.damping": 0.05})
    found = fit(servo, episodes, servo.scene.params("joint.hinge.damping"), options)
    files = export_all(tmp_path / "export", servo.scene, found, found.settings)
    assert {"params.json", "tuned.xml", "params.yaml", "joint_limits.yaml"} <= {path.name for path in files}
    entry = json.loads((tmp_path / "export" / "params.json").read_text())["params"]["joint.hinge.damping"]
    assert entry["low"] < entry["value"] < entry["high"]
    assert entry["unit"] == "Nm s/rad"
