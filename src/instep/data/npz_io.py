"""NPZ files: one array per column, or one array per run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput

from .guard import read_npz
from .raw import Raw


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """The runs of an NPZ file. With `each = "array"` every array is a run, under the column name `run`."""
    arrays = read_npz(path)
    single = {name: str(array.item()) for name, array in arrays.items() if array.ndim == 0}
    columns = {name: array for name, array in arrays.items() if array.ndim > 0}
    if not columns:
        raise BadInput(f"{str(path)!r} holds no columns, only {len(single)} single values.")
    if options.get("each") == "array":
        for name, array in sorted(columns.items()):
            yield Raw(f"{path.name}:{name}", {"run": array}, {**single, "run": name})
        return
    yield Raw(path.name, columns, single)
