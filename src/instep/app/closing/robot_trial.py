"""One robot of the experiment closing: recordings, posteriors, trainings and evaluation of every technique on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass, frozen_dataclass, options_dataclass
from instep.core.world import Array, Simulator
from instep.evaluate.returns import Returns, episode_returns, start_states
from instep.physics.delta_model import DeltaCorrected, position_actions
from instep.scene.folder import Scene
from instep.scene.tasks.task import Tasked
from instep.tune.beliefs import SampleBelief
from instep.tune.delta_action import DeltaOptions, learn_delta
from instep.tune.ensemble_sampling import EnsembleOptions
from instep.tune.policy_search import SearchOptions, best_weights, search_weights

from .robot_kinds import RobotKind, robot_kind

UNTOUCHED, NOMINAL, RANGES, ADR = "untouched", "nominal training", "hand ranges", "ADR ranges"
IDENTIFIED, POSTERIOR, DELTA = "identified", "posterior", "delta action"
IDENTIFIED_DELTA, ON_ROBOT, POSTERIOR_ON_ROBOT = "identified + delta action", "on the robot", "posterior + on the robot"
BOUND = "in the robot itself"
"""No technique but a bound: what a training gains that knows all about the robot."""
SHARED = (NOMINAL, RANGES, ADR)
"""Techniques that never meet the robot: one training serves every robot."""
FIRST = "first half of hand ranges"
"""The training over hand ranges after half of its generations."""
NOMINAL_FIRST = "first half of nominal training"
"""The training in the scene as it is after half of its generations."""
TAILORED = (IDENTIFIED, POSTERIOR, POSTERIOR_ON_ROBOT, BOUND)
"""Techniques that train in what is known of the robot: on from the first half of a training that does best there. What
is deployed is the best there of this training and of those that serve every robot."""
_NOMINAL, _RANGES = (NOMINAL_FIRST, NOMINAL), (FIRST, RANGES)
SHARED_NEEDS: dict[str, tuple[str, ...]] = {
    NOMINAL: _NOMINAL,
    RANGES: _RANGES,
    ADR: (ADR,),
    ON_ROBOT: _RANGES,
    **dict.fromkeys(TAILORED, (*_NOMINAL, *_RANGES)),
    **dict.fromkeys((DELTA, IDENTIFIED_DELTA), (NOMINAL_FIRST,)),
}
"""The trainings that serve every robot which a technique needs: made once, counted for each technique. With a delta
action a policy that was trained in the simulator is fine-tuned."""
TECHNIQUES = {
    UNTOUCHED: "the policy as it is",
    NOMINAL: "trained in the scene as it is",
    RANGES: "trained over hand ranges of parameters and delay",
    ADR: "trained over ranges that automatic domain randomization grew",
    IDENTIFIED: "trained at the parameters identified from a recording of the robot",
    POSTERIOR: "trained over the posterior from that recording, or the training that does better over it",
    DELTA: "delta action learned from that recording, fine-tuned with it, deployed without it",
    IDENTIFIED_DELTA: "the same on top of the identified parameters",
    ON_ROBOT: "trained over hand ranges, then fine-tuned by episodes on the robot",
    POSTERIOR_ON_ROBOT: "trained over the posterior, then fine-tuned by episodes on the robot",
    BOUND: "trained in the simulated robot itself, its engine and hidden parameters: a bound, not to be had of a robot",
}
"""Techniques, and what each does."""
USUAL = tuple(name for name in TECHNIQUES if name != BOUND)
"""Those that a robot can be given."""
JUDGED, REHEARSED = 900_000, 850_000
"""First seeds of starts of evaluations, and of fine-tuning on the robot."""
NARROW = 0.5
"""Spread of the second half of a training, as a share of that of the first: starting over with the whole spread, most
candidates lie beyond where the policy still works, and the search only comes back to where it began."""
RECORDING, TRAINED = "recording", "posterior training"
NEEDS: dict[str, tuple[str, ...]] = {
    IDENTIFIED: (POSTERIOR,),
    IDENTIFIED_DELTA: (POSTERIOR,),
    POSTERIOR: (POSTERIOR, TRAINED),
    POSTERIOR_ON_ROBOT: (POSTERIOR, TRAINED),
}
"""What techniques share: computed once for a robot, counted for each of them."""


@options_dataclass
class ClosingBudget:
    """How much each technique may use, on the robot and in simulation."""

    starts: int = 6
    """starts from which each policy is evaluated on each robot."""
    seconds: float = 6.0
    """length of an episode, at most the task's time limit [s]."""
    recordings: int = 4
    """recorded episodes of the untouched policy on the robot."""
    rehearsals: int = 24
    """episodes of fine-tuning on the robot."""
    generations: int = 14
    """generations of each half of a training in simulation."""
    population: int = 10
    """candidates per generation."""
    samples: int = 8
    """worlds in which each candidate runs."""
    members: int = 64
    """members of the ensemble of the posterior."""
    windows: int = 16
    """windows of the recordings that they run through."""
    delta_windows: int = 300
    """windows of the recordings that a delta action is learned from."""

    @property
    def search(self) -> SearchOptions:
        """The options of a training in simulation."""
        return SearchOptions(
            generations=self.generations, population=self.population, samples=self.samples, seconds=self.seconds
        )

    @property
    def second(self) -> SearchOptions:
        """Those of the second half: other starts and samples, searched near where the first half ended."""
        return replace(self.search, seed=1, spread=NARROW * self.search.spread)

    @property
    def ensemble(self) -> EnsembleOptions:
        """The options of the posterior."""
        return EnsembleOptions(members=self.members, windows=self.windows)


@frozen_dataclass
class TechniqueResult:
    """A technique on one robot."""

    scores: tuple[float, ...]
    """Return from each start."""
    successes: tuple[bool, ...]
    errors: tuple[float, ...]
    """Mean tracking error from each start; empty where the task defines none."""
    robot_s: float
    """Time on the robot that it needed [s]."""
    computer_s: float
    """Processor time that it needed, of what is done for this robot alone [s]."""


@array_dataclass
class RobotJob:
    """The work on one robot."""

    scene: str
    task: str
    base: str
    robot: int
    """Seed of the hidden parameters."""
    techniques: tuple[str, ...]
    shared: dict[str, Array]
    """Weights of the trainings that serve every robot, by technique, and their first halves."""
    budget: ClosingBudget


def run_robot(job: RobotJob) -> dict[str, TechniqueResult]:
    """Every technique on one robot."""
    return _Robot(job, robot_kind(Scene.load(job.scene), job.task, job.base)).results()


class _Robot:
    """A perturbed robot, what was recorded on it, and the trainings for it."""

    def __init__(self, job: RobotJob, kind: RobotKind):
        self._job, self._kind, self._setup, self._budget = job, kind, kind.setup, job.budget
        self._real = kind.robot(job.robot)
        self._starts = start_states(self._real, range(JUDGED, JUDGED + job.budget.starts))
        limit = round(job.budget.seconds / self._real.spec.dt)
        self._steps = min(limit, self._real.steps)
        self._kept: dict[str, tuple[Any, float]] = {}

    def results(self) -> dict[str, TechniqueResult]:
        """The techniques that were asked for and that this robot can use."""
        makers: dict[str, Callable[[], tuple[Array, float]]] = {
            UNTOUCHED: lambda: (self._setup.trained.weights, 0.0),
            **{name: self._shared(name) for name in SHARED},
            IDENTIFIED: lambda: (self._tailored(self._setup.sensed(self._identified())), self._recorded_s()),
            POSTERIOR: lambda: (self._posterior_training(), self._recorded_s()),
            DELTA: lambda: self._fine_tuned(self._setup.sim),
            IDENTIFIED_DELTA: lambda: self._fine_tuned(self._identified()),
            ON_ROBOT: lambda: self._rehearsed(self._weights(RANGES)),
            POSTERIOR_ON_ROBOT: lambda: self._rehearsed(self._posterior_training(), self._recorded_s()),
            BOUND: lambda: (self._tailored(self._real), 0.0),
        }
        out: dict[str, TechniqueResult] = {}
        for name in self._job.techniques:
            if name in (DELTA, IDENTIFIED_DELTA) and not position_actions(self._real.spec):
                continue
            ready, began = set(self._kept), time.process_time()
            weights, robot_s = makers[name]()
            spent = time.process_time() - began
            fresh = sum(seconds for part, (_, seconds) in self._kept.items() if part not in ready)
            found = self._judged(weights)
            out[name] = TechniqueResult(
                tuple(map(float, found.score)), tuple(map(bool, found.success)),
                tuple(map(float, found.error)) if self._real.error_unit else (), robot_s,
                spent - fresh + sum(self._kept[part][1] for part in NEEDS.get(name, ())),
            )  # fmt: skip
        return out

    def _shared(self, name: str) -> Callable[[], tuple[Array, float]]:
        return lambda: (self._weights(name), 0.0)

    def _weights(self, name: str) -> Array:
        if name not in self._job.shared:
            raise BadInput(f"The training {name!r} is missing; it is made before the robots are.")
        return self._job.shared[name]

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that several techniques need, made once, with the processor time of making it."""
        if name not in self._kept:
            began = time.process_time()
            made = make()
            self._kept[name] = (made, time.process_time() - began)
        return self._kept[name][0]

    def _recording(self) -> list[Episode]:
        count = self._budget.recordings
        return self._once(RECORDING, lambda: self._kind.recorded(self._real, count, self._steps, self._job.robot))

    def _recorded_s(self) -> float:
        return sum(len(episode) for episode in self._recording()) * self._real.spec.dt

    def _posterior(self) -> SampleBelief:
        episodes = self._recording()
        return self._once(POSTERIOR, lambda: self._kind.posterior(episodes, self._budget.ensemble))

    def _posterior_training(self) -> Array:
        belief = self._posterior()
        return self._once(TRAINED, lambda: self._tailored(self._setup.world, belief))

    def _identified(self) -> Simulator:
        belief = self._posterior()
        points = np.median(belief.points, axis=0)
        middle = {param.address: float(param.from_unit(x)) for param, x in zip(belief.params, points, strict=True)}
        return self._setup.sim.tuned(middle)

    def _tailored(self, world: Tasked[Simulator], belief: SampleBelief | None = None) -> Array:
        """The second half of a training in what is known of the robot, or a training for all that does better there."""

        def best(candidates: Sequence[Array]) -> Array:
            return best_weights(world, self._setup.trained, candidates, belief, self._budget.second)

        begin = best([self._weights(FIRST), self._weights(NOMINAL_FIRST)])
        found = search_weights(world, self._setup.trained, begin, belief, self._budget.second).weights
        return best([found, self._weights(RANGES), self._weights(NOMINAL)])

    def _fine_tuned(self, sim: Simulator) -> tuple[Array, float]:
        """The second half of a nominal training, in a simulator that a delta action corrects."""
        delta = learn_delta(sim, self._recording(), DeltaOptions(limit=self._budget.delta_windows, rounds=2))
        corrected = self._setup.sensed(cast(Simulator, DeltaCorrected(cast(Any, sim), delta)))
        begin, options = self._weights(NOMINAL_FIRST), self._budget.second
        return search_weights(corrected, self._setup.trained, begin, None, options).weights, self._recorded_s()

    def _rehearsed(self, start: Array, before_s: float = 0.0) -> tuple[Array, float]:
        """Fine-tune by episodes on the robot, four candidates from the same start per generation."""
        from cmaes import CMA

        search = CMA(mean=start.mean(axis=0), sigma=0.15, seed=self._job.robot, population_size=4)
        used, winners = 0, list[Array]()
        while used + 4 <= self._budget.rehearsals:
            points = np.array([search.ask() for _ in range(4)])
            weights = np.broadcast_to(points[:, None], (4, *start.shape))
            seeds = [REHEARSED + used // 4] * 4
            policy = self._setup.trained.policy(weights)
            found = episode_returns(self._real, policy, start_states(self._real, seeds), steps=self._steps)
            search.tell([(p, -float(v)) for p, v in zip(points, found.score, strict=True)])
            used += 4
            winners.append(points[int(np.argmax(found.score))])
        if not winners:
            return start, before_s
        # The mean of the later winners: one lucky episode decides nothing.
        mean = np.mean(winners[len(winners) // 2 :], axis=0)
        return np.tile(mean, (len(start), 1)), before_s + used * self._steps * self._real.spec.dt

    def _judged(self, weights: Array) -> Returns:
        return episode_returns(self._real, self._setup.trained.policy(weights), self._starts, steps=self._steps)
