"""Batches of worlds: threads, sizes, finite results, and inputs of actuators beside their commands.

All threads wait for each other after every native call, so a single thread can be faster than two on cores that other
programs use. The number of threads is therefore chosen by measuring; results do not depend on it.

A recording whose motors were switched off, or whose gains changed, holds them in its column `inputs`, labelled
`elbow.enable` and `elbow.gain`. A MuJoCo world takes these numbers through `switch`, for one control step. `enable`
scales the whole force of an actuator; `gain` scales the stiffness of a position servo alone.
"""

from __future__ import annotations

import threading

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.errors import BadInput, Diverged
from instep.core.param import Address
from instep.core.processes import usable_cores
from instep.core.world import Array, Channel, Settings, Spec, State, vector
from instep.scene import address

STEPS_PER_THREAD = 32
"""Physics steps of one call, over all worlds, that pay for one more thread."""
_MEMORY = 0.7
"""Weight of the past in the moving average of a call's time."""
_TRIAL_SHARE = 0.02
"""Maximum share of time for repeating slower thread counts."""


class ThreadChoice:
    """The number of threads for one kind of call: the fastest so far, with occasional trials of its neighbours."""

    def __init__(self, most: int):
        self._lock = threading.Lock()
        self._times: dict[int, float | None] = dict.fromkeys(most >> k for k in range(most.bit_length()))
        self._total = self._tried = 0.0
        self._turn = 0

    @property
    def best(self) -> int:
        """The fastest number of threads so far (the largest before any trial)."""
        known = {count: taken for count, taken in self._times.items() if taken is not None}
        return min(known, key=known.__getitem__) if known else max(self._times)

    def next(self) -> int:
        """The number of threads for the next call."""
        with self._lock:
            if all(taken is None for taken in self._times.values()):
                return max(self._times)
            # Try neighbours only: far from the best, a trial can cost ten times its time.
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
        """Record the time of a call; `work` is its relative size."""
        with self._lock:
            before, now = self._times.get(threads), seconds / work
            self._times[threads] = now if before is None else _MEMORY * before + (1 - _MEMORY) * now
            self._tried += seconds if threads != self.best else 0.0
            self._total += seconds


def most_threads(worlds: int, steps: int) -> int:
    """Maximum number of threads that pays for a call of this size."""
    return max(1, min(usable_cores(), worlds, worlds * steps // STEPS_PER_THREAD))


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
    affine = (model.actuator_gaintype == _FIXED) & (model.actuator_biastype == _AFFINE)
    servos = [names[a] for a in np.flatnonzero(affine & (model.actuator_biasprm[:, 1] != 0))]
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
        linear_gain = np.isin(model.actuator_gaintype, (_FIXED, _AFFINE_GAIN))
        self._linear = linear_gain & np.isin(model.actuator_biastype, (_NO_BIAS, _AFFINE))
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
            if self._linear[a]:
                gain[:, a] *= share
                bias[:, a] *= share
            else:  # parameters of a muscle or a motor cannot be zero, so the transmission is disconnected
                gear[:, a] *= share


MAX_VALUE = 1e10
"""Divergence limit of positions and velocities, as in MuJoCo's own check."""


def checked_place(model: mujoco.MjModel, q: Array, v: Array) -> tuple[Array, Array]:
    """Positions and velocities of the right size, as new arrays that share their leading axes."""
    q, v = np.asarray(q, float), np.asarray(v, float)
    if q.shape[-1:] != (model.nq,) or v.shape[-1:] != (model.nv,):
        raise BadInput(
            f"A state of this scene has {model.nq} positions and {model.nv} velocities, not {q.shape} and {v.shape}."
        )
    try:
        batch = np.broadcast_shapes(q.shape[:-1], v.shape[:-1])
    except ValueError:
        raise BadInput(f"Positions {q.shape} and velocities {v.shape} of a batch need the same leading axes.") from None
    return np.broadcast_to(q, (*batch, model.nq)).copy(), np.broadcast_to(v, (*batch, model.nv)).copy()


def checked_wrench(model: mujoco.MjModel, state: State, wrench: Array) -> Array:
    """A finite wrench (force [N], torque [Nm]) per body [..., nbody - 1, 6], as a new array."""
    wrench = np.array(wrench, float)
    expected = (*state.batch, model.nbody - 1, 6)
    if wrench.shape != expected or not np.isfinite(wrench).all():
        raise BadInput(
            f"A nudge takes finite wrenches of shape {expected} (force, torque per body), not {wrench.shape}."
        )
    return wrench


def settings_per_world(settings: Settings) -> dict[str, Array]:
    """The settings with one value per world, checked for equal lengths and valid delays."""
    each = {name: np.asarray(value, float) for name, value in settings.items() if np.ndim(value) > 0}
    sizes = {name: len(value) for name, value in each.items()}
    if len(set(sizes.values())) > 1:
        raise BadInput(f"Parameters with one value per world need equal numbers of values (got {sizes}).")
    if address.TIMESTEP in each:
        raise BadInput("The timestep is the same in every world of a batch; tune it with a single number.")
    for name, value in settings.items():
        if Address.parse(name).field == "delay" and not (np.min(value) >= 0 and np.max(value) <= address.LONGEST_DELAY):
            raise BadInput(f"{name!r} must lie between 0 and {address.LONGEST_DELAY} s, not {value}.")
    return each


def check_batch_size(n: int, settings: int) -> None:
    """Raise `BadInput` if a batch of n does not match its settings per parameter (0: no such settings)."""
    if settings not in (0, n):
        raise BadInput(f"This world has {settings} settings per parameter, so it steps {settings} worlds (got {n}).")


def check_finite(state: State, scene: str, engine: str, error: str = "") -> State:
    """The state, or `Diverged` with the worlds that are not finite (all of them where only `error` says so)."""
    if not error and not state.batch and is_small(state):
        return state
    if not error and all(np.abs(part).max(initial=0.0) < MAX_VALUE for part in (state.q, state.v)):
        return state  # a number that is not finite is not smaller
    finite = finite_worlds(state.q, state.v)
    lost = np.flatnonzero(~finite.reshape(-1)) if not finite.all() else np.arange(finite.size)
    q, v = state.q.copy(), state.v.copy()
    q[~finite], v[~finite] = np.nan, np.nan
    which = f"world {', '.join(str(i) for i in lost[:5])} of {finite.size}" if state.batch else "the simulation"
    raise Diverged(
        f"In scene {scene!r} {which} diverged in {engine} at t = {state.t:.4g} s{f' ({error})' if error else ''}; "
        f"a smaller timestep, softer gains or valid masses may help.",
        tuple(int(i) for i in lost),
        State(state.t, q, v, state.hidden),
    )


def is_small(state: State) -> bool:
    """Whether one world is finite, by its sum of squares: ten times faster than checking each number."""
    return bool(state.q @ state.q + state.v @ state.v < MAX_VALUE**2)


def finite_worlds(q: Array, v: Array) -> Array:
    """Whether each world has finite positions and velocities below `MAX_VALUE` [...]."""
    values = np.concatenate([q, v], axis=-1)
    return np.asarray((np.isfinite(values) & (np.abs(values) < MAX_VALUE)).all(axis=-1))


def tuned_batch(model: mujoco.MjModel, n: int, threads: int, each: dict[str, Array]) -> mjbatch.Batch:
    """A native batch of n worlds with its settings per world."""
    batch = mjbatch.Batch(model, n, threads or 0)
    for name, values in each.items():
        for target in address.targets(model, name):
            batch.expand(target.field)[(slice(None), *target.index)] = target.factor * values
    if each:
        batch.set_const()
    return batch
