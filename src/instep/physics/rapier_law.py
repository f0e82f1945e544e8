"""Torques that rapier's motors cannot work out themselves: MuJoCo's law of actuators, and gears between joints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import mujoco
import numpy as np

from instep.core.world import Array

from .drives import Drives, tendon_joints
from .rapier_motors import Motor
from .support import active_equalities

_JOINT, _TENDON = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)
RATE = 0.25
"""How fast gears pull joints together, in physics rates: stiff, and stable where inertia is off by a factor of two."""


@dataclass(frozen=True, slots=True, eq=False)
class Gears:
    """Joints that follow others: `first @ q = p0 + p1 x + p2 x^2 + ..` with `x = second @ q`, from their reference."""

    first: Array
    """[gears, dofs]."""
    second: Array
    """[gears, dofs]; zeros where the first is held still."""
    reference: Array
    """Of both sides [gears, 2]."""
    shape: Array
    """Coefficients, lowest order first [gears, 5]."""
    inverse_mass: Array
    """Of each degree of freedom, at rest [1/(kg m2)] [dofs]."""
    rate: float
    """How fast a deviation dies out [1/s]."""

    @property
    def dofs(self) -> Array:
        """Degrees of freedom that are geared."""
        return np.flatnonzero(self.first.any(axis=0) | self.second.any(axis=0))

    def only(self, dofs: Array) -> Gears:
        """The same gears, when there are no other degrees of freedom."""
        return replace(
            self, first=self.first[:, dofs], second=self.second[:, dofs], inverse_mass=self.inverse_mass[dofs]
        )

    def torque(self, q: Array, v: Array, pulled: Array) -> Array:
        """The torques that keep joints together while others pull on them.

        Rapier has no gears. These are critically damped springs between the joints, after what the motors do to them
        has been shared out, with the inertia that the joints have at rest.
        """
        x = self.second @ q - self.reference[:, 1]
        value, slope = np.zeros_like(x), np.zeros_like(x)
        for coefficient in self.shape.T[::-1]:
            slope = slope * x + value
            value = value * x + coefficient
        moment = self.first - slope[:, None] * self.second
        apart, speed = self.first @ q - self.reference[:, 0] - value, moment @ v
        wanted = -(self.rate**2) * apart - 2 * self.rate * speed - moment @ (self.inverse_mass * pulled)
        return moment.T @ np.linalg.solve((moment * self.inverse_mass) @ moment.T, wanted)


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The torques of some hinges and slides, to be worked out before every physics step."""

    motors: tuple[Motor, ...]
    drives: Drives
    """Of these degrees of freedom alone."""
    actuators: Array
    """Commands they listen to."""
    gears: Gears
    """Between these degrees of freedom."""
    reference: Array
    """Positions at which rapier's coordinates are 0."""

    @classmethod
    def of(cls, model: mujoco.MjModel, drives: Drives, motors: tuple[Motor, ...], gears: Gears) -> Self:
        """The law of the motors of a model that need one."""
        some = tuple(motor for motor in motors if motor.kind == "law")
        dofs = np.array([motor.seat.dof for motor in some], int)
        used = np.flatnonzero(drives.moment[:, dofs].any(axis=1))
        reference = np.array([model.qpos0[motor.seat.place] for motor in some])
        return cls(some, drives.only(dofs), used, gears.only(dofs), reference)

    def apply(self, arms: list[Any], command: Array) -> None:
        """Set the torques of all its joints for one physics step."""
        positions = [arm.generalized_position() for arm in arms]
        speeds = [arm.generalized_velocity() for arm in arms]
        seats = [motor.seat for motor in self.motors]
        q = np.array([positions[seat.arm][seat.slot] for seat in seats]) + self.reference
        v = np.array([speeds[seat.arm][seat.slot] for seat in seats])
        torque, damping = self.drives.pull(q, v, command[self.actuators])
        drag = self.drives.damping + damping
        if len(self.gears.first):
            torque = torque + self.gears.torque(q, v, torque - drag * v)
        drags = [arm.damping() for arm in arms]
        for i, motor in enumerate(self.motors):
            motor.pull(arms[motor.seat.arm], float(torque[i]))
            drags[motor.seat.arm][motor.seat.slot] = float(drag[i])
        for arm, values in zip(arms, drags, strict=True):
            arm.set_damping(values)


def gears_of(model: mujoco.MjModel) -> Gears:
    """The joints and fixed tendons of a model that follow others."""
    some = [e for e in active_equalities(model) if int(model.eq_type[e]) in (_JOINT, _TENDON)]
    first, second = np.zeros((len(some), model.nv)), np.zeros((len(some), model.nv))
    reference = np.zeros((len(some), 2))
    for row, e in enumerate(some):
        for side, (matrix, thing) in enumerate(((first, model.eq_obj1id[e]), (second, model.eq_obj2id[e]))):
            if thing < 0:
                continue
            tied = tendon_joints(model, int(thing)) if model.eq_type[e] == _TENDON else [(int(thing), 1.0)]
            for joint, share in tied:
                matrix[row, model.jnt_dofadr[joint]] += share
                reference[row, side] += share * float(model.qpos0[model.jnt_qposadr[joint]])
    shape = model.eq_data[some, :5].copy()
    return Gears(first, second, reference, shape, model.dof_invweight0.copy(), RATE / float(model.opt.timestep))
