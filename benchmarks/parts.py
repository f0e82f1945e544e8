"""Parts of a benchmark that were run alone, maybe on another machine: the file that such a run writes, and how its rows
join the published results.

A part's file holds the rows, and when, with which code, where and by which command they were measured.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from instep.app.output import write_json
from instep.app.verbs.bench import keep_results, merge_results, plain_row, provenance
from rows import Row

RESULTS = Path(__file__).resolve().parent / "results"


def write_part(file: Path, rows: Sequence[Row], benchmark: str, arguments: Sequence[str]) -> None:
    """Write the rows of a run with these arguments, the first of which is the folder of its output, and print them."""
    command = f"python benchmarks/{benchmark}.py {shlex.join(['OUT', *arguments[1:]])}"
    made = {**provenance(RESULTS), "command": command}
    write_json(file, {"made": made, "rows": [plain_row(row) for row in rows]})
    for row in rows:
        print(row["name"], row["value"], row["low"], row["high"], row["ok"])


def keep_parts(
    results: Path,
    files: Sequence[Path],
    note: str,
    judged: Callable[[Sequence[Row]], Sequence[Row]] | None = None,
) -> None:
    """Add the rows of runs to the published results; `judged` makes rows that follow from all of them."""
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        merge_results(results, found["rows"], results.stem, {**found["made"], "note": note}, whole=False)
    if judged is not None:
        rows = judged(json.loads(results.read_text(encoding="utf-8"))["rows"])
        command = f"python benchmarks/{results.stem}.py keep"
        keep_results(results, rows, benchmark=results.stem, command=command, whole=False, note="From the rows above.")
