"""One MuJoCo world that is stepped and described in one go: its next state, and its mass matrix and Jacobian there.

MuJoCo computes mass matrix and poses of a state at the beginning of the step that leads away from it. Here they are
computed at the end of the step that leads to it, handed out, and taken over by the next step where it goes on from
there. What comes out depends on the arguments alone, bit by bit; only the time that it takes depends on the last call.
"""

from __future__ import annotations

import threading
from typing import Any

import mujoco
import numpy as np

from instep.core.world import Array
from instep.scene.folder import BodyDynamics

_NATIVE: Any = mujoco  # its type stubs lack the halves of a step
_WHOLE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_RUNGE_KUTTA = int(mujoco.mjtIntegrator.mjINT_RK4)


class SingleWorld:
    """A model with one set of data, and the integration state that its positions and velocities belong to."""

    def __init__(self, model: mujoco.MjModel, steps: int):
        self._model, self._steps, self._data = model, steps, mujoco.MjData(model)
        # Only Runge-Kutta steps cannot be split into what precedes the command and what follows it.
        self._splits = int(model.opt.integrator) != _RUNGE_KUTTA
        self._size = mujoco.mj_stateSize(model, _WHOLE)
        self._row: Array | None = None
        data = self._data
        # Views are kept: making one takes as long as a stage of the step.
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
            # A step that fails leaves the data of no state.
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
