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
    for w in range(count):
        q, v = windows.q[w], windows.v[w]
        command, inertia = windows.command[w], windows.inertia[w]
        load, held_load = windows.load[w], windows.held_load[w]
        out[w, 0] = q
        for i in range((rows - 1) * joint.substeps):
            mass = inertia[i] + armature
            u = _delayed(command, before + i / joint.substeps - delay / period, period, h)
            if joint.servo:
                torque, implicit = stiffness * (u - q) - servo_damping * v + offset, servo_damping
            else:
                torque, implicit = stiffness * u + offset, 0.0
            if torque > joint.high or torque < joint.low:
                torque, implicit = min(max(torque, joint.low), joint.high), 0.0
            if not joint.implicit:
                implicit = 0.0
            torque -= damping * v
            free = (torque - held_load[i]) / mass + joint.friction_gain * v
            held = -free / (1.0 / mass + joint.friction_softness)
            torque += min(max(held, -friction), friction) - load[i]
            v += h * torque / (mass + h * (damping + implicit))
            q += h * v
            if (i + 1) % joint.substeps == 0:
                out[w, (i + 1) // joint.substeps] = q


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
