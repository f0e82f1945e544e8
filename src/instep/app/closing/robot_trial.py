"""One robot of the experiment closing: recordings, posteriors, trainings and evaluation of every technique on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from instep.app.simulated_robot import Perturbation, simulate_robot
from instep.app.simulation_training import TrainingSetup
from instep.core.episode import Episode, Log
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.records import array_dataclass, frozen_dataclass, options_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Policy, Simulator
from instep.data.resample import velocity
from instep.evaluate.episode_batch import step_batch
from instep.evaluate.returns import Returns, episode_returns, start_states
from instep.physics.delta_model import DeltaCorrected, position_actions
from instep.policy.residual import Residual, ResidualPolicy
from instep.scene import address
from instep.scene.folder import Scene
from instep.scene.tasks.task import Tasked
from instep.tune.beliefs import SampleBelief
from instep.tune.delta_action import DeltaOptions, learn_delta
from instep.tune.ensemble_sampling import EnsembleOptions, ensemble_posterior
from instep.tune.policy_search import SearchOptions, search_residual

UNTOUCHED, NOMINAL, RANGES, ADR = "untouched", "nominal training", "hand ranges", "ADR ranges"
IDENTIFIED, POSTERIOR, DELTA = "identified", "posterior", "delta action"
IDENTIFIED_DELTA, ON_ROBOT, POSTERIOR_ON_ROBOT = "identified + delta action", "on the robot", "posterior + on the robot"
BOUND = "in the robot itself"
"""No technique but a bound: what a training gains that knows all about the robot."""
SHARED = (NOMINAL, RANGES, ADR)
"""Techniques that never meet the robot: one training serves every robot."""
FIRST = "first half of hand ranges"
"""The training over hand ranges after half of its generations."""
FROM_FIRST = (IDENTIFIED, POSTERIOR, POSTERIOR_ON_ROBOT, BOUND)
"""Techniques that go on from it; fine-tuning with a delta action begins at the untouched policy."""
TECHNIQUES = {
    UNTOUCHED: "the policy as it is",
    NOMINAL: "trained in the scene as it is",
    RANGES: "trained over hand ranges of parameters and delay",
    ADR: "trained over ranges that automatic domain randomization grew",
    IDENTIFIED: "trained at the parameters identified from a recording of the robot",
    POSTERIOR: "trained over the posterior from that recording",
    DELTA: "delta action learned from that recording, fine-tuned with it, deployed without it",
    IDENTIFIED_DELTA: "the same on top of the identified parameters",
    ON_ROBOT: "trained over hand ranges, then fine-tuned by episodes on the robot",
    POSTERIOR_ON_ROBOT: "trained over the posterior, then fine-tuned by episodes on the robot",
    BOUND: "trained in the simulated robot itself, its engine and hidden parameters: a bound, not to be had of a robot",
}
"""Techniques, and what each does."""
USUAL = tuple(name for name in TECHNIQUES if name != BOUND)
"""Those that a robot can be given."""
HAND_FACTOR, HAND_DELAY_S = 2.0, 0.1
"""Hand ranges: parameters from value / factor to value x factor, and delays up to this [s]."""
HAND_PATTERNS = ("joint.*.damping", "joint.*.frictionloss", "actuator.*.kp", "actuator.*.kv", "geom.*.friction")
RECORDED, JUDGED, REHEARSED = 800_000, 900_000, 850_000
"""First seeds of starts of recordings, of evaluations, and of fine-tuning on the robot."""

VELOCITY_WINDOW_S = 0.05
"""Time over which velocities are differences of sensed positions [s]."""


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

    @property
    def search(self) -> SearchOptions:
        """The options of a training in simulation."""
        return SearchOptions(
            generations=self.generations, population=self.population, samples=self.samples, seconds=self.seconds
        )

    @property
    def second(self) -> SearchOptions:
        """Those of the second half: other starts and samples."""
        return replace(self.search, seed=1)


@frozen_dataclass
class TechniqueResult:
    """A technique on one robot."""

    scores: tuple[float, ...]
    """Return from each start."""
    successes: tuple[bool, ...]
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
    """Weights of the trainings that serve every robot, by technique, and of FIRST."""
    budget: ClosingBudget


def hand_ranges(scene: Scene) -> list[Param]:
    """Ranges around a scene's values, as one would write them by hand; patterns whose parts differ are left out."""
    found: list[Param] = []
    for pattern in HAND_PATTERNS:
        values = {value for value in _values(scene, pattern) if value > 0}
        if len(values) == 1:
            value, unit = values.pop(), scene.params(pattern)[0].unit
            found.append(Param(pattern, value / HAND_FACTOR, value * HAND_FACTOR, True, unit))
    return [*found, Param(address.DELAY, 0.0, HAND_DELAY_S, False, "s")]


def _values(scene: Scene, pattern: str) -> list[float]:
    from fnmatch import fnmatchcase

    known = [name for name in address.addresses(scene.model) if fnmatchcase(name, pattern)]
    return list(address.read(scene.model, known).values()) if known else []


def run_robot(job: RobotJob) -> dict[str, TechniqueResult]:
    """Every technique on one robot."""
    scene = Scene.load(job.scene)
    return _Robot(job, scene, TrainingSetup.of(scene, job.task, job.base)).results()


class _Robot:
    """A perturbed robot, what was recorded on it, and the trainings for it."""

    def __init__(self, job: RobotJob, scene: Scene, setup: TrainingSetup):
        self._job, self._scene, self._setup, self._budget = job, scene, setup, job.budget
        real = simulate_robot(scene, Perturbation(hidden=job.robot)).world
        self._real = Tasked(real, setup.world.task)
        self._starts = start_states(self._real, range(JUDGED, JUDGED + job.budget.starts))
        limit = round(job.budget.seconds / self._real.spec.dt)
        self._steps = min(limit, self._real.steps)
        self._kept: dict[str, tuple[Any, float]] = {}

    def results(self) -> dict[str, TechniqueResult]:
        """The techniques that were asked for."""
        makers: dict[str, Callable[[], tuple[Residual, float]]] = {
            UNTOUCHED: lambda: (self._setup.start, 0.0),
            **{name: self._shared(name) for name in SHARED},
            IDENTIFIED: lambda: self._trained(self._identified(), None),
            BOUND: lambda: (self._trained_in(cast(Tasked[Simulator], self._real), None), 0.0),
            POSTERIOR: lambda: self._trained(self._setup.world, self._posterior()),
            DELTA: lambda: self._fine_tuned(self._with_delta(self._setup.world)),
            IDENTIFIED_DELTA: lambda: self._fine_tuned(self._with_delta(self._identified())),
            ON_ROBOT: lambda: self._rehearsed(self._weights(RANGES)),
            POSTERIOR_ON_ROBOT: lambda: self._rehearsed(
                self._trained(self._setup.world, self._posterior())[0], self._recorded_s()
            ),
        }
        out: dict[str, TechniqueResult] = {}
        for name in self._job.techniques:
            if name in (DELTA, IDENTIFIED_DELTA) and not position_actions(self._real.spec):
                continue
            began = time.process_time()
            residual, robot_s = makers[name]()
            spent = time.process_time() - began + self._reused(name)
            found = self._judged(residual)
            out[name] = TechniqueResult(
                tuple(map(float, found.score)), tuple(map(bool, found.success)), robot_s, spent
            )  # fmt: skip
        return out

    def _shared(self, name: str) -> Callable[[], tuple[Residual, float]]:
        return lambda: (self._weights(name), 0.0)

    def _weights(self, name: str) -> Residual:
        if name not in self._job.shared:
            raise BadInput(f"The training {name!r} is missing; it is made before the robots are.")
        return replace(self._setup.start, weights=self._job.shared[name])

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that several techniques need, made once; its processor time is counted for each of them."""
        if name not in self._kept:
            began = time.process_time()
            made = make()
            self._kept[name] = (made, time.process_time() - began)
        return self._kept[name][0]

    def _reused(self, name: str) -> float:
        """Processor time of what a technique found ready, since an earlier one needed it too [s]."""
        needs = {IDENTIFIED: ("posterior",), IDENTIFIED_DELTA: ("posterior",), POSTERIOR: ("posterior",),
                 POSTERIOR_ON_ROBOT: ("posterior",)}  # fmt: skip
        first = next((one for one in self._job.techniques if one in needs), "")
        return 0.0 if name == first else sum(self._kept[part][1] for part in needs.get(name, ()) if part in self._kept)

    def _recording(self) -> list[Episode]:
        count = self._budget.recordings
        return self._once("recording", lambda: recorded(self._real, self._setup.base, count, self._steps))

    def _recorded_s(self) -> float:
        return sum(len(episode) for episode in self._recording()) * self._real.spec.dt

    def _posterior(self) -> SampleBelief:
        sim, ranges = self._setup.world.world, hand_ranges(self._scene)
        return self._once("posterior", lambda: ensemble_posterior(sim, self._recording(), ranges, EnsembleOptions()))

    def _identified(self) -> Tasked[Simulator]:
        belief = self._posterior()
        points = np.median(belief.points, axis=0)
        middle = {param.address: float(param.from_unit(x)) for param, x in zip(belief.params, points, strict=True)}
        return replace(self._setup.world, world=self._setup.world.world.tuned(middle))

    def _with_delta(self, world: Tasked[Simulator]) -> Tasked[Simulator]:
        delta = learn_delta(world.world, self._recording(), DeltaOptions(limit=300, rounds=2))
        return replace(world, world=cast(Simulator, DeltaCorrected(cast(Any, world.world), delta)))

    def _trained(self, world: Tasked[Simulator], belief: SampleBelief | None) -> tuple[Residual, float]:
        return self._trained_in(world, belief), self._recorded_s()

    def _trained_in(self, world: Tasked[Simulator], belief: SampleBelief | None) -> Residual:
        return search_residual(world, self._setup.base, self._weights(FIRST), belief, self._budget.second).residual

    def _fine_tuned(self, world: Tasked[Simulator]) -> tuple[Residual, float]:
        """Both halves of a training in a corrected simulator, from the untouched policy on: no other training helps."""
        half = search_residual(world, self._setup.base, self._setup.start, None, self._budget.search).residual
        found = search_residual(world, self._setup.base, half, None, self._budget.second)
        return found.residual, self._recorded_s()

    def _rehearsed(self, start: Residual, before_s: float = 0.0) -> tuple[Residual, float]:
        """Fine-tune by episodes on the robot, four candidates from the same start per generation."""
        from cmaes import CMA

        search = CMA(mean=start.weights.mean(axis=0), sigma=0.15, seed=self._job.robot, population_size=4)
        used, winners = 0, list[Array]()
        while used + 4 <= self._budget.rehearsals:
            points = np.array([search.ask() for _ in range(4)])
            weights = np.broadcast_to(points[:, None], (4, *start.weights.shape))
            seeds = [REHEARSED + used // 4] * 4
            policy = ResidualPolicy(self._setup.base, replace(start, weights=weights), self._real.spec)
            found = episode_returns(self._real, policy, start_states(self._real, seeds), steps=self._steps)
            search.tell([(p, -float(v)) for p, v in zip(points, found.score, strict=True)])
            used += 4
            winners.append(points[int(np.argmax(found.score))])
        if not winners:
            return start, before_s
        # The mean of the later winners: one lucky episode decides nothing.
        mean = np.mean(winners[len(winners) // 2 :], axis=0)
        tuned = replace(start, weights=np.tile(mean, (len(start.weights), 1)))
        return tuned, before_s + used * self._steps * self._real.spec.dt

    def _judged(self, residual: Residual) -> Returns:
        policy = ResidualPolicy(self._setup.base, residual, self._real.spec)
        return episode_returns(self._real, policy, self._starts, steps=self._steps)


def recorded(world: Tasked[Any], policy: Policy, count: int, steps: int) -> list[Episode]:
    """Episodes as the sensors of a robot report them: positions as observed, velocities from their differences."""
    seeds = range(RECORDED, RECORDED + count)
    state, log = start_states(world, seeds), Log(world.spec)
    policy.reset(0)
    lost = np.zeros(count, bool)
    for _ in range(steps):
        seen = world.observe(state)
        action = checked_action(policy.act(seen), world.spec, state.batch)
        log(state, seen, action)
        state, lost = step_batch(world, state, action, lost)
    episodes = log.episodes([{"seed": str(seed)} for seed in seeds])
    return [_sensed(episode) for episode, gone in zip(episodes, lost, strict=True) if not gone]


def _sensed(episode: Episode) -> Episode:
    labels, q = episode.spec.q.labels, np.array(episode["q"])
    for channel in ("observation.state", "observation.environment_state"):
        known: Sequence[str] = episode.spec.observation[channel].labels if channel in episode.spec.observation else ()
        for j, label in enumerate(known):
            if label in labels:
                q[:, labels.index(label)] = episode[channel][:, j]
    v = velocity(episode.t, q, labels, VELOCITY_WINDOW_S)
    return replace(episode, columns={"timestamp": episode.t, "q": q, "v": v, "action": episode.action})
