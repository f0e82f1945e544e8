"""Evaluate policies in virtual worlds: every policy, every world, the same starts, in batches."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import ceil, inf, nan, sqrt
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.param import Belief
from instep.core.statistics import (
    Estimate,
    bootstrap,
    equivalence,
    mcnemar,
    normal_quantile,
    paired_difference,
    sequential_test,
    wilson,
)
from instep.core.world import (
    Array,
    MapFn,
    Policy,
    Simulator,
    Watcher,
    World,
    array_dataclass,
    frozen_dataclass,
    options_dataclass,
)
from instep.physics.engines import open_world
from instep.policy.chunking import Latency
from instep.scene.folder import Scene
from instep.scene.tasks import Task, task_of
from instep.scene.tasks.task import Tasked

from .episode_batch import INFRA, SUCCESS, BatchResult, EpisodeResult, ParquetStore, run_batch, write_rows

MakePolicy = Callable[[World], Policy]
MARGIN = 0.1
"""Difference of success rates that is negligible in practice."""


@frozen_dataclass
class PolicySpec:
    """A policy to be evaluated, made where it is needed."""

    name: str
    make: MakePolicy
    fingerprint: str = ""
    """A hash of its content: results of another content are not reused."""


@frozen_dataclass
class WorldSpec:
    """A world to evaluate in, made where it is needed."""

    name: str
    make: Callable[[], World]
    fingerprint: str = ""


@options_dataclass
class EvalOptions:
    """How to evaluate."""

    batch: int = 64
    """Episodes that run side by side. Results may depend on it in the last bits, so it is part of what is resumed."""
    latency: int = 0
    """Control steps by which decisions are late."""
    randomize: Belief | None = None
    """Where the parameters of each episode's world are sampled from."""
    videos: int = 0
    """Failed episodes of a batch whose positions are kept."""
    bounds: Array | None = None
    """The lowest and highest actions of the actuators [2, nu]."""
    folder: Path | None = None
    """Where batches are kept as they are done, so that an evaluation can be resumed."""


@array_dataclass
class EvalBatch:
    """A batch of episodes: the work of one worker."""

    policy: PolicySpec
    world: WorldSpec
    task: Task
    seeds: tuple[int, ...]
    options: EvalOptions

    @property
    def key(self) -> str:
        """The name under which its result is kept: the same work has the same key."""
        options = self.options
        work = (
            [self.policy.name, self.policy.fingerprint, self.world.name, self.world.fingerprint, self.task.name],
            [self.task.seconds, options.batch, options.latency, repr(options.randomize), list(self.seeds)],
        )
        return hashlib.sha256(json.dumps(work).encode()).hexdigest()[:24]


@frozen_dataclass
class LostBatch:
    """The result of a batch whose worker died or hung."""

    why: str


@array_dataclass
class Evaluation:
    """The episodes of each policy in each world."""

    results: Mapping[tuple[str, str], tuple[EpisodeResult, ...]]
    """(policy, world) -> episodes, in the order of the seeds."""
    task: Task
    batches: tuple[EvalBatch, ...] = ()

    def success(self, policy: str, world: str) -> Estimate:
        """The success rate with Wilson's interval, over the valid episodes."""
        rows = [row for row in self.results[policy, world] if row.valid]
        return wilson(sum(row.success for row in rows), len(rows))

    def seconds(self, policy: str, world: str) -> Estimate | None:
        """The median time to success [s]; None where nothing succeeded."""
        times = [row.seconds for row in self.results[policy, world] if row.success]
        return bootstrap(times, lambda x: np.median(x, axis=-1), unit="s") if times else None

    def score(self, policy: str, world: str) -> Estimate | None:
        """The mean score at the end."""
        scores = [row.score for row in self.results[policy, world] if row.valid]
        return bootstrap(scores) if scores else None

    def failures(self, policy: str, world: str) -> dict[str, int]:
        """Counts of each way of failing: the outcome, and the stage it stopped at."""
        rows = [row for row in self.results[policy, world] if row.outcome not in (SUCCESS, INFRA)]
        ways = (f"{row.outcome} after {row.stage!r}" if row.stage else row.outcome for row in rows)
        return dict(Counter(ways).most_common())

    def infrastructure_failures(self, policy: str, world: str) -> int:
        """Episodes lost to a worker, a link or a time limit; they say nothing about the policy."""
        return sum(not row.valid for row in self.results[policy, world])

    def comparisons(self) -> dict[tuple[str, str, str], PolicyComparison]:
        """Every pair of policies in every world, start by start: (first, second, world) -> comparison."""
        policies = list(dict.fromkeys(policy for policy, _ in self.results))
        worlds = list(dict.fromkeys(world for _, world in self.results))
        return {
            (first, second, world): compare_policies(self.results[first, world], self.results[second, world])
            for first, second in combinations(policies, 2)
            for world in worlds
        }

    def scores(self) -> dict[str, Estimate]:
        """All numbers by name."""
        found: dict[str, Estimate] = {}
        for policy, world in self.results:
            name = f"{policy} in {world}"
            found[f"success, {name}"] = self.success(policy, world)
            if (seconds := self.seconds(policy, world)) is not None:
                found[f"time to success, {name}"] = seconds
            if (score := self.score(policy, world)) is not None:
                found[f"score, {name}"] = score
        for (first, second, world), comparison in self.comparisons().items():
            found[f"success, {first} less {second} in {world}"] = comparison.difference
        return found

    def write_parquet(self, path: Path) -> Path:
        """Write one row per episode, of all policies and worlds."""
        rows = [
            ({"policy": policy, "world": world, "task": self.task.name}, row)
            for (policy, world), results in self.results.items()
            for row in results
        ]
        return write_rows(path, rows)

    def __str__(self) -> str:
        return "\n".join(
            f"{policy} in {world}: success {self.success(policy, world)}" for policy, world in self.results
        )


def evaluate_policies(
    policies: Policy | Mapping[str, Policy | MakePolicy] | Sequence[PolicySpec],
    worlds: Scene | str | Path | World | Mapping[str, World] | Sequence[WorldSpec],
    task: Task | str | None = None,
    episodes: int | Sequence[int] = 100,
    *,
    options: EvalOptions | None = None,
    map: MapFn = map,
) -> Evaluation:
    """Run every policy in every world from the same starts.

    `policies` is a policy, policies (or functions of a world that make them) by name, or specs; `worlds` is a scene,
    a world, worlds by name, or specs. `task` is a task, or the name of one of the scene, whose first is the default.
    `episodes` is their number or their seeds. `map` spreads the batches over processes or a cluster.
    """
    options = options or EvalOptions()
    scene = _scene_of(worlds)
    if task is None or isinstance(task, str):
        if scene is None:
            raise BadInput("An evaluation needs a task: give one, or a scene that names its tasks.")
        task = task_of(scene, task or "")
    if scene is not None and options.bounds is None:
        options = replace(options, bounds=action_bounds(scene))
    seeds = range(episodes) if isinstance(episodes, int) else episodes
    return _evaluate(policy_specs(policies), _world_specs(worlds), task, seeds, options, map)


def action_bounds(scene: Scene) -> Array:
    """The lowest and highest actions of a scene's actuators [2, nu]."""
    model = scene.model
    limits = model.actuator_ctrlrange.T.copy()
    limits[:, model.actuator_ctrllimited == 0] = np.array([[-np.inf], [np.inf]])
    return limits


def run_eval_batch(batch: EvalBatch, *, watch: Sequence[Watcher] = ()) -> BatchResult:
    """Run one batch, in whichever process this is; `watch` are shown every row of it."""
    world, settings = _world(batch)
    tasked = Tasked(world, batch.task)
    policy = batch.policy.make(tasked)
    if batch.options.latency:
        policy = Latency(policy, batch.options.latency)
    try:
        options = batch.options
        result = run_batch(tasked, policy, batch.seeds, bounds=options.bounds, keep=options.videos, watch=watch)
    except LinkLost as error:
        return _lost(batch, str(error))
    if not settings:
        return result
    sampled = [{name: float(values[i]) for name, values in settings.items()} for i in range(len(batch.seeds))]
    rows = tuple(replace(row, settings=own) for row, own in zip(result.episodes, sampled, strict=True))
    return replace(result, episodes=rows)


def _evaluate(
    policies: Sequence[PolicySpec],
    worlds: Sequence[WorldSpec],
    task: Task,
    seeds: Sequence[int],
    options: EvalOptions,
    map: MapFn,
) -> Evaluation:
    _check(policies, worlds, seeds, options)
    chunks = [tuple(seeds[i : i + options.batch]) for i in range(0, len(seeds), options.batch)]
    batches = [EvalBatch(p, w, task, chunk, options) for p in policies for w in worlds for chunk in chunks]
    store = ParquetStore(options.folder) if options.folder is not None else None
    done: dict[str, tuple[EpisodeResult, ...]] = {}
    if store is not None:
        done = {batch.key: kept for batch in batches if (kept := store.load(batch.key)) is not None}
    pending = [batch for batch in batches if batch.key not in done]
    for batch, result in zip(pending, map(run_eval_batch, pending), strict=True):
        found = _lost(batch, result.why) if isinstance(result, LostBatch) else cast(BatchResult, result)
        done[batch.key] = found.episodes
        # Infrastructure failures are not kept, so that they are tried again next time.
        if store is not None and all(row.valid for row in found.episodes):
            store.save(batch.key, found)
    results: dict[tuple[str, str], tuple[EpisodeResult, ...]] = {}
    for batch in batches:
        pair = (batch.policy.name, batch.world.name)
        results[pair] = (*results.get(pair, ()), *done[batch.key])
    return Evaluation(results, task, tuple(batches))


def policy_specs(policies: Policy | Mapping[str, Any] | Sequence[PolicySpec]) -> list[PolicySpec]:
    """Policies as specs: one policy, policies (or functions that make them) by name, or specs."""
    if isinstance(policies, Mapping):
        named: Mapping[str, Any] = policies
        return [PolicySpec(name, _maker(policy)) for name, policy in named.items()]
    if isinstance(policies, Sequence):
        return list(policies)
    return [PolicySpec("policy", _maker(policies))]


def _maker(policy: Any) -> MakePolicy:
    return cast(MakePolicy, policy) if callable(policy) else lambda world: policy


def _world_specs(worlds: Any) -> list[WorldSpec]:
    if isinstance(worlds, Scene | str | Path):
        return [WorldSpec("mujoco", partial(open_world, worlds))]
    if isinstance(worlds, Mapping):
        named = cast(Mapping[str, World], worlds)
        return [WorldSpec(name, partial(_given, world)) for name, world in named.items()]
    if isinstance(worlds, Sequence):
        return list(cast(Sequence[WorldSpec], worlds))
    return [WorldSpec("world", partial(_given, worlds))]


def _given(world: World) -> World:
    return world


def _scene_of(worlds: Any) -> Scene | None:
    """The scene of what is given as worlds, where there is one."""
    if isinstance(worlds, Scene):
        return worlds
    if isinstance(worlds, str | Path):
        return Scene.load(worlds)
    first = next(iter(cast(Mapping[str, World], worlds).values()), None) if isinstance(worlds, Mapping) else worlds
    return getattr(first, "scene", None)


class _Opened(threading.local):
    """Worlds that were opened in this thread, so that each is opened once."""

    def __init__(self) -> None:
        self.worlds: dict[tuple[str, str], World] = {}


_OPENED = _Opened()


def _world(batch: EvalBatch) -> tuple[World, dict[str, Array]]:
    key = (batch.world.name, batch.world.fingerprint)
    if key not in _OPENED.worlds or not batch.world.fingerprint:
        _OPENED.worlds[key] = batch.world.make()
    world = _OPENED.worlds[key]
    if batch.options.randomize is None:
        return world, {}
    # One sample per seed, so that an episode's world does not depend on the batch it is in.
    samples = [batch.options.randomize.sample(1, np.random.default_rng((seed, 0xD12A))) for seed in batch.seeds]
    settings = {name: np.array([float(sample[name][0]) for sample in samples]) for name in samples[0]}
    return cast(Simulator, world).tuned(settings), settings


def _lost(batch: EvalBatch, why: str) -> BatchResult:
    rows = (EpisodeResult(seed, INFRA, "", 0, 0.0, 0.0, why=why) for seed in batch.seeds)
    return BatchResult(tuple(rows), {})


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


@frozen_dataclass
class PolicyComparison:
    """The first policy against the second, start by start."""

    difference: Estimate
    """Success rate of the first less that of the second."""
    only_first: int
    """Starts from which only the first succeeded."""
    only_second: int
    p: float
    """McNemar's exact p, mid-p version."""
    needed: float
    """Total episodes that show this difference with 80 % power at 5 %; infinite for no difference."""
    rules_out: float
    """Total episodes that rule out a difference of 10 points between equal policies."""
    equivalent: bool = False
    """Whether two one-sided tests at 5 % show a difference of less than 10 points."""
    evidence: float = 1.0
    """E-value against equal policies, valid whenever one stops; 20 suffices at 5 %."""

    @property
    def still(self) -> float:
        """Further episodes that are needed; 0 where the difference is already shown."""
        return 0.0 if self.p < 0.05 else max(0.0, self.needed - self.difference.n)

    def __str__(self) -> str:
        d = self.difference
        words = f"{100 * d.value:+.1f} points [{100 * d.low:+.1f}, {100 * d.high:+.1f}], p = {self.p:.3g}, n = {d.n}"
        if self.p < 0.05:
            return words
        if self.equivalent:
            return f"{words}; equivalent to within {100 * MARGIN:.0f} points"
        if self.needed == inf:
            return f"{words}; no visible difference, {self.rules_out:.0f} episodes would rule out 10 points"
        return f"{words}; about {self.still:.0f} more episodes would settle it"


def compare_policies(first: Sequence[EpisodeResult], second: Sequence[EpisodeResult]) -> PolicyComparison:
    """Pair the episodes of two policies by seed; infrastructure failures are left out of both."""
    other = {row.seed: row for row in second if row.valid}
    pairs = [(row.success, other[row.seed].success) for row in first if row.valid and row.seed in other]
    n = len(pairs)
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    if n == 0:
        return PolicyComparison(Estimate(nan, -1.0, 1.0, 0), 0, 0, 1.0, inf, inf)
    same = equivalence(only_first, only_second, n, MARGIN)
    evidence = float(sequential_test(np.array([float(a) - float(b) for a, b in pairs])).e[-1])
    return PolicyComparison(
        paired_difference(only_first, only_second, n), only_first, only_second, mcnemar(only_first, only_second).mid,
        _needed(only_first, only_second, n), same.needed, same.equivalent, evidence,
    )  # fmt: skip


def _needed(b: int, c: int, n: int) -> float:
    """Connor's number of pairs for McNemar's test at these rates of discordance."""
    if b == c or n == 0:
        return inf
    share, d = (b + c) / n, abs(b - c) / n
    z = normal_quantile(0.975) * sqrt(share) + normal_quantile(0.8) * sqrt(max(share - d * d, 0.0))
    return float(ceil(z * z / (d * d)))
