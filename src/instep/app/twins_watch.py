"""How a twin is doing, as one line while it runs: trust, innovation, residuals, what is observed, latency, work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from instep.core.world import Array, Observation, Spec, State

SHOWN_EVERY = 6
"""Rows from one line to the next: ten a second at 60 Hz, so that looking costs the loop little."""


def bar() -> Progress:
    """A bar with room for a line below it."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    state = TextColumn("{task.fields[state]}")
    return Progress(*columns, state, console=Console(stderr=True), transient=True, refresh_per_second=5)


class Watch:
    """A watcher that keeps the last rows of a twin's log and shows them in a line."""

    def __init__(self, progress: Progress, task: Any, spec: Spec, trust: Any = None):
        self._progress, self._task, self._trust = progress, task, trust
        told = spec.observation.get("twin.correction")
        self._labels = told.labels if told is not None else ()
        counts, stages = spec.observation.get("twin.counts"), spec.observation.get("twin.stages")
        self._overruns = counts.labels.index("overruns") if counts is not None else -1
        self._follow = stages.labels.index("follow") if stages is not None else -1
        self._rows: deque[Array] = deque(maxlen=24)
        self._errors: deque[float] = deque(maxlen=24)
        self._seen = 0

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; every few rows the line is renewed."""
        self._seen += 1
        if self._labels:
            self._rows.append(np.asarray(observation["twin.correction"], float))
            error = np.asarray(observation.get("twin.joint_error", np.zeros(1)), float)
            self._errors.append(float(np.abs(error).max(initial=0.0)))
        if self._seen % SHOWN_EVERY == 0:
            self._progress.update(self._task, advance=SHOWN_EVERY, state=self._line(observation))

    def log(self) -> Mapping[str, Array]:
        """The last rows by name, as `log_of` gives those of a whole run."""
        rows = np.stack(self._rows)
        return {**{n: rows[:, i] for i, n in enumerate(self._labels)}, "joints.error": np.array(self._errors)}

    def _line(self, observation: Observation) -> str:
        if not self._rows:
            return ""
        log = self.log()
        words = [] if self._trust is None else [f"trust {float(self._trust.of(self._trust.frames(log))[-1]):.2f}"]
        words += [said(log)]
        if self._follow >= 0:
            stages = np.asarray(observation["twin.stages"], float)
            words.append(f"work {1e3 * (stages.sum() - stages[self._follow]):.1f} ms")
            words.append(f"overruns {int(observation['twin.counts'][self._overruns])}")
        return "  ".join(words)


def said(log: Mapping[str, Array]) -> str:
    """A log's last numbers in words; those of the last picture, where rows come between pictures."""

    def last(ending: str) -> float:
        rows = [v[np.isfinite(v)] for n, v in log.items() if n.endswith("." + ending)]
        return max((float(v[-1]) for v in rows if len(v)), default=float("nan"))

    lost = last("lost")
    words = ["[red]lost[/]"] if lost > 0 else []
    words.append(f"NIS {last('nis'):.1f}")
    words.append(f"residual {last('residual'):.2f}")
    words.append(f"colour {last('photo'):.2f}")
    words.append(f"sigma {1e3 * last('sigma'):.1f} mm")
    words.append(f"weakest {1e3 * last('weakest'):.1f} mm")
    words.append(f"latency {1e3 * last('latency'):.0f} ms")
    frozen = sum(float(v[-1]) > 0 for n, v in log.items() if n.endswith(".frozen"))
    return "  ".join([*words, *([f"[red]{frozen} frozen[/]"] if frozen else [])])
