"""Evaluate policies in virtual worlds: every policy, every world, the same starts, in batches."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.param import Belief
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, MapFn, Policy, Simulator, World
from instep.policy.chunking import Latency
from instep.scene.tasks.task import Task, Tasked

from .episode_batch import INFRA, SUCCESS, BatchResult, EpisodeResult, run_batch


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy to be evaluated, made where it is needed."""

    name: str
    make: Callable[[World], Policy]
    mark: str = ""
    """A fingerprint of its content: results of another content are not reused."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world to evaluate in, made where it is needed."""

    name: str
    make: Callable[[], World]
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """How to evaluate."""

    batch: int = 64
    """Episodes that run side by side. Results may depend on it in the last bits, so it is part of what was asked."""
    latency: int = 0
    """Control steps by which decisions are late."""
    randomize: Belief | None = None
    """Where the parameters of each episode's world are drawn from."""
    films: int = 0
    """Of how many episodes of a batch that did not succeed the positions are kept."""
    bounds: Array | None = None
    """The lowest and highest actions that are taken [2, nu]."""


@dataclass(frozen=True, slots=True, eq=False)
class EvalBatch:
    """A batch of episodes: what a worker gets."""

    candidate: PolicySpec
    place: WorldSpec
    task: Task
    seeds: tuple[int, ...]
    options: EvalOptions

    @property
    def key(self) -> str:
        """The name under which its result is kept: the same work has the same key."""
        options = self.options
        asked = (
            [self.candidate.name, self.candidate.mark, self.place.name, self.place.mark, self.task.name],
            [self.task.seconds, options.batch, options.latency, repr(options.randomize), list(self.seeds)],
        )
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class LostBatch:
    """What a map yields for a job whose worker died or hung, in place of a result."""

    why: str


class ResultStore(Protocol):
    """Where results are kept as they come, so that an evaluation can go on after it was stopped."""

    def load(self, key: str) -> tuple[EpisodeResult, ...] | None:
        """The result of a job that was done before."""
        ...

    def save(self, key: str, ended: Sequence[EpisodeResult], tracks: Mapping[int, Array]) -> None:
        """Keep the result of a job."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """How each policy did in each world."""

    results: Mapping[tuple[str, str], tuple[EpisodeResult, ...]]
    """(policy, world) -> episodes, in the order of the seeds."""
    task: Task

    def success(self, policy: str, world: str) -> Estimate:
        """The success rate with Wilson's interval, over the episodes that count."""
        rows = [row for row in self.results[policy, world] if row.counts]
        return wilson(sum(row.success for row in rows), len(rows))

    def seconds(self, policy: str, world: str) -> Estimate | None:
        """The median time to success [s]; None where nothing succeeded."""
        times = [row.seconds for row in self.results[policy, world] if row.success]
        return bootstrap(times, lambda x: np.median(x, axis=-1), unit="s") if times else None

    def score(self, policy: str, world: str) -> Estimate | None:
        """The mean score at the end."""
        scores = [row.score for row in self.results[policy, world] if row.counts]
        return bootstrap(scores) if scores else None

    def failures(self, policy: str, world: str) -> dict[str, int]:
        """How often each way of failing came: the outcome, and for a timeout the stage it stopped at."""
        rows = [row for row in self.results[policy, world] if row.outcome not in (SUCCESS, INFRA)]
        return dict(Counter(_mode(row) for row in rows).most_common())

    def broken(self, policy: str, world: str) -> int:
        """Episodes that the machinery broke."""
        return sum(not row.counts for row in self.results[policy, world])


def evaluate(
    policies: Sequence[PolicySpec],
    worlds: Sequence[WorldSpec],
    task: Task,
    seeds: Sequence[int],
    *,
    options: EvalOptions | None = None,
    map: MapFn = map,
    store: ResultStore | None = None,
    tell: Callable[[EvalBatch], None] | None = None,
) -> Evaluation:
    """Run every policy in every world from every seed. `map` spreads the batches; `store` keeps what is done."""
    options = options or EvalOptions()
    _check(policies, worlds, seeds, options)
    chunks = [tuple(seeds[i : i + options.batch]) for i in range(0, len(seeds), options.batch)]
    jobs = [
        EvalBatch(policy, world, task, chunk, options) for policy in policies for world in worlds for chunk in chunks
    ]
    done: dict[str, tuple[EpisodeResult, ...]] = {}
    if store is not None:
        done = {job.key: kept for job in jobs if (kept := store.load(job.key)) is not None}
    for job in jobs if tell is not None else ():
        if job.key in done:
            cast(Callable[[EvalBatch], None], tell)(job)
    pending = [job for job in jobs if job.key not in done]
    for job, result in zip(pending, map(run_eval_batch, pending), strict=True):
        played = _broken(job, result.why) if isinstance(result, LostBatch) else cast(BatchResult, result)
        done[job.key] = played.ended
        # What the machinery broke is not kept, so that it is tried again next time.
        if store is not None and all(row.counts for row in played.ended):
            store.save(job.key, played.ended, played.tracks)
        if tell is not None:
            tell(job)
    results: dict[tuple[str, str], tuple[EpisodeResult, ...]] = {}
    for job in jobs:
        pair = (job.candidate.name, job.place.name)
        results[pair] = (*results.get(pair, ()), *done[job.key])
    return Evaluation(results, task)


def run_eval_batch(job: EvalBatch) -> BatchResult:
    """Play one batch, in whichever process this is."""
    world, settings = _world(job)
    tasked = Tasked(world, job.task)
    policy = job.candidate.make(tasked)
    if job.options.latency:
        policy = Latency(policy, job.options.latency)
    try:
        played = run_batch(tasked, policy, job.seeds, bounds=job.options.bounds, keep=job.options.films)
    except LinkLost as error:
        return _broken(job, str(error))
    if not settings:
        return played
    drawn = [{name: float(values[i]) for name, values in settings.items()} for i in range(len(job.seeds))]
    return replace(
        played, ended=tuple(replace(row, settings=own) for row, own in zip(played.ended, drawn, strict=True))
    )


@dataclass(slots=True)
class _Kept:
    """Worlds that were opened in this process, so that each is opened once."""

    worlds: dict[tuple[str, str], World] = field(default_factory=dict[tuple[str, str], World])


_KEPT = _Kept()


def _world(job: EvalBatch) -> tuple[World, dict[str, Array]]:
    key = (job.place.name, job.place.mark)
    if key not in _KEPT.worlds or not job.place.mark:
        _KEPT.worlds[key] = job.place.make()
    world = _KEPT.worlds[key]
    if job.options.randomize is None:
        return world, {}
    # One draw per seed, so that an episode's world does not depend on the batch it is in.
    draws = [job.options.randomize.sample(1, np.random.default_rng((seed, 0xD12A))) for seed in job.seeds]
    settings = {name: np.array([float(draw[name][0]) for draw in draws]) for name in draws[0]}
    return cast(Simulator, world).tuned(settings), settings


def _broken(job: EvalBatch, why: str) -> BatchResult:
    rows = (EpisodeResult(seed, INFRA, "", 0, 0.0, 0.0, why=why) for seed in job.seeds)
    return BatchResult(tuple(rows), {})


def _mode(row: EpisodeResult) -> str:
    return f"{row.outcome} after {row.stage!r}" if row.stage else row.outcome


def _check(policies: Sequence[Any], worlds: Sequence[Any], seeds: Sequence[int], options: EvalOptions) -> None:
    for what, given in (("policy", policies), ("world", worlds), ("seed", seeds)):
        if not given:
            raise BadInput(f"An evaluation needs at least one {what}, and none was given.")
    for what, names in (("policies", [p.name for p in policies]), ("worlds", [w.name for w in worlds])):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise BadInput(f"Two {what} of an evaluation are both called {twice[0]!r}; give each a name of its own.")
    if len(set(seeds)) != len(seeds):
        raise BadInput("The seeds of an evaluation must differ from each other, or starts would count twice.")
    if options.batch < 1:
        raise BadInput(f"A batch holds at least one episode, not {options.batch}.")
    if options.latency < 0:
        raise BadInput(f"Latency is a number of control steps of at least 0, not {options.latency}.")
