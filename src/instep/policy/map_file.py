"""Policy maps in TOML files: read, and checked before anything moves.

What is wrong in a file (an unknown entry, a wrong type, sizes that differ) is found by `read_map`, what does not fit a
world (joints, cameras, actions that are missing) by `checked_map`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import read_toml
from instep.core.schema import (
    ANY_TEXT,
    NAMES,
    NUMBERS,
    TEXT,
    Entry,
    at_least,
    check_entry,
    is_numbers,
    is_whole,
    one_of,
    whole_from,
)
from instep.core.type_guards import is_list, is_table
from instep.core.world import Spec

from .policy_map import CAMERA, ImageEntry, PolicyMap, VectorEntry, channel_of

LISTS = {"state": VectorEntry, "action": VectorEntry, "image": ImageEntry}
"""The lists of tables of a map."""


def read_map(path: Path) -> PolicyMap:
    """The map in a TOML file."""
    table = read_toml(path)
    made = _fields(PolicyMap, table, path.name)
    for name, kind in LISTS.items():
        entries = table.get(name, [])
        if not is_list(entries):
            raise BadInput(f"{path.name} has {name!r} as a single value; write each as a table under [[{name}]].")
        made[name] = tuple(_entry(kind, entry, f"[[{name}]] of {path.name}") for entry in entries)
    if not made["action"]:
        raise BadInput(f"{path.name} has no [[action]]; a map must list the policy's actions.")
    mapped = PolicyMap(**made)
    _separate_keys(mapped, path.name)
    return mapped


def checked_map(mapped: PolicyMap, spec: Spec) -> PolicyMap:
    """The map if it fits a world: every joint and camera exists, and every action is given once."""
    for entry in mapped.state:
        for label in entry.joints:
            channel_of(label, spec)
    cameras = [name.removeprefix(CAMERA) for name in spec.observation if name.startswith(CAMERA)]
    for image in mapped.image:
        if image.camera not in cameras:
            raise UnknownName("camera", image.camera, cameras)
    given: list[str] = []
    for entry in mapped.action:
        for label in entry.joints:
            if label not in spec.action.labels:
                raise UnknownName("action", label, spec.action.labels)
            if entry.kind == "delta":
                channel_of(label, spec)
        given += entry.joints
    twice = sorted({label for label in given if given.count(label) > 1})
    if twice:
        raise BadInput(f"The map gives {', '.join(twice)} more than once under [[action]]; list every joint once.")
    missing = [label for label in spec.action.labels if label not in given]
    if missing:
        raise BadInput(
            f"The map has no action for {', '.join(missing)}; list every joint of the world under [[action]]."
        )
    return mapped


_EXPECTED: Mapping[str, Entry] = {
    "key": TEXT,
    "camera": Entry(TEXT.usable, "the name of a camera in quotes"),
    "prompt_key": TEXT,
    "prompt": Entry(ANY_TEXT.usable, "a sentence in quotes"),
    "release": Entry(ANY_TEXT.usable, "a release in quotes, such as 'n1.6'"),
    "joints": NAMES,
    "scale": Entry(lambda value: is_numbers(value) and 0 not in value, "a list of numbers other than 0"),
    "offset": NUMBERS,
    "unit": one_of("", "deg"),
    "kind": one_of("absolute", "delta"),
    "dtype": one_of("float16", "float32", "float64"),
    "layout": one_of("HWC", "CHW"),
    "size": Entry(
        lambda value: is_list(value) and len(value) == 2 and all(is_whole(one) and 0 < one <= 8192 for one in value),
        "height and width in pixels, such as [224, 224]",
    ),
    "execute": Entry(whole_from(0, 10_000).usable, "a whole number of actions, 0 for all of a chunk"),
    "ensemble": Entry(at_least(0.0).usable, "a decay of at least 0"),
}
"""Entry of a map -> what it must hold."""


def _fields(kind: type[Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The entries of a table that are not lists of tables, each checked."""
    known = [f.name for f in fields(kind)]
    made: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            raise UnknownName(f"entry under {where}", name, known)
        if name in LISTS:
            continue
        check_entry(value, _EXPECTED[name], name, where)
        made[name] = tuple(value) if is_list(value) else value
    return made


def _entry(kind: type[Any], entry: object, where: str) -> Any:
    if not is_table(entry):
        raise BadInput(f"{where} holds {entry!r}; expected a table with key, and joints or camera.")
    made = _fields(kind, entry, where)
    required = ("key", "joints") if kind is VectorEntry else ("key", "camera")
    missing = [name for name in required if name not in made]
    if missing:
        raise BadInput(f"{where} is not complete: it lacks {' and '.join(missing)}.")
    for name in ("scale", "offset"):
        given = made.get(name)
        if given and len(given) != len(made["joints"]):
            raise BadInput(f"{where} has {len(given)} numbers as {name} for {len(made['joints'])} joints.")
    return kind(**made)


def _separate_keys(mapped: PolicyMap, where: str) -> None:
    """Refuse keys of which one lies inside another, and keys that are given twice."""
    prompt = [mapped.prompt_key] if mapped.prompt else []
    for keys in (
        [*(e.key for e in mapped.state), *(e.key for e in mapped.image), *prompt],
        [e.key for e in mapped.action],
    ):
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise BadInput(f"{where} gives the key {key!r} twice; each value needs its own.")
            inside = next((other for other in keys if other.startswith(key + ">")), None)
            if inside is not None:
                raise BadInput(f"{where} has the keys {key!r} and {inside!r}; a key is a value or a group, not both.")
