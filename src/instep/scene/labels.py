"""What the numbers of a model are called, and which of them are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Observation, Spec, vector

# Plain numbers: MuJoCo's enums neither compare with nor equal the integers of a model's arrays.
_FREE, _BALL, _SLIDE, _HINGE = (int(kind) for kind in mujoco.mjtJoint.__members__.values())
_AFFINE, _ON_JOINT = int(mujoco.mjtBias.mjBIAS_AFFINE), int(mujoco.mjtTrn.mjTRN_JOINT)
POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
TWIST = ("vx", "vy", "vz", "wx", "wy", "wz")


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Reads observations out of positions and velocities."""

    spec: Spec
    robot_q: Array
    """Where the robot's joints stand in q."""
    robot_v: Array
    """Where they stand in v."""
    objects_q: Array
    """Where the poses of the objects stand in q."""

    def observe(self, q: Array, v: Array) -> Observation:
        """The robot's joints and the poses of the objects, under their LeRobot names."""
        seen: dict[str, Array] = {}
        if self.robot_q.size:
            seen["observation.state"] = q[..., self.robot_q]
            seen["observation.velocity"] = v[..., self.robot_v]
        if self.objects_q.size:
            seen["observation.environment_state"] = q[..., self.objects_q]
        return seen


def reader(
    model: mujoco.MjModel, dt: float, robot: Sequence[str], objects: Sequence[str], action_unit: str = ""
) -> Reader:
    """The names of a model's numbers, and a reader of what a scene says is seen.

    Actions are in the unit the actuators suggest, unless the scene knows better (volts behind a gear ratio).
    """
    q_labels, q_units, v_labels, v_units = _coordinates(model)
    joints = {model.joint(j).name: j for j in range(model.njnt)}
    for name in robot:
        if name not in joints:
            raise UnknownName("joint", name, joints)
        if model.jnt_type[joints[name]] not in (_HINGE, _SLIDE):
            raise BadInput(f"Joint {name!r} of the robot must be a hinge or a slide; put free bodies under [objects].")
    ids = [joints[name] for name in robot]
    robot_q, robot_v = model.jnt_qposadr[ids].astype(int), model.jnt_dofadr[ids].astype(int)
    objects_q = np.array([i for name in objects for i in _pose_of(model, name)], int)
    observation = {}
    if robot:
        observation["observation.state"] = vector(list(robot), [q_units[i] for i in robot_q])
        observation["observation.velocity"] = vector(list(robot), [v_units[i] for i in robot_v])
    if objects:
        names = [f"{body}.{part}" for body in objects for part in POSE]
        observation["observation.environment_state"] = vector(names, ["m", "m", "m", "1", "1", "1", "1"] * len(objects))
    names = [model.actuator(a).name for a in range(model.nu)]
    action = vector(names, action_unit or _action_units(model))
    spec = Spec(dt, vector(q_labels, q_units), vector(v_labels, v_units), action, observation)
    return Reader(spec, robot_q, robot_v, objects_q)


def free_bodies(model: mujoco.MjModel) -> dict[str, int]:
    """The bodies that move freely, and where their pose starts in q."""
    joints = [j for j in range(model.njnt) if model.jnt_type[j] == _FREE]
    return {model.body(model.jnt_bodyid[j]).name: int(model.jnt_qposadr[j]) for j in joints}


def scalar_joints(model: mujoco.MjModel) -> list[str]:
    """The joints with one coordinate: hinges and slides."""
    return [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] in (_HINGE, _SLIDE)]


def _pose_of(model: mujoco.MjModel, body: str) -> range:
    free = free_bodies(model)
    if body not in free:
        names = [model.body(b).name for b in range(1, model.nbody)]
        if body not in names:
            raise UnknownName("body", body, names)
        raise BadInput(f"Object {body!r} has no free joint; only bodies that move freely are listed under [objects].")
    return range(free[body], free[body] + 7)


def _coordinates(model: mujoco.MjModel) -> tuple[list[str], list[str], list[str], list[str]]:
    q_labels, q_units, v_labels, v_units = [], [], [], []
    for j in range(model.njnt):
        name, kind = model.joint(j).name, model.jnt_type[j]
        if kind in (_FREE, _BALL):
            body = model.body(model.jnt_bodyid[j]).name if kind == _FREE else name
            skip = 0 if kind == _FREE else 3
            q_labels += [f"{body}.{part}" for part in POSE[skip:]]
            q_units += ["m", "m", "m", "1", "1", "1", "1"][skip:]
            v_labels += [f"{body}.{part}" for part in TWIST[skip:]]
            v_units += ["m/s", "m/s", "m/s", "rad/s", "rad/s", "rad/s"][skip:]
        else:
            unit = "rad" if kind == _HINGE else "m"
            q_labels.append(name)
            q_units.append(unit)
            v_labels.append(name)
            v_units.append(f"{unit}/s")
    return q_labels, q_units, v_labels, v_units


def _action_units(model: mujoco.MjModel) -> list[str]:
    """Position servos take the unit of their joint, velocity servos that per second, motors Nm or N."""
    units = []
    for a in range(model.nu):
        affine = model.actuator_biastype[a] == _AFFINE
        joint = model.actuator_trntype[a] == _ON_JOINT
        hinge = joint and model.jnt_type[model.actuator_trnid[a, 0]] == _HINGE
        if not joint:
            units.append("1")
        elif affine and model.actuator_biasprm[a, 1] != 0:
            units.append("rad" if hinge else "m")
        elif affine and model.actuator_biasprm[a, 2] != 0:
            units.append("rad/s" if hinge else "m/s")
        else:
            units.append("Nm" if hinge else "N")
    return units
