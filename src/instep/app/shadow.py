"""A second policy beside a run: it sees what the first one sees, and what it answers is kept but never sent.

It runs in a process of its own, with low priority. The control loop copies an observation and goes on; while the policy
is still busy with an earlier one, observations are skipped and counted.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Observation, Spec, State, World, array_dataclass, inner_with
from instep.evaluate.action_check import ActionCheck, PredictedActions, compare_actions
from instep.report.eval_pages import check_sections
from instep.report.page import Section

OPEN_TIMEOUT_S = 180.0
"""How long a run waits for its shadow policy to be opened: large networks load slowly [s]."""
CLOSE_TIMEOUT_S = 5.0
"""How long the end of a run waits for the last answer [s]."""
NICENESS = 10
"""Added to the niceness of the shadow's process, so that it yields to the control loop."""


@array_dataclass
class ShadowAnswers:
    """What a shadow policy answered during a run."""

    words: str
    """The policy, as on the command line."""
    rows: Array
    """Rows of the run that it saw [n]."""
    chunks: Array
    """Actions it would have taken from each of these rows on [n, horizon, nu]."""
    latency: Array
    """How long each answer took [s]."""
    seen: int
    """Rows of the run."""
    problem: str = ""
    """Why it stopped answering; empty where it did not."""

    def scores(self) -> dict[str, Estimate]:
        """The share of rows it skipped, and its latency."""
        found = {"shadow skipped rows": wilson(self.seen - len(self.rows), self.seen)}
        if len(self.latency):
            middle, low, high = (float(np.quantile(self.latency, share)) for share in (0.5, 0.025, 0.975))
            found["shadow latency"] = Estimate(middle, low, high, len(self.latency), "s")
        return found

    def compared(self, episode: Episode) -> ActionCheck:
        """Its actions beside those that were taken; BadInput where there is nothing to compare."""
        known = self.rows < len(episode)
        if known.sum() < 2:
            raise BadInput(f"It answered {int(known.sum())} times, too seldom to be compared with what was done.")
        said = PredictedActions(self.rows[known], self.chunks[known])
        return compare_actions([episode], [said], subject=f"The shadow policy {self.words!r}")

    def write(self, folder: Path, spec: Spec) -> Path:
        """Write shadow.parquet: row, step of the chunk, latency [s], and each action."""
        n, horizon = len(self.chunks), int(self.chunks.shape[1])
        table: dict[str, Array] = {
            "row": np.repeat(self.rows, horizon),
            "step": np.tile(np.arange(horizon), n),
            "latency": np.repeat(self.latency, horizon),
        }
        table |= {label: self.chunks[..., j].ravel() for j, label in enumerate(spec.action.labels)}
        path = folder / "shadow.parquet"
        pq.write_table(pa.table(table), path)
        return path


@array_dataclass
class ShadowSummary:
    """What a shadow policy adds to the result and the page of a run."""

    words: str
    """The comparison in a sentence."""
    scores: dict[str, Estimate]
    sections: Sequence[Section]
    facts: dict[str, Any]


def summarize_shadow(answers: ShadowAnswers, episode: Episode, folder: Path, *, dropped: int = 0) -> ShadowSummary:
    """Write a shadow policy's answers into the folder of a run, and compare them with what was done."""
    answers.write(folder, episode.spec)
    scores = answers.scores()
    skipped = answers.seen - len(answers.rows)
    said = f"It saw {len(answers.rows)} of {answers.seen} rows; {skipped} came while it was busy. Nothing was sent."
    said += f" It stopped: {answers.problem}." if answers.problem else ""
    sections: list[Section] = []
    try:
        if dropped:
            raise BadInput("Rows of the run were dropped, so its answers cannot be placed beside what was done.")
        check = answers.compared(episode)
    except BadInput as error:
        words = f"The shadow policy {answers.words!r} was not compared: {error}"
        sections = [Section("Shadow policy", f"{words} {said}")]
    else:
        words = check.words
        scores |= {f"shadow {name}": estimate for name, estimate in check.scores.items()}
        sections = [Section("Shadow policy", f"{check.words} {said}", list(check.mismatches))]
        sections += [replace(part, title=f"Shadow: {part.title.lower()}") for part in check_sections(check)]
    return ShadowSummary(words, scores, sections, {"shadow": answers.words, "shadow verdict": words})


class Shadow:
    """A policy that watches a run, used with `with`: it is opened before the run begins."""

    def __init__(self, words: str, world: World, *, seed: int = 0):
        self._words, self._spec = words, world.spec
        inner = inner_with(world, "scene")
        scene = None if inner is None else str(inner.scene.root)
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_answer, args=(other, words, world.spec, scene, seed), daemon=True)
        self._other = other
        self._jobs: SimpleQueue[tuple[int, Observation] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._exchange, name="instep-shadow", daemon=True)
        self._busy = False
        self._rows = 0
        self._answers: list[tuple[int, Array, float]] = []
        self._problem = ""

    def __enter__(self) -> Shadow:
        self._process.start()
        self._other.close()
        try:
            if not self._pipe.poll(OPEN_TIMEOUT_S):
                raise BadInput(f"The shadow policy {self._words!r} was not opened within {OPEN_TIMEOUT_S:g} s.")
            problem = self._pipe.recv()
        except EOFError:
            problem = "its process ended"
        if problem:
            self._process.terminate()
            raise BadInput(f"The shadow policy {self._words!r} cannot be opened: {problem}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(CLOSE_TIMEOUT_S)

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Show a row of the run to the policy, or skip it where the policy is busy; returns at once."""
        row, self._rows = self._rows, self._rows + 1
        if self._busy or self._problem:
            return
        self._busy = True
        self._jobs.put((row, {name: np.array(value) for name, value in observation.items()}))

    def answers(self) -> ShadowAnswers:
        """What it answered so far."""
        found = list(self._answers)
        horizon = min((len(chunk) for _, chunk, _ in found), default=1)
        chunks = np.stack([chunk[:horizon] for _, chunk, _ in found]) if found else np.zeros((0, 1, self._actions))
        rows = np.array([row for row, _, _ in found], int)
        latency = np.array([took for _, _, took in found], float)
        return ShadowAnswers(self._words, rows, chunks, latency, self._rows, self._problem)

    @property
    def _actions(self) -> int:
        return self._spec.action.shape[-1]

    def _exchange(self) -> None:
        """Send observations and take answers, in a thread, since a pipe waits for its other end."""
        while (job := self._jobs.get()) is not None:
            row, observation = job
            begin = time.monotonic()
            try:
                self._pipe.send(observation)
                answer: Array | str = self._pipe.recv()
            except (EOFError, OSError):
                answer = "its process ended"
            if isinstance(answer, str):
                self._problem = answer
            else:
                self._answers.append((row, answer, time.monotonic() - begin))
            self._busy = False
        with suppress(OSError):
            self._pipe.send(None)


def _answer(pipe: Connection, words: str, spec: Spec, scene: str | None, seed: int) -> None:
    """Open the policy, say so, and answer observations until told to end."""
    os.nice(NICENESS)
    try:
        policy = _opened(words, spec, scene)
        policy.reset(seed)
    except InstepError as error:
        pipe.send(str(error))
        return
    except Exception as error:  # noqa: BLE001 - the run says why, and ends before anything moves
        pipe.send(f"it raised {type(error).__name__}: {error}.")
        return
    pipe.send("")
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while (observation := pipe.recv()) is not None:
            pipe.send(_chunk(policy, observation, spec))


def _opened(words: str, spec: Spec, scene: str | None) -> Any:
    """The policy for a world that is described by its spec and scene: the world itself is in the other process."""
    from instep.policy.chunking import as_chunk_policy
    from instep.policy.policy_specs import policy_from_spec
    from instep.scene.folder import Scene

    world: Any = SimpleNamespace(spec=spec) if scene is None else SimpleNamespace(spec=spec, scene=Scene.load(scene))
    return as_chunk_policy(policy_from_spec(words, world))


def _chunk(policy: Any, observation: Observation, spec: Spec) -> Array | str:
    """The policy's actions [horizon, nu], or a sentence that says why there are none."""
    try:
        chunk = np.asarray(policy.infer(observation), float)
    except Exception as error:  # noqa: BLE001 - whatever it raises ends the shadow, never the run
        return f"it raised {type(error).__name__}: {error}"
    if chunk.ndim != 2 or not len(chunk) or chunk.shape[1:] != spec.action.shape:
        return f"it answered with shape {list(chunk.shape)}"
    return chunk if np.isfinite(chunk).all() else "it answered with numbers that are not finite"
