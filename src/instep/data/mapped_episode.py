"""Episodes from the raw columns of a file, by a mapping: channels, times, and velocities of thrown bodies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from math import pi
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import quat_inv, quat_log, quat_mul, rotate
from instep.core.world import Array, Channel, Spec, vector

from .formats.ros_messages import check_ordered
from .lerobot import is_image
from .mapping import ChannelRule, DataMapping, RawRun
from .resample import onto, quaternions, resampled, velocity, velocity_labels

log = logging.getLogger(__name__)

FACTORS = {"deg": pi / 180, "deg/s": pi / 180, "mm": 1e-3, "percent": 0.01, "rpm": pi / 30, "turn": 2 * pi, "ms": 1e-3}
"""What one unit of a file is in SI."""
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""What one unit of a file's times is in seconds."""


def episode_of(raw: RawRun, data_map: DataMapping) -> Episode:
    """The episode of one run."""
    rows = _rows(raw, data_map)
    times, dt = _times(raw, data_map, rows)
    skip = data_map.skip
    if rows - skip < 1:
        raise BadInput(f"{raw.name!r} has {rows} rows, of which the mapping skips {skip}; nothing is left.")
    columns: dict[str, Any] = {"timestamp": times}
    q_channel, q = _channel(raw, data_map.q, rows, times)
    columns["q"] = q
    v_channel, v = _velocities(raw, data_map, times, (q_channel, q))
    if v is not None:
        columns["v"] = v
    action_channel, columns["action"] = _channel(raw, data_map.action, rows, times, q_channel)
    inputs, given = _inputs(raw, data_map, times, action_channel)
    columns |= {"inputs": given} if inputs.labels else {}
    observation: dict[str, Channel] = {}
    for name, rule in _observed(raw, data_map):
        channel, column = _channel(raw, rule, rows, times, q_channel)
        if name.endswith(".stamp"):
            columns[name] = column[:, 0]
        else:
            observation[name], columns[name] = channel, column
    _add_state(columns, observation, q_channel)
    columns = {name: column[skip:] for name, column in columns.items()}
    start = float(columns["timestamp"][0])
    columns["timestamp"] = columns["timestamp"] - start
    spec = Spec(dt, q_channel, v_channel, action_channel, observation, inputs)
    meta = _notes(raw, data_map) | ({"start": repr(start)} if start else {})
    episode = Episode(spec, columns, meta)
    if data_map.resample:
        episode = resampled(episode, data_map.resample if data_map.resample > 0 else 1.0 / dt)
    return episode


def _inputs(raw: RawRun, data_map: DataMapping, times: Array, action: Channel) -> tuple[Channel, Array]:
    """The inputs of motors beside their commands, labelled `elbow.enable`; none where a file has none."""
    labels: list[str] = []
    parts = [np.zeros((len(times), 0))]
    for kind, rule in data_map.inputs.items():
        if rule.optional and not _present(raw, rule):
            continue
        channel, values = _channel(raw, rule, len(times), times, action)
        labels += [f"{label}.{kind}" for label in channel.labels]
        parts.append(values)
    return vector(labels, "1"), np.concatenate(parts, axis=1)


def _rows(raw: RawRun, data_map: DataMapping) -> int:
    if data_map.q.sources and not data_map.time:
        return len(raw.column(_chosen(raw, data_map.q)[0]))
    references = time_names(raw, data_map.time) if data_map.time else [s[0] for s in _first_sources(raw, data_map)]
    if not references:
        raise BadInput(f"The mapping {data_map.name!r} names no column of {raw.name!r} that is there.")
    return len(raw.column(references[0]))


def _first_sources(raw: RawRun, data_map: DataMapping) -> list[tuple[str, ...]]:
    rules = [data_map.q, *data_map.observation.values(), data_map.action]
    return [_chosen(raw, rule) for rule in rules if rule.sources and _present(raw, rule)]


def _times(raw: RawRun, data_map: DataMapping, rows: int) -> tuple[Array, float]:
    if data_map.time:
        if data_map.time_unit not in SECONDS:
            raise UnknownName("unit of times", data_map.time_unit, SECONDS)
        times = _seconds(time_column(raw, data_map.time), data_map.time_unit)
        steps = np.diff(times)
        if len(steps) and not np.isfinite(times).all():
            raise BadInput(f"The times of {raw.name!r} are not all finite numbers.")
        period = float(np.median(steps)) if len(steps) else 0.0
        if data_map.rate:
            period = 1.0 / data_map.rate
        if period <= 0:
            raise BadInput(f"The times of {raw.name!r} do not advance; check the column {data_map.time!r}.")
        return times, period
    rate = data_map.rate or float(raw.header.get("rate", 0.0))
    if not rate and "dt" in raw.header:
        rate = 1.0 / float(raw.header["dt"])
    if rate <= 0:
        raise BadInput(f"The mapping {data_map.name!r} must name a column of times or a rate for {raw.name!r}.")
    return np.arange(rows) / rate, 1.0 / rate


def _seconds(times: Array, unit: str) -> Array:
    """Times in seconds; of whole nanoseconds since 1970 the first is taken off before they become floats."""
    if unit == "s" or not len(times):
        return np.asarray(times, float)
    return np.asarray(times - times[0], float) * SECONDS[unit] + float(times[0]) * SECONDS[unit]


def _present(raw: RawRun, rule: ChannelRule) -> bool:
    return any(all(_name(ref) in raw.columns for ref in source) for source in rule.sources)


def _name(reference: str) -> str:
    return reference.split("[", 1)[0]


def _chosen(raw: RawRun, rule: ChannelRule) -> tuple[str, ...]:
    for source in rule.sources:
        if all(_name(ref) in raw.columns for ref in source):
            return source
    missing = next(ref for ref in rule.sources[0] if _name(ref) not in raw.columns)
    raise UnknownName(f"column in {raw.name!r}", _name(missing), raw.columns)


def _observed(raw: RawRun, data_map: DataMapping) -> Iterator[tuple[str, ChannelRule]]:
    """The rules of observations that a file has; a star stands for any name."""
    for name, rule in data_map.observation.items():
        pattern = rule.sources[0][0] if rule.sources else ""
        if "*" in name and pattern.endswith("*"):
            for column in raw.columns:
                if column.startswith(pattern[:-1]):
                    found = name.replace("*", column.removeprefix(pattern[:-1]).replace("/", "_"))
                    yield found, replace(rule, sources=((column,),))
        elif _present(raw, rule):
            yield name, rule


def _channel(
    raw: RawRun, rule: ChannelRule, rows: int, times: Array, like: Channel | None = None
) -> tuple[Channel, Any]:
    if not rule.sources or (rule.optional and not _present(raw, rule)):
        return vector([]), np.zeros((rows, 0))
    source = _chosen(raw, rule)
    values = raw.stacked(source)
    if is_image(values):
        return Channel((), "", tuple(values.shape[1:]), "uint8"), _padded(values, rows, raw, source)
    labels = rule.labels
    made = _converted(_padded(values, rows, raw, source), rule, raw)
    if rule.plus is not None:
        added = _chosen(raw, rule.plus)
        made = made + _converted(_padded(raw.stacked(added), rows, raw, added), rule.plus, raw)
    if not labels:
        check_ordered(raw.header, source[0], raw.name)
        labels = raw.noted_labels(source[0])
        if note := raw.header.get(f"note:{source[0]}"):
            log.warning("%s: %s: %s.", raw.name, note, ", ".join(labels))
    if not labels:
        labels = like.labels if like is not None and len(like.labels) == made.shape[1] else ()
        labels = labels or tuple(f"{source[0].rsplit('/', 1)[-1]}_{k}" for k in range(made.shape[1]))
    if len(labels) != made.shape[1]:
        raise BadInput(
            f"The mapping names {len(labels)} labels for {', '.join(source)} of {raw.name!r}, which gives "
            f"{made.shape[1]} numbers."
        )
    for label in rule.unwrap:
        k = labels.index(label)
        made[:, k] = np.unwrap(made[:, k])
    if rule.lag:
        made = onto(times + rule.lag, times, made, "linear")
    return vector(labels, rule.unit.split(" ") if " " in rule.unit else rule.unit), made


def _converted(values: Array, rule: ChannelRule, raw: RawRun) -> Array:
    x = np.array(values, float)
    if rule.bits:
        half = float(1 << (rule.bits - 1))
        x = np.where(x >= half, x - 2.0 * half, x)
    if rule.bearing:
        x = np.stack([np.unwrap(np.arctan2(x[:, c] - x[:, a], x[:, d] - x[:, b])) for a, b, c, d in rule.bearing], 1)
    if rule.from_unit:
        if rule.from_unit not in FACTORS:
            raise UnknownName("unit of a file", rule.from_unit, FACTORS)
        x = x * FACTORS[rule.from_unit]
    try:
        if rule.matrix:
            x = x @ np.asarray(rule.matrix).T
        for factor in (rule.sign, rule.scale):
            x = x * np.asarray(factor) if factor else x
        return x + np.asarray(rule.offset) if rule.offset else x
    except ValueError:
        raise BadInput(
            f"The signs, scales, offsets or matrix of a rule do not fit {x.shape[1]} numbers of {raw.name!r}."
        ) from None


def _padded(values: Any, rows: int, raw: RawRun, source: tuple[str, ...]) -> Any:
    """Columns of one row less (there is no action after the last state) hold their last row."""
    if len(values) == rows:
        return values
    if len(values) == rows - 1 and len(values):
        return np.concatenate([values, values[-1:]])
    raise BadInput(f"{', '.join(source)} of {raw.name!r} has {len(values)} rows, but the others have {rows}.")


def _velocities(
    raw: RawRun, data_map: DataMapping, times: Array, positions: tuple[Channel, Array]
) -> tuple[Channel, Array | None]:
    channel, q = positions
    labels = velocity_labels(channel.labels)
    rule = data_map.v
    if rule.sources and (_present(raw, rule) or not rule.optional):
        made, v = _channel(raw, rule, len(times), times, vector(labels))
        return made, ballistic_velocity(times, q, v, channel.labels, rule.flight, rule.centre) if rule.flight else v
    if rule.derive == "q":
        units = rule.unit or _speeds(channel, labels)
        return vector(labels, units), velocity(times, q, channel.labels, rule.window)
    if rule.derive:
        raise BadInput(f"Velocities are derived from 'q', not from {rule.derive!r}.")
    return vector(labels, _speeds(channel, labels)), None


def _speeds(channel: Channel, labels: list[str]) -> str:
    units = channel.units
    if len(labels) == len(units) and len(set(units)) == 1:
        return f"{units[0]}/s" if units[0] else ""
    return " ".join(f"{unit}/s" for unit in units) if len(labels) == len(units) else ""


def _add_state(columns: dict[str, Any], observation: dict[str, Channel], channel: Channel) -> None:
    joints = [k for k, label in enumerate(channel.labels) if "." not in label]
    bodies = [k for k, label in enumerate(channel.labels) if "." in label]
    for name, places in (("observation.state", joints), ("observation.environment_state", bodies)):
        if places and name not in columns:
            units = [channel.units[k] for k in places]
            observation[name] = vector([channel.labels[k] for k in places], units)
            columns[name] = columns["q"][:, places]


def _notes(raw: RawRun, data_map: DataMapping) -> dict[str, str]:
    def filled(text: str) -> str:
        # A name that a file lacks stays empty.
        return re.sub(r"\{([^{}]+)\}", lambda match: raw.header.get(match[1], ""), text)

    notes = {name: filled(text) for name, text in data_map.meta.items()}
    notes = {name: text for name, text in notes.items() if text}
    notes |= {"set": data_map.name, "source": raw.name}
    if data_map.scene:
        notes["scene"] = data_map.scene
    if data_map.task:
        notes.setdefault("task", data_map.task)
    return notes


MIN_FLIGHT_ROWS, MAX_FLIGHT_ROWS = 4, 14
"""Rows of a flight that are fitted."""
MAX_OFFSET_M, MAX_ROTATION_RAD = 2e-3, 0.03
"""How far positions [m] and turns [rad] may lie from the fit while a body still flies; a contact moves them further."""


def ballistic_velocity(
    t: Array, q: Array, v: Array, labels: Sequence[str], gravity: float, centre: Sequence[float] = (0.0, 0.0, 0.0)
) -> Array:
    """Velocities with those of the first flight replaced: r = r0 + v0 t - g t^2 / 2, and a steady turn.

    It is the centre of mass that flies so, given in the body's frame [m]; what is tracked turns about it. A body with
    equal inertias about all axes keeps its angular velocity in flight. The flight is as many of the first rows as one
    such motion explains. Smoothed recordings give velocities that lag, and a start that is off by a hundredth grows
    with every bounce.
    """
    out = np.array(v, float)
    for place in quaternions(labels):
        if place.start < 3:
            continue
        first = q[: MAX_FLIGHT_ROWS + 1]
        arm, turn = (
            rotate(first[:, place], np.asarray(centre, float)),
            quat_log(quat_mul(quat_inv(first[:1, place]), first[:, place])),
        )
        position = first[:, place.start - 3 : place.start] + arm
        for n in range(min(MAX_FLIGHT_ROWS, len(q)), MIN_FLIGHT_ROWS - 1, -1):
            time = t[:n] - t[0]
            rows = np.stack([np.ones(n), time], axis=1)
            lifted = position[:n] + np.array([0.0, 0.0, 0.5 * gravity]) * time[:, None] ** 2
            both = np.concatenate([lifted, turn[:n]], axis=1)
            fit = np.linalg.lstsq(rows, both, rcond=None)[0]
            off = np.abs(both - rows @ fit).max(axis=0)
            if n == MIN_FLIGHT_ROWS or (off[:3].max() <= MAX_OFFSET_M and off[3:].max() <= MAX_ROTATION_RAD):
                start = place.start - 3 - quaternions(labels).index(place)
                out[:n, start : start + 6] = fit[1]
                out[:n, start + 2] -= gravity * time
                out[:n, start : start + 3] -= np.cross(rotate(first[:n, place], fit[1, 3:]), arm[:n])
                break
    return out


JOIN = " + "
"""Between the names of two columns that hold the date and the time of a row."""
DAY_S = 86_400.0
_CLOCK = re.compile(r"(?P<h>\d{1,3}):(?P<m>\d{2})(:(?P<s>\d{2}([.,]\d+)?))?\s*(?P<half>[AaPp][Mm])?")
_DATE = re.compile(r"(?P<a>\d{1,4})(?P<mark>[-/.])(?P<b>\d{1,2})(?P=mark)(?P<c>\d{1,4})")
_ZONE = re.compile(r"(Z|UTC|[+-]\d{2}:?\d{2})$")


def time_names(raw: RawRun, reference: str) -> list[str]:
    """The columns that a reference to times names: one, or a date and a time."""
    return reference.split(JOIN) if reference not in raw.columns else [reference]


def time_column(raw: RawRun, reference: str) -> Array:
    """The times of a run: numbers as they are stored, text as seconds; `date + time` names two columns."""
    parts = [np.asarray(raw.column(name)).ravel() for name in time_names(raw, reference)]
    if len(parts) == 1 and parts[0].dtype.kind not in "US":
        return parts[0]
    cells = [" ".join(str(cell) for cell in row) for row in zip(*parts, strict=True)]
    found = text_seconds(cells)
    if found is None:
        raise BadInput(
            f"The times in {reference!r} of {raw.name!r} cannot be read, such as {cells[0]!r}; ISO 8601 "
            "(2026-01-31T12:00:00.5) or a clock time (12:00:00.5) was expected."
        )
    return found


def text_seconds(cells: Sequence[str]) -> Array | None:
    """Seconds of times written as text, since 1970 where they have a date; None where some are no times.

    Clock times without a date go on after midnight.
    """
    found = [_cell_seconds(cell) for cell in cells]
    times = np.array([second for second in found if second is not None])
    if len(times) < len(found):
        return None
    if times.size and times.max() < 1000 * 3600:
        times = times + DAY_S * np.concatenate([[0], np.cumsum(np.diff(times) < -DAY_S / 2)])
    return times


def text_clocks(raw: RawRun) -> list[str]:
    """References to the columns of a run that hold times as text, the best first."""
    text = [name for name, column in raw.columns.items() if column.dtype.kind in "US" and column.ndim == 1]
    whole = [name for name in text if text_seconds([str(cell) for cell in raw.columns[name][:3]]) is not None]
    dates = [name for name in text if _DATE.fullmatch(str(raw.columns[name][0]).strip())]
    pairs = [f"{day}{JOIN}{name}" for day in dates for name in whole if _CLOCK.fullmatch(str(raw.columns[name][0]))]
    return [*pairs, *whole]


def _cell_seconds(cell: str) -> float | None:
    text = cell.strip().strip('"').replace(",", ".")
    if (clock := _CLOCK.fullmatch(text)) is not None:
        return _of_clock(clock)
    try:
        moment = datetime.fromisoformat(text.removesuffix("UTC").strip())
    except ValueError:
        return _of_date(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0).timestamp()
    # More digits than a moment holds are kept: nanoseconds of a ROS log.
    fraction = re.search(r":\d{2}\.(\d+)", text)
    return whole + (float(f"0.{fraction[1]}") if fraction else moment.microsecond * 1e-6)


def _of_clock(clock: re.Match[str]) -> float | None:
    hours, minutes, seconds = int(clock["h"]), int(clock["m"]), float(clock["s"] or 0.0)
    if clock["half"]:
        hours = hours % 12 + (12 if clock["half"].lower() == "pm" else 0)
    return 3600.0 * hours + 60.0 * minutes + seconds if minutes < 60 and seconds < 61 else None


def _of_date(text: str) -> float | None:
    """A date in another order than ISO's and a clock time: 31.01.2026 12:00:00, 1/31/2026 12:00:00."""
    day, _, rest = text.partition(" ")
    found, clock = _DATE.fullmatch(day), _CLOCK.fullmatch(_ZONE.sub("", rest).strip())
    if found is None or clock is None:
        return None
    a, b, c = int(found["a"]), int(found["b"]), int(found["c"])
    year, month, number = (a, b, c) if a > 31 else (c, b, a) if found["mark"] != "/" or a > 12 else (c, a, b)
    seconds = _of_clock(clock)
    try:
        days = (date(year, month, number) - date(1970, 1, 1)).days
    except ValueError:
        return None
    return None if seconds is None else DAY_S * days + seconds
