"""Files from outside: regular, of bounded size and depth; what a parser raises becomes one sentence with their name."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import BadInput, InstepError
from .type_guards import is_table

MAX_DOCUMENT = 64 << 20
"""Largest JSON or TOML document that is read [bytes]."""


def read_file(path: Path, most: int = MAX_DOCUMENT) -> bytes:
    """The bytes of a regular file of at most so many [bytes]; no pipe is waited for, and no device is read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadInput(f"There is no file {str(path)!r}.") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(path)!r} cannot be opened ({first_line(error)}).") from None
    try:
        _check_regular(path, os.fstat(handle), most)
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def check_regular(path: Path, most: int) -> None:
    """Refuse what is not a regular file of at most so many bytes, before a library opens it."""
    try:
        _check_regular(path, path.stat(), most)
    except FileNotFoundError:
        raise BadInput(f"There is no file {str(path)!r}.") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(path)!r} cannot be opened ({first_line(error)}).") from None


def present(path: Path) -> bool:
    """Whether anything is at a path, a broken link included: an optional file of the wrong kind is refused, not passed
    over."""
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
    """Turn whatever a parser raises about a file into one sentence with its name; `form` is what it should be.

    Libraries raise errors of any kind about a damaged file. Only what reads foreign content belongs into the block.
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
    """A path below a folder, such as one that a pattern found; refused where it is a link that leads out."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):
        raise BadInput(f"The file {path.name!r} in {str(root)!r} is a link to itself.") from None
    if not resolved.is_relative_to(root.resolve()):
        raise BadInput(f"The file {path.name!r} is a link that leads out of its folder, which is refused.")
    return resolved


def find_inside(root: Path, pattern: str) -> list[Path]:
    """The regular files below a folder that a pattern selects; patterns and links that lead out are refused."""
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
    """The first line of what an error says, or its kind: what one sentence quotes."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def described(error: BaseException) -> str:
    """The first line of an error; with its kind where the words alone say nothing, as a missing key's."""
    words = first_line(error)
    plain = isinstance(error, KeyError | IndexError | AttributeError | TypeError) or words == type(error).__name__
    return f"{type(error).__name__}: {words}" if plain and words != type(error).__name__ else words


def _check_regular(path: Path, found: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise BadInput(f"{str(path)!r} is a folder, and a file was expected.")
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{str(path)!r} is a pipe or a device, and a file was expected.")
    if found.st_size > most:
        raise BadInput(
            f"{str(path)!r} has {found.st_size / 2**20:.0f} MiB, and at most {most / 2**20:.0f} MiB are read."
        )
