"""The verb bench: measure against goals and peers, in one run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.output import new_output, write_json
from instep.core.errors import BadInput, UnknownName

_MARKS: dict[bool | None, tuple[str, str]] = {
    True: ("yes", "[green]met[/]"),
    False: ("**no**", "[red]missed[/]"),
    None: ("", ""),
}


def bench(
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = "",
    /,
    *,
    quick: bool = False,
    list: bool = False,
    out: Path | None = None,
) -> int:
    """Measure against goals and peers in one run; exit 1 if a row misses its goal.

    Args:
        name: which benchmark; --list names them all.
        quick: fewer repeats, to see that it runs; the numbers are not for reports.
        list: name the benchmarks and stop.
        out: folder to write; a new one under runs/ where not given.

    """
    found = benchmarks()
    if list or not name:
        for known, path in found.items():
            Console().print(f"[bold]{known}[/]  {_first_line(path)}")
        return 0
    if name not in found:
        raise UnknownName("benchmark", name, found)
    output = new_output("bench", out)
    rows = [_plain(row) for row in _load(found[name]).run(output.folder, quick=quick)]
    Console().print(_table(name, rows))
    write_json(
        output.folder / "result.json",
        {**json.loads(output.write({}).read_text()), "benchmark": name, "quick": quick, "rows": rows},
    )
    if not quick and (page := results_page()) is not None:
        write_section(page, name, rows)
    missed = [row for row in rows if row.get("ok") is False]
    Console().print(f"{len(missed)} of {sum(r.get('goal') is not None for r in rows)} goals missed.")
    print(output.folder)
    return 1 if missed else 0


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a verdict of Python's own: NumPy's False is not False."""
    return row if row.get("ok") is None else {**row, "ok": bool(row["ok"])}


def benchmarks() -> dict[str, Path]:
    """The benchmarks of this checkout, or those that came with the package."""
    here = Path(__file__).resolve()
    for folder in (here.parents[4] / "benchmarks", here.parents[1] / "benchmarks"):
        if folder.is_dir():
            return {p.stem: p for p in sorted(folder.glob("*.py")) if "def run(" in p.read_text(encoding="utf-8")}
    return {}


def results_page() -> Path | None:
    """docs/results.md of a checkout, where full runs leave their numbers; None in an installed package."""
    page = Path(__file__).resolve().parents[4] / "docs" / "results.md"
    return page if page.parent.is_dir() else None


def write_section(page: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Replace one benchmark's section of the results page and leave the others as they are."""
    begin, end = f"<!-- bench {name} -->", f"<!-- end {name} -->"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [begin, f"## {name}", "", f"Made by `instep bench {name}` on {machine}.", ""]
    lines += ["| what | value | 95 % interval | goal | met |", "|---|---|---|---|---|"]
    for row in rows:
        met = _MARKS[row.get("ok")][0]
        goal = "" if row.get("goal") is None else f"{row['goal']:g}"
        interval = "" if not _finite(row.get("low")) else f"{_number(row['low'])} to {_number(row['high'])}"
        lines.append(f"| {row['name']} | {_valued(row)} | {interval} | {goal} | {met} |")
    section = "\n".join([*lines, end])
    text = page.read_text(encoding="utf-8") if page.is_file() else "# Results\n"
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        text = before + section + rest.partition(end)[2]
    else:
        text = text.rstrip() + "\n\n" + section + "\n"
    page.write_text(text, encoding="utf-8")


def _load(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))  # a benchmark may have helpers beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be loaded as a benchmark.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _first_line(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.split('"""')[1].strip().splitlines()[0] if '"""' in text else ""


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table("what", "value", "95 % interval", "unit", "goal", "", title=f"bench {name}")
    for row in rows:
        mark = _MARKS[row.get("ok")][1]
        goal = "" if row.get("goal") is None else f"{row['goal']:g}"
        interval = f"{_number(row['low'])} to {_number(row['high'])}" if _finite(row.get("low")) else ""
        table.add_row(row["name"], _number(row["value"]), interval, row["unit"], goal, mark)
    return table


def _finite(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _valued(row: dict[str, Any]) -> str:
    return _number(row["value"]) if row["unit"] in ("", "1") else f"{_number(row['value'])} {row['unit']}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
