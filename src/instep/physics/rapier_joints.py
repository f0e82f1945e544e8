"""Joint motors, friction and equality constraints of a MuJoCo model in rapier.

Rapier's force-based motor is an implicit spring and damper with a largest force: `k (target - q) + d (speed - v)`.
A servo of MuJoCo is exactly that where one actuator acts on one joint and its range is symmetric. A plain torque is a
motor whose target speed is out of reach and whose largest force is the torque. Everything else is computed before each
physics step from MuJoCo's actuator model (`ComputedTorques`) and applied as such a torque.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array

from .actuation import JointActuation, JointCouplings, friction_damping
from .engine_checks import active_equalities, disabled
from .link_tree import Pose
from .rapier_build import RapierJoint, RapierModel, axis_of, isometry, joint_frames

RUNAWAY_SPEED = 1e6
"""Speed no joint reaches [rad/s]: a motor with this target always applies its largest force."""


@frozen_dataclass
class JointMotor:
    """The motor of one hinge or slide."""

    at: RapierJoint
    axis: Any
    kind: Literal["position", "speed", "torque", "computed"]
    actuator: int = -1
    """Actuator whose command it follows; -1 for a spring alone."""
    scale: float = 0.0
    """The target is `scale * command + offset`."""
    offset: float = 0.0
    stiffness: float = 0.0
    damping: float = 0.0
    limit: float = np.inf
    """Largest force."""

    def follow(self, multibody: Any, command: float) -> None:
        """Set the target of a command."""
        target = self.scale * command + self.offset
        if self.kind == "position":
            multibody.set_link_motor(self.at.link, self.axis, target, 0.0, self.stiffness, self.damping)
        elif self.kind == "speed":
            multibody.set_link_motor(self.at.link, self.axis, 0.0, target, 0.0, self.damping)
        else:
            self.apply_torque(multibody, max(-self.limit, min(self.limit, target)))

    def apply_torque(self, multibody: Any, torque: float) -> None:
        """Apply a torque until the next call."""
        runaway = RUNAWAY_SPEED if torque > 0 else -RUNAWAY_SPEED
        multibody.set_link_motor(self.at.link, self.axis, 0.0, runaway, 0.0, RUNAWAY_SPEED)
        multibody.set_link_motor_max_force(self.at.link, self.axis, abs(torque))


def joint_motors(
    model: mujoco.MjModel, built: RapierModel, actuation: JointActuation, coupled: Iterable[int]
) -> tuple[JointMotor, ...]:
    """A motor for every hinge or slide with actuators or springs; torques of `coupled` ones are computed."""
    computed, found = {int(dof) for dof in coupled}, list[JointMotor]()
    for at in built.axes:
        axis, actuators = axis_of(model, at.joint), np.flatnonzero(actuation.moment[:, at.dof])
        if at.dof in computed:
            found.append(JointMotor(at, axis, "computed"))
        elif len(actuators) == 0:
            if actuation.stiffness[at.dof] > 0:
                target = float(actuation.spring[at.dof] - model.qpos0[at.q_index])
                stiffness = float(actuation.stiffness[at.dof])
                found.append(JointMotor(at, axis, "position", offset=target, stiffness=stiffness))
        else:
            found.append(_actuated(model, actuation, at, [int(a) for a in actuators]))
    return tuple(found)


def set_motors(built: RapierModel, actuation: JointActuation, motors: Sequence[JointMotor]) -> None:
    """Set motors, damping and armature of a world."""
    joints = built.world.multibody_joints
    for index, handle in enumerate(built.multibodies):
        multibody = joints.get(handle)[0]
        damping, armature = np.zeros(multibody.ndofs), np.zeros(multibody.ndofs)
        for at in (*built.axes, *built.balls, *built.free):
            if at.multibody == index:
                width = 1 if at in built.axes else 3 if at in built.balls else 6
                here, there = slice(at.offset, at.offset + width), slice(at.dof, at.dof + width)
                damping[here], armature[here] = actuation.damping[there], actuation.armature[there]
        multibody.set_damping(damping.tolist())
        multibody.set_armature(armature.tolist())
        for motor in motors:
            if motor.at.multibody == index:
                multibody.set_link_motor_model(motor.at.link, motor.axis, rapier.MotorModel.FORCE_BASED)
                motor.follow(multibody, 0.0)
                if motor.kind in ("position", "speed") and np.isfinite(motor.limit):
                    multibody.set_link_motor_max_force(motor.at.link, motor.axis, motor.limit)


def _actuated(model: mujoco.MjModel, actuation: JointActuation, at: RapierJoint, actuators: list[int]) -> JointMotor:
    axis = axis_of(model, at.joint)
    a, dof = actuators[0], at.dof
    gear = float(actuation.moment[a, dof])
    g0, g1, g2 = (float(g) for g in actuation.gain[a])
    b0, b1, b2 = (float(b) for b in actuation.bias[a])
    limit, symmetric = _limit(actuation, a, dof, gear)
    spring = float(actuation.stiffness[dof])
    plain = len(actuators) == 1 and np.count_nonzero(actuation.moment[a]) == 1 and g1 == 0 and g2 == 0
    # A spring may share the motor of a servo that has no limit of its own, since the spring has none.
    if not (plain and symmetric and b1 <= 0 and b2 <= 0) or (spring > 0 and np.isfinite(limit)):
        return JointMotor(at, axis, "computed", a)
    stiffness, damping = -b1 * gear * gear + spring, -b2 * gear * gear
    rest = spring * float(actuation.spring[dof])
    if stiffness > 0:
        offset = (gear * b0 + rest) / stiffness - float(model.qpos0[at.q_index])
        return JointMotor(at, axis, "position", a, gear * g0 / stiffness, offset, stiffness, damping, limit)
    if damping > 0:
        return JointMotor(at, axis, "speed", a, gear * g0 / damping, gear * b0 / damping, 0.0, damping, limit)
    return JointMotor(at, axis, "torque", a, gear * g0, gear * b0, limit=limit)


def _limit(actuation: JointActuation, actuator: int, dof: int, gear: float) -> tuple[float, bool]:
    """The largest torque, and whether it is the same both ways."""
    low, high = sorted(actuation.force[actuator] * gear)
    low, high = max(low, actuation.joint_force[dof, 0]), min(high, actuation.joint_force[dof, 1])
    return float(high), bool(np.isclose(-low, high, rtol=1e-9) or (np.isinf(low) and np.isinf(high)))


_CONNECT, _WELD = int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD)
_JOINT, _TENDON = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)


def add_equalities(model: mujoco.MjModel, built: RapierModel) -> None:
    """Add the welds and point constraints between bodies."""
    for e in active_equalities(model):
        kind = int(model.eq_type[e])
        if kind in (_JOINT, _TENDON):
            continue
        if kind not in (_CONNECT, _WELD):
            name = model.equality(e).name
            raise Unsupported(
                f"The engine 'rapier' has welds, point constraints and couplings of joints only, but equality {name!r} "
                f"holds a distance or a soft body; run this scene in MuJoCo."
            )
        ends = [_end(model, built, e, side, kind) for side in (0, 1)]
        masks = rapier.JointAxesMask
        joint = rapier.GenericJoint.builder(masks.LOCKED_FIXED_AXES if kind == _WELD else masks.LOCKED_SPHERICAL_AXES)
        joint = joint.local_frame1(isometry(ends[0][1])).local_frame2(isometry(ends[1][1]))
        built.world.impulse_joints.insert(built.bodies[ends[0][0]], built.bodies[ends[1][0]], joint.build())


def add_joint_friction(
    model: mujoco.MjModel, built: RapierModel, actuation: JointActuation, motors: Sequence[JointMotor]
) -> None:
    """Dry friction as a motor with target speed 0 and the friction as its largest force.

    A joint has one motor; where that is in use, a second joint with nothing but this motor is added beside it.
    """
    taken = {motor.at.dof for motor in motors}
    if disabled(model, "CONSTRAINT"):
        return
    for at in built.axes:
        limit, axis = float(actuation.frictionloss[at.dof]), axis_of(model, at.joint)
        if limit <= 0:
            continue
        damping = friction_damping(model, at.dof)
        if at.dof not in taken:
            multibody = built.world.multibody_joints.get(built.multibodies[at.multibody])[0]
            multibody.set_link_motor(at.link, axis, 0.0, 0.0, 0.0, damping)
            multibody.set_link_motor_model(at.link, axis, rapier.MotorModel.FORCE_BASED)
            multibody.set_link_motor_max_force(at.link, axis, limit)
            continue
        inner, outer = joint_frames(model, at.joint, _inner_from_outer(model, built, at.joint))
        joint = rapier.GenericJoint.builder(rapier.JointAxesMask.empty())
        joint = joint.local_frame1(isometry(inner)).local_frame2(isometry(outer)).motor_velocity(axis, 0.0, damping)
        joint = joint.motor_model(axis, rapier.MotorModel.FORCE_BASED).motor_max_force(axis, limit)
        built.world.impulse_joints.insert(built.inner_body[at.joint], at.body, joint.build())


def _inner_from_outer(model: mujoco.MjModel, built: RapierModel, joint: int) -> Pose:
    """Frame of the outer body in the inner one's, at reference: only the first joint of a link is runaway from it."""
    link = built.tree.links[built.tree.link_of[model.jnt_bodyid[joint]]]
    return link.parent_from_link if joint == link.joints[0] else Pose.identity()


def _end(model: mujoco.MjModel, built: RapierModel, equality: int, side: int, kind: int) -> tuple[int, Pose]:
    """The link on one side of an equality, and the frame on it that must meet the other side's."""
    thing = int((model.eq_obj1id if side == 0 else model.eq_obj2id)[equality])
    data = model.eq_data[equality]
    if model.eq_objtype[equality] == int(mujoco.mjtObj.mjOBJ_SITE):
        body = int(model.site_bodyid[thing])
        frame = Pose(model.site_pos[thing].copy(), model.site_quat[thing].copy())
    elif kind == _CONNECT:
        body, frame = thing, Pose(data[3 * side : 3 * side + 3].copy(), Pose.identity().quat)
    else:
        body = thing
        frame = Pose(data[3:6].copy(), data[6:10].copy()) if side == 0 else Pose(data[:3].copy(), Pose.identity().quat)
    return int(built.tree.link_of[body]), built.tree.link_from_body[body] @ frame


@array_dataclass
class ComputedTorques:
    """Torques of hinges and slides that are computed before every physics step."""

    motors: tuple[JointMotor, ...]
    actuation: JointActuation
    """Actuation of these degrees of freedom alone."""
    actuators: Array
    """Indices of the commands they follow."""
    couplings: JointCouplings
    """Couplings between these degrees of freedom."""
    reference: Array
    """Positions at which rapier's coordinates are 0."""

    @classmethod
    def of(
        cls, model: mujoco.MjModel, actuation: JointActuation, motors: tuple[JointMotor, ...], couplings: JointCouplings
    ) -> Self:
        """The computed torques of the motors of a model that need them."""
        some = tuple(motor for motor in motors if motor.kind == "computed")
        dofs = np.array([motor.at.dof for motor in some], int)
        used = np.flatnonzero(actuation.moment[:, dofs].any(axis=1))
        reference = np.array([model.qpos0[motor.at.q_index] for motor in some])
        return cls(some, actuation.subset(dofs), used, couplings.subset(dofs), reference)

    def apply(self, multibodies: list[Any], command: Array) -> None:
        """Set the torques of all its joints for one physics step."""
        positions = [multibody.generalized_position() for multibody in multibodies]
        speeds = [multibody.generalized_velocity() for multibody in multibodies]
        joints = [motor.at for motor in self.motors]
        q = np.array([positions[at.multibody][at.offset] for at in joints]) + self.reference
        v = np.array([speeds[at.multibody][at.offset] for at in joints])
        torque, damping = self.actuation.torque_and_damping(q, v, command[self.actuators])
        total_damping = self.actuation.damping + damping
        if len(self.couplings.driven):
            torque = torque + self.couplings.torque(q, v, torque - total_damping * v)
        dampings = [multibody.damping() for multibody in multibodies]
        for i, motor in enumerate(self.motors):
            motor.apply_torque(multibodies[motor.at.multibody], float(torque[i]))
            dampings[motor.at.multibody][motor.at.offset] = float(total_damping[i])
        for multibody, values in zip(multibodies, dampings, strict=True):
            multibody.set_damping(values)
