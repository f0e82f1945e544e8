"""Compiled simulation of one joint of an arm, the motion of the other joints being known from a recording."""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

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
    """Windows of a recording, as one joint sees them."""

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
    before = windows.command.shape[1] - rows
    h, period = joint.step, joint.step * joint.substeps
    late, gain, soft = delay / period, joint.friction_gain, joint.friction_softness
    steps, implicit = (rows - 1) * joint.substeps, servo_damping if joint.implicit and joint.servo else 0.0
    inputs = np.empty(steps)
    for w in range(count):
        q, v = windows.q[w], windows.v[w]
        inertia, load, held_load = windows.inertia[w], windows.load[w], windows.held_load[w]
        for i in range(steps):
            inputs[i] = _delayed(windows.command[w], before + i / joint.substeps - late, period, h)
        out[w, 0] = q
        row, left = 0, joint.substeps
        for i in range(steps):
            mass, taken = inertia[i] + armature, damping + implicit
            if joint.servo:
                torque = stiffness * (inputs[i] - q) - servo_damping * v + offset
            else:
                torque = stiffness * inputs[i] + offset
            if torque > joint.high or torque < joint.low:
                torque, taken = min(max(torque, joint.low), joint.high), damping
            torque -= damping * v
            # The constraint holds the joint with -(free acceleration + gain v) / (1 / mass + softness).
            held = -(torque - held_load[i] + gain * v * mass) / (1.0 + soft * mass)
            torque += min(max(held, -friction), friction) - load[i]
            v += h * torque / (mass + h * taken)
            q += h * v
            left -= 1
            if left == 0:
                row, left = row + 1, joint.substeps
                out[w, row] = q


@njit(**OPTIONS)
def _delayed(command, row, period, h):  # pragma: no cover - compiled
    """The mean over one physics step of a command that is held for each row, at a fractional row."""
    first = math.floor(row)
    left = (1.0 - (row - first)) * period
    last = len(command) - 1
    now = command[min(max(first, 0), last)]
    if left >= h:
        return now
    return (left * now + (h - left) * command[min(max(first + 1, 0), last)]) / h
