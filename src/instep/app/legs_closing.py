"""Close the gap of a robot that walks: record it, identify what matters, train its gait over the posterior."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from instep.app.simulated_robot import hidden_settings
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.rollout import rollouts
from instep.core.statistics import Estimate
from instep.core.world import Array, Observation, World
from instep.policy.base_estimation import LeggedEstimate
from instep.policy.gait import Gait, GaitBody, GaitFile, fallen, ranges_gait
from instep.policy.weight_shift import WeightShift
from instep.scene.address import DELAY
from instep.scene.folder import Scene, SceneSimulator
from instep.tune.beliefs import SampleBelief, estimates
from instep.tune.factor_world import FactorWorld
from instep.tune.gait_search import GaitSearchOptions, gait_costs, search_gait
from instep.tune.leg_identification import SMOOTHED_ROWS, estimated_motion, identify_walker

PLAIN, RANGES, POSTERIOR = "given gait", "gait of ranges", "gait of the posterior"
"""The gaits among which the best is taken, by name."""


MAX_DELAY_S = 0.02
"""Largest delay of commands of a hidden robot with legs [s]; `hidden_settings` has up to 60 ms, for arms at 60 Hz."""


def hidden_legs(scene: Scene, seed: int) -> dict[str, float]:
    """What is off in a simulated robot with legs; nothing where the seed is 0."""
    settings = hidden_settings(scene, seed)
    return {**settings, DELAY: min(settings[DELAY], MAX_DELAY_S)} if settings else {}


@options_dataclass
class LegBudget:
    """How much closing the gap may use, on the robot and in simulation."""

    shifts: int = 1
    """recordings in which the robot stands and shifts its weight."""
    walks: int = 2
    """recordings in which it walks."""
    seconds: float = 4.0
    """length of a recording; it ends where the robot falls [s]."""
    generations: int = 4
    """generations of the training over the posterior."""
    population: int = 10
    """candidates per generation."""
    samples: int = 3
    """samples of the posterior on which each candidate walks."""
    walk_s: float = 5.0
    """length of these walks [s]."""
    push: float = 0.2
    """change of velocity by the pushes of the training [m/s]."""
    judged: int = 8
    """samples on which the given gait, the gait of ranges and the trained one are compared."""


@array_dataclass
class ClosedLegs:
    """A gait for one robot, and what it cost."""

    gait: GaitFile
    chosen: str
    """Which of the compared gaits it is."""
    costs: dict[str, float]
    """Cost of each compared gait over samples of the posterior."""
    belief: SampleBelief
    falls: int
    """How often the robot fell while it was recorded."""
    robot_minutes: float
    computer_minutes: float

    def middle(self) -> dict[str, float]:
        """Median of each identified parameter."""
        return {name: estimate.value for name, estimate in self.found().items()}

    def found(self) -> dict[str, Estimate]:
        """Median and 90 % interval of each identified parameter."""
        return estimates(self.belief, 0.9)


def close_on_legs(
    robot: World,
    sim: SceneSimulator,
    given: GaitFile,
    budget: LegBudget | None = None,
    *,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
) -> ClosedLegs:
    """Record a robot, identify it, train its gait over the posterior, and take the gait that costs least there."""
    budget, note = budget or LegBudget(), watch or _quiet
    if budget.shifts + budget.walks < 1 or budget.judged < 1:
        raise BadInput("Closing the gap takes at least one recording and one sample to judge by.")
    body, began = GaitBody.of(sim.scene), time.perf_counter()
    start = ranges_gait(body.legs)
    recorded = record_legs(robot, sim, given, budget, seed)
    used = sum(len(episode) for episode, _ in recorded) * sim.spec.dt
    falls = sum(episode.meta["ended"] != "steps" for episode, _ in recorded)
    note(f"{len(recorded)} recordings, {used:.0f} s, {falls} ended by a fall")
    whole = [(episode, stance) for episode, stance in recorded if len(episode) > SMOOTHED_ROWS]
    belief = identify_walker(sim, [estimated_motion(episode, body, stance) for episode, stance in whole], seed=seed)
    note("identified: " + "; ".join(f"{name} {value}" for name, value in estimates(belief, 0.9).items()))
    world = FactorWorld(sim)
    options = GaitSearchOptions(
        speed=given.speed, seconds=budget.walk_s, generations=budget.generations, population=budget.population,
        seeds=budget.samples, spread=0.06, push=budget.push, seed=seed,
    )  # fmt: skip
    trained = search_gait(
        world, options, start=start.params, randomized=belief.sample,
        watch=lambda g, cost, _: note(f"generation {g + 1} of {budget.generations}: cost {cost:.3f}"),
    )  # fmt: skip
    gaits = {PLAIN: given.params, RANGES: start.params, POSTERIOR: trained.params}
    costs = _costs(world, body, gaits, belief, options, budget.judged)
    chosen = min(costs, key=lambda name: costs[name])
    spent = (time.perf_counter() - began) / 60
    about = (
        f"The {chosen} of {', '.join(gaits)}: {used:.0f} s on the robot, {trained.robot_seconds / 60:.0f} simulated "
        f"robot minutes, {spent:.1f} min computed."
    )
    return ClosedLegs(
        GaitFile(gaits[chosen], given.speed, about), chosen, costs, belief, falls, used / 60, spent
    )  # fmt: skip


def record_legs(
    robot: World, sim: SceneSimulator, gait: GaitFile, budget: LegBudget, seed: int
) -> list[tuple[Episode, Array]]:
    """Recordings of a robot that shifts its weight and walks, and which feet were to be on the ground in each row."""
    body, steps = GaitBody.of(sim.scene), max(SMOOTHED_ROWS + 1, round(budget.seconds / sim.spec.dt))
    over, out = fallen(sim.scene, body), list[tuple[Episode, Array]]()
    for number in range(budget.shifts + budget.walks):
        if number < budget.shifts:
            policy = stepping = WeightShift(body)
        else:
            stepping = Gait(body, gait.params, gait.speed)
            policy = LeggedEstimate(stepping)
        feet = _Stance(stepping)
        own = (seed + 1) * 7919 + number
        [episode] = rollouts(robot, _Watched(policy, feet), seeds=[own], steps=steps, until=over)
        out.append((episode, np.array(feet.rows)[: len(episode)]))
    return out


class _Stance:
    """What a controller wants on the ground, row by row."""

    def __init__(self, stepping: Gait | WeightShift):
        self.stepping = stepping
        self.rows = list[Array]()


class _Watched:
    """A policy whose wanted stance is kept, as it is before each action."""

    def __init__(self, policy: LeggedEstimate | WeightShift, feet: _Stance):
        self.policy, self.feet = policy, feet

    def reset(self, seed: int = 0) -> None:
        self.policy.reset(seed)
        self.feet.rows.clear()

    def act(self, observation: Observation) -> Array:
        self.feet.rows.append(self.feet.stepping.stance())
        return self.policy.act(observation)


def _costs(
    world: FactorWorld,
    body: GaitBody,
    gaits: dict[str, Array],
    belief: SampleBelief,
    options: GaitSearchOptions,
    judged: int,
) -> dict[str, float]:
    """Cost of each gait over the same samples, pushes and noise, which no training met."""
    rng, fresh = (
        np.random.default_rng((options.seed, 0xC057)),
        replace(options, seeds=judged, seconds=2 * options.seconds),
    )
    costs, _ = gait_costs(world, body, np.array(list(gaits.values())), fresh, rng, belief.sample)
    return dict(zip(gaits, map(float, costs), strict=True))


def _quiet(words: str) -> None:
    """Take a note of nothing."""
