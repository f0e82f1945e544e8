"""Two thought experiments with a robot that walks: actions replayed on the same robot, and actions of a simulator.

A controller walks a robot, and its actions are recorded. I: the same robot plays them again from the same start. II:
the robot plays actions that the controller took in a simulator. Beside both, the controller walks the robot once more
with its feedback on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from instep.core import counter_rng
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat
from instep.core.rollout import Script, rollouts
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import (
    Array,
    Observation,
    S,
    Spec,
    State,
    World,
    Wrapper,
    array_dataclass,
    options_dataclass,
    vector,
)
from instep.robot import Noisy
from instep.scene.folder import SceneSimulator

from .gait import Gait, GaitBody, base_motion, fallen
from .leg_estimation import IMU, LeggedEstimate

FEEDBACK, SAME, SIMULATED = "feedback on", "I: replayed on the same robot", "II: replayed from simulation"
"""The three conditions, by name."""
_OTHER_RUN = 1000
"""Added to a seed for the second run of the same robot."""


@options_dataclass
class WalkNoise:
    """What differs from run to run on one robot."""

    force: float = 0.05
    """Standard deviation of a random force on the base, as a share of its weight."""
    push: float = 0.0
    """Change of velocity by a push [m/s]."""
    push_every: float = 3.0
    """Time between pushes [s]."""
    joints: float = 1e-3
    """Noise of joint positions [rad]."""
    rates: float = 0.05
    """Noise of joint velocities [rad/s]."""


@options_dataclass
class LegOptions:
    """Number and length of walks."""

    trials: int = 8
    seconds: float = 20.0
    noise: WalkNoise = field(default_factory=WalkNoise)
    seed: int = 0


@array_dataclass
class Walks:
    """Walks under one condition, one entry per trial."""

    upright: Array
    """How long the robot stayed upright [s] [trials]."""
    distance: Array
    """How far it was from the recorded run when the first of both ended [m] [trials]."""
    episodes: Sequence[Episode]
    seconds: float
    """Length of a walk that does not end by a fall [s]."""

    def scores(self) -> dict[str, Estimate]:
        """Share that stayed upright, time to the fall, and distance from the recorded run."""
        up = self.upright >= self.seconds - 1e-9
        return {
            "upright to the end": wilson(int(up.sum()), len(up)),
            "time upright": bootstrap(self.upright, unit="s"),
            "distance from the recorded run": bootstrap(self.distance, unit="m"),
        }


@array_dataclass
class LegExperiment:
    """Walks under each condition, and what they cost."""

    walks: dict[str, Walks]
    speeds: list[float]
    """Speed with feedback of each recorded walk [m/s]."""
    errors: list[float]
    """Root mean square error of the estimated velocity of the base in each recorded walk [m/s]."""
    step_ms: float
    """Computing time of the controller per control period of one robot [ms]."""
    robot_minutes: float
    computer_minutes: float

    @property
    def speed(self) -> Estimate:
        """Speed with feedback [m/s]."""
        return bootstrap(self.speeds, unit="m/s")

    @property
    def velocity_error(self) -> Estimate:
        """Error of the estimated velocity of the base [m/s]."""
        return bootstrap(self.errors, unit="m/s")

    def sooner(self) -> Estimate:
        """How much sooner the robot falls with actions of a simulator than with its own, paired by trial [s]."""
        return bootstrap(self.walks[SAME].upright - self.walks[SIMULATED].upright, unit="s")


def noisy_robot(sim: SceneSimulator, body: GaitBody, noise: WalkNoise | None = None) -> World:
    """A simulator as a robot with an IMU, noisy joints and disturbances; without noise where None."""
    base = int(sim.model.body(body.legs.base).id)
    mass = float(sim.model.body_subtreemass[base])
    if noise is None:
        return Inertial(sim, body.at_q, body.at_v, gyro_noise=0, gyro_bias=0, acc_noise=0, acc_bias=0)
    shaken = Disturbed(
        sim,
        body=base - 1,
        bodies=sim.model.nbody - 1,
        force=noise.force * mass * 9.81,
        push=noise.push * mass,
        push_every=round(noise.push_every / sim.spec.dt) if noise.push else 0,
    )
    sensed = Noisy(Inertial(shaken, body.at_q, body.at_v), noise.joints)
    return Noisy(sensed, noise.rates, ("observation.velocity",))


def leg_experiment(
    sim: SceneSimulator,
    robot: SceneSimulator,
    gait: Callable[[], Gait],
    options: LegOptions,
    *,
    watch: Callable[[str], None] | None = None,
) -> LegExperiment:
    """Walk a robot with a gait, replay its actions (I) and those of the simulator (II), and walk it once more."""
    if options.trials < 1 or not 0 < options.seconds <= 600:
        raise BadInput(f"Walks take at least 1 trial and up to 600 s, not {options.trials} and {options.seconds:g}.")
    began, note = time.perf_counter(), watch or _quiet
    body, steps = gait().body, round(options.seconds / sim.spec.dt)
    over = fallen(sim.scene, body)
    world, ideal = noisy_robot(robot, body, options.noise), noisy_robot(sim, body)
    first = [options.seed + i for i in range(options.trials)]
    again = [seed + _OTHER_RUN for seed in first]
    note("feedback on, recorded")
    errors = _VelocityErrors(LeggedEstimate(gait()), body)
    recorded = rollouts(world, errors.policy, seeds=first, steps=steps, until=over, watch=(errors,))
    note("feedback on, once more")
    timed = _Timed(LeggedEstimate(gait()))
    repeated = rollouts(world, timed, seeds=again, steps=steps, until=over)
    note("simulation")
    [simulated] = rollouts(ideal, LeggedEstimate(gait()), seeds=[0], steps=steps, until=over)
    note("I: the recorded actions on the same robot")
    same = rollouts(world, Script(_stacked(recorded)), seeds=again, steps=steps, until=over)
    note("II: the actions of the simulation on the robot")
    other = rollouts(world, Script(simulated.action), seeds=again, steps=steps, until=over)
    walks = {
        FEEDBACK: _walks(repeated, recorded, body, options.seconds),
        SAME: _walks(same, recorded, body, options.seconds),
        SIMULATED: _walks(other, [simulated] * options.trials, body, options.seconds),
    }
    ran = sum(len(e) for e in (*recorded, *repeated, *same, *other)) * sim.spec.dt
    speeds = [(e.q[-1, body.at_q] - e.q[0, body.at_q]) / max(len(e) * sim.spec.dt, 1e-9) for e in recorded]
    return LegExperiment(
        walks, list(map(float, speeds)), errors.per_trial(recorded), timed.per_step_ms(options.trials), ran / 60,
        (time.perf_counter() - began) / 60,
    )  # fmt: skip


class _Timed:
    """A controller whose computing time is measured."""

    def __init__(self, policy: LeggedEstimate):
        self._policy = policy
        self._spent, self._steps = 0.0, 0

    def reset(self, seed: int = 0) -> None:
        self._policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        began = time.perf_counter()
        action = self._policy.act(observation)
        self._spent, self._steps = self._spent + time.perf_counter() - began, self._steps + 1
        return action

    def per_step_ms(self, robots: int) -> float:
        return 1000 * self._spent / max(self._steps * robots, 1)


class _VelocityErrors:
    """A watcher that compares the estimated velocity of the base with the true one."""

    def __init__(self, policy: LeggedEstimate, body: GaitBody):
        self.policy, self._body = policy, body
        self._squares: list[Array] = []

    def __call__(self, state: State, observation: object, action: Array) -> None:
        true = base_motion(state.q, state.v, self._body.at_q, self._body.at_v)[..., 6:9]
        self._squares.append(((self.policy.estimate[..., 6:9] - true) ** 2).sum(axis=-1))

    def per_trial(self, episodes: Sequence[Episode]) -> list[float]:
        rows = np.array(self._squares)
        return [float(np.sqrt(rows[: len(e), i].mean())) for i, e in enumerate(episodes)]


def _quiet(words: str) -> None:
    """Take a note of nothing."""


def _stacked(episodes: Sequence[Episode]) -> Array:
    """Actions of several episodes [steps, trials, nu]; the last of each is held."""
    longest = max(len(e) for e in episodes)
    return np.stack([e.action[np.minimum(np.arange(longest), len(e) - 1)] for e in episodes], axis=1)


def _walks(episodes: Sequence[Episode], recorded: Sequence[Episode], body: GaitBody, seconds: float) -> Walks:
    dt, place = episodes[0].spec.dt, slice(body.at_q, body.at_q + 2)
    up = [seconds if e.meta["ended"] == "steps" else (len(e) - 1) * dt for e in episodes]
    ends = [min(len(e), len(r)) - 1 for e, r in zip(episodes, recorded, strict=True)]
    far = [
        float(np.linalg.norm(e.q[end, place] - r.q[end, place]))
        for e, r, end in zip(episodes, recorded, ends, strict=True)
    ]
    return Walks(np.array(up), np.array(far), episodes, seconds)


IMU_CHANNEL = vector(["gyro.x", "gyro.y", "gyro.z", "acc.x", "acc.y", "acc.z"], ["rad/s"] * 3 + ["m/s2"] * 3)
GRAVITY = 9.81
"""Acceleration of gravity [m/s2]."""


@array_dataclass
class Inertial(Wrapper[S]):
    """A simulator with an IMU on its free base: mean angular velocity and specific force of each control period.

    The bias of each axis is constant within an episode.
    """

    at_q: int = 0
    """Index of the pose of the base in q."""
    at_v: int = 0
    """Index of its velocity in v."""
    gyro_noise: float = 0.01
    """Standard deviation of a reading [rad/s]."""
    gyro_bias: float = 0.01
    """Standard deviation of the bias [rad/s]."""
    acc_noise: float = 0.1
    """Standard deviation of a reading [m/s2]."""
    acc_bias: float = 0.05
    """Standard deviation of the bias [m/s2]."""

    @property
    def spec(self) -> Spec:
        """Description of the numbers, the IMU included."""
        return self.world.spec.with_observations({IMU: IMU_CHANNEL})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Draw the biases and start the stream of random numbers."""
        keys = np.broadcast_to(counter_rng.key(seed, self.key), (*state.batch, *counter_rng.key(0, "").shape)).copy()
        bias = counter_rng.normal(keys, 6) * self._scale(self.gyro_bias, self.acc_bias)
        still = self._reading(state, state)
        return state.with_hidden(self.key, {"keys": counter_rng.next_key(keys), "bias": bias, "reading": still})

    def step(self, state: State, action: Array) -> State:
        """One control period later, with the readings of that period."""
        memory = state.hidden[self.key]
        keys = counter_rng.next_key(memory["keys"])

        def kept(after: State) -> dict[str, Array]:
            return {"keys": keys, "bias": memory["bias"], "reading": self._reading(state, after)}

        return self.step_inside(state, action, kept)

    def observe(self, state: State) -> Observation:
        """The sensor readings, with those of the IMU."""
        memory = state.hidden[self.key]
        noise = counter_rng.normal(memory["keys"], 6) * self._scale(self.gyro_noise, self.acc_noise)
        return {**self.world.observe(state), IMU: memory["reading"] + memory["bias"] + noise}

    def _scale(self, gyro: float, acc: float) -> Array:
        return np.array([gyro] * 3 + [acc] * 3)

    def _reading(self, before: State, after: State) -> Array:
        turn = matrix_from_quat(after.q[..., self.at_q + 3 : self.at_q + 7])
        linear = slice(self.at_v, self.at_v + 3)
        force = (after.v[..., linear] - before.v[..., linear]) / self.spec.dt + [0.0, 0.0, GRAVITY]
        angular = slice(self.at_v + 3, self.at_v + 6)
        gyro = 0.5 * (before.v[..., angular] + after.v[..., angular])
        return np.concatenate([gyro, np.einsum("...ij,...i->...j", turn, force)], axis=-1)


@array_dataclass
class Disturbed(Wrapper[S]):
    """A simulator with random forces on one body, and pushes from time to time: no two runs are the same."""

    body: int = 0
    """Index of the body among those of `nudge`."""
    bodies: int = 1
    """How many bodies `nudge` takes."""
    force: float = 0.0
    """Standard deviation of the force of a control period along each axis [N]."""
    push: float = 0.0
    """Impulse of a push, in a random horizontal direction [N s]."""
    push_every: int = 0
    """Control periods between pushes; none where 0."""

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start the stream of random numbers."""
        keys = np.broadcast_to(counter_rng.key(seed, self.key), (*state.batch, *counter_rng.key(0, "").shape)).copy()
        return state.with_hidden(self.key, {"keys": keys, "row": np.zeros(state.batch, int)})

    def step(self, state: State, action: Array) -> State:
        """Apply the force of this period, then step."""
        memory = state.hidden[self.key]
        keys, row = counter_rng.next_key(memory["keys"]), memory["row"] + 1
        wrench = np.zeros((*state.batch, self.bodies, 6))
        wrench[..., self.body, :3] = self.force * counter_rng.normal(keys, 3)
        if self.push_every:
            angle = 2 * np.pi * counter_rng.uniform(counter_rng.next_key(keys), 1)[..., 0]
            size = np.where(row % self.push_every == 0, self.push / self.spec.dt, 0.0)
            wrench[..., self.body, 0] += size * np.cos(angle)
            wrench[..., self.body, 1] += size * np.sin(angle)
        return self.step_inside(self.world.nudge(state, wrench), action, lambda _: {"keys": keys, "row": row})
