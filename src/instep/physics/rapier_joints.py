"""What ties joints and bodies together beside the tree: dry friction, welds, pins and gears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.world import Array

from .drives import Drives
from .rapier_build import Built, axis_of, frames
from .rapier_motors import FIRM, Motor
from .rapier_shapes import isometry
from .support import disabled
from .tree import Pose

_HERE = Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
_CONNECT, _WELD = int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD)
_JOINT = int(mujoco.mjtEq.mjEQ_JOINT)


@dataclass(frozen=True, slots=True, eq=False)
class Gear:
    """One joint that follows another: `q1 = p0 + p1 x + p2 x^2 + ..` with `x = q2`, both from their reference."""

    first: int
    """Degree of freedom that follows."""
    second: int
    """Degree of freedom it follows; -1 where it is held still."""
    reference: tuple[float, float]
    shape: Array
    """Coefficients, lowest order first."""
    inverse_mass: tuple[float, float]
    rate: float
    """How fast a deviation dies out [1/s]."""

    def add(self, q: Array, v: Array, torque: Array) -> None:
        """Add the torques that keep the joints together to those that pull them apart.

        Rapier has no gears. The torques are those of a critically damped spring between the joints, after what the
        motors do to them has been shared out, with the joints' own inertia at rest.
        """
        x = q[self.second] - self.reference[1] if self.second >= 0 else 0.0
        slope = float(np.polyval(np.polyder(self.shape[::-1]), x)) if self.second >= 0 else 0.0
        apart = q[self.first] - self.reference[0] - float(np.polyval(self.shape[::-1], x))
        speed = v[self.first] - slope * (v[self.second] if self.second >= 0 else 0.0)
        w1, w2 = self.inverse_mass
        pulled = w1 * torque[self.first] - slope * w2 * (torque[self.second] if self.second >= 0 else 0.0)
        wanted = -(self.rate**2) * apart - 2 * self.rate * speed
        force = (wanted - pulled) / (w1 + slope * slope * w2)
        torque[self.first] += force
        if self.second >= 0:
            torque[self.second] -= slope * force


def gears_of(model: mujoco.MjModel) -> tuple[Gear, ...]:
    """The joints of a model that follow others."""
    found: list[Gear] = []
    for e in _active(model):
        if model.eq_type[e] != _JOINT:
            continue
        one, other = int(model.eq_obj1id[e]), int(model.eq_obj2id[e])
        pair = [one, other] if other >= 0 else [one]
        dofs = [int(model.jnt_dofadr[j]) for j in pair]
        where = [float(model.qpos0[model.jnt_qposadr[j]]) for j in pair]
        light = [float(model.dof_invweight0[d]) for d in dofs]
        # A quarter of the physics rate: stiff, and stable where the inertia at rest is off by a factor of two.
        rate = 0.25 / float(model.opt.timestep)
        found.append(
            Gear(
                dofs[0], dofs[1] if other >= 0 else -1, (where[0], where[-1]), model.eq_data[e, :5].copy(),
                (light[0], light[1] if other >= 0 else 0.0), rate,
            )
        )  # fmt: skip
    return tuple(found)


def fasten(model: mujoco.MjModel, built: Built) -> None:
    """Weld and pin bodies together."""
    for e in _active(model):
        kind = int(model.eq_type[e])
        if kind == _JOINT:
            continue
        if kind not in (_CONNECT, _WELD):
            name = model.equality(e).name
            raise Unsupported(
                f"The engine 'rapier' can weld and pin bodies and gear joints, but equality {name!r} ties tendons, "
                f"distances or soft bodies; run this scene in MuJoCo."
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
        if seat.dof not in taken:
            multibody = built.world.multibody_joints.get(built.arms[seat.arm])[0]
            multibody.set_link_motor(seat.link, axis, 0.0, 0.0, 0.0, FIRM)
            multibody.set_link_motor_model(seat.link, axis, rapier.MotorModel.FORCE_BASED)
            multibody.set_link_motor_max_force(seat.link, axis, most)
            continue
        inner, outer = frames(model, seat.joint, _rest(model, built, seat.joint))
        joint = rapier.GenericJoint.builder(rapier.JointAxesMask.empty())
        joint = joint.local_frame1(isometry(inner)).local_frame2(isometry(outer)).motor_velocity(axis, 0.0, FIRM)
        joint = joint.motor_model(axis, rapier.MotorModel.FORCE_BASED).motor_max_force(axis, most)
        built.world.impulse_joints.insert(built.before[seat.joint], seat.body, joint.build())


def _rest(model: mujoco.MjModel, built: Built, joint: int) -> Pose:
    """Frame of the outer body in the inner one's, at reference: only the first joint of a link is away from it."""
    link = built.tree.links[built.tree.link_of[model.jnt_bodyid[joint]]]
    return link.rest if joint == link.joints[0] else _HERE


def _active(model: mujoco.MjModel) -> list[int]:
    off = disabled(model, "EQUALITY") or disabled(model, "CONSTRAINT")
    return [] if off else [e for e in range(model.neq) if model.eq_active0[e]]


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
