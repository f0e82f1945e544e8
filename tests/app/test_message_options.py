"""Every option that a message names exists for the commands that can show that message."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from functools import cache
from pathlib import Path

import pytest

import instep
from instep.app.cli import VERBS, main

SOURCE = Path(instep.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
BROWSER = {"--headless", "--no-sandbox", "--remote-debugging-port", "--hide-scrollbars", "--use-angle",
           "--enable-unsafe-swiftshader", "--disable-gpu-compositing", "--disable-features",
           "--user-data-dir"}  # fmt: skip
COMPILER = {"--gpu-architecture", "--use", "--std"}
NOT_OURS = {"--query-gpu", "--format", "--short", "--porcelain", "--help", "--version"} | BROWSER | COMPILER
"""Options of other programs, and those of every command."""
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "tune": ("tune", "torque", "excite", "start", "train", "twin"),
    "lab": ("lab legs", "lab closing", "lab augment", "lab adr", "train", "twin"),
    "gap": ("gap", "tune", "start", "torque"),
    "diagnose": ("gap", "start"),
    "scene": ("gap", "tune", "run", "eval", "train", "lab augment", "gate"),
    "reconstruct": ("reconstruct", "reconstruct pose", "scene edit"),
    "splat": ("scene splat", "run", "eval", "train"),
    "policy": ("run", "eval", "train", "lab augment", "gate", "serve", "check", "lab legs"),
    "twin": ("twin", "run", "robot"),
    "evaluate": ("eval", "gate", "lab augment", "check", "gap"),
    "robot": ("robot", "run", "record", "serve"),
    "physics": ("gap", "tune", "run", "eval", "robot", "scene camera"),
    "data": ("data import", "data info", "data export", "gap", "tune", "train", "check", "start"),
    "report": (),
    "core": (),
}
"""Package -> the commands that can show a message of it; an option must exist for at least one of them, or for
a command that the message names."""


@cache
def options_of(verb: str) -> frozenset[str]:
    """The options that the help of a command lists, those for experts too."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main([*verb.split(), "--help"])
    expert = re.findall(r"^  ([a-z_]+): ", text.getvalue(), re.M)
    return frozenset([*OPTION.findall(text.getvalue()), *(f"--{name.replace('_', '-')}" for name in expert)])


def messages(path: Path) -> list[tuple[int, str]]:
    """The text of each string of a file that is neither a docstring nor help: f-strings and joined parts as one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            found.append((node.lineno, " ".join(str(part) for part in parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
            found.append((node.lineno, node.value))
    return found


def commands_of(path: Path) -> list[str]:
    """The commands that can show a message of a file."""
    parts = path.relative_to(SOURCE).parts
    if parts[:2] == ("app", "verbs"):
        return [name for name, verb in VERBS.items() if verb.place.split(":")[0] == path.stem]
    if parts[0] == "app":
        return list(VERBS)
    return list(SHOWN_BY.get(parts[0], ()))


NAMED = [
    (str(path.relative_to(SOURCE)), line, option, tuple(verb for verb in VERBS if f"instep {verb}" in text))
    for path in sorted(SOURCE.rglob("*.py"))
    for line, text in messages(path)
    for option in OPTION.findall(text)
    if option not in NOT_OURS and text != option  # an option alone is a word of a command that is run
]


def test_messages_name_options_at_all():
    assert len(NAMED) > 40 and any(option == "--map" for _, _, option, _ in NAMED)


@pytest.mark.parametrize("file", sorted({file for file, _, _, _ in NAMED}))
def test_every_option_that_a_message_names_exists(file: str):
    commands = commands_of(SOURCE / file)
    misses = [
        f"{file}:{line} {option}"
        for where, line, option, said in NAMED
        if where == file and not any(option in options_of(verb) for verb in (*commands, *said))
    ]
    assert misses == []


READS_DATA = ("data import", "data info", "data export", "gap", "tune", "train", "check")


@pytest.mark.parametrize("verb", READS_DATA)
def test_what_reads_recordings_takes_the_same_three_options(verb: str):
    assert {"--map", "--as", "--rate"} <= options_of(verb)
    assert "--mapping" not in options_of(verb)
