"""Base of the engines that step one world at a time: a model per variant, delayed commands, batches in a loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import mujoco
import numpy as np

from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Settings, Spec, State
from instep.scene import address
from instep.scene.folder import Scene

from .engine_checks import (
    check_batch_size,
    check_finite,
    check_params_support,
    checked_place,
    checked_wrench,
    settings_per_world,
)


@frozen_dataclass
class Stepped:
    """One world after a step: positions, velocities and what the engine remembers of it."""

    q: Array
    v: Array
    memory: Any


class SequentialWorld(ABC):
    """A scene in an engine that steps one world at a time; the engine adds `_placed`, `_stepped` and `tuned`.

    The engine's memory of a world, the commands on their way and the next nudge are kept in `State.hidden` under its
    name.
    """

    def __init__(self, scene: Scene | str | Path, settings: Settings | None, engine: str):
        self.scene = scene if isinstance(scene, Scene) else Scene.load(scene)
        self.settings: Settings = dict(settings or {})
        check_params_support(self.settings, engine)
        self._engine_name = engine
        self._variants = model_variants(self.scene, self.settings)
        self._delays = tuple(command_delay(model, self._variants.steps) for model in self._variants.models)
        self._past = max(delay.past for delay in self._delays)

    @property
    def spec(self) -> Spec:
        """The meaning of the numbers; the model's own sensors are MuJoCo's and are not read."""
        return self.scene.spec

    @property
    def model(self) -> mujoco.MjModel:
        """The MuJoCo model it is built from (of the first world, where they differ); read it, do not change it."""
        return self._variants.models[0]

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self._variants.steps

    @abstractmethod
    def tuned(self, settings: Settings) -> Self:
        """The same world with some parameters set; arrays hold one value per world of a batch."""

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        q, v = self.scene.start(seed)
        return self.place(q, v)

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        batch = q.shape[:-1]
        flat_q, flat_v = q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1])
        # A batch placed in a world whose parameters differ per world is still placed where it has another size.
        each = self._variants.each and len(flat_q) == len(self._variants.models)
        placed = self._map(lambda i: self._placed(i if each else 0, flat_q[i], flat_v[i]), len(flat_q))
        rest = self.scene.rest_action()
        given = np.zeros((*batch, 0, len(rest))) if past is None else np.asarray(past, float)
        hidden = {
            "memory": self._stacked(placed, batch),
            "past": recent_actions(given, self._past, rest),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }
        return State(t, q, v, {self._engine_name: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[self._engine_name]
        n, batch = int(np.prod(state.batch)), state.batch
        past = recent_actions(own["past"], self._past, self.scene.rest_action())
        q, v, wrench = state.q.reshape(n, -1), state.v.reshape(n, -1), own["wrench"].reshape(n, -1, 6)
        memory = np.asarray(own["memory"])
        memory = memory.reshape(n, *memory.shape[len(batch) :])
        flat_past, flat_action = past.reshape(n, *past.shape[-2:]), action.reshape(n, -1)

        def one(i: int) -> Stepped:
            which = self._variants.index(i, n)
            delay = self._delays[which]
            commands = delay.arriving(flat_past[i, self._past - delay.past :], flat_action[i])
            force = wrench[i] if wrench[i].any() else None
            return self._stepped(which, Stepped(q[i], v[i], memory[i]), commands, force)

        done: list[Stepped] = self._map(one, n)
        hidden = {
            "memory": self._stacked([part.memory for part in done], batch),
            "past": recent_actions(np.concatenate([past, action[..., None, :]], axis=-2), self._past, action),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }
        after_q = np.stack([part.q for part in done]).reshape(state.q.shape)
        after_v = np.stack([part.v for part in done]).reshape(state.v.shape)
        after = State(state.t + self.spec.dt, after_q, after_v, {self._engine_name: hidden})
        return check_finite(after, self.scene.name, self._engine_name)

    def observe(self, state: State) -> Observation:
        """The robot's joints and the objects' poses."""
        return self.scene.reader.observe(state.q, state.v)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a force [N] and torque [Nm] at the centre of mass of each body, felt for one step."""
        own = {**state.hidden[self._engine_name], "wrench": checked_wrench(self.model, state, wrench)}
        return state.with_hidden(self._engine_name, own)

    @abstractmethod
    def _placed(self, which: int, q: Array, v: Array) -> Any:
        """What the engine remembers of a world of one variant at these positions and velocities."""

    @abstractmethod
    def _stepped(self, which: int, before: Stepped, commands: Array, wrench: Array | None) -> Stepped:
        """A world of one variant after one physics step per row of commands [steps, nu]."""

    def _map(self, work: Callable[[int], Any], n: int) -> list[Any]:
        return [work(i) for i in range(n)]

    def _stacked(self, memories: Sequence[Any], batch: tuple[int, ...]) -> Array:
        return np.stack(memories).reshape(*batch, *np.shape(memories[0]))


@array_dataclass
class ModelVariants:
    """The models of a tuned scene: one, or one per world of a batch."""

    models: tuple[mujoco.MjModel, ...]
    steps: int
    """Physics steps per control period."""
    each: bool
    """Whether there is one model per world."""

    def index(self, world: int, of: int) -> int:
        """Which model a world of a batch has."""
        check_batch_size(of, len(self.models) if self.each else 0)
        return world if self.each else 0


def model_variants(scene: Scene, settings: Settings) -> ModelVariants:
    """The scene's model with parameters set; arrays of values give a model per world."""
    resolved = address.ordered(scene.model, settings)
    each = settings_per_world(resolved)
    steps = max(1, round(scene.dt / float(resolved.get(address.TIMESTEP) or scene.model.opt.timestep)))
    shared = {name: float(value) for name, value in resolved.items() if name not in each}
    shared[address.TIMESTEP] = scene.dt / steps
    count = len(next(iter(each.values()), [0]))
    rows = [{**shared, **{name: float(values[i]) for name, values in each.items()}} for i in range(count)]
    return ModelVariants(tuple(address.write(scene.model, row) for row in rows), steps, bool(each))


@array_dataclass
class CommandDelay:
    """Delay of commands: how many physics steps each takes to reach its actuator."""

    delays: Array
    """Delay of each actuator in physics steps [nu]."""
    steps: int
    """Physics steps per control period."""

    @property
    def past(self) -> int:
        """How many past actions are still on their way."""
        return int(-(-self.delays.max(initial=0) // self.steps))

    def arriving(self, past: Array, action: Array) -> Array:
        """What reaches the actuators in each physics step of a period [steps, nu], after `past` [past, nu]."""
        if not self.past:
            return np.broadcast_to(action, (self.steps, len(action)))
        given = np.concatenate([past, action[None]])
        when = np.arange(self.steps)[:, None] - self.delays
        return given[self.past + when // self.steps, np.arange(len(action))]


def command_delay(model: mujoco.MjModel, steps: int) -> CommandDelay:
    """The delays of a model, each to the nearest physics step."""
    return CommandDelay(np.rint(model.actuator_delay / model.opt.timestep).astype(int), steps)


def recent_actions(past: Array, count: int, rest: Array) -> Array:
    """The last `count` actions of `past` [..., steps, nu]; the oldest, or the rest action, stands for older ones."""
    have = past.shape[-2]
    if have >= count:
        return past[..., have - count :, :].copy()
    filler = past[..., :1, :] if have else np.broadcast_to(rest, (*past.shape[:-2], 1, len(rest)))
    return np.concatenate([np.repeat(filler, count - have, axis=-2), past], axis=-2)
