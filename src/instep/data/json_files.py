"""Folders that appear whole or not at all, and JSON files that are read or named in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from instep.core.errors import BadInput
from instep.data.recorder.atomic import sync_folder, sync_tree


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
