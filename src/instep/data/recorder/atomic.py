"""Atomic file writes that survive a power loss. Standard library only: the writer process imports it."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """A path to write to that replaces `path` only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}"
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file by a temporary file, a rename and a sync of the folder."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=4, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make all files below a folder survive a power loss."""
    for path in folder.rglob("*"):
        if path.is_file():
            sync(path)
