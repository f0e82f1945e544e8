"""Supervision of adaptive control: give up a compensation that makes a robot follow its model worse than its servos do.

The compensation torque u moves the joints by x, with M x'' + (kv + b) x' + kp x = u, so that without it the error e to
the model would be about e - x. A command need not be moved by more than that: the compensation is bounded by the
largest |e - x| of the last second or so, joint by joint. Where the e of a joint is larger than its e - x for some time,
the robot is outside the set for which the law is stable (gains, inertia or delay are far from those of the model), and
its servos are left alone for a while, each time twice as long. The model goes on meanwhile, so that errors are those to
the motion that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.world import Array

from .adaptive_kernels import watch_joints
from .adaptive_model import ReferenceArm

WINDOW_S = 0.08
"""Time constant of the mean squares that are compared [s]."""
PEAK_S = 1.0
"""Time constant of the largest error without compensation, which bounds it [s]."""
WORSE = 1.6
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
"""Of each joint: displacement by the compensation and its speed, mean squares with and without it, for how long it has
been worse, whether it was harmed, its share of the compensation, and largest errors; and how long servos are left
alone, now and the next time."""


def start_watch(arm: ReferenceArm) -> Watch:
    """Nothing was compensated yet."""
    zero = np.zeros(arm.n)
    return {
        "x": zero, "v": zero, "with": zero, "without": zero, "worse": zero, "pause": 0.0, "length": FIRST_PAUSE_S,
        "harmed": np.zeros(arm.n, bool), "share": np.ones(arm.n), "peak": zero,
    }  # fmt: skip


def watched(arm: ReferenceArm, watch: Watch, error: Array, past: Mapping[str, Array], fade: float) -> Watch:
    """The watch one period later: `error` is that of the reading, `past` the row of the model it belongs to.

    A compensation that is taken up again fades in within `fade` [s].
    """
    dt = arm.dt
    window = min(1.0, dt / WINDOW_S), dt / PEAK_S, WORSE, MIN_ERROR
    known = watch["x"], watch["v"], watch["with"], watch["without"], watch["worse"], watch["peak"]
    x, v, among, alone, worse, peak = watch_joints(
        known, error, (past["applied"], past["inertia"]), (arm.total_damping, arm.kp), window, dt
    )
    pause, length, harmed = max(watch["pause"] - dt, 0.0), watch["length"], watch["harmed"]
    if pause == 0.0 and worse.max() >= PATIENCE_S:
        # One law helps all joints: where it harms one of them, none is helped. Those that it did help go slowly.
        pause, length, harmed, worse = length, 2 * length, worse >= PATIENCE_S, np.zeros(arm.n)
    rate = -1 / np.where(harmed, QUICK_FADE_S, fade) if pause > 0 else 1 / fade
    share = np.minimum(np.maximum(watch["share"] + dt * rate, 0.0), 1.0)
    return {
        "x": x, "v": v, "with": among, "without": alone, "worse": worse, "pause": pause, "length": length,
        "harmed": harmed, "share": share, "peak": peak,
    }  # fmt: skip


def bounded(watch: Watch, delta: Array) -> Array:
    """The compensation of the commands [n] that a joint gets, no larger than the error it is to remove allows."""
    most = watch["peak"] + MIN_ERROR
    return watch["share"] * np.minimum(np.maximum(delta, -most), most)
