"""Published numbers are those of the result files, and result files say how each row was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness import keep_results

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture
def render():
    import render_results

    yield render_results
    sys.modules.pop("render_results")


def row(name, value, **more):
    return {"name": name, "value": value, "low": None, "high": None, "unit": "ms", "goal": None, "ok": None, **more}


def test_readme_and_results_page_show_what_the_result_files_say(render):
    assert render.stale(ROOT) == [], "run: python tools/render_results.py"


def test_a_number_that_was_edited_by_hand_is_found(render, tmp_path):
    for folder in ("docs/images", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("README.md", "docs/results.md", "docs/images/recordings.svg", "benchmarks/results/readme.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for path in FILES:
        (tmp_path / "benchmarks" / "results" / path.name).write_text(path.read_text())
    for path in (ROOT / "benchmarks").glob("*.py"):
        (tmp_path / "benchmarks" / path.name).write_text(path.read_text())
    page = tmp_path / "docs" / "results.md"
    page.write_text(page.read_text().replace("7.075 mrad", "6.075 mrad"))
    readme = tmp_path / "README.md"
    readme.write_text(readme.read_text().replace("16.6 ms", "6.6 ms"))
    assert len(render.stale(tmp_path)) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_file_says_of_each_row_when_where_and_how_it_was_measured(path):
    kept = json.loads(path.read_text())
    runs = {run["id"]: run for run in kept["runs"]}
    assert {row["run"] for row in kept["rows"]} == set(runs)
    for run in runs.values():
        assert {"date", "commit", "machine", "versions", "command"} <= set(run)
        assert all(run[name] for name in ("date", "commit", "machine", "versions", "command"))
    for row in kept["rows"]:
        assert set(row) == {"name", "value", "low", "high", "unit", "goal", "ok", "run"}
        assert (row["goal"] is None) == (row["ok"] is None)


def test_rows_of_a_partial_run_join_earlier_ones_and_a_whole_run_replaces_them(tmp_path):
    path = tmp_path / "some.json"
    keep_results(path, [row("a", 1.0), row("b", 2.0)], benchmark="some", command="first")
    keep_results(path, [row("b", float("nan")), row("c", 3.0)], benchmark="some", command="second", whole=False)
    kept = json.loads(path.read_text())
    command = {run["id"]: run["command"] for run in kept["runs"]}
    assert [(r["name"], r["value"], command[r["run"]]) for r in kept["rows"]] == [
        ("a", 1.0, "first"), ("b", None, "second"), ("c", 3.0, "second")
    ]  # fmt: skip
    keep_results(path, [row("a", 5.0)], benchmark="some", command="third")
    kept = json.loads(path.read_text())
    assert [r["value"] for r in kept["rows"]] == [5.0] and [r["command"] for r in kept["runs"]] == ["third"]
    assert kept["runs"][0]["versions"]["numpy"] and kept["runs"][0]["machine"]


def test_goals_of_two_tasks_are_judged_where_two_were_run():
    from transfer import goal_rows

    def paired(task, technique, other, low):
        return row(f"{task}: {technique} less {other}, robot by robot", low + 0.01, low=low, high=low + 0.02)

    rows = []
    for task, low, goals in (("a track", 0.01, [None, None]), ("b walk", -0.005, [False, True])):
        rows += [paired(task, "posterior", other, low) for other in ("hand ranges", "nominal training", "untouched")]
        rows.append(paired(task, "delta action", "untouched", 0.02))
        assert [one["ok"] for one in goal_rows(rows) if one["name"].startswith(("tasks where", "robots on"))] == goals
