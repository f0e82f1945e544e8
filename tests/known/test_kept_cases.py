"""Cases of a long benchmark are kept as they end, and measured again only where the code has changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as runner

import harness


def test_a_case_that_was_kept_is_not_measured_again(tmp_path, monkeypatch):
    asked: list[str] = []

    def measure(name: str, value: float) -> dict[str, object]:
        asked.append(name)
        return {"value": value}

    first = harness.KeptCases(tmp_path)
    first.measured("a", lambda: measure("a", 1.0))
    again = harness.KeptCases(tmp_path)
    assert "a" in again and "b" not in again
    assert [again.measured(key, lambda key=key: measure(key, 2.0))["value"] for key in "ab"] == [1.0, 2.0]
    assert asked == ["a", "b"]
    assert [case["key"] for case in json.loads((tmp_path / "cases.json").read_text())] == ["a", "b"]
    monkeypatch.setattr(harness, "code_digest", lambda: "of other code")
    assert "a" not in harness.KeptCases(tmp_path)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_benchmark_that_is_stopped_keeps_its_cases(tmp_path: Path, monkeypatch, capsys, keeps: bool):
    """Only a folder in which nothing was measured is removed."""
    script = tmp_path / "stopped.py"
    write = '(out / "cases.json").write_text("[]")' if keeps else "pass"
    script.write_text(f"def run(out, quick=False):\n    {write}\n    raise KeyboardInterrupt\n")
    monkeypatch.setattr(runner, "benchmarks", lambda: {"stopped": script})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stopped", raising=False)
    assert runner.main(["stopped", "--out", str(tmp_path / "out")]) == 130
    assert (tmp_path / "out" / "cases.json").is_file() == keeps
    said = capsys.readouterr().err
    assert ("goes on there" in said) == keeps and ("nothing was kept" in said) != keeps
