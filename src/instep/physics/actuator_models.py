"""Actuator models: friction that depends on speed and load, motors on a limited supply, cogging torque.

An `ActuatorModel` adds to MuJoCo what it lacks, before every physics step. A scene names its models and their
parameters in `scene.toml`; other packages register theirs in the entry-point group `instep.actuators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.param import Address
from instep.core.world import Array, Settings, array_dataclass, frozen_dataclass

from .world_batches import ENABLE, GAIN


@frozen_dataclass
class Term:
    """One parameter of an actuator model: its default, search range and unit."""

    default: float
    low: float
    high: float
    unit: str
    log: bool = True


@dataclass(slots=True, eq=False)
class ActuatorStep:
    """The state of a batch before a physics step. Models add to `torque` and may change `motor`."""

    q: Array
    """Positions [worlds, nq]."""
    v: Array
    """Velocities [worlds, nv]."""
    command: Array
    """Commands of the actuators [worlds, nu]."""
    inputs: Mapping[str, Array]
    """Further actions and inputs by label [worlds], such as `elbow.gain`."""
    external: Array
    """Torques of gravity and inertia at the last physics step [worlds, nv]."""
    motor: Array
    """Torques of the actuators at the last physics step [worlds, nv]."""
    torque: Array
    """Torques that the models add to this physics step [worlds, nv]."""


Act: TypeAlias = Callable[[ActuatorStep], None]
"""Acts on one native batch before a physics step."""


class ActuatorModel(Protocol):
    """What a model adds to the actuators of a scene, for one world or one value per world of a batch."""

    terms: ClassVar[Mapping[str, Term]]
    """Parameters, by the field of their address."""

    @classmethod
    def owns(cls, model: mujoco.MjModel, at: Address) -> bool:
        """Whether an address is a parameter of this model and names an element that it can act on."""
        ...

    @classmethod
    def of(cls, model: mujoco.MjModel, settings: Settings) -> Self:
        """The model with parameters by address, all of which it owns."""
        ...

    @property
    def has_effect(self) -> bool:
        """Whether it changes the motion."""
        ...

    @property
    def rest_inputs(self) -> Mapping[str, float]:
        """Further actions that it takes, by label, with their values at rest."""
        ...

    def attach(self, batch: mjbatch.Batch) -> Act:
        """Bind it to a native batch, whose settings are written."""
        ...


FRICTION: Mapping[str, Term] = {
    "static": Term(0.0, 1e-4, 0.5, "Nm"),
    "static_speed": Term(0.1, 5e-3, 3.0, "rad/s"),
    "static_shape": Term(1.0, 0.5, 4.0, "1", False),
    "load": Term(0.0, 1e-3, 0.5, "1"),
    "load_static": Term(0.0, 1e-3, 1.0, "1"),
    "load_out": Term(0.0, 1e-3, 0.5, "1"),
    "load_in": Term(0.0, 1e-3, 0.5, "1"),
    "load_out_static": Term(0.0, 1e-3, 1.0, "1"),
    "load_in_static": Term(0.0, 1e-3, 1.0, "1"),
    "square_out": Term(0.0, 1e-5, 0.01, "1/Nm"),
    "square_in": Term(0.0, 1e-5, 0.01, "1/Nm"),
}
"""Kcs, w_s, a, Kl, Kls, Ke, Km, Kes, Kms, Keq, Kmq of `Friction`."""


@array_dataclass
class Friction:
    """Dry friction that depends on speed and load: the servo models M1 to M6 (Rhoban/bam) as one formula.

    With w the speed of a joint, t_e the external torque, t_m the torque of the motor, L = |t_e - t_m| and
    s = exp(-|w / w_s|^a), the largest friction torque is

        F = Kc + Kl L + |Ke t_e - Km t_m| + s (Kcs + Kls L + |Kes t_e - Kms t_m| + Q),
        Q = Keq t_e^2 where |t_e| < |t_m|, else Kmq t_m^2, and only where the two torques have opposite signs.

    M1 is Kc alone, M2 adds Kcs, M3 adds Kl, M4 adds Kcs, Kl and Kls, M5 has Ke, Km, Kes and Kms in place of Kl and Kls,
    and M6 adds Q. Kc is the joint's `frictionloss`; viscous friction is its damping.
    """

    values: Mapping[str, Array]
    """By term [1 or worlds, nv]."""
    terms: ClassVar[Mapping[str, Term]] = FRICTION
    rest_inputs: ClassVar[Mapping[str, float]] = {}

    @classmethod
    def owns(cls, model: mujoco.MjModel, at: Address) -> bool:
        """Whether it is a friction term of a joint."""
        return at.kind == "joint" and at.field in FRICTION and _has(model, mujoco.mjtObj.mjOBJ_JOINT, at.name)

    @classmethod
    def of(cls, model: mujoco.MjModel, settings: Settings) -> Self:
        """The friction of a model's joints; others keep MuJoCo's."""
        values: dict[str, Array] = {}
        for name, value in settings.items():
            at, given = Address.parse(name), np.asarray(value, float).reshape(-1)
            before = values.get(at.field, np.full((1, model.nv), FRICTION[at.field].default))
            rows = max(len(before), len(given))
            values[at.field] = np.broadcast_to(before, (rows, model.nv)).copy()
            values[at.field][:, int(model.joint(at.name).dofadr[0])] = given
        return cls(values)

    @property
    def has_effect(self) -> bool:
        """Whether any term but the shape of the fall with speed is not zero."""
        shapes = ("static_speed", "static_shape")
        return any(bool(value.any()) for name, value in self.values.items() if name not in shapes)

    def attach(self, batch: mjbatch.Batch) -> Act:
        """Set MuJoCo's dry friction from the speed and load of each joint."""
        friction = batch.expand("dof_frictionloss")
        coulomb = friction.copy()

        def act(step: ActuatorStep) -> None:
            friction[:] = friction_limit(coulomb, self.values, step.v, step.external, step.motor)

        return act


def friction_limit(coulomb: Array, terms: Mapping[str, Array], speed: Array, external: Array, motor: Array) -> Array:
    """The largest friction torque of each joint [..., joints]; missing terms have their defaults."""

    def along(out: str, back: str) -> Array:
        return np.abs(terms.get(out, 0.0) * external - terms.get(back, 0.0) * motor)

    load = np.abs(external - motor)
    total = coulomb + terms.get("load", 0.0) * load + along("load_out", "load_in")
    if not {"static", "load_static", "load_out_static", "load_in_static", "square_out", "square_in"} & set(terms):
        return np.asarray(total)
    out, back = (terms.get(f"square_{side}", 0.0) * torque**2 for side, torque in (("out", external), ("in", motor)))
    square = np.where(external * motor < 0, np.where(np.abs(external) < np.abs(motor), out, back), 0.0)
    rest = terms.get("static", 0.0) + terms.get("load_static", 0.0) * load + square
    rest = rest + along("load_out_static", "load_in_static")
    width, shape = (terms.get(name, FRICTION[name].default) for name in ("static_speed", "static_shape"))
    return np.asarray(total + rest * np.exp(-((np.abs(speed) / width) ** shape)))


SUPPLY: Mapping[str, Term] = {
    "kt": Term(0.3, 0.01, 5.0, "Nm/A"),
    "resistance": Term(5.0, 0.1, 50.0, "ohm"),
    "duty": Term(0.01, 1e-5, 10.0, "1/rad"),
    "volts": Term(7.4, 1.0, 60.0, "V", False),
    "supply_resistance": Term(0.0, 1e-2, 10.0, "ohm"),
}
"""Torque constant, winding resistance, duty per radian of error and unit of gain, supply voltage and resistance."""


@frozen_dataclass
class _Motor:
    """One motor of `SupplyMotors`, and the joint that it drives."""

    actuator: int
    name: str
    q_index: int
    dof: int


@array_dataclass
class SupplyMotors:
    """Position servos with a DC motor on a limited supply; the gain of the firmware is a further action.

    duty = clip(gain k error, -1, 1), torque = kt / R (duty volts - kt w), and volts = V - Rs i while the motor draws a
    current i from a supply of resistance Rs. The back-EMF is written as damping, so that it is integrated implicitly.
    A motor that is switched off draws no current, so it neither drives nor brakes.
    """

    motors: tuple[_Motor, ...]
    values: Mapping[str, Mapping[str, Array]]
    """By actuator, then by parameter [1 or worlds]."""
    rest_inputs: Mapping[str, float]
    """The gains at which the motors are as stiff as the model's servos."""
    terms: ClassVar[Mapping[str, Term]] = SUPPLY
    has_effect: ClassVar[bool] = True

    @classmethod
    def owns(cls, model: mujoco.MjModel, at: Address) -> bool:
        """Whether it is a parameter of an actuator on a joint."""
        if at.kind != "actuator" or at.field not in SUPPLY:
            return False
        actuator = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, at.name)
        return actuator >= 0 and model.actuator_trntype[actuator] == int(mujoco.mjtTrn.mjTRN_JOINT)

    @classmethod
    def of(cls, model: mujoco.MjModel, settings: Settings) -> Self:
        """The motors that the settings name; parameters without a setting have their defaults."""
        values: dict[str, dict[str, Array]] = {}
        for name, value in settings.items():
            at = Address.parse(name)
            own = values.setdefault(at.name, {field: np.asarray(term.default) for field, term in SUPPLY.items()})
            own[at.field] = np.asarray(value, float)
        motors: list[_Motor] = []
        gains: dict[str, float] = {}
        for name, p in values.items():
            actuator = int(model.actuator(name).id)
            joint = model.actuator_trnid[actuator, 0]
            motors.append(_Motor(actuator, name, int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])))
            per_gain = p["kt"] / p["resistance"] * p["volts"] * p["duty"]
            gains[name + GAIN] = float(model.actuator_gainprm[actuator, 0] / np.mean(per_gain))
        return cls(tuple(motors), values, gains)

    def attach(self, batch: mjbatch.Batch) -> Act:
        """Set the stiffness, the torque limit and the damping of each servo from its duty and voltage."""
        gains, bias = batch.expand("actuator_gainprm"), batch.expand("actuator_biasprm")
        limits, damping = batch.expand("actuator_forcerange"), batch.expand("dof_damping")
        viscous = damping.copy()

        def act(step: ActuatorStep) -> None:
            for motor in self.motors:
                p, a, dof = self.values[motor.name], motor.actuator, motor.dof
                gain, enabled = step.inputs[motor.name + GAIN], step.inputs[motor.name + ENABLE]
                error = step.command[:, a] - step.q[:, motor.q_index]
                duty = np.clip(gain * p["duty"] * error, -1.0, 1.0)
                current = (p["volts"] * np.abs(duty) - p["kt"] * step.v[:, dof] * np.sign(duty)) / p["resistance"]
                volts = p["volts"] - p["supply_resistance"] * np.maximum(current, 0.0)
                stall_torque = p["kt"] / p["resistance"] * volts
                stiffness = stall_torque * p["duty"] * gain * enabled
                gains[:, a, 0], bias[:, a, 1], bias[:, a, 2] = stiffness, -stiffness, 0.0
                limits[:, a, 0], limits[:, a, 1] = -stall_torque, stall_torque
                back_emf = enabled * p["kt"] ** 2 / p["resistance"]  # [Nm s/rad]
                damping[:, dof] = viscous[:, dof] + back_emf
                step.motor[:, dof] -= back_emf * step.v[:, dof]

        return act


COUNT = "cogging_count"
"""Turns of the motor per turn of its joint, or per turn of the angle that its tendon measures."""
HARMONICS: Mapping[str, Term] = {
    "cogging_sin": Term(0.0, -1.0, 1.0, "Nm", False),
    "cogging_cos": Term(0.0, -1.0, 1.0, "Nm", False),
    "cogging2_sin": Term(0.0, -1.0, 1.0, "Nm", False),
    "cogging2_cos": Term(0.0, -1.0, 1.0, "Nm", False),
}
"""Amplitudes of the first and second harmonic of the motor angle."""
COGGING: Mapping[str, Term] = {COUNT: Term(1.0, 1.0, 1000.0, "1", False), **HARMONICS}


@array_dataclass
class Cogging:
    """Cogging: torque that is periodic in the motor angle (magnets, an eccentric rotor, an uneven drum).

    A motor behind a gear of n turns per turn of its joint adds, at an angle x of the joint,

        t = s sin(n x) + c cos(n x) + s2 sin(2 n x) + c2 cos(2 n x).

    Where cables share motors between joints, x is the length of the fixed tendon of the motor, and t acts on all of its
    joints.
    """

    jacobian: Array
    """Joint angle (or tendon length) per degree of freedom [motors, nv]."""
    q_index: Array
    """Index in q of each degree of freedom [nv]; only those with a nonzero Jacobian matter."""
    values: Mapping[str, Array]
    """By term [1 or worlds, motors]."""
    terms: ClassVar[Mapping[str, Term]] = COGGING
    rest_inputs: ClassVar[Mapping[str, float]] = {}

    @classmethod
    def owns(cls, model: mujoco.MjModel, at: Address) -> bool:
        """Whether it is a cogging term of a joint or of a fixed tendon."""
        if at.field not in COGGING:
            return False
        if at.kind == "joint":
            return _has(model, mujoco.mjtObj.mjOBJ_JOINT, at.name)
        if at.kind != "tendon" or not _has(model, mujoco.mjtObj.mjOBJ_TENDON, at.name):
            return False
        wraps = _wraps(model, int(model.tendon(at.name).id))
        return bool((model.wrap_type[wraps] == int(mujoco.mjtWrap.mjWRAP_JOINT)).all())

    @classmethod
    def of(cls, model: mujoco.MjModel, settings: Settings) -> Self:
        """The cogging of the motors that the settings name."""
        motors = list(dict.fromkeys((at.kind, at.name) for at in map(Address.parse, settings)))
        columns = {
            field: [np.asarray(settings.get(f"{kind}.{name}.{field}", term.default), float).reshape(-1)
                    for kind, name in motors]
            for field, term in COGGING.items()
        }  # fmt: skip
        values = {field: np.stack(np.broadcast_arrays(*column), axis=-1) for field, column in columns.items()}
        jacobian = np.stack([_jacobian(model, kind, name) for kind, name in motors])
        return cls(jacobian, model.jnt_qposadr[model.dof_jntid].astype(int), values)

    @property
    def has_effect(self) -> bool:
        """Whether any amplitude is not zero."""
        return any(bool(self.values[name].any()) for name in HARMONICS)

    def attach(self, batch: mjbatch.Batch) -> Act:
        """Add the torque of the motors at their angles."""
        t = self.values

        def act(step: ActuatorStep) -> None:
            angle = t[COUNT] * (step.q[:, self.q_index] @ self.jacobian.T)
            sin, cos = np.sin(angle), np.cos(angle)
            first = t["cogging_sin"] * sin + t["cogging_cos"] * cos
            second = 2 * t["cogging2_sin"] * sin * cos + t["cogging2_cos"] * (cos**2 - sin**2)
            step.torque += (first + second) @ self.jacobian

        return act


def _jacobian(model: mujoco.MjModel, kind: str, name: str) -> Array:
    out = np.zeros(model.nv)
    if kind == "joint":
        out[model.joint(name).dofadr[0]] = 1.0
        return out
    rows = _wraps(model, int(model.tendon(name).id))
    for joint, share in zip(model.wrap_objid[rows], model.wrap_prm[rows], strict=True):
        out[model.jnt_dofadr[joint]] += share
    return out


def _wraps(model: mujoco.MjModel, tendon: int) -> slice:
    return slice(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon])


def _has(model: mujoco.MjModel, kind: Any, name: str) -> bool:
    return mujoco.mj_name2id(model, kind, name) >= 0
