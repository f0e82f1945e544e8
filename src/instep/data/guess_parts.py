"""Parts of a guess of a mapping: the robot's joints and actuators, columns with labels, units, rows with doubts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array

from .log_columns import ColumnGroup
from .mapping import ChannelRule

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


@array_dataclass
class UnlabelledMotion:
    """Motion whose columns no name gives to a joint, in the robot's units."""

    q: Sequence[Array]
    """Measured positions of each run [rows, columns]."""
    commands: Sequence[Array]
    """The command that each column follows [rows, columns]; NaN where there is none."""
    labels: tuple[str, ...]
    """The joints that the columns are of, in the order of the robot."""
    allowed: Array
    """Whether each column (row) can be of each joint (column), by unit and range."""
    dt: float


@frozen_dataclass
class JointOrder:
    """The joint of each column, as the motion says it."""

    labels: tuple[str, ...]
    margins: tuple[float, ...]
    """For each column, the log odds against the best order in which it is of another joint."""
    rivals: tuple[str, ...]
    """That other joint."""


OrderFinder: TypeAlias = Callable[[UnlabelledMotion], JointOrder | None]


@frozen_dataclass
class RobotLayout:
    """What a guess needs to know of a robot; empty where nothing is known."""

    joints: tuple[RobotJoint, ...] = ()
    actuators: tuple[RobotActuator, ...] = ()
    order: OrderFinder | None = None
    """Finds the joints of columns without names by the dynamics of the robot."""


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
    by_name: bool = False
    """Whether names gave the columns their labels."""
    order_only: bool = False
    """Whether all that is doubtful is which column is of which joint."""

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
