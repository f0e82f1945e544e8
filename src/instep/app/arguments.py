"""Types of the arguments of verbs: what is positional, and options whose flags have no prefix."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import tyro

from instep.core.errors import BadInput
from instep.core.reading import read_text

T = TypeVar("T")
Positional = tyro.conf.Positional
Options: TypeAlias = Annotated[T, tyro.conf.arg(name="")]
"""A dataclass of options, whose fields are flags of the verb."""
SceneArg: TypeAlias = Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]]
"""A shipped scene by name, a scene folder, or a robot file."""
PolicyArg: TypeAlias = Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
"""A policy, as words."""
WorldArg: TypeAlias = Positional[Annotated[str, tyro.conf.arg(metavar="WORLD")]]
"""A world, as words: sim:SCENE, robot:ADDRESS, ..."""
DataArg: TypeAlias = Positional[Annotated[Path, tyro.conf.arg(metavar="DATA")]]
"""A dataset folder."""
OutFolder: TypeAlias = Annotated[
    Path | None, tyro.conf.arg(help="folder to write; a new one under runs/ where not given.")
]
"""Where a verb writes."""
TokenFile: TypeAlias = Annotated[
    Path | None, tyro.conf.arg(help="file with the token of the robot's link; INSTEP_TOKEN where not given.")
]
"""Where the token of a link is read from; see `link_token`."""


MAX_TOKEN_FILE = 4096
"""Largest file of a token [bytes]."""


def link_token(file: Path | None = None) -> str:
    """The token of a link, which has no place among words that are logged: in a file, or in INSTEP_TOKEN."""
    return read_text(file, MAX_TOKEN_FILE).strip() if file else os.environ.get("INSTEP_TOKEN", "")


def kept_token(path: Path) -> str:
    """The token in a file that a server reads; a fresh one is written to it where there is no such file."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32))
    token = read_text(path, MAX_TOKEN_FILE).strip()
    if not token:
        raise BadInput(f"The file {str(path)!r} holds no token; remove it, or give another --token.")
    return token


def write_secret(path: Path, text: str) -> None:
    """Write whole, readable by its owner alone; a reader never sees half of it."""
    temporary = path.with_suffix(".part")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    temporary.replace(path)
