"""Snippets of README and docs: every fenced block is executed or checked.

A page runs in a folder of its own, with the folders examples and recordings of the checkout. Its `python` blocks share
one namespace and its `sh` blocks are run line by line, in the order of the page, so that a page may record data first
and read it afterwards; a line that ends with & runs until the end of the page. A comment before a block says what holds
for it, several things separated by commas:

    <!-- snippet: slow -->             runs only where slow snippets are asked for; parsed (compiled) otherwise
    <!-- snippet: needs NAME -->       runs where the module NAME can be imported; parsed (compiled) otherwise
    <!-- snippet: needs viewer -->     runs where the web viewer was built; parsed otherwise
    <!-- snippet: needs recordings --> runs where recordings of real robots are; parsed (compiled) otherwise
    <!-- snippet: exit 1 -->           the last command may end with this code
    <!-- snippet: parse: REASON -->    cannot run in a test, and why: verb and options are checked

A block whose first line is `# NAME.EXT` is also written to that file. A block inside an HTML comment runs and is not
shown. `toml` and `json` blocks are parsed. Other languages are not code.

    python tools/snippets.py docs/gap.md [--slow] [--recordings DIR]
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, replace
from functools import cache, cached_property, wraps
from glob import glob
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro

from instep.app import cli
from instep.app.arguments import MARKERS, with_expert_options
from instep.app.viewer.view_server import absence
from instep.core.errors import BadInput
from instep.core.world import frozen_dataclass

FENCE = re.compile(
    r"(?:<!-- snippet: (?P<mark>[^>]*?) -->\s*\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
CODE = ("python", "sh", "toml", "json")
TIMEOUT, SLOW_TIMEOUT = 600.0, 7200.0
"""Longest run of one page, and of one with its slow blocks [s]."""
PORTS = ("8765", "8000", "5555")
"""Ports that pages name; each page uses free ones in their place, so that pages run beside each other."""


START_TIMEOUT_S = 120.0
"""How long a server may take to listen [s]."""
RECORDINGS = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
"""Where recordings of real robots lie beside a checkout."""


@frozen_dataclass
class Mark:
    """What holds for a block."""

    slow: bool = False
    needs: tuple[str, ...] = ()
    code: int = 0
    """Exit code that its last command may have."""
    parse: bool = False
    reason: str = ""
    """Why it cannot run in a test."""


def mark_of(text: str) -> Mark:
    """A mark as it is written before a block."""
    if text.startswith("parse"):
        return Mark(parse=True, reason=text.partition(":")[2].strip())
    words = [part.split() for part in text.split(",") if part.strip()]
    unknown = [word[0] for word in words if word[0] not in ("slow", "needs", "exit")]
    if unknown:
        raise BadInput(f"A block is marked {unknown[0]!r}; slow, needs NAME, exit CODE or parse: REASON was expected.")
    needs = tuple(word[1] for word in words if word[0] == "needs")
    return Mark(["slow"] in words, needs, next((int(word[1]) for word in words if word[0] == "exit"), 0))


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
        parse = Page(root, execute=False)
        return [parse.checked(snippet) for page in pages(root) for snippet in snippets_of(root, page)]
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda page: checked_page(root, page, slow=slow), pages(root))
        return [snippet for page in done for snippet in page]


def checked_page(root: Path, page: Path, *, slow: bool = False, recordings: Path | None = None) -> list[Snippet]:
    """The blocks of one page with what is wrong with them, from a process of its own."""
    given = snippets_of(root, page)
    if not given:
        return []
    words = [sys.executable, __file__, str(page), *(["--slow"] if slow else [])]
    words += ["--recordings", str(recordings)] if recordings else []
    limit = SLOW_TIMEOUT if slow else TIMEOUT
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, cwd=root)
    except subprocess.TimeoutExpired:
        return [replace(snippet, problem=f"the page took more than {limit:.0f} s") for snippet in given]
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return [replace(snippet, problem=f"the page ended its process: {done.stderr[-500:]}") for snippet in given]
    return [Snippet(**entry) for entry in json.loads(lines[-1])]


class Page:
    """One page being run: its namespace and the processes that it left running."""

    def __init__(self, root: Path, *, execute: bool, slow: bool = False, recordings: Path | None = None):
        self._root, self._execute, self._slow = root, execute, slow
        self._recordings = recordings if recordings and recordings.is_dir() else None
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._behind: list[subprocess.Popen[bytes]] = []

    def checked(self, snippet: Snippet) -> Snippet:
        """The block with what is wrong with it; executed where its mark and language allow."""
        try:
            mark = mark_of(snippet.mark)
            held = mark.parse or (mark.slow and not self._slow) or not all(map(self._has, mark.needs))
            runs = self._execute and not held and snippet.language in ("python", "sh")
            if self._execute and (name := re.match(r"# (\w+\.\w+)\n", snippet.code)):
                Path(name[1]).write_text(snippet.code, encoding="utf-8")
            check: Callable[[Snippet, bool], str] = getattr(self, f"_{snippet.language}")
            problem = check(snippet, runs)
        except Exception as error:  # noqa: BLE001 - whatever a snippet raises is its problem
            last = traceback.extract_tb(error.__traceback__)[-1]
            runs, problem = False, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        return replace(snippet, executed=runs, problem=problem)

    def close(self) -> None:
        """End the processes that the page left running."""
        for process in self._behind:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def _has(self, name: str) -> bool:
        if name == "viewer":
            return not absence()
        return self._recordings is not None if name == "recordings" else find_spec(name) is not None

    def _python(self, snippet: Snippet, runs: bool) -> str:
        code = compile("\n" * snippet.line + snippet.code, snippet.page, "exec")
        if runs:
            exec(code, self._names)  # noqa: S102 - our own docs
        return ""

    def _sh(self, snippet: Snippet, runs: bool) -> str:
        expected = mark_of(snippet.mark).code
        for words in commands(snippet.code):
            if problem := wrong_command(self._root, [w for w in words if w != "&"]):
                return problem
            if runs and (problem := self._ran(self._local(words), expected)):
                return problem
        return ""

    def _local(self, words: list[str]) -> list[str]:
        """A command as a shell would give it, with this page's own ports: variables set, names of files expanded."""
        words = [re.sub("|".join(PORTS), lambda port: self._ports[port[0]], word) for word in words]
        while name := re.fullmatch(r"(\w+)=@(.+)", words[0]):
            os.environ[name[1]] = Path(name[2]).read_text().strip()
            words = words[1:]
        return [name for word in words for name in ((sorted(glob(word)) or [word]) if "*" in word else [word])]

    @cached_property
    def _ports(self) -> dict[str, str]:
        held = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        free = [str(server.getsockname()[1]) for server in held]
        for server in held:
            server.close()
        return dict(zip(PORTS, free, strict=True))

    def _ran(self, words: list[str], expected: int) -> str:
        """Run a command of ours; what went wrong, or nothing."""
        if words[-1] == "&":
            return self._left_running(words[:-1])
        if words[0] == "instep":
            said = io.StringIO()
            with redirect_stdout(said), redirect_stderr(said):
                code = cli.main(words[1:])
            return "" if code in (0, expected) else f"{shlex.join(words)} ended with {code}: {said.getvalue()[-400:]}"
        if words[0] in ("python", "python3"):
            root = str(Path(__file__).resolve().parents[1])
            paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            told = {**os.environ, "PYTHONPATH": paths}
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, env=told)
            return f"{shlex.join(words)} ended with {done.returncode}: {done.stderr[-400:]}" if done.returncode else ""
        return ""

    def _left_running(self, words: list[str]) -> str:
        """Start a server and wait until it listens at the port that it was given."""
        log = Path("background.log")
        with log.open("ab") as stream:
            argv = [sys.executable, "-m", "instep.app.cli", *words[1:]]
            process = subprocess.Popen(argv, stdout=stream, stderr=stream)
        self._behind.append(process)
        port = int(words[words.index("--port") + 1])
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return ""
            time.sleep(0.2)
        return f"{shlex.join(words)} did not listen at its port: {log.read_text()[-400:]}"

    def _toml(self, snippet: Snippet, runs: bool) -> str:
        tomllib.loads(snippet.code)
        return ""

    def _json(self, snippet: Snippet, runs: bool) -> str:
        json.loads(snippet.code)
        return ""


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a block as words; comments are left out, lines that end with a backslash go on.

    A variable that a command gets from a file, NAME=$(cat FILE), becomes the word NAME=@FILE.
    """
    for line in code.replace("\\\n", " ").splitlines():
        plain = re.sub(r"(^|\s)#.*", "", re.sub(r"=\$\(cat (\S+?)\)", r"=@\1", line))
        if words := shlex.split(plain):
            yield words


@frozen_dataclass
class InlineCommand:
    """A command within the text of a page: `instep gap DATA SCENE`."""

    page: str
    line: int
    words: tuple[str, ...]
    complete: bool
    """Whether it can be typed as it is; others are names, leave something out, or say in capitals what it is."""
    problem: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {shlex.join(self.words)}"


def inline_commands(root: Path) -> list[InlineCommand]:
    """The commands of instep within the text of all pages."""
    found: list[InlineCommand] = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        plain = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
        for match in re.finditer(r"`(instep [^`]+)`", plain):
            name, line = str(page.relative_to(root)), 1 + plain.count("\n", 0, match.start())
            found.append(_inline(name, line, shlex.split(match[1])))
    return found


def _inline(page: str, line: int, words: list[str]) -> InlineCommand:
    left_out = any(re.search(r"…|\.\.\.$|\||^\[|\b[A-Z]{2,}[A-Z_]*\b", word) for word in words)
    verbs = cli.VERBS
    names = {" ".join(words[1 : 1 + n]).split("\\|")[0].split("|")[0] for n in (1, 2)}
    verb = next((v for v in sorted(verbs, key=len, reverse=True) if v in names), "")
    if not verb and words[1] in ("COMMAND", cli.COMPLETION):
        return InlineCommand(page, line, tuple(words), False, "")
    if not verb:
        return InlineCommand(page, line, tuple(words), False, f"instep has no verb {' '.join(words[1:3])!r}")
    inputs = words[1 + len(verb.split()) :]
    complete = bool(inputs) and not inputs[0].startswith("-") and not left_out and not _wrong_verb(words[1:])
    absent = [w for w in words if w.startswith("--") and w not in options_of(verb)]
    return InlineCommand(page, line, tuple(words), complete, f"instep {verb} has no {absent}" if absent else "")


@cache
def options_of(verb: str) -> frozenset[str]:
    """The options that the help of a verb lists."""
    text = io.StringIO()
    with redirect_stdout(text):
        cli.main([*verb.split(), "--help"])
    shown = text.getvalue().partition("\nexamples:")[0]
    expert = [f"--{name.replace('_', '-')}" for name in re.findall(r"^  ([a-z_]+): ", shown, re.M)]
    return frozenset([*re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown), *expert])


def wrong_command(root: Path, words: list[str]) -> str:
    """What is wrong with a command, without running it; nothing where it could be run."""
    words = list(dropwhile(lambda word: re.match(r"\w+=@", word), words))
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
    verbs = cli.VERBS
    length = next((n for n in (2, 1) if " ".join(words[:n]) in verbs), 0)
    if not length:
        return f"instep has no verb {' '.join(words[:2])!r}"
    function = verbs[" ".join(words[:length])].function()

    @wraps(function)
    def nothing(*_: Any, **__: Any) -> None:
        return None

    words = words[length:]
    if cli.OPTIONS in words:
        place = words.index(cli.OPTIONS)
        words = words[:place] + words[place + 2 :]
    try:
        checked, words = with_expert_options(nothing, words)
        tyro.cli(checked, args=words, config=MARKERS, console_outputs=False)
    except SystemExit as stop:
        return f"the words are refused: instep {shlex.join(words)}" if stop.code else ""
    return ""


def run_page(root: Path, page: Path, *, slow: bool = False, recordings: Path = RECORDINGS) -> list[Snippet]:
    """The blocks of one page with what is wrong with them, run in this process, in a folder of their own."""
    run, before = Page(root, execute=True, slow=slow, recordings=recordings), Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("examples").symlink_to(root / "examples")
        if recordings.is_dir():
            Path("recordings").symlink_to(recordings)
        try:
            return [run.checked(snippet) for snippet in snippets_of(root, page)]
        finally:
            run.close()
            os.chdir(before)
            # Modules that the page wrote go with its folder; the next page may write others of the same name.
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None) or "").startswith(str(Path(folder).resolve())):
                    del sys.modules[name]


def main(words: list[str]) -> int:
    """Check one page and print its blocks as JSON."""
    root = Path(__file__).resolve().parent.parent
    recordings = Path(words[words.index("--recordings") + 1]) if "--recordings" in words else RECORDINGS
    out, sys.stdout = sys.stdout, sys.stderr
    done = run_page(root, Path(words[0]).resolve(), slow="--slow" in words, recordings=recordings)
    print(json.dumps([asdict(snippet) for snippet in done]), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
