"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from instep.core.errors import BadInput


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """A folder to fill that takes its name only when the block ends well, and is removed when it does not."""
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{str(folder)!r} is there already and is not empty; choose a new folder or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    partial.mkdir()
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rmdir()
    sync_tree(partial)
    os.rename(partial, folder)
    sync_folder(folder.parent)


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """A path to write to that replaces `path` only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}"
    try:
        yield partial
        _sync_file(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file by a temporary file, a rename and a sync of the folder."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=4, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file, or one sentence about what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{str(path)!r} is missing, so this is not a complete dataset.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{str(path)!r} is not valid JSON ({str(error)[:80]}).") from None


def read_object(path: Path) -> dict[str, Any]:
    """The mapping of a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise BadInput(f"{str(path)!r} should hold a JSON object.")
    return cast(dict[str, Any], value)


def read_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value per line."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise BadInput(f"{str(path)!r} is missing, so this is not a complete dataset.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{str(path)!r} is not one JSON value per line ({str(error)[:80]}).") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make all files below a folder survive a power loss."""
    for path in folder.rglob("*"):
        if path.is_file():
            _sync_file(path)


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
