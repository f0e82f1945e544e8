"""What holds joints and bodies beside the tree: dry friction, welds and pins."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported

from .drives import Drives, firmness
from .rapier_build import Built, axis_of, frames
from .rapier_motors import Motor
from .rapier_shapes import isometry
from .support import active_equalities, disabled
from .tree import Pose

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
