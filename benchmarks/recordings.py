"""Identified scenes against recordings of real machines they were not fitted to, machine by machine.

Each machine is independent: `python -m benchmarks recordings` runs all of them,
`python -m benchmarks.recordings so101 xl330` some, and keeps their rows beside those of earlier runs. Splits are by
whole recordings, never by rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import keep_results
from machines.arms import so101
from machines.common import pooled
from machines.kuka import kuka
from machines.pendula import furuta, xl330
from machines.tossed_cube import cube

ROWS: dict[str, Callable[[Path, bool], list[dict[str, Any]]]] = {
    "so101": so101, "xl330": xl330, "furuta": furuta, "cube": cube, "kuka": kuka,
}  # fmt: skip
QUICK = ("kuka", "cube")


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per number, each machine in a process of its own; the cheap ones alone if `quick`."""
    names = list(only or (QUICK if quick else ROWS))
    return [row for rows in pooled(_rows, [(name, out, quick) for name in names]) for row in rows]


def _rows(name: str, out: Path, quick: bool) -> list[dict[str, Any]]:
    began = time.perf_counter()
    rows = ROWS[name](out, quick)
    (out / f"{name}.json").write_text(json.dumps({"rows": rows, "seconds": time.perf_counter() - began}, indent=2))
    return rows


if __name__ == "__main__":
    folder = Path("runs") / "recordings"
    folder.mkdir(parents=True, exist_ok=True)
    names = sys.argv[1:]
    path = Path(__file__).parent / "results" / "recordings.json"
    command = f"python -m benchmarks.recordings {' '.join(names)}"
    keep_results(path, run(folder, only=names), benchmark="recordings", command=command, whole=False)
