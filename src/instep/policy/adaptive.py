"""Adaptive control: a robot whose position servos are helped to move as its reference model does.

The reference model is the identified simulator, stepped in lock step with the commands r. The robot is sent r + delta,
where delta is the torque that an adaptive law gives (see `adaptive_laws`) over the gain of the servo. delta is clipped,
goes through the limits of the world inside, and fades out while a reading is refused or trust is low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, W, Wrapper, vector
from instep.scene.folder import SceneSimulator

from .adaptive_kernels import compare_reading, limit_compensation
from .adaptive_laws import AdaptiveLaw, LawInput, Memory, law_of
from .adaptive_model import ReferenceArm, ReferenceMotion, undelayed
from .adaptive_stability import Method
from .adaptive_supervision import HELPED, compensation_sizes, start_watch, supervision_rules

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
