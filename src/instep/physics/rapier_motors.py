"""The drives of a model as rapier's joint motors.

Rapier's force-based motor is an implicit spring and damper with a largest force: `k (target - q) + d (speed - v)`.
A servo of MuJoCo is exactly that where one actuator acts on one joint and its range is symmetric. A plain torque is a
motor that is told to run away and held back by its largest force. What is neither is worked out anew before every
physics step, from MuJoCo's law, and applied as such a torque.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mujoco
import numpy as np
import rapier3d as rapier

from .drives import Drives
from .rapier_build import Built, Seat, axis_of

AWAY = 1e6
"""Speed no joint reaches [rad/s], so that a motor told to run at it always pulls with its largest force."""


@dataclass(frozen=True, slots=True)
class Motor:
    """The motor of one hinge or slide."""

    seat: Seat
    axis: Any
    kind: Literal["position", "speed", "torque", "law"]
    actuator: int = -1
    """Whose command it follows; -1 for a spring alone."""
    slope: float = 0.0
    """The target is `slope * command + offset`."""
    offset: float = 0.0
    stiffness: float = 0.0
    damping: float = 0.0
    limit: float = np.inf
    """Largest force."""

    def follow(self, multibody: Any, command: float) -> None:
        """Aim at what a command asks for."""
        target = self.slope * command + self.offset
        if self.kind == "position":
            multibody.set_link_motor(self.seat.link, self.axis, target, 0.0, self.stiffness, self.damping)
        elif self.kind == "speed":
            multibody.set_link_motor(self.seat.link, self.axis, 0.0, target, 0.0, self.damping)
        else:
            self.pull(multibody, max(-self.limit, min(self.limit, target)))

    def pull(self, multibody: Any, torque: float) -> None:
        """Apply a torque until told otherwise."""
        away = AWAY if torque > 0 else -AWAY
        multibody.set_link_motor(self.seat.link, self.axis, 0.0, away, 0.0, AWAY)
        multibody.set_link_motor_max_force(self.seat.link, self.axis, abs(torque))


def motors_of(model: mujoco.MjModel, built: Built, drives: Drives, coupled: Iterable[int]) -> tuple[Motor, ...]:
    """A motor for every hinge or slide that something pulls on; `coupled` are degrees of freedom that need the law."""
    by_law, found = {int(dof) for dof in coupled}, list[Motor]()
    for seat in built.axes:
        axis, actuators = axis_of(model, seat.joint), np.flatnonzero(drives.moment[:, seat.dof])
        if seat.dof in by_law:
            found.append(Motor(seat, axis, "law"))
        elif len(actuators) == 0:
            if drives.stiffness[seat.dof] > 0:
                at = float(drives.spring[seat.dof] - model.qpos0[seat.place])
                stiffness = float(drives.stiffness[seat.dof])
                found.append(Motor(seat, axis, "position", offset=at, stiffness=stiffness))
        else:
            found.append(_driven(model, drives, seat, [int(a) for a in actuators]))
    return tuple(found)


def fit_motors(built: Built, drives: Drives, motors: Sequence[Motor]) -> None:
    """Put motors, damping and armature into a world."""
    joints = built.world.multibody_joints
    for index, handle in enumerate(built.arms):
        multibody = joints.get(handle)[0]
        damping, armature = np.zeros(multibody.ndofs), np.zeros(multibody.ndofs)
        for seat in (*built.axes, *built.balls, *built.free):
            if seat.arm == index:
                width = 1 if seat in built.axes else 3 if seat in built.balls else 6
                here, there = slice(seat.slot, seat.slot + width), slice(seat.dof, seat.dof + width)
                damping[here], armature[here] = drives.damping[there], drives.armature[there]
        multibody.set_damping(damping.tolist())
        multibody.set_armature(armature.tolist())
        for motor in motors:
            if motor.seat.arm == index:
                multibody.set_link_motor_model(motor.seat.link, motor.axis, rapier.MotorModel.FORCE_BASED)
                motor.follow(multibody, 0.0)
                if motor.kind in ("position", "speed") and np.isfinite(motor.limit):
                    multibody.set_link_motor_max_force(motor.seat.link, motor.axis, motor.limit)


def _driven(model: mujoco.MjModel, drives: Drives, seat: Seat, actuators: list[int]) -> Motor:
    axis = axis_of(model, seat.joint)
    a, dof = actuators[0], seat.dof
    gear = float(drives.moment[a, dof])
    g0, g1, g2 = (float(g) for g in drives.gain[a])
    b0, b1, b2 = (float(b) for b in drives.bias[a])
    limit, symmetric = _limit(drives, a, dof, gear)
    spring = float(drives.stiffness[dof])
    plain = len(actuators) == 1 and np.count_nonzero(drives.moment[a]) == 1 and g1 == 0 and g2 == 0
    # A spring may share the motor of a servo that has no limit of its own, since the spring has none.
    if not (plain and symmetric and b1 <= 0 and b2 <= 0) or (spring > 0 and np.isfinite(limit)):
        return Motor(seat, axis, "law", a)
    stiffness, damping = -b1 * gear * gear + spring, -b2 * gear * gear
    rest = spring * float(drives.spring[dof])
    if stiffness > 0:
        offset = (gear * b0 + rest) / stiffness - float(model.qpos0[seat.place])
        return Motor(seat, axis, "position", a, gear * g0 / stiffness, offset, stiffness, damping, limit)
    if damping > 0:
        return Motor(seat, axis, "speed", a, gear * g0 / damping, gear * b0 / damping, 0.0, damping, limit)
    return Motor(seat, axis, "torque", a, gear * g0, gear * b0, limit=limit)


def _limit(drives: Drives, actuator: int, dof: int, gear: float) -> tuple[float, bool]:
    """The largest torque, and whether it is the same both ways."""
    low, high = sorted(drives.force[actuator] * gear)
    low, high = max(low, drives.total[dof, 0]), min(high, drives.total[dof, 1])
    return float(high), bool(np.isclose(-low, high, rtol=1e-9) or (np.isinf(low) and np.isinf(high)))
