"""Compiled simulation of one joint of an arm, the motion of the other joints being known from a recording."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.


OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}


class JointConstants(NamedTuple):
    """What is known of a joint and its actuator."""

    step: float
    """Physics step [s]."""
    substeps: int
    """Physics steps per row of the recording."""
    low: float
    """Least torque of the actuator [Nm]."""
    high: float
    """Largest torque of the actuator [Nm]."""
    servo: bool
    """Whether the command is a position rather than a torque."""
    implicit: bool
    """Whether the integrator takes the servo's damping implicitly."""
    friction_gain: float
    """How fast the constraint of dry friction removes velocity [1/s]."""
    friction_softness: float
    """Compliance of the constraint of dry friction [1/(kg m2)]."""


class JointWindows(NamedTuple):
    """Windows of a recording, as one joint sees them; arrays are laid out by `by_step`."""

    command: np.ndarray
    """Commands from `before` rows before the start on [windows, before + rows]."""
    inertia: np.ndarray
    """Inertia that the joint moves, without armature [windows, physics steps]."""
    load: np.ndarray
    """Torque of gravity and of the motion of the other joints [windows, physics steps]."""
    held_load: np.ndarray
    """The same torque as the constraint of dry friction sees it, before damping is taken implicitly."""
    q: np.ndarray
    """Position at the start [windows]."""
    v: np.ndarray
    """Velocity at the start [windows]."""


@njit(**OPTIONS)
def simulate(joint, windows, values, out):  # pragma: no cover - compiled
    """Write the positions of the joint [windows, rows] for `values`: stiffness, damping of the servo, damping of the
    joint, dry friction, armature, offset torque, delay."""
    stiffness, servo_damping, damping, friction, armature, offset, delay = values
    count, rows = out.shape
    before, last = windows.command.shape[1] - rows, windows.command.shape[1] - 1
    h, period = joint.step, joint.step * joint.substeps
    late, gain, soft = delay / period, joint.friction_gain, joint.friction_softness
    low, high = joint.low, joint.high
    command, inertia, load, held_load = windows.command, windows.inertia, windows.load, windows.held_load
    pull, servo_damping = (1.0, servo_damping) if joint.servo else (0.0, 0.0)
    free = damping + (servo_damping if joint.implicit else 0.0)
    q, v, wanted = windows.q.copy(), windows.v.copy(), np.empty(count)
    out[:, 0] = q
    row, left = 0, joint.substeps
    for i in range((rows - 1) * joint.substeps):
        # The mean over the step of a command that is held for each row, at a fractional row.
        at = before + i / joint.substeps - late
        first = math.floor(at)
        held_for = (1.0 - (at - first)) * period
        now, then = min(max(first, 0), last), min(max(first + 1, 0), last)
        for w in range(count):
            wanted[w] = command[w, now]
        if held_for < h:
            for w in range(count):
                wanted[w] = (held_for * wanted[w] + (h - held_for) * command[w, then]) / h
        # Without branches, so that the windows, which lie side by side in memory, are done several at a time.
        for w in range(count):
            mass = inertia[w, i] + armature
            asked = stiffness * (wanted[w] - pull * q[w]) - servo_damping * v[w] + offset
            torque = min(max(asked, low), high)
            taken = free if torque == asked else damping
            torque -= damping * v[w]
            # The constraint holds the joint with -(free acceleration + gain v) / (1 / mass + softness).
            held = -(torque - held_load[w, i] + gain * v[w] * mass) / (1.0 + soft * mass)
            torque += min(max(held, -friction), friction) - load[w, i]
            v[w] += h * torque / (mass + h * taken)
            q[w] += h * v[w]
        left -= 1
        if left == 0:
            row, left = row + 1, joint.substeps
            out[:, row] = q


@njit(**OPTIONS)
def simulate_all(joint, windows, values, out):  # pragma: no cover - compiled
    """Write the positions of the joint [points, windows, rows] for values [points, 7], as `simulate` does for each."""
    for k in range(len(values)):
        simulate(joint, windows, values[k], out[k])


def by_step(part: np.ndarray) -> np.ndarray:
    """Values [windows, ...] with those of all windows side by side in memory, as `simulate` takes them."""
    return np.asfortranarray(part)
