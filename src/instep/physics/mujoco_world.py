"""MuJoCo as a Simulator: one world or many, stepped in one native call per control interval."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.errors import BadInput
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Settings, Spec, State, Trajectory, array_dataclass, vector
from instep.scene import address
from instep.scene.folder import BodyDynamics, Scene

from .world_batches import (
    INPUTS,
    ActuatorInputs,
    ThreadChoice,
    check_batch_size,
    check_finite,
    checked_place,
    checked_wrench,
    finite_worlds,
    input_channel,
    inputs_of,
    is_small,
    most_threads,
    settings_per_world,
    switched,
    tuned_batch,
)

KEY = "mujoco"
"""The integration state of each world, mjSTATE_INTEGRATION, is kept under this key."""
SENSORS = "mujoco.sensors"
"""Readings of the model's own sensors at the last physics step are kept under this key."""
NO_CONTACTS = getattr(mujoco.mjtDisableBit, "mjDSBL_CONTACT")  # noqa: B009 - the type stubs lack it
_MAX_SIZES = 4
"""Number of batch sizes whose native batches are kept."""
MAX_RECORDED = 2**20
"""Maximum size of a recording by one native call [numbers]; larger ones overflow the cache."""


@array_dataclass
class PhysicsSteps:
    """A batch at every physics step; after a divergence nothing is finite."""

    q: Array
    """Positions before each step, and after the last [worlds, steps + 1, nq]."""
    v: Array
    """Velocities before each step, and after the last [worlds, steps + 1, nv]."""
    acceleration: Array
    """Accelerations of the steps, before damping is taken implicitly [worlds, steps, nv]."""
    constraint: Array
    """Torques of all constraints: dry friction, limits, contacts, couplings [worlds, steps, nv]."""
    actuator: Array
    """Forces of the actuators, before their gear ratios [worlds, steps, nu]."""


class MujocoWorld:
    """A scene in MuJoCo.

    `step` depends on nothing but its arguments: the whole integration state travels in `State.hidden`, warm start,
    delays and applied forces included, so that save and restore, reruns and any number of threads agree bit by bit.
    """

    def __init__(
        self,
        scene: Scene | str | Path,
        *,
        threads: int = 0,
        settings: Settings | None = None,
        ignore_contacts: bool = False,
        like: MujocoWorld | None = None,
    ):
        """`like`: a world of the same scene, to share what does not depend on settings."""
        self.scene = scene if isinstance(scene, Scene) else Scene.load(scene)
        self.threads = threads
        """Threads that step a batch; 0 chooses the fastest number by measuring."""
        self.settings: Settings = dict(settings or {})
        self.ignore_contacts = ignore_contacts
        """Ignore contacts: several times faster, and equal as long as nothing touches."""
        self._model, self._steps, self._each = _prepared(self.scene, self.settings)
        if ignore_contacts:
            self._model = copy.copy(self._model)
            self._model.opt.disableflags |= int(NO_CONTACTS)
        self._nsim = max((len(value) for value in self._each.values()), default=0)
        self._layout = like._layout if like and like._layout.fits(self._model) else StateLayout(self._model)
        self._spec = _spec(self.scene, self._model)
        self._rest = like._rest if like else self.scene.rest_action()
        self._batches: dict[int, dict[int, tuple[mjbatch.Batch, ActuatorInputs]]] = {}
        self._choices: dict[tuple[int, int], ThreadChoice] = like._choices if like else {}
        self._lock = threading.Lock()
        self._single: SingleWorld | None = None

    @property
    def spec(self) -> Spec:
        """Description of the numbers."""
        return self._spec

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model with single-valued settings written into it; read it, do not change it."""
        return self._model

    @property
    def layout(self) -> StateLayout:
        """Where the parts of the integration state are in its row."""
        return self._layout

    @property
    def per_world(self) -> dict[str, Array]:
        """The settings that differ between the worlds of a batch."""
        return self._each

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self._steps

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        q, v = self.scene.start(seed)
        return self.place(q, v)

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities, servos holding the last of `past` (or the rest action)."""
        q, v = checked_place(self._model, q, v)
        layout, rest = self._layout, self._rest
        rows = np.broadcast_to(layout.zero, (*q.shape[:-1], layout.zero.size)).copy()
        rows[..., layout.time] = t
        rows[..., layout.qpos], rows[..., layout.qvel] = q, v
        commands = rest if past is None else np.asarray(past, float)
        rows[..., layout.ctrl] = commands[..., -1, :] if past is not None else rest
        if layout.history.stop > layout.history.start:
            self._fill_history(rows[..., layout.history], t, commands if past is not None else rest[None])
        return self._state(t, rows, self._sensor_readings(rows))

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self._spec, state.batch)
        rows = np.asarray(state.hidden[KEY], float)
        flat = rows.reshape(-1, rows.shape[-1])
        layout, n = self._layout, len(flat)
        check_batch_size(n, self._nsim)
        with self._lock:
            error = ""
            with self._measured(n, inputs_of(state, n)) as batch:
                batch.state[:] = flat
                batch.state[:, layout.ctrl] = action.reshape(n, -1)
                try:
                    batch.step(nstep=self._steps)
                except mjbatch.SimulationError as failure:
                    error = str(failure)
            after = batch.state.copy()
            sensors = batch.bind("sensordata").copy() if self._model.nsensor else None
        after[:, layout.xfrc] = 0.0  # a nudge is felt for one step
        sensors = sensors.reshape(*state.batch, -1) if sensors is not None else None
        new = self._state(state.t + self._spec.dt, after.reshape(rows.shape), sensors)
        return check_finite(new, self.scene.name, "MuJoCo", error)

    def step_dynamics(self, state: State, action: Array, body: int) -> tuple[State, BodyDynamics]:
        """One world after a control period, equal to `step` bit by bit, and the dynamics of a body."""
        if state.batch or self._each or INPUTS in state.hidden:
            raise BadInput("step_dynamics takes one world without actuator inputs; use step for batches.")
        if self._single is None:
            self._single = SingleWorld(self._model, self._steps)
        row, sensors, dynamics = self._single.step(state.hidden[KEY], action, body)
        hidden = {KEY: row} if sensors is None else {KEY: row, SENSORS: sensors}
        new = State(state.t + self._spec.dt, row[self._layout.qpos], row[self._layout.qvel], hidden)
        return (new if is_small(new) else check_finite(new, self.scene.name, "MuJoCo")), dynamics

    def unroll(self, state: State, actions: Array) -> Trajectory | None:
        """A batch after each action [steps, worlds, nu], equal to `step` bit by bit, in few native calls.

        Returns None for actuator inputs, a pending nudge, or a warning of MuJoCo about a finite world.
        """
        rows, n = np.asarray(state.hidden[KEY], float), len(state.q)
        if INPUTS in state.hidden or len(state.batch) != 1 or rows[:, self._layout.xfrc].any():
            return None
        check_batch_size(n, self._nsim)
        actions = checked_action(actions, self._spec, (len(actions), n))
        width = n * self._steps * (self._model.nq + self._model.nv)
        with self._lock:
            with self._measured(n, steps=len(actions)) as batch:
                sensors = batch.bind("sensordata") if self._model.nsensor else None
                batch.state[:], before = rows, batch.warning.copy()
                parts = np.array_split(actions, min(len(actions), -(-len(actions) * width // MAX_RECORDED)))
                try:
                    found = [self._recorded(batch, part) for part in parts if len(part)]
                except mjbatch.SimulationError:
                    return None
            warned = (batch.warning != before).reshape(n, -1).any(axis=1)
            after = batch.state.copy()
            sensors = sensors.copy() if sensors is not None else None
        q, v = (np.concatenate(part, axis=1) for part in zip(*found, strict=True))
        finite = finite_worlds(q, v)
        survived = np.where(finite.all(axis=1), len(actions), np.argmin(finite, axis=1))
        lost = survived < len(actions)
        if (warned & ~lost).any():
            return None
        after[lost] = rows[lost]
        for i in np.flatnonzero(lost):
            q[i, survived[i] :], v[i, survived[i] :] = state.q[i], state.v[i]
        return Trajectory(q, v, survived, self._state(state.t + len(actions) * self._spec.dt, after, sensors))

    def _recorded(self, batch: mjbatch.Batch, actions: Array) -> tuple[Array, Array]:
        """Positions and velocities after each action [worlds, steps, ...]."""
        held = np.repeat(np.moveaxis(actions, 0, 1), self._steps, axis=1)
        motion = int(mujoco.mjtState.mjSTATE_QPOS) | int(mujoco.mjtState.mjSTATE_QVEL)
        rows = batch.rollout(held.shape[1], held, record=(motion,))[motion][:, self._steps - 1 :: self._steps]
        return rows[..., : self._model.nq], rows[..., self._model.nq :]

    def physics_steps(self, state: State, actions: Array) -> PhysicsSteps:
        """Record every physics step of a batch; `actions` [span, worlds, nu] are held for a control period each."""
        layout, rows, model = self._layout, np.asarray(state.hidden[KEY], float), self._model
        steps, n = len(actions) * self._steps, len(rows)
        q, v = np.full((n, steps + 1, model.nq), np.nan), np.full((n, steps + 1, model.nv), np.nan)
        names, sizes = ("qacc", "qfrc_constraint", "actuator_force"), (model.nv, model.nv, model.nu)
        found = [np.full((n, steps, size), np.nan) for size in sizes]
        with self._lock:
            batch = self._batch(n, inputs_of(state, n))
            bound = [batch.bind(name) for name in names]
            batch.state[:] = rows
            for i in range(steps):
                batch.state[:, layout.ctrl] = actions[i // self._steps]
                q[:, i], v[:, i] = batch.state[:, layout.qpos], batch.state[:, layout.qvel]
                try:
                    batch.step(nstep=1)
                except mjbatch.SimulationError:
                    q[:, i:], v[:, i:] = np.nan, np.nan
                    break
                q[:, i + 1], v[:, i + 1] = batch.state[:, layout.qpos], batch.state[:, layout.qvel]
                for part, values in zip(found, bound, strict=True):
                    part[:, i] = values
        return PhysicsSteps(q, v, *found)

    def observe(self, state: State) -> Observation:
        """The robot's joints, the objects' poses, and the model's own sensors where it has any."""
        observation = dict(self.scene.reader.observe(state.q, state.v))
        if SENSORS in state.hidden:
            observation["observation.sensors"] = state.hidden[SENSORS]
        return observation

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a force [N] and torque [Nm] at the centre of mass of each body, felt for one step."""
        rows = state.hidden[KEY].copy()
        full = np.zeros((*state.batch, self._model.nbody, 6))
        full[..., 1:, :] = checked_wrench(self._model, state, wrench)
        rows[..., self._layout.xfrc] = full.reshape(*state.batch, -1)
        return state.with_hidden(KEY, rows)

    def switch(self, state: State, inputs: Array) -> State:
        """The state whose next step takes these inputs of the actuators [..., inputs]."""
        return switched(state, inputs, self._spec)

    def tuned(self, settings: Settings) -> MujocoWorld:
        """The same world with some parameters set; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        new = {**self.settings, **resolved}
        return MujocoWorld(
            self.scene, threads=self.threads, settings=new, ignore_contacts=self.ignore_contacts, like=self
        )

    def without_contacts(self) -> MujocoWorld:
        """The same world in which bodies pass through each other."""
        return MujocoWorld(self.scene, threads=self.threads, settings=self.settings, ignore_contacts=True, like=self)

    def contacts(self, state: State) -> Array:
        """Number of contacts of each world."""
        rows = state.hidden[KEY].reshape(-1, self._layout.zero.size)
        with self._lock:
            batch = self._batch(len(rows))
            batch.state[:] = rows
            count = batch.bind("ncon")
            batch.forward(stage=int(mujoco.mjtStage.mjSTAGE_POS))
            return count.reshape(state.batch).copy()

    @contextmanager
    def _measured(self, n: int, inputs: Array | None = None, steps: int = 1) -> Generator[mjbatch.Batch]:
        """A native batch for one call; its time decides the number of threads of the next call."""
        threads, choice = self.threads or (1 if n == 1 else 0), None
        if not threads:
            choice = self._choice(n, steps)
            threads = choice.next()
        batch = self._batch(n, inputs, threads)
        begin = time.perf_counter()
        yield batch
        if choice is not None:
            choice.note(threads, time.perf_counter() - begin, n * steps)

    def _batch(self, n: int, inputs: Array | None = None, threads: int = 0) -> mjbatch.Batch:
        """The native batch of n worlds, its actuators at these inputs [n, inputs]."""
        if n not in self._batches:
            # Replay windows and evaluations change the size; keep a few batches, drop the oldest.
            if len(self._batches) >= _MAX_SIZES:
                del self._batches[next(iter(self._batches))]
            self._batches[n] = {}
        same, threads = self._batches[n], threads or self.workers(n)
        if threads not in same:
            batch = tuned_batch(self._model, n, threads, self._each)
            same[threads] = batch, ActuatorInputs(batch, self._spec.inputs.labels)
        batch, actuators = same[threads]
        actuators.apply(inputs)
        return batch

    def workers(self, n: int) -> int:
        """Threads that step n worlds."""
        return self.threads or (1 if n == 1 else self._choice(n, 1).best)

    def _choice(self, n: int, steps: int) -> ThreadChoice:
        """The thread choice for calls of about this size; worlds of one scene share it."""
        key = n.bit_length(), steps.bit_length()
        if key not in self._choices:
            self._choices[key] = ThreadChoice(most_threads(n, self._steps * steps))
        return self._choices[key]

    def _state(self, t: float, rows: Array, sensors: Array | None) -> State:
        layout = self._layout
        hidden = {KEY: rows} if sensors is None else {KEY: rows, SENSORS: sensors}
        return State(t, rows[..., layout.qpos].copy(), rows[..., layout.qvel].copy(), hidden)

    def _sensor_readings(self, rows: Array) -> Array | None:
        if not self._model.nsensor:
            return None
        flat = rows.reshape(-1, rows.shape[-1])
        with self._lock:
            # A batch of another size than the settings uses the model's own values.
            batch = self._batch(len(flat)) if self._nsim in (0, len(flat)) else mjbatch.Batch(self._model, len(flat), 1)
            batch.state[:] = flat
            sensors = batch.bind("sensordata")
            batch.forward()
            return sensors.reshape(*rows.shape[:-1], -1).copy()

    def _fill_history(self, history: Array, t: float, commands: Array) -> None:
        """Fill the actuators' buffers with the commands before t, repeating the oldest."""
        model, steps = self._model, self._steps
        for a in range(model.nu):
            samples = int(model.actuator_history[a, 0])
            if samples == 0:
                continue
            begin = int(model.actuator_historyadr[a])
            ages = np.arange(samples, 0, -1)  # in physics steps before t
            index = np.maximum(commands.shape[-2] - 1 - (ages - 1) // steps, 0)
            history[..., begin] = 0.0
            history[..., begin + 1] = samples - 1
            history[..., begin + 2 : begin + 2 + samples] = t - ages * model.opt.timestep
            history[..., begin + 2 + samples : begin + 2 + 2 * samples] = commands[..., index, a]


class StateLayout:
    """Indices of the parts of the integration state in its row."""

    def __init__(self, model: mujoco.MjModel):
        one = mjbatch.Batch(model, 1, 1)
        self._moved = model.nmocap > 0
        self.zero = one.state[0].copy()
        """The row of a world after reset."""
        state = mujoco.mjtState
        self.time, self.qpos = self._part(one, state.mjSTATE_TIME).start, self._part(one, state.mjSTATE_QPOS)
        self.qvel, self.ctrl = self._part(one, state.mjSTATE_QVEL), self._part(one, state.mjSTATE_CTRL)
        self.xfrc, self.history = self._part(one, state.mjSTATE_XFRC_APPLIED), self._part(one, state.mjSTATE_HISTORY)

    def fits(self, model: mujoco.MjModel) -> bool:
        """Whether rows of this model have the same layout (the same delays, no mocap body)."""
        size = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_INTEGRATION))
        return not self._moved and size == self.zero.size

    @staticmethod
    def _part(batch: mjbatch.Batch, component: mujoco.mjtState) -> slice:
        start, size = batch._component(component)  # the offsets have no public name
        return slice(start, start + size)


def _prepared(scene: Scene, settings: Settings) -> tuple[mujoco.MjModel, int, dict[str, Array]]:
    """The model with single values written in, its steps per control period, and the values that differ per world."""
    resolved = address.ordered(scene.model, settings)
    model = scene.delayed_model() if address.needs_memory(resolved) else scene.model
    single = {name: value for name, value in resolved.items() if np.ndim(value) == 0}
    each = settings_per_world(resolved)
    timestep = float(single.pop(address.TIMESTEP, model.opt.timestep))
    steps = max(1, round(scene.dt / timestep))
    if abs(scene.dt / steps - model.opt.timestep) > 1e-12:
        single[address.TIMESTEP] = scene.dt / steps
    return (address.write(model, single) if single else model), steps, each


def _spec(scene: Scene, model: mujoco.MjModel) -> Spec:
    spec = replace(scene.spec, inputs=input_channel(model))
    if not model.nsensor:
        return spec
    labels: list[str] = []
    for s in range(model.nsensor):
        name, size = model.sensor(s).name or f"sensor{s}", int(model.sensor_dim[s])
        labels += [name] if size == 1 else [f"{name}.{i}" for i in range(size)]
    return spec.with_observations({"observation.sensors": vector(labels)})


_NATIVE: Any = mujoco  # its type stubs lack the halves of a step
_WHOLE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_RUNGE_KUTTA = int(mujoco.mjtIntegrator.mjINT_RK4)


class SingleWorld:
    """A model with one set of data, and the integration state that its positions and velocities belong to."""

    def __init__(self, model: mujoco.MjModel, steps: int):
        self._model, self._steps, self._data = model, steps, mujoco.MjData(model)
        # Runge-Kutta steps cannot be split before the command.
        self._splits = int(model.opt.integrator) != _RUNGE_KUTTA
        self._size = mujoco.mj_stateSize(model, _WHOLE)
        self._row: Array | None = None
        data = self._data
        # Keep the views: making one costs as much as a stage of the step.
        self._ctrl, self._nudge, self._sensors = data.ctrl, data.xfrc_applied, data.sensordata
        self._places, self._turns = data.xpos, data.xmat
        self._lock = threading.Lock()

    def step(self, row: Array, action: Array, body: int) -> tuple[Array, Array | None, BodyDynamics]:
        """The integration state after a control period, sensor readings of its last physics step, and the dynamics."""
        model, data = self._model, self._data
        after, full, jacobian = np.empty(self._size), np.empty((model.nv, model.nv)), np.empty((6, model.nv))
        with self._lock:
            nudged = row is not self._row
            if nudged:
                _NATIVE.mj_setState(model, data, row, _WHOLE)
                _NATIVE.mj_step1(model, data)
            # After a failed step the data belong to no state.
            self._row = None
            self._ctrl[:] = action
            for left in range(self._steps - 1, -1, -1):
                if self._splits:
                    _NATIVE.mj_step2(model, data)
                else:
                    mujoco.mj_step(model, data)
                if left and self._splits:
                    _NATIVE.mj_step1(model, data)
            if nudged:
                self._nudge[:] = 0.0  # for one step
            _NATIVE.mj_getState(model, data, after, _WHOLE)
            sensors = self._sensors.copy() if model.nsensor else None
            _NATIVE.mj_step1(model, data)
            self._row = after
            mujoco.mj_fullM(model, data, full)
            mujoco.mj_jac(model, data, jacobian[:3], jacobian[3:], self._places[body], body)
            turn = self._turns[body].copy()
        return after, sensors, BodyDynamics(full, jacobian, turn)
