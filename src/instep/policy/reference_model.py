"""The reference model of adaptive control: its servos, regressors of its motion, and the stable bandwidth.

What a robot has that its model lacks acts on the joints as a torque -Y theta, with unknown weights theta and the
regressors Y(q, v, a, tau) of the motion of the model: a body at the tip (mass m and first moment m c: the torques that
accelerate and lift it), and per joint dry friction tanh(v / (STOP_SPEED + FLIP_S |a|)), viscous friction v, inertia a,
a command r that acts later (kp times its speed), loss of actuator torque tau, and an offset.

The error e of a joint to the model obeys M e'' + b e' + kp e = kp u + d, with the disturbance d and the compensation u
that arrives after the delay L. With P = 1 / (M s^2 + b s + kp) of the robot, Pn of the model, and rho = P / Pn,
compensation of the model's estimate of d through a low-pass filter C has the sensitivity (error with compensation over
error without)

    S = (1 - C exp(-s L)) / (1 + C exp(-s L) (rho - 1)).

The loop is stable where the small-gain condition |C (rho - 1)| < 1 holds at every frequency, however long the delay.
The bandwidth w of C = w^2 / (s + w)^2 is the largest at which the condition holds with a margin and |S| stays below a
bound, for every robot of a set around the model.
"""

from __future__ import annotations

import math
import threading
from dataclasses import field
from typing import Any, NamedTuple, Self, cast

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Spec, State, array_dataclass
from instep.scene import address
from instep.scene.folder import BodyDynamics, DynamicsSimulator, SceneSimulator

from .adaptive_kernels import BodyMotion, JointIndex, Servos, describe_motion

DELAY_ERROR_S = 0.002
"""Usual error of an identified delay [s]."""
UNLIMITED = 0.2
"""Position error that defines the torque limit of a servo without one [rad or m]."""
PAYLOAD = ("mass", "moment_x", "moment_y", "moment_z")
PER_JOINT = ("coulomb", "viscous", "inertia", "delay", "loss", "offset")
MAX_PEAK = 1.6
"""Largest amplification of a disturbance at any frequency."""
MAX_SMALL_GAIN = 0.8
"""Largest |C (rho - 1)|; 1 is the limit of the proof."""
INERTIAS, GAINS = (0.7, 1.0, 1.6), (0.65, 1.0, 1.15)
"""Factors of inertia (payload) and of servo gains (actuator loss) of the robots around the model."""
DELAY_ERROR = 0.25
"""Share of the delay by which that of the robot may be longer; at least a control period."""
LOWEST, HIGHEST, CANDIDATES = 0.2, 120.0, 60
"""Candidate bandwidths [rad/s]."""
_UNKNOWN = np.zeros(0)
_FIXED, _AFFINE = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtBias.mjBIAS_AFFINE)
_ON_JOINT, _HINGE = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtJoint.mjJNT_HINGE)
_SLIDE = int(mujoco.mjtJoint.mjJNT_SLIDE)


class ReferenceMotion(NamedTuple):
    """The motion of the model at one instant; made in every control period."""

    values: Array
    """One row, as in `adaptive_kernels`."""
    speeds: Array
    """Velocity and angular velocity of the tip, velocities of the driven joints, and their commands [6 + 2 n]."""
    n: int

    @property
    def effort(self) -> Array:
        """Torques of the servos, inside their limits [n]."""
        return self.values[2 * self.n : 3 * self.n]

    @property
    def regressors(self) -> Array:
        """Y of the motion [n, 4 + 6 n], the additional torques of the robot for weights of one.

        The first four columns are those of mass and first moment of a body at the tip.
        """
        return self.values[3 * self.n + 2 * self.n**2 :].reshape(self.n, -1)


@array_dataclass
class ReferenceArm:
    """The position servos of a simulated arm, and the indices of their joints in states, actions and observations."""

    model: mujoco.MjModel
    dt: float
    joints: tuple[str, ...]
    """Driven joints, in the order of the actions."""
    servos: Servos
    index: JointIndex
    inertia: Array
    """Inertia about each joint at the start of the scene."""
    delay: float
    """Time from a command to its effect [s]."""
    tip: int
    """Body that carries a payload."""
    _data: mujoco.MjData = field(repr=False)
    _gravity: Array = field(repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, reference: SceneSimulator) -> Self:
        """The servos of a scene; raises `BadInput` without servos on joints."""
        model = reference.model
        actuators = [a for a in range(model.nu) if _is_servo(model, a)]
        if not actuators:
            raise BadInput(
                f"Scene {reference.scene.name!r} has no position servos on joints; adaptive control moves position "
                "targets, and cannot be used with torques or speeds."
            )
        joints = model.actuator_trnid[actuators, 0]
        kp, dofs = model.actuator_gainprm[actuators, 0].copy(), model.jnt_dofadr[joints]
        limited = model.actuator_forcelimited[actuators].astype(bool)
        limit = np.where(limited, model.actuator_forcerange[actuators, 1], kp * UNLIMITED)
        kv = -model.actuator_biasprm[actuators, 2]
        delays = np.asarray(getattr(model, "actuator_delay", np.zeros(model.nu)))[actuators]
        sites = {model.site(i).name for i in range(model.nsite)}
        tip = reference.scene.tips[0] if reference.scene.tips else ""
        body = int(model.site(tip).bodyid[0]) if tip in sites else int(model.jnt_bodyid[joints[-1]])
        data, full = mujoco.MjData(model), np.zeros((model.nv, model.nv))
        data.qpos[:] = reference.scene.start(0)[0]
        mujoco.mj_forward(model, data)
        mujoco.mj_fullM(model, data, full)
        inertia = np.diag(full)[dofs].copy()
        index = JointIndex(*(np.array(part, np.int64) for part in (model.jnt_qposadr[joints], dofs, actuators)))
        return cls(
            model, reference.spec.dt, tuple(model.joint(int(j)).name for j in joints),
            Servos(kp, kv, limit, kv + model.dof_damping[dofs]), index, inertia, float(np.max(delays)), body,
            mujoco.MjData(model), model.opt.gravity.copy(),
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Number of driven joints."""
        return len(self.joints)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights of the regressors: `payload.mass`, `elbow.coulomb`, ..."""
        own = [f"{joint}.{name}" for name in PER_JOINT for joint in self.joints]
        return (*(f"payload.{name}" for name in PAYLOAD), *own)

    def positions_in(self, spec: Spec) -> Array:
        """Indices of the driven joints in `observation.state` of a world."""
        channel = spec.observation.get("observation.state")
        labels = channel.labels if channel is not None else ()
        missing = [joint for joint in self.joints if joint not in labels]
        if missing:
            raise BadInput(
                f"Adaptive control needs readings of the joints {', '.join(missing)}, but the world shows "
                f"{', '.join(labels) or 'no joints'}; name them in [robot] joints of the scene."
            )
        return np.array([labels.index(joint) for joint in self.joints])

    def followed(
        self, reference: SceneSimulator, state: State, command: Array, before: Array
    ) -> tuple[State, ReferenceMotion]:
        """A reference model one period later; `before` are its speeds now."""
        if hasattr(reference, "step_dynamics"):
            after, dynamics = cast(DynamicsSimulator, reference).step_dynamics(state, command, self.tip)
            return after, self._described(dynamics, after, before, command)
        after = reference.step(state, command)
        return after, self.motion(after.q, after.v, before, command)

    def motion(self, q: Array, v: Array, before: Array | None, command: Array) -> ReferenceMotion:
        """The motion at a state; `before` are the speeds one period ago, and `command` led from there."""
        model, data = self.model, self._data
        jacobian, full = np.zeros((6, model.nv)), np.zeros((model.nv, model.nv))
        with self._lock:
            data.qpos[:] = q
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_crb(model, data)
            mujoco.mj_fullM(model, data, full)
            mujoco.mj_jac(model, data, jacobian[:3], jacobian[3:], data.xpos[self.tip], self.tip)
            turn = data.xmat[self.tip].copy()
        dynamics = BodyDynamics(full, jacobian, turn)
        return self._described(dynamics, State(0.0, q, v), _UNKNOWN if before is None else before, command)

    def _described(self, at: BodyDynamics, state: State, before: Array, command: Array) -> ReferenceMotion:
        moving = BodyMotion(at.inertia, at.jacobian, at.turn, self._gravity, state.q, state.v, command, before)
        values, speeds = describe_motion(moving, self.index, self.servos, self.dt)
        return ReferenceMotion(values, speeds, self.n)

    def scales(self) -> Array:
        """Expected size of each weight [4 + 6 n]."""
        driven, moving = self.model.dof_bodyid[self.index.dof], np.zeros(self.model.nbody, bool)
        for body in range(1, self.model.nbody):
            moving[body] = body in driven or moving[self.model.body_parentid[body]]
        mass = 0.15 * float(np.sum(self.model.body_mass[moving]))
        ones, servos = np.ones(self.n), self.servos
        force, damping = 0.03 * servos.limit, 0.1 * servos.damping
        own = (force, damping, 0.1 * self.inertia, DELAY_ERROR_S * ones, 0.3 * ones, force)
        return np.concatenate([[mass, *(0.1 * mass,) * 3], *own])

    def bounds(self) -> tuple[Array, Array]:
        """The box of the weights: 6 scales either side, and at most all of the torque lost."""
        high = 6 * self.scales()
        low = -high.copy()
        low[0] = -high[0] / 6
        loss = slice(4 + 4 * self.n, 4 + 5 * self.n)
        low[loss], high[loss] = -0.3, 1.0
        return low, high


def undelayed(reference: SceneSimulator) -> SceneSimulator:
    """The reference model whose commands take effect at once."""
    delays = np.asarray(getattr(reference.model, "actuator_delay", 0.0))
    return reference.tuned({address.DELAY: 0.0}) if np.any(delays) else reference


def _is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether an actuator is a position servo directly on a hinge or a slide."""
    if model.actuator_trntype[actuator] != _ON_JOINT or model.actuator_gear[actuator, 0] != 1.0:
        return False
    joint = int(model.actuator_trnid[actuator, 0])
    kp = float(model.actuator_gainprm[actuator, 0])
    affine = model.actuator_gaintype[actuator] == _FIXED and model.actuator_biastype[actuator] == _AFFINE
    on_axis = model.jnt_type[joint] in (_HINGE, _SLIDE)
    return bool(affine and on_axis and kp > 0 and np.isclose(model.actuator_biasprm[actuator, 1], -kp))


@array_dataclass
class ServoDynamics:
    """The error dynamics of each joint, by the model."""

    inertia: Array
    """Inertia about each joint, of the links beyond it and its rotor [kg m2 or kg]."""
    damping: Array
    """Velocity gain of the servo and damping of the joint."""
    stiffness: Array
    """Position gain of the servo."""
    delay: float
    """Time from a command to its reading, without the control period [s]."""
    dt: float
    """Control period [s]."""


@array_dataclass
class Bandwidth:
    """The bandwidth of the filter C and its margins."""

    omega: Array
    """Bandwidth of each joint [rad/s]."""
    small_gain: float
    """Largest |C (rho - 1)| over joints, robots and frequencies."""
    peak: float
    """Largest |S|."""


def stable_bandwidth(dynamics: ServoDynamics) -> Bandwidth:
    """The largest bandwidth of each joint that is stable with its margins for all robots of the set.

    Raises `BadInput` where even the lowest one is not: the delay is too long, or the servo has no damping.
    """
    chosen: list[tuple[float, float, float]] = []
    candidates = np.geomspace(LOWEST, HIGHEST, CANDIDATES)
    for joint in range(len(dynamics.inertia)):
        gain, peak = margins(dynamics, joint, candidates)
        # A loop beyond its stability limit may have low peaks again: all lower bandwidths must be good too.
        good = np.logical_and.accumulate((gain <= MAX_SMALL_GAIN) & (peak <= MAX_PEAK))
        if not good[0]:
            raise BadInput(
                f"No compensation of joint {joint} is stable: at {LOWEST:g} rad/s |C (rho - 1)| = {gain[0]:.2f} (at "
                f"most {MAX_SMALL_GAIN:g}) and |S| = {peak[0]:.2f} (at most {MAX_PEAK:g}), with a delay of "
                f"{1e3 * dynamics.delay:.0f} ms. Identify damping and delay of the robot with instep tune."
            )
        last = int(np.flatnonzero(good)[-1])
        chosen.append((candidates[last], gain[last], peak[last]))
    omega, gains, peaks = np.array(chosen).T
    return Bandwidth(omega, float(gains.max()), float(peaks.max()))


def margins(dynamics: ServoDynamics, joint: int, omega: Array) -> tuple[Array, Array]:
    """Largest |C (rho - 1)| and |S| of a joint at each bandwidth, over frequencies and robots."""
    m, b, kp = (float(x[joint]) for x in (dynamics.inertia, dynamics.damping, dynamics.stiffness))
    # A command is held for a period, so that its mean effect comes half a period later.
    delay = dynamics.delay + 0.5 * dynamics.dt
    # A resonance is narrow where damping is low; the grid must not step over it.
    resonances = [math.sqrt(kp * servo / (m * inertia)) for inertia in INERTIAS for servo in GAINS]
    s = 1j * np.sort(np.append(np.geomspace(0.05, np.pi / dynamics.dt, 240), resonances))
    nominal = m * s**2 + b * s + kp
    late = (delay, delay + max(DELAY_ERROR * delay, dynamics.dt))
    c = (omega[:, None] / (s + omega[:, None])) ** 2
    later = c * np.exp(-s * delay)
    gain, peak = np.zeros(len(omega)), np.zeros(len(omega))
    for inertia, servo, lag in [(i, g, x) for i in INERTIAS for g in GAINS for x in late]:
        robot = inertia * m * s**2 + servo * (b * s + kp)
        # What arrives is also scaled by the gain, and later than the model says.
        rho = servo * nominal / robot * np.exp(-s * (lag - delay))
        gain = np.maximum(gain, np.abs(c * (rho - 1)).max(axis=1))
        peak = np.maximum(peak, np.abs((1 - later) / (1 + later * (rho - 1))).max(axis=1))
    return gain, peak
