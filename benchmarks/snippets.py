"""Snippets of README and docs: every fenced block is executed or checked.

A page runs in a folder of its own. Its `python` blocks share one namespace and its `sh` blocks are run line by line, in
the order of the page, so that a page may record data first and read it afterwards. A comment before a block says what
holds for it:

    <!-- snippet: parse -->      commands with placeholders, robots or hours: verb and options are checked, nothing runs
    <!-- snippet: slow -->       runs only where slow snippets are asked for; parsed (compiled) otherwise
    <!-- snippet: needs NAME --> runs where the module NAME can be imported; parsed (compiled) otherwise
    <!-- snippet: exit 1 -->     the last command is expected to end with this code

A block inside an HTML comment runs and is not shown. `toml` and `json` blocks are parsed. Other languages are not code.

    python benchmarks/snippets.py docs/gap.md [--slow]
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro

from instep.app import cli
from instep.core.records import frozen_dataclass

FENCE = re.compile(
    r"(?:<!-- snippet: (?P<mark>[^>]*?) -->\s*\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
CODE = ("python", "sh", "toml", "json")
TIMEOUT = 600.0
"""Longest run of one page [s]."""


@frozen_dataclass
class Snippet:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    mark: str
    code: str
    executed: bool = False
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language}) {self.problem}".rstrip()


def pages(root: Path) -> list[Path]:
    """README and all pages of the docs."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def snippets_of(root: Path, page: Path) -> list[Snippet]:
    """The blocks of a page that are code."""
    text = page.read_text(encoding="utf-8")
    found = (m for m in FENCE.finditer(text) if m["language"] in CODE)
    name = str(page.relative_to(root))
    return [
        Snippet(name, text.count("\n", 0, m.start("code")), m["language"], (m["mark"] or "").strip(), m["code"])
        for m in found
    ]


def checked_pages(root: Path, *, execute: bool = True, slow: bool = False) -> list[Snippet]:
    """The blocks of all pages with what is wrong with them; two pages at a time, each in a process of its own."""
    if not execute:
        parse = Page(root, execute=False, slow=False)
        return [parse.checked(snippet) for page in pages(root) for snippet in snippets_of(root, page)]
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda page: checked_page(root, page, slow=slow), pages(root))
        return [snippet for page in done for snippet in page]


def checked_page(root: Path, page: Path, *, slow: bool = False) -> list[Snippet]:
    """The blocks of one page with what is wrong with them, from a process of its own."""
    given = snippets_of(root, page)
    if not given:
        return []
    words = [sys.executable, __file__, str(page), *(["--slow"] if slow else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, cwd=root)
    except subprocess.TimeoutExpired:
        return [replace(snippet, problem=f"the page took more than {TIMEOUT:.0f} s") for snippet in given]
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return [replace(snippet, problem=f"the page ended its process: {done.stderr[-500:]}") for snippet in given]
    return [Snippet(**entry) for entry in json.loads(lines[-1])]


class Page:
    """One page being run: its namespace and the processes that it left running."""

    def __init__(self, root: Path, *, execute: bool, slow: bool):
        self._root, self._execute, self._slow = root, execute, slow
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._behind: list[subprocess.Popen[bytes]] = []

    def checked(self, snippet: Snippet) -> Snippet:
        """The block with what is wrong with it; executed where its mark and language allow."""
        runs = self._runs(snippet)
        check: Callable[[Snippet, bool], str] = getattr(self, f"_{snippet.language}")
        try:
            problem = check(snippet, runs)
        except Exception as error:  # noqa: BLE001 - whatever a snippet raises is its problem
            last = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        return replace(snippet, executed=runs, problem=problem)

    def close(self) -> None:
        """End the processes that the page left running."""
        for process in self._behind:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def _runs(self, snippet: Snippet) -> bool:
        kind, _, name = snippet.mark.partition(" ")
        absent = kind == "needs" and find_spec(name) is None
        held = kind == "parse" or (kind == "slow" and not self._slow) or absent
        return self._execute and not held and snippet.language in ("python", "sh")

    def _python(self, snippet: Snippet, runs: bool) -> str:
        code = compile("\n" * snippet.line + snippet.code, snippet.page, "exec")
        if runs:
            exec(code, self._names)  # noqa: S102 - our own docs
        return ""

    def _sh(self, snippet: Snippet, runs: bool) -> str:
        expected = int(snippet.mark.split()[1]) if snippet.mark.startswith("exit ") else 0
        for words in commands(snippet.code):
            if problem := wrong_command(self._root, [w for w in words if w != "&"]):
                return problem
            if not runs or words[0] != "instep":
                continue
            if words[-1] == "&":
                argv = [sys.executable, "-m", "instep.app.cli", *words[1:-1]]
                self._behind.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                continue
            said = io.StringIO()
            with redirect_stdout(said), redirect_stderr(said):
                code = cli.main(words[1:])
            if code not in (0, expected):
                return f"{shlex.join(words)} ended with {code}: {said.getvalue()[-400:]}"
        return ""

    def _toml(self, snippet: Snippet, runs: bool) -> str:
        tomllib.loads(snippet.code)
        return ""

    def _json(self, snippet: Snippet, runs: bool) -> str:
        json.loads(snippet.code)
        return ""


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a block as words; comments are left out, lines that end with a backslash go on."""
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def wrong_command(root: Path, words: list[str]) -> str:
    """What is wrong with a command, without running it; nothing where it could be run."""
    program, rest = words[0], words[1:]
    if program == "instep":
        return _wrong_verb(rest)
    if program == "make":
        made = re.findall(r"^([\w-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M)
        return "" if set(rest) <= set(made) else f"make has no target {rest}"
    if program in ("python", "python3"):
        script = next((word for word in rest if word.endswith(".py")), None)
        return "" if script is None or (root / script).is_file() else f"there is no {script}"
    if program == "pip":
        asked = {name for part in re.findall(r"\[([\w,]+)\]", " ".join(rest)) for name in part.split(",")}
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        unknown = asked - set(project["optional-dependencies"])
        return f"there is no extra {sorted(unknown)}" if unknown else ""
    return "" if program in ("cd", "git", "taskset", "ssh", "export") else f"{program!r} is not checked"


def _wrong_verb(words: list[str]) -> str:
    if words in (["--help"], ["--version"]):
        return ""
    verbs = cli.available()
    length = next((n for n in (2, 1) if " ".join(words[:n]) in verbs), 0)
    if not length:
        return f"instep has no verb {' '.join(words[:2])!r}"
    function = cli.verb_function(verbs[" ".join(words[:length])][0])

    @wraps(function)
    def nothing(*_: Any, **__: Any) -> None:
        return None

    quiet = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
    try:
        tyro.cli(nothing, args=words[length:], config=quiet, console_outputs=False)
    except SystemExit as stop:
        return f"the words are refused: instep {shlex.join(words)}" if stop.code else ""
    return ""


def main(words: list[str]) -> int:
    """Check one page and print its blocks as JSON."""
    root = Path(__file__).resolve().parent.parent
    page = Path(words[0]).resolve()
    given = snippets_of(root, page)
    run = Page(root, execute=True, slow="--slow" in words)
    out, sys.stdout = sys.stdout, sys.stderr
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            done = [run.checked(snippet) for snippet in given]
        finally:
            run.close()
            os.chdir(root)
    print(json.dumps([asdict(snippet) for snippet in done]), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
