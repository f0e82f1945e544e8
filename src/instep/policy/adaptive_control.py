"""Adaptive control: a robot whose position servos are helped to move as its reference model does.

The reference model is the identified simulator, stepped in lock step with the commands r. The robot is sent r + delta,
where delta is the torque that an adaptive law gives (see `adaptive_laws`) over the gain of the servo. delta is clipped,
goes through the limits of the world inside, and fades out while a reading is refused or trust is low.

Supervision of adaptive control: give up a compensation that makes a robot follow its model worse than its servos do.

The compensation torque u moves the joints by x, with M x'' + (kv + b) x' + kp x = u, so that without it the error e to
the model would be about e - x. A command need not be moved by more than that: the compensation is bounded by the
largest |e - x| of the last second or so, joint by joint, less once or three times what the robot is beyond its model in
the direction of the compensation. It moves at a bounded acceleration, since limits of acceleration and jerk would
overshoot otherwise. Where the e of a joint is larger than its e - x for some time, and than half the largest |e - x|,
the robot is outside the set for which the law is stable (gains, inertia or delay are far from those of the model), and
its servos are left alone for a while, each time twice as long. The model goes on meanwhile, so that errors are those to
the motion that was asked for.

Adaptive laws: from the error to a reference model to an offset of the commands of position servos.

A law takes the error e = q - q_m of the driven joints, as it was some periods ago when it was read, with the motion of
the model and the compensation at that time, and gives the torque by which the servos are to be helped. Its memory is a
table of arrays, so that it can be kept in the state of a world.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, W, Wrapper, array_dataclass, options_dataclass, vector
from instep.scene.folder import SceneSimulator

from .adaptive_kernels import compare_reading, learn_weights, limit_compensation
from .reference_model import (
    METHODS,
    RATE_FILTER,
    Bandwidth,
    Loop,
    Method,
    ReferenceArm,
    ReferenceMotion,
    ServoDynamics,
    stable_bandwidth,
    undelayed,
)

DELTA, ERROR, SHARE = "adaptive.delta", "adaptive.error", "adaptive.share"
"""Observations of what is added to the commands, of the error to the model, and of the share that is applied (of the
joint that gets least)."""
SENT = "action.sent"
"""Observation of the command that the limits let through, where a world shows it."""
SATURATED = 0.98
"""Share of its torque limit above which a servo of the model no longer follows, so that nothing is learnt from it."""
MAX_AGE_PERIODS = 3
"""A reading older than the usual one by so many periods is refused."""

_NOT_SHOWN = np.zeros(0)

Trust: TypeAlias = Callable[[State], float]
"""How far a state can be trusted, from 0 to 1, such as that of a twin."""


@options_dataclass
class AdaptiveOptions:
    """How a robot is helped to follow its model."""

    method: Method = "mrac"
    """The adaptive law: mrac, l1, residual, observer or integral."""
    noise: float = 2e-4
    """Standard deviation of position readings [rad or m]; errors within it move nothing."""
    age: float = 0.0
    """Age of readings that carry no stamps [s]."""
    torque: float = 0.5
    """Largest compensation, as a share of the torque limit of each servo."""
    max_error: float = 0.5
    """Error to the model at which compensation is given up [rad or m]: the robot touches something, or is not this
    one."""
    min_trust: float = 0.05
    """Trust below which compensation fades out."""
    fade: float = 0.5
    """Time in which compensation fades out or in [s]."""


_DEFAULTS = AdaptiveOptions()


@array_dataclass
class Adaptive(Wrapper[W]):
    """A robot whose position servos follow a reference model; made by `Adaptive.around`.

    Observations gain `adaptive.delta` (what is added to the commands), `adaptive.error` (position less that of the
    model) and `adaptive.share` (of the compensation that is applied). Its memory is in the state, as that of every
    wrapper; a step takes one robot, not a batch.
    """

    reference: SceneSimulator
    """The model, without its delay."""
    arm: ReferenceArm
    law: AdaptiveLaw
    options: AdaptiveOptions
    positions: Array
    """Where the driven joints are in `observation.state`."""
    trust: Trust | None = None
    _inner: Spec = field(init=False, repr=False)
    """Of the world inside, which may put it together anew each time it is asked."""
    _rules: Array = field(init=False, repr=False)
    """Numbers that readings are judged by."""
    _sizes: tuple[float, float, float, float, float] = field(init=False, repr=False)
    """Numbers that the compensation is limited by."""
    _kept: int = field(init=False, repr=False)
    """How many rows of the past are kept."""
    _oldest: float = field(init=False, repr=False)
    """Age above which a reading is refused [s]."""

    def __post_init__(self) -> None:
        arm, options = self.arm, self.options
        object.__setattr__(self, "_inner", self.world.spec)
        object.__setattr__(
            self, "_rules", np.array([*supervision_rules(arm.dt, options.fade), options.max_error, SATURATED])
        )
        object.__setattr__(self, "_sizes", compensation_sizes(options.method))
        kept = 2 + math.ceil((arm.delay + options.age) / arm.dt + MAX_AGE_PERIODS)
        object.__setattr__(self, "_kept", kept)
        object.__setattr__(self, "_oldest", options.age + (MAX_AGE_PERIODS + 1) * arm.dt)

    @classmethod
    def around(
        cls,
        world: W,
        reference: SceneSimulator,
        options: AdaptiveOptions = _DEFAULTS,
        trust: Trust | None = None,
    ) -> Adaptive[W]:
        """A world whose position servos follow a reference model.

        The compensation is as fast as is stable with the delay of the model, by the condition in `adaptive_stability`;
        where nothing is, `BadInput` says so. Give the world its limits (`Guarded`): they hold for the compensated
        command.
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
        arm, model = ReferenceArm.of(reference), undelayed(reference)
        law = law_of(arm, options.method, options.noise, options.age)
        return cls(world, model, arm, law, options, arm.positions_in(world.spec), trust)

    @property
    def spec(self) -> Spec:
        """Description of the numbers, with those of the compensation."""
        inner = self.world.spec
        units = [inner.action.units[int(a)] for a in self.arm.actions]
        joints = vector(self.arm.joints, units)
        return inner.with_observations({DELTA: joints, ERROR: joints, SHARE: vector(("share",), "1")})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Put the model where the robot is; nothing is compensated yet."""
        if state.batch:
            raise BadInput("Adaptive control takes one robot at a time, not a batch; wrap each world on its own.")
        arm = self.arm
        q, _ = self._reading(state, self.world.observe(state))
        model = self._placed(q, np.zeros(arm.n), state.t)
        command = self._holding(model) if past is None else np.asarray(past, float)[-1]
        motion = arm.motion(model.q, model.v, None, command)
        rows = [motion.values]
        # The model is ahead of the robot by the delay: what was commanded before is still under way.
        for _ in range(round(arm.delay / arm.dt)):
            model, motion = arm.followed(self.reference, model, command, motion.speeds)
            rows.append(motion.values)
        still = np.zeros(arm.n)
        memory: dict[str, Any] = {
            "model": model, "law": self.law.start(), "rows": tuple(rows), "applied": (still,) * len(rows),
            "speeds": motion.speeds, "command": command, "moving": np.zeros((2, arm.n)), "error": still,
            "share": np.ones(1), "watch": start_watch(arm),
        }  # fmt: skip
        return state.with_hidden(self.key, memory)

    def step(self, state: State, action: Array) -> State:
        """Learn from the last reading, move the model by the command, and send the command with its compensation."""
        action = checked_action(action, self._inner, state.batch)
        memory, arm = state.hidden[self.key], self.arm
        n, rows, watch = len(arm.joints), memory["rows"], memory["watch"]
        seen = self.world.observe(state)
        q, age = self._reading(state, seen)
        newer, older, part = _at_lag(len(rows), (arm.delay + age) / arm.dt)
        near = newer if part < 0.5 else older
        # Of the last command the limits of the world may have let through less.
        passed = memory["applied"][-1].copy()
        torques = (*memory["applied"][:-1], passed)
        sent = np.asarray(seen.get(SENT, _NOT_SHOWN) if len(rows) > 1 else _NOT_SHOWN, float)
        trusted = self.trust is None or self.trust(state) >= self.options.min_trust
        error, active, share = np.empty(n), np.empty(n, bool), np.empty(1)
        joints, pause = np.empty((8, n)), np.empty(2)
        anew = compare_reading(
            q, rows[newer], rows[older], part, torques[near], passed, sent, memory["command"], arm.index,
            age <= self._oldest, trusted, memory["error"], memory["share"], watch["joints"], watch["pause"], arm.servos,
            self._rules, arm.dt, error, active, share, joints, pause,
        )  # fmt: skip
        # Where compensation was given up, the model begins anew where the robot is.
        model = self._placed(q, memory["model"].v[arm.dofs], memory["model"].t) if anew else memory["model"]
        model, now = arm.followed(self.reference, model, action, memory["speeds"])
        past = ReferenceMotion(rows[near], now.speeds, n)
        law, torque = self.law.update(memory["law"], LawInput(error, active, past, torques[near], now))
        moving, applied, sent = np.empty((2, n)), np.empty(n), action.copy()
        limit_compensation(
            torque, self.options.torque, share, joints, error, memory["moving"], self._sizes, arm.servos, arm.index,
            arm.dt, moving, applied, sent,
        )  # fmt: skip
        after: dict[str, Any] = {
            "model": model, "law": law, "rows": (*rows, now.values)[-self._kept :],
            "applied": (*torques, applied)[-self._kept :], "speeds": now.speeds, "command": action, "moving": moving,
            "error": error, "share": share, "watch": {"joints": joints, "pause": pause},
        }  # fmt: skip
        return self.step_inside(state, sent, lambda _: after)

    def observe(self, state: State) -> Observation:
        """The sensor readings, and what is compensated."""
        memory = state.hidden[self.key]
        share = memory["share"] * memory["watch"]["joints"][HELPED].min()
        return {DELTA: memory["moving"][0], ERROR: memory["error"], SHARE: share, **self.world.observe(state)}

    def weights(self, state: State) -> dict[str, float]:
        """The weights that a law with regressors has found, by name; empty for others."""
        law: Memory = state.hidden[self.key]["law"]
        return dict(zip(self.arm.names, map(float, law["weights"][0]), strict=False)) if "weights" in law else {}

    def _reading(self, state: State, seen: Observation) -> tuple[Array, float]:
        """The positions of the driven joints, and how old they are [s]."""
        stamp = seen.get("observation.state.stamp")
        age = self.options.age if stamp is None else max(float(state.t) - float(stamp), 0.0)
        return np.asarray(seen["observation.state"], float)[self.positions], age

    def _placed(self, q: Array, v: Array, t: float) -> State:
        start = self.reference.reset(0)
        at, speed = start.q.copy(), start.v * 0.0
        at[self.arm.q_index], speed[self.arm.dofs] = q, v
        return self.reference.place(at, speed, t)

    def _holding(self, model: State) -> Array:
        """The command that the model holds its place with."""
        command = self.reference.scene.rest_action()
        command[self.arm.actions] = model.q[self.arm.q_index]
        return command


def _at_lag(rows: int, lag: float) -> tuple[int, int, float]:
    """The rows between which something happened so many periods ago, newer and older, and how far it was between."""
    whole = int(lag)
    return max(rows - 1 - whole, 0), max(rows - 2 - whole, 0), lag - whole


WINDOW_S = 0.08
"""Time constant of the mean squares that are compared [s]."""
PEAK_S = 1.0
"""Time constant of the largest error without compensation, which bounds it [s]."""
WORSE = 1.6
"""How many times larger the error must be than without compensation."""
PEAK_SHARE = 0.5
"""Share of the largest error without compensation that the error must also reach: a joint that dry friction holds a few
milliradians off does not move by its compensation, and is not harmed."""
PATIENCE_S = 0.03
"""How long it must be [s]."""
MIN_ERROR = 3e-3
"""Error up to which nothing is given up [rad or m]."""
OVERSHOOT, LEARNT_OVERSHOOT = 1.0, 3.0
"""By how many times of what the robot is beyond its model in the direction of a compensation its bound is lowered.

Laws that feed the error back take their compensation back themselves: lowered farther, an arm that swings would lose
what holds its load. One that was learnt goes on."""
LEARNT: tuple[Method, ...] = ("mrac", "residual")
"""Laws whose compensation is learnt: regressors of the model's motion by weights."""
QUICK_GROWTH = 0.01
"""Size up to which a compensation grows quickly, as for dry friction where a joint turns round [rad or m]."""
MAX_GROWTH = 0.5
"""How fast it grows beyond [rad/s or m/s]."""
ACCELERATION = 10.0
"""Acceleration of a compensation [rad/s^2 or m/s^2], a third of what robots without stated limits are allowed. The
limits of a robot take what moves faster for a motion, follow it, and overshoot where it ends; and a joint that is let
go suddenly throws those that it carries."""
FIRST_PAUSE_S = 1.0
"""Time for which the servos are left alone the first time [s]."""
QUICK_FADE_S = 0.05
"""Time in which a harmful compensation fades out [s]."""

POSITION, SPEED, WITH, WITHOUT, WORSE_FOR, PEAK, HARMED, HELPED = range(8)
"""Rows of what is known of each joint: displacement by the compensation and its speed, mean squares of the error with
and without it, for how long it has been worse, the largest error without it, whether it was harmed (1 or 0), and its
share of the compensation."""
Watch = Mapping[str, Array]
"""`joints` [8, n], and `pause` [2]: how long servos are left alone, now and the next time."""


def start_watch(arm: ReferenceArm) -> Watch:
    """Nothing was compensated yet."""
    joints = np.zeros((8, arm.n))
    joints[HELPED] = 1.0
    return {"joints": joints, "pause": np.array([0.0, FIRST_PAUSE_S])}


def supervision_rules(dt: float, fade: float) -> tuple[float, ...]:
    """The numbers that `watch_joints` goes by; a compensation that is taken up again fades in within `fade` [s]."""
    return min(1.0, dt / WINDOW_S), dt / PEAK_S, WORSE, MIN_ERROR, PATIENCE_S, dt / QUICK_FADE_S, dt / fade, PEAK_SHARE


def compensation_sizes(method: Method) -> tuple[float, float, float, float, float]:
    """The numbers that `limit_compensation` goes by, for the compensation of a law."""
    overshoot = LEARNT_OVERSHOOT if method in LEARNT else OVERSHOOT
    return MIN_ERROR, overshoot, QUICK_GROWTH, MAX_GROWTH, ACCELERATION


CORRELATION_S = 0.02
"""Time over which errors of the model are alike, so that so many readings count as one [s]."""
DRIFT = 0.2
"""How far weights wander in a second, as a share of their scale."""
FEATURES = 8
"""Random Fourier features per joint of the learned residual."""

Memory = Mapping[str, Array]


class LawInput(NamedTuple):
    """What a law sees in one period."""

    error: Array
    """Position less that of the model, when it was read [n]."""
    active: Array
    """Joints to adapt to: read, and not at their torque limit [n]."""
    past: ReferenceMotion
    """The model when it was read."""
    applied: Array
    """The torque of compensation that acted then [n]."""
    now: ReferenceMotion
    """The model after the command that is being sent."""


class AdaptiveLaw(Protocol):
    """From errors to compensation."""

    @property
    def bandwidth(self) -> Bandwidth:
        """How fast it compensates, and the margins it was chosen by."""
        ...

    def start(self) -> Memory:
        """The memory before the first period."""
        ...

    def update(self, memory: Memory, seen: LawInput) -> tuple[Memory, Array]:
        """The memory after a period, and the torque of compensation [n]."""
        ...


def law_of(arm: ReferenceArm, method: Method, noise: float, age: float) -> AdaptiveLaw:
    """The law of a name with the bandwidth that is stable for an arm.

    `noise` is the standard deviation of readings [rad or m], `age` how old they are [s].
    """
    if method not in METHODS:
        raise UnknownName("adaptive law", method, METHODS)
    dynamics = ServoDynamics(arm.inertia, arm.kv + arm.damping, arm.kp, arm.delay + age, arm.dt)
    loops: dict[Method, Loop] = {"integral": "integral", "l1": "predictor"}
    bandwidth = stable_bandwidth(dynamics, loops.get(method, "filter"))
    if method == "integral":
        return IntegralAction(arm, bandwidth)
    if method == "observer":
        return DisturbanceObserver(arm, bandwidth)
    if method == "l1":
        return L1Adaptive(arm, bandwidth)
    features = FourierFeatures.of(arm) if method == "residual" else None
    return ModelReference.of(arm, bandwidth, noise, features)


@array_dataclass
class IntegralAction:
    """Integral action: the compensation moves by kp w times the error in a second."""

    arm: ReferenceArm
    bandwidth: Bandwidth

    def start(self) -> Memory:
        """Nothing summed up yet."""
        return {"torque": np.zeros(self.arm.n)}

    def update(self, memory: Memory, seen: LawInput) -> tuple[Memory, Array]:
        """Sum up the error of active joints."""
        step = self.arm.dt * self.bandwidth.omega * self.arm.kp * seen.error
        torque = np.clip(memory["torque"] - np.where(seen.active, step, 0.0), -self.arm.limit, self.arm.limit)
        return {"torque": torque}, torque


@array_dataclass
class DisturbanceObserver:
    """A disturbance observer: the inverse of the model applied to the error, less the compensation that acted.

    C = w^2 / (s + w)^2 makes the inverse proper: filtering the error gives its first and second derivative.
    """

    arm: ReferenceArm
    bandwidth: Bandwidth

    def start(self) -> Memory:
        """No disturbance."""
        n = self.arm.n
        return {"e": np.zeros(n), "rate": np.zeros(n), "u": np.zeros((2, n)), "torque": np.zeros(n)}

    def update(self, memory: Memory, seen: LawInput) -> tuple[Memory, Array]:
        """Filter error and compensation, and give the difference of their torques."""
        arm, w, dt = self.arm, self.bandwidth.omega, self.arm.dt
        acceleration = w * w * (seen.error - memory["e"]) - 2 * w * memory["rate"]
        # Backward Euler of the filter: stable at every bandwidth.
        acceleration = (acceleration - dt * w * w * memory["rate"]) / (1 + 2 * w * dt + (w * dt) ** 2)
        rate = memory["rate"] + dt * acceleration
        e = memory["e"] + dt * rate
        u = _low_pass(memory["u"], seen.applied, w * dt)
        torque = np.diag(seen.past.inertia) * acceleration + (arm.kv + arm.damping) * rate + arm.kp * e - u[1]
        torque = np.where(seen.active, -torque, memory["torque"])
        torque = np.clip(torque, -arm.limit, arm.limit)
        return {"e": e, "rate": rate, "u": u, "torque": torque}, torque


@array_dataclass
class L1Adaptive:
    """L1-type adaptive control: a state predictor with piecewise constant adaptation, and a low-pass filter C.

    The predictor of each joint, x = (e, e'), runs on the compensation that acted and on sigma, the disturbance that
    would have brought it exactly to the last reading within one period; the command compensates C(s) sigma. How fast
    sigma adapts is the period; how much of it is used is C, whose bandwidth the small-gain condition sets.
    """

    arm: ReferenceArm
    bandwidth: Bandwidth

    def start(self) -> Memory:
        """At rest, undisturbed."""
        n = self.arm.n
        return {
            "x": np.zeros((2, n)), "seen": np.zeros((2, n)), "sigma": np.zeros((2, n)), "u": np.zeros((2, n)),
        }  # fmt: skip

    def update(self, memory: Memory, seen: LawInput) -> tuple[Memory, Array]:
        """Predict, compare, and compensate the filtered disturbance."""
        arm, dt, m = self.arm, self.arm.dt, np.diag(seen.past.inertia)
        damping, fast = arm.kv + arm.damping, RATE_FILTER * self.bandwidth.omega
        # Readings are positions only: a filter far above C gives their rate.
        e, rate = memory["seen"]
        pull = (fast * fast * (seen.error - e - dt * rate) - 2 * fast * rate) / (1 + 2 * fast * dt + (fast * dt) ** 2)
        rate = rate + dt * pull
        e = e + dt * rate
        matched, unmatched = memory["sigma"]
        x, w = memory["x"]
        heavy = m + dt * damping + dt * dt * arm.kp
        w = (m * w + dt * (seen.applied + matched - arm.kp * x)) / heavy
        x = x + dt * (w + unmatched)
        # What cancels the difference within a period, as the predictor moves in one; what caused it was larger by what
        # the predictor's own damping takes in a period.
        matched, unmatched = m / dt * (rate - w), (e - x) / dt
        most = 2 * arm.limit
        disturbance = memory["u"][0].copy()
        disturbance[seen.active] = np.clip(heavy / m * matched, -most, most)[seen.active]
        u = _low_pass(memory["u"], disturbance, self.bandwidth.omega * dt)
        after = {
            "x": np.stack([x, w]), "seen": np.stack([e, rate]), "sigma": np.stack([matched, unmatched]), "u": u,
        }  # fmt: skip
        return after, -u[1]


@array_dataclass
class FourierFeatures:
    """Random Fourier features of a motion, per joint: cos(W (q, v) + phase)."""

    weights: Array
    phases: Array
    scale: Array
    """Torque of each joint that a weight of one adds [n]."""

    @classmethod
    def of(cls, arm: ReferenceArm) -> FourierFeatures:
        """Features of an arm; always the same ones."""
        rng = np.random.default_rng((0, 31))
        weights = rng.normal(size=(FEATURES - 1, 2 * arm.n)) / np.sqrt(arm.n)
        return cls(weights, rng.uniform(0, 2 * np.pi, FEATURES - 1), 0.05 * arm.limit)

    def __call__(self, q: Array, v: Array) -> Array:
        """The regressors of a motion [n, n FEATURES], the last feature of each joint a constant."""
        n = len(q)
        values = np.append(np.cos(self.weights @ np.concatenate([q, 2 * v]) + self.phases), 1.0)
        out = np.zeros((n, n, FEATURES))
        out[np.arange(n), np.arange(n)] = self.scale[:, None] * values
        return out.reshape(n, -1)


@array_dataclass
class ModelReference:
    """Model-reference adaptive control: weights of regressors of the reference motion, estimated recursively.

    The compensation is Y theta with Y of the model's motion (desired compensation), not of noisy readings: only the
    weights feed back. They are estimated from the error by a Kalman filter with a random walk per weight, on the
    filtered regressors phi, M phi'' + b phi' + kp phi = -Y, which have the dynamics and the delay of the error: a delay
    shifts both, and does not make them drift apart. Weights are projected onto a box and passed through the filter C,
    errors within the noise move nothing. Since Y and theta are bounded, so is the compensation, and with it the error
    of a stable servo, whatever the weights do.
    """

    arm: ReferenceArm
    bandwidth: Bandwidth
    noise: float
    """Standard deviation of readings; errors within it move nothing."""
    scales: Array
    """How large each weight is expected to be [p]."""
    limits: Array
    """Variance by which each weight wanders in a period, its largest variance, the low and high ends of the box onto
    which it is projected, and the share of the way to the estimate that it goes in each of the two stages of C
    [6, p]."""
    variance: Array
    """Variance and dead zone of a reading [n, 2]."""
    features: FourierFeatures | None = None

    @classmethod
    def of(cls, arm: ReferenceArm, bandwidth: Bandwidth, noise: float, features: FourierFeatures | None = None) -> Self:
        """The law of an arm, on regressors of its motion or on features of it."""
        w, n, dt = bandwidth.omega, arm.n, arm.dt
        variance = noise**2 * max(CORRELATION_S / dt, 1.0)
        # An offset follows as fast as the bandwidth allows; it takes up what the other weights cannot explain.
        follow = (w * arm.kp) ** 2 * variance * dt * dt
        if features is None:
            scales, (low, high), speeds = arm.scales(), arm.bounds(), np.append(np.full(4, w.min()), np.tile(w, 6))
            offsets = slice(len(scales) - n, None)
            drift = (DRIFT * scales) ** 2 * dt
            drift[offsets] = follow
        else:
            scales, speeds = np.full(n * FEATURES, 0.1), np.repeat(w, FEATURES)
            low, high = -60 * scales, 60 * scales
            offsets = slice(FEATURES - 1, None, FEATURES)
            drift = (DRIFT * scales) ** 2 * dt
            drift[offsets] = follow / features.scale**2
        reading = np.column_stack([np.full(n, variance), np.full(n, noise)])
        shares = np.tile(1 - np.exp(-dt * speeds), (2, 1))
        shares[0, offsets] = 1.0  # of their two lags the filter that estimates them is one
        limits = np.stack([drift, 4 * scales**2, low, high, *shares])
        return cls(arm, bandwidth, noise, scales, limits, reading, features)

    def start(self) -> Memory:
        """All weights zero, as uncertain as their scales."""
        n, p = self.arm.n, len(self.scales)
        return {
            "weights": np.zeros((3, p)), "covariance": np.diag(self.scales**2), "columns": np.zeros((2, n, p + 1)),
            "surprise": np.ones(1),
        }  # fmt: skip

    def update(self, memory: Memory, seen: LawInput) -> tuple[Memory, Array]:
        """Filter the regressors, take the reading, and give the compensation of the motion that is commanded."""
        n, p = len(seen.error), len(self.scales)
        after = {
            "weights": np.empty((3, p)), "covariance": np.empty((p, p)), "columns": np.empty((2, n, p + 1)),
            "surprise": np.empty(1),
        }  # fmt: skip
        torque = np.empty(n)
        learn_weights(
            memory["weights"], memory["covariance"], memory["columns"], memory["surprise"], seen.past.values,
            self._regressors(seen.past), seen.applied, seen.error, seen.active, self._regressors(seen.now),
            self.arm.servos, self.limits, self.variance, float(self.features is None), self.arm.dt, after["weights"],
            after["covariance"], after["columns"], after["surprise"], torque,
        )  # fmt: skip
        return after, torque

    def _regressors(self, motion: ReferenceMotion) -> Array:
        """Those of the model's motion, or features of it."""
        return motion.regressors if self.features is None else self.features(motion.q, motion.v)


def _low_pass(stages: Array, value: Array, step: Array) -> Array:
    """C after a period with an input; `step` is the bandwidth times the period."""
    share = 1 - np.exp(-step)
    inner = stages[0] + share * (value - stages[0])
    return np.stack([inner, stages[1] + share * (inner - stages[1])])
