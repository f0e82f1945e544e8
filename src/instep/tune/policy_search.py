"""Training of a residual policy in simulation, over sampled worlds, by CMA-ES without gradients.

Every candidate of a generation runs in every sampled world from the same start, all in one batch. What is maximised is
the mean of return and success over these worlds; with a posterior these are the worlds that recordings allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.param import Belief
from instep.core.records import array_dataclass, options_dataclass
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Policy, Simulator, State, take
from instep.evaluate.returns import Returns, episode_returns, start_states
from instep.policy.residual import Residual, ResidualPolicy
from instep.scene.tasks.task import Tasked

from .beliefs import belief_addresses
from .randomize import with_imperfections

FIRST_START = 700_000
"""Seed of the first start of a training in simulation; far from those on which policies are evaluated."""
SHRINK = 0.02
"""Penalty of the squared weights in units of return: of two corrections that do the same the smaller is better."""


@options_dataclass
class SearchBudget:
    """How long and how widely a training in simulation searches; these are flags of `instep train`."""

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


@options_dataclass
class SearchOptions(SearchBudget):
    """Options of a training in simulation."""

    seed: int = 0
    """Seed of the sampled worlds and of the search."""


@array_dataclass
class SearchResult:
    """A residual and how it was found."""

    residual: Residual
    before: Estimate
    """Mean return over the sampled worlds before the search."""
    after: Estimate
    """The same after it."""
    history: tuple[float, ...]
    """Best mean return of each generation."""
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
    def sample(cls, world: Tasked[Simulator], belief: Belief | None, options: SearchOptions) -> TrainingWorlds:
        """Worlds sampled from a belief; all alike where there is none."""
        settings: dict[str, Array] = {}
        if belief is not None:
            settings = belief.sample(options.samples, np.random.default_rng((options.seed, 0x7EA1)))
            world = replace(world, world=with_imperfections(world.world, belief_addresses(belief)))
        first = FIRST_START + 1000 * options.seed
        steps = round(options.seconds / world.spec.dt) if options.seconds else world.steps
        # The states of a world with a delay hold its commands, so starts are those of a tuned world.
        tuned = world.tuned(settings) if settings else world
        starts = start_states(tuned, range(first, first + options.samples))
        return cls(world, settings, starts, min(steps, world.steps))

    def returns(self, base: Policy, residual: Residual) -> Returns:
        """The returns [candidates, worlds] of weights [candidates, actions, signals], all in one batch."""
        n = len(self.starts.q)
        weights = residual.weights.reshape(-1, *residual.weights.shape[-2:])
        count = len(weights)
        many = {name: np.tile(values, count) for name, values in self.settings.items()}
        world = self.world.tuned(many) if many else self.world
        policy = ResidualPolicy(base, replace(residual, weights=np.repeat(weights, n, axis=0)), world.spec)
        start = take(self.starts, np.tile(np.arange(n), count))
        found = episode_returns(world, policy, start, steps=self.steps)
        return Returns(found.score.reshape(count, n), found.success.reshape(count, n))


def search_residual(
    world: Tasked[Simulator],
    base: Policy,
    start: Residual,
    belief: Belief | None = None,
    options: SearchOptions | None = None,
    *,
    watch: Callable[[int, float], None] | None = None,
) -> SearchResult:
    """Train the residual on top of a policy in worlds sampled from a belief, from a first residual on.

    Starting from the residual of an earlier training is fine-tuning. The one with the best mean return is kept, the
    first one included. Ctrl-C keeps the best so far.
    """
    from cmaes import CMA

    options = options or SearchOptions()
    _check(options)
    began, worlds = time.process_time(), TrainingWorlds.sample(world, belief, options)
    centre = start.weights if options.per_joint else start.weights.mean(axis=0, keepdims=True)
    search = CMA(
        mean=centre.reshape(-1),
        sigma=options.spread,
        seed=options.seed,
        population_size=options.population,
    )
    first = worlds.returns(base, start)
    best, top, kept = start.weights, _value(first, start.weights[None])[0], first.score[0]
    history: list[float] = []
    try:
        for generation in range(options.generations):
            points = np.array([search.ask() for _ in range(options.population)])
            weights = np.broadcast_to(points.reshape(len(points), *centre.shape), (len(points), *start.weights.shape))
            found = worlds.returns(base, replace(start, weights=weights))
            values = _value(found, weights)
            search.tell([(point, -float(value)) for point, value in zip(points, values, strict=True)])
            at = int(np.argmax(values))
            if values[at] > top:
                best, top, kept = np.array(weights[at]), values[at], found.score[at]
            history.append(float(kept.mean()))
            if watch is not None:
                watch(generation, history[-1])
    except KeyboardInterrupt:
        history = history or [float(kept.mean())]
    episodes = options.samples * (1 + options.population * len(history))
    return SearchResult(
        replace(start, weights=best), bootstrap(first.score[0]), bootstrap(kept), tuple(history), episodes,
        time.process_time() - began,
    )  # fmt: skip


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
