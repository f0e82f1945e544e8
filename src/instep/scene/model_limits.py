"""Limits of what a model may say: values that no robot has are refused by name before anything is simulated."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from instep.core.errors import BadInput, Diverged
from instep.core.reading import is_array
from instep.core.world import Array, Observation, State, World, array_dataclass, inner_with

MAX_BODIES = 5000
MAX_DOFS = 5000
MAX_TRIANGLES = 5_000_000
LIMITS: dict[str, tuple[float, float, str]] = {
    "body_mass": (0.0, 1e7, "kg"), "body_inertia": (0.0, 1e9, "kg m2"), "body_pos": (-1e6, 1e6, "m"),
    "body_ipos": (-1e6, 1e6, "m"), "geom_pos": (-1e6, 1e6, "m"), "geom_size": (0.0, 1e6, "m"),
    "geom_friction": (0.0, 1e4, "1"), "mesh_vert": (-1e6, 1e6, "m"), "qpos0": (-1e6, 1e6, "m or rad"),
    "key_qpos": (-1e6, 1e6, "m or rad"), "key_qvel": (-1e6, 1e6, "m/s or rad/s"),
    "jnt_stiffness": (-1e8, 1e8, "Nm/rad"), "dof_damping": (0.0, 1e7, "Nm s/rad"),
    "dof_armature": (0.0, 1e7, "kg m2"), "dof_frictionloss": (0.0, 1e7, "Nm"), "tendon_damping": (0.0, 1e7, "N s/m"),
    "tendon_frictionloss": (0.0, 1e7, "N"), "tendon_stiffness": (-1e8, 1e8, "N/m"),
    "actuator_gainprm": (-1e10, 1e10, "of its own"), "actuator_biasprm": (-1e10, 1e10, "of its own"),
    "actuator_gear": (-1e7, 1e7, "1"),
}  # fmt: skip
"""Field of a model -> lowest and highest value, and their unit."""
OPTIONS: dict[str, tuple[float, float, str]] = {
    "timestep": (1e-6, 1.0, "s"), "gravity": (-1e4, 1e4, "m/s2"), "wind": (-1e4, 1e4, "m/s"),
    "density": (0.0, 1e6, "kg/m3"), "viscosity": (0.0, 1e6, "Pa s"), "impratio": (1e-4, 1e6, "1"),
    "iterations": (0, 10_000, "1"), "ls_iterations": (0, 10_000, "1"), "noslip_iterations": (0, 10_000, "1"),
    "ccd_iterations": (0, 10_000, "1"),
}  # fmt: skip
"""Simulation option -> lowest and highest value, and their unit."""
_OWNERS = {"body": "body", "geom": "geom", "jnt": "joint", "tendon": "tendon", "actuator": "actuator", "key": "key"}
_OPEN_ENDED = ("range",)
"""Endings of the fields in which infinity means: no limit."""


def check_model(model: mujoco.MjModel, name: str) -> None:
    """Refuse a compiled model with values that are not finite or that no robot has; `name` is its file's."""
    for field in (field for field in dir(model) if not field.startswith("_")):
        values: object = getattr(model, field)
        if is_array(values) and values.dtype.kind == "f" and values.size:
            _check_finite(model, field, values, name)
    for field, (low, high, unit) in LIMITS.items():
        values = np.asarray(getattr(model, field), float)
        outside = ~((values >= low) & (values <= high))
        if outside.any():
            place = np.argwhere(outside)[0]
            raise BadInput(
                f"{name} has {_named(model, field, int(place[0]))} = {values[tuple(place)]:g}; between {low:g} and "
                f"{high:g} {unit} was expected."
            )
    for option, (low, high, unit) in OPTIONS.items():
        for value in np.ravel(getattr(model.opt, option)):
            if not low <= float(value) <= high:
                raise BadInput(f"{name} has {option} = {value:g}; between {low:g} and {high:g} {unit} was expected.")
    _check_sizes(model, name)


@array_dataclass
class StateBounds:
    """Positions and velocities that a model can have, with wide margins: a simulation that is beyond has diverged.

    As a watcher it ends a run there. A limited joint stays within ten times its range; bodies that fall for a thousand
    seconds are inside.
    """

    scene: str
    low: Array
    """Lowest positions [nq]."""
    high: Array
    """Highest positions [nq]."""
    speed: Array
    """Highest speeds [nv]."""
    labels: tuple[str, ...]
    """Names of the positions [nq]."""

    def possible(self, q: Array, v: Array) -> Array:
        """Which states are within the bounds [...]; those that are not finite are not."""
        inside = ((q >= self.low) & (q <= self.high)).all(axis=-1)
        return np.asarray(inside & (np.abs(v) <= self.speed).all(axis=-1))

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Raise `Diverged` with one sentence where the state of a world is impossible."""
        q, v, t = state.q, state.v, float(state.t)
        if bool(self.possible(q, v)):
            return
        beyond = np.flatnonzero(~((q >= self.low) & (q <= self.high)))
        if len(beyond):
            k = int(beyond[0])
            what = f"{self.labels[k]} is at {q[k]:.3g}, and {self.low[k]:.3g} to {self.high[k]:.3g} is possible"
        else:
            k = int(np.flatnonzero(~(np.abs(v) <= self.speed))[0])
            what = f"velocity {k} is {v[k]:.3g}, and up to {self.speed[k]:.3g} is possible"
        raise Diverged(
            f"In scene {self.scene!r} the simulation diverged at t = {t:.4g} s: {what}; a smaller timestep, softer "
            "gains or valid masses may help."
        )


MAX_TURN_RAD, MAX_DISTANCE_M, MAX_SPEED = 1e6, 1e7, 1e5
"""Bounds of joints without limits, of free bodies, and of speeds [rad/s or m/s]."""


def bounds_of(world: World) -> StateBounds | None:
    """What the scene of a simulated world can do; None where the world is made of none."""
    scene = getattr(inner_with(world, "scene"), "scene", None)
    if scene is None or scene.spec.q.labels != world.spec.q.labels:
        return None
    return state_bounds(scene.model, scene.name, world.spec.q.labels)


def state_bounds(model: mujoco.MjModel, scene: str, labels: tuple[str, ...]) -> StateBounds:
    """The bounds of a model's states; `labels` name its positions."""
    low, high = np.full(model.nq, -MAX_DISTANCE_M), np.full(model.nq, MAX_DISTANCE_M)
    for j in range(model.njnt):
        begin, kind = int(model.jnt_qposadr[j]), int(model.jnt_type[j])
        if kind in (int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)):
            first = begin + (3 if kind == int(mujoco.mjtJoint.mjJNT_FREE) else 0)
            low[first : first + 4], high[first : first + 4] = -2.0, 2.0
        elif model.jnt_limited[j]:
            a, b = (float(x) for x in model.jnt_range[j])
            low[begin], high[begin] = a - 10 * (b - a) - 10, b + 10 * (b - a) + 10
        elif kind == int(mujoco.mjtJoint.mjJNT_HINGE):
            low[begin], high[begin] = -MAX_TURN_RAD, MAX_TURN_RAD
    return StateBounds(scene, low, high, np.full(model.nv, MAX_SPEED), labels)


def _check_sizes(model: mujoco.MjModel, name: str) -> None:
    if model.nv == 0:
        raise BadInput(f"{name} has no joint, so nothing in it can move.")
    for what, count, most in (
        ("bodies", model.nbody, MAX_BODIES),
        ("degrees of freedom", model.nv, MAX_DOFS),
        ("triangles", model.nmeshface, MAX_TRIANGLES),
    ):
        if count > most:
            raise BadInput(f"{name} has {count} {what}; at most {most} are simulated.")


def _check_finite(model: mujoco.MjModel, field: str, values: np.ndarray, name: str) -> None:
    bad = np.isnan(values) if field.endswith(_OPEN_ENDED) else ~np.isfinite(values)
    if bad.any():
        place = np.argwhere(bad)[0]
        raise BadInput(
            f"{name} has {_named(model, field, int(place[0]))} = {values[tuple(place)]}, which is not a finite number."
        )


def _named(model: mujoco.MjModel, field: str, row: int) -> str:
    """A field with the name of its owner: body_mass of 'arm'."""
    kind = _OWNERS.get(field.split("_", 1)[0])
    if field.startswith("dof_"):
        kind, row = "joint", int(model.dof_jntid[row])
    label = getattr(model, kind)(row).name if kind is not None and not math.isnan(row) else ""
    return f"{field} of {label!r}" if label else field
