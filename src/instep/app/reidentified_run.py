"""Re-identification beside a run: samples go to a process of its own, and better parameters come back.

The control loop copies a sample and goes on. A thread exchanges samples and results with the process, and makes the
simulated world with new parameters, so that the loop only takes it over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from instep.core.errors import BadInput
from instep.core.world import Array, Channel, Observation, Simulator, Spec, State, array_dataclass, vector
from instep.report.page import Section
from instep.report.tune_pages import drift_numbers, drift_sections
from instep.robot.driver import SENT
from instep.scene.folder import Scene
from instep.tune.online.reidentification import DriftPoint, Reidentification, Reidentifier
from instep.tune.online.window_prediction import online_params, online_world

from .side_process import ENDED, RunPart, SideProcess

MAX_BACKLOG, MAX_BATCH = 3000, 100
"""Samples that may wait for the process, more are skipped and counted; and those that it takes at once."""
CLOSE_TIMEOUT_S = 20.0
"""How long the end of a run waits for samples that still wait [s]."""

Sample = tuple[float, Array, Array, float | None]
"""Time of a command, newest reading, command, time of the reading."""


@array_dataclass
class _Answer:
    """The news of the process since its last answer."""

    latest: DriftPoint | None
    settings: Mapping[str, float] | None
    """The values in use if they changed, with the settings they depend on."""


class LiveReidentification:
    """Parameters of a scene, estimated from the samples of a run in another process; used with `with`.

    It is a watcher of a run on a robot, whose samples it takes and whose parameters it shows; and the source of
    parameter updates of a twin (`Twin.reidentified`).
    """

    def __init__(self, scene: str, source: Spec, patterns: Sequence[str]):
        """`source` describes the samples; `patterns` are addresses, or auto."""
        loaded = Scene.load(scene)
        self._selection = online_params(loaded, patterns)
        # What cannot be re-identified is said before anything moves.
        Reidentifier(online_world(loaded, self._selection), source, self._selection.params, self._selection.initial)
        self._process = SideProcess(_open_identifier, scene, source, tuple(patterns), niceness=5)
        self._samples: SimpleQueue[Sample | None] = SimpleQueue()
        self._base: Simulator | None = None
        self._next: Simulator | None = None
        self._latest: DriftPoint | None = None
        self._result: Reidentification | None = None
        self._deadline, self._closed = math.inf, False
        self.skipped = 0
        """Samples that came while too many were waiting, or that were left at the end."""
        self.problem = ""
        """Why it stopped; empty if it did not."""

    def __enter__(self) -> LiveReidentification:
        if problem := self._process.open(self._exchange):
            raise BadInput(f"--reidentify cannot begin: {problem}")
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Let the process take the samples that still wait, and end it; the result is complete then."""
        if self._closed:
            return
        self._closed, self._deadline = True, min(self._deadline, time.monotonic() + CLOSE_TIMEOUT_S)
        self._samples.put(None)
        if not self._process.close(2 * CLOSE_TIMEOUT_S):
            self.problem = self.problem or f"it did not end within {2 * CLOSE_TIMEOUT_S:g} s"

    @property
    def channel(self) -> Channel:
        """What `observed` holds: the estimate of each parameter, then the values in use."""
        names = [p.address for p in self._selection.params]
        units = [p.unit.replace(" ", "") or "1" for p in self._selection.params]
        return vector([*names, *(f"{name} in use" for name in names)], [*units, *units])

    def observed(self) -> Array:
        """The estimates and the values in use; the first values until there are estimates."""
        if self._latest is None:
            first = [self._selection.initial[p.address] for p in self._selection.params]
            return np.array([*first, *first])
        return np.concatenate([self._latest.values, self._latest.used])

    def sample(self, t: float, q: Array, action: Array, stamp: float | None) -> None:
        """Take a sample: a command given at time t [s], and the newest reading; returns at once."""
        if self._samples.qsize() > MAX_BACKLOG or self.problem:
            self.skipped += 1
            return
        self._samples.put((t, np.array(q, float), np.array(action, float), stamp))

    def retuned(self, sim: Simulator) -> Simulator | None:
        """The simulated world with new parameters if there are any since the last call; returns at once."""
        if self._base is None:
            self._base = sim
        new, self._next = self._next, None
        return new

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row of a run on a robot."""
        stamps = observation.get("observation.state.stamp")
        stamp = None if stamps is None else float(np.max(stamps))
        self.sample(state.t, state.q, np.asarray(observation.get(SENT, action)), stamp)

    def result(self) -> Reidentification | None:
        """The result; None before the end of the run, or if the process failed."""
        return self._result

    def part(self, folder: Path) -> RunPart:
        """Sections and facts for a run that has ended; the numbers over time go to drift.parquet."""
        self.finish()
        found = self._result
        if found is None:
            why = self.problem or "the run was too short"
            section = Section("Re-identification", f"There is no result: {why}.")
            return RunPart(facts={"reidentification": {"problem": why}}, sections=[section])
        write_drift(folder, found)
        facts = {**drift_facts(found), "skipped samples": self.skipped, "problem": self.problem}
        said = f"{self.skipped} samples were skipped because the process was behind." if self.skipped else ""
        said += f" It stopped: {self.problem}." if self.problem else ""
        sections = [*([Section("Re-identification", said.strip())] if said else []), *drift_sections(found)]
        return RunPart(facts={"reidentification": facts}, numbers=drift_numbers(found)[:2], sections=sections)

    def _exchange(self) -> None:
        try:
            while (batch := self._batch()) is not None:
                answer: _Answer = self._process.ask(batch)
                self._latest, base = answer.latest or self._latest, self._base
                if answer.settings is not None and base is not None:
                    world = base.tuned(answer.settings)
                    # The first step of a world allocates its memory, which is not for the control loop to wait for.
                    world.step(world.reset(0), np.zeros(world.spec.action.shape))
                    self._next = world
            self._result = self._process.ask(None)
        except (EOFError, OSError):
            self.problem = ENDED

    def _batch(self) -> list[Sample] | None:
        """The samples that wait, not too many at once; None once the run is over and all were sent, or time is up."""
        batch: list[Sample] = []
        while len(batch) < MAX_BATCH and time.monotonic() < self._deadline:
            try:
                sample = self._samples.get(block=not batch)
            except Empty:
                break
            if sample is None:
                self._deadline = -math.inf
                break
            batch.append(sample)
        else:
            if not batch:
                self.skipped += max(self._samples.qsize() - 1, 0)
        return batch or None


def _open_identifier(
    scene: str, source: Spec, patterns: Sequence[str]
) -> Callable[[Sequence[Sample] | None], _Answer | Reidentification]:
    """A function that takes samples and gives new estimates, and the result for None."""
    loaded = Scene.load(scene)
    selection = online_params(loaded, patterns)
    found = Reidentifier(online_world(loaded, selection), source, selection.params, selection.initial)
    used = found.settings

    def answer(samples: Sequence[Sample] | None) -> _Answer | Reidentification:
        nonlocal used
        if samples is None:
            return found.result()
        for sample in samples:
            found.add(*sample)
        new = None if found.settings == used else {**selection.fixed, **found.settings}
        used = found.settings
        return _Answer(found.latest, new)

    return answer


def drift_facts(found: Reidentification) -> dict[str, Any]:
    """Events, counts and the values in use, as plain values."""
    events = [{"t": e.t, "kind": e.kind, "words": e.words, "settings": dict(e.settings)} for e in found.events]
    counts = {**found.counts(), "windows": len(found.points), "lost": found.lost, "diverged": found.diverged}
    return {"estimated": found.ready, "counts": counts, "in use": dict(found.settings), "events": events}


def write_drift(folder: Path, found: Reidentification) -> Path:
    """Write drift.parquet: for every window and parameter its estimate, interval and value in use."""
    names, points = [param.address for param in found.params], found.points
    columns: dict[str, Any] = {"t": np.repeat([p.t for p in points], len(names)), "parameter": names * len(points)}
    for title, name in (("estimate", "values"), ("low", "low"), ("high", "high"), ("in use", "used")):
        columns[title] = np.concatenate([getattr(point, name) for point in points]) if points else np.zeros(0)
    path = folder / "drift.parquet"
    pq.write_table(pa.table(columns), path)
    return path
