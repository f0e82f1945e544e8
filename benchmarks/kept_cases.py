"""Cases of a long benchmark that are kept as they end, so that one that was interrupted goes on where it was.

A case is taken over only where the package and the benchmarks are the same to the byte as when it was measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from instep.app.output import write_json

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


@cache
def code_digest() -> str:
    """A digest of every Python file of the package and the benchmarks."""
    digest = hashlib.sha256()
    for root in (_PROJECT / "src", _PROJECT / "benchmarks"):
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(_PROJECT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
