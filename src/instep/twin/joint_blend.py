"""How the joints of a twin follow those that are measured, and the robot those of the twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array

MIN_JOINT_SPEED = 0.03
"""Norm of the joint velocities from which a lag is distinguishable from an offset [rad/s or m/s]."""
LEAD_GAIN = 0.06
"""Share of the remaining lag by which the lead is adapted per step."""


@options_dataclass
class JointBlend:
    """How the twin's joints follow the measured ones.

    The real robot follows the simulated one by `lag`, so a reading of time t is compared with the simulated joints of
    t - lag: the difference is a true difference, not the delay. A share of it is added to the simulated joints.
    """

    gain: float = 0.5
    """Share of the difference that is added per step. A robot whose servos are softer or stiffer than modelled stands
    elsewhere while it moves, and so does what it pushes."""
    lag: float = 0.0
    """Delay of the real robot behind the simulated one [s]."""
    max_step: float = 0.01
    """Largest correction of a joint per step [rad or m]."""
    max_error: float = 0.3
    """A difference beyond this is an invalid reading [rad or m]; it is ignored and counted."""
    max_age: float = 0.05
    """Age from which a reading is ignored [s]."""
    max_lead: float = 0.12
    """The robot is commanded to where the simulated joints will be, ahead by its estimated lag, at most by this [s].
    With 0 it is commanded to where they are, and lags behind."""
    park: Mapping[str, float] = field(default_factory=dict[str, float])
    """Positions of joints that the real world does not measure [rad or m]."""


@array_dataclass
class BlendedJoints:
    """New joint positions, and the measured error."""

    q: Array
    error: Array
    """Measured less simulated joints at the same time [joints]; NaN where there was no valid reading."""
    used: bool


def adapt_lead(blend: JointBlend, lead: float, error: Array, velocity: Array) -> float:
    """The next lead of the commands [s], from the last joint error [joints] and the simulated velocity [joints].

    A robot that is late by r shows an error -r v, so -e . v / v . v is the remaining lag; a share of it is added while
    joints move, so that the lead settles in about half a second.
    """
    squared = float(velocity @ velocity)
    if not np.isfinite(error).all() or squared < MIN_JOINT_SPEED**2:
        return lead
    remaining = -float(error @ velocity) / squared
    limit = blend.max_lead
    return float(np.clip(lead + LEAD_GAIN * np.clip(remaining, -limit, limit), 0.0, limit))


def blend_joints(blend: JointBlend, q: Array, times: Array, past: Array, reading: Array, stamp: float) -> BlendedJoints:
    """Move joints q [joints] towards a reading of time `stamp` [s]; `past` [n, joints] are those of `times` [n]."""
    at = stamp - blend.lag
    if not np.isfinite(reading).all() or not np.isfinite(stamp) or at < times[0] or times[-1] - stamp > blend.max_age:
        return BlendedJoints(q, np.full(q.shape, np.nan), False)
    then = np.array([np.interp(at, times, past[:, j]) for j in range(past.shape[1])])
    error = reading - then
    if np.abs(error).max(initial=0.0) > blend.max_error:
        return BlendedJoints(q, error, False)
    return BlendedJoints(q + np.clip(blend.gain * error, -blend.max_step, blend.max_step), error, True)
