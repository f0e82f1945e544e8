"""What a reader of a foreign format returns: named columns as they stand in the file, before any meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName

_REFERENCE = re.compile(r"^(?P<name>.*?)(\[(?P<start>\d+)(:(?P<stop>\d+))?\])?$")


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """One run of a file: columns [rows, ...], and single values such as gains and names."""

    name: str
    """Where it came from, for notes and error texts."""
    columns: Mapping[str, Any]
    header: Mapping[str, str] = field(default_factory=dict[str, str])

    def column(self, reference: str) -> Any:
        """A column by reference: `q`, one number of it `q[3]`, or some of them `q[0:7]`."""
        match = _REFERENCE.match(reference)
        name = match["name"] if match else reference
        if name not in self.columns:
            raise UnknownName(f"column in {self.name!r}", name, self.columns)
        column = self.columns[name]
        if match is None or match["start"] is None:
            return column
        start, stop = int(match["start"]), int(match["stop"] or int(match["start"]) + 1)
        if column.ndim < 2 or stop > column.shape[1]:
            raise BadInput(f"{reference!r} is asked for, but {name!r} in {self.name!r} has shape {column.shape}.")
        return column[:, start:stop]

    def stacked(self, references: tuple[str, ...]) -> Any:
        """Columns side by side [rows, numbers]; one column of images is passed on as it is."""
        parts = [self.column(reference) for reference in references]
        if len(parts) == 1 and parts[0].ndim > 2:
            return parts[0]
        try:
            return np.concatenate([np.asarray(p, float).reshape(len(p), -1) for p in parts], axis=1)
        except ValueError:
            shapes = {r: p.shape for r, p in zip(references, parts, strict=True)}
            raise BadInput(f"These columns of {self.name!r} cannot stand side by side: {shapes}.") from None
