"""JSON logs: single values at the top, and a list of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput

from .atomic import read_object
from .raw import Raw


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """The rows of a JSON log, found under the key `rows`; other single values become its header."""
    key = str(options.get("rows", "entries"))
    top = read_object(path)
    rows = top.get(key)
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        raise BadInput(f"{str(path)!r} should hold a list of rows under {key!r}.")
    table = cast(list[dict[str, Any]], rows)
    names = list(table[0])
    try:
        columns = {name: np.array([float(row[name]) for row in table]) for name in names}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"The rows of {str(path)!r} are not all alike ({type(error).__name__}: {error}).") from None
    header = {name: str(value) for name, value in top.items() if isinstance(value, str | int | float)}
    yield Raw(path.name, columns, header)
