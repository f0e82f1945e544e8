"""The gate lets a sound policy through, and stops one that passes in a single engine or in engines that disagree."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from instep import BadInput, MujocoWorld, RapierWorld, UnknownName
from instep.core.world import Array, Channel, Observation, State
from instep.evaluate.evaluation import PolicySpec, WorldSpec
from instep.evaluate.policy_gate import (
    GateRule,
    GateRules,
    Variation,
    gate_policy,
    gate_rules_from,
    read_gate_rules,
    write_junit,
)
from instep.policy.policy_specs import FunctionPolicy
from instep.scene.folder import Scene
from instep.scene.tasks.task import NO_GOAL, WithoutGoal

ARM = """
<mujoco model="arm">
  <compiler angle="radian"/>
  <option timestep="0.005" gravity="0 0 0"/>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" axis="0 0 1" damping="0.5" armature="0.05"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="1"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" axis="0 0 {axis}" damping="0.5" armature="0.05"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.5"/>
        <site name="tip" pos="{reach} 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>{actuators}</actuator>
  <keyframe><key name="home" qpos="0.1 0.2" ctrl="0.1 0.2"/></keyframe>
</mujoco>
"""
SHOULDER = '<position name="{name}" joint="shoulder" kp="{kp}" kv="5" ctrlrange="-3 3"/>'
ELBOW = '<position name="{name}" joint="elbow" kp="{kp}" kv="5" ctrlrange="-3 3"/>'
SOUND = SHOULDER.format(name="shoulder", kp=40) + ELBOW.format(name="elbow", kp=40)
TOML = """
rate = 50
[robot]
joints = ["shoulder", "elbow"]
tip = "tip"
[start]
keyframe = "home"
"shoulder" = [-0.5, 0.5]
"""


@dataclass(frozen=True)
class Straighten(WithoutGoal):
    """Bring both joints to zero."""

    name: str = "straighten"
    text: str = "Straighten the arm."
    seconds: float = 3.0
    dwell: float = 0.1
    events: tuple[str, ...] = ("straight",)
    failures: tuple[str, ...] = ()
    goal_channel: Channel = NO_GOAL

    def conditions(self, state: State, goal: Array) -> Array:
        return (np.abs(state.q) < 0.03).all(axis=-1)[..., None]

    def failed(self, state: State, goal: Array) -> Array:
        return np.zeros((*state.batch, 0), bool)

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        return np.exp(-np.abs(state.q).sum(axis=-1))


def scene(folder: Path, *, actuators: str = SOUND, axis: int = 1, reach: float = 0.3) -> Scene:
    folder.mkdir()
    (folder / "scene.xml").write_text(ARM.format(actuators=actuators, axis=axis, reach=reach))
    (folder / "scene.toml").write_text(TOML)
    return Scene.load(folder)


def side(engine: type, scene: Scene, name: str) -> tuple[WorldSpec, Scene]:
    return WorldSpec(name, partial(engine, scene)), scene


def straight(world: object) -> FunctionPolicy:
    return FunctionPolicy(lambda seen: np.zeros(np.shape(seen["observation.state"])))


def overfit(world: object) -> FunctionPolicy:
    """Moves only where positions have digits that single precision lacks: an accident of one engine."""

    def act(seen: Observation) -> Array:
        q = np.asarray(seen["observation.state"])
        rounded = ((q == q.astype(np.float32)) & (np.abs(q - [[0.1, 0.2]]) > 1e-3)).any(axis=-1, keepdims=True)
        return np.where(rounded, 0.5, 0.0) * np.ones(2)

    return FunctionPolicy(act)


RULES = GateRules(
    "arm", (GateRule("success", at_least=0.8), GateRule("gap", at_most=0.2, by="value")), seeds=24, batch=24
)


def test_a_sound_policy_passes(tmp_path):
    arm = scene(tmp_path / "arm")
    sides = [side(MujocoWorld, arm, "mujoco"), side(RapierWorld, arm, "rapier")]
    verdict = gate_policy(PolicySpec("straight", straight), RULES, sides, Straighten())
    assert verdict.passed, verdict.words
    assert "passes" in verdict.words
    assert {one.group for one in verdict.checks} == {"parity of mujoco and rapier", "nominal"}


def test_a_policy_that_passes_in_one_engine_only_does_not_pass(tmp_path):
    arm = scene(tmp_path / "arm")
    sides = [side(MujocoWorld, arm, "mujoco"), side(RapierWorld, arm, "rapier")]
    verdict = gate_policy(PolicySpec("overfit", overfit), RULES, sides, Straighten())
    broken = [one.name for one in verdict.checks if not one.passed]
    assert broken == ["success in rapier", "gap between mujoco and rapier"]
    assert "success in rapier" in verdict.words


@pytest.mark.parametrize(
    ("changed", "check", "words"),
    [
        (
            {"actuators": ELBOW.format(name="elbow", kp=40) + SHOULDER.format(name="shoulder", kp=40)},
            "order",
            "action 0 is 'shoulder' in first and 'elbow' in second",
        ),
        (
            {"actuators": ELBOW.format(name="shoulder", kp=40) + SHOULDER.format(name="elbow", kp=40)},
            "order",
            "'shoulder' moves 'shoulder' in first, but 'elbow' in second",
        ),
        (
            {"actuators": SHOULDER.format(name="shoulder", kp=40) + ELBOW.format(name="elbow", kp=40 * 180 / np.pi)},
            "gain",
            "'elbow' starts .* times as fast",
        ),
        (
            {"actuators": SHOULDER.format(name="shoulder", kp=40) + ELBOW.format(name="elbow", kp=40 * np.pi / 180)},
            "gain",
            "'elbow' moves .* times as far",
        ),
        (
            {
                "actuators": SHOULDER.format(name="shoulder", kp=40)
                + '<motor name="elbow" joint="elbow" ctrlrange="-3 3"/>'
            },
            "units",
            "'elbow' is in rad in first and in Nm in second",
        ),
        ({"reach": 0.32}, "frame", "'tip' is 20 mm apart"),
        (
            {"actuators": SHOULDER.format(name="shoulder", kp=40) + ELBOW.format(name="wrist", kp=40)},
            "names",
            "'elbow' is in one of first, second only",
        ),
    ],
)
def test_engines_that_disagree_stop_the_gate_and_name_the_culprit(tmp_path, changed, check, words):
    good, bad = scene(tmp_path / "good"), scene(tmp_path / "bad", **changed)
    sides = [side(MujocoWorld, good, "first"), side(MujocoWorld, bad, "second")]
    verdict = gate_policy(PolicySpec("straight", straight), RULES, sides, Straighten())
    assert not verdict.passed
    broken = [one for one in verdict.checks if not one.passed]
    assert check in {one.name for one in broken}
    assert any(re.search(words, one.words) for one in broken), [one.words for one in broken]
    assert not verdict.evaluations, "no policy is judged where engines disagree"


def test_rules_hold_in_each_variation_or_in_the_one_they_name(tmp_path):
    arm = scene(tmp_path / "arm")
    sides = [side(MujocoWorld, arm, "mujoco"), side(RapierWorld, arm, "rapier")]
    rules = replace(
        RULES,
        rules=(GateRule("success", at_least=0.8), GateRule("seconds", at_most=0.001, by="value", variation="stiff")),
        variations=(Variation(), Variation("stiff", 2, ("joint.*.damping=0.4..0.8",))),
    )
    verdict = gate_policy(PolicySpec("straight", straight), rules, sides, Straighten())
    broken = {(one.group, one.name) for one in verdict.checks if not one.passed}
    assert broken == {("stiff", "seconds in mujoco"), ("stiff", "seconds in rapier")}
    assert set(verdict.evaluations) == {"nominal", "stiff"}


def test_limits_of_safety_are_on_the_worst_that_happened(tmp_path):
    arm = scene(tmp_path / "arm")
    rules = replace(
        RULES, rules=(GateRule("speed", at_most=0.05), GateRule("beyond", at_most=0.0), GateRule("jump", at_most=1.0))
    )
    verdict = gate_policy(PolicySpec("straight", straight), rules, [side(MujocoWorld, arm, "mujoco")], Straighten())
    assert [one.passed for one in verdict.checks] == [False, True, True]
    rows = verdict.evaluations["nominal"].results["straight", "mujoco"]
    assert verdict.checks[0].value.value == max(row.speed for row in rows)


def test_junit_opens_and_counts(tmp_path):
    arm = scene(tmp_path / "arm")
    sides = [side(MujocoWorld, arm, "mujoco"), side(RapierWorld, arm, "rapier")]
    verdict = gate_policy(PolicySpec("over<fit>\x1b", overfit), RULES, sides, Straighten())
    root = ElementTree.parse(write_junit(tmp_path / "junit.xml", verdict)).getroot()  # noqa: S314
    assert root.tag == "testsuites"
    assert int(root.get("tests")) == len(verdict.checks) == len(root.findall(".//testcase"))
    assert int(root.get("failures")) == len(root.findall(".//failure")) == 2
    assert [suite.get("name") for suite in root] == ["parity of mujoco and rapier", "nominal"]


def test_rules_are_read_from_toml(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        'scene = "pusht"\nworlds = ["mujoco"]\nseeds = 40\n[parity]\none_step = 0.3\n'
        '[variations.nominal]\n[variations.late]\nlatency = 2\nrandomize = ["geom.*.friction=0.2..0.5"]\n'
        '[[rule]]\nmeasure = "success"\nat_least = 0.8\nvariation = "late"\n'
    )
    rules = read_gate_rules(path)
    assert rules.seeds == 40 and rules.worlds == ("mujoco",) and rules.parity.one_step == 0.3
    assert rules.variations[1] == Variation("late", 2, ("geom.*.friction=0.2..0.5",))


@pytest.mark.parametrize(
    ("table", "error", "words"),
    [
        ({}, BadInput, "must say which scene"),
        ({"scene": "pusht"}, BadInput, "a gate without rules would let everything through"),
        ({"scene": "pusht", "sceens": 1, "rule": []}, UnknownName, "no entry of rules.toml named 'sceens'"),
        ({"scene": "pusht", "rule": [{"measure": "sucess", "at_least": 1}]}, UnknownName, "Did you mean 'success'"),
        ({"scene": "pusht", "rule": [{"measure": "success"}]}, BadInput, "either at_least or at_most"),
        (
            {"scene": "pusht", "rule": [{"measure": "success", "at_least": 0.5, "variation": "windy"}]},
            UnknownName,
            "no variation named 'windy'",
        ),
    ],
)
def test_rules_that_cannot_be_applied_are_refused(table, error, words):
    with pytest.raises(error, match=words):
        gate_rules_from(table, "rules.toml")
