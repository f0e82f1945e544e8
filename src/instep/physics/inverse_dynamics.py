"""Inverse dynamics: joint torques of a motion, and the regressor that makes them linear in inertial parameters.

The torques of a tree of rigid bodies are linear in ten numbers of each body: mass m, first moment m c (c the centre of
mass), and inertia about the frame of the body, all in that frame,

    tau = Y(q, v, a) pi,    pi = [m, m cx, m cy, m cz, Ixx, Ixy, Ixz, Iyy, Iyz, Izz].
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco
import numpy as np

from instep.core.world import Array, array_dataclass

INERTIAL = ("m", "mx", "my", "mz", "Ixx", "Ixy", "Ixz", "Iyy", "Iyz", "Izz")
"""The inertial parameters of a body, in their order."""
STOP_SPEED = 0.02
"""Speed below which dry friction fades [rad/s or m/s]: sign(v) is taken as tanh(v / STOP_SPEED)."""

_ON_JOINT = int(mujoco.mjtWrap.mjWRAP_JOINT)


@array_dataclass
class Motion:
    """Positions [rows, nq], velocities and accelerations [rows, nv] of a model."""

    q: Array
    v: Array
    a: Array

    def __len__(self) -> int:
        return len(self.q)

    def rows(self, which: Array | slice) -> Motion:
        """Some rows."""
        return Motion(self.q[which], self.v[which], self.a[which])


def direction(v: Array) -> Array:
    """The direction of dry friction, from -1 to 1, without a jump at rest."""
    return np.tanh(v / STOP_SPEED)


def model_torques(model: mujoco.MjModel, motion: Motion) -> Array:
    """The torques that a model needs for a motion [rows, nv]: M a + bias - passive forces + dry friction.

    Dry friction is that of joints and of fixed tendons. Contacts, limits and equality constraints are left out: they
    are not a function of the motion.
    """
    free = copy.copy(model)
    free.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    data, out = mujoco.MjData(free), np.empty((len(motion), model.nv))
    for row, (q, v, a) in enumerate(zip(motion.q, motion.v, motion.a, strict=True)):
        data.qpos[:], data.qvel[:], data.qacc[:] = q, v, a
        mujoco.mj_inverse(free, data)
        out[row] = data.qfrc_inverse
    arms = tendon_arms(model)
    dry = (model.tendon_frictionloss * direction(motion.v @ arms.T)) @ arms
    return out + model.dof_frictionloss * direction(motion.v) + dry


def rigid_torques(model: mujoco.MjModel, motion: Motion) -> Array:
    """The torques of the rigid bodies alone [rows, nv]: without friction, damping, springs and rotors."""
    data, out = mujoco.MjData(model), np.empty((len(motion), model.nv))
    for row, (q, v, a) in enumerate(zip(motion.q, motion.v, motion.a, strict=True)):
        data.qpos[:], data.qvel[:], data.qacc[:] = q, v, a
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        mujoco.mj_rne(model, data, 1, out[row])
    return out


def tendon_arms(model: mujoco.MjModel) -> Array:
    """Moment arms of fixed tendons [tendons, nv]; zero for tendons over sites."""
    arms = np.zeros((model.ntendon, model.nv))
    for tendon in range(model.ntendon):
        first = int(model.tendon_adr[tendon])
        for wrap in range(first, first + int(model.tendon_num[tendon])):
            if model.wrap_type[wrap] == _ON_JOINT:
                arms[tendon, int(model.jnt_dofadr[model.wrap_objid[wrap]])] = model.wrap_prm[wrap]
    return arms


def inertial_regressor(model: mujoco.MjModel, motion: Motion, bodies: Sequence[int]) -> Array:
    """Y(q, v, a): the torques by each inertial parameter of some bodies [rows, nv, 10 bodies].

    The Newton-Euler equations of a body in its own frame, with w its angular velocity and f the acceleration of its
    origin less gravity, give the wrench [m f + (dw x + w x w x) m c; m c x f + I dw + w x I w], which the Jacobian of
    the origin maps to the joints.
    """
    rows, nv = len(motion), model.nv
    jacobian, rate = np.zeros((rows, len(bodies), 6, nv)), np.zeros((rows, len(bodies), 6, nv))
    frame = np.empty((rows, len(bodies), 3, 3))
    data = mujoco.MjData(model)
    for row in range(rows):
        data.qpos[:], data.qvel[:] = motion.q[row], motion.v[row]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        for k, body in enumerate(bodies):
            mujoco.mj_jac(model, data, jacobian[row, k, :3], jacobian[row, k, 3:], data.xpos[body], body)
            mujoco.mj_jacDot(model, data, rate[row, k, :3], rate[row, k, 3:], data.xpos[body], body)
            frame[row, k] = data.xmat[body].reshape(3, 3).T
    v, a = motion.v[:, None, :, None], motion.a[:, None, :, None]
    acceleration = (jacobian @ a + rate @ v)[..., 0]
    lift = np.einsum("rbij,rbj->rbi", frame, acceleration[..., :3] - model.opt.gravity)
    spin_rate = np.einsum("rbij,rbj->rbi", frame, acceleration[..., 3:])
    spin = np.einsum("rbij,rbj->rbi", frame, (jacobian[..., 3:, :] @ v)[..., 0])
    local = np.concatenate([frame @ jacobian[..., :3, :], frame @ jacobian[..., 3:, :]], axis=-2)
    return np.einsum("rbij,rbik->rjbk", local, _wrench_map(lift, spin, spin_rate)).reshape(rows, nv, -1)


def tilt_regressor(model: mujoco.MjModel, motion: Motion) -> Array:
    """The torques by 1 m/s2 of gravity along x and y [rows, nv, 2], for a tilted base."""
    still = Motion(motion.q, np.zeros_like(motion.v), np.zeros_like(motion.a))
    plain = copy.copy(model)
    plain.opt.gravity[:] = 0.0
    rest = model_torques(plain, still)
    out: list[Array] = []
    for axis in (0, 1):
        plain.opt.gravity[:] = np.eye(3)[axis]
        out.append(model_torques(plain, still) - rest)
    return np.stack(out, axis=-1)


def inertial_parameters(model: mujoco.MjModel, bodies: Sequence[int]) -> Array:
    """The ten inertial parameters of some bodies as the model has them [bodies, 10]."""
    out = np.empty((len(bodies), 10))
    for k, body in enumerate(bodies):
        mass, centre = float(model.body_mass[body]), np.array(model.body_ipos[body])
        turn = np.empty(9)
        mujoco.mju_quat2Mat(turn, model.body_iquat[body])
        axes = turn.reshape(3, 3)
        inertia = axes @ np.diag(model.body_inertia[body]) @ axes.T
        inertia = inertia + mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))
        out[k] = [mass, *(mass * centre), *inertia[0], *inertia[1, 1:], inertia[2, 2]]
    return out


def with_inertial_parameters(model: mujoco.MjModel, bodies: Sequence[int], values: Array) -> mujoco.MjModel:
    """A copy of the model whose bodies have other inertial parameters [bodies, 10]."""
    changed = copy.copy(model)
    for body, pi in zip(bodies, values, strict=True):
        mass, centre, inertia = body_inertia(pi)
        moments, axes = np.linalg.eigh(inertia)
        axes = axes * np.sign(np.linalg.det(axes))
        changed.body_mass[body], changed.body_ipos[body], changed.body_inertia[body] = mass, centre, moments
        mujoco.mju_mat2Quat(changed.body_iquat[body], np.ascontiguousarray(axes).ravel())
        changed.body_sameframe[body] = 0  # its inertial frame is its own
        changed.body_simple[body] = 0
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    return changed


def body_inertia(pi: Array) -> tuple[float, Array, Array]:
    """Mass [kg], centre of mass [m] and inertia about the centre of mass [kg m2] of ten inertial parameters."""
    mass, centre = float(pi[0]), np.asarray(pi[1:4]) / pi[0]
    about = np.array([[pi[4], pi[5], pi[6]], [pi[5], pi[7], pi[8]], [pi[6], pi[8], pi[9]]])
    return mass, centre, about - mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))


def rigid_groups(model: mujoco.MjModel) -> list[int]:
    """The heaviest body of each rigid group; torques cannot distinguish bodies of one group."""
    heaviest: dict[int, int] = {}
    for body in range(1, model.nbody):
        root = int(model.body_weldid[body])
        if root == 0:
            continue  # fixed to the world
        if root not in heaviest or model.body_mass[body] > model.body_mass[heaviest[root]]:
            heaviest[root] = body
    return [body for body in heaviest.values() if model.body_mass[body] > 0]


def _wrench_map(lift: Array, spin: Array, spin_rate: Array) -> Array:
    """The wrench of a body by its inertial parameters [..., 6, 10], all in the frame of the body."""
    out = np.zeros((*lift.shape[:-1], 6, 10))
    turning = _cross(spin)
    out[..., :3, 0] = lift
    out[..., :3, 1:4] = _cross(spin_rate) + turning @ turning
    out[..., 3:, 1:4] = -_cross(lift)
    out[..., 3:, 4:] = _times(spin_rate) + turning @ _times(spin)
    return out


def _cross(x: Array) -> Array:
    """The matrix of the cross product with x."""
    out = np.zeros((*x.shape, 3))
    out[..., 0, 1], out[..., 0, 2], out[..., 1, 2] = -x[..., 2], x[..., 1], -x[..., 0]
    return out - np.swapaxes(out, -1, -2)


def _times(x: Array) -> Array:
    """The matrix that takes [Ixx, Ixy, Ixz, Iyy, Iyz, Izz] to I x."""
    out = np.zeros((*x.shape, 6))
    for row, places in enumerate(((0, 1, 2), (1, 3, 4), (2, 4, 5))):
        for k, place in enumerate(places):
            out[..., row, place] = x[..., k]
    return out
