"""What was identified reaches other tools as the same numbers."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import mujoco
import numpy as np
import pytest

from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.param_export import export_all, write_joint_limits, write_mjcf, write_urdf, write_usd

SETTINGS = {"joint.hinge.damping": 0.123, "joint.hinge.frictionloss": 0.045, "actuator.hinge.kp": 5.5}
URDF = """<robot name="r"><link name="a"/><link name="b">
<inertial><origin xyz="0.1 0 0.2" rpy="0.3 -0.4 0.5"/><mass value="1.5"/>
<inertia ixx="0.02" ixy="0.003" ixz="0" iyy="0.03" iyz="0.001" izz="0.04"/></inertial></link>
<joint name="hinge" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="3" velocity="2"/></joint></robot>"""


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
    path = write_mjcf(tmp_path / "tuned.xml", loaded, settings).path
    model = mujoco.MjModel.from_xml_string(path.read_text(), dict(loaded.source.files))
    assert address.read(model, list(settings)) == pytest.approx(settings, rel=1e-5)


def test_a_urdf_gets_damping_friction_and_inertia_keeps_the_rest_and_names_what_it_has_no_field_for(tmp_path):
    (tmp_path / "r.urdf").write_text(URDF)
    scene = Scene.load(tmp_path / "r.urdf")
    settings = {
        **SETTINGS, "actuator.hinge.force": 7.0, "joint.hinge.armature": 0.02, "action.delay": 0.0123,
        "body.b.mass": 2.5,
    }  # fmt: skip
    done = write_urdf(tmp_path / "tuned.urdf", tmp_path / "r.urdf", scene, settings)
    root = ET.parse(done.path).getroot()  # noqa: S314 - written by this test
    joint = root.find("joint")
    assert float(joint.find("dynamics").get("damping")) == pytest.approx(0.123)
    assert float(joint.find("dynamics").get("friction")) == pytest.approx(0.045)
    assert float(joint.find("limit").get("effort")) == pytest.approx(7.0)
    assert joint.find("limit").get("velocity") == "2"
    assert set(done.notes) == {"actuator.hinge.kp", "joint.hinge.armature", "action.delay"}
    assert all(name in done.path.read_text().partition("<link")[0] for name in done.notes), "named in a comment"
    assert {p.get("address"): float(p.get("value")) for p in root.iter("param")} == pytest.approx(settings)
    model = mujoco.MjModel.from_xml_path(str(done.path))
    tuned = address.write(scene.model, {"body.b.mass": 2.5})
    assert model.body("b").mass[0] == pytest.approx(2.5)
    assert model.body("b").ipos == pytest.approx(tuned.body("b").ipos, rel=1e-6)
    assert _inertia(model) == pytest.approx(_inertia(tuned), rel=1e-5, abs=1e-9)


def _inertia(model: mujoco.MjModel) -> np.ndarray:
    """Inertia of the last body about its centre of mass, in the axes of the body [3, 3]."""
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, model.body_iquat[-1])
    return rotation.reshape(3, 3) @ np.diag(model.body_inertia[-1]) @ rotation.reshape(3, 3).T


def test_joint_limits_are_those_of_the_scene(tmp_path):
    text = write_joint_limits(tmp_path / "joint_limits.yaml", Scene.load("arm7"), {}).read_text()
    assert '  "joint_2":\n    has_position_limits: true\n    min_position: -1.8' in text
    assert "max_effort: 120" in text


def test_a_usd_layer_counts_angles_in_degrees(servo, tmp_path):
    import pxr.Usd

    settings = {**SETTINGS, "action.delay": 0.0123, "body.link.mass": 0.7}
    done = write_usd(tmp_path / "tuned.usda", servo.scene, settings, "robot")
    stage = pxr.Usd.Stage.Open(str(done.path))
    prim = stage.GetPrimAtPath("/robot/hinge")
    assert "NewtonJointAPI" in prim.GetPrimStack()[0].GetInfo("apiSchemas").prependedItems
    assert prim.GetAttribute("newton:damping").Get() == pytest.approx(0.123 * math.pi / 180, rel=1e-5)
    assert prim.GetAttribute("newton:friction").Get() == pytest.approx(0.045, rel=1e-5)
    assert prim.GetAttribute("drive:angular:physics:stiffness").Get() == pytest.approx(5.5 * math.pi / 180, rel=1e-5)
    assert stage.GetPrimAtPath("/robot/link").GetAttribute("physics:mass").Get() == pytest.approx(0.7, rel=1e-5)
    assert done.notes == ("action.delay",) and "action.delay" in stage.GetRootLayer().documentation
    assert stage.GetDefaultPrim().GetCustomDataByKey("instep:settings") == pytest.approx(settings)


def test_everything_is_written_into_one_folder(servo, recorded, tmp_path):
    episodes = recorded(servo, {"joint.hinge.damping": 0.1}, range(2), steps=60)
    options = ShootingOptions(window=0.4, guesses=1, iterations=4, initial={"joint.hinge.damping": 0.05})
    found = fit(servo, episodes, servo.scene.params("joint.hinge.damping"), options)
    done = export_all(tmp_path / "export", servo.scene, found, {**found.settings, "action.delay": 0.01})
    assert {"params.json", "tuned.xml", "joint_limits.yaml"} <= {path.name for path in done.paths}
    content = json.loads((tmp_path / "export" / "params.json").read_text())
    assert content["settings"]["action.delay"] == 0.01
    entry = content["params"]["joint.hinge.damping"]
    assert entry["low"] < entry["value"] < entry["high"]
    assert entry["unit"] == "Nm s/rad"


def test_what_mjcf_has_no_field_for_is_a_note_that_the_file_and_the_readme_name(tmp_path):
    scene = Scene.load("servo_pendulum")
    settings = {
        "actuator.servo.kt": 0.41,
        "joint.servo.static": 0.02,
        "action.delay": 0.0123,
        "joint.servo.armature": 0.003,
    }
    done = write_mjcf(tmp_path / "tuned.xml", scene, settings)
    assert {"actuator.servo.kt", "joint.servo.static"} <= set(done.notes)
    assert not {"action.delay", "joint.servo.armature"} & set(done.notes)
    model = mujoco.MjModel.from_xml_path(str(done.path))
    assert model.numeric("instep:actuator.servo.kt").data[0] == pytest.approx(0.41)
    assert model.actuator_delay[0] == pytest.approx(0.0123) and model.actuator_history[0, 0] > 0
    first = done.path.read_text().partition("<mujoco")[0]
    assert "actuator.servo.kt" in first and "action.delay" not in first


def test_an_exported_mjcf_of_a_robot_with_meshes_opens_from_its_folder(tmp_path):
    scene = Scene.load("so101")
    done = write_mjcf(tmp_path / "tuned.xml", scene, {"actuator.gripper.kp": 700.0, "action.delay": 0.02})
    model = mujoco.MjModel.from_xml_path(str(done.path))
    assert address.read(model, ["actuator.gripper.kp"]) == pytest.approx({"actuator.gripper.kp": 700.0}, rel=1e-5)
    assert done.notes == () and model.actuator_delay == pytest.approx(0.02)


def test_every_parameter_of_an_arm_is_in_the_mjcf_or_named(tmp_path):
    scene = Scene.load("arm7")
    settings = {
        param.address: float(param.from_unit(0.4))
        for param in scene.params("joint.joint_*", "actuator.*", "body.link_3.*", "geom.*.friction", "action.delay")
        if not param.address.endswith((".delay", "low", "high")) or param.address == "action.delay"
    }
    done = write_mjcf(tmp_path / "tuned.xml", scene, settings)
    model = mujoco.MjModel.from_xml_path(str(done.path))
    found = address.read(model, [name for name in settings if name not in done.notes])
    assert found == pytest.approx({name: settings[name] for name in found}, rel=1e-4, abs=1e-8)
    for name in done.notes:
        assert model.numeric(f"instep:{name}").data[0] == pytest.approx(settings[name], rel=1e-4), name
    assert len(done.notes) < len(settings) / 10, done.notes


def test_an_inertia_that_no_body_can_have_alone_is_exported_with_larger_ones_beside_it(tmp_path):
    scene = Scene.load("chaotic_pendulum")
    body = scene.model.body("upper_bar").id
    planted = 1.5 * float(scene.model.body_inertia[body].sum())
    exported = write_mjcf(tmp_path / "tuned.xml", scene, {"body.upper_bar.inertia_y": planted})
    opened = mujoco.MjModel.from_xml_string(exported.path.read_text())
    x, y, z = np.sort(opened.body("upper_bar").inertia)
    assert z == pytest.approx(planted, rel=1e-3) and x + y >= z and exported.notes == ()
    assert "upper_bar" in exported.path.read_text().splitlines()[0]
