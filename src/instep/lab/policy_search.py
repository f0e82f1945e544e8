"""Searches by CMA-ES without gradients: training of a policy over sampled worlds, and of a gait over walks.

Every candidate of a generation runs in every sampled world from the same start, all in one batch. What is maximised is
the mean of return and success over these worlds; with a posterior these are the worlds that recordings allow. Each
generation samples other worlds and starts, and what is kept is the mean of the search, not its luckiest candidate: the
best of a hundred in the same few episodes lies at the edge of what just works there, and fails on a robot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Belief
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Simulator, State, array_dataclass, options_dataclass, stack, take
from instep.evaluate.episode_batch import Returns, episode_returns, start_states, step_batch
from instep.scene.folder import SceneSimulator
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import belief_addresses, with_imperfections

from .gait import BASE, GAIT_PARAMS, Gait, GaitBody, base_motion, fallen
from .residual_policy import Trainable

FIRST_START = 700_000
"""Seed of the first start of a training in simulation; far from those on which policies are evaluated."""
CHECKED = 3
"""Worlds in which the weights of before and those of the search are compared, as a multiple of the sampled ones."""
CHOICE_WORLDS, CHOICE_SEED = 24, 7
"""Worlds in which several trainings are compared, and how far their seed is from that of a search."""
PACE = 0.15
"""Weight of the error of the speed."""
Randomized = Callable[[int, np.random.Generator], Mapping[str, Array]]
"""Settings of so many worlds, one value each, such as `Belief.sample`."""
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
    _check(options)
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


def _check(options: SearchOptions) -> None:
    for name, least in (("generations", 1), ("population", 4), ("samples", 1)):
        if getattr(options, name) < least:
            raise BadInput(
                f"A training in simulation needs --{name} of at least {least}, not {getattr(options, name)}."
            )
    if options.spread <= 0 or options.seconds < 0:
        raise BadInput("A training in simulation needs a --spread above 0 and --seconds of 0 or above.")


@options_dataclass
class GaitSearchOptions:
    """Length and width of a search."""

    speed: float = 0.5
    """Speed to walk at [m/s]."""
    seconds: float = 8.0
    """Length of an episode [s]."""
    generations: int = 40
    population: int = 16
    seeds: int = 3
    """Episodes per candidate."""
    spread: float = 0.15
    """Initial standard deviation, as a share of the ranges."""
    push: float = 0.3
    """Change of velocity by a push every second [m/s]."""
    velocity_noise: float = 0.05
    """Standard deviation of the error of the measured velocity [m/s]."""
    seed: int = 0


@array_dataclass
class GaitSearch:
    """The best gait of a search."""

    params: Array
    """In the order of `GAIT_PARAMS`."""
    cost: float
    history: Array
    """Best cost of each generation."""
    seconds: float
    """Time it took [s]."""
    robot_seconds: float
    """Simulated time [s]."""


def search_gait(
    sim: SceneSimulator,
    options: GaitSearchOptions,
    *,
    start: Array | None = None,
    randomized: Randomized | None = None,
    watch: Callable[[int, float, Array], None] | None = None,
) -> GaitSearch:
    """Minimise falls, error of the speed and drift of a gait; Ctrl-C returns the best so far."""
    if options.generations < 1 or options.population < 4 or options.seeds < 1:
        raise BadInput("A search takes at least 1 generation, a population of 4 and 1 seed.")
    body, began = GaitBody.of(sim.scene), time.perf_counter()
    low, high = (np.array([getattr(param, end) for param in GAIT_PARAMS]) for end in ("low", "high"))
    first = np.array([param.start for param in GAIT_PARAMS]) if start is None else start
    unit = np.clip((first - low) / (high - low), 0.02, 0.98)
    best, history, simulated = (first, np.inf), list[float](), list[float]()

    def costs_of(points: Array) -> Array:
        rng = np.random.default_rng((options.seed, len(simulated)))
        costs, spent = gait_costs(sim, body, low + points * (high - low), options, rng, randomized)
        simulated.append(spent)
        return costs

    search = CmaSearch(
        spread=options.spread, generations=options.generations, population=options.population, seed=options.seed
    )
    try:
        for found in cma_generations(costs_of, unit, search):
            # The mean of the better half is less lucky than its best candidate.
            better = found.points[np.argsort(found.costs)[: options.population // 2]].mean(axis=0)
            best = low + better * (high - low), float(np.median(found.costs))
            history.append(float(found.costs.min()))
            if watch is not None:
                watch(len(history) - 1, history[-1], best[0])
    except KeyboardInterrupt:
        pass
    return GaitSearch(best[0], best[1], np.array(history), time.perf_counter() - began, sum(simulated))


def gait_costs(
    sim: SceneSimulator,
    body: GaitBody,
    points: Array,
    options: GaitSearchOptions,
    rng: np.random.Generator,
    randomized: Randomized | None = None,
) -> tuple[Array, float]:
    """Cost of each candidate [candidates] over its episodes, and the simulated time [s]."""
    n = len(points) * options.seeds
    # Candidates of a generation meet the same robots, pushes and noise.
    world = sim
    if randomized is not None:
        drawn = randomized(options.seeds, rng)
        world = sim.tuned({name: np.tile(values, len(points)) for name, values in drawn.items()})
    gait = Gait(body, np.repeat(points, options.seeds, axis=0), options.speed)
    over, base = fallen(sim.scene, body), sim.model.body(body.legs.base).id - 1
    state = stack([world.reset(0)] * n)
    steps, dt = round(options.seconds / sim.spec.dt), sim.spec.dt
    alive, lost, cost, row = np.ones(n, bool), np.zeros(n, bool), np.zeros(n), 0
    mass, push_at = float(sim.model.body_subtreemass[base + 1]), int(rng.integers(round(1 / dt)))
    noise = options.velocity_noise * np.tile(rng.standard_normal((steps, options.seeds, 3)), (1, len(points), 1))
    angle = np.tile(rng.uniform(0, 2 * np.pi, (steps, options.seeds)), (1, len(points)))
    for row in range(steps):
        motion = base_motion(state.q, state.v, body.at_q, body.at_v)
        motion[..., 6:9] += noise[row]
        joints = state.q[..., sim.scene.reader.robot_q]
        action = gait.act({BASE: motion, "observation.state": joints})
        if row > 2 / dt and row % round(1 / dt) == push_at:
            wrench = np.zeros((n, sim.model.nbody - 1, 6))
            force = mass * options.push / dt
            wrench[:, base, 0], wrench[:, base, 1] = force * np.cos(angle[row]), force * np.sin(angle[row])
            state = world.nudge(state, wrench)
        state, lost = step_batch(world, state, np.nan_to_num(action), lost)
        alive &= ~lost & ~over(state)
        speed = gait.wanted_speed() * np.ones(n)
        miss = np.abs(state.v[:, body.at_v] - speed) + 0.5 * np.abs(state.v[:, body.at_v + 1])
        spin = np.abs(state.v[:, body.at_v + 3 : body.at_v + 6]).sum(axis=-1)
        cost += np.where(alive, PACE * np.minimum(miss, 2) + 0.02 * np.minimum(spin, 5), 1.0)
        if not alive.any():
            cost += steps - row - 1
            break
    drift = np.abs(state.q[:, body.at_q + 1]) / max(options.speed * options.seconds, 1.0)
    total = cost / steps + 0.1 * np.where(alive, np.minimum(drift, 1), 1.0)
    return total.reshape(len(points), options.seeds).mean(axis=1), n * (row + 1) * dt
