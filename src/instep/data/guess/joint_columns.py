"""Columns of a log with their joints and units, and the relations between signals that show them.

Ranges of the robot's joints tell units and the joints of columns without names. Commands are found by their names, then
by which joint answers them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.mapping import ChannelRule

from .log_columns import ColumnGroup, joint_key, match_names

CommandKind: TypeAlias = Literal["position", "velocity", "effort"]
DEGREES = 180.0 / math.pi


@frozen_dataclass
class RobotJoint:
    """A joint of the robot that logs are of: its name, range [rad or m] and unit."""

    name: str
    low: float = -math.inf
    high: float = math.inf
    unit: str = "rad"


@frozen_dataclass
class RobotActuator:
    """An actuator of the robot: its name, the joints that it moves, and the range of its command."""

    name: str
    joints: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    takes: CommandKind = "position"


@frozen_dataclass
class RobotLayout:
    """What a guess needs to know of a robot; empty where nothing is known."""

    joints: tuple[RobotJoint, ...] = ()
    actuators: tuple[RobotActuator, ...] = ()

    @property
    def joint_names(self) -> list[str]:
        """The names of its joints."""
        return [joint.name for joint in self.joints]

    def joints_of(self, labels: Sequence[str]) -> list[RobotJoint]:
        """The joint of each label; one without a range where the robot is not known."""
        known = {joint.name: joint for joint in self.joints}
        return [known.get(label, RobotJoint(label)) for label in labels]

    def actuator(self, label: str) -> RobotActuator:
        """The actuator of a label; where it is not known, one of the joint of that name."""
        return next((a for a in self.actuators if a.name == label), RobotActuator(label, (label,)))

    def driver(self, joint: str) -> int | None:
        """The actuator that moves a joint: the one that moves it alone, else the first that moves it."""
        moving = [k for k, actuator in enumerate(self.actuators) if joint in actuator.joints]
        return min(moving, key=lambda k: len(self.actuators[k].joints), default=None)


@frozen_dataclass
class GuessRow:
    """One part of a guess: what it is, where it is taken from, how it is read, and how sure that is."""

    what: str
    source: str
    reading: str
    doubt: str = ""
    """Why it may be wrong; empty where it is sure."""

    @property
    def confidence(self) -> str:
        """`sure`, or `guess: ` and why."""
        return f"guess: {self.doubt}" if self.doubt else "sure"


@array_dataclass
class JointColumns:
    """Columns of positions or commands with the label of each, and why each may be wrong."""

    group: ColumnGroup
    columns: tuple[int, ...]
    labels: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def runs(self) -> list[Array]:
        """The chosen columns of each run."""
        return [run[:, list(self.columns)] for run in self.group.runs]

    @property
    def references(self) -> tuple[str, ...]:
        """How a mapping names the columns."""
        return tuple(self.group.columns[k].reference for k in self.columns)


@frozen_dataclass
class UnitReading:
    """How the numbers of a channel become SI: a unit of the file, or factors and offsets per label."""

    name: str
    scale: tuple[float, ...]
    offset: tuple[float, ...] = ()
    doubt: str = ""


def converted_rule(found: JointColumns, unit: UnitReading, si: str) -> ChannelRule:
    """The rule of columns with their conversion: one unit of the file where it is that of all, else factors."""
    rule = ChannelRule(sources=(found.references,), labels=found.labels, unit=si)
    plain = not unit.offset and len(set(unit.scale)) == 1
    if plain and unit.scale[0] == 1.0:
        return rule
    if plain and unit.name == "deg" and math.isclose(unit.scale[0], 1 / DEGREES):
        return replace(rule, from_unit="deg")
    return replace(rule, scale=unit.scale, offset=unit.offset)


SMOOTHING_S = 0.1
"""Time over which signals are averaged before their rates are compared [s]."""
LAGS = 13
"""Lags at which answers are compared with commands, from none to the longest."""
MAX_LAG_S = 0.5
"""Longest lag that is tried between a command and its answer [s]."""


def correlations(answers: Sequence[Array], commands: Sequence[Array], dt: float) -> Array:
    """Correlation of the rate of each answer (row) with that of each command (column); NaN where one does not move.

    Rates rather than positions: slow common motion makes positions of all joints alike. Each pair is compared at the
    lag at which it correlates best, since an answer trails its command, on weak servos by a third of a second.
    """
    best, parts = np.full((answers[0].shape[1], commands[0].shape[1]), np.nan), list[list[Array]]()
    for run in zip(answers, commands, strict=True):
        span = _span(len(run[0]), dt)
        smooth = [_averaged(x, span) for x in run]
        parts.append([x[span:] - x[:-span] for x in smooth])
    for rows in sorted({round(share * MAX_LAG_S / dt) for share in np.linspace(0, 1, LAGS)}):
        late = [(a[rows:], c[: len(c) - rows]) for a, c in parts if len(a) > rows + 2]
        if not late:
            break
        a, c = (np.concatenate([part[side] for part in late]) for side in (0, 1))
        a, c = a - a.mean(axis=0), c - c.mean(axis=0)
        sizes = np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(c, axis=0))
        moving = sizes > 1e-9 * sizes.max(initial=0.0)
        found = np.where(moving, a.T @ c / np.where(moving, sizes, 1.0), np.nan)
        best = np.where(np.isnan(best) | (np.abs(found) > np.abs(best)), found, best)
    return best


def derivative_ratio(values: Sequence[Array], rates: Sequence[Array], dt: float) -> tuple[float, float]:
    """How well `rates` are the derivative of `values` (median correlation), and how many times as large they are."""
    strengths: list[float] = []
    ratios: list[float] = []
    for x, v in zip(values, rates, strict=True):
        span = _span(len(x), dt)
        slope, mean = (x[span:] - x[:-span]) / (span * dt), _averaged(v, span)[: len(x) - span]
        for k in range(min(x.shape[1], v.shape[1])):
            if np.std(slope[:, k]) > 0 and np.std(mean[:, k]) > 0:
                strengths.append(float(np.corrcoef(slope[:, k], mean[:, k])[0, 1]))
                ratios.append(float(np.std(mean[:, k]) / np.std(slope[:, k])))
    return (float(np.median(strengths)), float(np.median(ratios))) if ratios else (0.0, float("nan"))


def lag(first: Sequence[Array], second: Sequence[Array], dt: float) -> float:
    """By how much `second` trails `first` [s], column by column alike; negative where it comes before."""
    most = max(1, round(MAX_LAG_S / dt))
    scores = np.zeros(2 * most + 1)
    for a, b in zip(first, second, strict=True):
        da, db = (np.diff(x[:, : min(a.shape[1], b.shape[1])], axis=0) for x in (a, b))
        if len(da) <= 2 * most + 2:
            continue
        da, db = ((d - d.mean(axis=0)) / (np.std(d, axis=0) + 1e-12) for d in (da, db))
        middle = db[most : len(db) - most]
        scores += [float((da[most - k : len(da) - most - k] * middle).mean()) for k in range(-most, most + 1)]
    return float((int(np.argmax(scores)) - most) * dt)


def gains(answers: Sequence[Array], commands: Sequence[Array]) -> Array:
    """How many times as much as its command each answer moves, by standard deviation; NaN where one does not move."""
    answer, command = (np.concatenate([x - x.mean(axis=0) for x in runs]).std(axis=0) for runs in (answers, commands))
    return np.where((command > 0) & (answer > 0), answer / np.where(command > 0, command, 1), np.nan)


def assigned(cost: Array) -> list[int]:
    """The column for each row of a cost matrix such that the total cost is the least; -1 for rows without one."""
    optimize: Any = import_module("scipy.optimize")  # its types do not name the function
    found = dict(zip(*optimize.linear_sum_assignment(cost), strict=True))
    return [int(found.get(row, -1)) for row in range(len(cost))]


def _span(rows: int, dt: float) -> int:
    return max(1, min(round(SMOOTHING_S / dt), rows // 4))


def _averaged(x: Array, span: int) -> Array:
    sums = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)])
    return (sums[span:] - sums[:-span]) / span


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
    values, free = sample(found.runs), not found.group.named or any(found.doubts)
    unit, doubt = _angle_unit(values, robot.joints_of(found.labels), found.group.unit, free)
    if free:
        found = _ordered_by_range(found, values, robot, unit)
    joints = robot.joints_of(found.labels)
    scale, offset, own = zip(*(_column_reading(values[:, k], j, unit) for k, j in enumerate(joints)), strict=True)
    doubts = (why or (doubt if joint.unit == "rad" else "") for why, joint in zip(own, joints, strict=True))
    return found, UnitReading(unit, scale, offset if any(offset) else (), doubt), tuple(doubts)


def sample(runs: Sequence[Array]) -> Array:
    """Rows of all runs, evenly chosen."""
    values = np.concatenate(list(runs))
    return values[:: max(1, len(values) // MAX_ROWS)]


def _angle_unit(values: Array, joints: Sequence[RobotJoint], stated: str, free: bool) -> tuple[str, str]:
    """The unit of the angles among columns, and why it may be wrong; `free` columns may be in another order."""
    turning = [k for k, joint in enumerate(joints) if joint.unit == "rad"]
    if not turning:
        return "rad", ""
    angles, misfit = values[:, turning], dict[str, float]()
    for unit in ("rad", "deg"):
        cost = outside_ranges(angles, [joints[k] for k in turning], unit)
        order = assigned(cost) if free else range(len(cost))
        # One column in another unit, such as a gripper in percent, does not decide about the others.
        shares = sorted(float(cost[k, j]) for k, j in enumerate(order) if j >= 0)
        misfit[unit] = shares[-1] if len(shares) < 3 else shares[-2]
    if stated in misfit:
        return stated, "" if misfit[stated] <= OUTSIDE else f"named {stated}, but positions leave the joints' ranges"
    span = float(np.ptp(angles, axis=0).max(initial=0.0))
    if misfit["rad"] <= OUTSIDE:
        both = misfit["deg"] <= OUTSIDE and span > SMALL_MOTION
        why = f"a motion of {span:.2g} rad, or of so many degrees: both lie within the joints' ranges"
        return "rad", why if both else ""
    if misfit["deg"] <= OUTSIDE:
        large = float(np.abs(angles).max(initial=0.0)) > TURNS
        return "deg", "" if large else "radians would leave the joints' ranges, degrees do not"
    unit = min(misfit, key=lambda name: misfit[name])
    return unit, f"{misfit[unit]:.0%} of the rows leave the joints' ranges in radians and in degrees"


def outside_ranges(values: Array, joints: Sequence[RobotJoint], unit: str = "rad") -> Array:
    """Share of rows of each column (row) that lie outside the range of each joint (column), with angles in a unit."""
    shares = [_outside(values * (FACTORS[unit] if joint.unit == "rad" else 1.0), joint) for joint in joints]
    return np.stack(shares, axis=1)


def _outside(values: Array, joint: RobotJoint) -> Array:
    """Share of rows outside the range of a joint, with a margin; one without a range turns less than `TURNS`."""
    low, high = (-TURNS, TURNS) if joint.unit == "rad" else (-math.inf, math.inf)
    if math.isfinite(joint.low) and math.isfinite(joint.high) and joint.high > joint.low:
        margin = MARGIN * (joint.high - joint.low)
        low, high = joint.low - margin, joint.high + margin
    return ((values < low) | (values > high)).mean(axis=0)


def _ordered_by_range(found: JointColumns, values: Array, robot: RobotLayout, unit: str) -> JointColumns:
    """Columns without names in another order, where the ranges exclude the order of the robot."""
    cost = outside_ranges(values, robot.joints_of(found.labels), unit)
    own, order = float(np.trace(cost)), assigned(cost + 1e-4 * (1 - np.eye(len(cost))))
    best = sum(float(cost[k, j]) for k, j in enumerate(order))
    if own <= OUTSIDE or best > 0.5 * own or order == list(range(len(order))):
        return found
    why = "joint ranges exclude the robot's order; this one fits them"
    doubts = tuple(doubt if k == j else why for (k, j), doubt in zip(enumerate(order), found.doubts, strict=True))
    return replace(found, labels=tuple(found.labels[j] for j in order), doubts=doubts)


def _column_reading(values: Array, joint: RobotJoint, unit: str) -> tuple[float, float, str]:
    """Factor and offset of one column, and why they may be wrong: its own unit, or a share of the joint's range."""
    factor, low, high = FACTORS[unit] if joint.unit == "rad" else 1.0, joint.low, joint.high
    if not (math.isfinite(low) and math.isfinite(high)):
        return factor, 0.0, ""
    least, most, misfit = float(values.min()), float(values.max()), float(_outside(values * factor, joint))
    shares = [
        (top, name) for top, name in ((1.0, "0 to 1"), (100.0, "percent"), (255.0, "0 to 255"))
        if least >= -0.05 * top and most <= 1.05 * top
    ]  # fmt: skip
    if joint.unit == "rad" and unit == "deg" and set(joint_key(joint.name)) & GRIPPERS:
        # Grippers are often recorded as a share of their opening while all other joints are angles.
        for top, name in shares:
            if top > 100.0 or most - least <= 0.02 * top:
                continue
            # Angles below a degree are none of a gripper; angles that use little of 100 are no opening and closing.
            if top == 1.0 or most - least > MIN_OPENING * top or misfit > OUTSIDE:
                return (high - low) / top, low, f"a gripper, taken as {name} of its range; degrees would fit as well"
            return factor, 0.0, f"a gripper, taken as degrees; {name} of its range would fit as well"
    if misfit <= OUTSIDE:
        return factor, 0.0, ""
    for name in ("mm",) if joint.unit == "m" else ("rad", "deg"):
        if float(_outside(values * FACTORS[name], joint)) <= OUTSIDE:
            return FACTORS[name], 0.0, f"in {name}, unlike the other columns" if joint.unit == "rad" else ""
    if shares:
        top, name = shares[0]
        return (high - low) / top, low, f"leaves the joint's range in any unit; taken as {name} of it"
    if least >= -105.0 and most <= 105.0:
        return (high - low) / 200.0, (high + low) / 2, "leaves the joint's range; taken as -100 to 100 of it"
    return factor, 0.0, f"{misfit:.0%} of the rows leave the joint's range"


ANSWERS, SILENT, LEAD = 0.6, 0.3, 0.15
"""Correlation from which on a joint answers a command, below which it does not, and by how much the best must lead."""
NO_COMMANDS = "no columns of commands were found, so that nothing can be replayed"


def command_channel(
    groups: Sequence[ColumnGroup], positions: JointColumns, unit: UnitReading, robot: RobotLayout, dt: float
) -> tuple[ChannelRule, list[GuessRow]]:
    """The rule of the commands among groups of columns and a row for each; an empty rule where there are none."""
    takes: CommandKind = robot.actuators[0].takes if robot.actuators else "position"
    group, doubt = _chosen(groups, positions, takes, dt)
    if group is None:
        return ChannelRule(), [GuessRow("commands", "none", "", NO_COMMANDS)]
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
    return rule, rows


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
    if abs(strength) < abs(other) - LEAD and abs(other) > ANSWERS:
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
    if rival > own - LEAD:
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
