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
    """Where a computation stands, how long it may take, and whether it was asked to stop.

    A search calls `advance` and `iterated`, and ends with the best it has as soon as `ended` is true.
    """

    budget: float = inf
    """Seconds the whole may take."""
    report: ProgressReport | None = None
    watch: IterationWatch | None = None
    stopped: bool = False
    """Whether somebody asked to stop."""
    stage: str = ""
    """What is under way."""
    share: float = 0.0
    """Share of the whole that is done, 0 to 1."""
    clock: Callable[[], float] = time.perf_counter
    """What the budget is measured by; `time.process_time` for the time of the processor, whatever else it does."""
    began: float = field(init=False)
    """When it began, by the clock."""
    whole: Progress | None = None
    """What this is a part of."""
    span: tuple[float, float] = (0.0, 1.0)
    """Where this part begins and ends in the share of the whole."""
    step: float = 0.0
    """Longest step so far, by the clock [s]; 0 where none is known."""
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of each stage that was left, by the clock, in the order in which they began."""
    entered: float = field(init=False)
    """When the stage was entered, by the clock."""

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
        """Whether somebody asked to stop this or what it is a part of."""
        return self.stopped or (self.whole is not None and self.whole.interrupted)

    @property
    def ended(self) -> bool:
        """Whether to end now: the budget is spent, or somebody asked to stop."""
        return self.interrupted or self.out_of_time

    def stepped(self, seconds: float) -> None:
        """Say how long a step took, or would take."""
        self.step = max(self.step, seconds)

    def affords(self, steps: float) -> bool:
        """Whether there is time for some steps as long as the longest so far."""
        return self.left >= steps * self.step

    def stop(self) -> None:
        """Ask to stop: what is under way ends with the best so far."""
        self.stopped = True
        if self.whole is not None:
            self.whole.stop()

    def advance(self, stage: str, share: float) -> None:
        """Say what is under way and which share of all is done; within one stage the share never falls."""
        least = self.share if stage == self.stage else 0.0
        self.leave_stage(stage)
        self.share = min(1.0, max(least, share))
        if self.whole is not None:
            first, last = self.span
            self.whole.advance(stage, first + (last - first) * self.share)
        elif self.report is not None:
            self.report(stage, self.share, self.left)

    def leave_stage(self, following: str = "") -> None:
        """End the stage that is under way, where another one follows or all is done."""
        if following == self.stage:
            return
        now = self.clock()
        self.spent[self.stage or "preparation"] = self.spent.get(self.stage or "preparation", 0.0) + now - self.entered
        self.stage, self.entered = following, now

    def iterated(self, iteration: int, cost: float, x: Array) -> None:
        """Say that a search did one more iteration."""
        if self.watch is not None:
            self.watch(iteration, cost, x)

    def part(self, first: float, last: float, *, of_time_left: float = 1.0) -> Progress:
        """The part of this from one share to another, which may take some share of the time that is left."""
        budget = max(0.0, of_time_left * self.left) if isfinite(self.budget) else inf
        return Progress(budget, watch=self.watch, clock=self.clock, whole=self, span=(first, last))


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90s`, `2min`, `1h` or `120`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in UNITS_S or float(match[1]) <= 0:
        raise BadInput(f"A duration reads 90s, 2min or 1h, not {text!r}.")
    return float(match[1]) * UNITS_S[match[2]]
