"""Run episodes of a task in a batch of worlds: the one loop, outcomes, returns, and outcomes on disk."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, Diverged
from instep.core.reading import parse_json, parsing
from instep.core.rollout import checked_action
from instep.core.world import (
    Array,
    Observation,
    Policy,
    State,
    Watcher,
    World,
    array_dataclass,
    frozen_dataclass,
    stack,
    take,
)
from instep.data.files import read_npy, read_table
from instep.scene.tasks.task import Tasked

SUCCESS, TIMEOUT, DIVERGED, INFRA = "success", "timeout", "diverged", "infra"
"""How an episode may end, besides the failures that its task names."""
OUTCOMES = "episode.outcomes"
"""Extra observation for watchers of a batch: 0 while an episode runs, 1 after success, -1 after any other end [n]."""
SCORE_EVERY = 4
"""Control steps from one score of a return to the next."""
_JSON = ("events", "settings")
"""Fields of an episode that are mappings, kept as JSON."""


@frozen_dataclass
class EpisodeResult:
    """The outcome of one episode."""

    seed: int
    outcome: str
    """success, timeout, diverged, infra (an infrastructure failure) or a failure that the task names."""
    stage: str
    """The last event that was reached."""
    steps: int
    seconds: float
    """Length in the world's time [s]."""
    score: float
    """Score of the last state, 0 to 1."""
    speed: float = 0.0
    """Largest speed of any joint [rad/s or m/s]."""
    jump: float = 0.0
    """Largest change of any action from one step to the next, in its unit."""
    beyond: float = 0.0
    """Share of the actions outside the range of the actuators."""
    decide_ms: float = field(default=0.0, compare=False)
    """Decision time of the policy, per call for the whole batch, median [ms]."""
    events: Mapping[str, float] = field(default_factory=dict[str, float])
    """Time of each event [s]."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sampled parameters of this episode's world."""
    digest: str = ""
    """A fingerprint of the last state: two runs with equal fingerprints agree bit by bit."""
    why: str = ""
    """The reason of an infrastructure failure."""

    @property
    def success(self) -> bool:
        """Whether the task was done."""
        return self.outcome == SUCCESS

    @property
    def valid(self) -> bool:
        """Whether it counts for the policy: infrastructure failures do not."""
        return self.outcome != INFRA


@array_dataclass
class BatchResult:
    """A batch of episodes."""

    episodes: tuple[EpisodeResult, ...]
    trajectories: Mapping[int, Array]
    """Seed -> positions q over the episode [rows, nq], of the first episodes that failed, and of the first success."""


@array_dataclass
class BatchStep:
    """One control step of a batch of episodes."""

    row: int
    state: State
    """Before the step."""
    observation: Observation
    action: Array
    decision_s: float
    """Time of the policy for the whole batch [s]."""
    after: State
    """After the step."""
    diverged: Array
    """Worlds that have diverged so far [n]."""


def start_states(world: Tasked[Any], seeds: Sequence[int]) -> State:
    """The starts of some seeds as a batch."""
    return stack([world.reset(seed) for seed in seeds])


def batch_steps(
    world: Tasked[Any], policy: Policy, start: State, steps: int, *, seed: int = 0
) -> Iterator[BatchStep]:  # fmt: skip
    """Run a policy in a batch of worlds; the caller ends the loop when all episodes are over."""
    state, spec, lost = start, world.spec, np.zeros(len(start.q), bool)
    policy.reset(seed)
    for row in range(steps):
        seen = world.observe(state)
        begin = time.perf_counter()
        action = checked_action(policy.act(seen), spec, state.batch)
        took = time.perf_counter() - begin
        after, lost = step_batch(world, state, action, lost)
        yield BatchStep(row, state, seen, action, took, after, lost)
        state = after


def step_batch(world: World, state: State, action: Array, lost: Array) -> tuple[State, Array]:
    """The next state, and the worlds that have diverged so far [n].

    A diverged world continues as a copy of a sound one, so that the batch keeps its size.
    """
    while not lost.all():
        sound = np.where(lost, np.argmin(lost), np.arange(len(lost)))
        try:
            return world.step(take(state, sound) if lost.any() else state, action[sound]), lost
        except Diverged as error:
            lost = lost | np.isin(np.arange(len(lost)), error.worlds)
    return state, lost


def run_batch(
    world: Tasked[World],
    policy: Policy,
    seeds: Sequence[int],
    *,
    bounds: Array | None = None,
    keep: int = 0,
    watch: Sequence[Watcher] = (),
) -> BatchResult:
    """Run one episode per seed, all of them in one batch.

    `bounds` [2, nu] are the lowest and highest actions of the actuators. With `keep` above 0, the positions of so many
    failed episodes and of the first success are kept. `watch` gets every row.
    """
    state = start_states(world, seeds)
    log, track = _BatchLog(world, state, bounds), list[Array]()
    for step in batch_steps(world, policy, state, world.steps, seed=seeds[0]):
        if keep:
            track.append(step.state.q.copy())
        log.decided(step)
        log.show(watch, step.state, step.observation, step.action)
        log.note(step)
        state = step.after
        if log.over.all():
            break
    ended = log.close(state, seeds)
    log.show(watch, state, {}, np.zeros(0) if log.last is None else log.last)
    shown = [i for i, row in enumerate(ended) if not row.success][:keep]
    shown += [i for i, row in enumerate(ended) if row.success][:1]
    trajectories = (
        {int(seeds[i]): np.stack([q[i] for q in track[: ended[i].steps + 1]]) for i in shown} if track else {}
    )
    return BatchResult(ended, trajectories)


@array_dataclass
class Returns:
    """The returns of a batch of episodes."""

    score: Array
    """Mean score over the time limit, 0 to 1 [n]. After success the rest of the time counts as 1, after a failure
    as 0."""
    success: Array
    """Whether the task was done in time [n]."""
    error: Array
    """Mean tracking error [n]; that at the end of an episode counts for the rest of its time. NaN where the task
    defines none."""


def episode_returns(world: Tasked[Any], policy: Policy, start: State, *, steps: int = 0, seed: int = 0) -> Returns:
    """Run a policy from a batch of starts for some control steps, those of the task where 0."""
    limit, n = steps or world.steps, len(start.q)
    total, count = np.zeros(n), 0
    error, away = np.zeros(n), np.zeros(n)
    failed, done = np.zeros(n, bool), np.zeros(n, bool)
    for step in batch_steps(world, policy, start, limit, seed=seed):
        failed |= step.diverged | ((np.asarray(world.failure(step.after)) >= 0) & ~done)
        done |= np.asarray(world.success(step.after)) & ~failed
        if step.row % SCORE_EVERY == SCORE_EVERY - 1:
            now = np.asarray(world.score(step.after), float)
            total += np.where(failed, 0.0, np.where(done, 1.0, now))
            away = np.where((failed | done) & (count > 0), away, world.error(step.after))
            error += away
            count += 1
        if (failed | done).all():
            left = limit // SCORE_EVERY - count
            total, error, count = total + left * done, error + left * away, count + left
            break
    return Returns(total / max(1, count), done, error / max(1, count))


class _BatchLog:
    """Outcomes of a batch while it runs."""

    def __init__(self, world: Tasked[World], first: State, bounds: Array | None):
        self._world, self._bounds = world, bounds
        n = len(first.q)
        self.over = np.zeros(n, bool)
        self._strayed, self._won = np.zeros(n, bool), np.zeros(n, bool)
        self._steps = np.zeros(n, int)
        self._score, self._speed = np.zeros(n), np.zeros(n)
        self._jump, self._beyond = np.zeros(n), np.zeros(n)
        self._digest = [""] * n
        self.last: Array | None = None
        self._times: list[float] = []

    def show(self, watch: Sequence[Watcher], state: State, seen: Observation, action: Array) -> None:
        if not watch:
            return
        outcomes = np.where(self.over, np.where(self._won, 1, -1), 0)
        for watcher in watch:
            watcher(state, {**seen, OUTCOMES: outcomes}, action)

    def decided(self, step: BatchStep) -> None:
        self._times.append(step.decision_s)
        going, action, velocity = ~self.over, step.action, step.observation.get("observation.velocity")
        if velocity is not None and velocity.size:
            fastest = np.abs(np.asarray(velocity, float)).max(axis=-1)
            self._speed = np.where(going, np.maximum(self._speed, fastest), self._speed)
        if self.last is not None:
            jump = np.abs(action - self.last).max(axis=-1)
            self._jump = np.where(going, np.maximum(self._jump, jump), self._jump)
        if self._bounds is not None:
            outside = ((action < self._bounds[0] - 1e-9) | (action > self._bounds[1] + 1e-9)).mean(axis=-1)
            self._beyond = self._beyond + np.where(going, outside, 0.0)
        self.last = action

    def note(self, step: BatchStep) -> None:
        self._steps[~self.over] += 1
        self._strayed |= step.diverged & ~self.over
        self._end(step.after, (np.asarray(self._world.done(step.after)) | step.diverged) & ~self.over)

    def close(self, state: State, seeds: Sequence[int]) -> tuple[EpisodeResult, ...]:
        """How each episode ended; those that still go on ran out of time."""
        self._end(state, ~self.over)
        task, dt = self._world.task, self._world.spec.dt
        when, wrong = self._world.event_times(state), np.asarray(self._world.failure(state))
        ms = float(np.median(self._times)) * 1e3
        rows: list[EpisodeResult] = []
        for i, seed in enumerate(seeds):
            # A world that goes on after its end may still meet events: they do not count.
            times = {
                name: float(t)
                for name, t in zip(task.events, when[i], strict=True)
                if t <= (self._steps[i] + 0.5) * dt and not self._strayed[i]
            }
            done, which = len(times) == len(task.events), int(wrong[i])
            outcome: str = SUCCESS if done else task.failures[which] if which >= 0 else TIMEOUT
            steps, beyond = int(self._steps[i]), float(self._beyond[i] / max(1, self._steps[i]))
            outcome, stage = DIVERGED if self._strayed[i] else outcome, list(times)[-1] if times else ""
            rows.append(EpisodeResult(
                int(seed), outcome, stage, steps, float(steps * dt), float(self._score[i]), float(self._speed[i]),
                float(self._jump[i]), beyond, ms, times, digest=self._digest[i],
            ))  # fmt: skip
        return tuple(rows)

    def _end(self, state: State, which: Array) -> None:
        if not which.any():
            return
        index = np.flatnonzero(which)
        ended = take(state, index)
        self._score[index] = self._world.score(ended)
        self._won[index] = np.isfinite(self._world.event_times(ended)).all(axis=-1) & ~self._strayed[index]
        for i in index:
            row = np.concatenate([state.q[i], state.v[i]])
            self._digest[i] = hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest()
        self.over |= which


class ParquetStore:
    """A folder of batches; stored batches are not run again."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> tuple[EpisodeResult, ...] | None:
        """The episodes of a stored batch; None where its file is missing or was cut off."""
        path = self._folder / f"{key}.parquet"
        if not path.is_file():
            return None
        try:
            return tuple(row for _, row in read_rows(path))
        except BadInput:
            return None

    def save(self, key: str, result: BatchResult) -> None:
        """Keep a batch, whole or not at all, and the trajectories of its failures."""
        for seed, trajectory in result.trajectories.items():
            np.save(self._folder / f"{key}.{seed}.npy", trajectory)
        part = self._folder / f"{key}.part"
        write_rows(part, [({}, row) for row in result.episodes])
        part.replace(self._folder / f"{key}.parquet")

    def trajectory(self, key: str, seed: int) -> Array | None:
        """The stored positions of an episode."""
        path = self._folder / f"{key}.{seed}.npy"
        return read_npy(path) if path.is_file() else None


def write_rows(path: Path, rows: Sequence[tuple[Mapping[str, str], EpisodeResult]]) -> Path:
    """Write episodes, each with further columns."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    table = [
        {
            **more,
            **{name: json.dumps(value) if name in _JSON else value for name, value in asdict(row).items()},
            "success": row.success,
        }
        for more, row in rows
    ]
    parquet.write_table(arrow.Table.from_pylist(table), path)
    return path


def read_rows(path: Path) -> list[tuple[dict[str, str], EpisodeResult]]:
    """Episodes in a file, each with its further columns."""
    rows: list[dict[str, Any]] = read_table(path).to_pylist()
    known = {f.name for f in fields(EpisodeResult)}
    out: list[tuple[dict[str, str], EpisodeResult]] = []
    with parsing(path, "episodes that were evaluated"):
        for row in rows:
            own = {k: parse_json(v, str(path)) if k in _JSON else v for k, v in row.items() if k in known}
            more = {k: str(v) for k, v in row.items() if k not in known and k != "success"}
            out.append((more, EpisodeResult(**own)))
    return out
