"""The joints and actuators of a scene, as a guess of a mapping needs them."""

from __future__ import annotations

import math

import mujoco

from instep.data.guess_parts import CommandKind, RobotActuator, RobotJoint, RobotLayout
from instep.physics.joint_order import DynamicsOrder
from instep.scene.couplings import driven_joints
from instep.scene.folder import Scene


def robot_layout(scene: Scene) -> RobotLayout:
    """The robot's joints with their ranges, and its actuators with what they move and take."""
    model = scene.model
    joints = tuple(_joint(model, name) for name in scene.robot)
    known = {joint.name for joint in joints}
    actuators = tuple(_actuator(model, a) for a in range(model.nu))
    return RobotLayout(joints, tuple(a for a in actuators if set(a.joints) & known), DynamicsOrder(scene))


def _joint(model: mujoco.MjModel, name: str) -> RobotJoint:
    joint = model.joint(name)
    low, high = joint.range if model.jnt_limited[joint.id] else (-math.inf, math.inf)
    slides = model.jnt_type[joint.id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
    return RobotJoint(name, float(low), float(high), "m" if slides else "rad")


def _actuator(model: mujoco.MjModel, a: int) -> RobotActuator:
    low, high = model.actuator_ctrlrange[a] if model.actuator_ctrllimited[a] else (-math.inf, math.inf)
    takes: CommandKind = "position" if model.actuator_biasprm[a, 1] != 0 else "effort"
    if takes == "effort" and model.actuator_biasprm[a, 2] != 0:
        takes = "velocity"
    return RobotActuator(model.actuator(a).name, driven_joints(model, a), float(low), float(high), takes)
