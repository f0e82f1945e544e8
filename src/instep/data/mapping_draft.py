"""Write a guessed mapping as a commented TOML file, to be corrected and given with `--map`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .guess_parts import GuessRow
from .mapping import ChannelRule, DataMapping
from .mapping_guess import MappingGuess
from .recorder.atomic import write_text

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
    for table, rule in _rules(mapping).items():
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


def _rules(mapping: DataMapping) -> dict[str, ChannelRule]:
    rules = {"q": mapping.q, "v": mapping.v, "action": mapping.action}
    rules |= {f"observation.{json.dumps(name)}": rule for name, rule in mapping.observation.items()}
    return {table: rule for table, rule in rules.items() if rule.sources or rule.derive}


def _doubts(table: str, rule: ChannelRule, rows: Mapping[str, GuessRow]) -> list[str]:
    """The doubts about a table, those that are alike in one line."""
    prefix = {"q": "position of ", "action": "command of ", "v": "velocities"}.get(table, "torques")
    found: dict[str, list[str]] = {}
    for what, row in rows.items():
        if row.doubt and what.startswith(prefix):
            found.setdefault(row.doubt, []).append(what.removeprefix(prefix))
    return [f"# CHECK {_listed(names, len(rule.labels))}{doubt}." for doubt, names in found.items()]


def _listed(names: Sequence[str], count: int) -> str:
    named = ", ".join(name for name in names if name)
    return f"{'all columns' if len(names) == count > 1 else named}: " if named else ""


def _rule_lines(rule: ChannelRule) -> list[str]:
    if rule.derive:
        return [f"derive = {json.dumps(rule.derive)}", f"window = {rule.window:.6g}  # [s]"]
    source = _whole(rule.sources[0])
    lines = [f"from = {json.dumps(source)}"]
    lines += [f"labels = {json.dumps(list(rule.labels))}"] if rule.labels else []
    lines += [f"from_unit = {json.dumps(rule.from_unit)}"] if rule.from_unit else []
    lines += [f"unit = {json.dumps(rule.unit)}"] if rule.unit else []
    lines += [f"scale = {json.dumps(list(rule.scale))}"] if rule.scale else []
    lines += [f"offset = {json.dumps(list(rule.offset))}"] if rule.offset else []
    return lines


def _whole(references: Sequence[str]) -> str | list[str]:
    """The columns as they are named, or the array that holds exactly these in this order from its first one on."""
    name, _, _ = references[0].partition("[")
    whole = [f"{name}[{k}]" for k in range(len(references))]
    return f"{name}[0:{len(references)}]" if list(references) == whole else list(references)
