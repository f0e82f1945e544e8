"""Make a scene of a robot with legs: position servos in place of motors, a floor, and a pose to stand in."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from instep.core.world import Array

from .legs import Legs, find_legs, free_base
from .model import scalar_joints

LEG_STIFFNESS = 2.5
"""Stiffness of a servo as a share of the torque limit of its motor per radian [1/rad]."""
LEG_DAMPING_S = 0.04
"""Damping of a servo over its stiffness [s]."""
DEFAULT_LIMIT = 40.0
"""Torque limit where a motor has none [Nm]."""
STAND_SHARE = 0.88
"""Length of a leg that stands, as a share of its length when straight."""
STAND = "stand"
"""Keyframe in which the robot stands."""
FLOOR = "floor"
_FLAT = int(getattr(mujoco, "mjtTexture").mjTEXTURE_2D)  # noqa: B009 - the type stubs lack it
_CHECKER = int(getattr(mujoco, "mjtBuiltin").mjBUILTIN_CHECKER)  # noqa: B009 - the type stubs lack it
_RGB = int(getattr(mujoco, "mjtTextureRole").mjTEXROLE_RGB)  # noqa: B009 - the type stubs lack it


def stand_on_legs(spec: Any) -> int:
    """Give a robot with legs position servos, a floor where it has none, and the keyframe `stand`; how many servos."""
    motors = _servos(spec, spec.compile())
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.geoms):
        _add_floor(spec)
    for key in list(spec.keys):
        spec.delete(key)
    model = spec.compile()
    q = standing(model, find_legs(model, scalar_joints(model)))
    spec.add_key(name=STAND, qpos=q, ctrl=[q[_address(model, a)] for a in range(model.nu)])
    return motors


def _add_floor(spec: Any) -> None:
    """A floor of light squares with sides of 0.5 m, on which a film shows how far a robot walks."""
    squares = spec.add_texture(
        name=FLOOR, type=_FLAT, builtin=_CHECKER,
        rgb1=[0.62, 0.65, 0.68], rgb2=[0.54, 0.57, 0.6], width=128, height=128,
    )  # fmt: skip
    material = spec.add_material(name=FLOOR, texrepeat=[1, 1], texuniform=True)
    material.textures[_RGB] = squares.name
    spec.worldbody.add_geom(name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], material=FLOOR)


def standing(model: mujoco.MjModel, legs: Legs) -> Array:
    """Positions in which a robot stands on bent legs, feet below its hips and soles on the floor."""
    q = model.qpos0.copy()
    joints = scalar_joints(model)
    at = np.array([int(model.joint(name).qposadr[0]) for name in joints])
    q[at] = np.clip(0.0, *model.jnt_range[[model.joint(name).id for name in joints]].T)
    feet = legs.hip + legs.links[:, 0] + [0.0, 0.0, -STAND_SHARE * legs.length]
    feet[:, 1] = (legs.hip + legs.links.sum(axis=1))[:, 1]
    q[at] = legs.joint_targets(legs.inverse(feet), q[at])
    base = int(model.jnt_qposadr[model.body_jntadr[free_base(model)]])
    q[base : base + 7] = (0.0, 0.0, float((legs.sole - feet[:, 2]).max()), 1.0, 0.0, 0.0, 0.0)
    return q


def _servos(spec: Any, model: mujoco.MjModel) -> int:
    """Turn each motor on a joint into a position servo whose torque is limited as that of the motor."""
    count = 0
    for a, actuator in enumerate(spec.actuators):
        on_joint = model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT)
        if not on_joint or model.actuator_biastype[a] != int(mujoco.mjtBias.mjBIAS_NONE):
            continue
        joint, limit = int(model.actuator_trnid[a, 0]), DEFAULT_LIMIT
        if model.actuator_forcelimited[a]:
            limit = float(model.actuator_forcerange[a, 1])
        elif model.actuator_ctrllimited[a]:
            limit = float(model.actuator_ctrlrange[a, 1] * abs(model.actuator_gainprm[a, 0]))
        actuator.set_to_position(kp=LEG_STIFFNESS * limit, kv=LEG_STIFFNESS * LEG_DAMPING_S * limit)
        actuator.forcerange, actuator.forcelimited = [-limit, limit], True
        if model.jnt_limited[joint]:
            actuator.ctrlrange, actuator.ctrllimited = list(model.jnt_range[joint]), True
        else:
            actuator.ctrllimited = False
        count += 1
    if count:
        # Damping of servos is integrated implicitly: explicitly, light joints chatter at common time steps.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    return count


def _address(model: mujoco.MjModel, actuator: int) -> int:
    return int(model.jnt_qposadr[model.actuator_trnid[actuator, 0]])
