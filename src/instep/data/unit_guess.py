"""Guess the units of joint positions, and the joints of columns without names, by the ranges of the robot's joints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.world import Array

from .guess_parts import JointColumns, RobotJoint, RobotLayout, UnitReading
from .log_columns import joint_key
from .signal_relations import assigned

MARGIN = 0.1
"""How far positions may lie outside the range of their joint [share of the range]."""
OUTSIDE = 0.02
"""Share of rows outside the range of a joint from which on a column is not of that joint, or in another unit."""
TURNS = 2.2 * math.pi
"""Largest angle that a joint without a range is expected to have [rad]."""
SMALL_MOTION = 3.0
"""Largest span of positions that would be a motion of few degrees, were they degrees."""
FACTORS = {"rad": 1.0, "deg": math.pi / 180, "m": 1.0, "mm": 1e-3}
MAX_ROWS = 4000
MIN_OPENING = 0.5
"""Share of its range that a gripper uses in a log in percent, where degrees would fit as well."""
GRIPPERS = frozenset(("gripper", "jaw", "finger", "hand"))
"""Words in the names of joints that open and close."""


def read_positions(found: JointColumns, robot: RobotLayout) -> tuple[JointColumns, UnitReading, tuple[str, ...]]:
    """Positions with the joints that their ranges allow, their unit, and a doubt per column about its unit."""
    values = sample(found.runs)
    unit, doubt = angle_unit(values, joints_of(found, robot), found)
    if not found.group.named or any(found.doubts):
        found = _ordered_by_range(found, values, robot, unit)
    return found, *read_columns_as(found, robot, unit, doubt)


def read_columns_as(
    found: JointColumns, robot: RobotLayout, unit: str, doubt: str
) -> tuple[UnitReading, tuple[str, ...]]:
    """The conversion of columns whose joints and unit of angles are known, and a doubt per column about its unit."""
    joints, values = joints_of(found, robot), sample(found.runs)
    readings = [_column_reading(values[:, k], joint, unit) for k, joint in enumerate(joints)]
    doubts = tuple(
        own or (doubt if joint.unit == "rad" else "") for (_, _, own), joint in zip(readings, joints, strict=True)
    )
    scale = tuple(factor for factor, _, _ in readings)
    offset = tuple(zero for _, zero, _ in readings)
    return UnitReading(unit, scale, offset if any(offset) else (), doubt), doubts


def sample(runs: Sequence[Array]) -> Array:
    """Rows of all runs, evenly chosen."""
    values = np.concatenate(list(runs))
    return values[:: max(1, len(values) // MAX_ROWS)]


def angle_unit(values: Array, joints: Sequence[RobotJoint], found: JointColumns) -> tuple[str, str]:
    """The unit of the angles among columns, and why it may be wrong."""
    turning = [k for k, joint in enumerate(joints) if joint.unit == "rad"]
    if not turning:
        return "rad", ""
    angles, ranges = values[:, turning], [joints[k] for k in turning]
    free = not found.group.named or any(found.doubts)
    misfit = {unit: _misfit(angles * FACTORS[unit], ranges, free) for unit in ("rad", "deg")}
    stated = found.group.unit
    if stated in ("rad", "deg"):
        return stated, "" if misfit[stated] <= OUTSIDE else f"named {stated}, but positions leave the joints' ranges"
    largest, span = float(np.abs(angles).max(initial=0.0)), float(np.ptp(angles, axis=0).max(initial=0.0))
    if misfit["rad"] <= OUTSIDE:
        if misfit["deg"] <= OUTSIDE and span > SMALL_MOTION:
            return "rad", f"a motion of {span:.2g} rad, or of so many degrees: both lie within the joints' ranges"
        return "rad", ""
    if misfit["deg"] <= OUTSIDE:
        return "deg", "" if largest > TURNS else "radians would leave the joints' ranges, degrees do not"
    unit = min(misfit, key=lambda name: misfit[name])
    return unit, f"{misfit[unit]:.0%} of the rows leave the joints' ranges in radians and in degrees"


def _misfit(values: Array, joints: Sequence[RobotJoint], free: bool) -> float:
    """The largest share of rows outside the range of a joint; of joints in the best order where it is `free`."""
    cost = outside_ranges(values, joints)
    order = assigned(cost) if free else range(len(cost))
    # One column in another unit, such as a gripper in percent, does not decide about the others.
    shares = sorted(float(cost[k, j]) for k, j in enumerate(order) if j >= 0)
    return shares[-1] if len(shares) < 3 else shares[-2]


def outside_ranges(values: Array, joints: Sequence[RobotJoint], unit: str = "rad") -> Array:
    """Share of rows of each column (row) that lie outside the range of each joint (column), with angles in a unit."""
    cost = np.zeros((values.shape[1], len(joints)))
    for j, joint in enumerate(joints):
        low, high = _limits(joint)
        read = values * (FACTORS[unit] if joint.unit == "rad" else 1.0)
        cost[:, j] = ((read < low) | (read > high)).mean(axis=0)
    return cost


def _limits(joint: RobotJoint) -> tuple[float, float]:
    if math.isfinite(joint.low) and math.isfinite(joint.high) and joint.high > joint.low:
        margin = MARGIN * (joint.high - joint.low)
        return joint.low - margin, joint.high + margin
    return (-TURNS, TURNS) if joint.unit == "rad" else (-math.inf, math.inf)


def _ordered_by_range(found: JointColumns, values: Array, robot: RobotLayout, unit: str) -> JointColumns:
    """Columns without names in another order, where the ranges exclude the order of the robot."""
    cost = outside_ranges(values, joints_of(found, robot), unit)
    own = float(np.trace(cost))
    order = assigned(cost + 1e-4 * (1 - np.eye(len(cost))))
    best = sum(float(cost[k, j]) for k, j in enumerate(order))
    if own <= OUTSIDE or best > 0.5 * own or order == list(range(len(order))):
        return found
    moved = [k != j for k, j in enumerate(order)]
    why = "joint ranges exclude the robot's order; this one fits them"
    doubts = tuple(why if changed else doubt for changed, doubt in zip(moved, found.doubts, strict=True))
    return replace(found, labels=tuple(found.labels[j] for j in order), doubts=doubts)


def _column_reading(values: Array, joint: RobotJoint, unit: str) -> tuple[float, float, str]:
    """Factor and offset of one column, and why they may be wrong: its own unit, or a share of the joint's range."""
    factor = FACTORS[unit] if joint.unit == "rad" else 1.0
    low, high = joint.low, joint.high
    bounded = math.isfinite(low) and math.isfinite(high)
    least, most = float(values.min()), float(values.max())
    if bounded and joint.unit == "rad" and set(joint_key(joint.name)) & GRIPPERS:
        # Grippers are often recorded as a share of their opening while all other joints are angles.
        for top, name in ((1.0, "0 to 1"), (100.0, "percent")):
            if unit != "deg" or least < -0.05 * top or most > 1.05 * top or most - least <= 0.02 * top:
                continue
            # Angles below a degree are none of a gripper; angles that use little of 100 are no opening and closing.
            if top == 1.0 or most - least > MIN_OPENING * top or _share(values * factor, joint) > OUTSIDE:
                return (high - low) / top, low, f"a gripper, taken as {name} of its range; degrees would fit as well"
            return factor, 0.0, f"a gripper, taken as degrees; {name} of its range would fit as well"
    if not bounded or _share(values * factor, joint) <= OUTSIDE:
        return factor, 0.0, ""
    others: Mapping[str, float] = {"mm": 1e-3} if joint.unit == "m" else {u: FACTORS[u] for u in ("rad", "deg")}
    for name, other in others.items():
        if _share(values * other, joint) <= OUTSIDE:
            return other, 0.0, f"in {name}, unlike the other columns" if joint.unit == "rad" else ""
    for top, name in ((1.0, "0 to 1"), (100.0, "percent"), (255.0, "0 to 255")):
        if least >= -0.05 * top and most <= 1.05 * top:
            return (high - low) / top, low, f"leaves the joint's range in any unit; taken as {name} of it"
    if least >= -105.0 and most <= 105.0:
        return (high - low) / 200.0, (high + low) / 2, "leaves the joint's range; taken as -100 to 100 of it"
    return factor, 0.0, f"{_share(values * factor, joint):.0%} of the rows leave the joint's range"


def _share(values: Array, joint: RobotJoint) -> float:
    low, high = _limits(joint)
    return float(((values < low) | (values > high)).mean())


def joints_of(found: JointColumns, robot: RobotLayout) -> list[RobotJoint]:
    """The joint of each column; one without a range where the robot is not known."""
    known = {joint.name: joint for joint in robot.joints}
    return [known.get(label, RobotJoint(label)) for label in found.labels]
