"""The page of limits says what the code does."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/formats/limits.md"
ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<limit>.+?) \| `(?P<module>[\w.]+):(?P<name>\w+)` \|$", re.MULTILINE)
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
ROWS = [match.groupdict() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def test_the_page_has_rows():
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_limit_of_the_page_is_that_of_the_code(row: dict[str, str]):
    number, _, unit = row["limit"].partition(" ")
    assert getattr(import_module(row["module"]), row["name"]) == float(number) * UNITS.get(unit, 1), row["what"]
