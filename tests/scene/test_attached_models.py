"""MJCF that attaches parts of other models (`<asset><model>`, `<attach>`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep import Scene
from instep.core.errors import BadInput
from instep.scene.new_scene import make_scene

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
FOOT = """<mujoco model="foot"><compiler meshdir="assets" angle="radian"/>
<default><default class="toe"><joint damping="0.3"/></default></default>
<asset><mesh file="toe.obj"/></asset>
<worldbody><body name="b"><joint name="bend" axis="0 1 0" class="toe" range="-1 1"/>
<geom type="mesh" mesh="toe" mass="1"/></body></worldbody>
<actuator><position name="servo" joint="bend" kp="3"/></actuator></mujoco>"""
LEG = """<mujoco><asset><model name="foot" file="{file}"/></asset><worldbody><body name="leg">
<joint name="hip" axis="0 0 1"/><geom size=".1"/>
<attach model="foot" body="b" prefix="left_"/></body></worldbody></mujoco>"""


@pytest.fixture
def leg(tmp_path: Path) -> Path:
    (tmp_path / "foot/assets").mkdir(parents=True)
    (tmp_path / "foot/assets/toe.obj").write_text(TETRAHEDRON)
    (tmp_path / "foot/foot.xml").write_text(FOOT)
    (tmp_path / "leg.xml").write_text(LEG.format(file="foot/foot.xml"))
    return tmp_path / "leg.xml"


def test_an_attached_model_is_part_of_the_scene(leg: Path, tmp_path: Path):
    for scene in (Scene.load(leg), make_scene(leg, tmp_path / "scene").scene):
        model = scene.model
        assert [model.joint(j).name for j in range(model.njnt)] == ["hip", "left_bend"]
        assert model.actuator(0).name == "left_servo" and list(model.dof_damping) == [0.0, 0.3]
        assert list(model.jnt_range[1]) == [-1.0, 1.0] and model.nmesh == 1


def test_what_cannot_be_attached_is_said_in_one_sentence(leg: Path):
    leg.write_text(LEG.format(file="../foot.xml"))
    with pytest.raises(BadInput, match="lies outside"):
        Scene.load(leg)
    leg.write_text(LEG.format(file="leg.xml"))
    with pytest.raises(BadInput, match="attaches itself"):
        Scene.load(leg)
    leg.write_text(LEG.format(file="foot/foot.xml").replace('body="b"', 'body="c"'))
    with pytest.raises(BadInput, match=r"MuJoCo cannot attach the models that leg\.xml names: .*'c'"):
        Scene.load(leg)
