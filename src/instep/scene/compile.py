"""From a checked description to a MuJoCo model that all rooms can rely on."""

from __future__ import annotations

import logging
import math
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput

from .source import Source

log = logging.getLogger(__name__)

# Else MuJoCo writes a file MUJOCO_LOG.TXT into the user's folder.
mujoco.set_mju_user_warning(lambda message: log.info("MuJoCo: %s", message))

_MUST_BE_FINITE = ("body_mass", "body_inertia", "body_pos", "geom_size", "qpos0", "dof_damping", "actuator_gainprm")


def compile_model(source: Source, *, history: float = 0.0) -> mujoco.MjModel:
    """The model of a description, with every part named and automatic reset off.

    `history` [s] gives each actuator room to remember its commands for that long, which native delays need.
    """
    spec = _spec(source)
    # On a NaN MuJoCo teleports the state to the model's default and goes on; a follower would chase it.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    _name_all(spec)
    if history > 0:
        for actuator in spec.actuators:
            actuator.nsample = max(actuator.nsample, math.ceil(history / spec.option.timestep) + 2)
            actuator.interp = 1
    try:
        model = spec.compile()
    except (ValueError, MemoryError, mujoco.FatalError) as error:
        raise _broken(source, error) from None
    _check(source, model)
    return model


def _spec(source: Source) -> Any:
    try:
        return mujoco.MjSpec.from_string(source.xml, assets=dict(source.files))
    except (ValueError, mujoco.FatalError) as error:
        raise _broken(source, error) from None


def _broken(source: Source, error: Exception) -> BadInput:
    # The compiler's message has several lines, the first of which says what and the second where.
    what = "; ".join(line.strip() for line in str(error).splitlines()[:2] if line.strip())
    return BadInput(f"MuJoCo cannot compile {source.path.name}: {what.removeprefix('Error: ').rstrip('.')}.")


def _name_all(spec: Any) -> None:
    """Give unnamed parts names, so that every part has an address."""
    for number, body in enumerate(spec.bodies):
        body.name = body.name or _fresh("body", number, spec.bodies)
        for kind, parts in (("geom", body.geoms), ("joint", body.joints), ("site", body.sites)):
            for index, part in enumerate(parts):
                everything = getattr(spec, f"{kind}s")
                part.name = part.name or _fresh(f"{body.name}_{kind}", index if len(parts) > 1 else None, everything)
    for index, actuator in enumerate(spec.actuators):
        actuator.name = actuator.name or _fresh(actuator.target or "actuator", None, spec.actuators, index)


def _fresh(stem: str, number: int | None, taken: Any, fallback: int = 1) -> str:
    names = {part.name for part in taken}
    name = stem if number is None else f"{stem}{number}"
    while name in names:
        name, fallback = f"{stem}_{fallback}", fallback + 1
    return name


def _check(source: Source, model: mujoco.MjModel) -> None:
    for field in _MUST_BE_FINITE:
        if not np.isfinite(getattr(model, field)).all():
            raise BadInput(f"{source.path.name} has a value in {field} that is not a finite number.")
    if model.nv == 0:
        raise BadInput(f"{source.path.name} has no joint, so nothing in it can move.")
