"""The command line as a whole: groups of options, expert options in a file, completion, `python -m instep`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from instep.app.arguments import MARKERS, Expert, Options, expert_help, with_expert_options
from instep.app.cli import VERBS, main
from instep.core.errors import UnknownName
from instep.core.world import options_dataclass


@options_dataclass
class Given:
    """Options of a verb."""

    steps: int = 10
    """how many steps."""
    spread: Expert[float | None] = None
    """spread of the starts
    [rad]."""
    names: Expert[tuple[str, ...]] = ("a",)
    """which ones."""
    quiet: Expert[bool] = False
    """say nothing."""


USUAL = Given()


def verb(args: Options[Given] = USUAL) -> Given:
    """Give the options back."""
    return args


def test_expert_options_come_from_a_file_and_have_their_types(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('spread = 2\nnames = ["b", "c"]\nquiet = true\n')
    function, rest = with_expert_options(verb, ["--steps", "3"], file)
    given = tyro.cli(function, args=rest, config=MARKERS)
    assert given == Given(steps=3, spread=2.0, names=("b", "c"), quiet=True)
    file.write_text("sprad = 2\n")
    with pytest.raises(UnknownName, match="Did you mean 'spread'"):
        with_expert_options(verb, [], file)


def test_expert_options_among_words_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("spread = 2\n")
    words = ["--names", "b", "c", "--steps", "3", "--quiet", "--spread", "4"]
    function, rest = with_expert_options(verb, words, tmp_path / "mine.toml")
    given = tyro.cli(function, args=rest, config=MARKERS)
    assert rest == ["--steps", "3"] and given == Given(steps=3, spread=4.0, names=("b", "c"), quiet=True)


def test_the_help_lists_expert_options_with_their_defaults() -> None:
    assert expert_help(verb)[1:] == [
        "  spread: spread of the starts [rad].",
        "  names: which ones. (default: ('a',))",
        "  quiet: say nothing. (default: False)",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    words = [name.split() for name in VERBS]
    assert all(rest[-1] in script for group, *rest in words if rest and group not in VERBS) and "--port" in script


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "instep", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("instep 0.")


def test_a_file_of_options_that_is_not_named_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--options"]) == 2
    assert "takes a TOML file" in capsys.readouterr().err
