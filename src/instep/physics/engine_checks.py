"""Checks of engines: sizes of states and wrenches, finite results, and what an engine other than MuJoCo supports.

What an engine lacks is refused before it starts, never left out.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import mujoco
import numpy as np

from instep.core.errors import BadInput, Diverged, Unsupported
from instep.core.param import Address
from instep.core.world import Array, Settings, State
from instep.scene import address

from .link_tree import BALL, FREE

MAX_VALUE = 1e10
"""A speed or position beyond this is a divergence, as in MuJoCo's own check."""
_TRANSMISSIONS = ("mjTRN_JOINT", "mjTRN_JOINTINPARENT", "mjTRN_TENDON")
_SHAPES = (
    "mjGEOM_PLANE",
    "mjGEOM_SPHERE",
    "mjGEOM_CAPSULE",
    "mjGEOM_ELLIPSOID",
    "mjGEOM_CYLINDER",
    "mjGEOM_BOX",
    "mjGEOM_MESH",
)
_PARAMS_OF_MUJOCO = (
    "geom.*.torsion", "geom.*.rolling", "geom.*.solref_*", "geom.*.solimp_*", "option.impratio", "option.density",
    "option.viscosity", "tendon.*", "sensor.*", "joint.*.drag",
)  # fmt: skip
_OVERRIDES = {"mjENBL_OVERRIDE": "contact override", "mjENBL_IPC": "incremental potential contact"}


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
    """Whether one world is certainly finite: its sum of squares says it in a tenth of the time of a look at each."""
    return bool(state.q @ state.q + state.v @ state.v < MAX_VALUE**2)


def finite_worlds(q: Array, v: Array) -> Array:
    """Which worlds have finite positions and velocities [..., n] of a size that an engine can bear [...]."""
    values = np.concatenate([q, v], axis=-1)
    return np.asarray((np.isfinite(values) & (np.abs(values) < MAX_VALUE)).all(axis=-1))


def check_support(model: mujoco.MjModel, engine: str) -> None:
    """Raise `Unsupported`, naming what and where, if a model holds something only MuJoCo can do."""
    _options(model, engine)
    _parts(model, engine)
    _joints(model, engine)
    _actuators(model, engine)
    _tendons(model, engine)
    _geoms(model, engine)


def check_params_support(settings: Settings, engine: str) -> None:
    """Raise `Unsupported` if a parameter is set that only MuJoCo has: it would change nothing."""
    for name in settings:
        for pattern in _PARAMS_OF_MUJOCO:
            if fnmatchcase(name, pattern):
                raise _unsupported(engine, f"has no counterpart of {name!r}, so setting it would change nothing")


def disabled(model: mujoco.MjModel, flag: str) -> bool:
    """Whether the model disables a part of the physics."""
    return bool(int(model.opt.disableflags) & int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")))


def active_equalities(model: mujoco.MjModel) -> list[int]:
    """The equality constraints of a model that hold."""
    off = disabled(model, "EQUALITY") or disabled(model, "CONSTRAINT")
    return [] if off else [e for e in range(model.neq) if model.eq_active0[e]]


def _options(model: mujoco.MjModel, engine: str) -> None:
    if model.opt.density > 0 or model.opt.viscosity > 0 or np.any(model.opt.wind):
        raise _unsupported(engine, "has no air or water (density, viscosity or wind of <option>)")
    for flag, words in _OVERRIDES.items():
        if int(model.opt.enableflags) & int(getattr(mujoco.mjtEnableBit, flag)):
            raise _unsupported(engine, f"has no {words} (flag of <option>)")


def _parts(model: mujoco.MjModel, engine: str) -> None:
    for count, words in (
        (model.nflex, "soft bodies (flex)"),
        (model.nplugin, "plug-ins"),
        (model.npair, "contact pairs"),
    ):
        if count:
            raise _unsupported(engine, f"cannot read {words}, and this model has {count}")
    if model.na:
        raise _unsupported(engine, "keeps no activation of actuators (dyntype other than none)")


def _joints(model: mujoco.MjModel, engine: str) -> None:
    for j in range(model.njnt):
        name, kind, dof = model.joint(j).name, int(model.jnt_type[j]), int(model.jnt_dofadr[j])
        dofs = slice(dof, dof + {FREE: 6, BALL: 3}.get(kind, 1))
        many = kind in (FREE, BALL)
        poly = np.any(model.dof_dampingpoly[dofs]) or np.any(model.jnt_stiffnesspoly[j])
        for wrong, words in (
            (poly, "springs or dampers that are polynomials"),
            (model.jnt_springyield[j] > 0, "springs that yield"),
            (
                model.jnt_actgravcomp[j] and model.jnt_actfrclimited[j],
                "gravity compensation within the limit of the actuators (actuatorgravcomp)",
            ),
            (many and model.jnt_stiffness[j] > 0, "springs in free or ball joints"),
            (many and np.any(model.dof_frictionloss[dofs]), "dry friction in free or ball joints"),
            (kind == FREE and np.any(model.dof_armature[dofs]), "armature of free joints"),
            (kind == BALL and model.jnt_limited[j], "limits of ball joints"),
        ):
            if wrong:
                raise _unsupported(engine, f"has no {words}, as joint {name!r} does")


def _actuators(model: mujoco.MjModel, engine: str) -> None:
    fixed, affine = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE)
    none, line = int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE)
    known = [int(getattr(mujoco.mjtTrn, name)) for name in _TRANSMISSIONS]
    for a in range(model.nu):
        name = model.actuator(a).name
        if model.actuator_trntype[a] not in known:
            raise _unsupported(engine, f"actuation joints and fixed tendons only, not sites or bodies as {name!r} does")
        if model.actuator_gaintype[a] not in (fixed, affine) or model.actuator_biastype[a] not in (none, line):
            raise _unsupported(
                engine, f"has motors and servos only, not the muscle, DC motor, PID or user model of {name!r}"
            )
        if model.actuator_ctrlnum[a] != 1:
            raise _unsupported(engine, f"has one command per actuator, and {name!r} takes {model.actuator_ctrlnum[a]}")
        if np.any(model.actuator_dampingpoly[a]):
            raise _unsupported(engine, f"has no dampers that are polynomials, as actuator {name!r} does")
        joint = model.actuator_trnid[a, 0]
        if model.actuator_trntype[a] != known[2] and model.jnt_type[joint] in (FREE, BALL):
            raise _unsupported(
                engine, f"actuation hinges and slides only, and {name!r} actuation joint {model.joint(joint).name!r}"
            )


def _tendons(model: mujoco.MjModel, engine: str) -> None:
    joint = int(mujoco.mjtWrap.mjWRAP_JOINT)
    for t in range(model.ntendon):
        rows = slice(model.tendon_adr[t], model.tendon_adr[t] + model.tendon_num[t])
        if np.any(model.wrap_type[rows] != joint):
            raise _unsupported(engine, f"has fixed tendons only, and {model.tendon(t).name!r} runs through space")
        fields = ("stiffness", "damping", "frictionloss", "armature", "limited", "actfrclimited", "springyield")
        for field in fields:
            if np.any(getattr(model, f"tendon_{field}")[t]):
                raise _unsupported(engine, f"has tendons that only pull, and {model.tendon(t).name!r} has {field}")


def _geoms(model: mujoco.MjModel, engine: str) -> None:
    known = [int(getattr(mujoco.mjtGeom, name)) for name in _SHAPES]
    touches: Array = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    for g in np.flatnonzero(touches):
        name = model.geom(g).name
        for wrong, words in (
            (model.geom_type[g] not in known, "height fields or distance-field shapes"),
            (np.any(model.geom_surfacevel[g]), "moving surfaces (surfacevel)"),
            (model.geom_adhesion[g] > 0, "adhesion"),
            (model.geom_margin[g] < 0, "shapes that shrink (margin below 0)"),
        ):
            if wrong:
                raise _unsupported(engine, f"has no {words}, as geom {name!r} does")


def _unsupported(engine: str, sentence: str) -> Unsupported:
    return Unsupported(f"The engine {engine!r} {sentence}; run this scene in MuJoCo.")
