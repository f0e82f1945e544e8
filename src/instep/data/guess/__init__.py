"""Guess the mapping of a log without a mapping, and write it as a commented TOML file to be corrected.

Names are read first. Then the numbers check them: joint ranges, the ratio of velocities to derivatives, and which state
answers which command. Each row of a guess is sure or says why it is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.data.files import write_text
from instep.data.loading import Logs, find_logs
from instep.data.mapping import SECONDS, ChannelRule, DataMapping, RawRun, text_seconds

from .joint_columns import (
    DEGREES,
    GuessRow,
    JointColumns,
    RobotLayout,
    UnitReading,
    command_channel,
    converted_rule,
    derivative_ratio,
    lag,
    read_positions,
)
from .log_columns import TIME_UNITS, ColumnGroup, column_groups, match_names, tokens

RATES = (0.9, 20_000.0)
"""Rates that logs of robots have [Hz]."""
DEFAULT_RATE = 50.0
"""Rate of a log that says nothing about time [Hz]; always flagged."""
EPOCH = (9.4e8, 4.1e9)
"""Seconds since 1970 that are times of this century."""
MIN_DERIVATIVE = 0.9
"""Correlation from which on recorded velocities are the derivative of the positions."""


@array_dataclass
class MappingGuess:
    """A guessed mapping with its rows, and the first run by which it can be shown."""

    mapping: DataMapping
    folder: Path
    rows: tuple[GuessRow, ...]
    rate: float
    """Rows per second of the logs."""

    @property
    def doubts(self) -> tuple[GuessRow, ...]:
        """The rows that are not sure."""
        return tuple(row for row in self.rows if row.doubt)


def guess_mapping(
    logs: Sequence[str | Path] | Logs, robot: RobotLayout | None = None, *, rate: float | None = None
) -> MappingGuess:
    """Guess how logs of a robot are to be read; `rate` [Hz] is that of logs without times."""
    logs, robot = logs if isinstance(logs, Logs) else find_logs(logs), robot or RobotLayout()
    runs = logs.first_runs()
    if not runs:
        raise BadInput(f"{str(logs.folder)!r} holds no run to read.")
    groups = column_groups(runs, robot.joint_names)
    clock, dt = _clock(groups, runs, rate)
    mapping = DataMapping("draft", logs.format, logs.files, options=dict(logs.options))
    mapping = replace(mapping, meta={"group": "{parent}" if logs.format == "rosbag" else "{stem}"})
    mapping = replace(mapping, time=clock.source, time_unit=clock.reading if clock.source else "s")
    mapping = replace(mapping, rate=0.0 if clock.source else 1.0 / dt)
    rows = [replace(clock, source=clock.source or "none", reading=f"{clock.reading}, {1 / dt:.4g} Hz")]
    positions, unit, doubts = read_positions(_positions(groups, robot, dt), robot)
    action, commands = command_channel(groups, positions, unit, robot, dt)
    kinds = [joint.unit for joint in robot.joints_of(positions.labels)]
    si = kinds[0] if len(set(kinds)) == 1 else " ".join(kinds)
    mapping = replace(mapping, q=converted_rule(positions, unit, si), action=action)
    for reference, label, order, doubt in zip(
        positions.references, positions.labels, positions.doubts, doubts, strict=True
    ):
        why = "; ".join(dict.fromkeys(part for part in (order, doubt) if part))
        rows.append(GuessRow(f"position of {label}", reference, unit.name, why))
    rows += commands
    velocity, row = _velocity(groups, positions, unit, dt)
    mapping = replace(mapping, v=velocity)
    rows.append(row)
    if (effort := _effort(groups, positions)) is not None:
        mapping = replace(mapping, observation={"observation.effort": effort[0]})
        rows.append(effort[1])
    return MappingGuess(mapping, logs.folder, tuple(rows), 1.0 / dt)


def _clock(groups: Sequence[ColumnGroup], runs: Sequence[RawRun], rate: float | None) -> tuple[GuessRow, float]:
    """The column of times as a row whose reading is the unit, and the period [s]."""
    found = [column for group in groups for column in _time_columns(group)]
    for name, column in runs[0].columns.items():
        if column.dtype.kind in "US" and column.ndim == 1:
            times = text_seconds([str(cell) for cell in column])
            if times is not None and len(times) > 3 and float(np.median(np.diff(times))) > 0:
                found.append((2.5, name, times, "s"))
    best = max(found, key=lambda column: column[0], default=None)
    if best is not None:
        _, name, values, unit = best
        since_1970 = float(values[0])
        unit = unit or next((u for u, second in SECONDS.items() if EPOCH[0] <= since_1970 * second <= EPOCH[1]), "")
        step = float(np.median(np.diff(values)))
        doubt = "" if unit else f"steps of {step:.4g} without a unit"
        unit = unit or _time_unit(step)
        if not RATES[0] <= 1 / (step * SECONDS[unit]) <= RATES[1]:
            doubt = f"steps of {step:.4g} {unit} are no rate of a robot"
            unit = _time_unit(step)
        elif doubt and (_time_unit(step) == "s" or step >= 2) and step * SECONDS[unit] < 0.2:
            doubt = ""
        return GuessRow("time", name, unit, doubt), step * SECONDS[unit]
    header = runs[0].header
    stated = float(header.get("rate", header.get("fps", 0.0))) or (1 / float(header["dt"]) if "dt" in header else 0.0)
    if rate or stated:
        return GuessRow("time", "", "even rows"), 1.0 / (rate or stated)
    why = f"no times and no rate in the logs: {DEFAULT_RATE:g} Hz is assumed; give --rate"
    return GuessRow("time", "", "even rows", why), 1.0 / DEFAULT_RATE


def _time_columns(group: ColumnGroup) -> list[tuple[float, str, Array, str]]:
    """Columns that may be times: how good a candidate, the column, its first run, and the unit its name states."""
    found: list[tuple[float, str, Array, str]] = []
    for k, column in enumerate(group.columns):
        values = group.runs[0][:, k]
        steps = np.diff(values)
        if len(steps) < 3 or not np.isfinite(values).all() or (steps < 0).any() or float(np.median(steps)) <= 0:
            continue
        words = tokens(column.reference)
        even = float(np.quantile(np.abs(steps - np.median(steps)), 0.9)) < 0.5 * float(np.median(steps))
        counts = bool((steps == 1).all()) and group.kind != "time"
        score = 2.0 * (group.kind == "time") + 1.0 * even - 3.0 * counts - 1.0 * (group.kind not in ("time", ""))
        # Seconds and nanoseconds in two columns, as in a ROS header: only a whole clock will do.
        if score > 0 and len(group.columns) <= 4:
            unit = next((TIME_UNITS[word] for word in reversed(words) if word in TIME_UNITS and len(words) > 1), "")
            found.append((score, column.reference, values, unit))
    return found


def _time_unit(step: float) -> str:
    """The unit in which a step between two rows is a period of a robot's log."""
    return "s" if step < 0.6 else "ms" if step < 600 else "us" if step < 6e5 else "ns"


def _positions(groups: Sequence[ColumnGroup], robot: RobotLayout, dt: float) -> JointColumns:
    """The measured positions: the group whose words or names of joints say so, and that fits in number."""

    def score(group: ColumnGroup) -> float:
        names = robot.joint_names
        matched = match_names([c.label for c in group.columns], names) if group.named and names else None
        fits = -abs(len(group.columns) - len(names)) / max(len(names), 1) if names else 0.1 * len(group.columns)
        side = {"state": 3.0, "": 1.0, "command": -3.0}[group.side]
        kind = {"position": 3.0, "": 0.0}.get(group.kind, -10.0)
        return side + kind + fits + (2.0 if matched is not None else 0.0) - (5.0 if _constant(group) else 0.0)

    chosen = sorted((g for g in groups if g.kind in ("position", "")), key=score, reverse=True)
    if not chosen:
        listed = ", ".join(group.name for group in groups) or "none"
        raise BadInput(f"No columns of joint positions were found among {listed}; name them under [q] of a mapping.")
    first = chosen[0]
    doubt = ""
    rivals = [g for g in chosen[1:] if len(g.columns) == len(first.columns) and g.side == first.side == ""]
    rivals = [g for g in rivals if g.kind == first.kind and not _constant(g)]
    if rivals:
        # Two groups alike, and no word says which was commanded: what comes first is the command.
        behind = lag(rivals[0].runs, first.runs, dt)
        if behind < 0:
            first, rivals = rivals[0], [first]
        doubt = f"{first.name} trails {rivals[0].name} by {abs(behind) * 1e3:.0f} ms, so it is taken as measured"
    elif first.kind == "" and first.side == "":
        doubt = f"no word says that {first.name} are positions"
    return _labelled(first, robot, doubt)


def _constant(group: ColumnGroup) -> bool:
    return all(bool((run == run[:1]).all()) for run in group.runs)


def _labelled(group: ColumnGroup, robot: RobotLayout, doubt: str = "") -> JointColumns:
    """The columns of positions with their joints: by name, else in the robot's order where ranges allow it."""
    names = robot.joint_names
    width = len(group.columns)
    if not names:
        labels = tuple("_".join(column.label) or f"joint_{k}" for k, column in enumerate(group.columns))
        labels = labels if len(set(labels)) == width else tuple(f"joint_{k}" for k in range(width))
        return JointColumns(group, tuple(range(width)), labels, (doubt,) * width)
    found = match_names([column.label for column in group.columns], names) if group.named else None
    if found is not None:
        labels = tuple(names[k] for k in found)
        return JointColumns(group, tuple(range(width)), labels, (doubt,) * width)
    driven = [name for name in names if any(name in actuator.joints for actuator in robot.actuators)]
    targets = driven if len(driven) == width != len(names) else names
    if width != len(targets):
        doubt = doubt or f"{width} columns for {len(targets)} joints; in the robot's order"
    columns = _numbered_order(group)[: len(targets)]
    doubts = (doubt or "no joint names; in the robot's order",) * len(columns)
    return JointColumns(group, columns, tuple(targets[: len(columns)]), doubts)


def _numbered_order(group: ColumnGroup) -> tuple[int, ...]:
    """Columns by the number in their names, or as they stand."""
    labels = [column.label for column in group.columns]
    numbers = [int(label[-1]) if label and label[-1].isdigit() else None for label in labels]
    if any(number is None for number in numbers) or len(set(numbers)) != len(numbers):
        return tuple(range(len(labels)))
    return tuple(sorted(range(len(labels)), key=lambda k: numbers[k] or 0))


def _velocity(
    groups: Sequence[ColumnGroup], positions: JointColumns, unit: UnitReading, dt: float
) -> tuple[ChannelRule, GuessRow]:
    """Recorded velocities where they are the derivative of the positions, else that derivative itself."""
    window = max(0.05, 5 * dt)
    derived = ChannelRule(derive="q", window=window)
    reading = f"derivative of the positions over {1e3 * window:.3g} ms"
    for group in groups:
        if group.kind != "velocity" or group.side == "command" or len(group.columns) != len(positions.group.columns):
            continue
        columns = _same_columns(group, positions)
        if columns is None:
            continue
        found = replace(positions, group=group, columns=columns)
        strength, ratio = derivative_ratio(positions.runs, found.runs, dt)
        factor = next((f for f in (1.0, DEGREES, 1 / DEGREES) if 0.6 < ratio / f < 1.6), 0.0)
        if strength < MIN_DERIVATIVE or not factor or unit.offset:
            why = f"{group.name} differs from the derivative of the positions, so it is not used"
            return derived, GuessRow("velocities", "positions", reading, why)
        scale = tuple(s / factor for s in unit.scale)
        name = "deg" if all(math.isclose(s, 1 / DEGREES) for s in scale) else "rad"
        rule = converted_rule(found, UnitReading(name, scale), "")
        rule = replace(rule, from_unit="deg/s") if rule.from_unit else rule
        return rule, GuessRow("velocities", group.name, f"{name}/s")
    return derived, GuessRow("velocities", "positions", reading)


def _same_columns(group: ColumnGroup, positions: JointColumns) -> tuple[int, ...] | None:
    """The columns of another group that belong to the same joints, by their labels or their places."""
    labels = [column.label for column in group.columns]
    wanted = [positions.group.columns[k].label for k in positions.columns]
    return tuple(labels.index(label) for label in wanted) if set(wanted) <= set(labels) else None


def _effort(groups: Sequence[ColumnGroup], positions: JointColumns) -> tuple[ChannelRule, GuessRow] | None:
    """Measured torques, where there are some of the same joints."""
    for group in groups:
        torque = group.kind == "effort" and not group.words & {"current", "currents", "amps", "load"}
        if not torque or group.side == "command" or (columns := _same_columns(group, positions)) is None:
            continue
        found = replace(positions, group=group, columns=columns)
        rule = ChannelRule(sources=(found.references,), labels=found.labels, unit="Nm")
        return rule, GuessRow("torques", group.name, "Nm", "" if "Nm" in group.name else "no unit is stated")
    return None


HEAD = """\
# How these logs become joint positions, velocities and commands: a guess, to be corrected.
# Lines marked CHECK say what is not certain, and why. After a change, give this file with --map.
# value = offset + sign * scale * raw, in the unit of the scene (rad, m); from_unit = "deg" converts a whole table.
"""
_ABOUT = {
    "q": "Measured positions.",
    "v": "Velocities.",
    "action": "Commands; labels are actuators, or joints they drive.",
}


def draft_toml(guess: MappingGuess, scene: str = "") -> str:
    """The TOML text of a guessed mapping, with the doubts as comments beside what they are about."""
    mapping = guess.mapping
    lines = [HEAD.rstrip(), f"format = {json.dumps(mapping.format)}", f"files = {json.dumps(list(mapping.files))}"]
    lines += [f"scene = {json.dumps(scene)}"] if scene else []
    lines += _time_lines(mapping, guess)
    if mapping.options:
        lines += ["", "[options]", *(f"{name} = {json.dumps(value)}" for name, value in mapping.options.items())]
    lines += ["", "[meta]", *(f"{name} = {json.dumps(text)}" for name, text in mapping.meta.items())]
    rows = {row.what: row for row in guess.rows}
    rules = {"q": mapping.q, "v": mapping.v, "action": mapping.action}
    rules |= {f"observation.{json.dumps(name)}": rule for name, rule in mapping.observation.items()}
    for table, rule in rules.items():
        if not (rule.sources or rule.derive):
            continue
        lines += ["", f"# {_ABOUT.get(table, 'Measured torques.')}", *_doubts(table, rule, rows), f"[{table}]"]
        lines += _rule_lines(rule)
    if not mapping.action.sources:
        lines += ["", f"# CHECK commands: {rows['commands'].doubt}.", "# [action]", '# from = ["column", "column"]']
    return "\n".join(lines) + "\n"


def write_draft(guess: MappingGuess, path: Path, scene: str = "") -> Path:
    """Write the draft of a mapping and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, draft_toml(guess, scene))
    return path


def _time_lines(mapping: DataMapping, guess: MappingGuess) -> list[str]:
    clock = guess.rows[0]
    check = [f"# CHECK time: {clock.doubt}."] if clock.doubt else []
    if not mapping.time:
        return [*check, f'rate = {guess.rate!r}  # rows per second [Hz]; time = "COLUMN" where a column holds times']
    return [
        *check, f"time = {json.dumps(mapping.time)}",
        f"time_unit = {json.dumps(mapping.time_unit)}  # s ms us ns; rows come at {guess.rate:.4g} Hz",
    ]  # fmt: skip


def _doubts(table: str, rule: ChannelRule, rows: Mapping[str, GuessRow]) -> list[str]:
    """The doubts about a table, those that are alike in one line."""
    prefix = {"q": "position of ", "action": "command of ", "v": "velocities"}.get(table, "torques")
    found: dict[str, list[str]] = {}
    for what, row in rows.items():
        if row.doubt and what.startswith(prefix):
            found.setdefault(row.doubt, []).append(what.removeprefix(prefix))
    lines: list[str] = []
    for doubt, names in found.items():
        every = len(names) == len(rule.labels) > 1
        named = "all columns" if every else ", ".join(name for name in names if name)
        lines.append(f"# CHECK {named}: {doubt}." if named else f"# CHECK {doubt}.")
    return lines


def _rule_lines(rule: ChannelRule) -> list[str]:
    if rule.derive:
        return [f"derive = {json.dumps(rule.derive)}", f"window = {rule.window:.6g}  # [s]"]
    # The columns as they are named, or the array that holds exactly these in this order from its first one on.
    references = rule.sources[0]
    name, _, _ = references[0].partition("[")
    whole = [f"{name}[{k}]" for k in range(len(references))]
    source = f"{name}[0:{len(references)}]" if list(references) == whole else list(references)
    lines = [f"from = {json.dumps(source)}"]
    lines += [f"labels = {json.dumps(list(rule.labels))}"] if rule.labels else []
    lines += [f"from_unit = {json.dumps(rule.from_unit)}"] if rule.from_unit else []
    lines += [f"unit = {json.dumps(rule.unit)}"] if rule.unit else []
    lines += [f"scale = {json.dumps(list(rule.scale))}"] if rule.scale else []
    lines += [f"offset = {json.dumps(list(rule.offset))}"] if rule.offset else []
    return lines
