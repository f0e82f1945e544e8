"""The snippets of README and docs run, and every page is reachable."""

from __future__ import annotations

import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import instep

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import snippets  # noqa: E402

PAGES = [page for page in snippets.pages(ROOT) if snippets.snippets_of(ROOT, page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run(page):
    assert [str(snippet) for snippet in snippets.checked_page(ROOT, page) if snippet.problem] == []


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


TERMINAL_ONLY = {"bench", "doctor"}
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
