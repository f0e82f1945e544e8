"""Mapping files: how the columns of a foreign recording become positions, velocities, actions and observations.

A mapping is a TOML file. It says which files to read and in which format, and for each channel the columns, labels and
unit, and the sign, scale and offset to the scene's convention. `RawRun` is what a reader hands to a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import TEXTS, check_entry, parse_json, parse_toml, parsing, read_text
from instep.core.world import array_dataclass, frozen_dataclass

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
    kind: str = "episodes"
    """`episodes`, or `table` for a plain table of numbers and text."""
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
