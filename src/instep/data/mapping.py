"""Mappings: raw columns of a recording become the positions, velocities, actions and observations of an episode.

A mapping is a TOML file. It names the files, their format, and for each channel the columns, labels and unit, and the
sign, scale and offset to the scene's convention. Readers return `RawRun`, which `episode_of` maps.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from datetime import UTC, datetime
from importlib.resources import files
from math import pi
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import quat_inv, quat_log, quat_mul, rotate
from instep.core.reading import TEXTS, check_entry, parse_json, parse_toml, parsing, read_text
from instep.core.world import Array, Channel, Spec, array_dataclass, frozen_dataclass, vector

from .lerobot import is_image
from .resample import onto, quaternions, resampled, velocity, velocity_labels

log = logging.getLogger(__name__)
FACTORS = {"deg": pi / 180, "deg/s": pi / 180, "mm": 1e-3, "percent": 0.01, "rpm": pi / 30, "turn": 2 * pi, "ms": 1e-3}
"""SI value of one unit of a file."""
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in one unit of a file's times."""
SHIPPED = files("instep.data") / "maps"
"""Folder of the mappings that come with instep."""
INPUTS = ("enable", "gain")
"""Inputs of motors beside their commands."""

_REFERENCE = re.compile(r"^(?P<name>.*?)(\[(?P<start>\d+)(:(?P<stop>\d+))?\])?$")


@array_dataclass
class RawRun:
    """One run of a file as it is stored: columns [rows, ...], and single values such as gains and names."""

    name: str
    """Where it came from, for notes and error texts."""
    columns: Mapping[str, Any]
    header: Mapping[str, str] = field(default_factory=dict[str, str])

    def column(self, reference: str) -> Any:
        """A column by reference: `q`, one number of it `q[3]`, or some of them `q[0:7]`."""
        match = _REFERENCE.match(reference)
        name = match["name"] if match else reference
        if name not in self.columns:
            raise UnknownName(f"column in {self.name!r}", name, self.columns)
        column = self.columns[name]
        if match is None or match["start"] is None:
            return column
        start, stop = int(match["start"]), int(match["stop"] or int(match["start"]) + 1)
        if column.ndim < 2 or stop > column.shape[1]:
            raise BadInput(f"{reference!r} is asked for, but {name!r} in {self.name!r} has shape {column.shape}.")
        return column[:, start:stop]

    def noted_labels(self, column: str, kind: str = "labels") -> tuple[str, ...]:
        """The labels of a column that its header notes as JSON, under `KIND:COLUMN`; empty where it notes none."""
        noted = f"{kind}:{column}"
        labels = parse_json(self.header.get(noted) or "[]", f"{noted} of {self.name}")
        check_entry(labels, TEXTS, noted, repr(self.name))
        return tuple(labels)

    def stacked(self, references: tuple[str, ...]) -> Any:
        """Columns side by side [rows, numbers]; one column of images is passed on as it is."""
        parts = [self.column(reference) for reference in references]
        if len(parts) == 1 and parts[0].ndim > 2:
            return parts[0]
        try:
            return np.concatenate([np.asarray(p, float).reshape(len(p), -1) for p in parts], axis=1)
        except ValueError:
            shapes = {r: p.shape for r, p in zip(references, parts, strict=True)}
            raise BadInput(f"These columns of {self.name!r} cannot stand side by side: {shapes}.") from None


@frozen_dataclass
class ChannelRule:
    """How one channel is made: value = offset + sign * scale * (matrix @ raw), then unwrapped."""

    sources: tuple[tuple[str, ...], ...] = ()
    """Columns side by side; where a set has several layouts, the first alternative that is there."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """One unit for all labels, or one per label separated by spaces."""
    sign: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()
    matrix: tuple[tuple[float, ...], ...] = ()
    """Mixes raw numbers, one row per label: coupled joints, gears."""
    unwrap: tuple[str, ...] = ()
    """Labels of angles that jump by a turn in the file."""
    bits: int = 0
    """Width of counts stored unsigned that are meant as two's complement."""
    bearing: tuple[tuple[int, int, int, int], ...] = ()
    """Angles between tracked points: from (x, y) to (x, y), by column, zero along +y and positive towards +x."""
    derive: str = ""
    """Take the rate of change of `q`, without delay, instead of a column."""
    window: float = 0.05
    """Width over which it is smoothed [s]."""
    lag: float = 0.0
    """How late the recorded numbers are [s]; they are moved back by it."""
    flight: float = 0.0
    """Gravity [m/s2] of recordings that begin with a throw: velocities of the flight are then those of one motion that
    fits it. 0 where none does."""
    centre: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Centre of mass of what is thrown, in its own frame [m]: what is tracked turns about it."""
    optional: bool = False
    """Whether files may lack these numbers."""
    from_unit: str = ""
    """Unit of the numbers in the file where it is not `unit`: deg, deg/s, mm, percent, rpm, turn."""
    plus: ChannelRule | None = None
    """Numbers of other columns to be added, made by a rule of their own: a servo that is also commanded a velocity acts
    as if commanded an angle D / P times that velocity further on."""


@frozen_dataclass
class DataMapping:
    """How the recordings in a folder become episodes."""

    name: str
    format: str
    files: tuple[str, ...]
    """Patterns below the folder."""
    about: str = ""
    scene: str = ""
    """The scene these recordings belong to; empty where none is shipped."""
    exclude: tuple[str, ...] = ()
    time: str = ""
    """Column of times; empty where rows are evenly spaced by `rate`."""
    time_unit: str = "s"
    """Unit of the times in the file: s, ms, us or ns."""
    rate: float = 0.0
    """Rows per second; 0 where it is the median of the times."""
    resample: float = 0.0
    """Even rate to resample to [Hz]; 0 leaves rows as they are, -1 evens them out at their own rate."""
    skip: int = 0
    """Rows at the start that are not to be trusted."""
    split: str = ""
    """Column of offsets at which a file is cut into episodes."""
    repeats: bool = False
    """Whether episodes of one group are repeats of the same input, so that their spread is a noise floor."""
    task: str = ""
    also: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Companion files: prefix -> (ending of the file, ending of its companion)."""
    meta: Mapping[str, str] = field(default_factory=dict[str, str])
    """Notes: text in which {stem}, {parent}, {folder} and {header names} are filled in."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the reader of the format needs to know."""
    q: ChannelRule = ChannelRule()
    v: ChannelRule = ChannelRule()
    action: ChannelRule = ChannelRule()
    observation: Mapping[str, ChannelRule] = field(default_factory=dict[str, ChannelRule])
    inputs: Mapping[str, ChannelRule] = field(default_factory=dict[str, ChannelRule])
    """What motors were given beside commands: `enable` (0 while a motor is off) and `gain`."""


def shipped_mappings() -> list[str]:
    """The names of all mappings that come with instep, with the parts of sets that hold several machines."""
    out: list[str] = []
    for entry in sorted(SHIPPED.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            name = entry.name.removesuffix(".toml")
            parts = parse_toml(entry.read_text(encoding="utf-8"), name).get("parts", {})
            out += [name, *(f"{name}/{part}" for part in parts)]
    return out


def shipped(name: str) -> tuple[DataMapping, ...]:
    """The mapping that comes with instep under a name: one, or one per part of a set that is joined."""
    stem, _, part = name.partition("/")
    entry = SHIPPED / f"{stem}.toml"
    if not stem.replace("_", "").isalnum() or not entry.is_file():
        raise UnknownName("mapping", name, shipped_mappings())
    return parse(entry.read_text(encoding="utf-8"), stem, part)


def from_file(path: Path) -> tuple[DataMapping, ...]:
    """The mapping in a file of one's own."""
    return parse(read_text(path), path.stem)


def parse(text: str, name: str, part: str = "") -> tuple[DataMapping, ...]:
    """The mappings of a TOML text; `part` names one machine of a set that holds several."""
    with parsing(name, "a mapping"):
        top = parse_toml(text, name)
        parts = cast(dict[str, dict[str, Any]], top.pop("parts", {}))
        join = bool(top.pop("join", False))
        if not parts:
            if part:
                raise BadInput(f"The mapping {name!r} has no parts, so {part!r} cannot be one of them.")
            return (_mapping(name, top),)
        if part and part not in parts:
            raise UnknownName(f"part of {name!r}", part, parts)
        if not part and not join:
            known = ", ".join(f"{name}/{known}" for known in parts)
            raise BadInput(f"{name!r} holds recordings of different machines; name one of them: {known}.")
        chosen = [part] if part else list(parts)
        return tuple(_mapping(f"{name}/{key}", {**top, **parts[key]}) for key in chosen)


def _mapping(name: str, top: Mapping[str, Any]) -> DataMapping:
    for key in ("format", "files"):
        if key not in top:
            raise BadInput(f"The mapping {name!r} must say {key!r}.")
    for key in top.get("inputs", {}):
        if key not in INPUTS:
            raise UnknownName(f"input of the mapping {name!r}", key, INPUTS)
    try:
        return DataMapping(name=name, **_entries(DataMapping, top, f"the mapping {name!r}", name))
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"The mapping {name!r} has an entry of the wrong kind ({error}).") from None


def _entries(kind: type[Any], table: Mapping[str, Any], what: str, where: str) -> dict[str, Any]:
    """The fields of a dataclass from a table, each converted as it is annotated."""
    kinds = {entry.name: str(entry.type) for entry in fields(kind) if entry.name not in ("name", "sources")}
    for key in table:
        if key not in kinds and key != "from":
            raise UnknownName(f"entry of {what}", key, kinds)
    found: dict[str, Any] = {}
    for key, value in table.items():
        how = kinds.get(key, "")
        if how == "ChannelRule":
            found[key] = _rule(f"{where}: {key}", value)
        elif how == "Mapping[str, ChannelRule]":
            found[key] = {str(k): _rule(f"{where}: {k}", v) for k, v in value.items()}
        elif how:
            found[key] = _CONVERSIONS[how](value)
    return found


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "str": str, "int": int, "float": float, "bool": bool, "Mapping[str, Any]": dict,
    "Mapping[str, str]": lambda value: {str(k): str(v) for k, v in value.items()},
    "Mapping[str, tuple[str, str]]": lambda value: {str(k): (str(v[0]), str(v[1])) for k, v in value.items()},
    "tuple[str, ...]": lambda value: (value,) if isinstance(value, str) else tuple(str(word) for word in value),
    "tuple[float, ...]": lambda value: tuple(float(x) for x in value),
    "tuple[tuple[float, ...], ...]": lambda value: tuple(tuple(float(x) for x in row) for row in value),
    "tuple[tuple[int, int, int, int], ...]": lambda value: tuple(tuple(map(int, row)) for row in value),
    "ChannelRule | None": lambda value: _rule("plus", value),
}  # fmt: skip
"""How an entry of a mapping file becomes a field, by its annotation."""


def _rule(where: str, entry: Any) -> ChannelRule:
    table = dict(cast(dict[str, Any], entry))
    words = _CONVERSIONS["tuple[str, ...]"]
    labels, given = words(table.get("labels", ())), table.get("from", ())
    if not given and "derive" not in table:
        raise BadInput(f"{where!r} must say where its numbers come from, with 'from' or 'derive'.")
    for name in {"sign", "scale", "offset", "centre"} & set(table):
        # One number holds for all labels.
        table[name] = [table[name]] * max(len(labels), 1) if isinstance(table[name], int | float) else table[name]
    if len(table.get("centre", (0, 0, 0))) != 3:
        raise BadInput(f"The 'centre' of {where!r} is a point of three numbers [m], not of {len(table['centre'])}.")
    if not isinstance(table.get("unit", ""), str):
        table["unit"] = " ".join(table["unit"])
    if isinstance(table.get("unwrap"), bool):
        table["unwrap"] = labels if table["unwrap"] else ()
    alternatives = given and not isinstance(given, str) and not isinstance(given[0], str)
    sources = tuple(words(row) for row in given) if alternatives else (words(given),) if given else ()
    return ChannelRule(sources=sources, **_entries(ChannelRule, table, repr(where), where))


def episode_of(raw: RawRun, data_map: DataMapping) -> Episode:
    """The episode of one run."""
    times, dt = _times(raw, data_map)
    rows, skip = len(times), data_map.skip
    if rows - skip < 1:
        raise BadInput(f"{raw.name!r} has {rows} rows, of which the mapping skips {skip}; nothing is left.")
    q_channel, q = _channel(raw, data_map.q, times)
    columns: dict[str, Any] = {"timestamp": times, "q": q}
    v_channel, v = _velocities(raw, data_map, times, (q_channel, q))
    if v is not None:
        columns["v"] = v
    action_channel, columns["action"] = _channel(raw, data_map.action, times, q_channel)
    made = {kind: _channel(raw, rule, times, action_channel) for kind, rule in data_map.inputs.items()}
    inputs = vector([f"{label}.{kind}" for kind, (channel, _) in made.items() for label in channel.labels], "1")
    if inputs.labels:
        columns["inputs"] = np.concatenate([values for _, values in made.values()], axis=1)
    observation: dict[str, Channel] = {}
    for name, rule in _observed(raw, data_map):
        channel, column = _channel(raw, rule, times, q_channel)
        if name.endswith(".stamp"):
            columns[name] = column[:, 0]
        else:
            observation[name], columns[name] = channel, column
    bodies = ["." in label for label in q_channel.labels]
    for name, wanted in (("observation.state", False), ("observation.environment_state", True)):
        places = [k for k, body in enumerate(bodies) if body == wanted]
        if places and name not in columns:
            observation[name] = vector([q_channel.labels[k] for k in places], [q_channel.units[k] for k in places])
            columns[name] = q[:, places]
    columns = {name: column[skip:] for name, column in columns.items()}
    start = float(columns["timestamp"][0])
    columns["timestamp"] = columns["timestamp"] - start
    spec = Spec(dt, q_channel, v_channel, action_channel, observation, inputs)
    meta = _notes(raw, data_map) | ({"start": repr(start)} if start else {})
    episode = Episode(spec, columns, meta)
    if data_map.resample:
        episode = resampled(episode, data_map.resample if data_map.resample > 0 else 1.0 / dt)
    return episode


def _times(raw: RawRun, data_map: DataMapping) -> tuple[Array, float]:
    """Time of each row and the period [s]."""
    if data_map.time:
        if data_map.time_unit not in SECONDS:
            raise UnknownName("unit of times", data_map.time_unit, SECONDS)
        times, scale = time_column(raw, data_map.time), SECONDS[data_map.time_unit]
        if scale != 1 and len(times):
            # The first of whole nanoseconds since 1970 is taken off before they become floats.
            times = np.asarray(times - times[0], float) * scale + float(times[0]) * scale
        times = np.asarray(times, float)
        steps = np.diff(times)
        if len(steps) and not np.isfinite(times).all():
            raise BadInput(f"The times of {raw.name!r} are not all finite numbers.")
        period = 1.0 / data_map.rate if data_map.rate else float(np.median(steps)) if len(steps) else 0.0
        if period <= 0:
            raise BadInput(f"The times of {raw.name!r} do not advance; check the column {data_map.time!r}.")
        return times, period
    rules = [data_map.q, *data_map.observation.values(), data_map.action]
    present = [rule for rule in rules if (rule is data_map.q and rule.sources) or _present(raw, rule)]
    if not present:
        raise BadInput(f"The mapping {data_map.name!r} names no column of {raw.name!r} that is there.")
    rows = len(raw.column(_chosen(raw, present[0])[0]))
    rate = data_map.rate or float(raw.header.get("rate", 0.0))
    if not rate and "dt" in raw.header:
        rate = 1.0 / float(raw.header["dt"])
    if rate <= 0:
        raise BadInput(f"The mapping {data_map.name!r} must name a column of times or a rate for {raw.name!r}.")
    return np.arange(rows) / rate, 1.0 / rate


def _present(raw: RawRun, rule: ChannelRule) -> bool:
    return any(all(ref.split("[", 1)[0] in raw.columns for ref in source) for source in rule.sources)


def _chosen(raw: RawRun, rule: ChannelRule) -> tuple[str, ...]:
    """The columns of the first alternative that is there."""
    for source in rule.sources:
        missing = [name for ref in source if (name := ref.split("[", 1)[0]) not in raw.columns]
        if not missing:
            return source
    missing = [name for ref in rule.sources[0] if (name := ref.split("[", 1)[0]) not in raw.columns]
    raise UnknownName(f"column in {raw.name!r}", missing[0], raw.columns)


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


def _channel(raw: RawRun, rule: ChannelRule, times: Array, like: Channel | None = None) -> tuple[Channel, Any]:
    """A channel of one rule with its column; without labels of its own it takes those of `like` if they fit."""
    if not rule.sources or (rule.optional and not _present(raw, rule)):
        return vector([]), np.zeros((len(times), 0))
    source = _chosen(raw, rule)
    values = _padded(raw, source, len(times))
    if is_image(values):
        return Channel((), "", tuple(values.shape[1:]), "uint8"), values
    made, labels = _converted(values, rule, raw), rule.labels
    if rule.plus is not None:
        made = made + _converted(_padded(raw, _chosen(raw, rule.plus), len(times)), rule.plus, raw)
    if not labels:
        if why := raw.header.get(f"unordered:{source[0]}"):
            raise BadInput(
                f"The commands of {raw.name!r} name no joints, and {why}; name them in their order as 'labels' under "
                "[action] in a mapping file."
            )
        labels = raw.noted_labels(source[0])
        if note := raw.header.get(f"note:{source[0]}"):
            log.warning("%s: %s: %s.", raw.name, note, ", ".join(labels))
    if not labels and like is not None and len(like.labels) == made.shape[1]:
        labels = like.labels
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


def _padded(raw: RawRun, source: tuple[str, ...], rows: int) -> Any:
    """Columns side by side; those of one row less (no action follows the last state) hold their last row."""
    values = raw.stacked(source)
    if len(values) == rows:
        return values
    if len(values) == rows - 1 and len(values):
        return np.concatenate([values, values[-1:]])
    raise BadInput(f"{', '.join(source)} of {raw.name!r} has {len(values)} rows, but the others have {rows}.")


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


def _velocities(
    raw: RawRun, data_map: DataMapping, times: Array, positions: tuple[Channel, Array]
) -> tuple[Channel, Array | None]:
    (channel, q), rule = positions, data_map.v
    labels, units = velocity_labels(channel.labels), ""
    if len(labels) == len(channel.units):
        units = [f"{unit}/s" if unit or len(set(channel.units)) > 1 else "" for unit in channel.units]
    if rule.sources and (_present(raw, rule) or not rule.optional):
        made, v = _channel(raw, rule, times, vector(labels))
        return made, ballistic_velocity(times, q, v, channel.labels, rule.flight, rule.centre) if rule.flight else v
    if rule.derive == "q":
        return vector(labels, rule.unit or units), velocity(times, q, channel.labels, rule.window)
    if rule.derive:
        raise BadInput(f"Velocities are derived from 'q', not from {rule.derive!r}.")
    return vector(labels, units), None


def _notes(raw: RawRun, data_map: DataMapping) -> dict[str, str]:
    """The notes of an episode; a name in braces that a file lacks stays empty."""
    notes = {
        name: re.sub(r"\{([^{}]+)\}", lambda match: raw.header.get(match[1], ""), text)
        for name, text in data_map.meta.items()
    }
    notes = {name: text for name, text in notes.items() if text} | {"set": data_map.name, "source": raw.name}
    if data_map.scene:
        notes["scene"] = data_map.scene
    return {"task": data_map.task, **notes} if data_map.task else notes


MIN_FLIGHT_ROWS, MAX_FLIGHT_ROWS = 4, 14
"""Rows of a flight that are fitted."""
MAX_OFFSET_M, MAX_ROTATION_RAD = 2e-3, 0.03
"""How far positions [m] and turns [rad] may lie from the fit while a body still flies; a contact moves them further."""


def ballistic_velocity(
    t: Array, q: Array, v: Array, labels: Sequence[str], gravity: float, centre: Sequence[float] = (0.0, 0.0, 0.0)
) -> Array:
    """Velocities with those of the first flight replaced: r = r0 + v0 t - g t^2 / 2, and a steady turn.

    The centre of mass flies so, given in the body's frame [m]. The flight is as many of the first rows as one such
    motion explains. Smoothed recordings give velocities that lag, and an error at the start grows with every bounce.
    """
    out = np.array(v, float)
    for number, place in enumerate(quaternions(labels)):
        if place.start < 3:
            continue
        first = q[: MAX_FLIGHT_ROWS + 1]
        arm = rotate(first[:, place], np.asarray(centre, float))
        turn = quat_log(quat_mul(quat_inv(first[:1, place]), first[:, place]))
        position, start = first[:, place.start - 3 : place.start] + arm, place.start - 3 - number
        for n in range(min(MAX_FLIGHT_ROWS, len(q)), MIN_FLIGHT_ROWS - 1, -1):
            time = t[:n] - t[0]
            rows = np.stack([np.ones(n), time], axis=1)
            lifted = position[:n] + np.array([0.0, 0.0, 0.5 * gravity]) * time[:, None] ** 2
            both = np.concatenate([lifted, turn[:n]], axis=1)
            fit = np.linalg.lstsq(rows, both, rcond=None)[0]
            off = np.abs(both - rows @ fit).max(axis=0)
            if n == MIN_FLIGHT_ROWS or (off[:3].max() <= MAX_OFFSET_M and off[3:].max() <= MAX_ROTATION_RAD):
                out[:n, start : start + 6] = fit[1]
                out[:n, start + 2] -= gravity * time
                out[:n, start : start + 3] -= np.cross(rotate(first[:n, place], fit[1, 3:]), arm[:n])
                break
    return out


DAY_S = 86_400.0
_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?")


def time_column(raw: RawRun, reference: str) -> Array:
    """The times of a run: numbers as they are stored, text as seconds."""
    times = np.asarray(raw.column(reference)).ravel()
    if times.dtype.kind not in "US":
        return times
    found = text_seconds([str(cell) for cell in times])
    if found is None:
        raise BadInput(
            f"The times in {reference!r} of {raw.name!r} cannot be read, such as {str(times[0])!r}; ISO 8601 "
            "(2026-01-31T12:00:00.5) or a clock time (12:00:00.5) was expected."
        )
    return found


def text_seconds(cells: Sequence[str]) -> Array | None:
    """Seconds of ISO 8601 times since 1970, or of clock times, which go on after midnight; None for other text."""
    found: list[float] = []
    for cell in cells:
        text = cell.strip().strip('"').replace(",", ".")
        if clock := _CLOCK.fullmatch(text):
            found.append(3600.0 * int(clock[1]) + 60.0 * int(clock[2]) + float(clock[3] or 0.0))
            continue
        try:
            moment = datetime.fromisoformat(text.removesuffix("UTC").strip())
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        # More digits than a moment holds are kept: nanoseconds of a ROS log.
        fraction = re.search(r":\d{2}(\.\d+)", text)
        found.append(moment.replace(microsecond=0).timestamp() + (float(fraction[1]) if fraction else 0.0))
    times = np.array(found)
    if times.size and times.max() < 1000 * 3600:
        times = times + DAY_S * np.concatenate([[0], np.cumsum(np.diff(times) < -DAY_S / 2)])
    return times
