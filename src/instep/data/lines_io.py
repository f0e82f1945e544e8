"""Text logs with one measurement per line: a word for its kind, then numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput

from .raw import Raw


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """One column [rows, numbers] for each kind of line."""
    found: dict[str, list[list[float]]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as text ({error}).") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            found.setdefault(words[0], []).append([float(word) for word in words[1:]])
        except ValueError as error:
            raise BadInput(f"Line {number} of {str(path)!r} is not a word and numbers ({error}).") from None
    for kind, rows in found.items():
        if len({len(row) for row in rows}) > 1:
            raise BadInput(f"The lines of kind {kind!r} in {str(path)!r} have different numbers of values.")
    yield Raw(path.name, {kind: np.array(rows) for kind, rows in found.items()})
