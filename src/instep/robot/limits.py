"""Limits of joints, and the closed form that keeps every command inside them.

A command is a sequence of positions q_k, one per period T, with v_k = (q_k - q_k-1) / T and a_k = (v_k - v_k-1) / T.
With the acceleration limit A, a joint that takes a step of speed w and then brakes comes to rest after

    F(w) = T * sum over i >= 0 of max(|w| - i A T, 0)

The sum has a whole number of terms, so the fastest step that still stops within a distance e has a closed form:

    n = floor((sqrt(1 + 8 e / (A T^2)) - 1) / 2),   F^-1(e) = e / (T (n + 1)) + A T n / 2

Two uses. The distance to a position limit bounds the step: by induction the joint can always stop before the limit,
even from the highest speed, because the hardest braking ends where it would have ended a period before. The distance
to the target chooses the step: seen from a target that moves at u, the joint takes u + F^-1(target - u T - q), so
that a command that keeps the limits passes unchanged and a jump is approached without overshoot.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, W, Wrapper

from .driver import SENT


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """The last command, and the target it was chosen for."""

    q: Array
    v: Array
    target: Array
    speed: Array
    """How fast the target moves."""


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """How far, how fast and how suddenly each joint may move; a single number holds for all of them."""

    labels: tuple[str, ...]
    """The actions they limit, which are position targets."""
    low: Array | float
    """Lowest position [rad or m]."""
    high: Array | float
    """Highest position [rad or m]."""
    velocity: Array | float
    """Highest speed [rad/s or m/s]."""
    acceleration: Array | float
    """Highest acceleration [rad/s^2 or m/s^2]."""
    jerk: Array | float = np.inf
    """Highest jerk [rad/s^3 or m/s^3]; the follower keeps it."""
    joints: tuple[str, ...] = ()
    """The positions in q that the actions drive; those of the same labels where empty."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name in ("labels", "joints"):
                continue
            values = np.asarray(getattr(self, each.name), float)
            if values.shape not in ((), (len(self.labels),)) or np.isnan(values).any():
                raise BadInput(f"The limit {each.name!r} must be one number, or one for each of {self.labels}.")
            object.__setattr__(self, each.name, np.broadcast_to(values, (len(self.labels),)).copy())
        if not np.all(np.asarray(self.low) < self.high):
            raise BadInput("The lowest position of every joint must be below its highest.")
        for name in ("velocity", "acceleration", "jerk"):
            values = np.asarray(getattr(self, name))
            if not np.all(values > 0) or (name != "jerk" and not np.isfinite(values).all()):
                raise BadInput(f"The limit {name!r} must be above 0 and finite for every joint.")

    def start(self, q: Array, spec: Spec) -> Array:
        """The commands that mean "stay", from the positions of a robot [..., nq]."""
        names = self.joints or self.labels
        if spec.action.labels != self.labels:
            raise BadInput(
                f"These limits are for the actions {', '.join(self.labels)}, but the robot takes "
                f"{', '.join(spec.action.labels)}."
            )
        for name in names:
            if name not in spec.q.labels:
                raise UnknownName("position for the limits", name, spec.q.labels)
        return np.asarray(q, float)[..., [spec.q.labels.index(name) for name in names]]

    def rest(self, q: Array) -> Aim:
        """An aim at rest at q."""
        q = np.asarray(q, float)
        return Aim(q, np.zeros_like(q), q, np.zeros_like(q))

    def towards(self, aim: Aim, target: Array, dt: float) -> Aim:
        """The next command: the target if it can be reached inside the limits, else the way to it that can."""
        reach, top = np.asarray(self.acceleration) * dt, np.asarray(self.velocity)
        target = np.clip(target, self.low, self.high)
        # A target that jumps has no speed worth following; what it may have is bounded as the joint's is.
        u = np.clip((target - aim.target) / dt, aim.speed - reach, aim.speed + reach)
        u = np.clip(u, -top, top)
        wanted = u + self._stoppable(target - u * dt - aim.q, dt)
        low = np.maximum(np.maximum(aim.v - reach, -top), self._stoppable(self.low - aim.q, dt))
        high = np.minimum(np.minimum(aim.v + reach, top), self._stoppable(self.high - aim.q, dt))
        # A joint that begins too fast or outside brakes as hard as it may; else both bounds are ordinary.
        low, high = np.minimum(low, aim.v + reach), np.maximum(high, aim.v - reach)
        return Aim(*self._moved(aim.q, np.clip(wanted, low, high), dt), target, u)

    def brake(self, aim: Aim, dt: float) -> Aim:
        """The next command on the way to rest."""
        slower = np.maximum(np.abs(aim.v) - np.asarray(self.acceleration) * dt, 0.0)
        q, v = self._moved(aim.q, np.sign(aim.v) * slower, dt)
        return Aim(q, v, q, np.zeros_like(q))

    def _stoppable(self, distance: Array, dt: float) -> Array:
        """The fastest step from which a joint stops within a distance, with its sign: F^-1."""
        reach, away = np.asarray(self.acceleration) * dt, np.minimum(np.abs(distance), 1e300)
        n = np.floor((np.sqrt(1.0 + 8.0 * away / (reach * dt)) - 1.0) / 2.0)
        return np.sign(distance) * (away / (dt * (n + 1.0)) + 0.5 * reach * n)

    def _moved(self, q: Array, v: Array, dt: float) -> tuple[Array, Array]:
        after = q + v * dt
        # Rounding may end a bit of the last place outside; a joint that began outside must not jump.
        inside = (q >= self.low) & (q <= self.high)
        return np.where(inside, np.clip(after, self.low, self.high), after), v


@dataclass(frozen=True, slots=True, eq=False)
class Guarded(Wrapper[W]):
    """A world whose commands are kept inside limits; what was sent is observed as `action.sent`."""

    limits: Limits

    @property
    def spec(self) -> Spec:
        """What the numbers mean, with the action that was sent."""
        inner = self.world.spec
        return Spec(inner.dt, inner.q, inner.v, inner.action, {**inner.observation, SENT: inner.action})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start at rest where the joints are, or where the past commands have led."""
        aim = self.limits.rest(self.limits.start(state.q, self.world.spec))
        if past is not None:
            known = np.broadcast_to(past, (*state.batch, *np.shape(past)[-2:])).astype(float)
            speed = (known[..., -1, :] - known[..., -2, :]) / self.world.spec.dt if known.shape[-2] > 1 else aim.v
            aim = Aim(known[..., -1, :], speed, known[..., -1, :], speed)
        return self._remember(state, aim, np.zeros(state.batch, np.int64))

    def step(self, state: State, action: Array) -> State:
        """Send the command inside the limits; an action that is not finite is refused before that."""
        action, memory = checked_action(action, self.world.spec, state.batch), state.hidden[self.key]
        before = Aim(memory["q"], memory["v"], memory["target"], memory["speed"])
        aim = self.limits.towards(before, action, self.world.spec.dt)
        # A command that passes unchanged may differ in its last bits.
        cut = np.any(np.abs(aim.q - action) > 1e-9, axis=-1)
        return self._remember(self.world.step(state, aim.q), aim, memory["cut"] + cut)

    def observe(self, state: State) -> Observation:
        """What the sensors show, and what was sent."""
        return {SENT: state.hidden[self.key]["q"], **self.world.observe(state)}

    def _remember(self, state: State, aim: Aim, cut: Array) -> State:
        memory = {"q": aim.q, "v": aim.v, "target": aim.target, "speed": aim.speed, "cut": cut}
        return state.with_hidden(self.key, memory)
