"""Actuator models: dry friction that depends on speed and load, and cogging torque.

Friction, the servo models M1 to M6 (Rhoban/bam) as one formula. With w the speed of a joint, t_e the external torque
(weight, inertia of others), t_m the torque of the motor, L = |t_e - t_m| and s = exp(-|w / w_s|^a), the largest
friction torque is

    F = Kc + Kl L + |Ke t_e - Km t_m| + s (Kcs + Kls L + |Kes t_e - Kms t_m| + Q),
    Q = Keq t_e^2 where |t_e| < |t_m|, else Kmq t_m^2, and only where the two torques have opposite signs.

M1 is Kc alone, M2 adds Kcs, M3 adds Kl, M4 adds Kcs, Kl and Kls, M5 has Ke, Km, Kes, Kms in place of Kl and Kls, and M6
adds Q. Viscous friction is the damping of the joint and is not part of it.

Cogging, torque that is periodic in the motor angle (magnets, an eccentric rotor, an uneven drum). A motor behind a gear
of n turns per turn of its joint adds, at an angle x of the joint,

    t = s sin(n x) + c cos(n x) + s2 sin(2 n x) + c2 cos(2 n x).

Where cables share motors between joints, x is the length of the fixed tendon of the motor, and t acts on all of its
joints.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np

from instep.core.param import Address
from instep.core.world import Array, Settings, array_dataclass, frozen_dataclass

_FIXED = int(mujoco.mjtWrap.mjWRAP_JOINT)


@frozen_dataclass
class Term:
    """One parameter of an actuator model: its default, search range and unit."""

    default: float
    low: float
    high: float
    unit: str
    log: bool = True


TERMS: Mapping[str, Term] = {
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
"""Kcs, w_s, a, Kl, Kls, Ke, Km, Kes, Kms, Keq, Kmq."""
SHAPES = ("static_speed", "static_shape")
"""Terms that say how friction falls with speed, which alone have no effect."""


def friction_limit(coulomb: Array, terms: Mapping[str, Array], speed: Array, external: Array, motor: Array) -> Array:
    """The largest friction torque of each joint [..., joints]; missing terms are zero."""
    total = np.asarray(coulomb, float)
    gap = np.abs(external - motor)
    if "load" in terms:
        total = total + terms["load"] * gap
    if "load_out" in terms or "load_in" in terms:
        total = total + np.abs(terms.get("load_out", 0.0) * external - terms.get("load_in", 0.0) * motor)
    rest = _at_rest(terms, external, motor, gap)
    if rest is None:
        return total
    width = terms.get("static_speed", np.asarray(TERMS["static_speed"].default))
    shape = terms.get("static_shape", np.asarray(TERMS["static_shape"].default))
    return total + rest * np.exp(-((np.abs(speed) / width) ** shape))


def _at_rest(terms: Mapping[str, Array], external: Array, motor: Array, gap: Array) -> Array | None:
    """What friction is larger at rest than at speed; None where there is no such term."""
    parts: list[Array] = []
    if "static" in terms:
        parts.append(np.broadcast_to(terms["static"], gap.shape))
    if "load_static" in terms:
        parts.append(terms["load_static"] * gap)
    if "load_out_static" in terms or "load_in_static" in terms:
        parts.append(np.abs(terms.get("load_out_static", 0.0) * external - terms.get("load_in_static", 0.0) * motor))
    if "square_out" in terms or "square_in" in terms:
        back = np.abs(external) < np.abs(motor)
        square = np.where(back, terms.get("square_out", 0.0) * external**2, terms.get("square_in", 0.0) * motor**2)
        parts.append(np.where(external * motor < 0, square, 0.0))
    return np.sum(parts, axis=0) if parts else None


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
    """The cogging torque of the motors of a model."""

    jacobian: Array
    """Joint angle (or tendon length) per degree of freedom [motors, nv]."""
    q_index: Array
    """Index in q of each degree of freedom [nv]; only those with a nonzero Jacobian matter."""
    terms: Mapping[str, Array]
    """By name [1 or worlds, motors]."""

    def torque(self, q: Array) -> Array:
        """Torque at each degree of freedom [worlds, nv]."""
        angle = self.terms[COUNT] * (q[:, self.q_index] @ self.jacobian.T)
        sin, cos = np.sin(angle), np.cos(angle)
        t = self.terms
        first = t["cogging_sin"] * sin + t["cogging_cos"] * cos
        second = 2 * t["cogging2_sin"] * sin * cos + t["cogging2_cos"] * (cos**2 - sin**2)
        return (first + second) @ self.jacobian


def cogging_of(model: mujoco.MjModel, settings: Settings) -> Cogging | None:
    """The cogging that settings name, by addresses as `joint.elbow.cogging_sin`; None where they name none."""
    given = [Address.parse(name) for name in settings if is_cogging_param(model, name)]
    motors = list(dict.fromkeys((at.kind, at.name) for at in given))
    if not motors:
        return None
    columns = {
        field: [np.asarray(settings.get(f"{kind}.{name}.{field}", term.default), float).reshape(-1)
                for kind, name in motors]
        for field, term in COGGING.items()
    }  # fmt: skip
    terms = {field: np.stack(np.broadcast_arrays(*values), axis=-1) for field, values in columns.items()}
    # Index in q of each degree of freedom; of free and ball joints the first of the joint.
    return Cogging(
        np.stack([_jacobian(model, kind, name) for kind, name in motors]),
        model.jnt_qposadr[model.dof_jntid].astype(int),
        terms,
    )


def is_cogging_param(model: mujoco.MjModel, name: str) -> bool:
    """Whether an address is a cogging parameter of this model."""
    at = Address.parse(name)
    if at.field not in COGGING or at.kind not in ("joint", "tendon"):
        return False
    if at.kind == "joint":
        return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, at.name) >= 0
    tendon = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, at.name)
    return tendon >= 0 and bool((model.wrap_type[_wraps(model, tendon)] == _FIXED).all())


def _jacobian(model: mujoco.MjModel, kind: str, name: str) -> Array:
    out = np.zeros(model.nv)
    if kind == "joint":
        out[model.joint(name).dofadr[0]] = 1.0
        return out
    rows = _wraps(model, model.tendon(name).id)
    for joint, share in zip(model.wrap_objid[rows], model.wrap_prm[rows], strict=True):
        out[model.jnt_dofadr[joint]] += share
    return out


def _wraps(model: mujoco.MjModel, tendon: int) -> slice:
    return slice(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon])
