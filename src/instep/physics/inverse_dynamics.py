"""Inverse dynamics: joint torques of a motion, and the regressor that makes them linear in inertial parameters.

The torques of a tree of rigid bodies are linear in ten numbers of each body: mass m, first moment m c (c the centre of
mass), and inertia about the frame of the body, all in that frame,

    tau = Y(q, v, a) pi,    pi = [m, m cx, m cy, m cz, Ixx, Ixy, Ixz, Iyy, Iyz, Izz].

Which joint each unlabelled column of a log belongs to, by the dynamics of the robot.

A position servo trails its command by what its joint has to carry. With rows smoothed alike,

    u - q = d u' + b u'' + lag q' + armature q'' + friction sign(q') + offset + tau(q, q', q'') / kp,

where only tau, the torque of the rigid bodies (gravity, inertia, and what the other joints do to this one), depends on
which joint a column is. All other terms are the column's own; they are projected out with free factors, and so is the
gain kp > 0, so that neither gains nor friction of the robot have to be known. An order of the columns is as good as it
explains the rest.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import mujoco
import numpy as np

from instep.core.world import Array, array_dataclass
from instep.data.guess.joint_columns import JointOrder, UnlabelledMotion, assigned
from instep.scene.folder import Scene

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


WINDOW_S = 0.3
"""Window of the cubic fits for velocity and acceleration [s]."""
ROWS = 400
"""Number of rows that score an order, spread over all runs."""
NOISE = {"rad": 3e-5, "m": 3e-6}
"""Noise floor of smoothed positions."""
REVERSAL = 0.01
"""Speed below which a joint may reverse; its dry friction is then undefined [rad/s or m/s]."""
DISPLACED = 4.0
"""Prior log odds against each column that deviates from the robot's own order."""
MAX_ORDERS = 1200
"""Maximum number of orders to try."""
RESTARTS = 4
"""Number of random initial orders."""
MIN_ALIKE = 0.1
"""Autocorrelation of the residual above which rows count as dependent."""
_HINGE, _SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)


@array_dataclass
class DynamicsOrder:
    """Finds the order of unlabelled columns of a robot by its dynamics."""

    scene: Scene

    def __call__(self, motion: UnlabelledMotion) -> JointOrder | None:
        """The best order; None if the motion is too short or commands are missing."""
        joints = [self.scene.model.joint(label) for label in motion.labels]
        if any(int(joint.type[0]) not in (_HINGE, _SLIDE) for joint in joints) or len(joints) < 2:
            return None
        signals = _smoothed(motion)
        if signals is None:
            return None
        search = _Search(self.scene, motion, signals)
        best = search.descend()
        return search.answer(best)


@array_dataclass
class _Signals:
    """Smoothed rows of all runs: positions and commands with two derivatives each, and which rows count."""

    q: Sequence[Array]
    u: Sequence[Array]
    kept: Array
    """Whether a column keeps its direction of motion around a row [rows, columns]."""
    windows: float
    """Number of smoothing windows in the rows: independent values per column."""


def _smoothed(motion: UnlabelledMotion) -> _Signals | None:
    """Cubic fits over a sliding window; None without a run of three windows or a command."""
    width = max(5, round(WINDOW_S / motion.dt) | 1)
    commanded = np.all([np.isfinite(commands).all(axis=0) for commands in motion.commands], axis=0)
    q: list[list[Array]] = []
    u: list[list[Array]] = []
    kept: list[Array] = []
    for positions, commands in zip(motion.q, motion.commands, strict=True):
        if len(positions) < 3 * width or not np.isfinite(positions).all():
            continue
        q.append(_derivatives(positions, width, motion.dt))
        u.append(_derivatives(np.where(commanded, commands, 0.0), width, motion.dt))
        kept.append(_keeps_direction(q[-1][1], width // 4))
    if not q or commanded.sum() < 2:
        return None
    count = sum(len(part) for part in kept)
    chosen = slice(None, None, max(1, count // ROWS))
    joined = [[np.concatenate([fit[k] for fit in fits])[chosen] for k in range(3)] for fits in (q, u)]
    return _Signals(joined[0], joined[1], np.concatenate(kept)[chosen] & commanded, count / width)


def _derivatives(values: Array, width: int, dt: float) -> list[Array]:
    signal: Any = import_module("scipy.signal")  # its types do not name the function
    half = width // 2
    fits = (signal.savgol_filter(values, width, 3, deriv=k, delta=dt, axis=0) for k in range(3))
    return [fit[half : len(values) - half] for fit in fits]


def _keeps_direction(speed: Array, around: int) -> Array:
    low, high = speed.copy(), speed.copy()
    for k in range(1, around + 1):
        for extreme, pick in ((low, np.minimum), (high, np.maximum)):
            extreme[k:] = pick(extreme[k:], speed[:-k])
            extreme[:-k] = pick(extreme[:-k], speed[k:])
    return (low > REVERSAL) | (high < -REVERSAL)


class _Search:
    """Search over orders with cached residuals; an order gives the joint of each column."""

    def __init__(self, scene: Scene, motion: UnlabelledMotion, signals: _Signals) -> None:
        self.scene, self.motion, self.signals = scene, motion, signals
        self.joints = [scene.model.joint(label) for label in motion.labels]
        self.columns = [_own_terms(signals, k) for k in range(len(self.joints))]
        units = ["m" if int(joint.type[0]) == _SLIDE else "rad" for joint in self.joints]
        self.noise = np.array([NOISE[unit] ** 2 for unit in units])
        self.rows = signals.kept.sum(axis=0)
        self.numbers = np.full(len(units), signals.windows)
        self.tried: dict[tuple[int, ...], Array] = {}
        start, _ = scene.start(0)
        self.rest = np.tile(start, (len(signals.kept), 1))

    def score(self, order: tuple[int, ...]) -> float:
        """Negative log posterior of an order; the lowest is best."""
        return self.misfit(order) + DISPLACED * sum(k != place for k, place in enumerate(order))

    def misfit(self, order: tuple[int, ...]) -> float:
        """Negative log likelihood of the motion under an order."""
        if order not in self.tried:
            left = [float(rest @ rest) for rest in self.left_over(order)]
            self.tried[order] = np.log(np.array(left) / np.maximum(self.rows, 1) + self.noise)
        return float((0.5 * self.numbers * self.rows / len(self.rest) * self.tried[order]).sum())

    def left_over(self, order: tuple[int, ...]) -> list[Array]:
        """Residual of u - q after the own terms of each column and the torque of its joint."""
        torques = self._torques(order)
        found: list[Array] = []
        for k, (basis, rest) in enumerate(self.columns):
            torque = torques[self.signals.kept[:, k], k]
            torque = torque - basis @ (basis.T @ torque)
            size = float(torque @ torque)
            # The gain of a servo is positive.
            share = max(0.0, float(torque @ rest) / size) if size > 0 else 0.0
            found.append(rest - share * torque)
        return found

    def weigh(self, order: tuple[int, ...]) -> None:
        """Reduce the number of independent rows by the autocorrelation of the residuals."""
        for k, rest in enumerate(self.left_over(order)):
            series = np.zeros(len(self.rest))
            series[self.signals.kept[:, k]] = rest
            power = float(series @ series)
            alike = 1.0
            for late in range(1, len(series) // 4):
                share = float(series[late:] @ series[:-late]) / power if power > 0 else 0.0
                if share < MIN_ALIKE:
                    break
                alike += 2 * share
            self.numbers[k] = min(self.signals.windows, len(self.rest) / alike)

    def descend(self) -> tuple[int, ...]:
        """The best order by pairwise exchange, from the robot's own order and random ones."""
        rng = np.random.default_rng(0)
        count = len(self.joints)
        found = [self._descend_from(self._feasible(1.0 - np.eye(count)))]
        for _ in range(RESTARTS):
            if len(self.tried) + count**2 > MAX_ORDERS:
                break
            found.append(self._descend_from(self._feasible(rng.uniform(size=(count, count)))))
        self.weigh(min(found, key=self.score))
        return self._descend_from(min(found, key=self.score))

    def answer(self, best: tuple[int, ...]) -> JointOrder:
        """The labels of an order, and for each column the margin of the best order with another joint."""
        margins: list[float] = []
        rivals: list[str] = []
        for k, place in enumerate(best):
            others = [(self.misfit(order), order[k]) for order in self.tried if order[k] != place]
            misfit, rival = min(others, default=(np.inf, place))
            margins.append(float(misfit - self.misfit(best)))
            rivals.append(self.motion.labels[rival])
        return JointOrder(tuple(self.motion.labels[place] for place in best), tuple(margins), tuple(rivals))

    def _feasible(self, cost: Array) -> tuple[int, ...]:
        return tuple(assigned(cost + 1e3 * ~self.motion.allowed))

    def _descend_from(self, order: tuple[int, ...]) -> tuple[int, ...]:
        allowed = self.motion.allowed
        while True:
            best = order
            for a, b in itertools.combinations(range(len(order)), 2):
                if not (allowed[a, order[b]] and allowed[b, order[a]]):
                    continue
                swapped = list(order)
                swapped[a], swapped[b] = order[b], order[a]
                best = min(best, tuple(swapped), key=self.score)
            if best == order or len(self.tried) > MAX_ORDERS:
                return best
            order = best

    def _torques(self, order: tuple[int, ...]) -> Array:
        """The torque of the joint of each column [rows, columns]."""
        q, u = self.rest.copy(), np.zeros((2, len(self.rest), self.scene.model.nv))
        dofs: list[int] = []
        for k, place in enumerate(order):
            joint = self.joints[place]
            dofs.append(int(joint.dofadr[0]))
            q[:, int(joint.qposadr[0])] = self.signals.q[0][:, k]
            u[:, :, dofs[-1]] = self.signals.q[1][:, k], self.signals.q[2][:, k]
        return rigid_torques(self.scene.model, Motion(q, u[0], u[1]))[:, dofs]


def _own_terms(signals: _Signals, k: int) -> tuple[Array, Array]:
    """Orthonormal basis of the terms independent of the joint, and the residual of u - q."""
    kept = signals.kept[:, k]
    _, speed, acceleration = (part[kept, k] for part in signals.q)
    command = [part[kept, k] for part in signals.u]
    terms = np.stack([np.ones(len(speed)), *command[1:], speed, acceleration, direction(speed)], axis=1)
    terms /= np.maximum(np.linalg.norm(terms, axis=0), 1e-12)
    basis, _ = np.linalg.qr(terms)
    behind = command[0] - signals.q[0][kept, k]
    return basis, behind - basis @ (basis.T @ behind)
