"""How many threads step a batch, chosen by measuring.

All threads wait for each other after every native call. On cores that other programs use too, one of them is late most
of the time, and a single thread may be faster than two. Results do not depend on the number of threads.

Inputs of actuators beside their commands: motors that are switched off, and servos at another gain.

A recording whose motors were switched off, or whose gains changed, holds them in its column `inputs`, labelled
`elbow.enable` and `elbow.gain`. A MuJoCo world takes these numbers through `switch`, for one control step. `enable`
scales the whole force of an actuator, so that 0 disconnects it; `gain` scales the stiffness of a position servo alone.
"""

from __future__ import annotations

import threading

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.errors import BadInput
from instep.core.processes import usable_cores
from instep.core.world import Array, Channel, Spec, State, vector

STEPS_PER_THREAD = 32
"""Physics steps of one native call, over all its worlds, that pay for waking one more thread."""
_MEMORY = 0.7
"""Weight of what was known before in the mean time of a number of threads."""
_TRIAL_SHARE = 0.02
"""Largest share of the time that goes into trying again what was slower."""


class ThreadChoice:
    """Numbers of threads for one kind of call: the fastest so far, and now and then another one again."""

    def __init__(self, most: int):
        self._lock = threading.Lock()
        self._times: dict[int, float | None] = dict.fromkeys(_numbers(most))
        self._total = self._tried = 0.0
        self._turn = 0

    @property
    def best(self) -> int:
        """The number of threads with the least mean time; the largest where none was tried."""
        known = {count: taken for count, taken in self._times.items() if taken is not None}
        return min(known, key=known.__getitem__) if known else max(self._times)

    def next(self) -> int:
        """The number of threads for the next call."""
        with self._lock:
            if all(taken is None for taken in self._times.values()):
                return max(self._times)
            # The next larger and the next smaller number: far from the best a trial may cost ten times its time.
            counts = list(self._times)
            at = counts.index(self.best)
            others = counts[max(0, at - 1) : at] + counts[at + 1 : at + 2]
            untried = [count for count in others if self._times[count] is None]
            if untried:
                return untried[0]
            if not others or self._tried > _TRIAL_SHARE * self._total:
                return self.best
            self._turn += 1
            return others[self._turn % len(others)]

    def note(self, threads: int, seconds: float, work: float = 1.0) -> None:
        """A call took so long; `work` is its size, where calls differ."""
        with self._lock:
            before, now = self._times.get(threads), seconds / work
            self._times[threads] = now if before is None else _MEMORY * before + (1 - _MEMORY) * now
            self._tried += seconds if threads != self.best else 0.0
            self._total += seconds


def most_threads(worlds: int, steps: int) -> int:
    """Most threads that can pay for a call of so many worlds, each by so many physics steps."""
    return max(1, min(usable_cores(), worlds, worlds * steps // STEPS_PER_THREAD))


def _numbers(most: int) -> list[int]:
    """Most, half of it, and so on down to one."""
    found = [most]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


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
