"""Measure against goals and peers: `python -m benchmarks NAME [--quick] [--only WORD...] [--out DIR]`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import CASES, RESULTS, Row, keep_results, plain_row
from instep.app.output import new_output, noted_outputs, remove_unfinished, write_json
from instep.core.errors import BadInput, InstepError, UnknownName
from instep.core.reading import read_json_table

FOLDER = Path(__file__).resolve().parent
QUOTES = '"'
_MARKS: dict[bool | None, str] = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}


def main(words: list[str] | None = None) -> int:
    """Run one benchmark: 0 if it meets its goals, 1 if a row misses one, 2 if it could not run."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measure against goals and peers.")
    parser.add_argument("name", nargs="?", default="", help="the benchmark; all are listed without a name")
    parser.add_argument("--quick", action="store_true", help="the same goals on fewer cases; the result is not kept")
    parser.add_argument("--only", nargs="+", default=[], help="cases with these words in their names; not kept")
    parser.add_argument("--out", type=Path, help="folder to write (default: a new one under runs/)")
    asked = parser.parse_args(words)
    if not asked.name:
        for name, path in benchmarks().items():
            Console().print(f"[bold]{name}[/]  {path.read_text(encoding='utf-8').splitlines()[0].strip(QUOTES)}")
        return 0
    with noted_outputs(words) as outputs:
        try:
            return measure(asked.name.replace("-", "_"), quick=asked.quick, out=asked.out, only=asked.only)
        except InstepError as error:
            remove_unfinished(outputs)
            print(f"benchmarks: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            kept = remove_unfinished(outputs)
            print(f"Stopped; {kept or 'nothing was kept'}.", file=sys.stderr)
            return 130


def measure(name: str, *, quick: bool, out: Path | None, only: Sequence[str] = ()) -> int:
    """Run one benchmark, print its table and keep a full run among the results."""
    found = benchmarks()
    if name not in found:
        raise UnknownName("benchmark", name, found)
    run = import_module(name).run
    if only and "only" not in signature(run).parameters:
        raise BadInput(f"The benchmark {name} has no single cases: leave out --only.")
    output = new_output("bench", out)
    try:
        found = run(output.folder, quick=quick, **({"only": only} if only else {}))
        rows = [plain_row(row) for row in found]
    except BaseException:
        if (output.folder / CASES).is_file():
            output.kept = f"what was measured so far is in {output.folder}; the same command with --out goes on there"
        raise
    Console().print(_table(name, rows))
    result = read_json_table(output.write({}))
    write_json(output.folder / "result.json", {**result, "benchmark": name, "quick": quick, "rows": rows})
    if not quick and not only:
        keep_results(RESULTS / f"{name}.json", rows, benchmark=name, command=f"python -m benchmarks {name}")
    missed = [row for row in rows if row["ok"] is False]
    Console().print(f"{len(missed)} of {sum(row['goal'] is not None for row in rows)} goals missed.")
    print(output.folder)
    return 1 if missed else 0


def benchmarks() -> dict[str, Path]:
    """Every module of this folder with a `run` function."""
    return {p.stem: p for p in sorted(FOLDER.glob("*.py")) if "\ndef run(" in p.read_text(encoding="utf-8")}


def _table(name: str, rows: list[Row]) -> Table:
    table = Table("what", "value", "95 % interval", "unit", "goal", "", title=f"benchmark {name}")
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        interval = "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}"
        table.add_row(row["name"], _number(row["value"]), interval, row["unit"], goal, _MARKS[row["ok"]])
    return table


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
