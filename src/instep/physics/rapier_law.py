"""Torques that rapier's motors cannot work out themselves: MuJoCo's law of actuators, and gears between joints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import mujoco
import numpy as np

from instep.core.world import Array

from .drives import Drives
from .rapier_motors import Motor
from .support import active_equalities

RATE = 0.25
"""How fast gears pull joints together, in physics rates: stiff, and stable where inertia is off by a factor of two."""


@dataclass(frozen=True, slots=True)
class Gear:
    """One joint that follows another: `q1 = p0 + p1 x + p2 x^2 + ..` with `x = q2`, both from their reference."""

    first: int
    """Degree of freedom that follows."""
    second: int
    """Degree of freedom it follows; -1 where it is held still."""
    reference: tuple[float, float]
    shape: tuple[float, ...]
    """Coefficients, lowest order first."""
    inverse_mass: tuple[float, float]
    """Of both joints, at rest [1/(kg m2)]."""
    rate: float
    """How fast a deviation dies out [1/s]."""

    def add(self, q: Array, v: Array, torque: Array) -> None:
        """Add the torques that keep the joints together to those that pull them apart.

        Rapier has no gears. The torques are those of a critically damped spring between the joints, after what the
        motors do to them has been shared out, with the joints' own inertia at rest.
        """
        geared = self.second >= 0
        x = q[self.second] - self.reference[1] if geared else 0.0
        value, slope = 0.0, 0.0
        for coefficient in reversed(self.shape):
            slope = slope * x + value
            value = value * x + coefficient
        slope = slope if geared else 0.0
        apart = q[self.first] - self.reference[0] - value
        speed = v[self.first] - (slope * v[self.second] if geared else 0.0)
        one, other = self.inverse_mass
        pulled = one * torque[self.first] - (slope * other * torque[self.second] if geared else 0.0)
        wanted = -(self.rate**2) * apart - 2 * self.rate * speed
        force = (wanted - pulled) / (one + slope * slope * other)
        torque[self.first] += force
        if geared:
            torque[self.second] -= slope * force


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The torques of some hinges and slides, to be worked out before every physics step."""

    motors: tuple[Motor, ...]
    drives: Drives
    """Of these degrees of freedom alone."""
    actuators: Array
    """Commands they listen to."""
    gears: tuple[Gear, ...]
    """Between these degrees of freedom, by their place among them."""
    reference: Array
    """Positions at which rapier's coordinates are 0."""

    @classmethod
    def of(cls, model: mujoco.MjModel, drives: Drives, motors: tuple[Motor, ...], gears: tuple[Gear, ...]) -> Self:
        """The law of the motors of a model that need one."""
        some = tuple(motor for motor in motors if motor.kind == "law")
        dofs = [motor.seat.dof for motor in some]
        index = {dof: i for i, dof in enumerate(dofs)} | {-1: -1}
        used = np.flatnonzero(drives.moment[:, dofs].any(axis=1))
        local = tuple(replace(gear, first=index[gear.first], second=index[gear.second]) for gear in gears)
        reference = np.array([model.qpos0[motor.seat.place] for motor in some])
        return cls(some, drives.only(np.array(dofs, int)), used, local, reference)

    def apply(self, arms: list[Any], command: Array) -> None:
        """Set the torques of all its joints for one physics step."""
        positions = [arm.generalized_position() for arm in arms]
        speeds = [arm.generalized_velocity() for arm in arms]
        seats = [motor.seat for motor in self.motors]
        q = np.array([positions[seat.arm][seat.slot] for seat in seats]) + self.reference
        v = np.array([speeds[seat.arm][seat.slot] for seat in seats])
        torque, damping = self.drives.pull(q, v, command[self.actuators])
        for gear in self.gears:
            gear.add(q, v, torque)
        drags = [arm.damping() for arm in arms]
        for i, motor in enumerate(self.motors):
            motor.pull(arms[motor.seat.arm], float(torque[i]))
            drags[motor.seat.arm][motor.seat.slot] = float(self.drives.damping[i] + damping[i])
        for arm, drag in zip(arms, drags, strict=True):
            arm.set_damping(drag)


def gears_of(model: mujoco.MjModel) -> tuple[Gear, ...]:
    """The joints of a model that follow others."""
    return tuple(_gear(model, e) for e in active_equalities(model) if model.eq_type[e] == int(mujoco.mjtEq.mjEQ_JOINT))


def _gear(model: mujoco.MjModel, equality: int) -> Gear:
    joints = [int(j) for j in (model.eq_obj1id[equality], model.eq_obj2id[equality]) if j >= 0]
    dofs = [int(model.jnt_dofadr[j]) for j in joints]
    where = [float(model.qpos0[model.jnt_qposadr[j]]) for j in joints]
    light = [float(model.dof_invweight0[d]) for d in dofs]
    return Gear(
        first=dofs[0],
        second=dofs[1] if len(dofs) > 1 else -1,
        reference=(where[0], where[-1]),
        shape=tuple(float(p) for p in model.eq_data[equality, :5]),
        inverse_mass=(light[0], light[1] if len(light) > 1 else 0.0),
        rate=RATE / float(model.opt.timestep),
    )
