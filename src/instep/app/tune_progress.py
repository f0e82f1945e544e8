"""Progress of `instep tune` on standard error: a live line on a terminal, plain lines elsewhere; Ctrl-C stops it."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TextIO

from instep.core.progress import Progress

LINE_PERIOD_S = 5.0
"""Shortest time between two lines where standard error is not a terminal."""


@contextmanager
def tune_progress(budget: float = math.inf) -> Generator[Progress]:
    """Progress with a budget, shown while it lasts; the first Ctrl-C stops it, the second ends the program."""
    progress = Progress(budget)
    with _stopped_by_hand(progress):
        if sys.stderr.isatty():
            with _live(progress):
                yield progress
        else:
            progress.report = PlainLines(sys.stderr)
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
def _live(progress: Progress) -> Generator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bar:
        task, began = bar.add_task("reading", total=1.0, left=""), time.perf_counter()

        def report(stage: str, share: float, left: float) -> None:
            words = time_left(share, left, time.perf_counter() - began)
            bar.update(task, description=stage, completed=share, left=words)

        progress.report = report
        yield


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
