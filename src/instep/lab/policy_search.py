"""Training of a policy in simulation without gradients: what it changes, and the search by CMA-ES.

What changes is a residual on top of a policy, or the parameters of a gait. A residual policy is a fixed policy plus a
small learned correction of its actions. For every action j the correction is linear in four signals of that action and
its joint,

    a_j = b_j + clip(w_j1 (b_j - q_j) + w_j2 T v_j + w_j3 (b_j - slow(b)_j) + w_j4 mean(b - q)_j, -limit_j, limit_j),

with b the action of the fixed policy, slow(b) its running mean over T and mean(b - q) that of the error over a longer
time: gain, damping, lead and integral action. Actions that are no position of a joint have q = 0 in it. So few numbers
are found without gradients in seconds, in any engine.

Every candidate of a generation runs in every sampled world from the same start, all in one batch. What is maximised is
the mean of return and success over these worlds; with a posterior these are the worlds that recordings allow. Each
generation samples other worlds and starts, and what is kept is the mean of the search, not its luckiest candidate: the
best of a hundred in the same few episodes lies at the edge of what just works there, and fails on a robot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Belief
from instep.core.reading import NAMES, NUMBERS, TABLE, TEXT, Entry, is_list, is_numbers, read_entries
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import (
    Array,
    Observation,
    Policy,
    Simulator,
    Spec,
    State,
    World,
    array_dataclass,
    options_dataclass,
    take,
)
from instep.evaluate.episode_batch import Returns, episode_returns, start_states
from instep.policy.policy_inputs import JOINTS
from instep.policy.policy_specs import policy_from_spec
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import belief_addresses, with_imperfections

from .gait import GAIT_PARAMS, Gait, GaitBody, GaitFile
from .leg_estimation import LeggedEstimate

RESIDUAL_FILE = "residual.json"
VELOCITIES = "observation.velocity"
SIGNALS = ("gain", "damping", "lead", "integral")
"""The signals that a correction is linear in."""
LEAD_S, INTEGRAL_S = 0.1, 0.5
"""Time constants of the lead and of the integral action [s]."""
LIMIT_SHARE = 0.15
"""Largest correction, as a share of the range of an action."""
FREE_RANGE = 2.0
"""Range assumed of an action that its actuator does not limit, in its unit."""
GAIT_FILE = "gait.json"
GAIT_STEP = 0.2
"""Change of a parameter of a gait by a weight of 1, as a share of the range in which it is searched."""


@array_dataclass
class Residual:
    """The numbers of a residual policy."""

    base: str
    """The fixed policy, in the words of the command line."""
    actions: tuple[str, ...]
    weights: Array
    """[actions, signals]; a leading axis holds one set per world of a batch."""
    limit: Array
    """Largest correction [actions]."""
    bounds: Array
    """Lowest and highest actions [2, actions]."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Notes on its training."""

    def save(self, folder: Path) -> Path:
        """Write it to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        finite = np.clip(self.bounds, -1e12, 1e12)
        table = {
            "base": self.base, "actions": list(self.actions), "signals": list(SIGNALS),
            "weights": self.weights.tolist(), "limit": self.limit.tolist(), "low": finite[0].tolist(),
            "high": finite[1].tolist(), "metadata": dict(self.metadata),
        }  # fmt: skip
        temporary = folder / f"{RESIDUAL_FILE}.part"
        temporary.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        temporary.replace(folder / RESIDUAL_FILE)
        return folder


def zero_residual(base: str, spec: Spec, bounds: Array) -> Residual:
    """The residual that changes nothing; `bounds` [2, nu] are the lowest and highest actions."""
    size = len(spec.action.labels)
    span = np.where(np.isfinite(bounds).all(axis=0), bounds[1] - bounds[0], FREE_RANGE)
    return Residual(base, spec.action.labels, np.zeros((size, len(SIGNALS))), LIMIT_SHARE * span, np.array(bounds))


def load_residual(folder: Path) -> Residual:
    """Read the residual in a folder."""
    path = folder / RESIDUAL_FILE
    rows = Entry(lambda value: is_list(value) and all(map(is_numbers, value)), "a list of lists of numbers")
    schema = {"base": TEXT, "actions": NAMES, "weights": rows, "limit": NUMBERS, "low": NUMBERS, "high": NUMBERS}
    table = read_entries(path, {**schema, "metadata": TABLE})
    size = len(table["actions"])
    if any(len(row) != len(SIGNALS) for row in table["weights"]) or len(table["weights"]) != size:
        raise BadInput(f"{str(path)!r} has weights of another size than {size} actions and {len(SIGNALS)} signals.")
    if any(len(table[name]) != size for name in ("limit", "low", "high")):
        raise BadInput(f"{str(path)!r} has limits or bounds of another size than its {size} actions.")
    return Residual(
        table["base"], tuple(table["actions"]), np.array(table["weights"], float), np.array(table["limit"], float),
        np.array([table["low"], table["high"]], float), {str(k): str(v) for k, v in table["metadata"].items()},
    )  # fmt: skip


def open_residual(folder: str, world: World) -> Policy:
    """The residual policy in a folder for a world, with its fixed policy."""
    residual = load_residual(Path(folder))
    if (Path(residual.base) / RESIDUAL_FILE).is_file():
        raise BadInput(f"The residual in {folder!r} stands on another one, {residual.base!r}; fine-tune that one.")
    return ResidualPolicy(policy_from_spec(residual.base, world), residual, world.spec)


class ResidualPolicy:
    """A policy with a residual on top of it, for one world or a batch."""

    def __init__(self, base: Policy, residual: Residual, spec: Spec):
        if residual.actions != spec.action.labels:
            raise BadInput(
                f"The residual is for the actions {', '.join(residual.actions)}, and this world takes "
                f"{', '.join(spec.action.labels)}; it was trained for another robot or order of joints."
            )
        self._base, self._residual, self._dt = base, residual, spec.dt
        self._q, self._v = _sources(spec, JOINTS, same_unit=True), _sources(spec, VELOCITIES, same_unit=False)
        self._slow: Array | None = None
        self._error: Array | None = None

    def reset(self, seed: int = 0) -> None:
        """Forget the running means."""
        self._base.reset(seed)
        self._slow = self._error = None

    def act(self, observation: Observation) -> Array:
        """The corrected action [..., actions]."""
        base = np.asarray(self._base.act(observation), float)
        error = base - _picked(observation, JOINTS, self._q, base)
        slow, mean = (base, error) if self._slow is None or self._error is None else (self._slow, self._error)
        self._slow = slow + min(1.0, self._dt / LEAD_S) * (base - slow)
        self._error = mean + min(1.0, self._dt / INTEGRAL_S) * (error - mean)
        velocity = LEAD_S * _picked(observation, VELOCITIES, self._v, base)
        signals = np.stack([error, velocity, base - self._slow, self._error], axis=-1)
        r = self._residual
        change = np.clip((signals * r.weights).sum(axis=-1), -r.limit, r.limit)
        return np.clip(base + change, r.bounds[0], r.bounds[1])


def _sources(spec: Spec, channel: str, *, same_unit: bool) -> list[tuple[int, int]]:
    """Which action is which value of a channel."""
    have = spec.observation.get(channel)
    if have is None:
        return []
    units = dict(zip(have.labels, have.units, strict=True))
    return [
        (i, have.labels.index(label))
        for i, (label, unit) in enumerate(zip(spec.action.labels, spec.action.units, strict=True))
        if label in units and (units[label] == unit or not same_unit)
    ]


def _picked(observation: Observation, channel: str, where: list[tuple[int, int]], like: Array) -> Array:
    out = np.zeros(like.shape)
    if where:
        into, source = (list(part) for part in zip(*where, strict=True))
        out[..., into] = np.asarray(observation[channel], float)[..., source]
    return out


@array_dataclass
class TrainableResidual:
    """A residual on top of a fixed policy; one group per action.

    Weights are [..., groups, numbers]; a search gives every group the same numbers unless it is told otherwise.
    """

    fixed: Policy
    residual: Residual
    spec: Spec

    @property
    def weights(self) -> Array:
        """Where a training begins [groups, numbers]."""
        return self.residual.weights

    names = SIGNALS
    """Names of the numbers of a group."""

    def policy(self, weights: Array) -> Policy:
        """The fixed policy with the residual of these weights."""
        return ResidualPolicy(self.fixed, replace(self.residual, weights=weights), self.spec)

    def save(self, weights: Array, folder: Path, about: Mapping[str, str]) -> Path:
        """Write the residual."""
        return replace(self.residual, weights=weights, metadata=about).save(folder)


@array_dataclass
class TrainableGait:
    """The parameters of a gait, as changes of a given one, behind the estimation of the base; one group."""

    body: GaitBody
    gait: GaitFile
    base: str = "expert"

    @property
    def weights(self) -> Array:
        """No change."""
        return np.zeros((1, len(GAIT_PARAMS)))

    names = tuple(param.name for param in GAIT_PARAMS)
    """Names of the numbers of a group."""

    def params(self, weights: Array) -> Array:
        """Parameters in the order of `GAIT_PARAMS`, inside their ranges where the given ones are [..., parameters]."""
        low, high = (np.array([getattr(param, end) for param in GAIT_PARAMS]) for end in ("low", "high"))
        given = self.gait.params
        changed = given + GAIT_STEP * (high - low) * weights[..., 0, :]
        return np.clip(changed, np.minimum(low, given), np.maximum(high, given))

    def policy(self, weights: Array) -> Policy:
        """The gait with these changes, fed by IMU and joints; a leading axis holds one set per world of a batch."""
        return LeggedEstimate(Gait(self.body, self.params(weights), self.gait.speed))

    def save(self, weights: Array, folder: Path, about: Mapping[str, str]) -> Path:
        """Write `gait.json`, which `instep lab legs --gait` takes."""
        folder.mkdir(parents=True, exist_ok=True)
        words = "; ".join(f"{name} {value}" for name, value in about.items())
        return GaitFile(self.params(weights), self.gait.speed, f"Trained from {self.base}: {words}").write(
            folder / GAIT_FILE
        )


Trainable: TypeAlias = TrainableResidual | TrainableGait
"""Numbers and the policy that they make."""


FIRST_START = 700_000
"""Seed of the first start of a training in simulation; far from those on which policies are evaluated."""
CHECKED = 3
"""Worlds in which the weights of before and those of the search are compared, as a multiple of the sampled ones."""
CHOICE_WORLDS, CHOICE_SEED = 24, 7
"""Worlds in which several trainings are compared, and how far their seed is from that of a search."""
SHRINK = 0.02
"""Penalty of the squared weights in units of return: of two corrections that do the same the smaller is better."""


@options_dataclass
class SearchOptions:
    """Options of a training in simulation."""

    generations: int = 20
    """generations of the search."""
    population: int = 12
    """candidates per generation."""
    samples: int = 8
    """sampled worlds in which each candidate runs, each from a start of its own."""
    seconds: float = 0.0
    """length of an episode [s]; the time limit of the task where 0."""
    spread: float = 0.3
    """standard deviation of the weights in the first generation."""
    per_joint: bool = False
    """weights of each joint of its own; one set for all where not given."""
    seed: int = 0
    """Seed of the sampled worlds and of the search."""


@array_dataclass
class SearchResult:
    """Weights and how they were found."""

    weights: Array
    """[groups, numbers]."""
    before: Estimate
    """Mean return before the search, in worlds and from starts that it does not use."""
    after: Estimate
    """The same after it."""
    history: tuple[float, ...]
    """Mean return of the best candidate of each generation, in the worlds of that generation."""
    episodes: int
    """Episodes that were simulated."""
    seconds: float
    """Processor time [s]."""


@array_dataclass
class TrainingWorlds:
    """Sampled worlds with the starts of their episodes: each candidate of a generation meets the same."""

    world: Tasked[Simulator]
    settings: Mapping[str, Array]
    """Address -> [worlds]; empty where nothing is randomized."""
    starts: State
    steps: int

    @classmethod
    def sample(
        cls, world: Tasked[Simulator], belief: Belief | None, options: SearchOptions, *, turn: int = 0
    ) -> TrainingWorlds:
        """Worlds sampled from a belief, others in every turn; all alike where there is none."""
        settings: dict[str, Array] = {}
        if belief is not None:
            settings = belief.sample(options.samples, np.random.default_rng((options.seed, 0x7EA1, turn)))
            world = replace(world, world=with_imperfections(world.world, belief_addresses(belief)))
        first = FIRST_START + 1000 * options.seed + turn * options.samples
        steps = round(options.seconds / world.spec.dt) if options.seconds else world.steps
        # The states of a world with a delay hold its commands, so starts are those of a tuned world.
        tuned = world.tuned(settings) if settings else world
        starts = start_states(tuned, range(first, first + options.samples))
        return cls(world, settings, starts, min(steps, world.steps))

    def returns(self, trained: Trainable, weights: Array) -> Returns:
        """The returns [candidates, worlds] of weights [candidates, groups, numbers], all in one batch."""
        n, count = len(self.starts.q), len(weights)
        many = {name: np.tile(values, count) for name, values in self.settings.items()}
        world = self.world.tuned(many) if many else self.world
        start = take(self.starts, np.tile(np.arange(n), count))
        found = episode_returns(world, trained.policy(np.repeat(weights, n, axis=0)), start, steps=self.steps)
        return Returns(*(part.reshape(count, n) for part in (found.score, found.success, found.error)))


def search_weights(
    world: Tasked[Simulator],
    trained: Trainable,
    start: Array | None = None,
    belief: Belief | None = None,
    options: SearchOptions | None = None,
    *,
    watch: Callable[[int, float], None] | None = None,
) -> SearchResult:
    """Train a policy in worlds sampled from a belief, from some weights on, else from where its training begins.

    Starting from the weights of an earlier training is fine-tuning. The mean of the search over its last generations
    is compared with the first weights in other worlds, and the better one is kept. Ctrl-C keeps the mean so far.
    """
    options = options or SearchOptions()
    for name, least in (("generations", 1), ("population", 4), ("samples", 1), ("spread", 1e-9), ("seconds", 0)):
        if getattr(options, name) < least:
            raise BadInput(f"A training in simulation needs --{name} of at least {least:g}.")
    began, first = time.process_time(), trained.weights if start is None else start
    centre = first if options.per_joint else first.mean(axis=0, keepdims=True)
    history, means = list[float](), list[Array]()

    def every_group(points: Array) -> Array:
        return np.broadcast_to(points.reshape(len(points), *centre.shape), (len(points), *first.shape))

    def losses(points: Array) -> Array:
        worlds = TrainingWorlds.sample(world, belief, options, turn=len(history) + CHECKED)
        weights = every_group(points)
        found = worlds.returns(trained, weights)
        values = _value(found, weights)
        history.append(float(found.score[int(np.argmax(values))].mean()))
        return -values

    search = CmaSearch(
        spread=options.spread, generations=options.generations, population=options.population, bounded=False,
        seed=options.seed,
    )  # fmt: skip
    try:
        for generation in cma_generations(losses, centre.reshape(-1), search):
            means.append(generation.mean)
            if watch is not None:
                watch(len(means) - 1, history[-1])
    except KeyboardInterrupt:
        means = means or [centre.reshape(-1)]
    kept = every_group(np.array([np.mean(means[len(means) // 2 :], axis=0), means[-1]]))
    weights = np.concatenate([first[None], kept])
    checked = replace(options, samples=CHECKED * options.samples)
    found = TrainingWorlds.sample(world, belief, checked).returns(trained, weights)
    best = int(np.argmax(_value(found, weights)))
    episodes = options.samples * (CHECKED * len(weights) + options.population * len(history))
    return SearchResult(
        np.array(weights[best]), bootstrap(found.score[0]), bootstrap(found.score[best]),
        tuple(history), episodes, time.process_time() - began,
    )  # fmt: skip


def best_weights(
    world: Tasked[Simulator],
    trained: Trainable,
    candidates: Sequence[Array],
    belief: Belief | None = None,
    options: SearchOptions | None = None,
) -> Array:
    """Of some weights those that do best in worlds of a belief that a search with these options never sees."""
    options = options or SearchOptions()
    samples = min(CHOICE_WORLDS, 8 * options.samples)
    worlds = TrainingWorlds.sample(world, belief, replace(options, samples=samples, seed=options.seed + CHOICE_SEED))
    weights = np.array(candidates)
    return np.array(weights[int(np.argmax(_value(worlds.returns(trained, weights), weights)))])


def _value(found: Returns, weights: Array) -> Array:
    """What is maximised, per candidate: a score alone would buy a fast approach with a restless end."""
    reward = 0.5 * (found.score + found.success)
    return cast(Array, reward.mean(axis=1) - SHRINK * (weights**2).mean(axis=(-1, -2)))
