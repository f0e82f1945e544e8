"""Sandbox: untrusted files are read in another process first, so that a crash of a parser becomes an error.

Parquet, HDF5, video and compressed logs are parsed by C and C++ libraries, some of which crash on a single flipped bit;
the process has limits of memory and time, and is started once for all files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.reader_process import Job, ReaderProcess
from instep.core.reading import check_inside, check_regular
from instep.data.lerobot.features import is_image

from .files import MAX_RECORDING
from .mapping import DataMapping

MAX_MEMORY = 8 << 30
"""Most address space a reader may take [bytes]; libraries map far more than they use."""
MAX_CPU_S = 600.0
"""Most processor time that a reader may take for one file or dataset [s]."""
_READER = ReaderProcess("instep.data.sandbox", cpu_s=MAX_CPU_S, memory=MAX_MEMORY)
_CHECKED: set[tuple[str, int, int]] = set()
_UNCHECKED_FORMATS = ("npz", "csv", "json", "lines", "stills")
"""Formats whose readers are Python and NumPy, and are bounded by themselves."""


def check_dataset(folder: Path) -> None:
    """Make sure a LeRobot dataset can be read: by its checksums where we wrote them, else in a process of its own."""
    key = _key(folder)
    if key in _CHECKED:
        return
    if not _verified(folder):
        _READER.check({"dataset": str(folder.absolute())}, str(folder))
    _CHECKED.add(key)


def check_recordings(folder: Path, maps: Sequence[DataMapping]) -> None:
    """Make sure recordings can be read by their mappings."""
    from instep.data.formats.readers import matching, reader_of

    for data_map in maps:
        reader_of(data_map)
        if data_map.format in _UNCHECKED_FORMATS:
            continue
        for path in matching(folder, data_map):
            key = _key(path)
            if key not in _CHECKED:
                job = {"format": data_map.format, "path": str(path.absolute()), "options": dict(data_map.options)}
                _READER.check(job, str(path))
                _CHECKED.add(key)


def read_job(job: Job) -> None:
    """What the process does with a job: read all of a dataset or of one file."""
    if "dataset" in job:
        _read_dataset(Path(job["dataset"]))
        return
    from instep.data.formats.readers import raw_runs

    for raw in raw_runs(Path(job["path"]), job["format"], job["options"]):
        _touch(raw.columns)


def _read_dataset(folder: Path) -> None:
    from instep.data.lerobot.reader import read_lerobot

    for episode in read_lerobot(folder):
        _touch(episode.columns)


def _touch(columns: Any) -> None:
    for column in columns.values():
        if is_image(column):
            np.asarray(column[0])
        else:
            np.asarray(column)


def _verified(folder: Path) -> bool:
    """Whether a dataset has checksums of all its tables; one that differs is named."""
    from instep.data.lerobot.reader import own_notes
    from instep.data.recorder.atomic import sha256

    known = (own_notes(folder) or {}).get("sha256")
    tables = [path for part in ("data", "meta") for path in (folder / part).rglob("*.parquet")]
    names = [str(path.relative_to(folder)) for path in tables]
    if not isinstance(known, dict) or any(name not in known for name in names):
        return False
    for path, name in zip(tables, names, strict=True):
        check_regular(check_inside(folder, path), MAX_RECORDING)
        if sha256(path) != known[name]:
            raise BadInput(f"{str(path)!r} is not as it was written: its SHA-256 differs, so it is damaged.")
    return True


def _key(path: Path) -> tuple[str, int, int]:
    """A file or folder as it stands now: a change of any file gives another key."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    stats = [file.stat() for file in files]
    return str(path.absolute()), sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0)
