"""Comma-separated files, plain or gzipped, with or without a line of names."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .guard import MAX_DECODED
from .raw import Raw


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """The columns of a CSV file; `columns` names them where the file does not, `delimiter` separates them."""
    yield Raw(path.name, read_columns(path, options))


def read_columns(path: Path, options: Mapping[str, Any]) -> dict[str, Array]:
    """Columns by name: numbers where every value is one, else text."""
    text = _text(path)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=str(options.get("delimiter", ","))) if row]
    names = [str(name) for name in cast(list[Any], options.get("columns", []))]
    if not names and rows:
        names, rows = [cell.strip() for cell in rows[0]], rows[1:]
    if not rows:
        raise BadInput(f"{str(path)!r} has no rows of numbers.")
    for k, row in enumerate(rows):
        if len(row) != len(names):
            raise BadInput(f"Row {k + 1} of {str(path)!r} has {len(row)} values, but there are {len(names)} columns.")
    return {name: _values([row[k] for row in rows]) for k, name in enumerate(names)}


def write_columns(path: Path, columns: Mapping[str, Array]) -> None:
    """Write columns [rows] with a line of names; numbers keep all their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(_cells(column) for column in columns.values()), strict=True))


def _text(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                data = packed.read(MAX_DECODED // 4 + 1)
        else:
            with path.open("rb") as plain:
                data = plain.read(MAX_DECODED // 4 + 1)
        if len(data) > MAX_DECODED // 4:
            raise BadInput(f"{str(path)!r} unpacks to more than {MAX_DECODED >> 22} MiB of text, which is refused.")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise BadInput(f"There is no file {str(path)!r}.") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as text ({str(error)[:80]}).") from None


def _values(cells: list[str]) -> Array:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array([cell.strip() for cell in cells], dtype=np.str_)


def _cells(column: Array) -> list[str]:
    return [repr(float(x)) if column.dtype.kind == "f" else str(x) for x in column]
