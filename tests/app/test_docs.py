"""Every command of README, docs and help runs, slow ones with --nightly, and every page is reachable."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import instep
import snippets
from instep.app.cli import VERBS, main

ROOT = Path(__file__).resolve().parents[2]

PAGES = [page for page in snippets.pages(ROOT) if snippets.snippets_of(ROOT, page)]
BLOCKS = [snippet for page in PAGES for snippet in snippets.snippets_of(ROOT, page)]
SLOW = [page for page in PAGES if any(snippets.mark_of(s.mark).slow for s in snippets.snippets_of(ROOT, page))]
NOT_RUN = {
    "it downloads and installs",
    "the address is of a Ray cluster",
    "the checkpoint is one that LeRobot trained",
    "needs a CUDA device",
    "the photographs are yours",
}
"""Reasons for which a block is parsed and never run."""


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_snippets_of_a_page_run(page, pytestconfig):
    recordings = Path(pytestconfig.getoption("--recordings"))
    done = snippets.run_page(ROOT, page, recordings=recordings)
    assert [str(snippet) for snippet in done if snippet.problem] == []


@pytest.mark.nightly
@pytest.mark.timeout(7300)
@pytest.mark.parametrize("page", SLOW, ids=page_name)
def test_the_slow_snippets_of_a_page_run(page, pytestconfig):
    recordings = Path(pytestconfig.getoption("--recordings"))
    done = snippets.checked_page(ROOT, page, slow=True, recordings=recordings)
    assert [str(snippet) for snippet in done if snippet.problem] == []


def test_a_block_is_not_run_only_for_a_known_reason():
    marks = [snippets.mark_of(snippet.mark) for snippet in BLOCKS]
    assert {mark.reason for mark in marks if mark.parse} == NOT_RUN


def typed(words: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """A command without the folder that it writes to, and without the sign that it runs in the background."""
    pairs = zip(words, ("", *words), strict=False)
    return tuple(word for word, before in pairs if "--out" not in (word, before) and word != "&")


RUN = {
    typed(words)
    for block in BLOCKS
    if block.language == "sh" and not snippets.mark_of(block.mark).parse
    for words in snippets.commands(block.code)
}
"""Commands of all pages that are run, now or nightly."""
INLINE = snippets.inline_commands(ROOT)
MACHINES = [
    command
    for command in INLINE
    if command.page == "docs/machines.md" and command.words[1] in ("tune", "torque") and command.complete
]
"""Commands in the table of recorded machines, which run for as long as a budget allows."""


@pytest.mark.parametrize("command", INLINE, ids=str)
def test_a_command_within_text_exists_and_is_run(command):
    assert command.problem == ""
    if command.complete:
        assert typed(command.words) in RUN or command in MACHINES, "a complete command is run by a block of some page"


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", MACHINES, ids=str)
def test_a_command_of_the_table_of_machines_runs(command, recordings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recordings").symlink_to(recordings)
    budget = [] if command.words[1] == "torque" else ["--budget", "60s"]
    assert main([*command.words[1:], *budget, "--out", "out"]) in (0, 1)
    assert Path("out/report.html").is_file()


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_shows_examples_that_the_docs_run(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    shown = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    assert shown and [line.strip() for line in shown] == list(VERBS[verb].examples)
    for line in shown:
        [words] = snippets.commands(line)
        assert words[1 : 1 + len(verb.split())] == verb.split()
        assert typed(words) in RUN


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("instep gap data pusht --plain", ""),
        ("instep gap data pusht --no-such-option", "refused"),
        ("instep mesure data", "no verb"),
        ("make no-such-target", "no target"),
        ("pip install -e '.[no_such_extra]'", "no extra"),
        ("python examples/no_such_file.py", "there is no"),
        ("curl example.org", "not checked"),
    ],
)
def test_a_command_that_does_not_exist_is_found_without_running_it(code, problem):
    [words] = snippets.commands(code)
    found = snippets.wrong_command(ROOT, words)
    assert problem in found if problem else found == ""


def test_a_block_that_fails_is_reported_with_its_line(tmp_path):
    page = ROOT / "docs" / "index.md"
    run = snippets.Page(ROOT, execute=True, slow=False)
    good = snippets.Snippet(str(page), 3, "python", "", "x = 1\n")
    bad = snippets.Snippet(str(page), 9, "python", "", "x = x + 1\nx / 0\n")
    assert run.checked(good).problem == ""
    assert "ZeroDivisionError" in run.checked(bad).problem and ":11" in run.checked(bad).problem


def test_every_public_name_exists():
    packages = ["instep", *(f"instep.{found.name}" for found in pkgutil.iter_modules(instep.__path__) if found.ispkg)]
    modules = [import_module(package) for package in packages]
    absent = [f"{m.__name__}.{name}" for m in modules for name in getattr(m, "__all__", ()) if not hasattr(m, name)]
    assert absent == []


def test_every_page_is_in_the_site():
    text = (ROOT / "mkdocs.yml").read_text()
    missing = [str(page.relative_to(ROOT / "docs")) for page in snippets.pages(ROOT)[1:]]
    assert [page for page in missing if page not in text] == []


TERMINAL_ONLY = {"doctor"}
"""Commands for developers of instep and for its installation; they have nothing to offer in Python."""
VERB_PAGES = [page for page in sorted((ROOT / "docs" / "verbs").glob("*.md")) if page.name != "index.md"]


@pytest.mark.parametrize("page", VERB_PAGES, ids=lambda page: page.stem)
def test_the_page_of_a_command_starts_with_it_and_shows_a_small_image(page):
    text = page.read_text(encoding="utf-8")
    first = next(snippet for snippet in snippets.snippets_of(ROOT, page) if snippet.language == "sh")
    assert f"instep {page.stem.replace('_', ' ')}" in first.code
    shown = [(page.parent / name).resolve() for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)]
    assert shown and all(image.is_file() for image in shown)
    assert {image.name: image.stat().st_size for image in shown if image.stat().st_size > 200_000} == {}


@pytest.mark.parametrize("page", [page for page in VERB_PAGES if page.stem not in TERMINAL_ONLY], ids=lambda p: p.stem)
def test_the_page_of_a_command_does_the_same_in_python(page):
    shown = re.sub(r"<!-- hidden.*?-->", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert re.findall(r"^```(sh|python)$", shown, re.M)[:2] == ["sh", "python"]
