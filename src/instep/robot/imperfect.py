"""Imperfect sensors and motors as wrappers of any world: delay, noise, loss, rounding, lag, backlash, drift, an IMU.

They compose: `Noisy(Late(Sluggish(world, 0.05), 3), 0.01)`. Each keeps its memory in `State.hidden`, so that a step
still depends on nothing but its arguments; randomness is a function of the seed of the reset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput, UnknownName
from instep.core.rollout import checked_action
from instep.core.world import (
    Array,
    Observation,
    Spec,
    State,
    Trajectory,
    W,
    Wrapper,
    array_dataclass,
    put,
    take,
    unroll,
)

Amount: TypeAlias = float | tuple[float, ...] | Array
"""A number, a tuple of one per label, or an array of one per world of a batch."""
STATE: tuple[str, ...] = ("observation.state",)


@array_dataclass
class Noisy(Wrapper[W]):
    """Sensors with white noise of standard deviation `sigma`."""

    sigma: Amount = 0.0
    channels: tuple[str, ...] = STATE
    params: ClassVar[Mapping[str, str]] = {"sensor.noise": "sigma"}

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start the stream of random numbers."""
        return state.with_hidden(self.key, _keys(state, seed, self.key))

    def step(self, state: State, action: Array) -> State:
        """Draw anew for the next state."""
        following = counter_rng.next_key(state.hidden[self.key])
        return self.step_inside(state, action, lambda after: following)

    def observe(self, state: State) -> Observation:
        """What the sensors show, with noise."""
        seen, keys = dict(self.world.observe(state)), state.hidden[self.key]
        for name in _present(self.channels, seen):
            keys = counter_rng.next_key(keys)
            seen[name] = seen[name] + _amount(self.sigma) * counter_rng.normal(keys, seen[name].shape[-1])
        return seen


@array_dataclass
class Drifting(Wrapper[W]):
    """Sensors whose bias grows by `rate` per second and wanders by `walk` per square root of a second."""

    rate: Amount = 0.0
    walk: Amount = 0.0
    channels: tuple[str, ...] = STATE
    params: ClassVar[Mapping[str, str]] = {"sensor.drift": "rate", "sensor.walk": "walk"}

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start without bias."""
        seen = self.world.observe(state)
        bias = {name: np.zeros_like(seen[name], float) for name in _present(self.channels, seen)}
        return state.with_hidden(self.key, {"keys": _keys(state, seed, self.key), "bias": bias})

    def step(self, state: State, action: Array) -> State:
        """Let the bias grow."""
        keys, dt = counter_rng.next_key(state.hidden[self.key]["keys"]), self.spec.dt
        after: dict[str, Array] = {}
        for name, bias in state.hidden[self.key]["bias"].items():
            wander = _amount(self.walk) * np.sqrt(dt) * counter_rng.normal(keys, bias.shape[-1])
            after[name] = bias + _amount(self.rate) * dt + wander
        return self.step_inside(state, action, lambda _: {"keys": keys, "bias": after})

    def observe(self, state: State) -> Observation:
        """What the sensors show, with the bias."""
        seen = dict(self.world.observe(state))
        return {**seen, **{name: seen[name] + bias for name, bias in state.hidden[self.key]["bias"].items()}}


@array_dataclass
class Quantized(Wrapper[W]):
    """Sensors that count in steps of `size`, and commands that are rounded to steps of `action_size`."""

    size: Amount = 0.0
    action_size: Amount = 0.0
    channels: tuple[str, ...] = STATE
    params: ClassVar[Mapping[str, str]] = {"sensor.resolution": "size", "action.resolution": "action_size"}

    def inward(self, past: Array) -> Array:
        """The commands as they were rounded."""
        return _rounded(np.asarray(past, float), self.action_size)

    def step(self, state: State, action: Array) -> State:
        """Round the command."""
        action = checked_action(action, self.spec, state.batch)
        return self.world.step(state, _rounded(action, self.action_size))

    def observe(self, state: State) -> Observation:
        """Round what the sensors show."""
        seen = dict(self.world.observe(state))
        return {**seen, **{name: _rounded(seen[name], self.size) for name in _present(self.channels, seen)}}


@array_dataclass
class Late(Wrapper[W]):
    """Commands that take effect `action` steps later, and sensors that show what was `observation` steps ago.

    Before the first command the line is full of it, unless `place` was given the past commands.
    """

    action: int = 0
    observation: int = 0

    def __post_init__(self) -> None:
        if min(self.action, self.observation) < 0 or int(self.action) != self.action:
            raise BadInput(f"A delay is a whole number of steps of at least 0, not {self.action}, {self.observation}.")

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Fill the line with the past."""
        line = _line(self.spec, state, past, self.action)
        return state.with_hidden(self.key, {"line": line, "seen": (state,) * (self.observation + 1)})

    def inward(self, past: Array) -> Array:
        """What was asked `action` steps before."""
        return past[..., [max(row - self.action, 0) for row in range(past.shape[-2])], :]

    def step(self, state: State, action: Array) -> State:
        """Send what was asked `action` steps ago."""
        action, memory = checked_action(action, self.spec, state.batch), state.hidden[self.key]
        line, sent = _shifted(memory["line"], action)
        return self.step_inside(state, sent, lambda after: {"line": line, "seen": (*memory["seen"], after)[1:]})

    def observe(self, state: State) -> Observation:
        """Show what was seen `observation` steps ago, with its stamp."""
        if not self.observation:
            return self.world.observe(state)
        old: State = state.hidden[self.key]["seen"][0]
        return _stamped(self.world.observe(old), np.broadcast_to(old.t, state.batch))


@array_dataclass
class Dropping(Wrapper[W]):
    """A link that loses commands (the last one is held) and observations (the last one is shown again)."""

    action: Amount = 0.0
    """Probability to lose a command."""
    observation: Amount = 0.0
    """Probability to lose an observation."""
    params: ClassVar[Mapping[str, str]] = {"action.loss": "action", "sensor.loss": "observation"}

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start with everything through."""
        return state.with_hidden(
            self.key,
            {
                "keys": _keys(state, seed, self.key),
                "line": _line(self.spec, state, past, 1),
                "seen": state,
                "stamp": np.full(state.batch, float(state.t)),
            },
        )

    def step(self, state: State, action: Array) -> State:
        """Sample whether the command and the next observation are lost."""
        action, memory = checked_action(action, self.spec, state.batch), state.hidden[self.key]
        keys = counter_rng.next_key(memory["keys"])
        sample = counter_rng.uniform(keys, 2)
        _, held = _shifted(memory["line"], action)
        lost = sample[..., 0] < np.asarray(self.action)
        sent = np.where(lost[..., None], held, action)
        through = sample[..., 1] >= np.asarray(self.observation)

        def remembered(after: State) -> dict[str, Any]:
            return {
                "keys": keys,
                "line": sent[..., None, :],
                "seen": _newest(memory["seen"], after, through),
                "stamp": np.where(through, after.t, memory["stamp"]),
            }

        return self.step_inside(state, sent, remembered)

    def observe(self, state: State) -> Observation:
        """Show the last observation that came through, with its stamp."""
        memory = state.hidden[self.key]
        return _stamped(self.world.observe(memory["seen"]), memory["stamp"])


@array_dataclass
class CommandFilter(Wrapper[W], ABC):
    """Motors whose next command follows from the last one that was sent; a final class says how in `follow`."""

    @abstractmethod
    def follow(self, at: Array, action: Array) -> Array:
        """The command that is sent, after `at` was sent before it."""

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start where the past commands have led."""
        led = None if past is None else self.inward(past)
        return state.with_hidden(self.key, _line(self.spec, state, led, 1))

    def inward(self, past: Array) -> Array:
        """The commands as they were sent."""
        return _through(past, self.follow)

    def step(self, state: State, action: Array) -> State:
        """Send the command that follows."""
        action = checked_action(action, self.spec, state.batch)
        _, at = _shifted(state.hidden[self.key], action)
        sent = self.follow(at, action)
        return self.step_inside(state, sent, lambda _: sent[..., None, :])

    def unroll(self, state: State, actions: Array) -> Trajectory | None:
        """Several actions [steps, ...] in one call, where the world inside can: what is sent depends on them alone."""
        actions = checked_action(actions, self.spec, (len(actions), *state.batch))
        _, at = _shifted(state.hidden[self.key], actions[0])
        sent = np.empty_like(actions)
        for i, action in enumerate(actions):
            sent[i] = at = self.follow(at, action)
        found = unroll(self.world, state, sent)
        if found is None:
            return None
        return replace(found, state=found.state.with_hidden(self.key, at[..., None, :]))


@array_dataclass
class Sluggish(CommandFilter[W]):
    """Motors that follow their command with a first-order lag of time constant `tau` [s]."""

    tau: Amount = 0.0
    params: ClassVar[Mapping[str, str]] = {"action.lag": "tau"}

    def follow(self, at: Array, action: Array) -> Array:
        """Move a share of the way towards the command."""
        tau = np.maximum(np.asarray(_amount(self.tau), float), 1e-12)
        return at + (1.0 - np.exp(-self.spec.dt / tau)) * (action - at)


@array_dataclass
class Backlash(CommandFilter[W]):
    """Gears with play: the joint's command moves only when the motor's has crossed the gap of width `gap`."""

    gap: Amount = 0.0
    params: ClassVar[Mapping[str, str]] = {"action.backlash": "gap"}

    def inward(self, past: Array) -> Array:
        """The commands as they were sent: without a gap all of them as they are."""
        # Fits place thousands of windows in a world whose gap is zero; following 64 commands each takes longest there.
        return _through(past, self.follow) if np.any(self.gap) else np.asarray(past, float)

    def follow(self, at: Array, action: Array) -> Array:
        """Push the gears."""
        half = np.asarray(_amount(self.gap), float) / 2
        return np.clip(at, action - half, action + half)


@array_dataclass
class Saturated(Wrapper[W]):
    """Motors whose torque fades with speed: at most `torque` at rest, none at `speed`, along a straight line.

    A world that takes torques gets them clipped. For position servos give their `stiffness` [Nm/rad] and `damping`
    [Nm s/rad]: the command is moved to where the servo asks for no more than the motor can give at the start of the
    control period.
    """

    torque: Amount = np.inf
    speed: Amount = np.inf
    stiffness: Amount = 0.0
    damping: Amount = 0.0
    params: ClassVar[Mapping[str, str]] = {"action.torque": "torque", "action.speed": "speed"}

    def step(self, state: State, action: Array) -> State:
        """Give no more than the motor can."""
        action = checked_action(action, self.spec, state.batch)
        labels, q_labels, v_labels = self.spec.action.labels, self.spec.q.labels, self.spec.v.labels
        for label in labels:
            if label not in q_labels or label not in v_labels:
                raise UnknownName("joint for the action", label, v_labels)
        q = state.q[..., [q_labels.index(label) for label in labels]]
        v = state.v[..., [v_labels.index(label) for label in labels]]
        most, top = np.asarray(_amount(self.torque), float), np.asarray(_amount(self.speed), float)
        low, high = -most * np.clip(1 + v / top, 0, 1), most * np.clip(1 - v / top, 0, 1)
        kp, kv = np.asarray(_amount(self.stiffness), float), np.asarray(_amount(self.damping), float)
        if not np.any(kp):
            return self.world.step(state, np.clip(action, low, high))
        asked = kp * (action - q) - kv * v
        given = np.clip(asked, low, high)
        return self.world.step(state, np.where(given == asked, action, q + (given + kv * v) / kp))


def _amount(value: Amount) -> Any:
    """A number as it is, one per label along the last axis, one per world along the first; a table has both."""
    if isinstance(value, tuple) or np.ndim(value) > 1:
        return np.asarray(value, float)
    return np.asarray(value, float)[..., None] if np.ndim(value) else value


def _keys(state: State, seed: int, stream: str) -> Array:
    return np.broadcast_to(counter_rng.key(seed, stream), state.batch).copy()


def _present(channels: tuple[str, ...], seen: Mapping[str, Array]) -> tuple[str, ...]:
    for name in channels:
        if name not in seen:
            raise UnknownName("observation", name, seen)
    return channels


def _rounded(values: Array, size: Amount) -> Array:
    step = np.asarray(_amount(size), float)
    safe = np.where(step > 0, step, 1.0)
    return np.where(step > 0, np.round(values / safe) * safe, values)


def _line(spec: Spec, state: State, past: Array | None, length: int) -> Array:
    """The commands still under way [..., length, nu], oldest first; NaN where none is known yet."""
    if past is None:
        return np.full((*state.batch, length, spec.action.shape[0]), np.nan)
    known = np.broadcast_to(past, (*state.batch, *past.shape[-2:]))
    return known[..., np.maximum(np.arange(-length, 0) + known.shape[-2], 0), :].astype(float)


def _shifted(line: Array, action: Array) -> tuple[Array, Array]:
    """The line one command later, and the command that comes out of it."""
    known = np.where(np.isnan(line), action[..., None, :], line)
    actions = np.concatenate([known, action[..., None, :]], axis=-2)
    return actions[..., 1:, :], actions[..., 0, :]


def _through(past: Array, follow: Callable[[Array, Array], Array]) -> Array:
    """A history of commands as a motor with memory passed them on, the first of them taken as long held."""
    out = np.asarray(past, float).copy()
    for i in range(1, out.shape[-2]):
        out[..., i, :] = follow(out[..., i - 1, :], out[..., i, :])
    return out


def _newest(old: State, new: State, through: Array) -> State:
    """The new state of the worlds whose observation came through, the old one of the others."""
    if through.ndim == 0:
        return new if bool(through) else old
    index = np.flatnonzero(through)
    return put(old, index, take(new, index)) if index.size else old


def _stamped(seen: Observation, stamp: Array) -> Observation:
    return {**seen, **{f"{name}.stamp": stamp for name in seen if not name.endswith(".stamp")}}
