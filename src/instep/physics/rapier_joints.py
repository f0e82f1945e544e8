"""Joint motors, friction and equality constraints of a MuJoCo model in rapier.

Rapier's force-based motor is an implicit spring and damper with a largest force: `k (target - q) + d (speed - v)`.
A position servo of MuJoCo is exactly that where one actuator acts on one joint and its range is symmetric. Every other
torque is computed before each physics step from MuJoCo's actuator model (`ComputedTorques`), and applied by a motor
whose target speed is out of reach and whose largest force is the torque.

Actuators, springs, dampers and couplings of a MuJoCo model, for engines that do not have them.

MuJoCo's actuator model: an actuator has a length `l = moment @ q` and a speed `s = moment @ v`, its force is
`f = (g0 + g1 l + g2 s) u + b0 + b1 l + b2 s`, clipped to its range, and `moment.T @ f` acts on the joints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Self

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.world import Array, array_dataclass, frozen_dataclass

from .engine_model import HINGE, SLIDE, Pose, active_equalities, disabled
from .rapier_build import RapierJoint, RapierModel, axis_of, isometry, joint_frames

RUNAWAY_SPEED = 1e6
"""Speed no joint reaches [rad/s]: a motor with this target always applies its largest force."""


@frozen_dataclass
class JointMotor:
    """The motor of one hinge or slide: a servo or spring of rapier's, or a computed torque."""

    at: RapierJoint
    axis: Any
    computed: bool = False
    """Whether its torque is computed before each physics step."""
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
        multibody.set_link_motor(self.at.link, self.axis, target, 0.0, self.stiffness, self.damping)

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
            found.append(JointMotor(at, axis, computed=True))
        elif len(actuators) == 0:
            if actuation.stiffness[at.dof] > 0:
                target = float(actuation.spring[at.dof] - model.qpos0[at.q_index])
                stiffness = float(actuation.stiffness[at.dof])
                found.append(JointMotor(at, axis, offset=target, stiffness=stiffness))
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
                if motor.computed:
                    motor.apply_torque(multibody, 0.0)
                    continue
                motor.follow(multibody, 0.0)
                if np.isfinite(motor.limit):
                    multibody.set_link_motor_max_force(motor.at.link, motor.axis, motor.limit)


def _actuated(model: mujoco.MjModel, actuation: JointActuation, at: RapierJoint, actuators: list[int]) -> JointMotor:
    axis = axis_of(model, at.joint)
    a, dof = actuators[0], at.dof
    gear = float(actuation.moment[a, dof])
    g0, g1, g2 = (float(g) for g in actuation.gain[a])
    b0, b1, b2 = (float(b) for b in actuation.bias[a])
    # The largest torque, and whether it is the same both ways.
    low, high = sorted(actuation.force[a] * gear)
    low, high = max(low, actuation.joint_force[dof, 0]), min(high, actuation.joint_force[dof, 1])
    limit, symmetric = float(high), bool(np.isclose(-low, high, rtol=1e-9) or (np.isinf(low) and np.isinf(high)))
    spring = float(actuation.stiffness[dof])
    plain = len(actuators) == 1 and np.count_nonzero(actuation.moment[a]) == 1 and g1 == 0 and g2 == 0
    stiffness, damping = -b1 * gear * gear + spring, -b2 * gear * gear
    # A spring may share the motor of a servo that has no limit of its own, since the spring has none.
    shared = spring > 0 and np.isfinite(limit)
    if not (plain and symmetric and b1 <= 0 and b2 <= 0 and stiffness > 0) or shared:
        return JointMotor(at, axis, True, a)
    offset = (gear * b0 + spring * float(actuation.spring[dof])) / stiffness - float(model.qpos0[at.q_index])
    return JointMotor(at, axis, False, a, gear * g0 / stiffness, offset, stiffness, damping, limit)


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
        link = built.tree.links[built.tree.link_of[model.jnt_bodyid[at.joint]]]
        # Only the first joint of a link is away from its parent.
        rest = link.parent_from_link if at.joint == link.joints[0] else Pose.identity()
        inner, outer = joint_frames(model, at.joint, rest)
        joint = rapier.GenericJoint.builder(rapier.JointAxesMask.empty())
        joint = joint.local_frame1(isometry(inner)).local_frame2(isometry(outer)).motor_velocity(axis, 0.0, damping)
        joint = joint.motor_model(axis, rapier.MotorModel.FORCE_BASED).motor_max_force(axis, limit)
        built.world.impulse_joints.insert(built.inner_body[at.joint], at.body, joint.build())


def _end(model: mujoco.MjModel, built: RapierModel, equality: int, side: int, kind: int) -> tuple[int, Pose]:
    """The link on one side of an equality, and the frame on it that meets the other side's."""
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
    """Torques of hinges and slides, computed before every physics step."""

    motors: tuple[JointMotor, ...]
    joints: tuple[RapierJoint, ...]
    """All hinges and slides."""
    actuation: JointActuation
    couplings: JointCouplings
    reference: Array
    """Positions at which rapier's coordinates are 0 [hinges and slides]."""

    @classmethod
    def of(
        cls, model: mujoco.MjModel, built: RapierModel, actuation: JointActuation, motors: tuple[JointMotor, ...]
    ) -> Self:
        """The computed torques of a model's motors."""
        some = tuple(motor for motor in motors if motor.computed)
        reference = np.array([model.qpos0[at.q_index] for at in built.axes])
        return cls(some, tuple(built.axes), actuation, joint_couplings(model), reference)

    def apply(self, multibodies: list[Any], command: Array) -> None:
        """Set the torques of all its joints for one physics step."""
        positions = [multibody.generalized_position() for multibody in multibodies]
        speeds = [multibody.generalized_velocity() for multibody in multibodies]
        dofs = [at.dof for at in self.joints]
        q, v = np.zeros((2, len(self.actuation.damping)))
        q[dofs] = np.array([positions[at.multibody][at.offset] for at in self.joints]) + self.reference
        v[dofs] = [speeds[at.multibody][at.offset] for at in self.joints]
        torque, damping = self.actuation.torque_and_damping(q, v, command)
        total_damping = self.actuation.damping + damping
        if len(self.couplings.driven):
            torque = torque + self.couplings.torque(q, v, torque - total_damping * v)
        dampings = [multibody.damping() for multibody in multibodies]
        for motor in self.motors:
            motor.apply_torque(multibodies[motor.at.multibody], float(torque[motor.at.dof]))
            dampings[motor.at.multibody][motor.at.offset] = float(total_damping[motor.at.dof])
        for multibody, values in zip(multibodies, dampings, strict=True):
            multibody.set_damping(values)


COUPLING_RATE = 0.25
"""Bandwidth of couplings as a share of the physics rate; stable with inertia off by a factor of two."""


@array_dataclass
class JointActuation:
    """Actuators, springs, dampers and friction of hinges and slides; vectors have one number per degree of freedom."""

    moment: Array
    """[nu, nv]."""
    gain: Array
    """g0, g1, g2 of each actuator [nu, 3]."""
    bias: Array
    """b0, b1, b2 of each actuator [nu, 3]."""
    command: Array
    """Range of commands [nu, 2]; infinite where open."""
    force: Array
    """Range of forces [nu, 2]; infinite where open."""
    joint_force: Array
    """Range of the total actuator force on a joint [nv, 2]."""
    stiffness: Array
    """[Nm/rad]."""
    spring: Array
    """Rest position of the spring [rad]."""
    damping: Array
    """[Nm s/rad]."""
    armature: Array
    """[kg m2]."""
    frictionloss: Array
    """[Nm]."""

    def torque_and_damping(self, q: Array, v: Array, command: Array) -> tuple[Array, Array]:
        """Torque of actuators and springs without their damping, and that damping, per degree of freedom.

        The engine integrates the damping implicitly, as MuJoCo does. A clipped actuator has none.
        """
        length, speed = self.moment @ q, self.moment @ v
        force_part = self.gain[:, 0] * command + self.bias[:, 0] + self.bias[:, 1] * length
        if self.gain[:, 1:].any():
            force_part += (self.gain[:, 1] * length + self.gain[:, 2] * speed) * command
        whole = force_part + self.bias[:, 2] * speed
        clipped = np.minimum(np.maximum(whole, self.force[:, 0]), self.force[:, 1])
        # Only the damping of a single joint fits on the diagonal; that of a tendon couples its joints.
        alone = (whole == clipped) & (np.count_nonzero(self.moment, axis=1) == 1)
        torque = np.where(alone, force_part, clipped) @ self.moment
        damping = np.where(alone, -self.bias[:, 2], 0.0) @ self.moment**2
        both = torque - damping * v
        over = (both < self.joint_force[:, 0]) | (both > self.joint_force[:, 1])
        torque = np.where(over, np.clip(both, *self.joint_force.T), torque)
        damping = np.where(over, 0.0, damping)
        return torque - self.stiffness * (q - self.spring), damping


def joint_actuation(model: mujoco.MjModel) -> JointActuation:
    """The actuation of a model that passed `check_support`."""
    gear = _moment(model)
    no_damper, no_spring = disabled(model, "DAMPER"), disabled(model, "SPRING")
    scale = (gear**2).T
    fixed = model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_NONE)
    constant = model.actuator_gaintype == int(mujoco.mjtGain.mjGAIN_FIXED)
    bias = np.where(fixed[:, None], 0.0, model.actuator_biasprm[:, :3])
    gain = np.where(constant[:, None] & (np.arange(3) > 0), 0.0, model.actuator_gainprm[:, :3])
    group = model.actuator_group
    idle = (group >= 0) & (group <= 30) & ((int(model.opt.disableactuator) >> np.clip(group, 0, 30)) & 1 > 0)
    idle |= disabled(model, "ACTUATION")
    joint_force = _range(model.jnt_actfrclimited, model.jnt_actfrcrange)
    damping = model.dof_damping + scale @ model.actuator_damping
    spring, dofs = np.zeros(model.nv), _scalar_dofs(model)
    spring[dofs] = model.qpos_spring[model.jnt_qposadr[model.dof_jntid[dofs]]]
    return JointActuation(
        moment=gear,
        gain=np.where(idle[:, None], 0.0, gain),
        bias=np.where(idle[:, None], 0.0, bias),
        command=_range(model.actuator_ctrllimited * (not disabled(model, "CLAMPCTRL")), model.actuator_ctrlrange),
        force=_range(model.actuator_forcelimited, model.actuator_forcerange),
        joint_force=_per_dof(model, joint_force, np.array([-np.inf, np.inf])),
        stiffness=_per_dof(model, model.jnt_stiffness * (not no_spring), np.zeros(())),
        spring=spring,
        damping=damping * (not no_damper),
        armature=model.dof_armature + scale @ model.actuator_armature,
        frictionloss=model.dof_frictionloss * (not disabled(model, "FRICTIONLOSS")),
    )


def friction_damping(model: mujoco.MjModel, dof: int) -> float:
    """Damping of dry friction below the speed at which a joint slips [Nm s/rad].

    MuJoCo's dry friction creeps: with time constant T and impedance d it is a damper of `2 d / (T (1 - d))` times the
    inertia of the joint, up to the friction.
    """
    time, ratio = (float(x) for x in model.dof_solref[dof])
    start, width = (float(x) for x in np.clip(model.dof_solimp[dof, :2], 1e-4, 0.9999))
    rate = 2 / (width * max(time, 2 * float(model.opt.timestep))) if time > 0 else -ratio
    return rate * start / (1 - start) / float(model.dof_invweight0[dof])


def _moment(model: mujoco.MjModel) -> Array:
    """Moment arms: actuator length per degree of freedom [nu, nv]."""
    moment = np.zeros((model.nu, model.nv))
    for a in range(model.nu):
        target, gear = int(model.actuator_trnid[a, 0]), float(model.actuator_gear[a, 0])
        if model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_TENDON):
            for joint, share in tendon_joints(model, target):
                moment[a, model.jnt_dofadr[joint]] += gear * share
        else:
            moment[a, model.jnt_dofadr[target]] = gear
    return moment


def tendon_joints(model: mujoco.MjModel, tendon: int) -> list[tuple[int, float]]:
    """Joints of a fixed tendon and their shares."""
    rows = range(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon])
    return [(int(model.wrap_objid[w]), float(model.wrap_prm[w])) for w in rows]


def _range(limited: Array, given: Array) -> Array:
    return np.where(np.asarray(limited, bool)[:, None], given, np.array([-np.inf, np.inf]))


def _per_dof(model: mujoco.MjModel, values: Array, otherwise: Array) -> Array:
    """A value per joint as one per degree of freedom, for hinges and slides."""
    out = np.broadcast_to(otherwise, (model.nv, *np.shape(values)[1:])).astype(float)
    dofs = _scalar_dofs(model)
    out[dofs] = values[model.dof_jntid[dofs]]
    return out


def _scalar_dofs(model: mujoco.MjModel) -> Array:
    """Degrees of freedom of hinges and slides."""
    return np.flatnonzero(np.isin(model.jnt_type[model.dof_jntid], (HINGE, SLIDE)))


@array_dataclass
class JointCouplings:
    """Joints that follow others: `driven @ q = p0 + p1 x + p2 x^2 + ..` with `x = driving @ q`."""

    driven: Array
    """[couplings, dofs]."""
    driving: Array
    """[couplings, dofs]; zeros where the driven joint is held still."""
    reference: Array
    """Of both sides [couplings, 2]."""
    coefficients: Array
    """Coefficients, lowest order first [couplings, 5]."""
    inverse_mass: Array
    """Of each degree of freedom, at rest [1/(kg m2)] [dofs]."""
    rate: float
    """Decay rate of a deviation [1/s]."""
    linear: tuple[Array, Array, Array] | None = field(init=False)
    """The linearization if all couplings are linear, else None."""

    def __post_init__(self) -> None:
        linear = len(self.driven) > 0 and not self.coefficients[:, 2:].any()
        object.__setattr__(self, "linear", self._linearised(np.zeros(len(self.driven.T))) if linear else None)

    @property
    def dofs(self) -> Array:
        """Degrees of freedom that are coupled."""
        return np.flatnonzero(self.driven.any(axis=0) | self.driving.any(axis=0))

    def torque(self, q: Array, v: Array, applied: Array) -> Array:
        """The torques that keep coupled joints together under other torques.

        Critically damped springs between the joints, with their inertia at rest.
        """
        moment, shared, value = self.linear or self._linearised(q)
        deviation = moment @ q - value
        wanted = -(self.rate**2) * deviation - 2 * self.rate * (moment @ v) - moment @ (self.inverse_mass * applied)
        return shared @ wanted

    def _linearised(self, q: Array) -> tuple[Array, Array, Array]:
        """Jacobian of the couplings, distribution of their forces to the joints, and target of `moment @ q`."""
        x = self.driving @ q - self.reference[:, 1]
        value, gradient = np.zeros_like(x), np.zeros_like(x)
        for coefficient in self.coefficients.T[::-1]:
            gradient = gradient * x + value
            value = value * x + coefficient
        moment = self.driven - gradient[:, None] * self.driving
        shared = moment.T @ np.linalg.inv((moment * self.inverse_mass) @ moment.T)
        return moment, shared, self.reference[:, 0] + value - gradient * (self.driving @ q)


def joint_couplings(model: mujoco.MjModel) -> JointCouplings:
    """The joints and fixed tendons of a model that follow others."""
    some = [e for e in active_equalities(model) if int(model.eq_type[e]) in (_JOINT, _TENDON)]
    driven, driving = np.zeros((len(some), model.nv)), np.zeros((len(some), model.nv))
    reference = np.zeros((len(some), 2))
    for row, e in enumerate(some):
        for side, (matrix, thing) in enumerate(((driven, model.eq_obj1id[e]), (driving, model.eq_obj2id[e]))):
            if thing < 0:
                continue
            tied = tendon_joints(model, int(thing)) if model.eq_type[e] == _TENDON else [(int(thing), 1.0)]
            for joint, share in tied:
                matrix[row, model.jnt_dofadr[joint]] += share
                reference[row, side] += share * float(model.qpos0[model.jnt_qposadr[joint]])
    coefficients = model.eq_data[some, :5].copy()
    rate = COUPLING_RATE / float(model.opt.timestep)
    return JointCouplings(driven, driving, reference, coefficients, model.dof_invweight0.copy(), rate)
