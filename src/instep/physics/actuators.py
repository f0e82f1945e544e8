"""Actuator models of a scene in MuJoCo: speed- and load-dependent friction, cogging, motors on a limited supply.

MuJoCo's dry friction is one number per joint. An `ActuatedWorld` sets that number before every physics step from the
speed and load of the joint (see `actuator_models`), the stiffness and force limits of a servo from its firmware gain
and the supply voltage left under its current, and applies the cogging torque. The parameters are kept in
`actuators.toml` beside `scene.toml`, by address:

    [settings]
    "joint.elbow.static" = 0.08
    "actuator.servo.kt" = 0.32

    [inputs]
    "servo.gain" = "kp"

`[inputs]` names the metadata field of a recording that holds an input which is not among its actions. A scene without
the file is an ordinary MuJoCo world.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Address, Param
from instep.core.reading import NUMBER, TEXT, check_inside, checked_table, present, table_of
from instep.core.rollout import checked_action
from instep.core.world import Array, Channel, Observation, Settings, Spec, State, array_dataclass, vector
from instep.scene.folder import AroundSimulator, Scene, read_table
from instep.scene.robot_structure import with_actuator_labels

from .actuator_models import (
    COGGING,
    COUNT,
    HARMONICS,
    SHAPES,
    TERMS,
    Cogging,
    Term,
    cogging_of,
    friction_limit,
    is_cogging_param,
)
from .engine_model import check_batch_size, check_finite
from .mujoco_world import KEY, SENSORS, MujocoWorld, tuned_batch
from .world_batches import ENABLE, GAIN, INPUTS, ActuatorInputs, inputs_of, switched

ACTUATORS_FILE = "actuators.toml"
LOADS = "actuators"
"""External and motor torques at the last physics step [..., 2, nv] are kept under this key."""
MOTOR: Mapping[str, Term] = {
    "kt": Term(0.3, 0.01, 5.0, "Nm/A"),
    "resistance": Term(5.0, 0.1, 50.0, "ohm"),
    "duty": Term(0.01, 1e-5, 10.0, "1/rad"),
    "volts": Term(7.4, 1.0, 60.0, "V", False),
    "supply_resistance": Term(0.0, 1e-2, 10.0, "ohm"),
}
"""Torque constant, winding resistance, duty per radian of error and unit of gain, supply voltage and resistance."""


_ENTRIES = {"settings": table_of(NUMBER), "inputs": table_of(TEXT)}
"""What `actuators.toml` may hold."""


def read_actuators(root: Path) -> dict[str, float]:
    """The settings of a scene's `actuators.toml`; empty where it has none."""
    return {name: float(value) for name, value in _table(root).get("settings", {}).items()}


def with_inputs(scene: Scene, episodes: Sequence[Episode]) -> list[Episode]:
    """The recordings with the gains that actuators on a supply take besides commands.

    They are read from each recording's column of inputs, where it has them, else from its metadata. Actions that are
    labelled by the joint that an actuator drives get the actuator's name.
    """
    inputs: Mapping[str, str] = _table(scene.root).get("inputs", {})
    return [_with_inputs(episode, inputs) for episode in with_actuator_labels(scene.model, episodes)]


def actuator_params(scene: Scene, patterns: Sequence[str]) -> tuple[list[Param], dict[str, float], list[str]]:
    """The actuator parameters of a scene that match, their values, and the patterns that matched none of them."""
    values, found, left = read_actuators(scene.root), list[Param](), list[str]()
    for pattern in patterns:
        hits = [name for name in values if fnmatchcase(name, pattern)]
        left += [] if hits else [pattern]
        for name in hits:
            term = {**TERMS, **MOTOR, **COGGING}[Address.parse(name).field]
            if name not in {k.address for k in found}:
                found.append(Param(name, term.low, term.high, term.log, term.unit))
    start = {k.address: float(np.clip(values[k.address], k.low, k.high)) for k in found}
    return found, start, left


def cogging_params(scene: Scene) -> tuple[list[Param], dict[str, float]]:
    """The cogging amplitudes of every motor whose turns per joint turn the scene names, and their values."""
    values, found = read_actuators(scene.root), list[Param]()
    start: dict[str, float] = {}
    for motor in (Address.parse(name) for name in values):
        if motor.field != COUNT:
            continue
        for field, term in HARMONICS.items():
            name = str(replace(motor, field=field))
            found.append(Param(name, term.low, term.high, term.log, term.unit))
            start[name] = values.get(name, term.default)
    return found, start


def is_actuator_param(model: mujoco.MjModel, name: str) -> bool:
    """Whether an address belongs to an actuator model rather than to the MuJoCo model."""
    at = Address.parse(name)
    if at.kind == "joint" and at.field in TERMS:
        return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, at.name) >= 0
    if at.kind == "actuator" and at.field in MOTOR:
        a = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, at.name)
        return a >= 0 and model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT)
    return is_cogging_param(model, name)


def _table(root: Path) -> dict[str, Any]:
    path = root / ACTUATORS_FILE
    return checked_table(read_table(check_inside(root, path)), _ENTRIES, path.name) if present(path) else {}


def _with_inputs(episode: Episode, inputs: Mapping[str, str]) -> Episode:
    missing = [name for name in inputs if name not in episode.spec.action.labels]
    if not missing:
        return episode
    values = [_input_rows(episode, name, inputs[name]) for name in missing]
    actions = np.concatenate([episode.action, np.stack(values, axis=1)], axis=1)
    spec = replace(episode.spec, action=_extended(episode.spec.action, missing))
    return Episode(spec, {**episode.columns, "action": actions}, episode.meta)


def _input_rows(episode: Episode, name: str, field: str) -> Array:
    """An input in each row, from the recording's column of inputs or else its metadata [rows]."""
    if "inputs" in episode and name in episode.spec.inputs.labels:
        return np.asarray(episode["inputs"], float)[:, episode.spec.inputs.labels.index(name)]
    try:
        return np.full(len(episode), float(episode.meta.get(field, "")))
    except ValueError:
        raise BadInput(
            f"The scene's actuators take {name!r} from the metadata {field!r} of each recording, and "
            f"{episode.meta.get('name', 'one of them')!r} has no number there."
        ) from None


def _extended(action: Channel, names: Sequence[str]) -> Channel:
    return vector((*action.labels, *names), (*action.units, *("1" for _ in names)))


class ActuatedWorld(AroundSimulator[MujocoWorld]):
    """A MuJoCo world whose friction and motors follow actuator models; a Simulator like any other."""

    def __init__(self, world: MujocoWorld, settings: Settings):
        self.world = world
        self.settings = dict(settings)
        self._models = _models(world.model, self.settings)
        self._spec = _spec(world.spec, self._models.inputs)
        self._nsim = max([*(np.size(v) for v in [*self.settings.values(), *world.settings.values()] if np.ndim(v)), 0])
        self._batches: dict[int, _ActuatedBatch] = {}
        self._lock = threading.Lock()

    @property
    def spec(self) -> Spec:
        """The meaning of the numbers; the actions of motors on a supply include the gain of their firmware."""
        return self._spec

    @property
    def is_plain(self) -> bool:
        """Whether the actuator models have no effect: it moves like its MuJoCo world."""
        return self._models.are_zero

    def rest_action(self) -> Array:
        """The scene's rest action, with the gains at which motors on a supply are as stiff as the model's servos."""
        model, gains = self.model, list[float]()
        for a, p in self._models.motors.items():
            per_gain = p["kt"] / p["resistance"] * p["volts"] * p["duty"]
            gains.append(float(model.actuator_gainprm[a, 0] / np.mean(per_gain)))
        return np.concatenate([self.scene.rest_action(), gains])

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        return self._with_loads(self.world.reset(seed))

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities."""
        commands = None if past is None else np.asarray(past, float)[..., : self.model.nu]
        return self._with_loads(self.world.place(q, v, t, commands), past)

    def observe(self, state: State) -> Observation:
        """The observation of the MuJoCo world."""
        return self.world.observe(state)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a wrench on each body, felt for one step."""
        return self.world.nudge(state, wrench)

    def switch(self, state: State, inputs: Array) -> State:
        """The state whose next step takes these inputs of the actuators [..., inputs]."""
        return switched(state, inputs, self._spec)

    def tuned(self, settings: Settings) -> ActuatedWorld:
        """The same world with some parameters set: those of actuator models here, the others in MuJoCo."""
        own = {name: value for name, value in settings.items() if is_actuator_param(self.world.model, name)}
        rest = {name: value for name, value in settings.items() if name not in own}
        world = self.world.tuned(rest) if rest else self.world
        return ActuatedWorld(world, {**self.settings, **own})

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
            actuated.switch(inputs_of(state, n))
            for _ in range(self.world.substeps):
                actuated.apply(loads, given[:, commands:])
                try:
                    batch.step(nstep=1)
                except mjbatch.SimulationError as failure:
                    error = str(failure)
                loads = actuated.loads()
            batch.bind("xfrc_applied")[:] = 0.0
            actuated.clear()
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
            gains = np.broadcast_to(last[..., self.model.nu :], (*state.batch, len(self._models.names)))
            actuated.switch(None)
            actuated.batch.state[:] = flat
            actuated.apply(np.zeros((len(flat), 2, self.model.nv)), gains.reshape(len(flat), -1))
            actuated.batch.forward()
            actuated.clear()
            loads = actuated.loads()
        return state.with_hidden(LOADS, loads.reshape(*state.batch, 2, -1))

    def _batch(self, n: int) -> _ActuatedBatch:
        if n not in self._batches:
            if len(self._batches) >= 4:
                del self._batches[next(iter(self._batches))]
            batch = tuned_batch(self.world.model, n, self.world.workers(n), self.world.per_world)
            self._batches[n] = _ActuatedBatch(batch, self._models, self._spec.inputs.labels)
        return self._batches[n]


@array_dataclass
class _Models:
    """The parameters of the actuator models as arrays over the degrees of freedom."""

    terms: dict[str, Array]
    """Friction by term [1 or worlds, nv]."""
    motors: dict[int, dict[str, Array]]
    """Motors on a supply: by actuator, then by parameter [1 or worlds]."""
    names: tuple[str, ...]
    dofs: dict[int, int]
    """The degree of freedom each motor drives."""
    q_index: dict[int, int]
    """Index in q of the joint each motor drives."""
    cogging: Cogging | None = None

    @property
    def are_zero(self) -> bool:
        """Whether they have no effect: no motor on a supply, and all friction terms and cogging amplitudes zero."""
        acting = [term for name, term in self.terms.items() if name not in SHAPES]
        if self.cogging is not None:
            acting += [self.cogging.terms[name] for name in HARMONICS]
        return not self.motors and not any(bool(term.any()) for term in acting)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Labels of what the motors take besides their commands."""
        return tuple(name + GAIN for name in self.names)


class _ActuatedBatch:
    """A native batch of worlds whose model fields are set by actuator models before each physics step."""

    def __init__(self, batch: mjbatch.Batch, models: _Models, inputs: tuple[str, ...]):
        self.batch, self._models = batch, models
        self._inputs = ActuatorInputs(batch, inputs)
        self._enable = [inputs.index(name + ENABLE) for name in models.names]
        """Where the inputs of the motors on a supply stand."""
        self._enabled = np.ones((batch.nsim, len(models.names)))
        self._friction = batch.expand("dof_frictionloss")
        self._damping = batch.expand("dof_damping")
        self._coulomb, self._viscous = self._friction.copy(), self._damping.copy()
        self._bias, self._motor = batch.bind("qfrc_bias"), batch.bind("qfrc_actuator")
        self._back_emf = np.zeros((batch.nsim, batch.model.nv))
        """Braking torque of the back-EMF per speed [Nm s/rad]."""

    def switch(self, inputs: Array | None) -> None:
        """Write the inputs of a control step [worlds, inputs]; None means that all are 1."""
        self._inputs.apply(inputs)
        motors = (self.batch.nsim, len(self._enable))
        self._enabled = np.ones(motors) if inputs is None else inputs[:, self._enable]

    def apply(self, loads: Array, gains: Array) -> None:
        """Set motors, friction and cogging for the next physics step."""
        speed = self.batch.bind("qvel")
        for column, a in enumerate(self._models.motors):
            self._set_motor(a, gains[:, column], self._enabled[:, column], speed)
        if self._models.terms:
            motor = loads[:, 1] - self._back_emf * speed
            self._friction[:] = friction_limit(self._coulomb, self._models.terms, speed, loads[:, 0], motor)
        if self._models.cogging is not None:
            self.batch.bind("qfrc_applied")[:] = self._models.cogging.torque(self.batch.bind("qpos"))

    def clear(self) -> None:
        """Remove the applied torques, so that a state holds none of them."""
        if self._models.cogging is not None:
            self.batch.bind("qfrc_applied")[:] = 0.0

    def _set_motor(self, a: int, gain: Array, enabled: Array, speed: Array) -> None:
        """Write the stiffness and limit of a motor for its present duty and voltage.

        duty = clip(gain k error, -1, 1), torque = kt / R (duty volts - kt w), and volts = V - Rs i while the motor
        draws a current i from a supply of resistance Rs. The back-EMF is written as damping, so that it is integrated
        implicitly. A motor that is switched off draws no current, so it neither drives nor brakes.
        """
        p, dof, batch = self._models.motors[a], self._models.dofs[a], self.batch
        error = batch.bind("ctrl")[:, a] - batch.bind("qpos")[:, self._models.q_index[a]]
        duty = np.clip(gain * p["duty"] * error, -1.0, 1.0)
        current = (p["volts"] * np.abs(duty) - p["kt"] * speed[:, dof] * np.sign(duty)) / p["resistance"]
        volts = p["volts"] - p["supply_resistance"] * np.maximum(current, 0.0)
        stall_torque = p["kt"] / p["resistance"] * volts
        stiffness = stall_torque * p["duty"] * gain * enabled
        batch.expand("actuator_gainprm")[:, a, 0] = stiffness
        batch.expand("actuator_biasprm")[:, a, 1] = -stiffness
        batch.expand("actuator_biasprm")[:, a, 2] = 0.0
        batch.expand("actuator_forcerange")[:, a, 0] = -stall_torque
        batch.expand("actuator_forcerange")[:, a, 1] = stall_torque
        self._back_emf[:, dof] = enabled * p["kt"] ** 2 / p["resistance"]
        self._damping[:, dof] = self._viscous[:, dof] + self._back_emf[:, dof]

    def loads(self) -> Array:
        """External and motor torque at each degree of freedom [worlds, 2, nv]."""
        return np.stack([-self._bias, self._motor], axis=1)


def _spec(spec: Spec, gains: Sequence[str]) -> Spec:
    """The spec of a world whose motors on a supply take their gain as an action."""
    if not gains:
        return spec
    left = [label for label in spec.inputs.labels if label not in gains]
    return replace(spec, action=_extended(spec.action, gains), inputs=vector(left, "1"))


def _models(model: mujoco.MjModel, settings: Settings) -> _Models:
    terms: dict[str, Array] = {}
    motors: dict[int, dict[str, Array]] = {}
    for name, value in settings.items():
        if not is_actuator_param(model, name):
            joints = [f"joint.{model.joint(j).name}.{term}" for j in range(model.njnt) for term in TERMS]
            raise UnknownName("actuator parameter", name, joints)
        at = Address.parse(name)
        if at.kind == "joint" and at.field in TERMS:
            terms[at.field] = _with_term(model, terms.get(at.field), at, np.asarray(value, float).reshape(-1))
        elif at.kind == "actuator":
            motors.setdefault(int(model.actuator(at.name).id), {})[at.field] = np.asarray(value, float)
    for p in motors.values():
        for field, term in MOTOR.items():
            p.setdefault(field, np.asarray(term.default))
    names = tuple(model.actuator(a).name for a in motors)
    dofs = {a: int(model.jnt_dofadr[model.actuator_trnid[a, 0]]) for a in motors}
    q_index = {a: int(model.jnt_qposadr[model.actuator_trnid[a, 0]]) for a in motors}
    return _Models(terms, motors, names, dofs, q_index, cogging_of(model, settings))


def _with_term(model: mujoco.MjModel, before: Array | None, at: Address, values: Array) -> Array:
    """A friction term over all degrees of freedom [1 or worlds, nv] with one joint's values written in."""
    term = np.full((1, model.nv), TERMS[at.field].default) if before is None else before
    term = np.repeat(term, len(values), axis=0) if len(term) == 1 < len(values) else term.copy()
    term[:, int(model.joint(at.name).dofadr[0])] = values
    return term
