"""Types of the arguments of verbs: positional ones, options without prefix, and expert options in a file."""

from __future__ import annotations

import ast
import inspect
import os
import secrets
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, make_dataclass, replace
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_origin, get_type_hints

import tyro

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import is_mapping, is_sequence, read_text, read_toml

T = TypeVar("T")
Positional = tyro.conf.Positional
Options: TypeAlias = Annotated[T, tyro.conf.arg(name="")]
"""A dataclass of options; its fields are flags of the verb."""
Expert: TypeAlias = Annotated[T, tyro.conf.Suppress]
"""An option for experts: set in the file of `--options`, and listed below the common ones."""
ExpertOptions: TypeAlias = Annotated[T, tyro.conf.arg(name=""), tyro.conf.Suppress]
"""A dataclass of options for experts."""
SceneArg: TypeAlias = Positional[
    Annotated[
        str,
        tyro.conf.arg(metavar="SCENE", help="name of a shipped scene, a scene folder, or an MJCF or URDF file."),
    ]
]
"""The scene of a verb."""
PolicyArg: TypeAlias = Positional[
    Annotated[
        str,
        tyro.conf.arg(
            metavar="POLICY",
            help="expert, a trained folder, FILE.py:NAME, FILE.pt, FILE.onnx, openpi:ws://HOST:PORT, hold, random, "
            "constant:0.1, replay:DATA, ...",
        ),
    ]
]
"""A policy specification."""
WorldArg: TypeAlias = Positional[
    Annotated[
        str,
        tyro.conf.arg(
            metavar="WORLD", help="sim:SCENE, sim:SCENE@rapier, robot:ws://127.0.0.1:PORT or recording:DATA."
        ),
    ]
]
"""A world specification."""
RecordingsArg: TypeAlias = Positional[
    Annotated[
        str,
        tyro.conf.arg(metavar="DATA", help="recordings: a LeRobot folder, or a folder that a mapping of instep reads."),
    ]
]
"""Recordings that a verb reads."""
DataArg: TypeAlias = Positional[Annotated[Path, tyro.conf.arg(metavar="DATA")]]
"""A dataset folder."""
OutFolder: TypeAlias = Annotated[Path | None, tyro.conf.arg(help="output folder (default: a new one under runs/).")]
"""Output folder of a verb."""
TokenFile: TypeAlias = Annotated[
    Path | None, tyro.conf.arg(help="file with the token of the robot's link (default: the variable INSTEP_TOKEN).")
]
"""File with the token of a link; see `link_token`."""
MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
"""Configuration of tyro for all verbs."""
MAX_TOKEN_FILE = 4096
"""Largest file of a token [bytes]."""


@dataclass(frozen=True, slots=True)
class ExpertField:
    """One expert option of a verb."""

    owner: type[Any]
    """The dataclass that has the field."""
    path: tuple[str, ...]
    """The names that lead to it from the options of the verb."""
    kind: Any
    """Its type, without the mark that hides it."""

    def value(self, options: Any) -> Any:
        """The value in the options of a verb."""
        for name in self.path:
            options = getattr(options, name)
        return options


def with_expert_options(
    function: Callable[..., Any], words: Sequence[str], file: Path | None = None
) -> tuple[Callable[..., Any], list[str]]:
    """The function of a verb with its expert options set as defaults, and the words without these options.

    Expert options come from a TOML file, and from `words`, which win.
    """
    table: Mapping[str, Any] = {} if file is None else {n.replace("-", "_"): v for n, v in read_toml(file).items()}
    signature, known, rest = inspect.signature(function), set[str](), list(words)
    parameters = dict(signature.parameters)
    for parameter in signature.parameters.values():
        experts = _expert_fields(parameter.default)
        if not experts:
            continue
        known |= experts.keys()
        taken, rest = _taken(rest, experts)
        given = {name: _as_words(value) for name, value in table.items() if name in experts} | taken
        default = _with_values(parameter.default, {name: experts[name] for name in given}, given, file)
        parameters[parameter.name] = parameter.replace(default=default)
    for name in table.keys() - known:
        raise UnknownName(f"expert option in {str(file)!r}", name, known)

    @wraps(function)
    def called(*operands: Any, **options: Any) -> Any:
        return function(*operands, **options)

    called.__signature__ = signature.replace(  # pyright: ignore[reportAttributeAccessIssue]
        parameters=list(parameters.values())
    )
    return called, rest


def expert_help(function: Callable[..., Any]) -> list[str]:
    """Lines about the expert options of a verb; none if it has none."""
    found: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        for name, one in _expert_fields(parameter.default).items():
            value = one.value(parameter.default)
            default = "" if value in (None, "", ()) else f" (default: {value})"
            found.append(f"  {name}: {_field_docstrings(one.owner).get(name, '')}{default}")
    return ["expert options, in a TOML file given by --options FILE:", *found] if found else []


def _taken(words: Sequence[str], experts: Mapping[str, ExpertField]) -> tuple[dict[str, list[str] | None], list[str]]:
    """The values of expert options among words, and the other words."""
    given, rest, place = dict[str, list[str] | None](), list[str](), 0
    while place < len(words):
        name, value = words[place].removeprefix("--").replace("-", "_"), place + 1
        if not words[place].startswith("--") or name not in experts:
            rest.append(words[place])
            place += 1
            continue
        kind = experts[name].kind
        most = 0 if kind is bool else len(words) if get_origin(kind) in (tuple, Mapping) else 1
        place = value
        while place < len(words) and place - value < most and not words[place].startswith("--"):
            place += 1
        given[name] = list(words[value:place])
    return given, rest


def _as_words(value: Any) -> list[str] | None:
    """A value of a TOML file as words of a command line; None leaves a flag out."""
    if isinstance(value, bool):
        return [] if value else None
    if is_mapping(value):
        return [word for name, one in value.items() for word in (str(name), *(_as_words(one) or ()))]
    return [str(item) for item in (value if is_sequence(value) else [value])]


def _with_values(
    default: Any, experts: Mapping[str, ExpertField], given: Mapping[str, list[str] | None], file: Path | None
) -> Any:
    """Options with some expert fields replaced; tyro converts their words."""
    if not given:
        return default
    words = [w for n, v in given.items() if v is not None for w in (f"--{n.replace('_', '-')}", *v)]
    plain = [(name, one.kind, field(default_factory=partial(one.value, default))) for name, one in experts.items()]
    made: Any = make_dataclass("ExpertOptions", plain)
    parsed: Any = tyro.cli(made, prog=str(file or "instep"), args=words, config=MARKERS)
    for name, one in experts.items():
        default = _replaced(default, one.path, getattr(parsed, name))
    return default


def _replaced(options: Any, path: tuple[str, ...], value: Any) -> Any:
    inner = value if len(path) == 1 else _replaced(getattr(options, path[0]), path[1:], value)
    return replace(options, **{path[0]: inner})


def _expert_fields(options: Any, hidden: bool = False) -> dict[str, ExpertField]:
    """The expert options of a dataclass and of the dataclasses in it, by name."""
    found: dict[str, ExpertField] = {}
    hints: dict[str, Any] = get_type_hints(type(options), include_extras=True) if is_dataclass(options) else {}
    for name, hint in hints.items():
        marks = getattr(hint, "__metadata__", ())
        mine, inner = hidden or tyro.conf.Suppress in marks, getattr(options, name)
        if is_dataclass(inner):
            nested = _expert_fields(inner, mine)
            found |= {n: ExpertField(one.owner, (name, *one.path), one.kind) for n, one in nested.items()}
        elif mine:
            rest = tuple(mark for mark in marks if mark is not tyro.conf.Suppress)
            kind = Annotated[(hint.__origin__, *rest)] if rest else hint.__origin__ if marks else hint
            owner = cast(type[Any], type(options))
            found[name] = ExpertField(owner, (name,), kind)
    return found


def _field_docstrings(options: type) -> dict[str, str]:
    """The docstring below each field of a dataclass."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        one.target.id: " ".join(after.value.value.split())
        for one, after in pairwise(body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }  # fmt: skip


def link_token(file: Path | None = None) -> str:
    """The token of a link, from a file or from INSTEP_TOKEN: command lines are logged, so it is no option."""
    return read_text(file, MAX_TOKEN_FILE).strip() if file else os.environ.get("INSTEP_TOKEN", "")


def kept_token(path: Path) -> str:
    """The token in a file of a server; written there at the first start."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32))
    token = read_text(path, MAX_TOKEN_FILE).strip()
    if not token:
        raise BadInput(f"The file {str(path)!r} holds no token; remove it, or give another --token.")
    return token


def write_secret(path: Path, text: str) -> None:
    """Write a file whole or not at all, readable by its owner alone."""
    temporary = path.with_suffix(".part")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    temporary.replace(path)
