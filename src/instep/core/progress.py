"""Progress of a long computation: its stage, the share that is done, and the time it may still take."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite

from .errors import BadInput
from .world import Array

ProgressReport = Callable[[str, float, float], None]
"""Called with the stage, the share of the whole that is done (0 to 1), and the seconds left of the budget."""
IterationWatch = Callable[[int, float, Array], None]
"""Called with the iteration of a search, its cost and its parameters in unit coordinates."""

UNITS_S = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
"""Seconds of the units a duration may have."""


@dataclass(slots=True)
class Progress:
    """Progress, time budget and stop request of a computation.

    A search calls `advance` and `iterated`, and returns its best result as soon as `ended` is true.
    """

    budget: float = inf
    """Time budget of the whole [s]."""
    report: ProgressReport | None = None
    watch: IterationWatch | None = None
    stopped: bool = False
    """Whether a stop was requested."""
    stage: str = ""
    """Current stage."""
    share: float = 0.0
    """Share of the whole that is done, 0 to 1."""
    clock: Callable[[], float] = time.perf_counter
    """Clock of the budget; `time.process_time` counts processor time."""
    began: float = field(init=False)
    """Start, by the clock."""
    whole: Progress | None = None
    """The computation that this is a part of."""
    span: tuple[float, float] = (0.0, 1.0)
    """First and last share of this part in the whole."""
    step: float = 0.0
    """Longest step so far, by the clock [s]."""
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of each finished stage, by the clock, in order."""
    entered: float = field(init=False)
    """Start of the current stage, by the clock."""

    def __post_init__(self) -> None:
        self.began = self.entered = self.clock()

    @property
    def left(self) -> float:
        """Seconds left of the budget; infinite without one."""
        return self.began + self.budget - self.clock()

    @property
    def out_of_time(self) -> bool:
        """Whether the budget is spent."""
        return self.left <= 0

    @property
    def interrupted(self) -> bool:
        """Whether a stop of this or of the whole was requested."""
        return self.stopped or (self.whole is not None and self.whole.interrupted)

    @property
    def ended(self) -> bool:
        """Whether to end now: the budget is spent, or a stop was requested."""
        return self.interrupted or self.out_of_time

    def stepped(self, seconds: float) -> None:
        """Record the duration of a step."""
        self.step = max(self.step, seconds)

    def affords(self, steps: float) -> bool:
        """Whether the budget allows some steps as long as the longest so far."""
        return self.left >= steps * self.step

    def stop(self) -> None:
        """Request a stop: the computation returns its best result so far."""
        self.stopped = True
        if self.whole is not None:
            self.whole.stop()

    def advance(self, stage: str, share: float) -> None:
        """Report the current stage and the share done; within a stage the share never falls."""
        least = self.share if stage == self.stage else 0.0
        self.leave_stage(stage)
        self.share = min(1.0, max(least, share))
        if self.whole is not None:
            first, last = self.span
            self.whole.advance(stage, first + (last - first) * self.share)
        elif self.report is not None:
            self.report(stage, self.share, self.left)

    def leave_stage(self, following: str = "") -> None:
        """End the current stage."""
        if following == self.stage:
            return
        now = self.clock()
        self.spent[self.stage or "preparation"] = self.spent.get(self.stage or "preparation", 0.0) + now - self.entered
        self.stage, self.entered = following, now

    def iterated(self, iteration: int, cost: float, x: Array) -> None:
        """Report one more iteration of a search."""
        if self.watch is not None:
            self.watch(iteration, cost, x)

    def part(self, first: float, last: float, *, of_time_left: float = 1.0) -> Progress:
        """The part from one share to another, with a share of the time left as its budget."""
        budget = max(0.0, of_time_left * self.left) if isfinite(self.budget) else inf
        return Progress(budget, watch=self.watch, clock=self.clock, whole=self, span=(first, last))


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90s`, `2min`, `1h` or `120`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in UNITS_S or float(match[1]) <= 0:
        raise BadInput(f"A duration reads 90s, 2min or 1h, not {text!r}.")
    return float(match[1]) * UNITS_S[match[2]]
