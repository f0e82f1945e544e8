"""The page of faults says what the tests show: every fault has a row, every row its test, every test its number."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"


def marked() -> dict[int, set[str]]:
    """The tests by the number of the fault that they inject."""
    found: dict[int, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for decorator in map(ast.unparse, node.decorator_list):
                    if number := re.fullmatch(r"pytest\.mark\.fault\((\d+)\)", decorator):
                        found.setdefault(int(number[1]), set()).add(node.name)
    return found


def test_every_fault_has_a_row_whose_test_injects_it():
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.read_text().splitlines()]
    table = {int(row[0]): row for row in rows if row[0].isdigit()}
    assert sorted(table) == list(range(1, 46))
    known = marked()
    for number, row in table.items():
        state, test = row[4], row[5].strip("`") if len(row) > 5 else ""
        if state.startswith("not handled yet"):
            assert not test and number not in known, f"fault {number} has a test; say what it shows"
        else:
            assert state.split(",")[0].split(":")[0] in ("handled", "partly"), row
            assert test in known.get(number, ()), f"no test named {test!r} carries the number {number}"
