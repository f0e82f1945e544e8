"""The structure benchmark counts what it says it counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = """
def {name}(values, limit):
    total = 0.0
    for value in values:
        if value > limit:
            total += value * 2
        else:
            total -= value / 3
    return total + {number}
"""


@pytest.fixture
def bench():
    import structure

    yield structure
    for name in ("structure", "repeated_passages", "render_results", "harness", "snippets"):
        sys.modules.pop(name, None)


def test_a_copy_with_other_names_and_numbers_is_one_repeated_passage(bench, tmp_path):
    (tmp_path / "one.py").write_text("import os\n" + COPIED.format(name="first", number=1))
    (tmp_path / "two.py").write_text(COPIED.format(name="second", number=7))
    (tmp_path / "other.py").write_text("def third(x):\n    return x\n")
    [passage] = bench.repeated_passages(tmp_path)
    assert passage.length == 8 and {passage.first.name, passage.second.name} == {"one.py", "two.py"}


def test_names_used_twice_long_signatures_and_missing_docstrings_are_listed(bench, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    long = "def wide(self, a, b, c, d, e, f, *, g):\n    return a\n"
    (tmp_path / "a" / "same.py").write_text(
        '"""One."""\n\n\nclass Thing:\n    """A."""\n\n    ' + long.replace("\n ", "\n     ")
    )
    (tmp_path / "b" / "same.py").write_text('"""Two."""\n\n\nclass Thing:\n    """B."""\n')
    report = bench.source_report(tmp_path)
    assert report["module names"] == {"same": 2} and report["class names"] == {"Thing": 2}
    assert report["long signatures"] == ["a/same.py:7 wide (7)"]
    assert report["no docstring"] == ["a/same.py:7 Thing.wide"]


def test_the_benchmark_gives_its_rows(bench, tmp_path):
    rows = bench.run(tmp_path, quick=True)
    assert all(set(row) == {"name", "value", "low", "high", "unit", "goal", "ok"} for row in rows)
    values = {row["name"]: row["value"] for row in rows}
    assert values["modules"] > 50 and values["lines"] > 1000
    assert (tmp_path / "structure.json").is_file()
