"""Stability of adaptive control: the bandwidth at which compensation stays stable for a set of robots around a model.

Of a joint that follows its position servo, the error e to the reference model obeys M e'' + b e' + kp e = kp u + d,
with the disturbance d, and the compensation u that arrives after the delay L. With P = 1 / (M s^2 + b s + kp) of the
robot, Pn of the model, and rho = P / Pn, compensation of what the model says d was, through a low-pass filter C, has
the sensitivity (error with compensation over error without)

    S = (1 - C exp(-s L)) / (1 + C exp(-s L) (rho - 1)),        integral action   S = 1 / (1 + w / s kp P exp(-s L)).

The loop is stable where the small-gain condition |C (rho - 1)| < 1 holds at every frequency, however long the delay.
The bandwidth w is the largest at which it holds with a margin and |S| stays below a bound, for every robot of the set.

The reference model of adaptive control: servos of a simulated arm, and regressors of its motion.

What a robot has that its model lacks acts on the joints as a torque -Y theta, with the weights theta unknown and the
regressors Y(q, v, a, tau) those of the motion of the model: a body at the tip (mass m and first moment m c: the torques
that accelerate and lift it), and per joint dry friction tanh(v / (STOP_SPEED + FLIP_S |a|)), viscous friction v,
inertia a, a command r that acts later (kp times its speed), loss of actuator torque tau, and an offset.
"""

from __future__ import annotations

import math
import threading
from dataclasses import field
from typing import Any, Literal, NamedTuple, Self, cast

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Spec, State, array_dataclass
from instep.scene import address
from instep.scene.folder import BodyDynamics, DynamicsSimulator, SceneSimulator

from .adaptive_kernels import describe_motion

Method = Literal["mrac", "l1", "residual", "observer", "integral"]
METHODS: tuple[Method, ...] = ("mrac", "l1", "residual", "observer", "integral")
"""Adaptive laws by name."""
MAX_PEAK = 1.6
"""Largest amplification of a disturbance at any frequency."""
MAX_SMALL_GAIN = 0.8
"""Largest |C (rho - 1)|; 1 is the limit of the proof."""
INERTIAS, GAINS = (0.7, 1.0, 1.6), (0.65, 1.0, 1.15)
"""Factors of inertia (payload) and of servo gains (actuator loss) of the robots around the model."""
DELAY_ERROR = 0.25
"""Share of the delay by which the robot's may be longer than the model's; at least a control period."""
LOWEST, HIGHEST, CANDIDATES = 0.2, 120.0, 60
"""Bandwidths that are tried [rad/s]."""

RATE_FILTER = 6.0
"""Bandwidth of the filter that gives a state predictor the rate of its readings, over that of C."""

Loop = Literal["filter", "predictor", "integral"]


@array_dataclass
class ServoDynamics:
    """The error dynamics of each joint, as the model says."""

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
    """The bandwidth of a loop and what it was chosen by."""

    omega: Array
    """Bandwidth of each joint [rad/s]."""
    small_gain: float
    """Largest |C (rho - 1)| over joints, robots and frequencies; 0 for integral action, which has no filter."""
    peak: float
    """Largest |S|."""

    def __str__(self) -> str:
        return (
            f"bandwidth {self.omega.min():.3g} to {self.omega.max():.3g} rad/s, |C (rho - 1)| = {self.small_gain:.2f}, "
            f"peak of |S| = {self.peak:.2f}"
        )


def stable_bandwidth(dynamics: ServoDynamics, loop: Loop) -> Bandwidth:
    """The largest bandwidth of each joint that is stable with its margins for all robots of the set.

    Raises `BadInput` where even the lowest one is not: the delay is too long, or the servo has no damping.
    """
    omega, gains, peaks = np.empty(len(dynamics.inertia)), list[float](), list[float]()
    tried = np.geomspace(LOWEST, HIGHEST, CANDIDATES)
    for joint in range(len(omega)):
        gain, peak = margins(dynamics, joint, tried, loop)
        # A loop beyond its stability limit may have low peaks again: all lower bandwidths must be good too.
        good = np.logical_and.accumulate((gain <= MAX_SMALL_GAIN) & (peak <= MAX_PEAK))
        if not good[0]:
            raise BadInput(
                f"No compensation of joint {joint} is stable: at {LOWEST:g} rad/s |C (rho - 1)| = {gain[0]:.2f} (at "
                f"most {MAX_SMALL_GAIN:g}) and |S| = {peak[0]:.2f} (at most {MAX_PEAK:g}), with a delay of "
                f"{1e3 * dynamics.delay:.0f} ms. Identify damping and delay of the robot with instep tune."
            )
        last = int(np.flatnonzero(good)[-1])
        omega[joint] = tried[last]
        gains.append(float(gain[last]))
        peaks.append(float(peak[last]))
    return Bandwidth(omega, max(gains), max(peaks))


def margins(dynamics: ServoDynamics, joint: int, omega: Array, loop: Loop) -> tuple[Array, Array]:
    """Largest |C (rho - 1)| and |S| of a joint at each bandwidth, over frequencies and robots."""
    m, b, kp = (float(x[joint]) for x in (dynamics.inertia, dynamics.damping, dynamics.stiffness))
    # A command is held for a period, so that its mean effect comes half a period later.
    delay = dynamics.delay + 0.5 * dynamics.dt
    # A resonance is narrow where damping is low; the grid must not step over it.
    resonances = [math.sqrt(kp * servo / (m * inertia)) for inertia in INERTIAS for servo in GAINS]
    s = 1j * np.sort(np.append(np.geomspace(0.05, np.pi / dynamics.dt, 240), resonances))
    nominal = m * s**2 + b * s + kp
    late = (delay, delay + max(DELAY_ERROR * delay, dynamics.dt))
    robots = [(i, g, x) for i in INERTIAS for g in GAINS for x in late]
    gain, peak = np.zeros(len(omega)), np.zeros(len(omega))
    for inertia, servo, lag in robots:
        robot = inertia * m * s**2 + servo * (b * s + kp)
        # What arrives is also scaled by the gain, and later than the model says.
        rho = servo * nominal / robot * np.exp(-s * (lag - delay))
        if loop == "integral":
            sensitivity = 1 / (1 + omega[:, None] / s * servo * kp / robot * np.exp(-s * lag))
        else:
            c = (omega[:, None] / (s + omega[:, None])) ** 2
            if loop == "predictor":
                c = c * (RATE_FILTER * omega[:, None] / (s + RATE_FILTER * omega[:, None])) ** 2
            gain = np.maximum(gain, np.abs(c * (rho - 1)).max(axis=1))
            later = c * np.exp(-s * delay)
            sensitivity = (1 - later) / (1 + later * (rho - 1))
        peak = np.maximum(peak, np.abs(sensitivity).max(axis=1))
    return gain, peak


STOP_SPEED, FLIP_S = 0.02, 0.03
"""Speed below which dry friction fades [rad/s or m/s], and time in which it changes its sign where a joint turns round:
a command that jumps with it would break the limits on acceleration and jerk."""
DELAY_ERROR_S = 0.002
"""Usual error of an identified delay [s]."""
UNLIMITED = 0.2
"""Torque limit of a servo that states none, as the position error that asks for it [rad or m]."""
PAYLOAD = ("mass", "moment_x", "moment_y", "moment_z")
PER_JOINT = ("coulomb", "viscous", "inertia", "delay", "loss", "offset")
_FRICTION, _UNKNOWN = np.array([STOP_SPEED, FLIP_S]), np.zeros(0)
_FIXED, _AFFINE = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtBias.mjBIAS_AFFINE)
_ON_JOINT, _HINGE = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtJoint.mjJNT_HINGE)
_SLIDE = int(mujoco.mjtJoint.mjJNT_SLIDE)


class ReferenceMotion(NamedTuple):
    """The model at one instant: where its driven joints are, and what acts on them. Made in every control period."""

    values: Array
    """All of it in one row, as in `adaptive_kernels`."""
    speeds: Array
    """Velocity and angular velocity of the tip, velocities of the driven joints, and their commands [6 + 2 n]."""
    n: int

    @property
    def q(self) -> Array:
        """Positions of the driven joints [n]."""
        return self.values[: self.n]

    @property
    def v(self) -> Array:
        """Velocities of the driven joints [n]."""
        return self.values[self.n : 2 * self.n]

    @property
    def effort(self) -> Array:
        """Torques of the servos, inside their limits [n]."""
        return self.values[2 * self.n : 3 * self.n]

    @property
    def inertia(self) -> Array:
        """Inertia of the driven joints [n, n]."""
        return self.values[3 * self.n : 3 * self.n + self.n**2].reshape(self.n, self.n)

    @property
    def regressors(self) -> Array:
        """Y of the motion [n, 4 + 6 n]: what the robot's torques are more by, for weights of one; the first four are
        those of mass and first moment of a body at the tip."""
        return self.values[3 * self.n + 2 * self.n**2 :].reshape(self.n, -1)


@array_dataclass
class ReferenceArm:
    """The position servos of a simulated arm, and where their joints are in states, actions and observations."""

    model: mujoco.MjModel
    dt: float
    joints: tuple[str, ...]
    """Driven joints, in the order of the actions."""
    actions: Array
    """The action that drives each of them."""
    q_index: Array
    dofs: Array
    kp: Array
    kv: Array
    damping: Array
    inertia: Array
    """Inertia about each joint where the scene starts."""
    limit: Array
    """Largest torque of each servo [Nm or N]."""
    delay: float
    """Time from a command to its effect [s]."""
    tip: int
    """Body at whose frame a payload is taken to be."""
    _data: mujoco.MjData = field(repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)
    servos: Array = field(init=False, repr=False)
    """kp, kv, torque limit of each servo, and damping of each joint by its servo and its bearing [4, n]."""
    index: Array = field(init=False, repr=False)
    """Where the joints are in positions, velocities and commands [3, n]."""
    _gravity: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "servos", np.stack([self.kp, self.kv, self.limit, self.kv + self.damping]))
        object.__setattr__(self, "index", np.stack([self.q_index, self.dofs, self.actions]).astype(np.int64))
        object.__setattr__(self, "_gravity", self.model.opt.gravity.copy())

    @classmethod
    def of(cls, reference: SceneSimulator) -> Self:
        """The servos of a scene; raises `BadInput` where it has none on joints."""
        model = reference.model
        actuators = [a for a in range(model.nu) if _is_servo(model, a)]
        if not actuators:
            raise BadInput(
                f"Scene {reference.scene.name!r} has no position servos on joints; adaptive control moves position "
                "targets, and cannot be used with torques or speeds."
            )
        joints = model.actuator_trnid[actuators, 0]
        kp, dofs = model.actuator_gainprm[actuators, 0].copy(), model.jnt_dofadr[joints].copy()
        limit = np.where(
            model.actuator_forcelimited[actuators].astype(bool), model.actuator_forcerange[actuators, 1], kp * UNLIMITED
        )
        delays = np.asarray(getattr(model, "actuator_delay", np.zeros(model.nu)))[actuators]
        tip = reference.scene.tips[0] if reference.scene.tips else ""
        body = (
            int(model.site(tip).bodyid[0])
            if tip in {model.site(i).name for i in range(model.nsite)}
            else int(model.jnt_bodyid[joints[-1]])
        )
        inertia = np.diag(_inertia(model, reference.scene.start(0)[0]))[dofs]
        return cls(
            model, reference.spec.dt, tuple(model.joint(int(j)).name for j in joints), np.array(actuators),
            model.jnt_qposadr[joints].copy(), dofs, kp, -model.actuator_biasprm[actuators, 2],
            model.dof_damping[dofs].copy(), inertia.copy(), limit,
            float(np.max(delays)), body, mujoco.MjData(model),
        )  # fmt: skip

    @property
    def n(self) -> int:
        """How many joints are driven."""
        return len(self.joints)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights of the regressors: `payload.mass`, `elbow.coulomb`, ..."""
        own = [f"{joint}.{name}" for name in PER_JOINT for joint in self.joints]
        return (*(f"payload.{name}" for name in PAYLOAD), *own)

    def positions_in(self, spec: Spec) -> Array:
        """Where the driven joints are in `observation.state` of a world."""
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
            return after, self._described(dynamics, after.q, after.v, before, command)
        after = reference.step(state, command)
        return after, self.motion(after.q, after.v, before, command)

    def motion(self, q: Array, v: Array, before: Array | None, command: Array) -> ReferenceMotion:
        """The model at a state; `before` are its speeds one period ago, and `command` led from there."""
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
        return self._described(
            BodyDynamics(full, jacobian, turn), q, v, _UNKNOWN if before is None else before, command
        )

    def _described(self, at: BodyDynamics, q: Array, v: Array, before: Array, command: Array) -> ReferenceMotion:
        n = len(self.joints)
        values, speeds = np.empty(3 * n + 2 * n * n + n * (4 + 6 * n)), np.empty(6 + 2 * n)
        describe_motion(
            at.inertia, at.jacobian, at.turn, self._gravity, q, v, command, before, self.index, self.servos, _FRICTION,
            self.dt, values, speeds,
        )  # fmt: skip
        return ReferenceMotion(values, speeds, n)

    def scales(self) -> Array:
        """How large each weight is expected to be [4 + 6 n]."""
        mass = 0.15 * float(np.sum(self.model.body_mass[self._moving()]))
        ones = np.ones(self.n)
        force, damping = 0.03 * self.limit, 0.1 * (self.kv + self.damping)
        own = (force, damping, 0.1 * self.inertia, DELAY_ERROR_S * ones, 0.3 * ones, force)
        return np.concatenate([[mass, *(0.1 * mass,) * 3], *own])

    def bounds(self) -> tuple[Array, Array]:
        """The box that weights are projected onto: 6 scales either side, lost torque at most half of all."""
        high = 6 * self.scales()
        low = -high.copy()
        low[0] = -high[0] / 6
        loss = slice(4 + 4 * self.n, 4 + 5 * self.n)
        low[loss], high[loss] = -0.3, 1.0
        return low, high

    def _moving(self) -> list[int]:
        """The bodies that the driven joints move."""
        first = {int(self.model.dof_bodyid[dof]) for dof in self.dofs}
        moving: set[int] = set()
        for body in range(1, self.model.nbody):
            if body in first or int(self.model.body_parentid[body]) in moving:
                moving.add(body)
        return sorted(moving)


def undelayed(reference: SceneSimulator) -> SceneSimulator:
    """The reference model whose commands take effect at once."""
    delays = np.asarray(getattr(reference.model, "actuator_delay", 0.0))
    return reference.tuned({address.DELAY: 0.0}) if np.any(delays) else reference


def _inertia(model: mujoco.MjModel, q: Array) -> Array:
    data, full = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    data.qpos[:] = q
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, full)
    return full


def _is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether an actuator is a position servo directly on a hinge or a slide."""
    if model.actuator_trntype[actuator] != _ON_JOINT or model.actuator_gear[actuator, 0] != 1.0:
        return False
    joint = int(model.actuator_trnid[actuator, 0])
    kp = float(model.actuator_gainprm[actuator, 0])
    affine = model.actuator_gaintype[actuator] == _FIXED and model.actuator_biastype[actuator] == _AFFINE
    on_axis = model.jnt_type[joint] in (_HINGE, _SLIDE)
    return bool(affine and on_axis and kp > 0 and np.isclose(model.actuator_biasprm[actuator, 1], -kp))
