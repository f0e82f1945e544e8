"""Run a batch of episodes of a task, with the outcome of each, and keep outcomes on disk.

Return of an episode: the mean score over its time limit, one number per world of a batch.

After success the rest of the time counts as 1, after a failure as 0: fast and safe is better than slow or lost.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
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
    put,
    stack,
    take,
)
from instep.data.files import read_npy, read_table
from instep.scene.tasks.task import Tasked

SUCCESS, TIMEOUT, DIVERGED, INFRA = "success", "timeout", "diverged", "infra"
"""How an episode may end, besides the failures that its task names."""
OUTCOMES = "episode.outcomes"
"""What watchers of a batch see beside its observation: 0 while an episode goes on, 1 once it has succeeded, -1 once
it has ended otherwise [n]."""


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
    """How long it took, in the world's time [s]."""
    score: float
    """How well things stood at the end, 0 to 1."""
    speed: float = 0.0
    """Largest speed of any joint [rad/s or m/s]."""
    jump: float = 0.0
    """Largest change of any action from one step to the next, in its unit."""
    beyond: float = 0.0
    """Share of the actions that lay outside what the actuators take."""
    decide_ms: float = field(default=0.0, compare=False)
    """How long the policy took to decide, per call for the whole batch, median [ms]."""
    events: Mapping[str, float] = field(default_factory=dict[str, float])
    """When each event was reached [s]."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """The parameters of this episode's world, where they were sampled."""
    digest: str = ""
    """A fingerprint of the last state: two runs agree bit by bit where it does."""
    why: str = ""
    """What broke, where something did."""

    @property
    def success(self) -> bool:
        """Whether the task was done."""
        return self.outcome == SUCCESS

    @property
    def valid(self) -> bool:
        """Whether it says anything about the policy: infrastructure failures do not."""
        return self.outcome != INFRA


@array_dataclass
class BatchResult:
    """A batch of episodes."""

    episodes: tuple[EpisodeResult, ...]
    trajectories: Mapping[int, Array]
    """Seed -> positions q over the episode [rows, nq], of the first episodes that failed, and of the first success."""


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

    `bounds` [2, nu] are the lowest and highest actions that are taken; `keep` is of how many that did not succeed
    the positions are kept, and where it is not 0 those of the first success too. `watch` are shown every row.
    """
    state = stack([world.reset(seed) for seed in seeds])
    policy.reset(seeds[0])
    log, track = _BatchLog(world, state, bounds), list[Array]()
    for _ in range(world.steps):
        if keep:
            track.append(state.q.copy())
        seen = world.observe(state)
        begin = time.perf_counter()
        action = checked_action(policy.act(seen), world.spec, state.batch)
        log.decided(time.perf_counter() - begin, seen.get("observation.velocity"), action)
        log.show(watch, state, seen, action)
        state, lost = step_batch(world, state, action, log.diverged)
        log.note(state, lost)
        if log.all_over:
            break
    ended = log.close(state, seeds)
    log.show(watch, state, {}, log.last_action)
    shown = [i for i, row in enumerate(ended) if not row.success][:keep] + [
        i for i, r in enumerate(ended) if r.success
    ][:1]
    trajectories = (
        {int(seeds[i]): np.stack([q[i] for q in track[: ended[i].steps + 1]]) for i in shown} if track else {}
    )
    return BatchResult(ended, trajectories)


def step_batch(world: Tasked[World], state: State, action: Array, lost: Array) -> tuple[State, Array]:
    """The next state, and the worlds that have diverged so far [n].

    A world that has diverged goes on as a copy of a sound one, so that the batch keeps its size; its episode is over.
    """
    while not lost.all():
        try:
            return world.step(*_parked(state, action, lost)), lost
        except Diverged as error:
            lost = lost | np.isin(np.arange(len(lost)), error.worlds)
    return state, lost


def _parked(state: State, action: Array, lost: Array) -> tuple[State, Array]:
    if not lost.any():
        return state, action
    rows, leader = np.flatnonzero(lost), int(np.argmin(lost))
    action = action.copy()
    action[rows] = action[leader]
    return put(state, rows, take(state, np.full(len(rows), leader))), action


class _BatchLog:
    """What is recorded of a batch while it runs."""

    def __init__(self, world: Tasked[World], first: State, bounds: Array | None):
        self._world, self._bounds = world, bounds
        n = len(first.q)
        self._over = np.zeros(n, bool)
        self.diverged = np.zeros(n, bool)
        """Worlds that cannot go on, whether or not their episode was over before."""
        self._strayed, self._won = np.zeros(n, bool), np.zeros(n, bool)
        self._steps = np.zeros(n, int)
        self._score, self._speed = np.zeros(n), np.zeros(n)
        self._jump, self._beyond = np.zeros(n), np.zeros(n)
        self._digest = [""] * n
        self._last: Array | None = None
        self._times: list[float] = []

    @property
    def all_over(self) -> bool:
        return bool(self._over.all())

    @property
    def last_action(self) -> Array:
        return np.zeros(0) if self._last is None else self._last

    def show(self, watch: Sequence[Watcher], state: State, seen: Observation, action: Array) -> None:
        if not watch:
            return
        outcomes = np.where(self._over, np.where(self._won, 1, -1), 0)
        for watcher in watch:
            watcher(state, {**seen, OUTCOMES: outcomes}, action)

    def decided(self, seconds: float, velocity: Array | None, action: Array) -> None:
        self._times.append(seconds)
        going = ~self._over
        if velocity is not None and velocity.size:
            fastest = np.abs(np.asarray(velocity, float)).max(axis=-1)
            self._speed = np.where(going, np.maximum(self._speed, fastest), self._speed)
        if self._last is not None:
            jump = np.abs(action - self._last).max(axis=-1)
            self._jump = np.where(going, np.maximum(self._jump, jump), self._jump)
        if self._bounds is not None:
            outside = ((action < self._bounds[0] - 1e-9) | (action > self._bounds[1] + 1e-9)).mean(axis=-1)
            self._beyond = self._beyond + np.where(going, outside, 0.0)
        self._last = action

    def note(self, state: State, lost: Array) -> None:
        self._steps[~self._over] += 1
        self._strayed |= lost & ~self._over
        self.diverged = lost
        self._end(state, (np.asarray(self._world.done(state)) | lost) & ~self._over)

    def close(self, state: State, seeds: Sequence[int]) -> tuple[EpisodeResult, ...]:
        """How each episode ended; those that still go on ran out of time."""
        self._end(state, ~self._over)
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
            rows.append(
                EpisodeResult(
                    seed=int(seed),
                    outcome=DIVERGED if self._strayed[i] else outcome,
                    stage=list(times)[-1] if times else "",
                    steps=int(self._steps[i]),
                    seconds=float(self._steps[i] * dt),
                    score=float(self._score[i]),
                    speed=float(self._speed[i]),
                    jump=float(self._jump[i]),
                    beyond=float(self._beyond[i] / max(1, self._steps[i])),
                    decide_ms=ms,
                    events=times,
                    digest=self._digest[i],
                )
            )
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
        self._over |= which


_JSON = ("events", "settings")
"""Fields that are mappings, kept as JSON."""


class ParquetStore:
    """A folder of batches; those that are there already need not be run again."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> tuple[EpisodeResult, ...] | None:
        """The episodes of a batch that was done before; None where its file is missing or was cut off."""
        path = self._folder / f"{key}.parquet"
        if not path.is_file():
            return None
        try:
            return _stored_rows(path)
        except BadInput:
            return None

    def save(self, key: str, result: BatchResult) -> None:
        """Keep a batch, whole or not at all, and the trajectories of its failures."""
        for seed, trajectory in result.trajectories.items():
            np.save(self._folder / f"{key}.{seed}.npy", trajectory)
        part = self._folder / f"{key}.part"
        _write(part, [_row(row) for row in result.episodes])
        part.replace(self._folder / f"{key}.parquet")

    def trajectory(self, key: str, seed: int) -> Array | None:
        """The positions of an episode that were kept."""
        path = self._folder / f"{key}.{seed}.npy"
        return read_npy(path) if path.is_file() else None


def write_rows(path: Path, rows: Sequence[tuple[Mapping[str, str], EpisodeResult]]) -> Path:
    """Write episodes, each with further columns."""
    _write(path, [{**more, **_row(row), "success": row.success} for more, row in rows])
    return path


def _stored_rows(path: Path) -> tuple[EpisodeResult, ...]:
    rows: list[dict[str, Any]] = read_table(path).to_pylist()
    known = {f.name for f in fields(EpisodeResult)}
    with parsing(path, "episodes that were evaluated"):
        return tuple(
            EpisodeResult(**{k: parse_json(v, str(path)) if k in _JSON else v for k, v in row.items() if k in known})
            for row in rows
        )


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path)


def _row(row: EpisodeResult) -> dict[str, Any]:
    return {name: json.dumps(value) if name in _JSON else value for name, value in asdict(row).items()}


SCORE_EVERY = 4
"""Control steps from one score to the next."""


@array_dataclass
class Returns:
    """The returns of a batch of episodes, and which of them did the task in time."""

    score: Array
    """Mean score over the time limit, 0 to 1 [n]."""
    success: Array
    """[n]."""
    error: Array
    """Mean tracking error [n]; that at the end of an episode counts for the rest of its time. NaN where the task
    defines none."""


def start_states(world: Tasked[Any], seeds: Sequence[int]) -> State:
    """The starts of some seeds as a batch."""
    return stack([world.reset(seed) for seed in seeds])


def episode_returns(world: Tasked[Any], policy: Policy, start: State, *, steps: int = 0, seed: int = 0) -> Returns:
    """Run a policy from a batch of starts for some control steps, those of the task where 0."""
    state, limit = start, steps or world.steps
    n = len(start.q)
    policy.reset(seed)
    total, count = np.zeros(n), 0
    error, away = np.zeros(n), np.zeros(n)
    lost, failed, done = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
    for row in range(limit):
        action = checked_action(policy.act(world.observe(state)), world.spec, state.batch)
        state, lost = step_batch(world, state, action, lost)
        failed |= lost | ((np.asarray(world.failure(state)) >= 0) & ~done)
        done |= np.asarray(world.success(state)) & ~failed
        if row % SCORE_EVERY == SCORE_EVERY - 1:
            now = np.asarray(world.score(state), float)
            total += np.where(failed, 0.0, np.where(done, 1.0, now))
            # An episode that is over keeps the error of its end.
            away = np.where((failed | done) & (count > 0), away, world.error(state))
            error += away
            count += 1
        if (failed | done).all():
            left = limit // SCORE_EVERY - count
            total, error, count = total + left * done, error + left * away, count + left
            break
    return Returns(total / max(1, count), done, error / max(1, count))
