"""The folder a verb writes, with its inputs and results; sentences, tables and progress bars on the terminal."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from instep import __version__
from instep.core.errors import BadInput, UnknownName
from instep.core.progress import Progress
from instep.core.reading import content_hash, is_mapping, is_sequence, read_json_table
from instep.core.statistics import Estimate

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn

    from instep.report.page import HtmlReport
    from instep.scene.folder import Scene
    from instep.tune.gates import GateResult


RUNS = Path("runs")
"""Where folders are made when no --out is given."""
CONFIG = "config.toml"
RESULT = "result.json"
REPORT = "report.html"


@dataclass(slots=True)
class Output:
    """A new folder for one run of a verb; inputs are never edited."""

    folder: Path
    verb: str
    seed: int = 0
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    """Path -> SHA-256 of what was read."""
    made: bool = False
    """Whether the folder was made, or was empty before."""
    kept: str = ""
    """What in it is worth keeping without a result, as a clause ("its checkpoint is kept in ..."); else empty."""
    finished: bool = False
    """Whether result.json was written."""

    def read(self, *inputs: Path | Scene) -> None:
        """Note inputs by their content: files, folders, and scenes; a robot file without scene.toml stands alone."""
        for one in inputs:
            if not isinstance(one, Path):
                one = one.root if (one.root / "scene.toml").is_file() else one.source.path
            self.inputs[str(one)] = content_hash(one)

    @property
    def hashes(self) -> dict[str, str]:
        """The inputs as facts of a page."""
        return {f"sha256 of {path}": digest for path, digest in self.inputs.items()}

    def keep(self, what: str) -> None:
        """Keep a folder without a result if it holds parts from which the same command goes on."""
        self.kept = f"{what} are kept; the same command with --out {self.folder} goes on from them"

    def write(self, scores: Mapping[str, Estimate], **more: Any) -> Path:
        """Write result.json and return its path."""
        about = {"verb": self.verb, "version": __version__, "seed": self.seed, "inputs": self.inputs}
        self.finished = True
        values = {name: estimate.as_dict() for name, estimate in scores.items()}
        return write_json(self.folder / RESULT, {**about, "scores": values, **more})

    def page(self, report: HtmlReport) -> Path:
        """Write report.html, note its conclusion in result.json, and return the path of the page."""
        from instep.report.page import write_html

        result = self.folder / RESULT
        known: dict[str, Any] = read_json_table(result) if result.is_file() else {}
        write_json(result, {**known, "headline": report.verdict.headline, "verdict": report.verdict.status})
        return write_html(self.folder / REPORT, report)


_COMMAND: ContextVar[tuple[Sequence[str], list[Output]]] = ContextVar("words and outputs of the command that runs")


@contextmanager
def noted_outputs(words: Sequence[str]) -> Generator[list[Output]]:
    """The folders that a command makes inside, so that one that fails can remove its own."""
    token = _COMMAND.set((words, noted := []))
    try:
        yield noted
    finally:
        _COMMAND.reset(token)


def remove_unfinished(outputs: Sequence[Output]) -> str:
    """Remove folders without a result, unless something in them is worth keeping; in words, what is kept and where."""
    kept: list[str] = []
    for output in outputs:
        if output.finished:
            kept.append(f"the result is in {output.folder}")
        elif output.kept and any(p.is_file() and p.name != CONFIG for p in output.folder.rglob("*")):
            kept.append(output.kept)
        elif output.made:
            shutil.rmtree(output.folder, ignore_errors=True)
            with suppress(OSError):  # it holds other runs
                RUNS.rmdir()
    return "; ".join(kept)


def new_output(verb: str, out: Path | None, *, seed: int = 0) -> Output:
    """An empty folder to write into: `out`, or the next free one under runs/; checked to be writable, and ours."""
    if out is None:
        out = next_folder(verb)
    if out.is_file():
        raise BadInput(f"{str(out)!r} is a file; --out takes a folder.")
    words, noted = _COMMAND.get((sys.argv[1:], []))
    try:
        made = not out.exists() or not any(out.iterdir())
        if not made and not (out / CONFIG).is_file():
            raise BadInput(f"The folder {str(out)!r} is not empty and was not written by instep; give another --out.")
        out.mkdir(parents=True, exist_ok=True)
        command, now = json.dumps(["instep", *words]), datetime.now().astimezone().isoformat(timespec="seconds")
        (out / CONFIG).write_text(
            f'verb = "{verb}"\nversion = "{__version__}"\nseed = {seed}\nstarted = {now}\ncommand = {command}\n',
            encoding="utf-8",
        )
    except OSError as error:
        raise BadInput(f"The folder {str(out)!r} cannot be written: {error.strerror}; give another --out.") from None
    output = Output(out, verb, seed, made=made)
    noted.append(output)
    return output


def next_folder(verb: str) -> Path:
    """The next free numbered folder of a verb under runs/; its name has no spaces."""
    verb = verb.replace(" ", "-")
    names = (re.fullmatch(rf"{re.escape(verb)}-(\d+)", path.name) for path in RUNS.glob(f"{verb}-*"))
    return RUNS / f"{verb}-{1 + max((int(found[1]) for found in names if found), default=0):03d}"


def broken_limits(scores: Mapping[str, Estimate], limits: Sequence[str]) -> list[str]:
    """The limits that scores break, in words; a limit reads 'NAME=LARGEST'."""
    broken: list[str] = []
    for words in limits:
        name, _, number = words.rpartition("=")
        name = name.strip()
        try:
            largest = float(number)
        except ValueError:
            raise BadInput(f"A limit reads 'elbow@0.5 s=0.02', not {words!r}.") from None
        if name not in scores:
            raise UnknownName("score", name, scores)
        # A score that could not be measured does not show that the limit holds.
        if not scores[name].value <= largest:
            broken.append(f"{name} is {scores[name]}, more than {largest:g}.")
    return broken


def say(*sentences: str, style: str = "") -> None:
    """Print sentences on standard error as they are: names may come from files of strangers."""
    from rich.console import Console

    for sentence in sentences:
        Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def show_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = (), title: str = "",
    error: bool = False,
) -> None:  # fmt: skip
    """Print a table on standard output, or on standard error; columns in `right` are set flush right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*heads, box=None, padding=(0, 1), title=title or None)
    for column in right:
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(*row)
    console = Console(stderr=error)
    console.print(table, width=None if console.is_terminal else PIPE_COLUMNS)


def has_display() -> bool:
    """Whether a browser can be shown."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def progress_bar(*columns: ProgressColumn) -> RichProgress:
    """A progress bar on standard error with a description, a count and the time left, then further columns."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    usual = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*usual, *columns, console=Console(stderr=True), transient=True, refresh_per_second=5)


@contextmanager
def stage_bar(first: str) -> Generator[Callable[[str, float, str], None]]:
    """A progress bar on standard error; it is renewed by a stage, the share that is done, and words about it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[words]}")
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as progress:
        bar = progress.add_task(first, total=1.0, words="")

        def report(stage: str, share: float, words: str) -> None:
            progress.update(bar, description=stage, completed=share, words=words)

        yield report


def show_gates(gates: Sequence[GateResult], *more: tuple[str, str, str]) -> None:
    """Print the gates of an identification with their states in colour, then further rows."""
    rows: list[tuple[str, str, str]] = []
    for gate in gates:
        colour = {"passed": "green", "failed": "red" if gate.required else "yellow", "not run": "yellow"}[gate.state]
        rows.append((gate.name, f"[{colour}]{gate.state}[/]", gate.message))
    show_table(("gate", "", "message"), [*rows, *more])


def write_json(path: Path, content: Any) -> Path:
    """Write JSON whole or not at all; numbers that are not finite become null."""
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_text(json.dumps(_plain(content), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _plain(value: Any) -> Any:
    if is_mapping(value):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_sequence(value):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


PIPE_COLUMNS = 200
"""Width of a table that is not printed on a terminal."""
LINE_PERIOD_S = 5.0
"""Shortest time between two lines where standard error is not a terminal."""


@contextmanager
def tune_progress(budget: float = math.inf) -> Generator[Progress]:
    """Progress with a budget, shown while it lasts; the first Ctrl-C stops it, the second ends the program."""
    progress, began = Progress(budget), time.perf_counter()
    with _stopped_by_hand(progress), stage_bar("reading") if sys.stderr.isatty() else nullcontext() as bar:
        if bar is None:
            progress.report = PlainLines(sys.stderr)
        else:
            progress.report = lambda stage, share, left: bar(
                stage, share, time_left(share, left, time.perf_counter() - began)
            )
        yield progress


@dataclass(slots=True)
class PlainLines:
    """A line for each stage, and while it lasts one every few seconds."""

    stream: TextIO
    began: float = field(default_factory=time.perf_counter)
    last: float = -math.inf
    stage: str = ""

    def __call__(self, stage: str, share: float, left: float) -> None:
        """Write a line where the last one was long enough ago."""
        now = time.perf_counter()
        if now - self.last < LINE_PERIOD_S:
            return
        self.last, self.stage = now, stage
        print(f"{stage}: {share:.0%}, {time_left(share, left, now - self.began)}", file=self.stream, flush=True)


def time_left(share: float, left: float, passed: float) -> str:
    """How much time is left: of the budget, else estimated from the share that is done."""
    if math.isfinite(left):
        return f"{max(0.0, left):.0f} s left of the budget"
    if share < 0.02:
        return f"{passed:.0f} s so far"
    return f"about {passed * (1 - share) / share:.0f} s left"


@contextmanager
def _stopped_by_hand(progress: Progress) -> Generator[None]:
    """Let the first Ctrl-C ask for a stop, so that what was found is kept at any moment, and the second end it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if progress.stopped:
            raise KeyboardInterrupt
        progress.stop()
        print("Stopping: the step under way is finished first; Ctrl-C again ends at once.", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
