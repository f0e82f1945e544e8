"""The drives of a model as rapier's joint motors.

Rapier's force-based motor is an implicit spring and damper with a largest force: `k (target - q) + d (speed - v)`.
A servo of MuJoCo is exactly that where one actuator acts on one joint and its range is symmetric. A plain torque is a
motor that is told to run away and held back by its largest force. What is neither is worked out anew before every
physics step, from MuJoCo's law, and applied as such a torque.

What holds joints and bodies beside the tree: dry friction, welds and pins.

Torques that rapier's motors cannot work out themselves: MuJoCo's law of actuators, and gears between joints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.world import Array

from .actuation import Drives, Gears, firmness
from .engine_support import active_equalities, disabled
from .link_tree import Pose
from .rapier_build import Built, Seat, axis_of, frames, isometry

AWAY = 1e6
"""Speed no joint reaches [rad/s], so that a motor told to run at it always pulls with its largest force."""


@dataclass(frozen=True, slots=True)
class Motor:
    """The motor of one hinge or slide."""

    seat: Seat
    axis: Any
    kind: Literal["position", "speed", "torque", "law"]
    actuator: int = -1
    """Whose command it follows; -1 for a spring alone."""
    slope: float = 0.0
    """The target is `slope * command + offset`."""
    offset: float = 0.0
    stiffness: float = 0.0
    damping: float = 0.0
    limit: float = np.inf
    """Largest force."""

    def follow(self, multibody: Any, command: float) -> None:
        """Aim at what a command asks for."""
        target = self.slope * command + self.offset
        if self.kind == "position":
            multibody.set_link_motor(self.seat.link, self.axis, target, 0.0, self.stiffness, self.damping)
        elif self.kind == "speed":
            multibody.set_link_motor(self.seat.link, self.axis, 0.0, target, 0.0, self.damping)
        else:
            self.pull(multibody, max(-self.limit, min(self.limit, target)))

    def pull(self, multibody: Any, torque: float) -> None:
        """Apply a torque until told otherwise."""
        away = AWAY if torque > 0 else -AWAY
        multibody.set_link_motor(self.seat.link, self.axis, 0.0, away, 0.0, AWAY)
        multibody.set_link_motor_max_force(self.seat.link, self.axis, abs(torque))


def motors_of(model: mujoco.MjModel, built: Built, drives: Drives, coupled: Iterable[int]) -> tuple[Motor, ...]:
    """A motor for every hinge or slide that something pulls on; `coupled` are degrees of freedom that need the law."""
    by_law, found = {int(dof) for dof in coupled}, list[Motor]()
    for seat in built.axes:
        axis, actuators = axis_of(model, seat.joint), np.flatnonzero(drives.moment[:, seat.dof])
        if seat.dof in by_law:
            found.append(Motor(seat, axis, "law"))
        elif len(actuators) == 0:
            if drives.stiffness[seat.dof] > 0:
                at = float(drives.spring[seat.dof] - model.qpos0[seat.place])
                stiffness = float(drives.stiffness[seat.dof])
                found.append(Motor(seat, axis, "position", offset=at, stiffness=stiffness))
        else:
            found.append(_driven(model, drives, seat, [int(a) for a in actuators]))
    return tuple(found)


def fit_motors(built: Built, drives: Drives, motors: Sequence[Motor]) -> None:
    """Put motors, damping and armature into a world."""
    joints = built.world.multibody_joints
    for index, handle in enumerate(built.arms):
        multibody = joints.get(handle)[0]
        damping, armature = np.zeros(multibody.ndofs), np.zeros(multibody.ndofs)
        for seat in (*built.axes, *built.balls, *built.free):
            if seat.arm == index:
                width = 1 if seat in built.axes else 3 if seat in built.balls else 6
                here, there = slice(seat.slot, seat.slot + width), slice(seat.dof, seat.dof + width)
                damping[here], armature[here] = drives.damping[there], drives.armature[there]
        multibody.set_damping(damping.tolist())
        multibody.set_armature(armature.tolist())
        for motor in motors:
            if motor.seat.arm == index:
                multibody.set_link_motor_model(motor.seat.link, motor.axis, rapier.MotorModel.FORCE_BASED)
                motor.follow(multibody, 0.0)
                if motor.kind in ("position", "speed") and np.isfinite(motor.limit):
                    multibody.set_link_motor_max_force(motor.seat.link, motor.axis, motor.limit)


def _driven(model: mujoco.MjModel, drives: Drives, seat: Seat, actuators: list[int]) -> Motor:
    axis = axis_of(model, seat.joint)
    a, dof = actuators[0], seat.dof
    gear = float(drives.moment[a, dof])
    g0, g1, g2 = (float(g) for g in drives.gain[a])
    b0, b1, b2 = (float(b) for b in drives.bias[a])
    limit, symmetric = _limit(drives, a, dof, gear)
    spring = float(drives.stiffness[dof])
    plain = len(actuators) == 1 and np.count_nonzero(drives.moment[a]) == 1 and g1 == 0 and g2 == 0
    # A spring may share the motor of a servo that has no limit of its own, since the spring has none.
    if not (plain and symmetric and b1 <= 0 and b2 <= 0) or (spring > 0 and np.isfinite(limit)):
        return Motor(seat, axis, "law", a)
    stiffness, damping = -b1 * gear * gear + spring, -b2 * gear * gear
    rest = spring * float(drives.spring[dof])
    if stiffness > 0:
        offset = (gear * b0 + rest) / stiffness - float(model.qpos0[seat.place])
        return Motor(seat, axis, "position", a, gear * g0 / stiffness, offset, stiffness, damping, limit)
    if damping > 0:
        return Motor(seat, axis, "speed", a, gear * g0 / damping, gear * b0 / damping, 0.0, damping, limit)
    return Motor(seat, axis, "torque", a, gear * g0, gear * b0, limit=limit)


def _limit(drives: Drives, actuator: int, dof: int, gear: float) -> tuple[float, bool]:
    """The largest torque, and whether it is the same both ways."""
    low, high = sorted(drives.force[actuator] * gear)
    low, high = max(low, drives.total[dof, 0]), min(high, drives.total[dof, 1])
    return float(high), bool(np.isclose(-low, high, rtol=1e-9) or (np.isinf(low) and np.isinf(high)))


_HERE = Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
_CONNECT, _WELD = int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD)
_JOINT, _TENDON = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)


def fasten(model: mujoco.MjModel, built: Built) -> None:
    """Weld and pin bodies together."""
    for e in active_equalities(model):
        kind = int(model.eq_type[e])
        if kind in (_JOINT, _TENDON):
            continue
        if kind not in (_CONNECT, _WELD):
            name = model.equality(e).name
            raise Unsupported(
                f"The engine 'rapier' can weld and pin bodies and gear joints, but equality {name!r} holds a distance "
                f"or a soft body; run this scene in MuJoCo."
            )
        ends = [_end(model, built, e, side, kind) for side in (0, 1)]
        masks = rapier.JointAxesMask
        joint = rapier.GenericJoint.builder(masks.LOCKED_FIXED_AXES if kind == _WELD else masks.LOCKED_SPHERICAL_AXES)
        joint = joint.local_frame1(isometry(ends[0][1])).local_frame2(isometry(ends[1][1]))
        built.world.impulse_joints.insert(built.bodies[ends[0][0]], built.bodies[ends[1][0]], joint.build())


def add_friction(model: mujoco.MjModel, built: Built, drives: Drives, motors: Sequence[Motor]) -> None:
    """Dry friction: a motor that wants speed 0 and has no more than the friction to get there.

    A joint has one motor; where that is taken, a second joint without any constraint but this motor lies beside it.
    """
    taken = {motor.seat.dof for motor in motors}
    if disabled(model, "CONSTRAINT"):
        return
    for seat in built.axes:
        most, axis = float(drives.frictionloss[seat.dof]), axis_of(model, seat.joint)
        if most <= 0:
            continue
        firm = firmness(model, seat.dof)
        if seat.dof not in taken:
            multibody = built.world.multibody_joints.get(built.arms[seat.arm])[0]
            multibody.set_link_motor(seat.link, axis, 0.0, 0.0, 0.0, firm)
            multibody.set_link_motor_model(seat.link, axis, rapier.MotorModel.FORCE_BASED)
            multibody.set_link_motor_max_force(seat.link, axis, most)
            continue
        inner, outer = frames(model, seat.joint, _rest(model, built, seat.joint))
        joint = rapier.GenericJoint.builder(rapier.JointAxesMask.empty())
        joint = joint.local_frame1(isometry(inner)).local_frame2(isometry(outer)).motor_velocity(axis, 0.0, firm)
        joint = joint.motor_model(axis, rapier.MotorModel.FORCE_BASED).motor_max_force(axis, most)
        built.world.impulse_joints.insert(built.before[seat.joint], seat.body, joint.build())


def _rest(model: mujoco.MjModel, built: Built, joint: int) -> Pose:
    """Frame of the outer body in the inner one's, at reference: only the first joint of a link is away from it."""
    link = built.tree.links[built.tree.link_of[model.jnt_bodyid[joint]]]
    return link.rest if joint == link.joints[0] else _HERE


def _end(model: mujoco.MjModel, built: Built, equality: int, side: int, kind: int) -> tuple[int, Pose]:
    """The link on one side of an equality, and the frame on it that must meet the other side's."""
    thing = int((model.eq_obj1id if side == 0 else model.eq_obj2id)[equality])
    data = model.eq_data[equality]
    if model.eq_objtype[equality] == int(mujoco.mjtObj.mjOBJ_SITE):
        body = int(model.site_bodyid[thing])
        frame = Pose(model.site_pos[thing].copy(), model.site_quat[thing].copy())
    elif kind == _CONNECT:
        body, frame = thing, Pose(data[3 * side : 3 * side + 3].copy(), _HERE.quat)
    else:
        body = thing
        frame = Pose(data[3:6].copy(), data[6:10].copy()) if side == 0 else Pose(data[:3].copy(), _HERE.quat)
    return int(built.tree.link_of[body]), built.tree.in_link[body] @ frame


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The torques of some hinges and slides, to be worked out before every physics step."""

    motors: tuple[Motor, ...]
    drives: Drives
    """Of these degrees of freedom alone."""
    actuators: Array
    """Commands they listen to."""
    gears: Gears
    """Between these degrees of freedom."""
    reference: Array
    """Positions at which rapier's coordinates are 0."""

    @classmethod
    def of(cls, model: mujoco.MjModel, drives: Drives, motors: tuple[Motor, ...], gears: Gears) -> Self:
        """The law of the motors of a model that need one."""
        some = tuple(motor for motor in motors if motor.kind == "law")
        dofs = np.array([motor.seat.dof for motor in some], int)
        used = np.flatnonzero(drives.moment[:, dofs].any(axis=1))
        reference = np.array([model.qpos0[motor.seat.place] for motor in some])
        return cls(some, drives.only(dofs), used, gears.only(dofs), reference)

    def apply(self, arms: list[Any], command: Array) -> None:
        """Set the torques of all its joints for one physics step."""
        positions = [arm.generalized_position() for arm in arms]
        speeds = [arm.generalized_velocity() for arm in arms]
        seats = [motor.seat for motor in self.motors]
        q = np.array([positions[seat.arm][seat.slot] for seat in seats]) + self.reference
        v = np.array([speeds[seat.arm][seat.slot] for seat in seats])
        torque, damping = self.drives.pull(q, v, command[self.actuators])
        drag = self.drives.damping + damping
        if len(self.gears.first):
            torque = torque + self.gears.torque(q, v, torque - drag * v)
        drags = [arm.damping() for arm in arms]
        for i, motor in enumerate(self.motors):
            motor.pull(arms[motor.seat.arm], float(torque[i]))
            drags[motor.seat.arm][motor.seat.slot] = float(drag[i])
        for arm, values in zip(arms, drags, strict=True):
            arm.set_damping(values)
