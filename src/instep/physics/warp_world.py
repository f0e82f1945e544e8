"""MuJoCo Warp as a Simulator: thousands of worlds on a GPU, with MuJoCo's own mathematics in single precision.

States are those of `MujocoWorld`, rounded, so that either engine goes on from what the other gave. A batch is stepped
on the device that Warp prefers: a GPU where one is found, else one core of the CPU, which serves tests only. It needs
the extra `warp`.

On a GPU sums are formed in an order that changes from run to run, so a rerun agrees to rounding: 1e-7 after 0.1 s of
an arm's motion, and up to 2 mm where a contact comes a step later. `deterministic` orders most of them, for 6 to 20
times the time: the laws then hold, but the worlds of a batch of 16 still differ by rounding.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, Unsupported
from instep.core.imports import optional_library
from instep.core.rollout import checked_action
from instep.core.world import Array, Settings, Spec, State, Trajectory, array_dataclass
from instep.scene import address
from instep.scene.folder import AroundSimulator, Scene

from .mujoco_world import KEY, SENSORS, MujocoWorld
from .world_batches import INPUTS, check_batch_size, check_finite, finite_worlds

_log = logging.getLogger(__name__)
ROWS = int(mujoco.mjtState.mjSTATE_INTEGRATION)
"""The parts of a state, as `MujocoWorld` keeps it."""
MAX_ROOM = 64
"""Maximum size of the contact buffers, as a factor of Warp's own estimate."""
MAX_SIZES = 4
"""Number of batch sizes kept on the device."""
OPTION = "opt."
"""Prefix of fields that are options of the model."""


class WarpWorld(AroundSimulator[MujocoWorld]):
    """A scene in MuJoCo Warp. `step` depends on nothing but its arguments and, on a GPU, on the order of sums."""

    def __init__(self, scene: Scene | str | Path, *, deterministic: bool = False, inner: MujocoWorld | None = None):
        self.world = inner or MujocoWorld(scene)
        self._deterministic = deterministic
        self._spec = replace(self.world.spec, inputs=self.scene.spec.inputs)
        self._nsim = max((len(values) for values in self.world.per_world.values()), default=0)
        self._room = 1
        self._batches: dict[int, _DeviceBatch] = {}
        self._lock = threading.Lock()
        if inner is None and not _libraries()[0].get_device().is_cuda:
            _log.warning("No GPU found: the engine 'warp' runs on one core; 'mujoco' is faster here.")
        self._batch(self._nsim or 1)  # raises here if the engine lacks a feature

    @property
    def spec(self) -> Spec:
        """Description of the numbers; motors cannot be switched while they run."""
        return self._spec

    @property
    def settings(self) -> Settings:
        """The parameters that were set."""
        return self.world.settings

    def tuned(self, settings: Settings) -> WarpWorld:
        """The same world with some parameters set; arrays hold one value per world of a batch."""
        return WarpWorld(self.scene, deterministic=self._deterministic, inner=self.world.tuned(settings))

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self._spec, state.batch)
        stepped = self._advanced(state, action.reshape(1, math.prod(state.batch), action.shape[-1]))
        return check_finite(self._state(state, stepped, 1), self.scene.name, "MuJoCo Warp", "")

    def unroll(self, state: State, actions: Array) -> Trajectory | None:
        """A batch after each action [steps, worlds, nu], without leaving the device; None with a pending nudge."""
        if len(state.batch) != 1 or np.asarray(state.hidden[KEY])[:, self.world.layout.xfrc].any():
            return None
        actions = checked_action(actions, self._spec, (len(actions), len(state.q)))
        found = self._advanced(state, actions)
        q, v = np.moveaxis(found.q, 0, 1).astype(float), np.moveaxis(found.v, 0, 1).astype(float)
        finite = finite_worlds(q, v)
        survived = np.where(finite.all(axis=1), len(actions), np.argmin(finite, axis=1))
        lost = survived < len(actions)
        found.rows[lost] = np.asarray(state.hidden[KEY], float)[lost]
        for i in np.flatnonzero(lost):
            q[i, survived[i] :], v[i, survived[i] :] = state.q[i], state.v[i]
        return Trajectory(q, v, survived, self._state(state, found, len(actions)))

    def _advanced(self, state: State, actions: Array) -> _Advanced:
        """The flattened batch after the actions [steps, worlds, nu]; overflows are repeated with larger buffers."""
        if INPUTS in state.hidden:
            raise BadInput("The engine 'warp' cannot switch motors or change gains while it runs; use MuJoCo for that.")
        rows = np.asarray(state.hidden[KEY], float)
        rows = rows.reshape(-1, rows.shape[-1])
        check_batch_size(len(rows), self._nsim)
        with self._lock:
            while True:
                found = self._batch(len(rows)).advanced(rows, actions)
                if found.fits:
                    break
                if self._room >= MAX_ROOM:
                    raise BadInput(
                        f"Scene {self.scene.name!r} has more contacts than the buffers of 'warp' hold; use MuJoCo."
                    )
                self._room *= 2
                self._batches.clear()
        found.rows[:, self.world.layout.xfrc] = 0.0  # a nudge is felt for one step
        return found

    def _state(self, before: State, found: _Advanced, steps: int) -> State:
        rows, layout = found.rows.reshape(*before.batch, -1), self.world.layout
        hidden = (
            {KEY: rows} if found.sensors is None else {KEY: rows, SENSORS: found.sensors.reshape(*before.batch, -1)}
        )
        q, v = rows[..., layout.qpos].copy(), rows[..., layout.qvel].copy()
        return State(before.t + steps * self._spec.dt, q, v, hidden)

    def _batch(self, n: int) -> _DeviceBatch:
        if n not in self._batches:
            if len(self._batches) >= MAX_SIZES:
                del self._batches[next(iter(self._batches))]
            self._batches[n] = _DeviceBatch(self.world, n, self._room, self._deterministic)
        return self._batches[n]


@array_dataclass
class _Advanced:
    """A batch after some control steps."""

    rows: Array
    """Integration states after the last [worlds, numbers]."""
    q: Array
    """Positions after each [steps, worlds, nq]."""
    v: Array
    """Velocities after each [steps, worlds, nv]."""
    sensors: Array | None
    """Readings of the model's sensors after the last [worlds, readings]."""
    fits: bool
    """Whether contacts and constraints fit the buffers."""


class _DeviceBatch:
    """n worlds on a device; each operation is recorded once and then launched as a graph."""

    def __init__(self, world: MujocoWorld, n: int, room: int, deterministic: bool):
        self._warp, self._mjw = _libraries()
        model, mjw = copy.copy(world.model), self._mjw
        # Warp has no automatic reset, and does not know the flag against it.
        model.opt.disableflags &= ~int(getattr(mujoco.mjtDisableBit, "mjDSBL_AUTORESET"))  # noqa: B009 - not in the stubs
        self._n, self._substeps, self._sensors = n, world.substeps, bool(model.nsensor)
        fields = {target.field for name in world.per_world for target in address.targets(model, name)}
        try:
            self._model = mjw.put_model(model, {name: n for name in fields if not name.startswith(OPTION)})
            one = mjw.make_data(model, 1)  # with Warp's own estimate of contacts and constraint rows
            contacts, rows = (room * max(int(count), 1) for count in (one.naconmax, one.njmax))
            self._data = mjw.make_data(model, n, nconmax=contacts, njmax=rows)
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(f"The engine 'warp' cannot run this scene ({error}); run it in MuJoCo.") from None
        kinds = mjw.OverflowType
        self._no_room = int(kinds.NEFC | kinds.NJMAX_NNZ | kinds.BROADPHASE | kinds.NARROWPHASE | kinds.CCD)
        self._model.opt.warn_overflow = 0  # overflows are repeated with larger buffers
        orders = mjw.DeterminismType
        self._model.opt.deterministic = int(orders.ALL if deterministic else orders.CONTACTS | orders.CONSTRAINT)
        self._write(world.per_world, model)
        size = mujoco.mj_stateSize(model, ROWS)
        self._rows = self._warp.zeros((n, size), dtype=float)
        self._load = self._recorded(lambda: mjw.set_state(self._model, self._data, self._rows, ROWS))
        self._advance = self._recorded(self._step)
        self._store = self._recorded(lambda: mjw.get_state(self._model, self._data, self._rows, ROWS))

    def advanced(self, rows: Array, actions: Array) -> _Advanced:
        """The batch after the actions [steps, worlds, nu], each held for a control period."""
        warp, data = self._warp, self._data
        self._rows.assign(rows.astype(np.float32))
        data.overflow.zero_()
        self._load()
        commands = warp.array(np.ascontiguousarray(actions, np.float32), dtype=float)
        q = warp.empty((len(actions), *data.qpos.shape), dtype=float)
        v = warp.empty((len(actions), *data.qvel.shape), dtype=float)
        for k in range(len(actions)):
            if commands.size:
                warp.copy(data.ctrl, commands[k])
            self._advance()
            warp.copy(q[k], data.qpos)
            warp.copy(v[k], data.qvel)
        self._store()
        fits = not (data.overflow.numpy() & self._no_room).any()
        sensors = data.sensordata.numpy().astype(float) if self._sensors else None
        return _Advanced(self._rows.numpy().astype(float), q.numpy(), v.numpy(), sensors, fits)

    def _step(self) -> None:
        for _ in range(self._substeps):
            self._mjw.step(self._model, self._data)

    def _recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as one launch: a graph on a GPU, the work itself on a CPU."""
        device = self._warp.get_device()
        if not device.is_cuda:
            return work
        work()  # compile the kernels before recording
        with self._warp.ScopedCapture(device=device) as capture:
            work()
        return lambda: self._warp.capture_launch(capture.graph)

    def _write(self, settings: Mapping[str, Array], model: mujoco.MjModel) -> None:
        """Write the settings per world and the constants derived from them."""
        for name, values in settings.items():
            for target in address.targets(model, name):
                owner, field = self._model, target.field
                if field.startswith(OPTION):
                    owner, field = self._model.opt, field.removeprefix(OPTION)
                held = getattr(owner, field, None)
                if held is None:
                    raise Unsupported(f"The engine 'warp' cannot vary {name!r} between worlds; run this in MuJoCo.")
                array = np.repeat(held.numpy(), self._n, axis=0) if len(held) < self._n else held.numpy()
                array[(slice(None), *target.index)] = target.factor * values
                setattr(owner, field, self._warp.array(array, dtype=held.dtype))
        if settings:
            self._mjw.set_const(self._model, self._data)


def _libraries() -> tuple[Any, Any]:
    """Warp and MuJoCo Warp, which have no types; `MissingExtra` if they are not there."""
    warp = optional_library("warp", "warp", "mujoco-warp")
    warp.config.log_level = warp.LOG_ERROR  # else it logs every kernel that it compiles
    return warp, optional_library("mujoco_warp", "warp", "mujoco-warp")
