"""The joints of columns without names: by the robot's order, its ranges, and the dynamics that its motion shows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from instep.core.world import Array

from .command_guess import CommandGuess
from .guess_parts import JointColumns, JointOrder, RobotLayout, UnitReading, UnlabelledMotion
from .unit_guess import FACTORS, OUTSIDE, joints_of, outside_ranges, sample

SURE, CLEAR = 20.0, 6.0
"""Log odds from which on the dynamics make an order sure that is the robot's own, and above which they prefer one."""


def ordered_by_motion(
    positions: JointColumns, unit: UnitReading, commands: CommandGuess, robot: RobotLayout, dt: float
) -> JointColumns:
    """Columns without names with the joints that their motion fits best; as they were where it cannot be judged."""
    if robot.order is None or positions.by_name or commands.columns is None or commands.takes != "position":
        return positions
    places = {joint.name: k for k, joint in enumerate(robot.joints)}
    if not set(positions.labels) <= set(places) or len(set(positions.labels)) < len(positions.labels):
        return positions
    labels = tuple(sorted(positions.labels, key=lambda label: places[label]))
    values = [run * unit.scale + (unit.offset or 0.0) for run in positions.runs]
    followed = _followed(positions, commands.columns, commands.reading, robot)
    found = robot.order(UnlabelledMotion(values, followed, labels, _allowed(positions, unit, labels, robot), dt))
    if found is None:
        return positions
    doubts = tuple(_doubt(positions, found, labels, k) for k in range(len(labels)))
    return replace(positions, labels=found.labels, doubts=doubts)


def _followed(positions: JointColumns, commands: JointColumns, reading: UnitReading, robot: RobotLayout) -> list[Array]:
    """The command that each column of positions follows, in the robot's units; NaN where there is none."""
    alone = {actuator.name: actuator.joints for actuator in robot.actuators if len(actuator.joints) == 1}
    by_joint = {alone.get(name, (name,))[0]: k for k, name in enumerate(commands.labels)}
    scale, offset = reading.scale, reading.offset or (0.0,) * len(reading.scale)
    found: list[Array] = []
    for run in commands.runs:
        out = np.full((len(run), len(positions.labels)), np.nan)
        for k, label in enumerate(positions.labels):
            if (place := by_joint.get(label)) is not None:
                out[:, k] = run[:, place] * scale[place] + offset[place]
        found.append(out)
    return found


def _allowed(positions: JointColumns, unit: UnitReading, labels: tuple[str, ...], robot: RobotLayout) -> Array:
    """Whether each column can be of each joint: those that are read alike and stay within its range."""
    joints = joints_of(replace(positions, labels=labels), robot)
    own = [labels.index(label) for label in positions.labels]
    factors = [FACTORS[unit.name] if joint.unit == "rad" else 1.0 for joint in joints]
    found = outside_ranges(sample(positions.runs), joints, unit.name) <= OUTSIDE
    for k, place in enumerate(own):
        plain = math.isclose(unit.scale[k], factors[place]) and not (unit.offset and unit.offset[k])
        alike = [plain and joint.unit == joints[place].unit for joint in joints]
        found[k] &= np.array(alike)
        found[k, place] = True
    return found


def _doubt(positions: JointColumns, found: JointOrder, labels: tuple[str, ...], k: int) -> str:
    """Why the joint of a column may be wrong; empty where the robot's order and the motion say the same clearly."""
    margin, rival, label = found.margins[k], found.rivals[k], found.labels[k]
    natural = k == labels.index(label)
    if natural and margin >= SURE:
        return "" if positions.order_only else positions.doubts[k]
    how = "in the robot's order" if natural else "by the robot's dynamics"
    if math.isinf(margin):
        why = "no joint names; the only joint whose range its motion fits"
    elif margin < CLEAR:
        why = f"no joint names; {how}, but its motion would fit {rival} as well"
    elif margin < SURE:
        why = f"no joint names; {how}, and its motion would fit {rival} less"
    else:
        why = f"no joint names; {how}: its motion would fit {rival} much less"
    return why if positions.order_only else f"{positions.doubts[k]}; {why}"
