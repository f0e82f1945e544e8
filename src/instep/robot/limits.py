"""Limits of joints (position, velocity, acceleration, jerk), and the step that keeps every command inside them.

A command is a sequence of positions q_k, one per period T, with the speed v, the acceleration a and the jerk j as its
first three differences. With every command a plan of accelerations is kept that brings the joint to rest without
leaving a limit. The next command is accepted only if such a plan exists for it too; if not, the plan that exists is
followed. So nothing that is asked can lead out of the limits, and when commands stop coming the plan is the stop. A
command that keeps the limits passes unchanged, and a jump is approached without overshoot.

From any motion inside the limits a joint is at rest after at most v/a + 2 a/j: a/j until a full acceleration has ended,
then v/a + a/j to brake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, W, Wrapper, array_dataclass

from .driver import SENT
from .jerk_kernels import BOUNDS, ROW, approach_targets, follow_plans, follow_references, make_plans

if TYPE_CHECKING:
    from instep.scene.folder import Scene

DEFAULTS = {"rad": (2 * np.pi, 3.14, 30.0), "m": (1.0, 0.5, 10.0)}
"""Range about zero, velocity and acceleration of a robot that states none, by the unit of the position target."""
REDUCED_SHARE, REDUCED = 0.3, {"rad": 0.5, "m": 0.1}
"""Reduced speed, of a robot that is in doubt: a share of its velocity limits, at most so much by unit [1/s]."""
RISE_S = 0.05
"""Time in which acceleration builds up where no jerk limit is stated [s]."""
CAUSES = ("position", "velocity", "acceleration")
"""Limits that a command may break, in the order in which they are looked at; what breaks none of them breaks jerk."""


@array_dataclass
class LimitedCommand:
    """The last command of every joint, the plan that brings it to rest, and the target it was chosen for."""

    rows: Array
    """[..., joints, numbers], the numbers of `jerk_kernels.ROW`."""

    @property
    def q(self) -> Array:
        """The positions that are commanded."""
        return self.rows[..., 0]

    @property
    def v(self) -> Array:
        """The difference of the last two commands over the period."""
        return self.rows[..., 1]

    @property
    def a(self) -> Array:
        """The difference of the last two speeds over the period."""
        return self.rows[..., 2]

    @property
    def target(self) -> Array:
        """What was asked for last, inside the range."""
        return self.rows[..., 7]


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
    jerk: Array | float | None = None
    """Highest jerk [rad/s^3 or m/s^3]; where None, acceleration builds up within 50 ms."""
    joints: tuple[str, ...] = ()
    """The positions in q that the actions drive; those of the same labels where empty."""
    position_targets: Array | bool = True
    """Which actions are position targets; others (torques, speeds, voltages) are only clamped to low and high."""
    assumed: tuple[str, ...] = ()
    """Limits that nobody stated, so that conservative defaults hold."""
    bounds: Array = field(init=False)
    """Low, high, velocity, acceleration and jerk of every joint [joints, 5]."""

    def __post_init__(self) -> None:
        if self.jerk is None:
            object.__setattr__(self, "jerk", np.asarray(self.acceleration, float) / RISE_S)
        for each in fields(self):
            if each.name in ("labels", "joints", "assumed", "bounds"):
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

        columns = [np.asarray(getattr(self, name), float) for name in BOUNDS]
        object.__setattr__(self, "bounds", np.stack(columns, axis=-1))

    def __str__(self) -> str:
        """The limits in words: range, velocity, acceleration and jerk of each action."""
        named: list[str] = []
        for label, target, (low, high, v, a, j) in zip(
            self.labels, np.asarray(self.position_targets), self.bounds, strict=True
        ):
            rates = f", {v:.3g}/s, {a:.3g}/s2, {j:.3g}/s3" if target else ""
            named.append(f"{label} {low:.3g} to {high:.3g}{rates}")
        return "; ".join(named)

    @property
    def stop_time(self) -> float:
        """Longest time that any motion inside the limits takes to come to rest, v/a + 2 a/j [s]."""
        v, a, j = self.bounds[:, 2:].T
        targets = np.asarray(self.position_targets, bool)
        return float(np.max((v / a + 2 * a / j)[targets], initial=0.0))

    def slowed(self, share: float) -> Limits:
        """The limits with a share of their velocities."""
        return replace(self, velocity=share * np.asarray(self.velocity))

    def reduced(self, spec: Spec) -> Limits:
        """The limits at reduced speed: `REDUCED_SHARE` of each velocity, and no more than `REDUCED` by its unit."""
        most = np.array([REDUCED.get(unit, np.inf) for unit in spec.action.units])
        return replace(self, velocity=np.minimum(REDUCED_SHARE * np.asarray(self.velocity), most))

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
        rows = np.zeros((*np.shape(q), len(ROW)))
        rows[..., 0] = rows[..., 7] = q
        return LimitedCommand(rows)

    def moving(self, q: Array, v: Array, dt: float) -> LimitedCommand:
        """A command at q that moves at the speed v, and would come to rest from there."""
        rows = self.rest(q).rows
        rows[..., 1] = rows[..., 8] = v
        return self._stepped(rows, lambda flat, bounds, out: make_plans(flat, bounds, dt, out))

    def towards(self, last: LimitedCommand, target: Array, dt: float) -> LimitedCommand:
        """The next command: the target if it can be reached inside the limits, else the way to it that can."""
        where = _row(target, last)
        return self._stepped(last.rows, lambda flat, bounds, out: approach_targets(flat, where, bounds, dt, out))

    def follow(self, last: LimitedCommand, reference: Array, speed: Array, dt: float) -> LimitedCommand:
        """The next command on the way to a reference that moves at a known speed."""
        where, fast = _row(reference, last), _row(speed, last)
        return self._stepped(last.rows, lambda flat, bounds, out: follow_references(flat, where, fast, bounds, dt, out))

    def brake(self, last: LimitedCommand, dt: float) -> LimitedCommand:
        """The next command on the way to rest."""
        after = self._stepped(last.rows, lambda flat, bounds, out: follow_plans(flat, bounds, dt, out))
        after.rows[..., 7], after.rows[..., 8] = after.q, after.v
        return after

    def cause(self, last: LimitedCommand, wanted: Array, cut: Array, dt: float) -> str:
        """Which limit the wanted commands break that are `cut`: position, else velocity, acceleration or jerk."""
        with np.errstate(over="ignore"):
            v = (wanted - last.q) / dt
            a = (v - last.v) / dt
        beyond = (wanted < self.low) | (wanted > self.high)
        broken = (beyond, np.abs(v) > self.velocity, np.abs(a) > self.acceleration)
        return next((name for name, which in zip(CAUSES, broken, strict=True) if np.any(which & cut)), "jerk")

    def _stepped(self, rows: Array, step: Callable[[Array, Array, Array], None]) -> LimitedCommand:
        """Rows [..., joints, numbers] after a step of the kernels, which take all joints in one list."""
        flat = np.ascontiguousarray(rows, float).reshape(-1, len(ROW))
        bounds = (
            self.bounds if len(flat) == len(self.bounds) else np.tile(self.bounds, (len(flat) // len(self.bounds), 1))
        )
        out = flat.copy()
        step(flat, bounds, out)
        return LimitedCommand(out.reshape(rows.shape))


def _row(values: Array, last: LimitedCommand) -> Array:
    """Values of all joints in one list: a copy, since a view that is read-only would be another type to the kernels."""
    return np.array(np.broadcast_to(values, last.rows.shape[:-1]), float, order="C").reshape(-1)


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
            start = self.limits.moving(known[..., -1, :], speed, self.world.spec.dt)
        return self._remember(state, start, self.limits.command(start, start.q), np.zeros(state.batch, np.int64))

    def step(self, state: State, action: Array) -> State:
        """Send the command inside the limits; an action that is not finite is refused before that."""
        action, memory = checked_action(action, self.world.spec, state.batch), state.hidden[self.key]
        limited = self.limits.towards(LimitedCommand(memory["rows"]), action, self.world.spec.dt)
        sent = self.limits.command(limited, action)
        cut = np.any(np.abs(sent - action) > 1e-9, axis=-1)
        return self._remember(self.world.step(state, sent), limited, sent, memory["cut"] + cut)

    def observe(self, state: State) -> Observation:
        """What the sensors show, and what was sent."""
        return {SENT: state.hidden[self.key]["sent"], **self.world.observe(state)}

    def _remember(self, state: State, last: LimitedCommand, sent: Array, cut: Array) -> State:
        return state.with_hidden(self.key, {"rows": last.rows, "sent": sent, "cut": cut})


def default_limits(spec: Spec) -> Limits:
    """Conservative limits of a robot that states none, by the units of its position targets."""
    labels, units = spec.action.labels, spec.action.units
    targets = [unit in DEFAULTS and label in spec.q.labels for label, unit in zip(labels, units, strict=True)]
    reach, velocity, acceleration = _by_unit(units)
    reach = np.where(targets, reach, np.inf)
    assumed = ("position", "velocity", "acceleration", "jerk")
    return Limits(
        labels, -reach, reach, velocity, acceleration, position_targets=np.array(targets, bool), assumed=assumed
    )


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
    _, velocity, acceleration = _by_unit(spec.action.units)
    velocity, acceleration = _stated(scene, "velocity", velocity), _stated(scene, "acceleration", acceleration)
    jerk = _stated(scene, "jerk", acceleration / RISE_S)
    assumed = tuple(name for name in ("velocity", "acceleration", "jerk") if name not in scene.motion_limits)
    return Limits(spec.action.labels, low, high, velocity, acceleration, jerk, tuple(joints), targets, assumed)


def _by_unit(units: tuple[str, ...]) -> tuple[Array, Array, Array]:
    values = np.array([DEFAULTS.get(unit, (np.inf, 1.0, 1.0)) for unit in units], float).reshape(-1, 3)
    return values[:, 0], values[:, 1], values[:, 2]


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
