"""Inputs of actuators beside their commands: motors that are switched off, and servos at another gain.

A recording whose motors were switched off, or whose gains changed, holds them in its column `inputs`, labelled
`elbow.enable` and `elbow.gain`. A MuJoCo world takes these numbers through `switch`, for one control step. `enable`
scales the whole force of an actuator, so that 0 disconnects it; `gain` scales the stiffness of a position servo alone.
"""

from __future__ import annotations

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.errors import BadInput
from instep.core.world import Array, Channel, Spec, State, vector

ENABLE = ".enable"
"""Suffix of the input that switches an actuator off (0) and on (1)."""
GAIN = ".gain"
"""Suffix of the gain of a servo: a factor on its stiffness, or of a motor on a supply the value of its firmware."""
INPUTS = "actuator inputs"
"""The inputs of the next step [..., inputs] are kept under this key."""

_FIXED, _AFFINE_GAIN = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE)
_NO_BIAS, _AFFINE = int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE)


def input_channel(model: mujoco.MjModel) -> Channel:
    """The inputs a model's actuators take: `enable` of each, and `gain` of each position servo."""
    names = [model.actuator(a).name for a in range(model.nu)]
    servos = [name for a, name in enumerate(names) if _is_servo(model, a)]
    return vector([*(name + ENABLE for name in names), *(name + GAIN for name in servos)], "1")


def switched(state: State, inputs: Array, spec: Spec) -> State:
    """The state whose next step takes these inputs [..., inputs]."""
    inputs, expected = np.asarray(inputs, float), (*state.batch, *spec.inputs.shape)
    if inputs.shape != expected or not np.isfinite(inputs).all():
        raise BadInput(
            f"Inputs of shape {inputs.shape} were given, but this world takes finite numbers of shape {expected}: "
            f"{', '.join(spec.inputs.labels)}."
        )
    return state.with_hidden(INPUTS, inputs)


def inputs_of(state: State, n: int) -> Array | None:
    """The inputs of the next step [n, inputs]; None where none were given."""
    return np.asarray(state.hidden[INPUTS], float).reshape(n, -1) if INPUTS in state.hidden else None


class ActuatorInputs:
    """The actuators of a native batch, with the inputs of the present control step written into them."""

    def __init__(self, batch: mjbatch.Batch, labels: tuple[str, ...]):
        self._batch, model = batch, batch.model
        names = [model.actuator(a).name for a in range(model.nu)]
        self._enable = [(labels.index(n + ENABLE), a) for a, n in enumerate(names) if n + ENABLE in labels]
        self._gain = [(labels.index(n + GAIN), a) for a, n in enumerate(names) if n + GAIN in labels]
        self._base: dict[str, Array] = {}
        self._changed = False

    def apply(self, values: Array | None) -> None:
        """Write inputs [worlds, inputs]; None means that all are 1."""
        plain = values is None or bool((values == 1).all())
        if plain and not self._changed:
            return
        fields = ("actuator_gainprm", "actuator_biasprm", "actuator_gear")
        self._base = self._base or {field: self._batch.expand(field).copy() for field in fields}
        gain, bias, gear = (self._batch.expand(field) for field in fields)
        gain[:], bias[:], gear[:] = self._base.values()
        self._changed = not plain
        if values is None or plain:
            return
        for column, a in self._gain:
            gain[:, a, 0] *= values[:, column]
            bias[:, a, 1] *= values[:, column]
        for column, a in self._enable:
            share = values[:, column, None]
            if _is_affine(self._batch.model, a):
                gain[:, a] *= share
                bias[:, a] *= share
            else:  # parameters of a muscle or a motor cannot be zero, so the transmission is disconnected
                gear[:, a] *= share


def _is_affine(model: mujoco.MjModel, a: int) -> bool:
    """Whether the force of an actuator is linear in its gain and bias parameters."""
    return model.actuator_gaintype[a] in (_FIXED, _AFFINE_GAIN) and model.actuator_biastype[a] in (_NO_BIAS, _AFFINE)


def _is_servo(model: mujoco.MjModel, a: int) -> bool:
    """Whether an actuator is a position servo."""
    affine = model.actuator_gaintype[a] == _FIXED and model.actuator_biastype[a] == _AFFINE
    return bool(affine and model.actuator_biasprm[a, 1] != 0)
