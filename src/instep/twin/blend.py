"""Joint blending: the simulated robot is led back to the measured one, each compared with itself at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

MOVING = 0.03
"""Speed of joints from which a lag can be told from an offset [rad/s or m/s]."""
LEARNED = 0.06
"""Share of what is left of the lag that is learned per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """How the twin's joints follow those that were measured.

    The real robot follows the simulated one by `lag`, so a reading of time t is compared with the simulated joints of
    t - lag; the difference is a true difference, not the delay, and a share of it is added to the simulated joints.
    """

    gain: float = 0.5
    """Share of the difference that is added per step. A robot whose servos are softer or stiffer than believed stands
    elsewhere as long as it moves; what it pushes then stands elsewhere too."""
    lag: float = 0.0
    """How long the real robot takes to be where the simulated one was [s]."""
    most: float = 0.01
    """Largest step [rad or m]."""
    jump: float = 0.3
    """A difference beyond this is no reading of this robot [rad or m]; it is left out and counted."""
    stale: float = 0.05
    """Age from which a reading says nothing about now [s]."""
    lead: float = 0.12
    """The robot is told where the simulated joints will be, ahead by as much as it is found to lag; this is the most
    [s]. With 0 it is told where they are, and stays behind."""


@dataclass(frozen=True, slots=True, eq=False)
class Blended:
    """New joint positions, and what was found."""

    q: Array
    error: Array
    """Measured less simulated joints at the same time [joints]; NaN where there was no sound reading."""
    used: bool


def led(blend: Blend, lead: float, error: Array, speed: Array) -> float:
    """How far ahead the robot is to be told [s], from the last difference [joints] and the simulated speed [joints].

    A robot that is late by r shows a difference -r v, so -e . v / v . v is what is left of the lag; a share of it is
    added while joints move, so that the lead settles in about half a second.
    """
    moving = float(speed @ speed)
    if not np.isfinite(error).all() or moving < MOVING**2:
        return lead
    left = -float(error @ speed) / moving
    return float(np.clip(lead + LEARNED * np.clip(left, -blend.lead, blend.lead), 0.0, blend.lead))


def blended(blend: Blend, q: Array, times: Array, past: Array, reading: Array, stamp: float) -> Blended:
    """Lead joints q [joints] towards a reading of time `stamp` [s]; `past` [n, joints] are those of `times` [n]."""
    at = stamp - blend.lag
    if not np.isfinite(reading).all() or not np.isfinite(stamp) or at < times[0] or times[-1] - stamp > blend.stale:
        return Blended(q, np.full(q.shape, np.nan), False)
    then = np.array([np.interp(at, times, past[:, j]) for j in range(past.shape[1])])
    error = reading - then
    if np.abs(error).max(initial=0.0) > blend.jump:
        return Blended(q, error, False)
    return Blended(q + np.clip(blend.gain * error, -blend.most, blend.most), error, True)
