"""One robot of the closing study: perturbation, recordings, posterior, trainings and evaluation of each technique."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np

from instep.core.episode import Episode, Log
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Param
from instep.core.rollout import checked_action
from instep.core.world import Array, Policy, Simulator, array_dataclass, frozen_dataclass, options_dataclass
from instep.data.resample import velocity
from instep.evaluate.episode_batch import episode_returns, start_states, step_batch
from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
from instep.physics.delta_model import DeltaCorrected, position_actions
from instep.physics.engines import open_world
from instep.scene import address
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.tasks import Walk, task_of
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import SampleBelief, nominal_values

from .delta_action import DeltaOptions, learn_delta
from .gait import GaitBody
from .leg_estimation import (
    FACTOR,
    SMOOTHED_ROWS,
    WINDOW_S,
    WINDOWS,
    estimated_motion,
    positive_values,
    walk_ranges,
)
from .legs_study import LegBudget, hidden_legs, record_legs
from .policy_search import SearchOptions, TrainableGait, TrainableResidual, best_weights, search_weights
from .posteriors import EnsembleOptions, ensemble_posterior
from .simulation_training import TrainingSetup, walked_robot

HAND_FACTOR, HAND_DELAY_S = 2.0, 0.1
"""Hand ranges: parameters from value / factor to value x factor, and delays up to this [s]."""
HAND_PATTERNS = ("joint.*.damping", "joint.*.frictionloss", "actuator.*.kp", "actuator.*.kv", "geom.*.friction")
EXCITED_SHARE, EXCITED_HZ, EXCITED_SINES = 0.2, (0.4, 4.0), 5
"""Sines that are added to the commands of every other recording: their amplitude as a share of the largest correction
that a residual makes, the range of their frequencies [Hz], and how many there are. A task alone hardly moves at the
frequencies at which a trained correction may begin to oscillate, so that it does not show how a robot answers there."""
WALK_MEMBERS = 40
"""Most members of an ensemble of a robot on legs, whose steps cost more."""
RECORDED = 800_000
"""First seed of the starts of recordings."""
VELOCITY_WINDOW_S = 0.05
"""Time over which velocities are differences of sensed positions [s]."""


@array_dataclass
class CommandedRobots:
    """Robots whose joints are measured and commanded: arms, wheels, a stick on sliders."""

    scene: Scene
    setup: TrainingSetup

    @property
    def ranges(self) -> list[Param]:
        """Half to twice the values of the scene, and a delay."""
        return hand_ranges(self.scene)

    @property
    def nominal(self) -> dict[str, float]:
        """The values of the scene."""
        return nominal_values(self.ranges, self.scene)

    def robot(self, seed: int) -> Tasked[Simulator]:
        """The scene in rapier, perturbed."""
        world = simulate_robot(self.scene, Perturbation(hidden=seed)).world
        return Tasked(cast(Simulator, world), self.setup.world.task)

    def recorded(self, robot: Tasked[Simulator], count: int, steps: int, seed: int) -> list[Episode]:
        """Episodes of the task; in every other one, from the first, sines are added to the commands."""
        trained = cast(TrainableResidual, self.setup.trained)
        added = excitation(trained.residual.limit, count, steps, robot.spec.dt, seed)
        return recorded(robot, trained.policy(trained.weights), added, trained.residual.bounds)

    def posterior(self, episodes: Sequence[Episode], options: EnsembleOptions) -> SampleBelief:
        """An ensemble over windows of the recordings."""
        return ensemble_posterior(self.setup.sim, episodes, self.ranges, options)


@array_dataclass
class LeggedRobots:
    """Robots on legs, which show joints and an IMU."""

    scene: Scene
    setup: TrainingSetup

    @property
    def ranges(self) -> list[Param]:
        """Factors on servos, masses, friction and damping, and a delay."""
        return walk_ranges(self.scene)

    @property
    def nominal(self) -> dict[str, float]:
        """Factors of 1, and no delay."""
        return {param.address: float(param.address.startswith(FACTOR)) for param in self.ranges}

    def robot(self, seed: int) -> Tasked[Simulator]:
        """The scene in rapier, perturbed, with a noisy IMU and pushes."""
        sim = cast(Simulator, open_world(self.scene, "rapier")).tuned(hidden_legs(self.scene, seed))
        return walked_robot(sim, GaitBody.of(self.scene), cast(Walk, self.setup.world.task))

    def recorded(self, robot: Tasked[Simulator], count: int, steps: int, seed: int) -> list[Episode]:
        """One recording of weight shifting and the others of walking, with the motion of the base estimated."""
        gait, body = cast(TrainableGait, self.setup.trained).gait, GaitBody.of(self.scene)
        budget = LegBudget(shifts=1, walks=count - 1, seconds=steps * self.scene.dt)
        taken = record_legs(robot, cast(SceneSimulator, self.setup.sim), gait, budget, RECORDED + seed)
        return [estimated_motion(one, body, stance) for one, stance in taken if len(one) > SMOOTHED_ROWS]

    def posterior(self, episodes: Sequence[Episode], options: EnsembleOptions) -> SampleBelief:
        """An ensemble over short windows, over factors and a delay."""
        members, windows = min(WALK_MEMBERS, options.members), min(WINDOWS, options.windows)
        short = replace(options, members=members, windows=windows, window_s=WINDOW_S)
        return ensemble_posterior(self.setup.sim, episodes, self.ranges, short)


RobotKind: TypeAlias = CommandedRobots | LeggedRobots
"""Its training, its hand ranges, its perturbation, its recordings and its posterior."""


def robot_kind(scene: Scene, task: str, base: str) -> RobotKind:
    """The kind of robot of a scene and a task."""
    kind = LeggedRobots if isinstance(task_of(scene, task), Walk) else CommandedRobots
    return kind(scene, TrainingSetup.of(scene, task, base))


def hand_ranges(scene: Scene) -> list[Param]:
    """Ranges around a scene's values, as one would write them by hand; patterns whose parts differ are left out."""
    found, known = list[Param](), address.addresses(scene.model)
    for pattern in HAND_PATTERNS:
        values = set(positive_values(scene, pattern, known).values())
        if len(values) == 1:
            value, unit = values.pop(), scene.params(pattern)[0].unit
            found.append(Param(pattern, value / HAND_FACTOR, value * HAND_FACTOR, True, unit))
    return [*found, Param(address.DELAY, 0.0, HAND_DELAY_S, False, "s")]


def excitation(limit: Array, count: int, steps: int, dt: float, seed: int) -> Array:
    """What is added to commands [steps, recordings, actions]: sines in every other recording, from the first."""
    rng = np.random.default_rng((seed, 0xE8C17E))
    size = (count, len(limit), EXCITED_SINES)
    rate = 2 * np.pi * np.geomspace(*EXCITED_HZ, EXCITED_SINES) * rng.uniform(0.9, 1.1, size)
    t = dt * np.arange(steps)[:, None, None, None]
    wave = (rng.choice([-1.0, 1.0], size) * np.sin(rate * t)).mean(axis=-1)
    excited = (np.arange(count) % 2 == 0)[:, None]
    return np.where(excited, EXCITED_SHARE * limit * wave, 0.0)


def recorded(world: Tasked[Any], policy: Policy, added: Array, bounds: Array) -> list[Episode]:
    """Episodes as the sensors of a robot report them: positions as observed, velocities from their differences.

    `added` [steps, episodes, actions] is added to the actions of the policy, inside `bounds` [2, actions].
    """
    seeds = range(RECORDED, RECORDED + added.shape[1])
    state, log = start_states(world, seeds), Log(world.spec)
    policy.reset(0)
    lost = np.zeros(len(seeds), bool)
    for more in added:
        seen = world.observe(state)
        action = checked_action(policy.act(seen), world.spec, state.batch)
        action = np.clip(action + more, *bounds) if more.any() else action
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
            **{name: lambda name=name: (self._weights(name), 0.0) for name in SHARED},
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
            found = episode_returns(self._real, self._setup.trained.policy(weights), self._starts, steps=self._steps)
            out[name] = TechniqueResult(
                tuple(map(float, found.score)), tuple(map(bool, found.success)),
                tuple(map(float, found.error)) if self._real.error_unit else (), robot_s,
                spent - fresh + sum(self._kept[part][1] for part in NEEDS.get(name, ())),
            )  # fmt: skip
        return out

    def _weights(self, name: str) -> Array:
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
        used, winners = 0, list[Array]()

        def losses(points: Array) -> Array:
            weights = np.broadcast_to(points[:, None], (len(points), *start.shape))
            starts = start_states(self._real, [REHEARSED + len(winners)] * len(points))
            policy = self._setup.trained.policy(weights)
            return -episode_returns(self._real, policy, starts, steps=self._steps).score

        search = CmaSearch(
            spread=0.15, generations=self._budget.rehearsals // 4, population=4, bounded=False, seed=self._job.robot
        )
        for found in cma_generations(losses, start.mean(axis=0), search):
            used += len(found.points)
            winners.append(found.points[found.best])
        if not winners:
            return start, before_s
        # The mean of the later winners: one lucky episode decides nothing.
        mean = np.mean(winners[len(winners) // 2 :], axis=0)
        return np.tile(mean, (len(start), 1)), before_s + used * self._steps * self._real.spec.dt
