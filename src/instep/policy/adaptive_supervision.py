"""Supervision of adaptive control: give up a compensation that makes a robot follow its model worse than its servos do.

The compensation torque u moves the joints by x, with M x'' + (kv + b) x' + kp x = u, so that without it the error e to
the model would be about e - x. A command need not be moved by more than that: the compensation is bounded by the
largest |e - x| of the last second or so, joint by joint, less once or three times what the robot is beyond its model in
the direction of the compensation. It moves at a bounded acceleration, since limits of acceleration and jerk would
overshoot otherwise. Where the e of a joint is larger than its e - x for some time, and than half the largest |e - x|,
the robot is outside the set for which the law is stable (gains, inertia or delay are far from those of the model), and
its servos are left alone for a while, each time twice as long. The model goes on meanwhile, so that errors are those to
the motion that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from instep.core.world import Array

from .adaptive_model import ReferenceArm
from .adaptive_stability import Method

WINDOW_S = 0.08
"""Time constant of the mean squares that are compared [s]."""
PEAK_S = 1.0
"""Time constant of the largest error without compensation, which bounds it [s]."""
WORSE = 1.6
"""How many times larger the error must be than without compensation."""
PEAK_SHARE = 0.5
"""Share of the largest error without compensation that the error must also reach: a joint that dry friction holds a few
milliradians off does not move by its compensation, and is not harmed."""
PATIENCE_S = 0.03
"""How long it must be [s]."""
MIN_ERROR = 3e-3
"""Error up to which nothing is given up [rad or m]."""
OVERSHOOT, LEARNT_OVERSHOOT = 1.0, 3.0
"""By how many times of what the robot is beyond its model in the direction of a compensation its bound is lowered.

Laws that feed the error back take their compensation back themselves: lowered farther, an arm that swings would lose
what holds its load. One that was learnt goes on."""
LEARNT: tuple[Method, ...] = ("mrac", "residual")
"""Laws whose compensation is learnt: regressors of the model's motion by weights."""
QUICK_GROWTH = 0.01
"""Size up to which a compensation grows quickly, as for dry friction where a joint turns round [rad or m]."""
MAX_GROWTH = 0.5
"""How fast it grows beyond [rad/s or m/s]."""
ACCELERATION = 10.0
"""Acceleration of a compensation [rad/s^2 or m/s^2], a third of what robots without stated limits are allowed. The
limits of a robot take what moves faster for a motion, follow it, and overshoot where it ends; and a joint that is let
go suddenly throws those that it carries."""
FIRST_PAUSE_S = 1.0
"""Time for which the servos are left alone the first time [s]."""
QUICK_FADE_S = 0.05
"""Time in which a harmful compensation fades out [s]."""

POSITION, SPEED, WITH, WITHOUT, WORSE_FOR, PEAK, HARMED, HELPED = range(8)
"""Rows of what is known of each joint: displacement by the compensation and its speed, mean squares of the error with
and without it, for how long it has been worse, the largest error without it, whether it was harmed (1 or 0), and its
share of the compensation."""
Watch = Mapping[str, Array]
"""`joints` [8, n], and `pause` [2]: how long servos are left alone, now and the next time."""


def start_watch(arm: ReferenceArm) -> Watch:
    """Nothing was compensated yet."""
    joints = np.zeros((8, arm.n))
    joints[HELPED] = 1.0
    return {"joints": joints, "pause": np.array([0.0, FIRST_PAUSE_S])}


def supervision_rules(dt: float, fade: float) -> tuple[float, ...]:
    """The numbers that `watch_joints` goes by; a compensation that is taken up again fades in within `fade` [s]."""
    return min(1.0, dt / WINDOW_S), dt / PEAK_S, WORSE, MIN_ERROR, PATIENCE_S, dt / QUICK_FADE_S, dt / fade, PEAK_SHARE


def compensation_sizes(method: Method) -> tuple[float, float, float, float, float]:
    """The numbers that `limit_compensation` goes by, for the compensation of a law."""
    overshoot = LEARNT_OVERSHOOT if method in LEARNT else OVERSHOOT
    return MIN_ERROR, overshoot, QUICK_GROWTH, MAX_GROWTH, ACCELERATION
