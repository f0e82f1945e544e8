"""Checks that all engines share: sizes of states and wrenches, settings of a batch, finite results."""

from __future__ import annotations

import mujoco
import numpy as np

from instep.core.errors import BadInput, Diverged
from instep.core.param import Address
from instep.core.world import Array, Settings, State
from instep.scene import address

MAX_VALUE = 1e10
"""A speed or position beyond this is a divergence, as in MuJoCo's own check."""


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
    """The settings that differ between the worlds of a batch, all of one length; delays are checked on the way."""
    each = {name: np.asarray(value, float) for name, value in settings.items() if np.ndim(value) > 0}
    sizes = {name: len(value) for name, value in each.items()}
    if len(set(sizes.values())) > 1:
        raise BadInput(f"Every parameter that differs between worlds needs as many values, but these differ: {sizes}.")
    if address.TIMESTEP in each:
        raise BadInput("The timestep is the same in every world of a batch; tune it with a single number.")
    for name, value in settings.items():
        if Address.parse(name).field == "delay" and not (np.min(value) >= 0 and np.max(value) <= address.LONGEST_DELAY):
            raise BadInput(f"{name!r} must lie between 0 and {address.LONGEST_DELAY} s, not {value}.")
    return each


def check_batch_size(n: int, settings: int) -> None:
    """Raise `BadInput` where n worlds are stepped with settings for another number of them (0: any number)."""
    if settings not in (0, n):
        raise BadInput(f"This world holds {settings} settings per parameter, so it steps {settings} worlds, not {n}.")


def check_finite(state: State, scene: str, engine: str, error: str = "") -> State:
    """The state, or `Diverged` with the worlds that are not finite (all of them where only `error` says so)."""
    values = np.concatenate([state.q, state.v], axis=-1)
    finite = (np.isfinite(values) & (np.abs(values) < MAX_VALUE)).all(axis=-1)
    if not error and bool(finite.all()):
        return state
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
