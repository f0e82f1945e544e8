"""Torque that comes and goes with the turns of a motor: cogging, a rotor off its centre, a drum that is not round.

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

from instep.core.world import Array, Settings

from .friction import Term

COUNT = "ripple_count"
"""Turns of the motor per turn of its joint, or per turn of the angle that its tendon measures."""
WAVES: Mapping[str, Term] = {
    "ripple_sin": Term(0.0, -1.0, 1.0, "Nm", False),
    "ripple_cos": Term(0.0, -1.0, 1.0, "Nm", False),
    "ripple2_sin": Term(0.0, -1.0, 1.0, "Nm", False),
    "ripple2_cos": Term(0.0, -1.0, 1.0, "Nm", False),
}
"""Of once and of twice per turn of the motor."""
RIPPLE: Mapping[str, Term] = {COUNT: Term(1.0, 1.0, 1000.0, "1", False), **WAVES}
_FIXED = int(mujoco.mjtWrap.mjWRAP_JOINT)


@dataclass(frozen=True, slots=True, eq=False)
class Ripple:
    """The motors of a model that have a ripple."""

    reach: Array
    """How far each degree of freedom moves each motor [motors, nv]."""
    places: Array
    """Where the degrees of freedom stand in the positions [nv]; only those that are reached count."""
    terms: Mapping[str, Array]
    """By name [1 or worlds, motors]."""

    def torque(self, q: Array) -> Array:
        """What the motors add at each degree of freedom [worlds, nv]."""
        turned = self.terms[COUNT] * (q[:, self.places] @ self.reach.T)
        sin, cos = np.sin(turned), np.cos(turned)
        t = self.terms
        once = t["ripple_sin"] * sin + t["ripple_cos"] * cos
        twice = 2 * t["ripple2_sin"] * sin * cos + t["ripple2_cos"] * (cos**2 - sin**2)
        return (once + twice) @ self.reach


def ripple_of(model: mujoco.MjModel, settings: Settings) -> Ripple | None:
    """The ripple that settings name, by addresses as `joint.elbow.ripple_sin`; None where they name none."""
    given = [name for name in settings if ripples(model, name)]
    parts = list(dict.fromkeys(name.rpartition(".")[0] for name in given))
    if not parts:
        return None
    columns = {
        word: [np.asarray(settings.get(f"{part}.{word}", term.default), float).reshape(-1) for part in parts]
        for word, term in RIPPLE.items()
    }
    terms = {word: np.stack(np.broadcast_arrays(*values), axis=-1) for word, values in columns.items()}
    return Ripple(np.stack([_reach(model, part) for part in parts]), _places(model), terms)


def ripples(model: mujoco.MjModel, name: str) -> bool:
    """Whether an address is one of a motor's ripple."""
    kind, _, rest = name.partition(".")
    part, _, word = rest.rpartition(".")
    if word not in RIPPLE or kind not in ("joint", "tendon"):
        return False
    if kind == "joint":
        return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, part) >= 0
    tendon = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, part)
    return tendon >= 0 and bool((model.wrap_type[_wraps(model, tendon)] == _FIXED).all())


def _reach(model: mujoco.MjModel, part: str) -> Array:
    kind, _, name = part.partition(".")
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


def _places(model: mujoco.MjModel) -> Array:
    """A place in the positions for each degree of freedom; of free and ball joints it is their first."""
    return model.jnt_qposadr[model.dof_jntid].astype(int)
