"""Derivatives of an arm's motion by its parameters and its start state, from equations linearised along the motion.

Small changes dq, dv of the motion and dp of the parameters obey

    (M + S / R) da = F dp - (dI/dq) dq - (dI/dv + S b / R) dv,
    (M + h D) da' = M da + G dp,

with M the mass matrix, I(q, v, a) the inverse dynamics, F the torques that the parameters change, and S = 1 where dry
friction holds a joint, as a soft constraint of compliance R that removes velocity at the rate b. The acceleration a'
that a step of length h takes is smaller than a, since damping D is taken at its end; G is what parameters change there.
All parameters and start states together cost about as much as three simulations, where finite differences need one
simulation each.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import mujoco
import numpy as np

from instep.core.param import Param
from instep.core.processes import usable_cores
from instep.core.world import Array, array_dataclass
from instep.physics.mujoco_world import MujocoWorld, PhysicsSteps
from instep.scene import address

from .windows import Shooter, Windows

SAMPLE_S, TOUCHING_SAMPLE_S = 0.016, 0.008
"""Time between the points at which inverse dynamics are linearised [s], for motion without contacts and limits and with
them; in between they are interpolated."""
STATE_STEP = 1e-6
"""Step of the finite differences of inverse dynamics [rad, rad/s, rad/s2]."""
MIN_WINDOWS = 8
"""Windows that are worth a thread."""
SLIP = 1 - 1e-6
"""Share of dry friction from which on a joint slips."""
_ON_JOINT, _ON_TENDON = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_TENDON)
_LINEAR = int(mujoco.mjtWrap.mjWRAP_JOINT)
_PLAIN_JOINTS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
_IMPLICIT = (int(mujoco.mjtIntegrator.mjINT_IMPLICIT), int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST))


@array_dataclass
class Sensitivities:
    """Derivatives of the positions at the rows of each window, in the directions of the velocities."""

    params: Array
    """By parameter in unit coordinates [params, windows, span, nv]; zero for those not known."""
    starts: Array
    """By start state, positions then velocities [2 nv, windows, span, nv]."""
    known: Array
    """Which parameters are covered [params]; others need finite differences."""


def motion_is_linearisable(sim: object) -> bool:
    """Whether a simulator is a MuJoCo arm of hinges and slides without activation states."""
    if not isinstance(sim, MujocoWorld):
        return False
    model = sim.model
    return model.na == 0 and bool(np.isin(model.jnt_type, _PLAIN_JOINTS).all())


def sensitivities(shooter: Shooter, x: Array, starts: Array) -> Sensitivities:
    """Derivatives of the predicted motion at some parameters [params] and shifts of start states [windows, 2 nv]."""
    windows, nv = shooter.windows, len(shooter.windows.tangent.labels)
    world = cast(MujocoWorld, shooter.sim.tuned({k: float(v) for k, v in shooter.settings(x).items()}))
    q, v = windows.tangent.plus(windows.q, starts[:, :nv]), windows.v + starts[:, nv:]
    steps = world.physics_steps(world.place(q, v, 0.0, windows.past), np.moveaxis(windows.action, 1, 0))
    values = [float(param.from_unit(x[i])) for i, param in enumerate(shooter.params)]
    pairs = zip(shooter.params, values, strict=True)
    by_unit = np.array([v * np.log(p.high / p.low) if p.log else p.high - p.low for p, v in pairs])
    arm = _Arm.of(world, steps, shooter.params, by_unit)

    def part(some: Array) -> tuple[Array, Array]:
        columns = {name: getattr(steps, name)[some] for name in ("q", "v", "acceleration", "constraint", "actuator")}
        own, inside = replace(steps, **columns), windows.subset(some)
        linear = _Linearised.along(arm, own)
        known, forces = _forces(arm, own)
        for i in [i for i, param in enumerate(arm.params) if param.address == address.DELAY]:
            known[i], forces[0, ..., i] = True, _delay_force(arm.world, own, inside)
        return known | linear.known, _integrated(arm, own, linear, forces * arm.by_unit)

    threads = max(1, min(world.threads or usable_cores(), len(windows) // MIN_WINDOWS))
    with ThreadPoolExecutor(threads) as pool:
        known, paths = zip(*pool.map(part, np.array_split(np.arange(len(windows)), threads)), strict=True)
    # A window that diverged has no derivatives.
    path = np.nan_to_num(np.moveaxis(np.concatenate(paths), -1, 0), nan=0.0, posinf=0.0, neginf=0.0)
    return Sensitivities(path[2 * nv :] * known[0][:, None, None, None], path[: 2 * nv], known[0])


@array_dataclass
class _Arm:
    """What linearised equations need that is the same in all windows."""

    world: MujocoWorld
    params: Sequence[Param]
    by_unit: Array
    """Derivative of each parameter's value by its unit coordinate [params]."""
    smooth: mujoco.MjModel
    """The model whose inverse dynamics are linearised."""
    sample_s: float
    """Time between the points at which they are [s]."""
    softer: Mapping[int, Array]
    """Relative change of the compliance of dry friction, per unit of the armature of a joint, by its number."""

    @classmethod
    def of(cls, world: MujocoWorld, steps: PhysicsSteps, params: Sequence[Param], by_unit: Array) -> _Arm:
        """The same for all windows, of a world that did some steps."""
        joints = [p.parts.name for p in params if p.parts.kind == "joint" and p.parts.field == "armature"]
        dofs = [int(world.model.joint(name).dofadr[0]) for name in joints]
        # Joints held by more than dry friction at some time: by limits, contacts or couplings.
        slip = world.model.dof_frictionloss * (2 - SLIP) + 1e-9
        held = (np.abs(np.nan_to_num(steps.constraint)) > slip).any(axis=(0, 1))
        # A coupling, unlike a limit, does not come and go.
        coupled, model = np.zeros(world.model.nv, bool), world.model
        for i in np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)):
            joined = [int(j) for j in (model.eq_obj1id[i], model.eq_obj2id[i]) if j >= 0]
            coupled[model.jnt_dofadr[joined]] = True
        sample_s = TOUCHING_SAMPLE_S if (held & ~coupled).any() else SAMPLE_S
        softer = {dof: _softer(model, dof) for dof in dofs}
        # Without dry friction and actuators, and without constraints where nothing is held by any.
        smooth = copy.copy(model)
        smooth.dof_frictionloss[:] = 0.0
        smooth.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        if not held.any():
            smooth.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
        return cls(world, params, by_unit, smooth, sample_s, softer)


@array_dataclass
class _Linearised:
    """Inverse dynamics linearised at some physics steps, with contacts and limits but without dry friction."""

    at: Array
    """The physics steps [samples]."""
    mass: Array
    """Derivative by acceleration [windows, samples, nv, nv]."""
    stiffness: Array
    """Derivative by position [windows, samples, nv, nv]."""
    damping: Array
    """Derivative by velocity [windows, samples, nv, nv]."""
    carried: Array
    """Torques of full gravity compensation, by parameter [windows, samples, nv, params]; zero for other parameters."""
    known: Array
    """Which parameters are gravity compensation [params]."""

    @classmethod
    def along(cls, arm: _Arm, steps: PhysicsSteps) -> _Linearised:
        """Linearise at the first physics step, the last, and some in between."""
        model, params, nv = arm.smooth, arm.params, arm.smooth.nv
        n, total = steps.acceleration.shape[:2]
        every = max(1, round(arm.sample_s / model.opt.timestep))
        at: Array = np.array(sorted({*range(0, total, every), total - 1}))
        parts = np.zeros((3, n, len(at), nv, nv))
        bodies = {i: int(model.body(p.parts.name).id) for i, p in enumerate(params) if p.parts.field == "gravcomp"}
        carried, jacobian = np.zeros((n, len(at), nv, len(params))), np.zeros((3, nv))
        parts[0], data = np.eye(nv), mujoco.MjData(model)
        taken = _taken(model, steps)
        lost = ~np.isfinite(taken[:, at]).all(axis=-1)
        for w, s in zip(*np.nonzero(~lost), strict=True):
            k = at[s]
            data.qpos[:], data.qvel[:], data.qacc[:] = steps.q[w, k], steps.v[w, k], taken[w, k]
            by_q, by_v, by_a = parts[1, w, s], parts[2, w, s], parts[0, w, s]
            mujoco.mjd_inverseFD(model, data, STATE_STEP, False, by_q, by_v, by_a, None, None, None, None)
            for i, body in bodies.items():
                mujoco.mj_jacBodyCom(model, data, jacobian, None, body)
                carried[w, s, :, i] = -model.body_mass[body] * (model.opt.gravity @ jacobian)
        mass, stiffness, damping = np.swapaxes(parts, -1, -2)
        known = np.array([i in bodies for i in range(len(params))])
        return cls(at, mass, stiffness, damping, carried, known)


def _forces(arm: _Arm, steps: PhysicsSteps) -> tuple[Array, Array]:
    """Which parameters act as torques at joints [params], and F and G of them [2, windows, steps, nv, params]."""
    model, params = arm.world.model, arm.params
    known, dry = np.zeros(len(params), bool), dry_friction(model, steps)
    held = np.where(_holds(model, dry), dry, 0.0)
    out = np.zeros((2, *steps.acceleration.shape, len(params)))
    for i, param in enumerate(params):
        at = param.parts
        if at.kind == "joint":
            dof = int(model.joint(at.name).dofadr[0])
            found = _joint_force(model, steps, dof, at.field, dry)
            if found is not None:
                out[:, :, :, dof, i], known[i] = np.broadcast_arrays(*found), True
            if at.field == "armature":
                out[0, ..., i] -= held * arm.softer[dof]
        elif at.kind == "actuator":
            forces = _actuator_forces(model, steps, int(model.actuator(at.name).id), at.field)
            if forces is not None:
                out[0, ..., i], out[1, ..., i], known[i] = *forces, True
    return known, out


def _softer(model: mujoco.MjModel, dof: int) -> Array:
    """Relative change, per unit of an armature, of the compliance R of dry friction at all joints [nv]."""
    step = 1e-4 * max(float(model.dof_armature[dof]), 1e-3)
    changed = copy.copy(model)
    changed.dof_armature[dof] += step
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    before = np.maximum(model.dof_invweight0, 1e-12)
    return (changed.dof_invweight0 / before - 1) / step


def dry_friction(model: mujoco.MjModel, steps: PhysicsSteps) -> Array:
    """Torques of dry friction, apart from those of other constraints [windows, steps, nv].

    Friction that holds leaves an acceleration in proportion to its torque.
    """
    rate, softness = _friction_constants(model)
    away = steps.acceleration + rate * steps.v[:, :-1]
    return np.clip(-away / softness, -model.dof_frictionloss, model.dof_frictionloss)


def _friction_constants(model: mujoco.MjModel) -> tuple[Array, Array]:
    """How fast dry friction that holds removes velocity, and its compliance R, of all joints [nv]."""
    least, most, time = model.dof_solimp[:, 0], model.dof_solimp[:, 1], model.dof_solref[:, 0]
    rate = np.where(time > 0, 2 / (most * np.where(time > 0, time, 1.0)), -model.dof_solref[:, 1] / most)
    return rate, np.maximum((1 - least) / least * model.dof_invweight0, 1e-12)


def _holds(model: mujoco.MjModel, dry: Array) -> Array:
    """Where dry friction holds a joint rather than slips [windows, steps, nv]."""
    return (np.abs(dry) < SLIP * model.dof_frictionloss) & (model.dof_frictionloss > 0)


def _joint_force(
    model: mujoco.MjModel, steps: PhysicsSteps, dof: int, field: str, dry: Array
) -> tuple[Array, Array | float] | None:
    h, taken = float(model.opt.timestep), _taken(model, steps)[..., dof]
    if field == "damping":
        return -steps.v[:, :-1, dof], -h * taken
    if field == "armature":
        return -steps.acceleration[..., dof], steps.acceleration[..., dof] - taken
    if field == "frictionloss":
        torque, most = dry[..., dof], float(model.dof_frictionloss[dof])
        return np.where(np.abs(torque) >= SLIP * most, np.sign(torque), 0.0), 0.0
    return None


def _taken(model: mujoco.MjModel, steps: PhysicsSteps) -> Array:
    """The acceleration that the integrator took, which damping taken implicitly makes smaller [windows, steps, nv]."""
    return np.diff(steps.v, axis=1) / float(model.opt.timestep)


def moments(model: mujoco.MjModel) -> Array:
    """Torque at each joint per force of each actuator [nu, nv]; zero for those that act on neither joint nor tendon.

    Of tendons those are meant that are linear in the joints.
    """
    out = np.zeros((model.nu, model.nv))
    for a in range(model.nu):
        at, gear = int(model.actuator_trnid[a, 0]), float(model.actuator_gear[a, 0])
        if int(model.actuator_trntype[a]) == _ON_JOINT:
            out[a, int(model.jnt_dofadr[at])] = gear
        elif int(model.actuator_trntype[a]) == _ON_TENDON:
            first = int(model.tendon_adr[at])
            for wrap in range(first, first + int(model.tendon_num[at])):
                if int(model.wrap_type[wrap]) == _LINEAR:
                    out[a, int(model.jnt_dofadr[model.wrap_objid[wrap]])] = gear * float(model.wrap_prm[wrap])
    return out


def _related(model: mujoco.MjModel) -> Array:
    """Whether one of two joints carries the other, or is it [nv, nv]: only between those damping is implicit."""
    out = np.eye(model.nv, dtype=bool)
    for dof in range(model.nv):
        above = int(model.dof_parentid[dof])
        while above >= 0:
            out[dof, above] = out[above, dof] = True
            above = int(model.dof_parentid[above])
    return out


def _actuator_forces(model: mujoco.MjModel, steps: PhysicsSteps, a: int, field: str) -> tuple[Array, Array] | None:
    """F and G [windows, steps, nv] per unit of a gain, gear ratio or offset of an actuator."""
    moment, force = moments(model)[a], steps.actuator[..., a]
    if not moment.any():
        return None
    offset, stiffness, damping = (float(p) for p in model.actuator_biasprm[a, :3])
    within, none = ~_saturated(model, steps, a), np.zeros(steps.acceleration.shape)
    speed, gain = steps.v[:, :-1] @ moment, float(model.actuator_gainprm[a, 0])
    if field == "gear" and stiffness == 0 and damping == 0:
        change = force * ~_joint_saturated(model, steps, a) / float(model.actuator_gear[a, 0])
    elif field == "bias":
        change = within
    elif field == "gain" and stiffness == 0 and damping == 0:
        change = within * (force - offset) / gain
    elif field == "kp" and stiffness != 0:
        change = within * (force - offset - damping * speed) / -stiffness
    elif field == "kv" and stiffness != 0:
        implicit = np.outer(moment, moment) * _related(model) if _implicit(model) else np.zeros((model.nv, model.nv))
        later = -float(model.opt.timestep) * (_taken(model, steps) @ implicit) * within[..., None]
        return -(within * speed)[..., None] * moment, later
    else:
        return None
    return change[..., None] * moment, none


def _implicit(model: mujoco.MjModel) -> bool:
    """Whether the integrator takes the damping of actuators, not only that of joints, at the end of a step."""
    return int(model.opt.integrator) in _IMPLICIT


def _delay_force(world: MujocoWorld, steps: PhysicsSteps, windows: Windows) -> Array:
    """Torques at the joints per second of delay: commands are interpolated between physics steps [n, steps, nv]."""
    model = world.model
    h, total = float(model.opt.timestep), steps.acceleration.shape[1]
    commands, now = np.concatenate([windows.past, windows.action], axis=1), windows.past.shape[1] * world.substeps
    out = np.zeros(steps.acceleration.shape)
    for a, moment in enumerate(moments(model)):
        own = np.repeat(commands[:, :, a], world.substeps, axis=1)
        if model.actuator_ctrllimited[a]:
            own = np.clip(own, model.actuator_ctrlrange[a, 0], model.actuator_ctrlrange[a, 1])
        late = int(float(model.actuator_delay[a]) / h)
        at = np.array([max(k, 1) for k in range(now - late, now - late + total)])
        change = (own[:, at - 1] - own[:, at]) / h * ~_saturated(model, steps, a)
        out += float(model.actuator_gainprm[a, 0]) * change[..., None] * moment
    return out


def _saturated(model: mujoco.MjModel, steps: PhysicsSteps, a: int) -> Array:
    """Where the force of an actuator, or the torque at its joint, is at its limit [windows, steps]."""
    force, at_joint = steps.actuator[..., a], _joint_saturated(model, steps, a)
    if not model.actuator_forcelimited[a]:
        return at_joint
    low, high = model.actuator_forcerange[a]
    return at_joint | (force <= low) | (force >= high)


def _joint_saturated(model: mujoco.MjModel, steps: PhysicsSteps, a: int) -> Array:
    joint, torque = int(model.actuator_trnid[a, 0]), float(model.actuator_gear[a, 0]) * steps.actuator[..., a]
    if int(model.actuator_trntype[a]) != _ON_JOINT or not model.jnt_actfrclimited[joint]:
        return np.zeros(torque.shape, bool)
    low, high = model.jnt_actfrcrange[joint]
    return (torque <= low) | (torque >= high)


@array_dataclass
class _Feedback:
    """What pulls a motion back beside inverse dynamics."""

    within: Array
    """Whether each position servo is within its limits [nu, steps, windows]."""
    stiffness: Array
    """Of position servos at the joints [nu, nv, nv]."""
    damping: Array
    """Of position servos at the joints [nu, nv, nv]."""
    held: Array
    """1 / R where dry friction holds, else 0 [steps, windows, nv]."""
    rate: Array
    """How fast dry friction that holds removes velocity [nv]."""
    joint_damping: Array
    """Of the joints [nv]."""
    implicit: Array
    """Share of the servos' damping that the integrator takes implicitly [nv, nv]."""

    @classmethod
    def along(cls, world: MujocoWorld, steps: PhysicsSteps) -> _Feedback:
        """The feedback at every physics step."""
        model, moment = world.model, moments(world.model)
        at_joints = moment[:, :, None] * moment[:, None, :]
        stiffness, damping = (-model.actuator_biasprm[:, i, None, None] * at_joints for i in (1, 2))
        within = np.stack([~_saturated(model, steps, a).T for a in range(model.nu)]).astype(float)
        rate, softness = _friction_constants(model)
        held = np.moveaxis(_holds(model, dry_friction(model, steps)), 0, 1) / softness
        implicit = _related(model) * float(_implicit(model))
        return cls(within, stiffness, damping, held, rate, model.dof_damping.copy(), implicit)

    def servos(self, part: Array, steps: slice) -> Array:
        """Stiffness or damping of all servos at some steps [steps, windows, nv, nv]."""
        return np.tensordot(self.within[:, steps], part, axes=(0, 0))


def _integrated(arm: _Arm, steps: PhysicsSteps, linear: _Linearised, forces: Array) -> Array:
    """Changes of the positions at rows by start states, then by parameters [windows, span, nv, 2 nv + params]."""
    world, by_unit = arm.world, arm.by_unit
    n, total, nv = steps.acceleration.shape
    h, feedback = float(world.model.opt.timestep), _Feedback.along(world, steps)
    changes = np.zeros((n, 2 * nv, 2 * nv + forces.shape[-1]))  # positions, then velocities
    changes[:, np.arange(2 * nv), np.arange(2 * nv)] = 1.0
    out = np.empty((n, total // world.substeps, nv, changes.shape[-1]))
    forces = np.moveaxis(forces, 2, 0)
    for first, after in zip(linear.at, np.append(linear.at[1:], total), strict=True):
        system = _System.between(linear, feedback, (int(first), int(after)), h)
        for i, k in enumerate(range(first, after)):
            torque = -system.pull[i] @ changes
            torque[..., 2 * nv :] += forces[k, 0] + system.carried[i] * by_unit
            torque = system.passed[i] @ torque
            torque[..., 2 * nv :] += forces[k, 1]
            changes[:, nv:] += h * system.inverse[i] @ torque
            changes[:, :nv] += h * changes[:, nv:]
            if (k + 1) % world.substeps == 0:
                out[:, (k + 1) // world.substeps - 1] = changes[:, :nv]
    return out


@array_dataclass
class _System:
    """The linearised equations of motion at the physics steps between two samples."""

    inverse: Array
    """Acceleration per torque, damping taken implicitly [steps, windows, nv, nv]."""
    passed: Array
    """Share of a torque that dry friction which holds lets through [steps, windows, nv, nv]."""
    pull: Array
    """Torque against a change of positions, then of velocities [steps, windows, nv, 2 nv]."""
    carried: Array
    """Torques of full gravity compensation by parameter [steps, windows, nv, params]."""

    @classmethod
    def between(cls, linear: _Linearised, feedback: _Feedback, steps: tuple[int, int], h: float) -> _System:
        """The equations from one sample up to the physics step before the next."""
        first, after = steps
        i = int(np.searchsorted(linear.at, first))
        last, share = min(i + 1, len(linear.at) - 1), (np.arange(after - first) / (after - first))[:, None, None, None]
        mass, stiffness, damping, carried = (
            part[:, i] + share * (part[:, last] - part[:, i])
            for part in (linear.mass, linear.stiffness, linear.damping, linear.carried)
        )
        now, diagonal = slice(first, after), list(range(mass.shape[-1]))
        servos = feedback.servos(feedback.damping, now)
        stiffness += feedback.servos(feedback.stiffness, now)
        damping += servos
        damping[..., diagonal, diagonal] += feedback.held[now] * feedback.rate
        effective, implicit = mass.copy(), mass + h * servos * feedback.implicit
        effective[..., diagonal, diagonal] += feedback.held[now]
        implicit[..., diagonal, diagonal] += h * feedback.joint_damping
        return cls(
            np.linalg.inv(implicit),
            mass @ np.linalg.inv(effective),
            np.concatenate([stiffness, damping], axis=-1),
            carried,
        )
