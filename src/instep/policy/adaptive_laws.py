"""Adaptive laws: from the error to a reference model to an offset of the commands of position servos.

A law takes the error e = q - q_m of the driven joints, as it was some periods ago when it was read, with the motion of
the model and the compensation at that time, and gives the torque by which the servos are to be helped. Its memory is a
table of arrays, so that it can be kept in the state of a world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, Self

import numpy as np

from instep.core.errors import UnknownName
from instep.core.records import array_dataclass
from instep.core.world import Array

from .adaptive_kernels import learn_weights
from .adaptive_model import ReferenceArm, ReferenceMotion
from .adaptive_stability import METHODS, RATE_FILTER, Bandwidth, Loop, Method, ServoDynamics, stable_bandwidth

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
