"""Processes beside a run: a second policy that is never sent, re-identification, cameras, and a simulated robot.

A control loop never waits for them. `robot_process` starts a simulated robot behind a real robot's link; `connect`
connects to one, or to a real robot, as a world.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.reading import TEXT, read_entries
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Observation, Spec, State, World, array_dataclass, frozen_dataclass, inner_with
from instep.report.page import Number, Section
from instep.robot import connect_robot

if TYPE_CHECKING:
    from instep.evaluate.action_check import ActionCheck
    from instep.robot.link import RobotWorld


ENDED = "its process ended"
OPEN_TIMEOUT_S = 180.0
"""How long a run waits for a process beside it: large networks load slowly [s]."""
CLOSE_TIMEOUT_S = 5.0
"""How long the end of a run waits for the last answer of a shadow policy [s]."""


class SideProcess:
    """A process that answers one request after another in its own time.

    `opener` runs there with the arguments, and returns the function that answers. Ctrl-C does not reach the process.
    """

    def __init__(self, opener: Callable[..., Callable[[Any], Any]], *arguments: Any, niceness: int = 0):
        context = multiprocessing.get_context("spawn")
        self._pipe, self._other = context.Pipe()
        self.process = context.Process(target=_serve, args=(self._other, niceness, opener, arguments), daemon=True)
        self._thread: threading.Thread | None = None

    def open(self, exchange: Callable[[], None], timeout: float = OPEN_TIMEOUT_S) -> str:
        """Start it, and a thread that runs `exchange`; returns why it cannot begin, else an empty text."""
        self.process.start()
        self._other.close()
        try:
            problem = self._pipe.recv() if self._pipe.poll(timeout) else f"it was not ready within {timeout:g} s"
        except (EOFError, OSError):
            problem = ENDED
        if problem:
            self.process.terminate()
            return problem
        self._thread = threading.Thread(target=exchange, name="instep-beside", daemon=True)
        self._thread.start()
        return ""

    def ask(self, request: Any) -> Any:
        """The answer to a request, for the thread; EOFError or OSError if the process has ended."""
        self._pipe.send(request)
        return self._pipe.recv()

    def close(self, timeout: float) -> bool:
        """End it after its thread, or after so many seconds; whether the thread ended in time."""
        late = False
        if self._thread is not None:
            self._thread.join(timeout)
            late = self._thread.is_alive()
        if self.process.is_alive():
            self.process.terminate()
        if self.process.pid is not None:
            self.process.join(timeout)
        return not late


def _serve(
    pipe: Connection, niceness: int, opener: Callable[..., Callable[[Any], Any]], arguments: Sequence[Any]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = opener(*arguments)
    except InstepError as error:
        pipe.send(str(error))
        return
    except Exception as error:  # noqa: BLE001 - the run says why, and ends before anything moves
        pipe.send(f"it raised {type(error).__name__}: {error}.")
        return
    pipe.send("")
    os.nice(niceness)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(answer(pipe.recv()))


@array_dataclass
class RunPart:
    """What something beside the loop adds to the result and the page: a twin, a shadow policy, the robot itself."""

    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For result.json."""
    numbers: Sequence[Number] = ()
    sections: Sequence[Section] = ()
    doubts: Sequence[str] = ()
    """What makes the run doubtful, each in one sentence."""
    words: str = ""
    """A sentence for the terminal."""


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
        from instep.evaluate.action_check import PredictedActions, compare_actions

        known = self.rows < len(episode)
        if known.sum() < 2:
            raise BadInput(f"It answered {int(known.sum())} times, too seldom to be compared with what was done.")
        said = PredictedActions(self.rows[known], self.chunks[known])
        return compare_actions([episode], [said], subject=f"The shadow policy {self.words!r}")

    def write(self, folder: Path, spec: Spec) -> Path:
        """Write shadow.parquet: row, step of the chunk, latency [s], and each action."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        n, horizon = len(self.chunks), int(self.chunks.shape[1])
        table = {
            "row": np.repeat(self.rows, horizon), "step": np.tile(np.arange(horizon), n),
            "latency": np.repeat(self.latency, horizon),
            **{label: self.chunks[..., j].ravel() for j, label in enumerate(spec.action.labels)},
        }  # fmt: skip
        path = folder / "shadow.parquet"
        pq.write_table(pa.table(table), path)
        return path

    def part(self, episode: Episode, folder: Path, *, dropped: int = 0) -> RunPart:
        """Write the answers into the folder of a run, and compare them with what was done."""
        from instep.report.eval_pages import check_sections

        self.write(folder, episode.spec)
        scores, skipped = self.scores(), self.seen - len(self.rows)
        said = f"It saw {len(self.rows)} of {self.seen} rows; {skipped} came while it was busy. Nothing was sent."
        said += f" It stopped: {self.problem}." if self.problem else ""
        try:
            if dropped:
                raise BadInput("Rows of the run were dropped, so its answers cannot be placed beside what was done.")
            check = self.compared(episode)
        except BadInput as error:
            words = f"The shadow policy {self.words!r} was not compared: {error}"
            sections = [Section("Shadow policy", f"{words} {said}")]
        else:
            words = check.words
            scores |= {f"shadow {name}": estimate for name, estimate in check.scores.items()}
            sections = [Section("Shadow policy", f"{words} {said}", list(check.mismatches))]
            sections += [replace(part, title=f"Shadow: {part.title.lower()}") for part in check_sections(check)]
        facts = {"shadow": self.words, "shadow verdict": words}
        return RunPart(scores, facts, sections=sections, words=words)


class Shadow:
    """A policy that watches a run, used with `with`: it is opened before the run begins.

    While it is still busy with an observation, others are skipped and counted.
    """

    def __init__(self, words: str, world: World, *, seed: int = 0):
        inner = inner_with(world, "scene")
        scene = None if inner is None else str(inner.scene.root)
        self._words, self._actions = words, world.spec.action.shape[-1]
        self._process = SideProcess(_open_policy, words, world.spec, scene, seed, niceness=10)
        self._jobs: SimpleQueue[tuple[int, Observation] | None] = SimpleQueue()
        self._busy, self._rows, self._problem = False, 0, ""
        self._answers: list[tuple[int, Array, float]] = []

    def __enter__(self) -> Shadow:
        if problem := self._process.open(self._exchange):
            raise BadInput(f"The shadow policy {self._words!r} cannot be opened: {problem}")
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._process.close(CLOSE_TIMEOUT_S)

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Show a row of the run to the policy, or skip it where the policy is busy; returns at once."""
        row, self._rows = self._rows, self._rows + 1
        if not self._busy and not self._problem:
            self._busy = True
            self._jobs.put((row, {name: np.array(value) for name, value in observation.items()}))

    def answers(self) -> ShadowAnswers:
        """What it answered so far."""
        found = list(self._answers)
        horizon = min((len(chunk) for _, chunk, _ in found), default=1)
        chunks = np.stack([chunk[:horizon] for _, chunk, _ in found]) if found else np.zeros((0, 1, self._actions))
        rows, latency = np.array([row for row, _, _ in found], int), np.array([took for *_, took in found], float)
        return ShadowAnswers(self._words, rows, chunks, latency, self._rows, self._problem)

    def _exchange(self) -> None:
        while (job := self._jobs.get()) is not None:
            begin = time.monotonic()
            try:
                answer: Array | str = self._process.ask(job[1])
            except (EOFError, OSError):
                answer = ENDED
            if isinstance(answer, str):
                self._problem = answer
            else:
                self._answers.append((job[0], answer, time.monotonic() - begin))
            self._busy = False


def _open_policy(words: str, spec: Spec, scene: str | None, seed: int) -> Callable[[Observation], Array | str]:
    """A policy for a world that is described by its spec and scene: the world itself is in the other process."""
    from instep.policy.chunking import as_chunk_policy
    from instep.policy.policy_specs import policy_from_spec
    from instep.scene.folder import Scene

    world: Any = SimpleNamespace(spec=spec) if scene is None else SimpleNamespace(spec=spec, scene=Scene.load(scene))
    policy = as_chunk_policy(policy_from_spec(words, world))
    policy.reset(seed)

    def answer(observation: Observation) -> Array | str:
        """The policy's actions [horizon, nu], or a sentence that says why there are none."""
        try:
            chunk = np.asarray(policy.infer(observation), float)
        except Exception as error:  # noqa: BLE001 - whatever it raises ends the shadow, never the run
            return f"it raised {type(error).__name__}: {error}"
        if chunk.ndim != 2 or not len(chunk) or chunk.shape[1:] != spec.action.shape:
            return f"it answered with shape {list(chunk.shape)}"
        return chunk if np.isfinite(chunk).all() else "it answered with numbers that are not finite"

    return answer


@frozen_dataclass
class Child:
    """A simulated robot in its own process."""

    address: str
    token: str
    pid: int


@contextmanager
def robot_process(scene: str, options: Sequence[str] = (), *, timeout: float = 60.0) -> Generator[Child]:
    """A running simulated robot, stopped on leaving; `options` are those of `instep robot`."""
    with TemporaryDirectory(prefix="instep-") as folder:
        ready, complaints = Path(folder) / "ready.json", Path(folder) / "stderr"
        command = [sys.executable, "-m", "instep.app.cli", "robot", scene, "--ready", str(ready), *options]
        with complaints.open("wb") as errors:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)  # noqa: S603
        try:
            deadline = time.monotonic() + timeout
            while not ready.is_file():
                if child.poll() is not None or time.monotonic() > deadline:
                    said = complaints.read_text(errors="replace").strip().splitlines()
                    raise LinkLost(f"The simulated robot did not start: {said[-1] if said else 'it said nothing'}")
                time.sleep(0.02)
            known = read_entries(ready, {"address": TEXT, "token": TEXT})
            yield Child(known["address"], known["token"], child.pid)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


SIMULATED = "simulated:"
"""Prefix of an address that asks for a simulated robot of a scene."""
START_TIMEOUT_S = 20.0
"""How long a simulated robot may take to answer: the first camera images of a cold machine take a while."""


def connect(address: str, token: str = "", *, timeout: float = 2.0) -> AbstractContextManager[RobotWorld]:
    """A robot as a `World`, to be used with `with`.

    `address` is that of a robot's link (`ws://HOST:PORT`, see docs/formats/link.md), with its `token`; the name of a
    driver and its address (`NAME:ADDRESS`); or
    `simulated:SCENE`, which starts a simulated robot of a scene in another process and another engine, with hidden
    parameters, noise and delay, and stops it on leaving. `timeout` [s] bounds how long a reply of the link may take.
    """
    if address.startswith(SIMULATED):
        return _simulated(address.removeprefix(SIMULATED), max(timeout, START_TIMEOUT_S))
    return connect_robot(address, token, timeout=timeout)


@contextmanager
def _simulated(scene: str, timeout: float) -> Generator[RobotWorld]:
    from instep.robot.link import RobotWorld

    with (
        robot_process(scene, ["--hidden", "1", "--pace", "step"]) as child,
        RobotWorld(child.address, child.token, timeout=timeout) as robot,
    ):
        yield robot
