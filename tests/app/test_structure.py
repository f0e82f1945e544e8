"""The structure benchmark counts what it says it counts."""

from __future__ import annotations

import re
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


def test_names_used_twice_long_signatures_small_functions_and_missing_docstrings_are_listed(bench, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    long = "def wide(self, a, b, c, d, e, f, *, g):\n    return a\n"
    (tmp_path / "a" / "same.py").write_text(
        '"""One."""\n\n\nclass Thing:\n    """A."""\n\n    ' + long.replace("\n ", "\n     ")
    )
    (tmp_path / "b" / "same.py").write_text('"""Two."""\n\n\nclass Thing:\n    """B."""\n')
    calls = "def f():\n    return _g() + _h() + _h()"
    once, twice = ("def _g():\n    return 1", "def _h():\n    return 2")
    (tmp_path / "c.py").write_text("\n\n\n".join(('"""A."""', calls, once, twice)))
    report = bench.source_report(bench.parsed(tmp_path))
    assert report["private functions called once, at most 8 lines"] == ["c.py:8 _g"]
    assert report["module names used twice"] == ["same"] and report["public class names used twice"] == ["Thing"]
    assert report["functions of more than 6 parameters"] == ["a/same.py:7 wide (7)"]
    assert report["public names without docstring"] == ["a/same.py:7 Thing.wide", "c.py:4 f"]


def test_a_circle_of_imports_is_found_also_inside_functions(bench, tmp_path):
    (tmp_path / "a.py").write_text('"""A."""\n\n\ndef f():\n    from .b import g\n    return g\n')
    (tmp_path / "b.py").write_text('"""B."""\n\nfrom .a import f\n\n\ndef g():\n    return f\n')
    (tmp_path / "c.py").write_text('"""C."""\n\nfrom .a import f\n')
    assert bench.circles(bench.parsed(tmp_path)) == [["instep.a", "instep.b"]]


def test_long_sentences_and_cells_are_listed_without_code_and_links(bench, tmp_path):
    (tmp_path / "docs").mkdir()
    words = " ".join(["word"] * 40)
    (tmp_path / "README.md").write_text(
        f"Short. [short]({'x' * 200}).\n\n```sh\n{words}\n```\n\n| a | {words} |\n\n{words}.\n"
    )
    sentences, cells = bench.prose_report(tmp_path)
    assert len(sentences) == 1 and len(cells) == 1


def test_the_repository_is_within_its_budgets(bench, tmp_path):
    rows = bench.run(tmp_path, quick=True)
    assert all(set(row) == {"name", "value", "low", "high", "unit", "goal", "ok"} for row in rows)
    values = {row["name"]: row["value"] for row in rows}
    assert values["modules"] > 50 and values["lines"] > 1000
    above = {row["name"]: row["value"] for row in rows if row["ok"] is False}
    assert {name: value for name, value in above.items() if value > bench.CEILINGS.get(name, 0)} == {}
    assert (tmp_path / "structure.json").is_file()


def test_the_walks_of_the_architecture_name_files_that_exist_and_at_most_twelve_each():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for walk in text.split("\n## ")[1:]:
        files = re.findall(r"`([a-z_/]+\.py)`", walk)
        assert 8 <= len(files) <= 12, walk.splitlines()[0]
        assert [name for name in files if not (ROOT / "src" / "instep" / name).is_file()] == []
