"""Past runs are listed and opened, and a run that fails leaves no folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from instep.app.cli import main
from instep.app.output import new_output, next_folder
from instep.app.verbs.view import list_runs
from instep.core.errors import BadInput
from instep.report.page import Headline, HtmlReport


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated() -> Path:
    assert main(["eval", "hold", "pusht", "--seeds", "1", "--videos", "0"]) == 0
    return Path("runs/eval-001")


def test_past_runs_are_listed_the_newest_first_and_opened_by_number(capsys) -> None:
    evaluated()
    assert main(["scene", "camera", "cartpole", "--out", "runs/scene-camera-001"]) == 0
    capsys.readouterr()
    assert main(["runs"]) == 0
    newest, oldest = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert newest[:3] == ["1", "scene-camera", "cartpole"] and newest[5] == "runs/scene-camera-001"
    assert oldest[:3] == ["2", "eval", "hold pusht"] and "success" in oldest[3]
    assert oldest[5] == "runs/eval-001/report.html"
    for which in ("2", "eval-001", "runs/eval-001"):
        assert main(["runs", "--open", which]) == 0
        assert capsys.readouterr().out.strip() == "runs/eval-001/report.html"
    assert main(["runs", "--open", "1"]) == 2
    assert "has no page" in capsys.readouterr().err
    assert main(["runs", "--open", "7"]) == 2
    assert "There is no run '7'" in capsys.readouterr().err


def test_where_nothing_was_run_the_list_says_so(capsys) -> None:
    assert main(["runs"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "No runs under 'runs'" in printed.err
    Path("runs/notes").mkdir(parents=True)
    Path("runs/notes/config.toml").write_text("a list of mine")
    assert list_runs() == []


@pytest.mark.parametrize("words", [["eval", "no_such_policy", "pusht"], ["run", "hold", "robot:ws://127.0.0.1:9"]])
def test_a_run_that_fails_leaves_no_folder(words, capsys) -> None:
    assert main(words) == 2
    assert not list(Path().glob("runs/*")), capsys.readouterr().err
    assert main([*words, "--out", "mine"]) == 2
    assert not Path("mine").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no compiled object yet for <Library 'f'>")])
def test_ctrl_c_removes_what_holds_nothing_and_says_so(error, monkeypatch, capsys) -> None:
    """While numba compiles, a Ctrl-C comes as an error of its own."""

    def interrupted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("instep.app.verbs.evaluate.evaluate_policies", interrupted)
    assert main(["eval", "hold", "pusht"]) == 130
    assert "nothing was kept" in capsys.readouterr().err and not list(Path().glob("runs/*"))


def test_ctrl_c_keeps_finished_batches_and_says_how_to_go_on(monkeypatch, capsys) -> None:
    import instep.app.verbs.evaluate as verb

    run_all = verb.evaluate_policies

    def interrupted(*words: object, **options: object) -> None:
        run_all(*words, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "evaluate_policies", interrupted)
    assert main(["eval", "hold", "pusht", "--seeds", "1", "--videos", "0"]) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "finished batches are kept; the same command with --out runs/eval-001 goes on" in said
    assert list(Path("runs/eval-001/episodes").iterdir())


def test_folders_of_a_verb_are_numbered_whatever_lies_beside_them() -> None:
    for name in ("eval-007", "eval-9old", "eval-best", "other-008"):
        (Path("runs") / name).mkdir(parents=True)
    assert next_folder("eval") == Path("runs/eval-008")


def test_a_folder_that_cannot_be_written_or_is_not_ours_is_refused(tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(BadInput, match="was not written by instep"):
        new_output("run", tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="give another --out"):
        new_output("run", tmp_path / "file" / "below")


def test_the_conclusion_of_a_page_is_in_the_result(tmp_path) -> None:
    output = new_output("gap", tmp_path / "x")
    output.write({}, status="converged")  # of a fit, which is not that of its page
    page = output.page(HtmlReport("t", "s", Headline("bad", "It is 3 mm off.")))
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert result["status"] == "converged" and [run.verdict for run in list_runs(tmp_path)] == ["bad"]
    assert page.name == "report.html" and (result["headline"], result["verdict"]) == ("It is 3 mm off.", "bad")
