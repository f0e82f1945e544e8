"""Values that no robot has are refused by name, and a model from outside is compiled by another process first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep import MujocoWorld, Script
from instep.core.errors import BadInput, Diverged
from instep.core.rollout import run_policy
from instep.scene import model as compiling
from instep.scene.folder import Scene
from instep.scene.model import compile_model
from instep.scene.model_limits import bounds_of
from instep.scene.model_source import ModelSource, read_source

ROBOT = """<mujoco><option timestep="0.002"/><worldbody><body name="arm" pos="0 0 1">
<joint name="hinge" axis="0 1 0" damping="0.1" armature="0.01"/>
<geom name="rod" size="0.1" mass="1"/></body></worldbody>
<actuator><position name="hinge" joint="hinge" kp="20"/></actuator></mujoco>"""
ABSURD = {
    'damping="0.1"': ("-1", "1e39", "nan", "nan(7)", "1e400"), 'armature="0.01"': ("-1", "1e39"),
    'mass="1"': ("1e39", "nan(ind)", "inf"), 'size="0.1"': ("1e39", "nan"), 'kp="20"': ("1e35",),
    'timestep="0.002"': ("1e-12", "1000"), 'pos="0 0 1"': ("0 0 1e30", "0 0 nan(1)"),
}  # fmt: skip


@pytest.mark.parametrize(("attribute", "value"), [(a, value) for a, values in ABSURD.items() for value in values])
def test_absurd_values_are_refused_in_one_sentence(tmp_path: Path, attribute: str, value: str):
    (tmp_path / "robot.xml").write_text(ROBOT.replace(attribute, f'{attribute.split("=")[0]}="{value}"'))
    with pytest.raises(BadInput, match=r"robot\.xml") as error:
        compile_model(read_source(tmp_path / "robot.xml"))
    assert "\n" not in str(error.value)


def test_a_value_outside_its_limits_is_named_with_its_owner():
    with pytest.raises(BadInput, match="has dof_damping of 'hinge' = -3; between 0 and 1e"):
        compile_model(ModelSource(Path("robot.xml"), ROBOT.replace('damping="0.1"', 'damping="-3"')))


def test_settings_that_no_robot_has_are_refused(tmp_path: Path):
    (tmp_path / "robot.xml").write_text(ROBOT)
    for value in ("-1.0", "1e14"):
        text = f'model = "robot.xml"\nrate = 50.0\n[settings]\n"joint.hinge.damping" = {value}\n'
        (tmp_path / "scene.toml").write_text(text)
        with pytest.raises(BadInput, match="dof_damping of 'hinge'"):
            Scene.load(tmp_path)


def test_a_model_from_outside_is_compiled_elsewhere_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "robot.xml").write_text(ROBOT.replace('mass="1"', 'mass="1.2345"'))
    asked: list[str] = []
    monkeypatch.setattr(compiling._COMPILER, "check", lambda job, name: asked.append(name))
    for _ in range(2):
        Scene.load(tmp_path / "robot.xml")
        compiling._CHECKED.clear()
    assert asked == [str(tmp_path / "robot.xml")], "the second time its verdict is known"
    Scene.load("cartpole")
    assert len(asked) == 1, "shipped scenes are not checked"


def test_a_model_that_cannot_be_compiled_is_refused_elsewhere(tmp_path: Path):
    (tmp_path / "robot.xml").write_text(ROBOT.replace('joint="hinge"', 'joint="elbow"'))
    with pytest.raises(BadInput, match=r"MuJoCo cannot compile robot\.xml"):
        Scene.load(tmp_path / "robot.xml")


LIMITED = ROBOT.replace('axis="0 1 0"', 'axis="0 1 0" range="-1 1" limited="true"')


def test_a_simulation_in_a_state_that_the_scene_cannot_reach_ends_with_one_sentence(tmp_path: Path):
    (tmp_path / "arm.xml").write_text(LIMITED)
    world = MujocoWorld(Scene.load(str(tmp_path / "arm.xml")))
    bounds = bounds_of(world)
    assert bounds is not None
    rest = Script(world.scene.rest_action()[None])
    assert run_policy(world, rest, steps=20, watch=[bounds]) == "steps"
    for q, v, words in ((1e3, 0.0, "hinge is at 1e\\+03"), (0.0, 1e6, "velocity 0 is 1e\\+06")):
        state = world.place(np.array([q]), np.array([v]))
        with pytest.raises(Diverged, match=f"^In scene 'arm' the simulation diverged at t = 0 s: {words}"):
            bounds(state, {}, np.zeros(1))
    assert bounds.possible(np.zeros((3, 1)), np.array([[0.0], [np.nan], [1e9]])).tolist() == [True, False, False]


def test_bodies_may_fall_for_long_and_shafts_may_turn_often():
    for name in ("pusht", "furuta"):
        world = MujocoWorld(name)
        bounds, state = bounds_of(world), world.reset()
        assert bounds is not None
        free = [k for k, label in enumerate(world.spec.q.labels) if label.endswith(".z")]
        q = state.q.copy()
        q[free] -= 10_000.0
        assert bounds.possible(q, state.v + 400.0)
