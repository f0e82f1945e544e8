"""What differs between kinds of robots in the experiment closing: how one is perturbed, recorded and identified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, cast

import numpy as np

from instep.app.legs_closing import LegBudget, hidden_legs, record_legs
from instep.app.simulated_robot import Perturbation, simulate_robot
from instep.app.simulation_training import TrainingSetup, walked_robot
from instep.core.episode import Episode, Log
from instep.core.param import Param
from instep.core.records import array_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Policy, Simulator
from instep.data.resample import velocity
from instep.evaluate.episode_batch import step_batch
from instep.evaluate.returns import start_states
from instep.physics.engines import open_world
from instep.policy.gait import GaitBody
from instep.policy.trainable import TrainableGait, TrainableResidual
from instep.scene import address
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.tasks import Walk, task_of
from instep.scene.tasks.task import Tasked
from instep.tune.beliefs import SampleBelief
from instep.tune.ensemble_sampling import EnsembleOptions, ensemble_posterior
from instep.tune.factor_world import FACTOR, walk_ranges
from instep.tune.leg_identification import SMOOTHED_ROWS, WINDOW_S, WINDOWS, estimated_motion
from instep.tune.randomize import nominal_values

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


class RobotKind(Protocol):
    """A kind of robot: its training, its hand ranges, its perturbation, its recordings and its posterior."""

    @property
    def setup(self) -> TrainingSetup:
        """What is trained, and in which world."""
        ...

    @property
    def ranges(self) -> list[Param]:
        """What somebody would randomize who has not met the robot."""
        ...

    @property
    def nominal(self) -> dict[str, float]:
        """The values of these parameters in the scene."""
        ...

    def robot(self, seed: int) -> Tasked[Simulator]:
        """A perturbed robot: another engine, hidden parameters, delay and noise."""
        ...

    def recorded(self, robot: Tasked[Simulator], count: int, steps: int, seed: int) -> list[Episode]:
        """Recordings of the untouched policy on a robot, from what its own sensors show."""
        ...

    def posterior(self, episodes: Sequence[Episode], options: EnsembleOptions) -> SampleBelief:
        """The parameters that these recordings allow."""
        ...


def robot_kind(scene: Scene, task: str, base: str) -> RobotKind:
    """The kind of robot of a scene and a task."""
    kind = LeggedRobots if isinstance(task_of(scene, task), Walk) else CommandedRobots
    return kind(scene, TrainingSetup.of(scene, task, base))


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
    known = [name for name in address.addresses(scene.model) if fnmatchcase(name, pattern)]
    return list(address.read(scene.model, known).values()) if known else []


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
