"""Stability of adaptive control: the bandwidth at which compensation stays stable for a set of robots around a model.

Of a joint that follows its position servo, the error e to the reference model obeys M e'' + b e' + kp e = kp u + d,
with the disturbance d, and the compensation u that arrives after the delay L. With P = 1 / (M s^2 + b s + kp) of the
robot, Pn of the model, and rho = P / Pn, compensation of what the model says d was, through a low-pass filter C, has
the sensitivity (error with compensation over error without)

    S = (1 - C exp(-s L)) / (1 + C exp(-s L) (rho - 1)),        integral action   S = 1 / (1 + w / s kp P exp(-s L)).

The loop is stable where the small-gain condition |C (rho - 1)| < 1 holds at every frequency, however long the delay.
The bandwidth w is the largest at which it holds with a margin and |S| stays below a bound, for every robot of the set.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array

Method = Literal["mrac", "l1", "residual", "observer", "integral"]
METHODS: tuple[Method, ...] = ("mrac", "l1", "residual", "observer", "integral")
"""Adaptive laws by name."""
MAX_PEAK = 1.6
"""Largest amplification of a disturbance at any frequency."""
MAX_SMALL_GAIN = 0.8
"""Largest |C (rho - 1)|; 1 is the limit of the proof."""
INERTIAS, GAINS = (0.7, 1.0, 1.6), (0.65, 1.0, 1.15)
"""Factors of inertia (payload) and of servo gains (actuator loss) of the robots around the model."""
DELAY_ERROR = 0.25
"""Share of the delay by which the robot's may be longer than the model's; at least a control period."""
LOWEST, HIGHEST, CANDIDATES = 0.2, 120.0, 60
"""Bandwidths that are tried [rad/s]."""

RATE_FILTER = 6.0
"""Bandwidth of the filter that gives a state predictor the rate of its readings, over that of C."""

Loop = Literal["filter", "predictor", "integral"]


@array_dataclass
class ServoDynamics:
    """The error dynamics of each joint, as the model says."""

    inertia: Array
    """Inertia about each joint, of the links beyond it and its rotor [kg m2 or kg]."""
    damping: Array
    """Velocity gain of the servo and damping of the joint."""
    stiffness: Array
    """Position gain of the servo."""
    delay: float
    """Time from a command to its reading, without the control period [s]."""
    dt: float
    """Control period [s]."""


@array_dataclass
class Bandwidth:
    """The bandwidth of a loop and what it was chosen by."""

    omega: Array
    """Bandwidth of each joint [rad/s]."""
    small_gain: float
    """Largest |C (rho - 1)| over joints, robots and frequencies; 0 for integral action, which has no filter."""
    peak: float
    """Largest |S|."""

    def __str__(self) -> str:
        return (
            f"bandwidth {self.omega.min():.3g} to {self.omega.max():.3g} rad/s, |C (rho - 1)| = {self.small_gain:.2f}, "
            f"peak of |S| = {self.peak:.2f}"
        )


def stable_bandwidth(dynamics: ServoDynamics, loop: Loop) -> Bandwidth:
    """The largest bandwidth of each joint that is stable with its margins for all robots of the set.

    Raises `BadInput` where even the lowest one is not: the delay is too long, or the servo has no damping.
    """
    omega, gains, peaks = np.empty(len(dynamics.inertia)), list[float](), list[float]()
    tried = np.geomspace(LOWEST, HIGHEST, CANDIDATES)
    for joint in range(len(omega)):
        gain, peak = margins(dynamics, joint, tried, loop)
        # A loop beyond its stability limit may have low peaks again: all lower bandwidths must be good too.
        good = np.logical_and.accumulate((gain <= MAX_SMALL_GAIN) & (peak <= MAX_PEAK))
        if not good[0]:
            raise BadInput(
                f"No compensation of joint {joint} is stable: at {LOWEST:g} rad/s |C (rho - 1)| = {gain[0]:.2f} (at "
                f"most {MAX_SMALL_GAIN:g}) and |S| = {peak[0]:.2f} (at most {MAX_PEAK:g}), with a delay of "
                f"{1e3 * dynamics.delay:.0f} ms. Identify damping and delay of the robot with instep tune."
            )
        last = int(np.flatnonzero(good)[-1])
        omega[joint] = tried[last]
        gains.append(float(gain[last]))
        peaks.append(float(peak[last]))
    return Bandwidth(omega, max(gains), max(peaks))


def margins(dynamics: ServoDynamics, joint: int, omega: Array, loop: Loop) -> tuple[Array, Array]:
    """Largest |C (rho - 1)| and |S| of a joint at each bandwidth, over frequencies and robots."""
    m, b, kp = (float(x[joint]) for x in (dynamics.inertia, dynamics.damping, dynamics.stiffness))
    # A command is held for a period, so that its mean effect comes half a period later.
    delay = dynamics.delay + 0.5 * dynamics.dt
    # A resonance is narrow where damping is low; the grid must not step over it.
    resonances = [math.sqrt(kp * servo / (m * inertia)) for inertia in INERTIAS for servo in GAINS]
    s = 1j * np.sort(np.append(np.geomspace(0.05, np.pi / dynamics.dt, 240), resonances))
    nominal = m * s**2 + b * s + kp
    late = (delay, delay + max(DELAY_ERROR * delay, dynamics.dt))
    robots = [(i, g, x) for i in INERTIAS for g in GAINS for x in late]
    gain, peak = np.zeros(len(omega)), np.zeros(len(omega))
    for inertia, servo, lag in robots:
        robot = inertia * m * s**2 + servo * (b * s + kp)
        # What arrives is also scaled by the gain, and later than the model says.
        rho = servo * nominal / robot * np.exp(-s * (lag - delay))
        if loop == "integral":
            sensitivity = 1 / (1 + omega[:, None] / s * servo * kp / robot * np.exp(-s * lag))
        else:
            c = (omega[:, None] / (s + omega[:, None])) ** 2
            if loop == "predictor":
                c = c * (RATE_FILTER * omega[:, None] / (s + RATE_FILTER * omega[:, None])) ** 2
            gain = np.maximum(gain, np.abs(c * (rho - 1)).max(axis=1))
            later = c * np.exp(-s * delay)
            sensitivity = (1 - later) / (1 + later * (rho - 1))
        peak = np.maximum(peak, np.abs(sensitivity).max(axis=1))
    return gain, peak
