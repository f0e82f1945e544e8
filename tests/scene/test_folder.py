"""Scenes from folders and from robot files."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from instep import MujocoWorld, Scene, open_world
from instep.core.errors import BadInput, UnknownName
from instep.scene import folder as scene_folder
from instep.scene.folder import load_scene
from instep.scene.new_scene import make_scene

ROBOT = """<mujoco><option timestep="0.002"/><worldbody>
<camera name="eye" pos="0 -1 0" xyaxes="1 0 0 0 0 1" fovy="90" resolution="100 50"/>
<body name="arm"><joint name="elbow" range="-1 1" limited="true"/><geom size=".1"/>
<body name="hand" pos=".2 0 0"><joint axis="0 1 0"/><geom size=".05"/></body></body>
<body name="cube" pos="0 0 1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
</worldbody><actuator><position name="elbow" joint="elbow" kp="5"/><motor joint="hand_joint"/></actuator></mujoco>"""
NAMED = ROBOT.replace('<joint axis="0 1 0"/>', '<joint name="hand_joint" axis="0 1 0"/>')
URDF = """<robot name="bob"><link name="base"/><link name="rod"><inertial><mass value="1"/><origin xyz="0 0 -0.5"/>
<inertia ixx="0.1" iyy="0.1" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
<collision><geometry><mesh filename="package://bob/rod.obj"/></geometry></collision></link>
<joint name="swing" type="revolute"><parent link="base"/><child link="rod"/><axis xyz="0 1 0"/>
<limit lower="-2" upper="2" effort="3" velocity="5"/></joint></robot>"""
TETRAHEDRON = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def folder(tmp_path: Path, toml: str, xml: str = NAMED) -> Path:
    (tmp_path / "scene.xml").write_text(xml)
    (tmp_path / "scene.toml").write_text(toml)
    return tmp_path


def test_parts_without_a_name_get_one(tmp_path):
    (tmp_path / "robot.xml").write_text(NAMED)
    scene = Scene.load(tmp_path / "robot.xml")
    assert scene.spec.action.labels == ("elbow", "hand_joint")
    assert scene.spec.q.labels[:2] == ("elbow", "hand_joint") and scene.spec.q.labels[2] == "cube.x"
    assert scene.model.geom(0).name == "arm_geom"


def test_units_follow_the_actuators(tmp_path):
    scene = Scene.load(folder(tmp_path, '[robot]\njoints = ["elbow"]\n'))
    assert scene.spec.action.units == ("rad", "Nm")
    (tmp_path / "scene.toml").write_text('[robot]\njoints = ["elbow"]\naction_unit = "V"\n')
    assert Scene.load(tmp_path).spec.action.units == ("V", "V")


def test_a_start_is_drawn_inside_its_ranges_and_the_same_for_both_engines(tmp_path):
    toml = (
        '[objects]\nbodies = ["cube"]\n[start]\n"cube.x" = [1.0, 2.0]\n"cube.yaw" = [-3.0, 3.0]\nelbow = [0.5, 0.6]\n'
    )
    scene = Scene.load(folder(tmp_path, toml))
    starts = np.stack([scene.start(seed)[0] for seed in range(50)])
    assert ((starts[:, 2] >= 1) & (starts[:, 2] <= 2)).all() and np.ptp(starts[:, 2]) > 0.5
    assert ((starts[:, 0] >= 0.5) & (starts[:, 0] <= 0.6)).all()
    assert np.linalg.norm(starts[:, 5:9], axis=1) == pytest.approx(np.ones(50))
    assert np.array_equal(scene.start(3)[0], scene.start(3)[0])


def test_a_camera_projects_as_opencv_does(tmp_path):
    scene = Scene.load(folder(tmp_path, "[cameras.eye]\ndistortion = [0.1]\n"))
    camera = scene.cameras["eye"]
    # 90 degrees over 50 rows: a point as far up as it is ahead lies on the upper edge.
    assert camera.focal == pytest.approx((25.0, 25.0)) and camera.centre == (50.0, 25.0)
    world_from_camera = camera.body_from_camera
    above = np.linalg.inv(world_from_camera) @ np.array([0.0, 1.0, 2.0, 1.0])
    assert above[:3] == pytest.approx([0.0, -2.0, 2.0])
    assert camera.project(above[:3])[1] == pytest.approx(25 - 25 * 1.1)


def test_settings_of_a_scene_are_written_into_its_model(tmp_path):
    scene = Scene.load(folder(tmp_path, '[settings]\n"body.cube.mass" = 7.0\n'))
    assert scene.model.body("cube").mass[0] == 7.0


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("rate = 60.0\n", "a whole number was expected"),
        ("rate = -1\n", "above 0"),
        ('[objects]\nbodies = ["arm"]\n', "no free joint"),
        ('[objects]\nbodies = ["cub"]\n', "Did you mean 'cube'"),
        ('[start]\nkeyframe = "hom"\n', "no keyframe named 'hom'"),
        ('[start]\n"cube.yav" = [0, 1]\n', "Did you mean 'cube.yaw'"),
        ("[start]\nelbow = [0]\n", r"must be \[low, high\]"),
        ("[cameras.ey]\n", "Did you mean 'eye'"),
        ('[settings]\n"body.cubb.mass" = 1.0\n', "Did you mean 'body.cube.mass'"),
        ('[robot]\njoints = ["elbow"]\ntip = "nose"\n', "no site named 'nose'"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, toml, said):
    with pytest.raises((BadInput, UnknownName), match=said):
        Scene.load(folder(tmp_path, toml))


def test_a_scene_made_from_a_robot_moves_like_the_robot(tmp_path):
    (tmp_path / "robot.xml").write_text(NAMED)
    made = make_scene(tmp_path / "robot.xml", tmp_path / "scene")
    one, two = MujocoWorld(tmp_path / "robot.xml"), MujocoWorld(made.scene)
    a, b = one.reset(0), two.reset(0)
    for _ in range(20):
        a, b = one.step(a, np.array([0.5, 0.1])), two.step(b, np.array([0.5, 0.1]))
    assert np.array_equal(a.q, b.q) and made.servos == 0


def test_a_urdf_finds_its_packages_and_gets_servos(tmp_path):
    (tmp_path / "bob.urdf").write_text(URDF)
    (tmp_path / "rod.obj").write_text(TETRAHEDRON)
    made = make_scene(tmp_path / "bob.urdf", tmp_path / "scene")
    assert made.servos == 1 and made.scene.spec.action.labels == ("swing",)
    assert made.scene.model.actuator_forcerange[0].tolist() == [-3.0, 3.0]
    assert (tmp_path / "scene" / "assets").is_dir()


def test_a_link_of_a_urdf_without_collision_shapes_is_shown_by_its_plain_visual_shapes():
    arm = Scene.load(Path(__file__).resolve().parents[2] / "examples" / "own_arm" / "arm.urdf").model
    assert arm.ngeom == 2 and not arm.geom_contype.any() and not arm.geom_conaffinity.any()
    assert arm.body_mass.tolist() == [0.0, 1.2, 0.7]  # as the file says, not by the volume of shapes


def test_a_urdf_does_not_climb_out_of_its_folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "rod.obj").write_text(TETRAHEDRON)
    (tmp_path / "in" / "bob.urdf").write_text(URDF.replace("package://bob/rod.obj", "package://bob/../../rod.obj"))
    with pytest.raises(BadInput, match="outside"):
        Scene.load(tmp_path / "in" / "bob.urdf")


def test_all_robot_descriptions_compile_as_scenes(models):
    found = sorted(models.glob("*/*.xml"))
    assert found
    for path in found:
        world = MujocoWorld(Scene.load(path))
        state = world.step(world.reset(0), world.scene.rest_action())
        assert np.isfinite(state.q).all(), path


def test_a_urdf_loaded_as_it_is_has_the_same_servos_and_the_rate_of_its_log(tmp_path):
    (tmp_path / "bob.urdf").write_text(URDF)
    (tmp_path / "rod.obj").write_text(TETRAHEDRON)
    made = make_scene(tmp_path / "bob.urdf", tmp_path / "scene")
    scene = load_scene(tmp_path / "bob.urdf", rate=100.0)
    assert scene.spec.action.labels == ("swing",) and scene.dt == pytest.approx(0.01)
    assert scene.model.actuator_gainprm[0, 0] == made.scene.model.actuator_gainprm[0, 0]
    assert scene.model.opt.integrator == made.scene.model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    with pytest.raises(BadInput, match="a whole number was expected"):
        load_scene(tmp_path / "bob.urdf", rate=70.0)
    with pytest.raises(BadInput, match=r"scene\.toml"):
        load_scene(tmp_path / "scene", rate=100.0)


def test_the_model_with_a_delay_is_compiled_once(monkeypatch):
    scene, compiled = Scene.load("pusht"), []
    real = scene_folder.compile_model
    monkeypatch.setattr(scene_folder, "compile_model", lambda *a, **k: compiled.append(1) or real(*a, **k))
    for delay in (0.01, 0.02, 0.03):
        open_world(scene).tuned({"action.delay": delay})
    assert len(compiled) == 1
    assert scene.delayed_model().actuator_delay.max() == 0.0, "the shared model keeps its own delay"
