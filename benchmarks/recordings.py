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
from machines.arms import so101, so101_delta, wam
from machines.common import pooled
from machines.free_pendulum import chaotic
from machines.kuka import kuka
from machines.pendula import double_pendulum, furuta, xl330
from machines.tossed_cube import cube

ROWS: dict[str, Callable[[Path, bool], list[dict[str, Any]]]] = {
    "so101": so101,
    "delta": so101_delta,
    "xl330": xl330,
    "furuta": furuta,
    "wam": wam,
    "double_pendulum": double_pendulum,
    "chaotic": chaotic,
    "cube": cube,
    "kuka": kuka,
}
QUICK = ("kuka", "cube")
TOGETHER = ("so101", "delta")
"""Rows of one process: the delta is learnt on the scenes that the first of them fits."""


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per number, rows in processes of their own; the cheap ones alone where `quick`."""
    names = list(only or (QUICK if quick else ROWS))
    groups = [[name for name in names if name in TOGETHER], *([name] for name in names if name not in TOGETHER)]
    parts = pooled(_rows, [(group, out, quick) for group in groups if group])
    found = {name: rows for part in parts for name, rows in part.items()}
    return [row for name in names for row in found[name]]


def _rows(names: Sequence[str], out: Path, quick: bool) -> dict[str, list[dict[str, Any]]]:
    made: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        began = time.perf_counter()
        made[name] = ROWS[name](out, quick)
        took = time.perf_counter() - began
        (out / f"{name}.json").write_text(json.dumps({"rows": made[name], "seconds": took}, indent=2))
    return made


if __name__ == "__main__":
    folder = Path("runs") / "recordings"
    folder.mkdir(parents=True, exist_ok=True)
    names = sys.argv[1:]
    path = Path(__file__).parent / "results" / "recordings.json"
    command = f"python -m benchmarks.recordings {' '.join(names)}"
    keep_results(path, run(folder, only=names), benchmark="recordings", command=command, whole=False)
