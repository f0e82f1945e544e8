"""Sandbox: untrusted files are read in a process of their own first, so that a crash of a parser becomes an error.

Parquet, HDF5, video and compressed logs are parsed by C and C++ libraries, some of which crash on a single flipped bit;
the process has limits of memory and time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.data.lerobot.features import is_image

from .mapping import DataMapping

MAX_MEMORY = 8 << 30
"""Most address space a reader may take [bytes]; libraries map far more than they use."""
MAX_CPU_S = 600
"""Most processor time a reader may take [s]."""
_CHECKED: set[tuple[str, int, int]] = set()
_UNCHECKED_FORMATS = ("npz", "csv", "json", "lines", "stills")
"""Formats whose readers are Python and NumPy, and are bounded by themselves."""


def check_dataset(folder: Path) -> None:
    """Make sure a LeRobot dataset can be read: by its checksums where we wrote them, else in a process of its own."""
    key = _key(folder)
    if key in _CHECKED:
        return
    if not _verified(folder):
        _read_in_process({"dataset": str(folder.absolute())}, folder)
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
                _read_in_process(
                    {"format": data_map.format, "path": str(path.absolute()), "options": data_map.options}, path
                )
                _CHECKED.add(key)


def main() -> None:
    """Entry point of the process: read what the first line of the input names, and print what is wrong with it."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    job = json.loads(sys.stdin.readline())
    try:
        _read_dataset(Path(job["dataset"])) if "dataset" in job else _read_file(job)
    except InstepError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201  # the answer to the process that asked
    except MemoryError:
        print(json.dumps({"error": "it takes more memory than is allowed"}))  # noqa: T201  # as above
    else:
        print(json.dumps({}))  # noqa: T201  # as above


def _read_dataset(folder: Path) -> None:
    from instep.data.lerobot.reader import read_lerobot

    for episode in read_lerobot(folder):
        _touch(episode.columns)


def _read_file(job: Any) -> None:
    from instep.data.formats.readers import READERS

    for raw in READERS[job["format"]](Path(job["path"]), job["options"]):
        _touch(raw.columns)


def _touch(columns: Any) -> None:
    for column in columns.values():
        if is_image(column):
            np.asarray(column[0])
        else:
            np.asarray(column)


def _read_in_process(job: Any, source: Path) -> None:
    command = [sys.executable, "-c", "from instep.data.sandbox import main; main()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(  # noqa: S603  # our own module, no shell
            command,
            input=json.dumps(job) + "\n",
            capture_output=True,
            text=True,
            env=environment,
            timeout=2 * MAX_CPU_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"{str(source)!r} keeps its reader busy for more than {2 * MAX_CPU_S} s; it is refused."
        ) from None
    answer = done.stdout.strip().splitlines()
    if done.returncode or not answer:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise BadInput(f"{str(source)!r} makes its reader crash ({how}), so it is damaged or hostile.")
    error = json.loads(answer[-1]).get("error")
    if error:
        raise BadInput(str(error))


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
        if sha256(path) != known[name]:
            raise BadInput(f"{str(path)!r} is not as it was written: its SHA-256 differs, so it is damaged.")
    return True


def _key(path: Path) -> tuple[str, int, int]:
    """A file or folder as it stands now: a change of any file gives another key."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    stats = [file.stat() for file in files]
    return str(path.absolute()), sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0)
