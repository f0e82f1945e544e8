"""Supervision of adaptive control: give up a compensation that makes a robot follow its model worse than its servos do.

The compensation torque u moves the joints by x, with M x'' + (kv + b) x' + kp x = u, so that without it the error e to
the model would be about e - x. A command need not be moved by much more than that: the compensation is bounded by twice
the largest |e - x| of the last second or so, joint by joint. Where e is larger than e - x for some time, the robot is
outside the set for which the law is stable (gains, inertia or delay are far from those of the model), and its servos
are left alone for a while, each time twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.world import Array

from .adaptive_model import ReferenceArm

WINDOW_S = 0.08
"""Time constant of the mean squares that are compared [s]."""
PEAK_S, MAX_SHARE = 1.0, 2.0
"""Time constant of the largest error without compensation [s], and the compensation that is allowed, in times of it."""
WORSE = 1.25
"""How many times larger the error must be than without compensation."""
PATIENCE_S = 0.03
"""How long it must be [s]."""
MIN_ERROR = 3e-3
"""Error up to which nothing is given up [rad or m]."""
FIRST_PAUSE_S = 1.0
"""Time for which the servos are left alone the first time [s]."""
QUICK_FADE_S = 0.05
"""Time in which a harmful compensation fades out [s]."""

Watch = Mapping[str, Any]
"""Displacement by the compensation and its speed, mean squares with and without it, times, and largest errors."""


def start_watch(arm: ReferenceArm) -> Watch:
    """Nothing was compensated yet."""
    return {
        "x": np.zeros(arm.n), "v": np.zeros(arm.n), "with": 0.0, "without": 0.0, "worse": 0.0, "pause": 0.0,
        "length": FIRST_PAUSE_S, "peak": np.zeros(arm.n),
    }  # fmt: skip


def watched(arm: ReferenceArm, watch: Watch, error: Array, past: Mapping[str, Array]) -> Watch:
    """The watch one period later: `error` is that of the reading, `past` the row of the model it belongs to."""
    dt, kp = arm.dt, arm.kp
    damping = arm.kv + arm.damping
    # Implicit: stable at any stiffness.
    held: Array = past["inertia"] + np.diag(dt * damping + dt**2 * kp)
    pushed = past["inertia"] @ watch["v"] + dt * (past["applied"] - kp * watch["x"])
    v: Array = np.asarray(np.linalg.solve(held, pushed), float)
    x: Array = np.asarray(watch["x"], float) + dt * v
    among = watch["with"] + min(1.0, dt / WINDOW_S) * (float(np.max(error**2)) - watch["with"])
    alone = watch["without"] + min(1.0, dt / WINDOW_S) * (float(np.max((error - x) ** 2)) - watch["without"])
    peak = np.maximum(np.abs(error - x), watch["peak"] * (1 - dt / PEAK_S))
    worse = watch["worse"] + dt if among > max(WORSE**2 * alone, MIN_ERROR**2) else 0.0
    pause, length = max(watch["pause"] - dt, 0.0), watch["length"]
    if worse >= PATIENCE_S and pause == 0.0:
        pause, length, worse = length, 2 * length, 0.0
    return {
        "x": x, "v": v, "with": among, "without": alone, "worse": worse, "pause": pause, "length": length, "peak": peak,
    }  # fmt: skip


def bounded(watch: Watch, delta: Array) -> Array:
    """The compensation of the commands [n], no larger than the error it is to remove allows."""
    most = MAX_SHARE * watch["peak"] + MIN_ERROR
    return np.clip(delta, -most, most)


def paused(watch: Watch) -> bool:
    """Whether the servos are left alone."""
    return watch["pause"] > 0.0
