"""Type guards for data that comes from outside: JSON, TOML, messages.

Files from outside: regular, of bounded size and depth; what a parser raises becomes one sentence with their name.

Schemas of tables from outside: which entries a JSON or TOML table may have, and what each must hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

import numpy as np

from .errors import BadInput, InstepError, UnknownName
from .world import Array, frozen_dataclass


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a dictionary."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value maps names to values."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a list."""
    return isinstance(value, list)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_array(value: object) -> TypeGuard[Array]:
    """Whether a value is an array."""
    return isinstance(value, np.ndarray)


def is_scalar(value: object) -> TypeGuard[np.generic[Any]]:
    """Whether a value is a number of NumPy's."""
    return isinstance(value, np.generic)


MAX_DOCUMENT = 64 << 20
"""Largest JSON or TOML document that is read [bytes]."""


def read_file(path: Path, most: int = MAX_DOCUMENT) -> bytes:
    """The bytes of a regular file of at most `most` bytes; pipes and devices are refused."""
    check_regular(path, most)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be opened ({first_line(error)}).") from None


def check_regular(path: Path, most: int) -> None:
    """Refuse anything but a regular file of at most `most` bytes, before a library opens it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise BadInput(f"There is no file {str(path)!r}.") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(path)!r} cannot be opened ({first_line(error)}).") from None
    if stat.S_ISDIR(found.st_mode):
        raise BadInput(f"{str(path)!r} is a folder, and a file was expected.")
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{str(path)!r} is a pipe or a device, and a file was expected.")
    if found.st_size > most:
        raise BadInput(
            f"{str(path)!r} has {found.st_size / 2**20:.0f} MiB, and at most {most / 2**20:.0f} MiB are read."
        )


def present(path: Path) -> bool:
    """Whether a path exists, broken links included: an optional file of the wrong kind is refused, not ignored."""
    return os.path.lexists(path)


def read_text(path: Path, most: int = MAX_DOCUMENT) -> str:
    """The text of a regular file in UTF-8."""
    try:
        return read_file(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{str(path)!r} is not a text in UTF-8 ({first_line(error)}).") from None


def read_json(path: Path, most: int = MAX_DOCUMENT) -> Any:
    """The value of a JSON file."""
    return parse_json(read_text(path, most), str(path))


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text; `name` is where it came from."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name!r} is not valid JSON ({first_line(error)}).") from None


def read_json_table(path: Path, most: int = MAX_DOCUMENT) -> dict[str, Any]:
    """The object of a JSON file."""
    value = read_json(path, most)
    if not is_table(value):
        raise BadInput(f"{str(path)!r} must hold a JSON object, not {type(value).__name__}.")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The table of a TOML text; `name` is where it came from."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name!r} is not valid TOML ({first_line(error)}).") from None


@contextmanager
def parsing(path: Path | str, form: str) -> Generator[None]:
    """Turn any error of a parser into one sentence with the file's name; `form` is the expected format.

    Libraries raise errors of any kind about a damaged file. Only put code that reads foreign content into the block.
    """
    try:
        yield
    except (InstepError, KeyboardInterrupt):
        raise
    except MemoryError:
        raise BadInput(f"{str(path)!r} takes more memory than there is; is it {form}?") from None
    except Exception as error:  # noqa: BLE001  # see above
        raise BadInput(f"{str(path)!r} cannot be read as {form} ({described(error)}).") from None


def inside(root: Path, name: str) -> Path:
    """The path of a name below a folder; names and links that lead out of it are refused."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
        raise BadInput(f"The file name {name!r} leads out of its folder, which is refused.")
    return check_inside(root, root / pure)


def check_inside(root: Path, path: Path) -> Path:
    """A path below a folder; refused if it is a link that leads out."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):
        raise BadInput(f"The file {path.name!r} in {str(root)!r} is a link to itself.") from None
    if not resolved.is_relative_to(root.resolve()):
        raise BadInput(f"The file {path.name!r} is a link that leads out of its folder, which is refused.")
    return resolved


def find_inside(root: Path, pattern: str) -> list[Path]:
    """The regular files below a folder that match a pattern; patterns and links that lead out are refused."""
    pure = PurePosixPath(pattern)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in pattern:
        raise BadInput(f"The pattern {pattern!r} leads out of its folder, or selects nothing; a name was expected.")
    try:
        found = sorted(path for path in root.glob(pattern) if not path.is_dir())
    except (ValueError, NotImplementedError, OSError) as error:
        raise BadInput(f"The pattern {pattern!r} selects no files ({first_line(error)}).") from None
    for path in found:
        check_inside(root, path)
        if not path.is_file():
            raise BadInput(f"{str(path)!r} is a broken link, a pipe or a device, and a file was expected.")
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def described(error: BaseException) -> str:
    """The first line of an error, with its kind if the message alone is unclear (a missing key)."""
    words = first_line(error)
    plain = isinstance(error, KeyError | IndexError | AttributeError | TypeError) or words == type(error).__name__
    return f"{type(error).__name__}: {words}" if plain and words != type(error).__name__ else words


MAX_NUMBER = 1e15
"""Largest number that a table may hold."""


@frozen_dataclass
class Entry:
    """What an entry of a table must hold."""

    usable: Callable[[object], bool]
    words: str
    """What is expected, in words."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number of usable size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number."""
    return isinstance(value, int) and is_number(value)


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def _is_names(value: object) -> bool:
    return is_list(value) and bool(value) and all(is_text(one) for one in value) and len(set(value)) == len(value)


def is_numbers(value: object) -> TypeGuard[list[float]]:
    """Whether a value is a list of usable numbers."""
    return is_list(value) and all(is_number(one) for one in value)


def is_range(value: object) -> TypeGuard[list[float]]:
    """Whether a value is a lower and an upper bound."""
    return is_numbers(value) and len(value) == 2 and value[0] <= value[1]


def one_of(*words: str) -> Entry:
    """One of some words."""
    return Entry(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(map(repr, words))}")


def at_least(low: float) -> Entry:
    """A number with a lower bound."""
    return Entry(lambda value: is_number(value) and value >= low, f"a number of at least {low:g}")


def whole_from(low: int, high: int) -> Entry:
    """A whole number between bounds."""
    return Entry(lambda value: is_whole(value) and low <= value <= high, f"a whole number from {low} to {high}")


def table_of(entry: Entry) -> Entry:
    """A table whose entries have any name, and each the same kind of value."""
    return Entry(lambda value: is_table(value) and all(map(entry.usable, value.values())), f"a table of {entry.words}")


TEXT = Entry(is_text, "a text in quotes")
ANY_TEXT = Entry(lambda value: isinstance(value, str), "a text in quotes")
NUMBER = Entry(is_number, "a finite number")
POSITIVE = Entry(lambda value: is_number(value) and value > 0, "a number above 0")
COUNT = Entry(lambda value: is_whole(value) and value >= 0, "a whole number of at least 0")
FLAG = Entry(lambda value: isinstance(value, bool), "true or false")
NAMES = Entry(_is_names, "a list of different names, such as ['shoulder', 'elbow']")
MAYBE_NAMES = Entry(lambda value: value == [] or _is_names(value), "a list of different names, perhaps empty")
TEXTS = Entry(lambda value: is_list(value) and all(isinstance(one, str) for one in value), "a list of texts")
NUMBERS = Entry(is_numbers, "a list of numbers")
RANGE = Entry(is_range, "[low, high], two numbers in this order")
TABLE = Entry(is_table, "a table")
TABLES = Entry(lambda value: is_list(value) and all(map(is_table, value)), "a list of tables")


def checked_table(table: object, schema: Mapping[str, Entry], where: str) -> dict[str, Any]:
    """The table, after each of its entries was checked; `where` names it in error texts."""
    if not is_table(table):
        raise BadInput(f"{where} is {shown(table)}; a table with {', '.join(list(schema)[:6])} was expected.")
    for name, value in table.items():
        if name not in schema:
            raise UnknownName(f"entry of {where}", name, schema)
        check_entry(value, schema[name], name, where)
    return table


def read_entries(path: Path, schema: Mapping[str, Entry]) -> dict[str, Any]:
    """The object of a JSON file, after the entries that it must have were checked; others may stand beside them."""
    return with_entries(read_json_table(path), schema, str(path))


def with_entries(table: dict[str, Any], schema: Mapping[str, Entry], where: str) -> dict[str, Any]:
    """The table, after the entries that it must have were checked; others may stand beside them."""
    for name, entry in schema.items():
        if name not in table:
            raise BadInput(f"{where!r} has no entry {name!r}; expected {entry.words}.")
        check_entry(table[name], entry, name, repr(where))
    return table


def check_entry(value: object, entry: Entry, name: str, where: str) -> None:
    """Refuse a value that is not what its entry must hold."""
    if not entry.usable(value):
        raise BadInput(f"{where} has {name} = {shown(value)}; expected {entry.words}.")


def shown(value: object) -> str:
    """A value in an error text, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        digest.update(str(file.relative_to(path)).encode() if path.is_dir() else b"")
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
