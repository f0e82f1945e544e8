"""Guess which columns are commands, of which actuators and in which unit: by names, then by which joint answers.

Columns without names get their joints by the robot's order, its ranges, and the dynamics that the motion shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.data.mapping import ChannelRule

from .joint_columns import (
    DEGREES,
    FACTORS,
    OUTSIDE,
    CommandKind,
    GuessRow,
    JointColumns,
    JointOrder,
    RobotActuator,
    RobotLayout,
    UnitReading,
    UnlabelledMotion,
    assigned,
    converted_rule,
    correlations,
    gains,
    joints_of,
    outside_ranges,
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
    doubts = doubts or ("",) * len(found.labels)
    unique = len(set(found.labels)) == len(found.labels)
    rows: list[GuessRow] = []
    for k, (reference, label) in enumerate(zip(found.references, found.labels, strict=True)):
        parts = (doubt, found.doubts[k], doubts[k], "" if unique else "two columns seem to be of one actuator")
        why = "; ".join(dict.fromkeys(part for part in parts if part))
        rows.append(GuessRow(f"command of {label}", reference, reading.name, why))
    si = {"position": _si(found, robot), "velocity": "rad/s", "effort": "Nm"}[takes]
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
        return side + kind - 0.2 * abs(len(group.columns) - width) + _strength(group, positions, takes, dt)

    rivals = [g for g in groups if g is not positions.group and g.kind not in ("time", "other", "acceleration")]
    rivals = sorted((g for g in rivals if len(g.columns) <= 2 * width + 2), key=score, reverse=True)
    if not rivals or score(rivals[0]) < 1.0:
        return None, ""
    best = rivals[0]
    if best.side == "command":
        other = best.kind not in (takes, "")
        return best, f"{best.kind} commands, but the robot's actuators take {takes}" if other else ""
    return best, f"no word says that {best.name} are commands; the positions answer them"


def _strength(group: ColumnGroup, positions: JointColumns, takes: CommandKind, dt: float) -> float:
    """How well positions answer a group, from 0 to 1: the median of the best correlation of each moving column."""
    if takes != "position":
        return 0.0
    matrix = np.abs(correlations(positions.runs, group.runs, dt))
    best = [float(np.nanmax(column)) for column in matrix.T if np.isfinite(column).any()]
    return float(np.median(best)) if best else 0.0


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
    by_joint = match_names(labels, [joint.name for joint in robot.joints]) if robot.joints else None
    if by_joint is None:
        return None
    places = [_driving(robot.joints[k].name, robot) for k in by_joint]
    return [k for k in places if k is not None] if None not in places and len(set(places)) == len(places) else None


def _driving(joint: str, robot: RobotLayout) -> int | None:
    """The actuator that moves a joint: the one that moves it alone, else the first that moves it."""
    moving = [k for k, actuator in enumerate(robot.actuators) if joint in actuator.joints]
    return min(moving, key=lambda k: len(robot.actuators[k].joints), default=None)


def _contradiction(answers: Array, label: str, positions: JointColumns, robot: RobotLayout) -> str:
    """What the correlation with positions says against the name of a command; empty where it agrees."""
    actuator = next((a for a in robot.actuators if a.name == label), RobotActuator(label, (label,)))
    own = [float(answers[k]) for k, name in enumerate(positions.labels) if name in actuator.joints]
    own = [value for value in own if math.isfinite(value)]
    if not own or not np.isfinite(answers).any():
        return "" if not actuator.joints or not np.isfinite(answers).any() else "its joint does not move"
    best = int(np.nanargmax(np.abs(answers)))
    strength = max(own, key=abs)
    if strength < -ANSWERS:
        return f"{label} moves against this command: is its sign inverted?"
    if abs(strength) < abs(float(answers[best])) - MARGIN and abs(float(answers[best])) > ANSWERS:
        return f"named {label}, but {positions.labels[best]} answers it (correlation {float(answers[best]):.2f})"
    return "" if abs(strength) >= SILENT else f"{label} hardly answers it (correlation {strength:.2f})"


def _by_answer(group: ColumnGroup, positions: JointColumns, robot: RobotLayout, matrix: Array) -> JointColumns:
    """Commands without names, by the joint that answers each; those that none answers keep their place."""
    strength = np.nan_to_num(np.abs(matrix.T), nan=0.0)
    places = assigned(-strength)
    labels: list[str] = []
    doubts: list[str] = []
    names = [actuator.name for actuator in robot.actuators]
    certain = [p >= 0 and strength[k, p] >= SILENT for k, p in enumerate(places)]
    labelled = {k: _label_of(positions.labels[places[k]], robot) for k, sure in enumerate(certain) if sure}
    spare = [name for name in names or positions.labels if name not in labelled.values()]
    for k in range(len(places)):
        if k in labelled:
            place = places[k]
            labels.append(labelled[k])
            doubts.append(_answer_doubt(strength[k], place, positions))
        elif spare:
            own = names[k] if k < len(names) and names[k] in spare else spare[0]
            spare.remove(own)
            labels.append(own)
            doubts.append("no joint answers it; in the robot's order")
    columns = tuple(k for k in range(len(places)) if k in labelled or k < len(labels))[: len(labels)]
    return JointColumns(group, columns, tuple(labels), tuple(doubts))


def _answer_doubt(strengths: Array, place: int, positions: JointColumns) -> str:
    rest = np.delete(strengths, place)
    if float(strengths[place]) < ANSWERS:
        return f"{positions.labels[place]} answers it weakly (correlation {float(strengths[place]):.2f})"
    if rest.size and float(rest.max()) > float(strengths[place]) - MARGIN:
        second = int(np.argmax(np.where(np.arange(len(strengths)) == place, -1.0, strengths)))
        return f"{positions.labels[second]} answers it nearly as well (correlation {float(rest.max()):.2f})"
    column = positions.group.columns[positions.columns[place]].reference
    return f"answered by {column}, a guess itself" if positions.doubts[place] else ""


def _label_of(joint: str, robot: RobotLayout) -> str:
    place = _driving(joint, robot)
    return joint if place is None else robot.actuators[place].name


def _read(
    found: JointColumns, positions: JointColumns, unit: UnitReading, robot: RobotLayout
) -> tuple[UnitReading, tuple[str, ...]]:
    """The unit of commands: that of the positions, unless they move by another factor; of grippers their range."""
    by_name = {actuator.name: actuator for actuator in robot.actuators}
    scale: list[float] = []
    offset: list[float] = []
    doubts: list[str] = []
    values, state = sample(found.runs), positions.runs
    for k, label in enumerate(found.labels):
        actuator = by_name.get(label, RobotActuator(label, (label,)))
        place = next((p for p, name in enumerate(positions.labels) if actuator.joints == (name,)), None)
        if place is None:
            factor, why = _own_range(values[:, k], actuator)
            zero = 0.0
        else:
            gain = float(gains([run[:, [place]] for run in state], [run[:, [k]] for run in found.runs])[0])
            factor, zero, why = _same_unit(gain, unit, place, found.group.unit)
        scale.append(factor)
        offset.append(zero)
        doubts.append(why)
    name = "deg" if all(math.isclose(s, 1 / DEGREES) for s in scale) else unit.name if scale[0] != 1.0 else "rad"
    return UnitReading(name, tuple(scale), tuple(offset) if any(offset) else ()), tuple(doubts)


def _same_unit(gain: float, unit: UnitReading, place: int, stated: str) -> tuple[float, float, str]:
    """Factor and offset of a command whose joint moves `gain` times as much, both as recorded."""
    own, zero = unit.scale[place], unit.offset[place] if unit.offset else 0.0
    if stated in ("deg", "rad"):
        factor = {"deg": 1 / DEGREES, "rad": 1.0}[stated]
    else:
        ratio = next((f for f in (1.0, DEGREES, 1 / DEGREES) if 0.4 < gain / f < 2.5), 1.0)
        factor = own * ratio
    if not math.isfinite(gain):
        return factor, zero, "does not move, so its unit is that of the positions"
    after = gain * own / factor
    return factor, zero, "" if 0.4 < after < 2.5 else f"its joint moves {after:.2g} times as much as it"


def _own_range(values: Array, actuator: RobotActuator) -> tuple[float, str]:
    """Factor of a command of an actuator that moves no single joint, such as a gripper: by its range alone."""
    low, high = actuator.low, actuator.high
    if not math.isfinite(high - low):
        return 1.0, "the actuator has no range, so its unit is not known"
    slack = 0.05 * (high - low)
    if values.min() >= low - slack and values.max() <= high + slack:
        small = float(np.ptp(values)) < 0.02 * (high - low)
        return 1.0, "uses little of the actuator's range: in another unit?" if small else ""
    return 1.0, f"leaves the range of {actuator.name} ({low:g} to {high:g})"


def _si(found: JointColumns, robot: RobotLayout) -> str:
    """The unit of each command: that of the joint it moves, none where it moves several."""
    joints = {joint.name: joint.unit for joint in robot.joints}
    actuators = {actuator.name: actuator for actuator in robot.actuators}
    units: list[str] = []
    for label in found.labels:
        driven = actuators[label].joints if label in actuators else (label,)
        units.append(joints.get(driven[0], "rad") if len(driven) == 1 else "1")
    return units[0] if len(set(units)) == 1 else " ".join(units)


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
