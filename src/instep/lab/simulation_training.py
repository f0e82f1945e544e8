"""Training in simulation, of a residual or a gait, over a belief or ranges of automatic domain randomization (ADR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.param import Belief, Box, Param
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass, options_dataclass
from instep.evaluate.evaluation import action_bounds
from instep.physics.engines import ENGINES, open_world
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.tasks import Walk, task_of
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import nominal_values, parse_belief, parse_ranges, save_belief

from .gait import GaitBody, GaitFile, read_gait, shipped_gait
from .leg_estimation import FactorWorld, WalkNoise, noisy_robot
from .policy_search import (
    CHECKED,
    CHOICE_SEED,
    GAIT_FILE,
    RESIDUAL_FILE,
    SearchOptions,
    SearchResult,
    Trainable,
    TrainableGait,
    TrainableResidual,
    TrainingWorlds,
    best_weights,
    load_residual,
    search_weights,
    zero_residual,
)

KEPT_RETURN = 0.9
"""Share of the nominal return that counts as success at the end of a range."""
LATER_SPREAD = 0.5
"""Spread of the searches of later rounds of ADR, as a share of that of the first, which they go on from."""
ADR_EPISODES, ADR_STEP, ADR_ROUNDS = 8, 0.2, 6
"""Episodes at each end, step of an end as a share of the bounds, and rounds of ADR within a training."""


@frozen_dataclass
class SimulationTraining:
    """What to train, where, and over which worlds."""

    scene: str
    task: str
    world: str
    base: str
    randomize: tuple[str, ...]
    adr: tuple[str, ...]
    search: SearchOptions

    @property
    def generations(self) -> int:
        """Number of generations of all rounds."""
        return self.search.generations * (ADR_ROUNDS + 1 if self.adr else 1)


@array_dataclass
class TrainedInSimulation:
    """A training in simulation."""

    scene: Scene
    result: SearchResult
    weights: dict[str, list[float]]
    """Weights of each group, by name."""


@array_dataclass
class TrainingSetup:
    """A simulator, what a task adds to it, and what is trained."""

    sim: Simulator
    """The simulator alone."""
    sensed: Callable[[Simulator], Tasked[Simulator]]
    """A simulator with the task, and with the sensors and disturbances that the task asks for."""
    trained: Trainable

    @property
    def world(self) -> Tasked[Simulator]:
        """The world that the policy is trained in."""
        return self.sensed(self.sim)

    @classmethod
    def of(cls, scene: Scene, task: str, base: str, engine: str = "mujoco") -> TrainingSetup:
        """The setup in a scene; a base that was trained in simulation is trained further."""
        if engine not in ENGINES:
            raise BadInput(f"A policy is trained in an engine ({', '.join(ENGINES)}), not in {engine!r}.")
        sim, wanted = open_world(scene, engine, threads=1), task_of(scene, task)
        if isinstance(wanted, Walk):
            return cls._of_legs(FactorWorld(sim), wanted, base)

        def tasked(sim: Simulator) -> Tasked[Simulator]:
            return Tasked(sim, wanted)

        world = tasked(cast(Simulator, sim))
        if (Path(base) / RESIDUAL_FILE).is_file():
            start = load_residual(Path(base))
        else:
            start = zero_residual(base, world.spec, action_bounds(scene))
        trained = TrainableResidual(policy_from_spec(start.base, world), start, world.spec)
        return cls(world.world, tasked, trained)

    @classmethod
    def _of_legs(cls, sim: FactorWorld, task: Walk, base: str) -> TrainingSetup:
        body = GaitBody.of(sim.scene)
        trained = TrainableGait(body, given_gait(base, body), base)
        return cls(sim, lambda other: walked_robot(other, body, task), trained)


def walked_robot(sim: Simulator, body: GaitBody, task: Walk) -> Tasked[Simulator]:
    """A simulator as a robot on legs with an IMU and noisy joints, pushed as its task says."""
    noise = WalkNoise(push=task.push, push_every=task.push_every)
    return Tasked(cast(Simulator, noisy_robot(cast(SceneSimulator, sim), body, noise)), task)


def given_gait(base: str, body: GaitBody) -> GaitFile:
    """The gait that comes with instep for 'expert', else that of a file or of a folder that was trained."""
    if base == "expert":
        return shipped_gait(body.legs)
    path = Path(base) / GAIT_FILE if Path(base).is_dir() else Path(base)
    if not path.is_file():
        raise BadInput(f"A robot on legs walks with 'expert' or with a gait.json, and {base!r} is none.")
    return read_gait(path)


def train_in_simulation(
    job: SimulationTraining, folder: Path, watch: Callable[[int, float], None] | None = None
) -> TrainedInSimulation:
    """Train, and write the policy to a folder, with the ranges that ADR reached."""
    if job.randomize and job.adr:
        raise BadInput("--randomize and --adr both say what to sample; give one of them.")
    scene = Scene.load(job.scene)
    setup, belief = TrainingSetup.of(scene, job.task, job.base, job.world), parse_belief(job.randomize, scene)
    if job.adr:
        params = parse_ranges(job.adr, scene)
        result, ranges = grow_and_train(setup, params, nominal_values(params, scene), job.search, watch)
        save_belief(ranges.box, folder / "belief.json")
    else:
        result = search_weights(setup.world, setup.trained, None, belief, job.search, watch=watch)
    about = {"scene": scene.name, "task": setup.world.task.name, "episodes": str(result.episodes)}
    setup.trained.save(result.weights, folder, about)
    weights = {name: result.weights[:, i].tolist() for i, name in enumerate(setup.trained.names)}
    return TrainedInSimulation(scene, result, weights)


def grow_and_train(
    setup: TrainingSetup,
    params: Sequence[Param],
    nominal: Mapping[str, float],
    options: SearchOptions,
    watch: Callable[[int, float], None] | None = None,
) -> tuple[SearchResult, AdrResult]:
    """Automatic domain randomization around a training: train in the ranges, then move their ends, round by round.

    `nominal` are the values without randomization. An end moves out where the policy keeps its return of the nominal
    world in most episodes there. Of the weights that were given and those of every round the best in the last ranges
    are kept: a round of few generations may end worse than it began.
    """
    rounds: list[SearchResult] = []

    def learn(box: Box) -> None:
        start = rounds[-1].weights if rounds else None
        belief: Belief | None = box if rounds else None
        # Other worlds in every round: repeated choices in the same worlds would fit these alone.
        spread = options.spread * (LATER_SPREAD if rounds else 1.0)
        fresh = replace(options, seed=options.seed + len(rounds), spread=spread)
        rounds.append(search_weights(setup.world, setup.trained, start, belief, fresh, watch=watch))

    nominal_returns: dict[tuple[int, int], Array] = {}

    def success(settings: Mapping[str, Array], seeds: Sequence[int]) -> Array:
        given, weights = replace(options, samples=len(seeds)), rounds[-1].weights[None]
        worlds = replace(TrainingWorlds.sample(setup.world, Box(tuple(params)), given), settings=settings)
        mark = len(rounds), len(seeds)
        if mark not in nominal_returns:  # the starts are the same at every end of every range
            same = {name: np.full(len(seeds), value) for name, value in nominal.items()}
            nominal_returns[mark] = replace(worlds, settings=same).returns(setup.trained, weights).score[0]
        # Start by start: some starts are farther from their goal than others.
        return np.asarray(worlds.returns(setup.trained, weights).score[0] >= KEPT_RETURN * nominal_returns[mark])

    adr = AdrOptions(episodes=ADR_EPISODES, step=ADR_STEP, rounds=ADR_ROUNDS, seed=options.seed)
    ranges = expand_ranges(success, params, nominal, adr, train=learn)
    learn(ranges.box)
    candidates = [setup.trained.weights, *(one.weights for one in rounds)]
    kept = best_weights(setup.world, setup.trained, candidates, ranges.box, options)
    # Both in the last ranges, in worlds that nothing was chosen in.
    fresh = replace(options, samples=CHECKED * options.samples, seed=options.seed + len(rounds) + CHOICE_SEED)
    checked = TrainingWorlds.sample(setup.world, ranges.box, fresh)
    before, after = map(bootstrap, checked.returns(setup.trained, np.array([candidates[0], kept])).score)
    episodes = sum(one.episodes for one in rounds)
    return replace(rounds[-1], weights=kept, before=before, after=after, episodes=episodes), ranges


Success = Callable[[Mapping[str, Array], Sequence[int]], Array]
"""Whether each episode succeeded [n], given its settings (address -> [n]) and its seed."""


@options_dataclass
class AdrOptions:
    """Options of automatic domain randomization."""

    episodes: int = 24
    """Episodes at each end of each range, per round."""
    widen: float = 0.8
    """Success at an end above which its range widens."""
    narrow: float = 0.5
    """Success at an end below which its range narrows."""
    step: float = 0.05
    """By which an end moves, as a share of the parameter's own bounds."""
    rounds: int = 20
    seed: int = 0


@array_dataclass
class AdrRound:
    """The ranges of one round, and the success rates at their ends."""

    low: Array
    """In unit coordinates [parameters]."""
    high: Array
    rates: Mapping[str, tuple[Estimate, Estimate]]
    """Success rates at the low and the high end, by address."""


@array_dataclass
class AdrResult:
    """The final ranges and how they were reached."""

    params: tuple[Param, ...]
    rounds: tuple[AdrRound, ...]
    low: Array
    high: Array
    stopped: bool = False

    @property
    def box(self) -> Box:
        """The ranges as a belief."""
        return _box(self.params, self.low, self.high)

    @property
    def entropy(self) -> float:
        """Mean logarithm of the widths as shares of the bounds: 0 where the ranges fill them."""
        return float(np.log(np.maximum(self.high - self.low, 1e-9)).mean())


def expand_ranges(
    success: Success,
    params: Sequence[Param],
    start: Mapping[str, float],
    options: AdrOptions | None = None,
    *,
    train: Callable[[Box], None] | None = None,
    watch: Callable[[int, AdrRound], None] | None = None,
) -> AdrResult:
    """Automatic domain randomization: widen and narrow ranges around a start by the success rates at their ends.

    Each round sets one parameter to one end of its range, samples the others from the box and measures success: an end
    with a high rate moves out by a step, one with a low rate moves in. `train` is called with the ranges before each
    round, so that the policy behind `success` can learn in them. Ctrl-C keeps the ranges reached so far.
    """
    options = options or AdrOptions()
    for param in params:
        value = start.get(param.address)
        if value is None or not param.low <= value <= param.high:
            raise BadInput(
                f"The start of {param.address!r} must lie inside [{param.low:g}, {param.high:g}], not {value}."
            )
    centre = np.array([float(param.to_unit(start[param.address])) for param in params])
    low, high = centre.copy(), centre.copy()
    rounds: list[AdrRound] = []
    stopped = False
    try:
        for number in range(options.rounds):
            if train is not None:
                train(_box(params, low, high))
            rates = _measured(success, params, (low, high), options, number)
            rounds.append(AdrRound(low.copy(), high.copy(), rates))
            if watch is not None:
                watch(number, rounds[-1])
            below, above = np.array([[rate.value for rate in rates[param.address]] for param in params]).T
            low = np.clip(low - options.step * _direction(below, options), 0.0, centre)
            high = np.clip(high + options.step * _direction(above, options), centre, 1.0)
    except KeyboardInterrupt:
        stopped = True
    return AdrResult(tuple(params), tuple(rounds), low, high, stopped)


def _measured(
    success: Success, params: Sequence[Param], ends: tuple[Array, Array], options: AdrOptions, number: int
) -> dict[str, tuple[Estimate, Estimate]]:
    """Success rates with each parameter at each end, all in one batch of episodes."""
    low, high = ends
    n, sides = options.episodes, 2 * len(params)
    rng = np.random.default_rng((options.seed, number, 0xAD2))
    points = low + (high - low) * rng.random((sides, n, len(params)))
    for i in range(len(params)):
        points[2 * i, :, i], points[2 * i + 1, :, i] = low[i], high[i]
    flat = points.reshape(-1, len(params))
    settings = {param.address: param.from_unit(flat[:, i]) for i, param in enumerate(params)}
    # The same seeds at every end, so that ends differ by their parameter alone.
    seeds = [options.seed + number * n + k for _ in range(sides) for k in range(n)]
    won = np.asarray(success(settings, seeds), bool).reshape(sides, n).sum(axis=1)
    rates = [wilson(int(count), n) for count in won]
    return {param.address: (rates[2 * i], rates[2 * i + 1]) for i, param in enumerate(params)}


def _direction(rate: Array, options: AdrOptions) -> Array:
    """1 where an end moves out, -1 where it moves in."""
    return np.where(rate >= options.widen, 1, np.where(rate < options.narrow, -1, 0))


def _box(params: Sequence[Param], low: Array, high: Array) -> Box:
    ranges: list[Param] = []
    for i, param in enumerate(params):
        # A range that never opened is a point, and bounds must differ.
        below, above = float(param.from_unit(low[i])), float(param.from_unit(max(high[i], low[i] + 1e-9)))
        ranges.append(replace(param, low=below, high=above))
    return Box(tuple(ranges))
