"""Worlds with actuator models: MuJoCo whose friction and motors follow the models that `scene.toml` names.

    [actuators.friction]
    "joint.elbow.static" = 0.08

    [actuators.supply]
    "actuator.servo.kt" = 0.32

    [inputs]
    "servo.gain" = "kp"

`[actuators.NAME]` holds the parameters of one model by address. `[inputs]` names the metadata field of a recording that
holds an action which is not among its columns. A scene without models is an ordinary MuJoCo world.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.imports import extension
from instep.core.param import Address, Param
from instep.core.rollout import checked_action
from instep.core.world import Array, Channel, Settings, Spec, State, vector
from instep.scene.folder import AroundSimulator, Scene, write_settings
from instep.scene.robot_structure import with_actuator_labels

from .actuator_models import COUNT, HARMONICS, ActuatorModel, ActuatorStep, Term
from .mujoco_world import KEY, SENSORS, MujocoWorld
from .world_batches import INPUTS, ActuatorInputs, check_batch_size, check_finite, inputs_of, switched, tuned_batch

SHIPPED: Mapping[str, str] = {
    name: f"instep.physics.actuator_models:{attribute}"
    for name, attribute in (("supply", "SupplyMotors"), ("friction", "Friction"), ("cogging", "Cogging"))
}
"""Actuator models by name. Motors come before friction, which depends on their torque."""
LOADS = "actuators"
"""External and motor torques at the last physics step [..., 2, nv] are kept under this key."""


@lru_cache
def actuator_kinds(names: tuple[str, ...] = ()) -> Mapping[str, type[ActuatorModel]]:
    """The shipped actuator models, and those of other packages that are named."""
    return {name: extension("actuators", name, SHIPPED) for name in dict.fromkeys([*SHIPPED, *names])}


def actuator_models(scene: Scene) -> tuple[ActuatorModel, ...]:
    """The actuator models of a scene, with its parameters."""
    return _models(scene.model, scene.actuator_settings, tuple(scene.actuators))


def owner_of(scene: Scene, name: str) -> str | None:
    """The actuator model that a parameter belongs to, by name; None for a parameter of the MuJoCo model."""
    return _owner(scene.model, Address.parse(name), actuator_kinds(tuple(scene.actuators)))


def write_actuators(path: Path, scene: Scene, settings: Mapping[str, float]) -> None:
    """Write the tables `[actuators.NAME]` of a scene with some parameters of actuator models added into a file."""
    tables = {name: dict(table) for name, table in scene.actuators.items()}
    for address, value in settings.items():
        tables.setdefault(owner_of(scene, address) or "", {})[address] = float(value)
    for name, table in tables.items():
        write_settings(path, table, "actuators", name)


def _owner(model: mujoco.MjModel, at: Address, kinds: Mapping[str, type[ActuatorModel]]) -> str | None:
    return next((name for name, kind in kinds.items() if kind.owns(model, at)), None)


def actuator_params(scene: Scene, patterns: Sequence[str]) -> tuple[list[Param], dict[str, float], list[str]]:
    """The actuator parameters of a scene that match, their values, and the patterns that matched none of them."""
    values, kinds = scene.actuator_settings, actuator_kinds(tuple(scene.actuators))
    terms = {name: kinds[key].terms for key, table in scene.actuators.items() for name in table}
    hits = [fnmatch.filter(values, pattern) for pattern in patterns]
    found = [_param(name, terms[name]) for name in dict.fromkeys(name for names in hits for name in names)]
    start = {param.address: float(np.clip(values[param.address], param.low, param.high)) for param in found}
    return found, start, [pattern for pattern, names in zip(patterns, hits, strict=True) if not names]


def cogging_params(scene: Scene) -> tuple[list[Param], dict[str, float]]:
    """The cogging amplitudes of every motor whose turns per joint turn the scene names, and their values."""
    values = scene.actuator_settings
    motors = [at for at in map(Address.parse, values) if at.field == COUNT]
    found = [_param(str(replace(motor, field=field)), HARMONICS) for motor in motors for field in HARMONICS]
    return found, {param.address: values.get(param.address, 0.0) for param in found}


def _param(name: str, terms: Mapping[str, Term]) -> Param:
    term = terms[Address.parse(name).field]
    return Param(name, term.low, term.high, term.log, term.unit)


def with_inputs(scene: Scene, episodes: Sequence[Episode]) -> list[Episode]:
    """The recordings with the further actions that a scene's actuator models take.

    They are read from each recording's column of inputs where it has them, else from its metadata. Actions that are
    labelled by the joint that an actuator drives get the actuator's name.
    """
    out: list[Episode] = []
    for episode in with_actuator_labels(scene.model, episodes):
        missing = [name for name in scene.inputs if name not in episode.spec.action.labels]
        values = [_input_rows(episode, name, scene.inputs[name]) for name in missing]
        actions = np.column_stack([episode.action, *values])
        spec = replace(episode.spec, action=_extended(episode.spec.action, missing))
        out.append(Episode(spec, {**episode.columns, "action": actions}, episode.meta) if missing else episode)
    return out


def _input_rows(episode: Episode, name: str, field: str) -> Array:
    """An input in each row, from the recording's column of inputs or else its metadata [rows]."""
    if "inputs" in episode and name in episode.spec.inputs.labels:
        return np.asarray(episode["inputs"], float)[:, episode.spec.inputs.labels.index(name)]
    try:
        return np.full(len(episode), float(episode.meta.get(field, "")))
    except ValueError:
        raise BadInput(
            f"Recording {episode.meta.get('name', '')!r} has no number in its metadata {field!r}; the scene's "
            f"actuator models read {name!r} from it."
        ) from None


def _extended(action: Channel, names: Sequence[str]) -> Channel:
    return vector((*action.labels, *names), (*action.units, *("1" for _ in names)))


class ActuatedWorld(AroundSimulator[MujocoWorld]):
    """A MuJoCo world with actuator models; a Simulator like any other."""

    def __init__(self, world: MujocoWorld, settings: Settings, names: tuple[str, ...] = ()):
        """`names` are the models of other packages that the settings belong to; the shipped ones are always known."""
        self.world = world
        self.settings = dict(settings)
        self._names = names
        self._models = _models(world.model, self.settings, self._names)
        self._rest = {name: value for model in self._models for name, value in model.rest_inputs.items()}
        self._spec = world.spec
        if self._rest:
            left = [label for label in world.spec.inputs.labels if label not in self._rest]
            action = _extended(world.spec.action, tuple(self._rest))
            self._spec = replace(world.spec, action=action, inputs=vector(left, "1"))
        self._nsim = max([*(np.size(v) for v in [*self.settings.values(), *world.settings.values()] if np.ndim(v)), 0])
        self._batches: dict[int, _ActuatedBatch] = {}
        self._lock = threading.Lock()

    @property
    def spec(self) -> Spec:
        """Description of the numbers; actions include those that the models take."""
        return self._spec

    @property
    def is_plain(self) -> bool:
        """Whether the actuator models have no effect: it moves like its MuJoCo world."""
        return not any(model.has_effect for model in self._models)

    def rest_action(self) -> Array:
        """The scene's rest action, followed by the rest values of the models' actions."""
        return np.concatenate([self.scene.rest_action(), list(self._rest.values())])

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        return self._with_loads(self.world.reset(seed))

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities."""
        commands = None if past is None else np.asarray(past, float)[..., : self.model.nu]
        return self._with_loads(self.world.place(q, v, t, commands), past)

    def switch(self, state: State, inputs: Array) -> State:
        """The state whose next step takes these inputs of the actuators [..., inputs]."""
        return switched(state, inputs, self._spec)

    def tuned(self, settings: Settings) -> ActuatedWorld:
        """The same world with some parameters set: those of actuator models here, the others in MuJoCo."""
        kinds = actuator_kinds(self._names)
        own = {n: value for n, value in settings.items() if _owner(self.model, Address.parse(n), kinds) is not None}
        rest = {name: value for name, value in settings.items() if name not in own}
        world = self.world.tuned(rest) if rest else self.world
        return ActuatedWorld(world, {**self.settings, **own}, self._names)

    def step(self, state: State, action: Array) -> State:
        """One control period later; the actuator models are evaluated before each physics step."""
        action = checked_action(action, self.spec, state.batch)
        rows = np.asarray(state.hidden[KEY], float)
        flat, n = rows.reshape(-1, rows.shape[-1]), int(np.prod(state.batch, initial=1))
        check_batch_size(n, self._nsim)
        given, commands = action.reshape(n, -1), self.model.nu
        loads = np.asarray(state.hidden[LOADS], float).reshape(n, 2, -1)
        with self._lock:
            actuated = self._batch(n)
            batch, error = actuated.batch, ""
            batch.state[:] = flat
            batch.bind("ctrl")[:] = given[:, :commands]
            actuated.switch(inputs_of(state, n), given[:, commands:])
            for _ in range(self.world.substeps):
                actuated.apply(loads)
                try:
                    batch.step(nstep=1)
                except mjbatch.SimulationError as failure:
                    error = str(failure)
                loads = actuated.loads()
            batch.bind("xfrc_applied")[:] = 0.0
            batch.bind("qfrc_applied")[:] = 0.0
            after = batch.state.copy()
            q, v = batch.bind("qpos").copy(), batch.bind("qvel").copy()
            sensors = batch.bind("sensordata").copy() if self.model.nsensor else None
        shape = state.batch
        kept = {key: value for key, value in state.hidden.items() if key != INPUTS}
        hidden = {**kept, KEY: after.reshape(rows.shape), LOADS: loads.reshape(*shape, 2, -1)}
        if sensors is not None:
            hidden[SENSORS] = sensors.reshape(*shape, -1)
        new = State(state.t + self.spec.dt, q.reshape(*shape, -1), v.reshape(*shape, -1), hidden)
        return check_finite(new, self.scene.name, "MuJoCo with actuator models", error)

    def _with_loads(self, state: State, past: Array | None = None) -> State:
        rows = np.asarray(state.hidden[KEY], float)
        flat = rows.reshape(-1, rows.shape[-1])
        with self._lock:
            actuated = self._batch(len(flat))
            last = self.rest_action() if past is None else np.asarray(past, float)[..., -1, :]
            actions = np.broadcast_to(last[..., self.model.nu :], (*state.batch, len(self._rest)))
            actuated.batch.state[:] = flat
            actuated.switch(None, actions.reshape(len(flat), -1))
            actuated.apply(np.zeros((len(flat), 2, self.model.nv)))
            actuated.batch.forward()
            actuated.batch.bind("qfrc_applied")[:] = 0.0
            loads = actuated.loads()
        return state.with_hidden(LOADS, loads.reshape(*state.batch, 2, -1))

    def _batch(self, n: int) -> _ActuatedBatch:
        if n not in self._batches:
            if len(self._batches) >= 4:
                del self._batches[next(iter(self._batches))]
            batch = tuned_batch(self.model, n, self.world.workers(n), self.world.per_world)
            self._batches[n] = _ActuatedBatch(batch, self._models, tuple(self._rest), self._spec.inputs.labels)
        return self._batches[n]


class _ActuatedBatch:
    """A native batch of worlds on which actuator models act before each physics step."""

    def __init__(
        self, batch: mjbatch.Batch, models: Sequence[ActuatorModel], actions: tuple[str, ...], inputs: tuple[str, ...]
    ):
        self.batch = batch
        self._acts = [model.attach(batch) for model in models]
        self._switched = ActuatorInputs(batch, inputs)
        self._actions, self._inputs = actions, inputs
        self._values: dict[str, Array] = {}
        self._external, self._motor = batch.bind("qfrc_bias"), batch.bind("qfrc_actuator")
        self._applied = batch.bind("qfrc_applied")

    def switch(self, inputs: Array | None, actions: Array) -> None:
        """Write the inputs [worlds, inputs] (all are 1 where None) and the models' actions of a control step."""
        self._switched.apply(inputs)
        inputs = np.ones((self.batch.nsim, len(self._inputs))) if inputs is None else inputs
        self._values = dict(zip((*self._inputs, *self._actions), (*inputs.T, *actions.T), strict=True))

    def apply(self, loads: Array) -> None:
        """Let the models act for the next physics step, given the torques of the last one [worlds, 2, nv]."""
        bind = self.batch.bind
        torque = np.zeros_like(self._applied)
        step = ActuatorStep(
            bind("qpos"), bind("qvel"), bind("ctrl"), self._values, loads[:, 0], loads[:, 1].copy(), torque
        )
        for act in self._acts:
            act(step)
        self._applied[:] = torque

    def loads(self) -> Array:
        """External and motor torque at each degree of freedom [worlds, 2, nv]."""
        return np.stack([-self._external, self._motor], axis=1)


def _models(model: mujoco.MjModel, settings: Settings, names: tuple[str, ...]) -> tuple[ActuatorModel, ...]:
    """The actuator models that settings belong to, with these settings."""
    kinds, own = actuator_kinds(names), dict[str, dict[str, float | Array]]()
    for address, value in settings.items():
        at = Address.parse(address)
        owner = _owner(model, at, kinds)
        if owner is None:
            joints = [model.joint(j).name for j in range(model.njnt)]
            known = [f"joint.{joint}.{term}" for joint in joints for kind in kinds.values() for term in kind.terms]
            raise UnknownName("actuator parameter", address, known)
        own.setdefault(owner, {})[address] = value
    return tuple(kind.of(model, own[name]) for name, kind in kinds.items() if name in own)
