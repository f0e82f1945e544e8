"""Limits of what a model may say: values that no robot has are refused by name before anything is simulated."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.type_guards import is_array

MAX_BODIES = 5000
MAX_DOFS = 5000
MAX_TRIANGLES = 5_000_000
LIMITS: dict[str, tuple[float, float, str]] = {
    "body_mass": (0.0, 1e7, "kg"),
    "body_inertia": (0.0, 1e9, "kg m2"),
    "body_pos": (-1e6, 1e6, "m"),
    "body_ipos": (-1e6, 1e6, "m"),
    "geom_pos": (-1e6, 1e6, "m"),
    "geom_size": (0.0, 1e6, "m"),
    "geom_friction": (0.0, 1e4, "1"),
    "mesh_vert": (-1e6, 1e6, "m"),
    "qpos0": (-1e6, 1e6, "m or rad"),
    "key_qpos": (-1e6, 1e6, "m or rad"),
    "key_qvel": (-1e6, 1e6, "m/s or rad/s"),
    "jnt_stiffness": (-1e8, 1e8, "Nm/rad"),
    "dof_damping": (0.0, 1e7, "Nm s/rad"),
    "dof_armature": (0.0, 1e7, "kg m2"),
    "dof_frictionloss": (0.0, 1e7, "Nm"),
    "tendon_damping": (0.0, 1e7, "N s/m"),
    "tendon_frictionloss": (0.0, 1e7, "N"),
    "tendon_stiffness": (-1e8, 1e8, "N/m"),
    "actuator_gainprm": (-1e10, 1e10, "of its own"),
    "actuator_biasprm": (-1e10, 1e10, "of its own"),
    "actuator_gear": (-1e7, 1e7, "1"),
}
"""Field of a model -> lowest and highest value, and their unit."""
OPTIONS: dict[str, tuple[float, float, str]] = {
    "timestep": (1e-6, 1.0, "s"),
    "gravity": (-1e4, 1e4, "m/s2"),
    "wind": (-1e4, 1e4, "m/s"),
    "density": (0.0, 1e6, "kg/m3"),
    "viscosity": (0.0, 1e6, "Pa s"),
    "impratio": (1e-4, 1e6, "1"),
    "iterations": (0, 10_000, "1"),
    "ls_iterations": (0, 10_000, "1"),
    "noslip_iterations": (0, 10_000, "1"),
    "ccd_iterations": (0, 10_000, "1"),
}
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
