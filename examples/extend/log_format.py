"""A log format: frames of 32-bit floats behind a line of names, as a data logger of one's own may write them.

The file `pyproject.toml` beside this one registers it in one line:

    [project.entry-points."instep.formats"]
    floats = "log_format:FLOATS"

Every command then knows files that end in `.f32`, such as `instep start robot.urdf run.f32` and `instep data import`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import read_file
from instep.data.formats import Format
from instep.data.mapping import RawRun


def read_floats(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: a column for each name of the first line."""
    head, _, body = read_file(path).partition(b"\n")
    names = head.decode().split()
    if not names or len(body) % (4 * len(names)):
        raise BadInput(f"{str(path)!r} has {len(body)} bytes, which are no rows of {len(names)} floats.")
    table = np.frombuffer(body, "<f4").reshape(-1, len(names))
    yield RawRun(path.name, {name: table[:, k].astype(float) for k, name in enumerate(names)})


FLOATS = Format("a log of floats", read_floats, suffixes=(".f32",), isolated=False)
