"""Adaptive control: help the position servos of a robot to move as its reference model does.

The reference model is the identified simulator, stepped in lock step with the commands r. The robot is sent r + delta,
where delta is the torque of the adaptive law over the gain of the servo. delta is clipped, passes the limits of the
world inside, and fades out while readings are refused or trust is low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, W, Wrapper, array_dataclass, options_dataclass, vector
from instep.scene.folder import SceneSimulator

from .adaptive_kernels import (
    FIRST_PAUSE_S,
    HELPED,
    JointReading,
    LawInput,
    LawLimits,
    LawMemory,
    Supervision,
    SupervisionRules,
    compare_reading,
    learn_weights,
    limit_compensation,
)
from .reference_model import Bandwidth, ReferenceArm, ReferenceMotion, ServoDynamics, stable_bandwidth, undelayed

DELTA, ERROR, SHARE = "adaptive.delta", "adaptive.error", "adaptive.share"
"""Observations: offset of the commands, error to the model, and applied share of the compensation (of the joint with
the smallest share)."""
SENT = "action.sent"
"""Observation of the command that the limits let through, where a world shows it."""
MAX_AGE_PERIODS = 3
"""Readings older than usual by more than this many periods are refused."""
CORRELATION_S = 0.02
"""Correlation time of model errors, so that all readings in it count as one [s]."""
DRIFT = 0.2
"""Random walk of weights in a second, as a share of their scale."""

Trust: TypeAlias = Callable[[State], float]
"""Trust in a state, from 0 to 1, such as that of a twin."""


@options_dataclass
class AdaptiveOptions:
    """Options of adaptive control."""

    noise: float = 2e-4
    """Standard deviation of position readings [rad or m]; errors within it move nothing."""
    age: float = 0.0
    """Age of readings that carry no stamps [s]."""
    torque: float = 0.5
    """Largest compensation, as a share of the torque limit of each servo."""
    max_error: float = 0.5
    """Error to the model at which compensation is given up [rad or m]: the robot touches something, or is another."""
    min_trust: float = 0.05
    """Trust below which compensation fades out."""
    fade: float = 0.5
    """Time in which compensation fades out or in [s]."""


_DEFAULTS = AdaptiveOptions()


class AdaptiveMemory(NamedTuple):
    """Memory of adaptive control between two periods."""

    model: State
    law: LawMemory
    rows: tuple[Array, ...]
    """Values of the last motions of the model, oldest first."""
    applied: tuple[Array, ...]
    """Torques of compensation in the same periods."""
    speeds: Array
    command: Array
    moving: Array
    """Offset of the commands and its speed [2, n]."""
    supervision: Supervision


@array_dataclass
class Adaptive(Wrapper[W]):
    """A robot whose position servos follow a reference model; made by `Adaptive.around`.

    Observations gain `adaptive.delta` (offset of the commands), `adaptive.error` (position less that of the model) and
    `adaptive.share` (applied share of the compensation). A step takes one robot, not a batch.
    """

    reference: SceneSimulator
    """The model, without its delay."""
    arm: ReferenceArm
    law: ModelReference
    options: AdaptiveOptions
    positions: Array
    """Indices of the driven joints in `observation.state`."""
    trust: Trust | None = None
    _inner: Spec = field(init=False, repr=False)
    """Spec of the world inside, which may build it anew on every access."""
    _rules: SupervisionRules = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_inner", self.world.spec)
        rules = SupervisionRules(self.arm.dt, float(self.options.fade), float(self.options.max_error))
        object.__setattr__(self, "_rules", rules)

    @classmethod
    def around(
        cls,
        world: W,
        reference: SceneSimulator,
        options: AdaptiveOptions = _DEFAULTS,
        trust: Trust | None = None,
    ) -> Adaptive[W]:
        """A world whose position servos follow a reference model.

        The bandwidth is the largest that is stable with the delay of the model (see `stable_bandwidth`); without one,
        it raises `BadInput`. Put the limits inside (`Guarded`): they then hold for the compensated command.
        """
        if abs(world.spec.dt - reference.spec.dt) > 1e-6:
            raise BadInput(
                f"The robot has a control period of {1e3 * world.spec.dt:g} ms and its model of "
                f"{1e3 * reference.spec.dt:g} ms; set rate in the scene.toml of the model to that of the robot."
            )
        if world.spec.action.labels != reference.spec.action.labels:
            raise BadInput(
                f"The robot takes the commands {', '.join(world.spec.action.labels)}, but its model "
                f"{', '.join(reference.spec.action.labels)}; give the scene of this robot."
            )
        arm = ReferenceArm.of(reference)
        law = ModelReference.of(arm, options.noise, options.age)
        return cls(world, undelayed(reference), arm, law, options, arm.positions_in(world.spec), trust)

    @property
    def spec(self) -> Spec:
        """Description of the numbers, with those of the compensation."""
        inner = self.world.spec
        units = [inner.action.units[int(a)] for a in self.arm.index.action]
        joints = vector(self.arm.joints, units)
        return inner.with_observations({DELTA: joints, ERROR: joints, SHARE: vector(("share",), "1")})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Place the model at the robot, without compensation."""
        if state.batch:
            raise BadInput("Adaptive control takes one robot at a time, not a batch; wrap each world on its own.")
        arm = self.arm
        q, _ = self._reading(state, self.world.observe(state))
        model = self._placed(q, np.zeros(arm.n), state.t)
        command = self._holding(model) if past is None else np.asarray(past, float)[-1]
        motion = arm.motion(model.q, model.v, None, command)
        rows = [motion.values]
        # The model is ahead of the robot by the delay: earlier commands are still on their way.
        for _ in range(round(arm.delay / arm.dt)):
            model, motion = arm.followed(self.reference, model, command, motion.speeds)
            rows.append(motion.values)
        joints = np.zeros((8, arm.n))
        joints[HELPED] = 1.0
        supervision = Supervision(np.zeros(arm.n), np.ones(1), joints, np.array([0.0, FIRST_PAUSE_S]))
        applied = (np.zeros(arm.n),) * len(rows)
        memory = AdaptiveMemory(
            model, self.law.start(), tuple(rows), applied, motion.speeds, command, np.zeros((2, arm.n)), supervision
        )
        return state.with_hidden(self.key, memory)

    def step(self, state: State, action: Array) -> State:
        """Learn from the last reading, move the model by the command, and send the command with its compensation."""
        action = checked_action(action, self._inner, state.batch)
        memory: AdaptiveMemory = state.hidden[self.key]
        arm, rows = self.arm, memory.rows
        seen = self.world.observe(state)
        q, age = self._reading(state, seen)
        lag = (arm.delay + age) / arm.dt
        newer, older, part = max(len(rows) - 1 - int(lag), 0), max(len(rows) - 2 - int(lag), 0), lag - int(lag)
        near = newer if part < 0.5 else older
        torques = memory.applied
        if SENT in seen and len(rows) > 1:
            # The limits of the world may have reduced the last command.
            passed = np.asarray(seen[SENT], float)[arm.index.action] - memory.command[arm.index.action]
            torques = (*torques[:-1], arm.servos.kp * passed) if np.isfinite(passed).all() else torques
        usable = age <= self.options.age + (MAX_AGE_PERIODS + 1) * arm.dt
        trusted = self.trust is None or self.trust(state) >= self.options.min_trust
        reading = JointReading(q, rows[newer], rows[older], part, usable, trusted, torques[near])
        after, active, restart = compare_reading(reading, memory.supervision, arm.servos, self._rules)
        model = self._placed(q, memory.model.v[arm.index.dof], memory.model.t) if restart else memory.model
        model, now = arm.followed(self.reference, model, action, memory.speeds)
        past = ReferenceMotion(rows[near], now.speeds, arm.n)
        given = LawInput(after.error, active, past.values, past.regressors, torques[near], now.regressors)
        law, torque = learn_weights(memory.law, given, arm.servos, self.law.limits, arm.dt)
        moving = limit_compensation(torque, self.options.torque, after, memory.moving, arm.servos, arm.dt)
        compensated = action.copy()
        compensated[arm.index.action] += moving[0]
        kept = 2 + math.ceil((arm.delay + self.options.age) / arm.dt + MAX_AGE_PERIODS)
        later = AdaptiveMemory(
            model, law, (*rows, now.values)[-kept:], (*torques, arm.servos.kp * moving[0])[-kept:], now.speeds, action,
            moving, after,
        )  # fmt: skip
        return self.step_inside(state, compensated, lambda _: later)

    def observe(self, state: State) -> Observation:
        """The sensor readings, and the compensation."""
        memory: AdaptiveMemory = state.hidden[self.key]
        now = memory.supervision
        share = now.share * now.joints[HELPED].min()
        return {DELTA: memory.moving[0], ERROR: now.error, SHARE: share, **self.world.observe(state)}

    def weights(self, state: State) -> dict[str, float]:
        """The estimated weights of the regressors, by name."""
        memory: AdaptiveMemory = state.hidden[self.key]
        return dict(zip(self.arm.names, map(float, memory.law.weights[0]), strict=True))

    def _reading(self, state: State, seen: Observation) -> tuple[Array, float]:
        """The positions of the driven joints, and their age [s]."""
        stamp = seen.get("observation.state.stamp")
        age = self.options.age if stamp is None else max(float(state.t) - float(stamp), 0.0)
        return np.asarray(seen["observation.state"], float)[self.positions], age

    def _placed(self, q: Array, v: Array, t: float) -> State:
        start = self.reference.reset(0)
        at, speed = start.q.copy(), start.v * 0.0
        at[self.arm.index.q], speed[self.arm.index.dof] = q, v
        return self.reference.place(at, speed, t)

    def _holding(self, model: State) -> Array:
        """The command that holds the model in place."""
        command = self.reference.scene.rest_action()
        command[self.arm.index.action] = model.q[self.arm.index.q]
        return command


@array_dataclass
class ModelReference:
    """Model-reference adaptive control: a recursive estimate of the weights of regressors of the reference motion.

    The compensation is Y theta with Y of the model's motion (desired compensation), not of noisy readings: only the
    weights feed back. A Kalman filter with a random walk per weight estimates them from the error, on the filtered
    regressors phi, M phi'' + b phi' + kp phi = -Y, which have the dynamics and the delay of the error: a delay shifts
    both, and does not make them drift apart. Weights are projected onto a box and passed through the filter C; errors
    within the noise move nothing. Since Y and theta are bounded, so is the compensation, and with it the error of a
    stable servo, whatever the weights do.
    """

    arm: ReferenceArm
    bandwidth: Bandwidth
    scales: Array
    """Expected size of each weight [p]."""
    limits: LawLimits

    @classmethod
    def of(cls, arm: ReferenceArm, noise: float, age: float) -> Self:
        """The law of an arm with the largest stable bandwidth.

        `noise` is the standard deviation of readings [rad or m], `age` their age [s].
        """
        servos, n, dt = arm.servos, arm.n, arm.dt
        dynamics = ServoDynamics(arm.inertia, servos.damping, servos.kp, arm.delay + age, dt)
        bandwidth = stable_bandwidth(dynamics)
        w, variance = bandwidth.omega, noise**2 * max(CORRELATION_S / dt, 1.0)
        scales, (low, high) = arm.scales(), arm.bounds()
        speeds = np.append(np.full(4, w.min()), np.tile(w, 6))
        drift = (DRIFT * scales) ** 2 * dt
        # An offset follows as fast as the bandwidth allows: it explains what the other weights cannot.
        drift[-n:] = (w * servos.kp) ** 2 * variance * dt * dt
        first, second = 1 - np.exp(-dt * np.tile(speeds, (2, 1)))
        first[-n:] = 1.0  # the filter that estimates offsets is one of their two lags
        reading = np.column_stack([np.full(n, variance), np.full(n, noise)])
        return cls(arm, bandwidth, scales, LawLimits(drift, 4 * scales**2, low, high, first, second, reading))

    def start(self) -> LawMemory:
        """All weights zero, as uncertain as their scales."""
        n, p = self.arm.n, len(self.scales)
        return LawMemory(np.zeros((3, p)), np.diag(self.scales**2), np.zeros((2, n, p + 1)))
