"""Guess which columns are commands, of which actuators and in which unit: by names, then by which joint answers.

Columns without names get their joints by the robot's order and its ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.data.mapping import ChannelRule

from .joint_columns import (
    DEGREES,
    CommandKind,
    GuessRow,
    JointColumns,
    RobotActuator,
    RobotLayout,
    UnitReading,
    assigned,
    converted_rule,
    correlations,
    gains,
    sample,
)
from .log_columns import ColumnGroup, match_names

ANSWERS, SILENT, MARGIN = 0.6, 0.3, 0.15
"""Correlation from which on a joint answers a command, below which it does not, and by how much the best must lead."""
NO_COMMANDS = "no columns of commands were found, so that nothing can be replayed"


@array_dataclass
class CommandGuess:
    """The rule of the commands and a row for each; an empty rule where there are none."""

    rule: ChannelRule
    rows: tuple[GuessRow, ...]
    takes: CommandKind
    columns: JointColumns | None = None
    reading: UnitReading = UnitReading("", ())


def command_channel(
    groups: Sequence[ColumnGroup], positions: JointColumns, unit: UnitReading, robot: RobotLayout, dt: float
) -> CommandGuess:
    """The commands among groups of columns, the actuators that they are of and their unit."""
    takes: CommandKind = robot.actuators[0].takes if robot.actuators else "position"
    group, doubt = _chosen(groups, positions, takes, dt)
    if group is None:
        return CommandGuess(ChannelRule(), (GuessRow("commands", "none", "", NO_COMMANDS),), takes)
    found = _labelled(group, positions, robot, (takes, dt))
    reading, doubts = _read(found, positions, unit, robot) if takes == "position" else (UnitReading("Nm", ()), ())
    unique = "" if len(set(found.labels)) == len(found.labels) else "two columns seem to be of one actuator"
    rows: list[GuessRow] = []
    for k, (reference, label) in enumerate(zip(found.references, found.labels, strict=True)):
        parts = (doubt, found.doubts[k], doubts[k] if doubts else "", unique)
        why = "; ".join(dict.fromkeys(part for part in parts if part))
        rows.append(GuessRow(f"command of {label}", reference, reading.name, why))
    si = {"velocity": "rad/s", "effort": "Nm"}.get(takes, "")
    if takes == "position":
        driven = [robot.actuator(label).joints for label in found.labels]
        units = [robot.joints_of(joints)[0].unit if len(joints) == 1 else "1" for joints in driven]
        si = units[0] if len(set(units)) == 1 else " ".join(units)
    rule = converted_rule(found, reading, si) if reading.scale else ChannelRule((found.references,), found.labels, si)
    return CommandGuess(rule, tuple(rows), takes, found, reading)


def _chosen(
    groups: Sequence[ColumnGroup], positions: JointColumns, takes: CommandKind, dt: float
) -> tuple[ColumnGroup | None, str]:
    """The group of the commands, and why it may be another."""
    width = len(positions.columns)

    def score(group: ColumnGroup) -> float:
        side = {"command": 4.0, "": 0.0, "state": -20.0}[group.side]
        kind = 3.0 if group.kind == takes else 1.0 if group.kind == "" else -6.0
        if group.kind == "position" and not group.words & {"q", "pos", "position", "positions", "angle", "angles"}:
            kind -= 1.0
        # How well positions answer it, from 0 to 1: the median of the best correlation of each moving column.
        matrix = np.abs(correlations(positions.runs, group.runs, dt)) if takes == "position" else np.zeros((1, 0))
        best = [float(np.nanmax(column)) for column in matrix.T if np.isfinite(column).any()]
        return side + kind - 0.2 * abs(len(group.columns) - width) + (float(np.median(best)) if best else 0.0)

    rivals = [g for g in groups if g is not positions.group and g.kind not in ("time", "other", "acceleration")]
    scored = [(score(g), g) for g in rivals if len(g.columns) <= 2 * width + 2]
    points, best = max(scored, key=lambda each: each[0], default=(0.0, None))
    if best is None or points < 1.0:
        return None, ""
    if best.side == "command":
        other = best.kind not in (takes, "")
        return best, f"{best.kind} commands, but the robot's actuators take {takes}" if other else ""
    return best, f"no word says that {best.name} are commands; the positions answer them"


def _labelled(
    group: ColumnGroup, positions: JointColumns, robot: RobotLayout, how: tuple[CommandKind, float]
) -> JointColumns:
    """The columns of commands with the actuators they are of, by name or by which joint answers, and doubts."""
    takes, dt = how
    names = [actuator.name for actuator in robot.actuators] or list(positions.labels)
    width = len(group.columns)
    matched = _by_name(group, positions, robot)
    matrix = correlations(positions.runs, group.runs, dt) if takes == "position" else np.full((1, width), np.nan)
    if matched is not None:
        labels = tuple(names[k] for k in matched)
        doubts = tuple(_contradiction(matrix[:, k], label, positions, robot) for k, label in enumerate(labels))
        return JointColumns(group, tuple(range(width)), labels, doubts)
    columns = tuple(range(min(width, len(names))))
    if np.isnan(matrix).all():
        doubt = "no names; in the order of the robot's actuators"
        return JointColumns(group, columns, tuple(names[k] for k in columns), (doubt,) * len(columns))
    return _by_answer(group, positions, robot, matrix)


def _by_name(group: ColumnGroup, positions: JointColumns, robot: RobotLayout) -> list[int] | None:
    """The actuator that each column names: by its own name, or by that of a joint that it moves."""
    if not group.named:
        # Numbers mean the same as those of the positions where these were named.
        return None
    labels = [column.label for column in group.columns]
    names = [actuator.name for actuator in robot.actuators] or list(positions.labels)
    if (found := match_names(labels, names)) is not None:
        return found
    by_joint = match_names(labels, robot.joint_names) if robot.joints else None
    places = [robot.driver(robot.joints[k].name) for k in by_joint or ()]
    known = [k for k in places if k is not None]
    return known if by_joint and len(set(known)) == len(places) else None


def _contradiction(answers: Array, label: str, positions: JointColumns, robot: RobotLayout) -> str:
    """What the correlation with positions says against the name of a command; empty where it agrees."""
    joints = robot.actuator(label).joints
    own = [float(answers[k]) for k, name in enumerate(positions.labels) if name in joints and np.isfinite(answers[k])]
    if not np.isfinite(answers).any() or not joints:
        return ""
    if not own:
        return "its joint does not move"
    best, strength = int(np.nanargmax(np.abs(answers))), max(own, key=abs)
    other = float(answers[best])
    if strength < -ANSWERS:
        return f"{label} moves against this command: is its sign inverted?"
    if abs(strength) < abs(other) - MARGIN and abs(other) > ANSWERS:
        return f"named {label}, but {positions.labels[best]} answers it (correlation {other:.2f})"
    return "" if abs(strength) >= SILENT else f"{label} hardly answers it (correlation {strength:.2f})"


def _by_answer(group: ColumnGroup, positions: JointColumns, robot: RobotLayout, matrix: Array) -> JointColumns:
    """Commands without names, by the joint that answers each; those that none answers keep their place."""
    strength = np.nan_to_num(np.abs(matrix.T), nan=0.0)
    names, found = [actuator.name for actuator in robot.actuators], dict[int, tuple[str, str]]()
    for k, place in enumerate(assigned(-strength)):
        if place >= 0 and strength[k, place] >= SILENT:
            driver = robot.driver(positions.labels[place])
            label = positions.labels[place] if driver is None else names[driver]
            found[k] = (label, _answer_doubt(strength[k], place, positions))
    taken = [label for label, _ in found.values()]
    spare = [name for name in names or positions.labels if name not in taken]
    for k in range(len(strength)):
        if k not in found and spare:
            own = names[k] if k < len(names) and names[k] in spare else spare[0]
            spare.remove(own)
            found[k] = (own, "no joint answers it; in the robot's order")
    columns = tuple(sorted(found))
    labels, doubts = ([found[k][part] for k in columns] for part in (0, 1))
    return JointColumns(group, columns, tuple(labels), tuple(doubts))


def _answer_doubt(strengths: Array, place: int, positions: JointColumns) -> str:
    own, others = float(strengths[place]), np.where(np.arange(len(strengths)) == place, -1.0, strengths)
    second, rival = int(np.argmax(others)), float(others.max())
    if own < ANSWERS:
        return f"{positions.labels[place]} answers it weakly (correlation {own:.2f})"
    if rival > own - MARGIN:
        return f"{positions.labels[second]} answers it nearly as well (correlation {rival:.2f})"
    column = positions.group.columns[positions.columns[place]].reference
    return f"answered by {column}, a guess itself" if positions.doubts[place] else ""


def _read(
    found: JointColumns, positions: JointColumns, unit: UnitReading, robot: RobotLayout
) -> tuple[UnitReading, tuple[str, ...]]:
    """The unit of commands: that of the positions, unless they move by another factor; of grippers their range."""
    readings: list[tuple[float, float, str]] = []
    values = sample(found.runs)
    for k, label in enumerate(found.labels):
        actuator = robot.actuator(label)
        place = next((p for p, name in enumerate(positions.labels) if actuator.joints == (name,)), None)
        if place is None:
            readings.append((1.0, 0.0, _range_doubt(values[:, k], actuator)))
            continue
        # Positions move `gain` times as much as the command, both as recorded.
        gain = float(gains([run[:, [place]] for run in positions.runs], [run[:, [k]] for run in found.runs])[0])
        own, zero = unit.scale[place], unit.offset[place] if unit.offset else 0.0
        ratio = next((f for f in (1.0, DEGREES, 1 / DEGREES) if 0.4 < gain / f < 2.5), 1.0)
        factor = {"deg": 1 / DEGREES, "rad": 1.0}.get(found.group.unit, own * ratio)
        after, why = gain * own / factor, "does not move, so its unit is that of the positions"
        if math.isfinite(gain):
            why = "" if 0.4 < after < 2.5 else f"its joint moves {after:.2g} times as much as it"
        readings.append((factor, zero, why))
    scale, offset, doubts = zip(*readings, strict=True)
    name = "deg" if all(math.isclose(s, 1 / DEGREES) for s in scale) else unit.name if scale[0] != 1.0 else "rad"
    return UnitReading(name, scale, offset if any(offset) else ()), doubts


def _range_doubt(values: Array, actuator: RobotActuator) -> str:
    """What the range says against the command of an actuator that moves no single joint, such as a gripper."""
    low, high = actuator.low, actuator.high
    if not math.isfinite(high - low):
        return "the actuator has no range, so its unit is not known"
    slack = 0.05 * (high - low)
    if values.min() < low - slack or values.max() > high + slack:
        return f"leaves the range of {actuator.name} ({low:g} to {high:g})"
    small = float(np.ptp(values)) < 0.02 * (high - low)
    return "uses little of the actuator's range: in another unit?" if small else ""
