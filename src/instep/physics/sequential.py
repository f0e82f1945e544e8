"""What engines without batches share: a model per world, commands that arrive late, results that must be finite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from instep.core.world import Array, Observation, Settings, Spec, State
from instep.scene import address
from instep.scene.folder import Scene

from .engine_support import check_params_support
from .state_checks import check_batch_size, checked_wrench, settings_per_world


@dataclass(frozen=True, slots=True, eq=False)
class Variants:
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


def variants(scene: Scene, settings: Settings) -> Variants:
    """The scene's model with parameters turned; arrays of values give a model per world."""
    resolved = address.ordered(scene.model, settings)
    each = settings_per_world(resolved)
    steps = max(1, round(scene.dt / float(resolved.get(address.TIMESTEP) or scene.model.opt.timestep)))
    whole = {name: float(value) for name, value in resolved.items() if name not in each}
    whole[address.TIMESTEP] = scene.dt / steps
    count = len(next(iter(each.values()), [0]))
    rows = [{**whole, **{name: float(values[i]) for name, values in each.items()}} for i in range(count)]
    return Variants(tuple(address.write(scene.model, row) for row in rows), steps, bool(each))


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The way of a command to its actuator: how many physics steps each takes to arrive."""

    delays: Array
    """Delay of each actuator in physics steps [nu]."""
    steps: int
    """Physics steps per control period."""

    @property
    def memory(self) -> int:
        """How many past actions are still on their way."""
        return int(-(-self.delays.max(initial=0) // self.steps))

    def arriving(self, past: Array, action: Array) -> Array:
        """What reaches the actuators in each physics step of a period [steps, nu], after `past` [memory, nu]."""
        if not self.memory:
            return np.broadcast_to(action, (self.steps, len(action)))
        said = np.concatenate([past, action[None]])
        when = np.arange(self.steps)[:, None] - self.delays
        return said[self.memory + when // self.steps, np.arange(len(action))]


def line_of(model: mujoco.MjModel, steps: int) -> Line:
    """The delays of a model, each to the nearest physics step."""
    return Line(np.rint(model.actuator_delay / model.opt.timestep).astype(int), steps)


def recent(past: Array, memory: int, rest: Array) -> Array:
    """The last `memory` actions of `past` [..., steps, nu]; the oldest, or the rest action, stands for older ones."""
    have = past.shape[-2]
    if have >= memory:
        return past[..., have - memory :, :].copy()
    filler = past[..., :1, :] if have else np.broadcast_to(rest, (*past.shape[:-2], 1, len(rest)))
    return np.concatenate([np.repeat(filler, memory - have, axis=-2), past], axis=-2)


class SequentialWorld(ABC):
    """A scene in an engine that steps one world at a time; the engine adds `place`, `step` and `tuned`.

    What a world remembers, the commands on their way and the next nudge are kept in `State.hidden` under its name.
    """

    def __init__(self, scene: Scene | str | Path, settings: Settings | None, engine: str):
        self.scene = scene if isinstance(scene, Scene) else Scene.load(scene)
        self.settings: Settings = dict(settings or {})
        check_params_support(self.settings, engine)
        self._engine_name = engine
        self._variants = variants(self.scene, self.settings)
        self._lines = tuple(line_of(model, self._variants.steps) for model in self._variants.models)
        self._memory = max(line.memory for line in self._lines)

    @property
    def spec(self) -> Spec:
        """What the numbers mean; the model's own sensors are MuJoCo's and are not read."""
        return self.scene.spec

    @property
    def model(self) -> mujoco.MjModel:
        """The MuJoCo model it is built from (of the first world, where they differ); read it, do not change it."""
        return self._variants.models[0]

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self._variants.steps

    def reset(self, seed: int = 0) -> State:
        """Where the scene begins with this seed."""
        q, v = self.scene.start(seed)
        return self.place(q, v)

    @abstractmethod
    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""

    def observe(self, state: State) -> Observation:
        """The robot's joints and the objects' poses."""
        return self.scene.reader.observe(state.q, state.v)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a force [N] and torque [Nm] at the centre of mass of each body, felt for one step."""
        own = {**state.hidden[self._engine_name], "wrench": checked_wrench(self.model, state, wrench)}
        return state.with_hidden(self._engine_name, own)

    def _begun(self, batch: tuple[int, ...], past: Array | None) -> dict[str, Array]:
        """What is on its way to worlds that are placed: past commands, and no nudge."""
        rest = self.scene.rest_action()
        said = np.zeros((*batch, 0, len(rest))) if past is None else np.asarray(past, float)
        return {
            "past": recent(said, self._memory, rest),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }

    def _gone_on(self, past: Array, action: Array) -> dict[str, Array]:
        """What is on its way after a step: the last commands, and no nudge."""
        return {
            "past": recent(np.concatenate([past, action[..., None, :]], axis=-2), self._memory, action),
            "wrench": np.zeros((*action.shape[:-1], self.model.nbody - 1, 6)),
        }
