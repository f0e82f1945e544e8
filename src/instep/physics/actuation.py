"""Actuators, springs, dampers and couplings of a MuJoCo model, for engines that do not have them.

MuJoCo's actuator model: an actuator has a length `l = moment @ q` and a speed `s = moment @ v`, its force is
`f = (g0 + g1 l + g2 s) u + b0 + b1 l + b2 s`, clipped to its range, and `moment.T @ f` acts on the joints.
"""

from __future__ import annotations

from dataclasses import field, replace

import mujoco
import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .engine_checks import active_equalities, disabled
from .link_tree import HINGE, SLIDE

_JOINT, _TENDON = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)
COUPLING_RATE = 0.25
"""Bandwidth of couplings as a share of the physics rate: stiff, and stable where inertia is off by a factor of two."""


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
    joint_count: Array = field(init=False)
    """How many degrees of freedom each actuator acts on [nu]."""
    moment_squared: Array = field(init=False)
    """Square of the moment, element by element [nu, nv]."""
    limited: bool = field(init=False)
    """Whether any joint limits its total actuator force."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "joint_count", np.count_nonzero(self.moment, axis=1))
        object.__setattr__(self, "moment_squared", self.moment**2)
        object.__setattr__(self, "limited", bool(np.isfinite(self.joint_force).any()))

    def clipped(self, action: Array) -> Array:
        """Commands inside their ranges."""
        return np.clip(action, self.command[:, 0], self.command[:, 1])

    def subset(self, dofs: Array) -> JointActuation:
        """The actuation of some degrees of freedom, as if there were no others; commands keep their order."""
        used = self.moment[:, dofs].any(axis=1)
        rows = {name: getattr(self, name)[used] for name in ("gain", "bias", "command", "force")}
        kept = ("joint_force", "stiffness", "spring", "damping", "armature", "frictionloss")
        columns = {name: getattr(self, name)[dofs] for name in kept}
        return JointActuation(self.moment[np.ix_(used, dofs)], **rows, **columns)

    def torque_and_damping(self, q: Array, v: Array, command: Array) -> tuple[Array, Array]:
        """Torque of actuators and springs, less what their damping does, and that damping, both per degree of freedom.

        An engine that adds the damping to its own treats it implicitly, as MuJoCo does; a clipped actuator has none.
        """
        length, speed = self.moment @ q, self.moment @ v
        force_part = self.gain[:, 0] * command + self.bias[:, 0] + self.bias[:, 1] * length
        if self.gain[:, 1:].any():
            force_part += (self.gain[:, 1] * length + self.gain[:, 2] * speed) * command
        whole = force_part + self.bias[:, 2] * speed
        clipped = np.minimum(np.maximum(whole, self.force[:, 0]), self.force[:, 1])
        # The damping of a tendon couples its joints; only that of one joint has a place on a diagonal.
        alone = (whole == clipped) & (self.joint_count == 1)
        torque = np.where(alone, force_part, clipped) @ self.moment
        damping = np.where(alone, -self.bias[:, 2], 0.0) @ self.moment_squared
        if self.limited:
            both = torque - damping * v
            over = (both < self.joint_force[:, 0]) | (both > self.joint_force[:, 1])
            torque = np.where(over, np.clip(both, self.joint_force[:, 0], self.joint_force[:, 1]), torque)
            damping = np.where(over, 0.0, damping)
        return torque - self.stiffness * (q - self.spring), damping


def joint_actuation(model: mujoco.MjModel) -> JointActuation:
    """The actuation of a model that `check_support` has accepted."""
    gear = _moment(model)
    no_damper, no_spring = disabled(model, "DAMPER"), disabled(model, "SPRING")
    scale = (gear**2).T
    fixed = model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_NONE)
    constant = model.actuator_gaintype == int(mujoco.mjtGain.mjGAIN_FIXED)
    bias = np.where(fixed[:, None], 0.0, model.actuator_biasprm[:, :3])
    gain = np.where(constant[:, None] & (np.arange(3) > 0), 0.0, model.actuator_gainprm[:, :3])
    idle = np.array([_switched_off(model, a) for a in range(model.nu)], bool)
    joint_force = _range(model.jnt_actfrclimited, model.jnt_actfrcrange)
    damping = model.dof_damping + scale @ model.actuator_damping
    return JointActuation(
        moment=gear,
        gain=np.where(idle[:, None], 0.0, gain),
        bias=np.where(idle[:, None], 0.0, bias),
        command=_range(model.actuator_ctrllimited * (not disabled(model, "CLAMPCTRL")), model.actuator_ctrlrange),
        force=_range(model.actuator_forcelimited, model.actuator_forcerange),
        joint_force=_per_dof(model, joint_force, np.array([-np.inf, np.inf])),
        stiffness=_per_dof(model, model.jnt_stiffness * (not no_spring), np.zeros(())),
        spring=_springs(model),
        damping=damping * (not no_damper),
        armature=model.dof_armature + scale @ model.actuator_armature,
        frictionloss=model.dof_frictionloss * (not disabled(model, "FRICTIONLOSS")),
    )


def scalar_dofs(model: mujoco.MjModel) -> Array:
    """Degrees of freedom that belong to hinges and slides."""
    kinds = model.jnt_type[model.dof_jntid]
    return np.flatnonzero((kinds == HINGE) | (kinds == SLIDE))


def scalar_positions(model: mujoco.MjModel) -> tuple[Array, Array]:
    """Indices of hinges and slides in q and in v."""
    dofs = scalar_dofs(model)
    return model.jnt_qposadr[model.dof_jntid[dofs]].astype(int), dofs


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


def _switched_off(model: mujoco.MjModel, actuator: int) -> bool:
    group = int(model.actuator_group[actuator])
    return disabled(model, "ACTUATION") or (0 <= group <= 30 and bool(int(model.opt.disableactuator) & (1 << group)))


def _range(limited: Array, given: Array) -> Array:
    return np.where(np.asarray(limited, bool)[:, None], given, np.array([-np.inf, np.inf]))


def _per_dof(model: mujoco.MjModel, values: Array, otherwise: Array) -> Array:
    """A value per joint as one per degree of freedom, for hinges and slides."""
    out = np.broadcast_to(otherwise, (model.nv, *np.shape(values)[1:])).astype(float)
    dofs = scalar_dofs(model)
    out[dofs] = values[model.dof_jntid[dofs]]
    return out


def _springs(model: mujoco.MjModel) -> Array:
    out = np.zeros(model.nv)
    places, dofs = scalar_positions(model)
    out[dofs] = model.qpos_spring[places]
    return out


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
    """How fast a deviation dies out [1/s]."""
    linear: tuple[Array, Array, Array] | None = field(init=False)
    """What is the same everywhere, where all couplings are linear; None where one is not."""

    def __post_init__(self) -> None:
        linear = len(self.driven) > 0 and not self.coefficients[:, 2:].any()
        object.__setattr__(self, "linear", self._linearised(np.zeros(len(self.driven.T))) if linear else None)

    @property
    def dofs(self) -> Array:
        """Degrees of freedom that are coupled."""
        return np.flatnonzero(self.driven.any(axis=0) | self.driving.any(axis=0))

    def subset(self, dofs: Array) -> JointCouplings:
        """The same couplings, where there are no other degrees of freedom."""
        return replace(
            self, driven=self.driven[:, dofs], driving=self.driving[:, dofs], inverse_mass=self.inverse_mass[dofs]
        )

    def torque(self, q: Array, v: Array, applied: Array) -> Array:
        """The torques that keep joints together while other torques act on them.

        These are critically damped springs between the joints, after what the motors do to them has been shared out,
        with the inertia that the joints have at rest.
        """
        moment, shared, value = self.linear or self._linearised(q)
        deviation = moment @ q - value
        wanted = -(self.rate**2) * deviation - 2 * self.rate * (moment @ v) - moment @ (self.inverse_mass * applied)
        return shared @ wanted

    def _linearised(self, q: Array) -> tuple[Array, Array, Array]:
        """How far each joint moves the couplings here, how they share a force, and what `moment @ q` should be."""
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
