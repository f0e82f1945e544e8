"""Writes every published number: `docs/results.md`, the README's table and the figure of the recordings.

The numbers are those of `benchmarks/results/*.json`, which `python -m benchmarks NAME` writes. A test compares.

    python tools/render_results.py            # write
    python tools/render_results.py --check    # list what differs and exit 1
"""

from __future__ import annotations

import ast
import difflib
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ORDER = (
    "recordings", "recordings_auto", "tune", "sync", "sync_quiet", "corrections", "trust", "soak", "policies",
    "policies_images", "eval", "gap", "attribution", "modes", "statistics", "physics", "models", "engines", "raster",
    "raster_gpu", "splat", "recorder", "protocols", "structure",
)  # fmt: skip
"""Sections of the results page; benchmarks that are not named here follow in the order of their names."""
ROWS = 4
"""Rows of one benchmark on the page; all missed goals are shown, whatever their number."""
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
INTRODUCTION = """\
# Results

`python -m benchmarks NAME` writes its numbers into `benchmarks/results/NAME.json`; `python tools/render_results.py`
renders this page from those files. The page shows every missed goal and the first rows that met theirs; the files
hold all rows. Intervals are 95 %. The lines under a table say when, where and with which code it was measured.

"""


@dataclass(frozen=True, slots=True)
class Headline:
    """A row of the README's table: one number beside what it is compared with, both by benchmark and row name."""

    label: str
    ours: tuple[str, str]
    against: tuple[str, str] | None = None
    against_label: str = ""
    larger_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The kept numbers of one benchmark."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    runs: Sequence[Mapping[str, Any]]
    about: str

    def row(self, name: str) -> Mapping[str, Any]:
        """The row of that name."""
        found = [row for row in self.rows if row["name"] == name]
        if not found:
            near = difflib.get_close_matches(name, [row["name"] for row in self.rows], n=1)
            raise KeyError(f"benchmarks/results/{self.name}.json has no row {name!r}; near: {near}")
        return found[0]


def load_results(root: Path) -> dict[str, Result]:
    """All kept results, in the order of the page."""
    paths = {path.stem: path for path in sorted((root / "benchmarks" / "results").glob("*.json"))}
    names = [name for name in ORDER if name in paths] + [name for name in paths if name not in ORDER]
    out: dict[str, Result] = {}
    for name in names:
        table = json.loads(paths[name].read_text(encoding="utf-8"))
        about = table.get("about") or _docstring(root / "benchmarks" / f"{table['benchmark']}.py")
        out[name] = Result(name, table["rows"], table["runs"], about)
    return out


def load_headlines(root: Path) -> list[Headline]:
    """The rows of the README's table, from `benchmarks/results/readme.toml`."""
    text = (root / "benchmarks" / "results" / "readme.toml").read_text(encoding="utf-8")
    return [Headline(**entry) for entry in tomllib.loads(text)["number"]]


def rendered(root: Path) -> dict[Path, str]:
    """The text of every file that carries numbers."""
    results, headlines = load_results(root), load_headlines(root)
    readme = (root / "README.md").read_text(encoding="utf-8")
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    return {
        root / "docs" / "results.md": INTRODUCTION + "\n".join(_section(result) for result in results.values()),
        root / "README.md": f"{before}{BEGIN}\n{_headlines(results, headlines)}\n{END}{after}" if rest else readme,
        root / "docs" / "images" / "recordings.svg": _figure(results, headlines),
    }


def stale(root: Path) -> list[str]:
    """Lines of README, results page and figure that are not what the result files say."""
    out: list[str] = []
    for path, text in rendered(root).items():
        old = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        changed = difflib.unified_diff(old, text.splitlines(), lineterm="", n=0)
        out += [f"{path.relative_to(root)}: {line}" for line in changed if line[:1] == "+" and line[:3] != "+++"]
    return out


def _section(result: Result) -> str:
    several = len(result.runs) > 1
    lines = [
        f"## {result.name}",
        "",
        result.about,
        "",
        f"| what | value | 95 % interval | goal | met |{' run |' * several}",
    ]
    lines.append("|---|---|---|---|---|" + "---|" * several)
    goals = [row for row in result.rows if row["goal"] is not None] or list(result.rows)
    first = {row["name"] for row in goals[:ROWS]}
    shown = [row for row in goals if row["ok"] is False or row["name"] in first]
    for row in shown:
        met = {True: "yes", False: "**no**", None: ""}[row["ok"]]
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        interval = "" if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}"
        cells = [row["name"], valued(row), interval, goal, met, *([str(row["run"])] if several else [])]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    more, met = (
        len(result.rows) - len(shown),
        sum(1 for row in goals if row["ok"]) - sum(1 for row in shown if row["ok"]),
    )
    others = (
        [f"{more} more rows, {met} of them with a goal that is met: `benchmarks/results/{result.name}.json`.", ""]
        if more
        else []
    )
    return "\n".join([*lines, "", *others, *_runs(result.runs)])


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = list[str]()
    for run in runs:
        which = f"Run {run['id']}: " if len(runs) > 1 else ""
        note = f" {run['note']}" if run.get("note") else ""
        lines.append(f"- {which}{run['date']}, `{run['commit']}`, {run['machine']}: `{run['command']}`.{note}")
    return [*lines, ""]


def _headlines(results: Mapping[str, Result], headlines: Sequence[Headline]) -> str:
    lines = ["| measured | compared with | instep |", "|---|---|---|"]
    for line in headlines:
        ours = results[line.ours[0]].row(line.ours[1])
        shown, other = short(ours), line.against_label
        if line.against is not None:
            against = results[line.against[0]].row(line.against[1])
            worse = (ours["value"] < against["value"]) == line.larger_is_better
            other, shown = f"{short(against)} ({line.against_label})", f"{shown}{' (worse)' if worse else ''}"
        if ours["ok"] is False:
            shown += f" (goal {ours['goal']:g} missed)"
        lines.append(f"| {line.label} | {other} | {shown} |")
    return "\n".join(lines)


def _figure(results: Mapping[str, Result], headlines: Sequence[Headline]) -> str:
    """Bars of the error on recordings that were not fitted, relative to what each is compared with, as SVG."""
    bars = [line for line in headlines if line.against is not None and line.ours[0] == "recordings"]
    left, width, height = 330, 420, 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 150}" height="{height * len(bars) + 50}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="18">error on held-out recordings, '
        "relative to the published or commanded values (line)</text>",
    ]
    for k, line in enumerate(bars):
        ours, against = (results[b].row(r) for b, r in (line.ours, line.against or line.ours))
        share, y = ours["value"] / against["value"], 34 + k * height
        colour = "#c1440e" if share > 1 else "#2f6f9f"
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{line.label}</text>')
        parts.append(
            f'<rect x="{left}" y="{y}" width="{width * min(share, 1.6) / 1.6:.1f}" height="18" fill="{colour}"/>'
        )
        parts.append(f'<text x="{left + width * min(share, 1.6) / 1.6 + 6:.1f}" y="{y + 14}">{share:.0%}</text>')
    line_x = left + width / 1.6
    parts.append(f'<path d="M{line_x:.1f} 28 V{34 + len(bars) * height}" stroke="#222" stroke-dasharray="4 3"/></svg>')
    return "\n".join(parts) + "\n"


def number(value: float | None) -> str:
    """Four digits, thousands apart; a dash for what was not measured."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def valued(row: Mapping[str, Any]) -> str:
    """The value with its unit."""
    return number(row["value"]) if row["unit"] in ("", "1") else f"{number(row['value'])} {row['unit']}"


def short(row: Mapping[str, Any]) -> str:
    """The value in three digits with its unit."""
    value = float(row["value"])
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text if row["unit"] in ("", "1") else f"{text} {row['unit']}"


def _docstring(path: Path) -> str:
    if not path.is_file():
        return ""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0]


def main(words: Sequence[str]) -> int:
    """Write all files, or say what differs."""
    if "--check" in words:
        found = stale(ROOT)
        print("\n".join(found) or "All numbers agree with benchmarks/results.")
        return 1 if found else 0
    for path, text in rendered(ROOT).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
