"""Cogging: torque that is periodic in the angle of a motor (magnets, an eccentric rotor, an uneven drum).

A motor behind a gear of n turns per turn of its joint adds, at an angle x of the joint,

    t = s sin(n x) + c cos(n x) + s2 sin(2 n x) + c2 cos(2 n x).

Where cables share motors between joints, x is the length of the fixed tendon that stands for the motor, and t pulls on
all of its joints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

from instep.core.param import Address
from instep.core.world import Array, Settings

from .friction import Term

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
_FIXED = int(mujoco.mjtWrap.mjWRAP_JOINT)


@dataclass(frozen=True, slots=True, eq=False)
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
    return Cogging(np.stack([_jacobian(model, kind, name) for kind, name in motors]), _q_index(model), terms)


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


def _q_index(model: mujoco.MjModel) -> Array:
    """Index in q of each degree of freedom; of free and ball joints the first of the joint."""
    return model.jnt_qposadr[model.dof_jntid].astype(int)
