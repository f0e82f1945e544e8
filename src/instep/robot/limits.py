"""Limits of joints (position, velocity, acceleration), and the closed form that keeps every command inside them.

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

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.records import array_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, W, Wrapper

from .driver import SENT

if TYPE_CHECKING:
    from instep.scene.folder import Scene

DEFAULTS = {"rad": (3.14, 30.0), "m": (0.5, 10.0)}
"""Velocity and acceleration of a robot that states none, by the unit of the position target [unit/s, unit/s^2]."""
RISE_S = 0.05
"""Time in which acceleration builds up where no jerk limit is stated [s]."""


@array_dataclass
class LimitedCommand:
    """The last command, and the target it was chosen for."""

    q: Array
    v: Array
    target: Array
    speed: Array
    """How fast the target moves."""


@array_dataclass
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
    position_targets: Array | bool = True
    """Which actions are position targets; others (torques, speeds, voltages) are only clamped to low and high."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name in ("labels", "joints"):
                continue
            kind = bool if each.name == "position_targets" else float
            values = np.asarray(getattr(self, each.name), kind)
            if values.shape not in ((), (len(self.labels),)) or np.isnan(values).any():
                raise BadInput(f"The limit {each.name!r} must be one number, or one for each of {self.labels}.")
            object.__setattr__(self, each.name, np.broadcast_to(values, (len(self.labels),)).copy())
        if not np.all(np.asarray(self.low) < self.high):
            raise BadInput("The lowest position of every joint must be below its highest.")
        for name in ("velocity", "acceleration", "jerk"):
            values = np.asarray(getattr(self, name))
            if not np.all(values > 0) or (name != "jerk" and not np.isfinite(values).all()):
                raise BadInput(f"The limit {name!r} must be above 0 and finite for every joint.")

    def __str__(self) -> str:
        """The limits in words: velocity and acceleration of each position target."""
        rates = zip(self.labels, np.asarray(self.velocity), np.asarray(self.acceleration), strict=True)
        targets = np.asarray(self.position_targets)
        named = [f"{label} {v:g}/s {a:g}/s2" for (label, v, a), target in zip(rates, targets, strict=True) if target]
        return ", ".join(named) or "ranges of the actions"

    def start(self, q: Array, spec: Spec) -> Array:
        """The commands that mean "stay", from the positions of a robot [..., nq]."""
        names, chosen = self.joints or self.labels, np.asarray(self.position_targets)
        if spec.action.labels != self.labels:
            raise BadInput(
                f"These limits are for the actions {', '.join(self.labels)}, but the robot takes "
                f"{', '.join(spec.action.labels)}."
            )
        for name, target in zip(names, chosen, strict=True):
            if target and name not in spec.q.labels:
                raise UnknownName("position for the limits", name, spec.q.labels)
        places = [spec.q.labels.index(name) if target else 0 for name, target in zip(names, chosen, strict=True)]
        return np.where(chosen, np.asarray(q, float)[..., places], 0.0)

    def command(self, limited: LimitedCommand, wanted: Array) -> Array:
        """What is sent: the limited positions, and actions that are no positions clamped to their range."""
        return np.where(self.position_targets, limited.q, np.clip(wanted, self.low, self.high))

    def rest(self, q: Array) -> LimitedCommand:
        """A command at rest at q."""
        q = np.asarray(q, float)
        return LimitedCommand(q, np.zeros_like(q), q, np.zeros_like(q))

    def towards(self, last: LimitedCommand, target: Array, dt: float) -> LimitedCommand:
        """The next command: the target if it can be reached inside the limits, else the way to it that can."""
        reach, top = np.asarray(self.acceleration) * dt, np.asarray(self.velocity)
        target = np.clip(target, self.low, self.high)
        # A target that jumps has no speed worth following; what it may have is bounded as the joint's is.
        u = np.clip((target - last.target) / dt, last.speed - reach, last.speed + reach)
        u = np.clip(u, -top, top)
        wanted = u + self._stoppable(target - u * dt - last.q, dt)
        low = np.maximum(np.maximum(last.v - reach, -top), self._stoppable(self.low - last.q, dt))
        high = np.minimum(np.minimum(last.v + reach, top), self._stoppable(self.high - last.q, dt))
        # A joint that begins too fast or outside brakes as hard as it may; else both bounds are ordinary.
        low, high = np.minimum(low, last.v + reach), np.maximum(high, last.v - reach)
        q, v = self._moved(last.q, np.clip(wanted, low, high), dt)
        # A target that is reached is sent as it is, not as its last bits are rounded.
        reached = np.abs(q - target) <= 16 * np.finfo(float).eps * np.maximum(np.abs(target), np.abs(last.q))
        return LimitedCommand(np.where(reached, target, q), v, target, u)

    def brake(self, last: LimitedCommand, dt: float) -> LimitedCommand:
        """The next command on the way to rest."""
        slower = np.maximum(np.abs(last.v) - np.asarray(self.acceleration) * dt, 0.0)
        q, v = self._moved(last.q, np.sign(last.v) * slower, dt)
        return LimitedCommand(q, v, q, np.zeros_like(q))

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


@array_dataclass
class Guarded(Wrapper[W]):
    """A world whose commands are kept inside limits; what was sent is observed as `action.sent`."""

    limits: Limits

    @property
    def spec(self) -> Spec:
        """What the numbers mean, with the action that was sent."""
        return self.world.spec.with_observations({SENT: self.world.spec.action})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start at rest where the joints are, or where the past commands have led."""
        start = self.limits.rest(self.limits.start(state.q, self.world.spec))
        if past is not None:
            known = np.broadcast_to(past, (*state.batch, *np.shape(past)[-2:])).astype(float)
            speed = (known[..., -1, :] - known[..., -2, :]) / self.world.spec.dt if known.shape[-2] > 1 else start.v
            start = LimitedCommand(known[..., -1, :], speed, known[..., -1, :], speed)
        return self._remember(state, start, self.limits.command(start, start.q), np.zeros(state.batch, np.int64))

    def step(self, state: State, action: Array) -> State:
        """Send the command inside the limits; an action that is not finite is refused before that."""
        action, memory = checked_action(action, self.world.spec, state.batch), state.hidden[self.key]
        before = LimitedCommand(memory["q"], memory["v"], memory["target"], memory["speed"])
        limited = self.limits.towards(before, action, self.world.spec.dt)
        sent = self.limits.command(limited, action)
        cut = np.any(np.abs(sent - action) > 1e-9, axis=-1)
        return self._remember(self.world.step(state, sent), limited, sent, memory["cut"] + cut)

    def observe(self, state: State) -> Observation:
        """What the sensors show, and what was sent."""
        return {SENT: state.hidden[self.key]["sent"], **self.world.observe(state)}

    def _remember(self, state: State, last: LimitedCommand, sent: Array, cut: Array) -> State:
        memory = {"q": last.q, "v": last.v, "target": last.target, "speed": last.speed, "sent": sent, "cut": cut}
        return state.with_hidden(self.key, memory)


def default_limits(spec: Spec) -> Limits:
    """Conservative limits of a robot that states none: velocity and acceleration by unit, no range of positions."""
    labels, units = spec.action.labels, spec.action.units
    targets = [unit in DEFAULTS and label in spec.q.labels for label, unit in zip(labels, units, strict=True)]
    velocity, acceleration = _by_unit(units)
    return Limits(labels, -np.inf, np.inf, velocity, acceleration, acceleration / RISE_S, (), np.array(targets, bool))


def scene_limits(scene: Scene) -> Limits:
    """The limits of a scene's robot: ranges of joints and actuators, and `[robot.limits]` of its scene.toml.

    That table gives `velocity`, `acceleration` and `jerk`, each as one number or by action label; what it leaves out
    is as in `default_limits`.
    """
    model, spec = scene.model, scene.spec
    low, high = np.full(model.nu, -np.inf), np.full(model.nu, np.inf)
    limited = model.actuator_ctrllimited.astype(bool)
    low[limited], high[limited] = model.actuator_ctrlrange[limited].T
    joints, targets = list(spec.action.labels), np.zeros(model.nu, bool)
    for i, unit in enumerate(spec.action.units):
        joint = int(model.actuator_trnid[i, 0])
        on_joint = model.actuator_trntype[i] == 0 and model.actuator_gear[i, 0] == 1.0
        if unit not in DEFAULTS or not on_joint:
            continue
        joints[i], targets[i] = model.joint(joint).name, True
        if model.jnt_limited[joint]:
            low[i], high[i] = max(low[i], model.jnt_range[joint, 0]), min(high[i], model.jnt_range[joint, 1])
    velocity, acceleration = _by_unit(spec.action.units)
    velocity, acceleration = _stated(scene, "velocity", velocity), _stated(scene, "acceleration", acceleration)
    jerk = _stated(scene, "jerk", acceleration / RISE_S)
    return Limits(spec.action.labels, low, high, velocity, acceleration, jerk, tuple(joints), targets)


def _by_unit(units: tuple[str, ...]) -> tuple[Array, Array]:
    values = np.array([DEFAULTS.get(unit, (1.0, 1.0)) for unit in units], float).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def _stated(scene: Scene, name: str, usual: Array) -> Array:
    """A limit as the scene states it, for each action."""
    given: Any = scene.motion_limits.get(name, {})
    labels = scene.spec.action.labels
    table = cast(dict[str, Any], given) if isinstance(given, dict) else dict.fromkeys(labels, given)
    out = usual.copy()
    for label, value in table.items():
        if label not in labels:
            raise UnknownName(f"action for the {name} limit of {scene.name!r}", label, labels)
        if not isinstance(value, int | float) or not 0 < value < np.inf:
            raise BadInput(f"The {name} limit of {label!r} in {scene.name!r} must be a number above 0, not {value!r}.")
        out[labels.index(label)] = value
    return out
