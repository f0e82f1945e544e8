"""Torques that rapier's motors cannot work out themselves: MuJoCo's law of actuators, and gears between joints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import mujoco
import numpy as np

from instep.core.world import Array

from .drives import Drives
from .gears import Gears
from .rapier_motors import Motor


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
