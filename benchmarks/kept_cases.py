"""Cases of a long benchmark that are kept as they end, so that one that was interrupted goes on where it was.

A case is taken over only where the package and the benchmarks are the same to the byte as when it was measured.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from functools import cache
from pathlib import Path
from typing import Any

from instep.app.output import write_json
from rows import with_progress
from tuning.jobs import Task, pool

FILE = "cases.json"
_PROJECT = Path(__file__).resolve().parents[1]
Case = dict[str, Any]


class KeptCases:
    """The cases of a benchmark in `cases.json` of a folder, by key, in the order in which they ended."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        found: list[Case] = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else []
        self._cases = {case["key"]: case for case in found if case.get("code") == code_digest()}

    def __contains__(self, key: str) -> bool:
        return key in self._cases

    def measured(self, key: str, measure: Callable[[], Case]) -> Case:
        """The case of that key: as it was measured before, or measured now and written at once."""
        if key not in self._cases:
            self._cases[key] = {**measure(), "key": key, "code": code_digest()}
            write_json(self._path, list(self._cases.values()))
        return self._cases[key]

    def measured_in_processes(self, what: str, tasks: Mapping[str, Task]) -> list[Case]:
        """The cases of these keys, one per core at a time in processes of their own; each is written as it ends.

        A case that is measured now notes the time of the processor that it took as `cpu_s` [s].
        """
        missing = {key: task for key, task in tasks.items() if key not in self}
        if missing:
            with pool() as submit:
                begun = {submit((_timed, task)): key for key, task in missing.items()}
                for done in with_progress(what, len(begun), as_completed(begun)):
                    self.measured(begun[done], done.result)
        return [self._cases[key] for key in tasks]

    def cpu_s(self) -> float:
        """Time of the processor that the cases measured in processes took [s]."""
        return sum(float(case.get("cpu_s", 0.0)) for case in self._cases.values())


def _timed(function: Callable[..., Case], arguments: tuple[Any, ...]) -> Case:
    began = time.process_time()
    return {**function(*arguments), "cpu_s": time.process_time() - began}


@cache
def code_digest() -> str:
    """A digest of every Python file of the package and the benchmarks."""
    digest = hashlib.sha256()
    for root in (_PROJECT / "src", _PROJECT / "benchmarks"):
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(_PROJECT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
