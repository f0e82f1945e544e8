"""Terms of joint torques beside rigid bodies: friction, rotors, sensor offsets, a tilted base, coupled motors.

Each term is linear in its parameters, which are changes of the scene's own values:

    coulomb   F_c sign(v)                  armature  J a
    viscous   F_v v                        drag      D |v| v
    offset    b                            load      k |tau_rigid| sign(v)
    tilt      gravity along x and y        coupling  the first three of an angle q_i + s q_j, s = 1 or -1

A coupling is a motor that turns with two joints, as in the wrists of industrial arms: its friction and rotor act on
both. In a scene it is a fixed tendon.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import mujoco
import numpy as np

from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array
from instep.gap.torque_rows import TorqueRun
from instep.physics.inverse_dynamics import direction, tilt_regressor

TermKind = Literal["coulomb", "viscous", "offset", "armature", "drag", "load", "tilt", "coupling"]
FIELDS = {"coulomb": "frictionloss", "viscous": "damping", "armature": "armature", "drag": "drag", "load": "load"}
"""Fields of joint addresses that terms identify."""
TILT_M_S2 = 0.3
"""Usual size of gravity along x and y: a base that is 2 degrees off level."""
LOAD_SHARE = 0.3
"""Usual share of a load that becomes friction."""
UNITS = {"coulomb": "Nm", "viscous": "Nm s/rad", "offset": "Nm", "armature": "kg m2", "drag": "Nm s2/rad2", "load": "1"}


@frozen_dataclass
class TorqueTerm:
    """One group of columns."""

    kind: TermKind
    joints: tuple[str, str] = ("", "")
    """The two joints of a coupling."""
    sign: int = 1

    @property
    def name(self) -> str:
        """Its name in reports."""
        words = {"drag": "drag", "load": "load-dependent friction", "tilt": "tilted base", "armature": "rotor inertia"}
        if self.kind == "coupling":
            return f"motor that turns with {self.joints[0]} {'+' if self.sign > 0 else '-'} {self.joints[1]}"
        return words.get(self.kind, self.kind)

    @property
    def tendon(self) -> str:
        """Name of the fixed tendon of a coupling."""
        return f"{self.joints[0]}_{'plus' if self.sign > 0 else 'minus'}_{self.joints[1]}"


ALWAYS = (TorqueTerm("coulomb"), TorqueTerm("viscous"), TorqueTerm("offset"))
"""Terms of every fit."""


@array_dataclass
class TermColumns:
    """The parameters of a term: names, units, usual size, smallest value, and the scene's own value."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    scale: Array
    """Standard deviation of the prior: as much as would explain the whole torque of a joint."""
    low: Array
    given: Array


def candidates(joints: tuple[str, ...]) -> tuple[TorqueTerm, ...]:
    """Terms that are added only where they pay: for all joints, and couplings of neighbours."""
    plain = tuple(TorqueTerm(kind) for kind in ("armature", "tilt", "drag", "load"))
    return plain + tuple(TorqueTerm("coupling", pair, sign) for pair in pairwise(joints) for sign in (1, -1))


def term_matrix(model: mujoco.MjModel, run: TorqueRun, term: TorqueTerm, rigid: Array) -> Array:
    """The torques by each parameter of a term [rows, joints, parameters]; `rigid` are those of the rigid bodies."""
    v, a = run.motion.v[:, run.dofs], run.motion.a[:, run.dofs]
    if term.kind == "tilt":
        return tilt_regressor(model, run.motion)[:, run.dofs]
    if term.kind == "coupling":
        arms = np.zeros(len(run.joints))
        arms[run.joints.index(term.joints[0])], arms[run.joints.index(term.joints[1])] = 1.0, term.sign
        speed, rate = v @ arms, a @ arms
        return np.stack([direction(speed), speed, rate], axis=-1)[:, None, :] * arms[:, None]
    columns = {
        "coulomb": direction(v),
        "viscous": v,
        "offset": np.ones_like(v),
        "armature": a,
        "drag": np.abs(v) * v,
        "load": np.abs(rigid) * direction(v),
    }[term.kind]
    return columns[:, :, None] * np.eye(len(run.joints))


def term_columns(model: mujoco.MjModel, runs: list[TorqueRun], term: TorqueTerm) -> TermColumns:
    """Names, units, prior and limits of the parameters of a term."""
    joints, dofs = runs[0].joints, runs[0].dofs
    if term.kind == "tilt":
        names, free = ("option.gravity_x", "option.gravity_y"), np.full(2, -np.inf)
        return TermColumns(names, ("m/s2", "m/s2"), np.full(2, TILT_M_S2), free, np.array(model.opt.gravity[:2]))
    sizes = _sizes(runs)
    if term.kind == "coupling":
        kinds, k = ("coulomb", "viscous", "armature"), joints.index(term.joints[1])
        scale = np.array([sizes[kind][k] for kind in kinds])
        names = tuple(f"tendon.{term.tendon}.{FIELDS[kind]}" for kind in kinds)
        return TermColumns(names, tuple(UNITS[kind] for kind in kinds), scale, np.zeros(3), np.zeros(3))
    given = {"coulomb": model.dof_frictionloss, "viscous": model.dof_damping, "armature": model.dof_armature}
    given["drag"] = model.dof_dampingpoly[:, 0]
    own = np.array(given.get(term.kind, np.zeros(model.nv)))[dofs]
    field = FIELDS.get(term.kind)
    names = tuple(f"joint.{joint}.{field}" if field else f"torque offset of {joint}" for joint in joints)
    # Friction and rotors cannot push; drag may be negative where damping falls with speed, as that of grease does.
    low = -own if term.kind in ("coulomb", "viscous", "armature", "load") else np.full(len(joints), -np.inf)
    return TermColumns(names, (UNITS[term.kind],) * len(joints), sizes[term.kind], low, own)


def _sizes(runs: list[TorqueRun]) -> dict[str, Array]:
    """Values of each kind that would explain the whole torque of a joint."""
    dofs = runs[0].dofs
    torque = _rms([run.torque for run in runs])
    speed, rate = (_rms([getattr(run.motion, part)[:, dofs] for run in runs]) for part in ("v", "a"))
    sizes = {"coulomb": torque, "viscous": torque / speed, "armature": torque / rate, "offset": torque}
    return sizes | {"drag": torque / speed**2, "load": np.full(len(dofs), LOAD_SHARE)}


def _rms(parts: list[Array]) -> Array:
    return np.maximum(np.sqrt((np.concatenate(parts) ** 2).mean(axis=0)), 1e-9)
