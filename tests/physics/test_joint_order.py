"""The joints of columns without names are found by the dynamics of the robot, and what they cannot tell is said."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from instep import Scene
from instep.data.guess.joint_columns import UnlabelledMotion
from instep.physics.inverse_dynamics import DynamicsOrder

ARM = """<mujoco><option timestep="0.002" integrator="implicitfast"/><worldbody>
  <body><joint name="yaw" axis="0 0 1" damping="1"/><geom type="capsule" fromto="0 0 0 0.02 0 0.2" size=".03" mass="2"/>
  <body pos="0 0 0.2"><joint name="lift" axis="0 1 0" damping="1"/>
    <geom type="capsule" fromto="0 0 0 0.3 0 0" size=".03" mass="2"/>
  <body pos="0.3 0 0"><joint name="elbow" axis="0 1 0" damping="1"/>
    <geom type="capsule" fromto="0 0 0 0.25 0 0" size=".02" mass="1"/>
  <body pos="0.25 0 0"><joint name="roll" axis="1 0 0" damping="1"/>{tip}</body></body></body></body></worldbody>
  <actuator>{servos}</actuator></mujoco>"""
JOINTS = ("yaw", "lift", "elbow", "roll")
DT = 0.01


def arm(tip: str, folder) -> Scene:
    servos = "".join(f'<position name="{name}" joint="{name}" kp="300" kv="20"/>' for name in JOINTS)
    (folder / "arm.xml").write_text(ARM.format(tip=tip, servos=servos))
    return Scene.load(str(folder / "arm.xml"))


def recorded(scene: Scene, seconds: float = 12.0) -> tuple[np.ndarray, np.ndarray]:
    """Positions and commands of an arm that follows sums of sines."""
    rng = np.random.default_rng(1)
    model, data = scene.model, mujoco.MjData(scene.model)
    t = np.arange(round(seconds / DT)) * DT
    tones = rng.uniform([0.1, 0.2, 0.0], [0.3, 1.0, 6.28], (3, 4, 3))
    commands = sum(size * np.sin(6.28 * tone * t[:, None] + phase) for size, tone, phase in np.moveaxis(tones, 2, 1))
    rows = []
    for command in commands:
        rows.append(data.qpos.copy())
        data.ctrl[:] = command
        mujoco.mj_step(model, data, round(DT / model.opt.timestep))
    return np.array(rows) + 1e-4 * rng.standard_normal(commands.shape), commands


def asked(q: np.ndarray, u: np.ndarray, order: list[int]) -> UnlabelledMotion:
    return UnlabelledMotion([q[:, order]], [u[:, order]], JOINTS, np.ones((4, 4), bool), DT)


HEAVY = '<geom type="box" size=".05 .02 .02" pos=".05 .08 0" mass="1"/>'
ROUND = '<geom type="cylinder" size=".02 .01" zaxis="1 0 0" mass="0.01"/>'


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [3, 1, 2, 0], [2, 3, 0, 1]])
def test_the_order_of_columns_is_found_by_the_load_of_their_joints(tmp_path, order):
    scene = arm(HEAVY, tmp_path)
    found = DynamicsOrder(scene)(asked(*recorded(scene), order))
    assert found is not None and found.labels == tuple(JOINTS[k] for k in order)
    assert min(found.margins) > 20, found.margins


def test_motion_that_says_nothing_of_a_column_leaves_the_order_of_the_robot_with_a_small_margin(tmp_path):
    """Without weight, and with joints that move in turns, no joint loads another."""
    scene = arm(ROUND, tmp_path)
    q, u = recorded(scene)
    q = u + 1e-4 * np.random.default_rng(2).standard_normal(q.shape)
    found = DynamicsOrder(scene)(asked(q, u, [0, 1, 2, 3]))
    assert found is not None and found.labels == JOINTS and min(found.margins) < 6, found


def test_short_motion_and_motion_without_commands_are_not_judged(tmp_path):
    scene = arm(HEAVY, tmp_path)
    q, u = recorded(scene, 0.5)
    assert DynamicsOrder(scene)(asked(q, u, [0, 1, 2, 3])) is None
    q, u = recorded(scene, 2.0)
    assert DynamicsOrder(scene)(asked(q, np.full_like(u, np.nan), [0, 1, 2, 3])) is None
