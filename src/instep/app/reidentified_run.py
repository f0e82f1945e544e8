"""Re-identification beside a run: samples go to a process of its own, and better parameters come back.

The control loop copies a sample and goes on. A thread exchanges samples and results with the process, and makes the
simulated world with new parameters, so that the loop only takes it over.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array, Channel, Observation, Simulator, Spec, State, array_dataclass, vector
from instep.report.page import Number, Section
from instep.report.tune_pages import drift_numbers, drift_sections
from instep.robot.driver import SENT
from instep.scene.folder import Scene
from instep.tune.online.reidentification import DriftPoint, Reidentification, Reidentifier
from instep.tune.online.window_prediction import online_params, online_world

NICENESS = 5
"""Added to the niceness of the process, so that it yields to the control loop."""
MAX_BACKLOG, MAX_BATCH = 3000, 100
"""Samples that may wait for the process, more are skipped and counted; and those that it takes at once."""
OPEN_TIMEOUT_S, CLOSE_TIMEOUT_S = 180.0, 20.0
"""How long a run waits for the process to begin, and after its end for samples that still wait [s]."""

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
        context = multiprocessing.get_context("spawn")
        self._pipe, self._other = context.Pipe()
        arguments = (self._other, scene, source, tuple(patterns))
        self._process = context.Process(target=_identify, args=arguments, daemon=True)
        self._samples: SimpleQueue[Sample | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._exchange, name="instep-reidentify", daemon=True)
        self._base: Simulator | None = None
        self._next: Simulator | None = None
        self._latest: DriftPoint | None = None
        self._result: Reidentification | None = None
        self._deadline = math.inf
        self.skipped = 0
        """Samples that came while too many were waiting, or that were left at the end."""
        self.problem = ""
        """Why it stopped; empty if it did not."""

    def __enter__(self) -> LiveReidentification:
        self._process.start()
        self._other.close()
        try:
            problem = self._pipe.recv() if self._pipe.poll(OPEN_TIMEOUT_S) else "it did not begin in time"
        except EOFError:
            problem = "its process ended"
        if problem:
            self._process.terminate()
            raise BadInput(f"--reidentify cannot begin: {problem}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Let the process take the samples that still wait, and end it; the result is complete then."""
        if self._thread.is_alive():
            self._deadline = min(self._deadline, time.monotonic() + CLOSE_TIMEOUT_S)
            self._samples.put(None)
            self._thread.join(2 * CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                self.problem = self.problem or f"it did not end within {2 * CLOSE_TIMEOUT_S:g} s"
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(CLOSE_TIMEOUT_S)

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
        self.sample(state.t, state.q, np.asarray(observation.get(SENT, action)), stamp_of(observation))

    def result(self) -> Reidentification | None:
        """The result; None before the end of the run, or if the process failed."""
        return self._result

    def _exchange(self) -> None:
        """Send samples and take answers, in a thread, since a pipe waits for its other end."""
        try:
            while (batch := self._batch()) is not None:
                self._pipe.send(batch)
                self._take(self._pipe.recv())
            self._pipe.send(None)
            self._result = self._pipe.recv()
        except (EOFError, OSError):
            self.problem = "its process ended"

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

    def _take(self, answer: _Answer) -> None:
        self._latest = answer.latest or self._latest
        base = self._base
        if answer.settings is None or base is None:
            return
        world = base.tuned(answer.settings)
        # The first step of a world allocates its memory, which is not for the control loop to wait for.
        start = world.reset(0)
        world.step(start, np.zeros(world.spec.action.shape))
        self._next = world


def stamp_of(observation: Observation) -> float | None:
    """When the joints of an observation were read [s]; None if it is not said."""
    stamps = observation.get("observation.state.stamp")
    return None if stamps is None else float(np.max(stamps))


def _identify(pipe: Connection, scene: str, source: Spec, patterns: tuple[str, ...]) -> None:
    """Answer samples with new estimates until the run ends."""
    try:
        loaded = Scene.load(scene)
        selection = online_params(loaded, patterns)
        found = Reidentifier(online_world(loaded, selection), source, selection.params, selection.initial)
    except InstepError as error:
        pipe.send(str(error))
        return
    pipe.send("")
    os.nice(NICENESS)
    used = found.settings
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while (samples := pipe.recv()) is not None:
            for t, q, action, stamp in samples:
                found.add(t, q, action, stamp)
            new = None if found.settings == used else {**selection.fixed, **found.settings}
            used = found.settings
            pipe.send(_Answer(found.latest, new))
        pipe.send(found.result())


def live_sections(live: LiveReidentification | None) -> list[Section]:
    """Sections of re-identification for the page of a run; none without it."""
    if live is None:
        return []
    found = live.result()
    if found is None:
        return [Section("Re-identification", f"There is no result: {live.problem or 'the run was too short'}.")]
    said = f"{live.skipped} samples were skipped because the process was behind." if live.skipped else ""
    said += f" It stopped: {live.problem}." if live.problem else ""
    return [*([Section("Re-identification", said.strip())] if said else []), *drift_sections(found)]


def live_numbers(live: LiveReidentification | None) -> list[Number]:
    """The key numbers of re-identification; none without it."""
    found = None if live is None else live.result()
    return [] if found is None else drift_numbers(found)[:2]


def live_facts(live: LiveReidentification | None, folder: Path) -> dict[str, Any]:
    """Facts of re-identification for result.json; the numbers over time go to drift.parquet."""
    if live is None:
        return {}
    found = live.result()
    if found is None:
        return {"reidentification": {"problem": live.problem or "the run was too short"}}
    write_drift(folder, found)
    return {"reidentification": {**drift_facts(found), "skipped samples": live.skipped, "problem": live.problem}}


def drift_facts(found: Reidentification) -> dict[str, Any]:
    """Events, counts and the values in use, as plain values."""
    events = [
        {"t": event.t, "kind": event.kind, "words": event.words, "settings": dict(event.settings)}
        for event in found.events
    ]
    counts = {"windows": len(found.points), "lost": found.lost, "diverged": found.diverged}
    return {
        "estimated": found.ready, "counts": {**found.counts(), **counts}, "in use": dict(found.settings),
        "events": events,
    }  # fmt: skip


def write_drift(folder: Path, found: Reidentification) -> Path:
    """Write drift.parquet: for every window and parameter its estimate, interval and value in use."""
    names = [param.address for param in found.params]
    columns: dict[str, Any] = {
        "t": np.repeat([point.t for point in found.points], len(names)),
        "parameter": names * len(found.points),
    }
    for title, field in (("estimate", "values"), ("low", "low"), ("high", "high"), ("in use", "used")):
        rows = [getattr(point, field) for point in found.points]
        columns[title] = np.concatenate(rows) if rows else np.zeros(0)
    path = folder / "drift.parquet"
    pq.write_table(pa.table(columns), path)
    return path
