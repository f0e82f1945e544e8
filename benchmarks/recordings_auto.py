"""Recordings of real machines tuned as a user would, `instep tune DATA SCENE`, with at most one further option.

Nothing is named by hand: parameters, starts and method are what tune chooses. Each machine is judged on whole
recordings that were not fitted, beside the scene as given and a straight script around `scipy.optimize.least_squares`
with the same parameters, start values and time. `python -m benchmarks.recordings_auto xl330 so101 --budget=300` runs
some machines, 300 s of the processor each, and keeps their rows beside those of earlier runs; without names all run.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import keep_results
from machines.auto import BUDGET_S, MACHINES, QUICK_BUDGET_S, machine_rows
from machines.common import pooled

SLOW = ("wam7",)
"""Machines that a quick run leaves out."""


def run(out: Path, quick: bool = False, only: Sequence[str] = (), budget: float = BUDGET_S) -> list[dict[str, Any]]:
    """Rows of each machine, in processes of their own."""
    names = list(only or [name for name in MACHINES if not quick or name not in SLOW])
    parts = pooled(machine_rows, [(name, QUICK_BUDGET_S if quick else budget) for name in names])
    (out / "rows.json").write_text(json.dumps(dict(zip(names, parts, strict=True)), indent=2))
    return [row for part in parts for row in part]


if __name__ == "__main__":
    folder = Path("runs") / "recordings_auto"
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in sys.argv[1:] if not name.startswith("--budget=")]
    seconds = [float(name.partition("=")[2]) for name in sys.argv[1:] if name not in names] or [BUDGET_S]
    path = Path(__file__).parent / "results" / "recordings_auto.json"
    command = f"python -m benchmarks.recordings_auto {shlex.join(sys.argv[1:])}"
    rows = run(folder, only=names, budget=seconds[0])
    keep_results(path, rows, benchmark="recordings_auto", command=command, whole=not names)
